"""tests/sources.md cannot rot: its rows, its sections and the marks on tests agree."""

import re
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import psycopg
import pytest

from tests.docs.pages import ROOT, headings
from tools import sources

PAGE = sources.PAGE.read_text("utf-8")
ROWS = sources.rows(PAGE)
MARKS = sources.marks()


def test_no_id_is_missing_or_listed_twice() -> None:
    promised = [
        f"{first[1]}.{n}"
        for heading in headings(sources.PAGE)
        if (first := re.match(r"(S\d+x?)\.1 to \1\.(\d+): ", heading))
        for n in range(1, int(first[2]) + 1)
    ]

    assert [id for id, _, _ in ROWS] == promised
    assert {id.split(".")[0] for id in promised} == {"S0", "S1", "S2", "S3", "S4", "S4x"}


@pytest.mark.parametrize(("id", "proof"), [(id, proof) for id, _, proof in ROWS])
def test_a_capability_is_proven_by_the_tests_it_names(id: str, proof: str) -> None:
    named = re.findall(r"\[(\w+)\]\((\S+?)\)", proof)
    assert named, f"nothing proves {id}"
    assert {sources.Proof(f"tests/{file}", test) for test, file in named} <= set(MARKS.get(id, []))


def test_every_index_the_page_names_exists(connect: Callable[..., psycopg.Connection]) -> None:
    places = [place for _, place, _ in ROWS if place.startswith("index")]
    named = [name for place in places for name in re.findall(r"`(\w+)`", place)]
    rows = connect().execute("select indexname from pg_indexes where schemaname = 'holdfast'")

    assert set(named) - {name for (name,) in rows} == set()


def test_every_mark_is_on_the_page() -> None:
    assert sorted(MARKS.keys() - {id for id, _, _ in ROWS}) == []


def test_the_page_is_as_the_tool_writes_it() -> None:
    done = subprocess.run(
        [sys.executable, "tools/sources.py", "--check"], cwd=ROOT, capture_output=True, text=True
    )

    assert (done.returncode, done.stderr) == (0, "")


def test_marks_are_read_from_functions_classes_modules_and_machines(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "test_a.py").write_text(
        "import pytest\n"
        "pytestmark = pytest.mark.proves('S9.1')\n"
        "@pytest.mark.proves('S9.2', 'S9.3')\n"
        "def test_one(): ...\n"
        "@pytest.mark.proves('S9.4')\n"
        "class TestTwo:\n"
        "    def test_three(self): ...\n"
        "TestFour = pytest.mark.proves('S9.5')(machine)\n"
    )
    monkeypatch.setattr(sources, "ROOT", tmp_path)

    found = {id: [p.test for p in proofs] for id, proofs in sources.marks(tmp_path).items()}

    assert found == {
        "S9.1": ["test_one", "test_three"],
        "S9.2": ["test_one"],
        "S9.3": ["test_one"],
        "S9.4": ["test_three"],
        "S9.5": ["TestFour"],
    }
