"""The catalogue of planted faults cannot rot, and what plants them tells the truth.

Whether tests notice the faults is for `make mutants` to say: that takes a while.
"""

import ast
from collections import Counter
from pathlib import Path

import pytest

from tests.mutants.catalogue import ROOT, Mutant, Stale, missing_tests, mutants
from tests.mutants.planting import BROKEN, KILLED, LATE, STALE, SURVIVED, run

CATALOGUE = mutants()


def test_there_are_enough_faults_and_each_has_a_name_of_its_own() -> None:
    assert [
        name for name, times in Counter(one.name for one in CATALOGUE).items() if times > 1
    ] == []
    assert len(CATALOGUE) >= 80


@pytest.mark.parametrize("mutant", CATALOGUE, ids=lambda one: one.name)
def test_a_fault_fits_the_code_and_its_tests_exist(mutant: Mutant) -> None:
    text = (ROOT / mutant.file).read_text("utf-8")
    planted = mutant.planted(text)

    assert planted != text
    if mutant.file.endswith(".py"):
        ast.parse(planted)
    assert mutant.tests
    assert list(missing_tests(mutant)) == []


def test_a_fault_is_planted_in_the_function_it_names() -> None:
    text = "def one():\n    return 1\n\n\ndef two():\n    return 1\n"
    mutant = Mutant("m", "a.py", "return 1", "return 2", "", (), within="def two(")

    assert mutant.planted(text) == "def one():\n    return 1\n\n\ndef two():\n    return 2\n"


@pytest.mark.parametrize(("old", "within"), [("gone", ""), ("1", ""), ("1", "def three(")])
def test_a_fault_that_does_not_fit_is_stale(old: str, within: str) -> None:
    text = "def one():\n    return 1\n\n\ndef two():\n    return 1\n"

    with pytest.raises(Stale, match="not once"):
        Mutant("m", "a.py", old, "", "", (), within=within).planted(text)


def test_faults_are_killed_survive_are_stale_break_or_take_too_long(tmp_path: Path) -> None:
    (tmp_path / "pyproject.toml").write_text("[tool.pytest.ini_options]\npythonpath = ['src']\n")
    (tmp_path / "src").mkdir()
    (tmp_path / "src" / "toy.py").write_text("def one():\n    return 1\n")
    tests = "import toy\n\ndef test_one():\n    assert toy.one() == 1\n\ndef test_two(): ...\n"
    (tmp_path / "test_toy.py").write_text(tests)

    def planted(name: str, old: str, new: str, test: str = "test_toy.py::test_one") -> Mutant:
        return Mutant(name, "src/toy.py", old, new, "", (test,))

    faults = [
        planted("wrong", "return 1", "return 2"),
        planted("unnoticed", "return 1", "return 2", "test_toy.py::test_two"),
        planted("outdated", "return 3", "return 2"),
        planted("unimportable", "def one", "def def one"),
    ]
    endless = planted("endless", "return 1", "import time; time.sleep(60)")
    results = {one.mutant.name: one for one in run(faults, jobs=4, root=tmp_path)}
    results |= {one.mutant.name: one for one in run([endless], patience=1.0, root=tmp_path)}

    assert {name: one.verdict for name, one in results.items()} == {
        "wrong": KILLED,
        "unnoticed": SURVIVED,
        "outdated": STALE,
        "unimportable": BROKEN,
        "endless": LATE,
    }
    assert results["wrong"].by == "test_toy.py::test_one"
    assert (tmp_path / "src" / "toy.py").read_text() == "def one():\n    return 1\n"
