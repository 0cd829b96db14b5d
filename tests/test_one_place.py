"""A fact stands in one place, and a change of a common sort needs few files."""

import json
import os
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from tools.where_changes_go import CHANGES, Change, prove

ROOT = Path(__file__).parents[1]
BEFORE = "    headers: Annotated["
FIELD = '    flavour: Annotated[Label | None, says("a field that a test made up")] = None\n'

Run = Callable[..., str]


@pytest.fixture(scope="module")
def copy(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The sources with one field more in the declaration of NewJob, and nothing else changed."""
    root = tmp_path_factory.mktemp("copy")
    for name in ("src", "tools", "docs/reference", "dashboard/src"):
        shutil.copytree(ROOT / name, root / name, ignore=shutil.ignore_patterns("__pycache__"))
    shutil.copy(ROOT / "pyproject.toml", root)
    job = root / "src" / "holdfast" / "records" / "job.py"
    declared = job.read_text()
    assert declared.count(BEFORE) == 1
    job.write_text(declared.replace(BEFORE, FIELD + BEFORE))
    return root


@pytest.fixture(scope="module")
def run(copy: Path) -> Run:
    """Run Python on the copy; returns what it prints."""

    def run(*arguments: str) -> str:
        done = subprocess.run(
            [sys.executable, *arguments],
            cwd=copy,
            env={**os.environ, "PYTHONPATH": str(copy / "src")},
            capture_output=True,
            text=True,
            check=False,
        )
        assert done.returncode == 0, done.stderr
        return done.stdout

    return run


@pytest.fixture(scope="module")
def generated(copy: Path, run: Run) -> Path:
    """The copy after both generators have run."""
    run("tools/generate_fields.py")
    run("tools/generate_contract.py")
    return copy


def test_the_copy_is_what_runs(copy: Path, run: Run) -> None:
    assert Path(run("-c", "import holdfast; print(holdfast.__file__)").strip()).is_relative_to(copy)


def test_a_new_field_is_a_typed_option(generated: Path) -> None:
    options = (generated / "src/holdfast/records/options.py").read_text()

    assert options.count("    flavour: ") == 2  # of a job, and of a task for all its jobs


def test_a_new_field_is_taken_in_a_request(run: Run) -> None:
    body = run(
        "-c",
        "import msgspec\n"
        "from holdfast.server.http import inputs\n"
        """said = b'{"kind": "a", "flavour": "sour"}'\n"""
        "print(msgspec.json.decode(said, type=inputs.NewJob).flavour)",
    )

    assert body.strip() == "sour"


def test_a_new_field_is_in_the_contract(generated: Path) -> None:
    contract = json.loads((generated / "src/holdfast/server/openapi.json").read_text())

    assert contract["components"]["schemas"]["NewJob"]["properties"]["flavour"] == {
        "anyOf": [{"type": "string", "minLength": 1, "maxLength": 500}, {"type": "null"}],
        "default": None,
        "description": "a field that a test made up",
    }


def test_a_new_field_is_an_option_of_the_command(run: Run) -> None:
    told = run("-m", "holdfast", "job", "enqueue", "--help")

    assert "--flavour" in told
    assert "a field that a test made up" in " ".join(told.split())


def test_a_new_field_is_in_the_tables_of_the_reference(generated: Path) -> None:
    pages = [page.read_text() for page in (generated / "docs" / "reference").rglob("*.md")]

    assert any("| `flavour` | a field that a test made up |" in page for page in pages)
    assert any("| `--flavour`" in page for page in pages)


def test_a_new_field_is_known_to_the_dashboard(generated: Path) -> None:
    types = (generated / "dashboard/src/wire.ts").read_text()

    assert '"name": "flavour", "label": "Flavour", "hint": "a field that a test made up"' in types


@pytest.mark.parametrize("change", CHANGES, ids=lambda one: one.what)
def test_a_change_needs_few_files(change: Change) -> None:
    assert len(change.files) <= change.at_most


# The others are proven by `python tools/where_changes_go.py`: each takes ten seconds.
@pytest.mark.parametrize("change", CHANGES[:2], ids=lambda one: one.what)
def test_a_field_and_a_default_reach_every_door(change: Change) -> None:
    assert prove(change) == ""


def test_nothing_that_is_generated_is_out_of_date() -> None:
    for tool in ("generate_fields.py", "generate_contract.py", "generate_sync_client.py"):
        check = [sys.executable, str(ROOT / "tools" / tool), "--check"]
        assert subprocess.run(check, capture_output=True, text=True, check=False).stderr == ""
