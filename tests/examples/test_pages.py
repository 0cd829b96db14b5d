"""Every command that the page of an example shows is run as shown, with no database set up."""

import os
import pty
import re
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path

import httpx
import pytest

from holdfast import embedded
from tests.docs import pages
from tests.plain import NO_TLS
from tests.ports import free_port

EXAMPLES = sorted(path.parent.name for path in (pages.ROOT / "examples").glob("*/README.md"))
# Was done once, for these tests.
INSTALLED = 'pip install "holdfast[dev]"'
CRON = re.compile(r"^(?:[\d*/,-]+ ){5} ?(.+)$")
# Numbers of most stories differ from run to run; words do not.
NUMBER = re.compile(r"\d[\d.:]*")
EXACT = ("report_jobs",)


@dataclass(frozen=True)
class Shown:
    """A command of a page, and what the page shows of what it prints."""

    command: str
    output: str | None = None


def shown(page: Path) -> list[Shown]:
    """Return the commands of a page in their order: typed ones, cron's, and those in its prose."""
    found: list[Shown] = []
    for block in pages.blocks(page):
        lines = block.text.splitlines()
        typed = [line[2:] for line in lines if line.startswith("$ ")]
        cron = [match[1] for line in lines if (match := CRON.match(line))]
        if typed or cron:
            found += [Shown(command) for command in typed + cron]
        else:
            found[-1] = Shown(found[-1].command, block.text)
    prose = re.sub(r"^```.*?^```$", "", page.read_text("utf-8"), flags=re.MULTILINE | re.DOTALL)
    mentioned = re.findall(r"`(holdfast (?:job|dead|queue) [^`]+)`", prose)
    return found + [Shown(command) for command in mentioned]


@pytest.fixture
def clone() -> Iterator[Path]:
    """The examples as they are in a clone, in a directory that everybody may enter."""
    path = Path(tempfile.mkdtemp(prefix="holdfast-test-", dir="/tmp"))
    path.chmod(0o755)
    ignored = shutil.ignore_patterns("__pycache__", ".holdfast")
    shutil.copytree(pages.ROOT / "examples", path / "examples", ignore=ignored)
    yield path
    shutil.rmtree(path)


@pytest.fixture
def environment() -> dict[str, str]:
    """What a reader has: the programs, a free port, and nothing that names a database."""
    port = str(free_port())
    clean = {name: text for name, text in os.environ.items() if not name.startswith("HOLDFAST_")}
    path = os.pathsep.join([str(Path(sys.executable).parent), os.environ["PATH"]])
    return clean | {
        "PATH": path,
        "NO_COLOR": "1",
        "HOLDFAST_SERVE_PORT": port,
        "HOLDFAST_API": f"http://127.0.0.1:{port}",
    }


@pytest.mark.parametrize("example", EXAMPLES)
def test_a_reader_who_types_what_the_page_shows_sees_what_it_shows(
    example: str, clone: Path, environment: dict[str, str]
) -> None:
    if example == "relay" and not (shutil.which("curl") and shutil.which("jq")):
        pytest.skip("its reader has curl and jq")
    steps = shown(clone / "examples" / example / "README.md")

    with ExitStack() as stack:
        kept = False
        for step in steps:
            if step.command == INSTALLED:
                continue
            if step.command.startswith(("holdfast serve", "holdfast dev")):
                stack.enter_context(running(step.command, clone, environment))
                continue
            printed = typed(step.command, clone, environment)
            if step.output is not None:
                wanted = step.output if example in EXACT else NUMBER.sub("…", step.output)
                agrees = pages.agrees(wanted, printed)
                assert agrees, f"$ {step.command}\nthe page shows\n{step.output}\ngot\n{printed}"
            if not kept:
                # The reader's next command would start it again, which takes its time.
                stack.enter_context(embedded.start(clone / ".holdfast" / "pg"))
                kept = True


def typed(command: str, clone: Path, environment: dict[str, str]) -> str:
    """Type a command at a terminal, and yes where it asks; returns what it printed."""
    ours, theirs = pty.openpty()
    os.write(ours, b"y\n")
    try:
        done = subprocess.run(
            ["sh", "-c", command],
            cwd=clone,
            env=environment,
            stdin=theirs,
            capture_output=True,
            text=True,
            timeout=120,
        )
    finally:
        os.close(ours)
        os.close(theirs)
    assert done.returncode == 0, f"$ {command}\n{done.stdout}{done.stderr}"
    return done.stdout


@contextmanager
def running(command: str, clone: Path, environment: dict[str, str]) -> Iterator[None]:
    """A command in a terminal of its own, from when it answers until Ctrl-C."""
    log = clone / "log"
    with log.open("w") as out:
        process = subprocess.Popen(
            ["sh", "-c", f"exec {command}"],
            cwd=clone,
            env=environment,
            stdin=subprocess.DEVNULL,
            stdout=out,
            stderr=out,
        )
    try:
        end = time.monotonic() + 60
        while not answers(log.read_text()):
            assert process.poll() is None, log.read_text()
            assert time.monotonic() < end, log.read_text()
            time.sleep(0.05)
        yield
    finally:
        process.send_signal(signal.SIGINT)
        process.wait(timeout=200)


def answers(said: str) -> bool:
    """Whether the server that told its address is ready."""
    address = re.search(r"http://127\.0\.0\.1:\d+", said)
    try:
        return bool(address) and httpx.get(f"{address[0]}/readyz", verify=NO_TLS).status_code == 200
    except httpx.TransportError:
        return False
