"""Plants faults in copies of the tree and runs the tests named for what they break."""

import os
import re
import shutil
import signal
import subprocess
import sys
import tempfile
from collections.abc import Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor, as_completed
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from time import monotonic

from tests.mutants.catalogue import ROOT, Mutant, Stale

KILLED, SURVIVED, STALE, LATE, BROKEN = "killed", "survived", "stale", "timeout", "broken"
# How long the tests of one fault may take, in seconds.
TIMEOUT = 300.0

_LEFT_OUT = shutil.ignore_patterns(
    ".git", ".venv", ".holdfast", "node_modules", ".*_cache", ".hypothesis", "dist", "build"
)
# The fixture of the protocol compares counters with rows when a test is over: that counts as well.
_FAILED = re.compile(r"^(?:FAILED|ERROR) (\S+)", re.MULTILINE)
_NOT_SET_UP = "ERROR at setup of"


@dataclass(frozen=True)
class Result:
    """What became of a fault: the test that noticed it, or what pytest said instead.

    A fault is killed by a test that fails. One that keeps tests from being set up or found is
    broken: it proves nothing of them. So is one whose tests take too long.
    """

    mutant: Mutant
    verdict: str
    seconds: float
    by: str = ""
    told: str = ""
    failed: tuple[str, ...] = ()


def run(
    mutants: Sequence[Mutant],
    *,
    jobs: int = 2,
    patience: float = TIMEOUT,
    root: Path = ROOT,
    thorough: bool = False,
) -> Iterator[Result]:
    """Plant each of these faults and yield what became of it, as it is known.

    `thorough` runs all of its tests, where otherwise the first that fails is enough.
    """
    with tempfile.TemporaryDirectory(prefix="holdfast-mutants-") as place:
        clean = Path(place, "clean")
        shutil.copytree(root, clean, ignore=_LEFT_OUT, symlinks=True)
        with ThreadPoolExecutor(jobs) as pool:
            asked = [pool.submit(_run_one, one, clean, patience, thorough) for one in mutants]
            for done in as_completed(asked):
                yield done.result()


def failing(tests: Iterable[str], *, patience: float = TIMEOUT, root: Path = ROOT) -> list[str]:
    """Run tests without any fault; returns those that fail: they say nothing about faults."""
    with tempfile.TemporaryDirectory(prefix="holdfast-mutants-") as place:
        clean = Path(place, "clean")
        shutil.copytree(root, clean, ignore=_LEFT_OUT, symlinks=True)
        _, told = _tested(sorted(set(tests)), clean, patience, [])
    return _FAILED.findall(told)


def _run_one(mutant: Mutant, clean: Path, patience: float, thorough: bool) -> Result:
    began = monotonic()
    tree = clean.parent / mutant.name
    try:
        edited = mutant.planted((clean / mutant.file).read_text("utf-8"))
    except (Stale, FileNotFoundError) as error:
        return Result(mutant, STALE, 0.0, told=str(error))
    # Linked, since only one file differs, and that one is written anew.
    shutil.copytree(clean, tree, copy_function=os.link, symlinks=True)
    try:
        (tree / mutant.file).unlink()
        (tree / mutant.file).write_text(edited, "utf-8")
        code, told = _tested(mutant.tests, tree, patience, [] if thorough else ["-x"])
    finally:
        shutil.rmtree(tree, ignore_errors=True)
    seconds = monotonic() - began
    failed = _FAILED.findall(told)
    if code is None:
        return Result(mutant, LATE, seconds, told=told[-3000:])
    if code == 0:
        return Result(mutant, SURVIVED, seconds)
    if code == 1 and failed and _NOT_SET_UP not in told:
        return Result(mutant, KILLED, seconds, by=failed[0], failed=tuple(failed))
    return Result(mutant, BROKEN, seconds, told=told[-3000:])


def _tested(
    tests: Sequence[str], tree: Path, patience: float, options: Sequence[str]
) -> tuple[int | None, str]:
    """Run the tests in a copy of the tree; returns how they ended, None if not in time."""
    command = [sys.executable, "-m", "pytest", "-q", "-rfE", "--tb=short", "--no-header"]
    # Some faults make a test wait for ever.
    command += ["-p", "no:cacheprovider", "--timeout=90", *options, *tests]
    # Before what is installed, so that programs which the tests start have the fault as well.
    environment = os.environ | {"PYTHONPATH": str(tree / "src"), "PYTHONDONTWRITEBYTECODE": "1"}
    with subprocess.Popen(
        command,
        cwd=tree,
        env=environment,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        start_new_session=True,
    ) as running:
        try:
            told, _ = running.communicate(timeout=patience)
        except subprocess.TimeoutExpired:
            # As Ctrl-C would: the server that the tests have started ends with them.
            for ending in (signal.SIGINT, signal.SIGKILL):
                with suppress(ProcessLookupError):
                    os.killpg(running.pid, ending)
                with suppress(subprocess.TimeoutExpired):
                    told, _ = running.communicate(timeout=20)
                    return None, told
            return None, ""
    return running.returncode, told
