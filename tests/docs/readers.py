"""What a reader does with a page: types its SQL into psql, runs its Python and its commands.

One reader follows one page from top to bottom, so a block may use what an earlier one made.
"""

import contextlib
import io
import os
import re
import shlex
import subprocess
import sys
from pathlib import Path
from types import TracebackType
from typing import Any, Self

from click.testing import CliRunner

from holdfast import App, Client
from holdfast.cli import main
from tests.docs.pages import Block, agrees

# Commands that a reader types once to get this far, or that another test runs as they are shown:
# test_quickstart and tests/examples/test_pages. Everything else is run.
SET_UP = ("make ", "pip ", "git ", "cd ", "export ", "python app.py", "python -m examples.")
# What needs a process of its own: programs that run on, what loads the reader's own modules, and
# whatever the shell has to do with. All else is run in this one: to start Python takes far longer.
ALONE = re.compile(
    r"holdfast (worker|serve|dev|demo|upkeep|top|bench)\b|\w:app\b|\.py\b|[$`*?~|<>&;]"
)


class Reader:
    """Follows a page against one database; raises AssertionError where it does not hold."""

    def __init__(self, url: str, programs: Path, home: Path) -> None:
        self._psql = Psql(url, programs)
        self._namespace: dict[str, Any] = {"__name__": "__main__"}
        self._home = home
        path = os.pathsep.join(
            [str(Path(sys.executable).parent), str(programs), os.environ["PATH"]]
        )
        self._environment = {**os.environ, "HOLDFAST_URL": url, "PATH": path, "NO_COLOR": "1"}

    def follow(self, block: Block) -> None:
        """Run a block and compare what it prints with what the page shows."""
        if block.language == "console":
            self._type(block.text)
            return
        printed = self._psql.run(block.text) if block.language == "sql" else self._run(block)
        if block.output is not None:
            assert agrees(block.output, printed), f"the page shows\n{block.output}\ngot\n{printed}"

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._psql.close()
        # A script's end closes what it left open; here the next page would be blamed for it.
        for value in self._namespace.values():
            if isinstance(value, App | Client):
                value.close()
        self._namespace.clear()

    def _run(self, block: Block) -> str:
        # A block that begins with the name of a file is that file, for commands to use.
        if named := re.match(r"# (\w+\.py)\n", block.text):
            (self._home / named[1]).write_text(block.text, "utf-8")
            return ""
        printed = io.StringIO()
        with contextlib.redirect_stdout(printed):
            exec(compile(block.text, f"<line {block.line}>", "exec"), self._namespace)
        return printed.getvalue()

    def _type(self, session: str) -> None:
        """Type each command after a `$ `; the lines under it are its output, if there are any.

        A command that must fail says so: `$ holdfast … # exit 4`.
        """
        assert session.startswith("$ "), f"a console block begins with `$ `, got\n{session}"
        for typed in re.split(r"^\$ ", session, flags=re.MULTILINE)[1:]:
            command, _, shown = typed.partition("\n")
            if command.startswith(SET_UP):
                continue
            if prompt := re.fullmatch(r"python -i (\w+\.py)", command):
                # What follows is typed at the prompt of this file.
                text = (self._home / prompt[1]).read_text("utf-8")
                exec(compile(text, prompt[1], "exec"), self._namespace)
                continue
            says = re.search(r"# exit (\d)$", command)
            code, printed = self._execute(command)
            assert code == (int(says[1]) if says else 0), f"$ {command}\n{printed}"
            if shown.strip():
                assert agrees(shown, printed), (
                    f"$ {command}\nthe page shows\n{shown}\ngot\n{printed}"
                )

    def _execute(self, command: str) -> tuple[int, str]:
        """The exit code of a command, and what it printed."""
        if command.startswith("holdfast ") and not ALONE.search(command):
            arguments = shlex.split(command, comments=True)[1:]
            ended = CliRunner().invoke(main, arguments, prog_name="holdfast", env=self._environment)
            assert ended.exception is None or isinstance(ended.exception, SystemExit)
            return ended.exit_code, ended.stdout + ended.stderr
        done = subprocess.run(
            ["sh", "-c", command],
            cwd=self._home,
            env=self._environment,
            capture_output=True,
            text=True,
            timeout=200,
            stdin=subprocess.DEVNULL,
        )
        return done.returncode, done.stdout + done.stderr


class Psql:
    """The real psql, fed block by block.

    A block with the comment `-- error HF207` must fail with that SQLSTATE, any other must not fail.
    """

    def __init__(self, url: str, programs: Path) -> None:
        self._process = subprocess.Popen(
            [str(programs / "psql"), "--no-psqlrc", "--set=SHOW_CONTEXT=never", url],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            bufsize=1,
        )
        self._told = 0

    def run(self, script: str) -> str:
        """Run a block; return what it printed, then what it complained of."""
        self._told += 1
        end = f"end of block {self._told}"
        assert self._process.stdin
        self._process.stdin.write(
            f"\\set LAST_ERROR_SQLSTATE 00000\n{script}\n"
            f"\\echo {end} :LAST_ERROR_SQLSTATE\n\\warn {end}\n"
        )
        self._process.stdin.flush()
        printed, last = self._until(end, self._process.stdout)
        complained, _ = self._until(end, self._process.stderr)
        wanted = re.search(r"-- error (\w{5})", script)
        assert last.split()[-1] == (wanted[1] if wanted else "00000"), printed + complained
        return printed + complained

    def close(self) -> None:
        """End the session."""
        self._process.communicate("\\q\n", timeout=100)

    def _until(self, end: str, stream: Any) -> tuple[str, str]:
        lines: list[str] = []
        for line in stream:
            if line.startswith(end):
                return "".join(lines), line
            lines.append(line)
        raise AssertionError("psql ended early: " + "".join(lines))
