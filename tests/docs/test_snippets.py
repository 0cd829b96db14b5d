"""Every snippet of the documentation does what its page shows."""

from contextlib import ExitStack
from pathlib import Path
from shutil import which
from urllib.parse import urlencode

import pytest
from psycopg.conninfo import conninfo_to_dict

from holdfast.server import Server, Settings
from tests.docs import pages
from tests.docs.readers import Reader
from tests.server.serving import serving

EVERY_PAGE = pytest.mark.parametrize("page", pages.pages(), ids=pages.name_of)


@EVERY_PAGE
def test_every_block_says_what_it_is(page: Path) -> None:
    unknown = [
        f"line {block.line}: {block.language or 'no language'}"
        for block in pages.blocks(page)
        if block.language not in pages.RUNS + pages.SHOWS
    ]

    assert unknown == []


@pytest.mark.parametrize(
    "page",
    [page for page in pages.pages() if any(b.language in pages.RUNS for b in pages.blocks(page))],
    ids=pages.name_of,
)
def test_a_reader_who_follows_the_page_sees_what_it_shows(
    page: Path, database: str, binaries: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HOLDFAST_URL", address(database))
    # Tests of the reader make their databases where this one is, not on a server of their own.
    monkeypatch.setenv("HOLDFAST_TEST_URL", address(database))
    # Of the plugins here, a reader has ours.
    monkeypatch.setenv("PYTEST_DISABLE_PLUGIN_AUTOLOAD", "1")
    monkeypatch.setenv("PYTEST_ADDOPTS", "-p holdfast_pytest -p no:cacheprovider")
    monkeypatch.chdir(tmp_path)

    with ExitStack() as stack:
        if "$HOLDFAST_API" in page.read_text("utf-8"):
            if not (which("curl") and which("jq")):
                pytest.skip("its reader has curl and jq")
            served = stack.enter_context(serving(Server(database, settings=Settings(fresh=0.0))))
            monkeypatch.setenv("HOLDFAST_API", served.url)
        reader = stack.enter_context(Reader(database, binaries, tmp_path))
        for block in pages.blocks(page):
            if block.language in pages.RUNS:
                try:
                    reader.follow(block)
                except Exception as error:
                    error.add_note(f"{pages.name_of(page)}, line {block.line}")
                    raise


def test_programs_of_other_libraries_are_python() -> None:
    theirs = [b for page in pages.pages() for b in pages.blocks(page) if b.language == "py"]

    assert len(theirs) >= 9
    for block in theirs:
        compile(block.text, f"<line {block.line}>", "exec")


def address(database: str) -> str:
    """Return an address as people write it, which every driver can read."""
    of = conninfo_to_dict(database)
    user = str(of["user"]) + (f":{of['password']}" if of.get("password") else "")
    where = urlencode({"host": of["host"], "port": of["port"]}, safe="/")
    return f"postgresql://{user}@/{of['dbname']}?{where}"


def test_an_output_agrees_up_to_ids_times_and_widths() -> None:
    shown = (
        " id | at | n\n----+----+---\n"
        " 01990f3a-0000-8013-8000-00000000000a | 2026-01-02 03:04:05+00 | …\n"
    )
    printed = (
        "                  id                  |    at    |  n  \n"
        "--------------------------------------+----------+---\n"
        " ffffffff-0000-8013-8000-00000000000b | 2025-11-22 13:14:15.123+01 | 12\n"
    )

    assert pages.agrees(shown, printed)
    assert not pages.agrees(shown.replace("…", "13"), printed)
    assert pages.agrees("…\n ffffffff-0000-8013-8000-00000000000b | …\n", printed)


def test_a_block_that_should_fail_and_does_not_is_noticed(
    database: str, binaries: Path, tmp_path: Path
) -> None:
    with Reader(database, binaries, tmp_path) as reader:
        for script in ("select 1; -- error HF207\n", "select holdfast.refuse('HF207', 'no');\n"):
            with pytest.raises(AssertionError):
                reader.follow(pages.Block(1, "sql", script))


@pytest.mark.parametrize("typed", ["holdfast no-such-command\n", "holdfast -h\n$ holdfast -h\n"])
def test_a_command_without_its_prompt_is_noticed_and_not_passed_over(
    typed: str, database: str, binaries: Path, tmp_path: Path
) -> None:
    with (
        Reader(database, binaries, tmp_path) as reader,
        pytest.raises(AssertionError, match="begins with"),
    ):
        reader.follow(pages.Block(1, "console", typed))
