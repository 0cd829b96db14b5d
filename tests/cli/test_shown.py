"""Commands that the dashboard shows to be copied are ones that the program takes."""

import re
import shlex
from pathlib import Path

import click
import pytest

from holdfast.cli import main

PAGES = Path(__file__).parents[2] / "dashboard/src"
SHOWN = re.compile(r"""(?P<quote>["`>])(?P<line>holdfast (?:\\.|(?!(?P=quote))[^<\n])+)""")


def shown() -> dict[str, str]:
    """Return each command with the page that shows it."""
    found = {}
    for page in sorted(PAGES.rglob("*.ts*")):
        for match in SHOWN.finditer(page.read_text()):
            line = re.sub(r"\\(.)", r"\1", match["line"])
            found[re.sub(r"\$\{[^}]*\}", "mail", line)] = page.name
    return found


@pytest.mark.parametrize("line", shown())
def test_a_command_that_a_page_shows_is_taken(
    line: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "app.py").touch()
    monkeypatch.chdir(tmp_path)
    _, *words = shlex.split(line)
    command: click.Command = main
    while isinstance(command, click.Group) and words and words[0] in command.commands:
        command, words = command.commands[words[0]], words[1:]

    assert command is not main
    command.make_context(line, words)


def test_the_pages_are_searched() -> None:
    assert len(shown()) >= 10
    assert "signin.tsx" in shown().values()
