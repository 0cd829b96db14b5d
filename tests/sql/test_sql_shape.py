"""The protocol can be read: no function and no line is long, and the map of its files is whole."""

import re
from pathlib import Path

import pytest

SQL = Path(__file__).parents[2] / "src" / "holdfast" / "sql"
FILES = sorted([*SQL.glob("*.sql"), *(SQL / "functions").glob("*.sql")])

LONGEST_FUNCTION = 120
LONGEST_LINE = 120

_HEAD = re.compile(r"^create (?:or replace )?function holdfast\.(\w+)", re.MULTILINE)
_BODY = re.compile(r"^as (\$\w*\$)", re.MULTILINE)
_NOT_A_NAME = "set|where|using|in|from|values|order|limit|group|left|cross|on|to"
_JOBS = re.compile(rf"holdfast\.job(?: as)?\s+(?!(?:{_NOT_A_NAME})\b)(\w+)")
_CONDITION = re.compile(r"\b(?:where|on)\b")
_AFTER = re.compile(r"\b(?:where|from|returning|union)\b|\)\s*,")


def functions(text: str) -> dict[str, int]:
    """Return of each function how many lines it has, from its head to its last."""
    found = {}
    for head in _HEAD.finditer(text):
        body = _BODY.search(text, head.end())
        assert body is not None, head.group(1)
        end = text.index(body.group(1), body.end())
        found[head.group(1)] = text.count("\n", head.start(), end) + 1
    return found


def long_functions(text: str) -> set[str]:
    """Return the names of functions that have too many lines."""
    return {name for name, lines in functions(text).items() if lines > LONGEST_FUNCTION}


def long_lines(text: str) -> list[int]:
    """Return the numbers of lines that are too long."""
    return [n for n, line in enumerate(text.splitlines(), 1) if len(line) > LONGEST_LINE]


def jobs_by_address_alone(text: str) -> list[str]:
    """Return the conditions that find a job by its ctid without naming its part.

    A ctid is unique in its partition only.
    """
    found = []
    for statement in re.sub(r"--.*", "", text).split(";"):
        for job in sorted(set(_JOBS.findall(statement))):
            compared = re.compile(rf"\b{job}\.ctid\s*(?:=|<>|in\b)|=\s*{job}\.ctid\b")
            for use in compared.finditer(statement):
                before = _CONDITION.split(statement[: use.start()])[-1]
                condition = before + _AFTER.split(statement[use.start() :])[0]
                if not re.search(rf"\b{job}\.part\b", condition):
                    found.append(condition.strip())
    return found


@pytest.mark.parametrize("file", FILES, ids=lambda file: file.name)
def test_no_function_is_too_long_to_be_read(file: Path) -> None:
    assert long_functions(file.read_text()) == set()


@pytest.mark.parametrize("file", FILES, ids=lambda file: file.name)
def test_no_line_is_too_long(file: Path) -> None:
    assert long_lines(file.read_text()) == []


@pytest.mark.parametrize("file", FILES, ids=lambda file: file.name)
def test_no_job_is_found_by_its_address_alone(file: Path) -> None:
    assert jobs_by_address_alone(file.read_text()) == []


def test_an_address_alone_is_seen() -> None:
    claim = (SQL / "functions" / "claim.sql").read_text()
    uses = claim.count("j.part + 0 = v_part")
    assert uses >= 2

    assert len(jobs_by_address_alone(claim.replace("j.part + 0 = v_part", "true"))) == uses
    assert jobs_by_address_alone(
        "update holdfast.job j set token = null where j.ctid = any(rows) and j.token is null;"
        "update holdfast.job x set pos = 1 from u where u.place = x.ctid and u.part = x.part;"
    ) == ["j.ctid = any(rows) and j.token is null"]


def test_what_is_too_long_is_seen() -> None:
    def made(lines: int) -> str:
        body = "  perform 1;\n" * (lines - 6)
        head = "create or replace function holdfast.made()\nreturns void\nlanguage plpgsql\nas $$\n"
        return f"{head}begin\n{body}end $$;\n"

    assert functions(made(120)) == {"made": 120}
    assert long_functions(made(120)) == set()
    assert long_functions(made(121)) == {"made"}
    assert long_lines("x" * 120 + "\n" + "x" * 121 + "\n") == [2]


def test_every_file_is_on_the_map() -> None:
    readme = (SQL / "README.md").read_text()

    missing = [
        file.name
        for file in FILES
        if not re.search(rf"`(?:functions/)?{re.escape(file.name)}`", readme)
    ]

    assert missing == []
