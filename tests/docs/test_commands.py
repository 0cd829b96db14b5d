"""Commands that pages show and that no reader runs: in prose, and those that would run on.

The program must take them as they stand, with words in capitals for what the reader fills in.
"""

import re
import shlex
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import click
import pytest

from holdfast.cli import main
from tests.docs import pages

FILLED = {
    "APP": "shop.jobs:app",
    "FILTER": "state:dead",
    "ID": "31",  # of an operation; that of a job is longer
    "ID...|FILTER": "state:dead",
    "NODE": "1",
    "NUMBER": "1",
    "VERB": "retry",
    "bash|zsh|fish|powershell": "bash",
}
UUIDS = {**FILLED, "ID": "01a1e55f-7243-801b-be13-70cadc5a2605"}
# Variables that are set for one command.
SET = r"(?:\w+=(?:\$\([^)]*\)|\S)* +)*"
# A line without a prompt is a command too, unless it is what one prints: `holdfast 0.1.0`.
TYPED = rf"^(?:\$ )?({SET}holdfast [a-z-](?:\\\n|.)*)"


def shown() -> dict[str, str]:
    """Return each command with the page that shows it."""
    return {line: pages.name_of(page) for page in pages.pages() for line in _lines(page)}


def _lines(page: Path) -> Iterator[str]:
    text = page.read_text("utf-8")
    prose = re.sub(r"^```.*?^```$", "", text, flags=re.MULTILINE | re.DOTALL)
    for line in re.findall(rf"`({SET}holdfast [^`]+)`", prose):
        yield from _commands(" ".join(line.split()))
    for block in pages.blocks(page):
        if block.language == "text":
            for line in re.findall(TYPED, block.text, re.MULTILINE):
                yield from _commands(line.replace("\\\n", " "))


def _commands(line: str) -> Iterator[str]:
    """Return the command of a line, and those whose output it puts into variables."""
    yield from re.findall(r"\$\((holdfast [^)]+)\)", line)
    yield re.sub(rf"^{SET}", "", line)


@pytest.mark.parametrize("line", shown())
def test_a_command_that_a_page_shows_is_taken(
    line: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    words = shlex.split(line, comments=True)[1:]
    command: click.Command = main
    while isinstance(command, click.Group) and words and words[0] in command.commands:
        command, words = command.commands[words[0]], words[1:]

    assert command is not main or words == ["--help"]
    # Without its arguments it is only mentioned.
    with suppress(click.exceptions.Exit, click.MissingParameter):
        try:
            command.make_context(line, [FILLED.get(word, word) for word in words])
        except click.BadParameter:
            command.make_context(line, [UUIDS.get(word, word) for word in words])


def test_the_pages_are_searched() -> None:
    assert len(shown()) > 100
    assert "holdfast serve --redact payload.password,send_sms:payload.to" in shown()


def test_a_command_counts_without_its_prompt_and_inside_a_variable(tmp_path: Path) -> None:
    page = tmp_path / "page.md"
    page.write_text(
        "```text\nholdfast migrate --shard\nURL=$(holdfast node url 1) holdfast worker app.py\n"
        "$ holdfast queue \\\n  list\nholdfast 0.1.0  PostgreSQL\nholdfast  found a row\n```\n"
    )

    assert list(_lines(page)) == [
        "holdfast migrate --shard",
        "holdfast node url 1",
        "holdfast worker app.py",
        "holdfast queue    list",
    ]
