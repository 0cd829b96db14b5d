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
    "bash|zsh|fish": "bash",
}


UUIDS = {**FILLED, "ID": "01a1e55f-7243-801b-be13-70cadc5a2605"}


def shown() -> dict[str, str]:
    """Return each command with the page that shows it."""
    return {line: pages.name_of(page) for page in pages.pages() for line in _lines(page)}


def _lines(page: Path) -> Iterator[str]:
    text = page.read_text("utf-8")
    prose = re.sub(r"^```.*?^```$", "", text, flags=re.MULTILINE | re.DOTALL)
    yield from (" ".join(line.split()) for line in re.findall(r"`(holdfast [^`]+)`", prose))
    for block in pages.blocks(page):
        if block.language == "text":
            typed = re.findall(r"^\$ (holdfast (?:\\\n|.)+)", block.text, re.MULTILINE)
            yield from (line.replace("\\\n", " ") for line in typed)


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
