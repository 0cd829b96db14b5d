"""Run Django's own tests for backends of its Tasks against Holdfast's backend.

    make conformance                              with the newest Django, from PyPI
    make conformance ARGS="--django 6.0.2"        with another one
    make conformance ARGS="--sdist django.tar.gz" with tests that are here already

The tests are part of Django's source distribution, not of its wheel and not of this repository: pip
downloads it. Django and the wheel of Holdfast are installed in an environment of their own.
tools/conformance.toml names the tests that cannot hold, each with a reason: a test that ends
otherwise is a failure. Where no Python of Django 6 is found, or pip cannot get the distribution, it
says so and runs nothing. Django 5.2 has no Tasks, and the source distribution of `django-tasks` has
no tests: tests/django/test_conformance.py is what holds there too.
"""

import argparse
import shutil
import subprocess
import sys
import tarfile
import tempfile
from pathlib import Path

from matrix import built, found

HERE = Path(__file__).resolve().parent
PYTHONS = ("3.14", "3.13", "3.12")  # those of Django 6
EXPECTED = HERE / "conformance.toml"
# A package of tests, as Django's own runner imports it.
TESTS = "tests/tasks/"


def main() -> int:
    """Prepare and run; returns 1 if a test did not end as expected."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--django", help="a version of Django, 6.0 or newer")
    parser.add_argument("--sdist", type=Path, help="Django's source distribution, as a file")
    chosen = parser.parse_args()
    uv = shutil.which("uv", path=str(Path(sys.executable).parent)) or shutil.which("uv")
    if uv is None:
        sys.exit("conformance needs uv:  .venv/bin/python -m pip install uv")
    python = next((one for version in PYTHONS if (one := found(version))), None)
    if python is None:
        print(f"skipped: Django 6 needs one of Python {', '.join(PYTHONS)}, and none is here")
        return 0
    with tempfile.TemporaryDirectory(prefix="holdfast-conformance-") as name:
        place = Path(name)
        make = [uv, "venv", "--quiet", "--seed", "--python", python, place / "venv"]
        subprocess.run(make, check=True)
        inside = place / "venv" / "bin" / "python"
        sdist = chosen.sdist or downloaded(inside, chosen.django, place)
        if sdist is None:
            print("skipped: pip cannot get the source distribution of Django")
            return 0
        version, tests = unpacked(sdist, place)
        wanted = [f"{built(uv, place)}[django,dev]", f"django=={version}"]
        install = [uv, "pip", "install", "--quiet", "--python", inside, *wanted]
        subprocess.run(install, check=True)
        run = [inside, HERE / "conformance_run.py", tests, EXPECTED]
        # What the worker logs of tasks that fail is what these tests are about.
        done = subprocess.run(run, cwd=place, stderr=subprocess.PIPE, text=True, check=False)
    if done.returncode:
        print(*done.stderr.splitlines()[-40:], sep="\n", file=sys.stderr)
    return done.returncode


def downloaded(inside: Path, version: str | None, place: Path) -> Path | None:
    """Return Django's source distribution as pip gets it; None if it cannot."""
    wanted = f"django=={version}" if version else "django>=6"
    download = [inside, "-m", "pip", "download", "--quiet", "--no-deps", "--no-binary", "django"]
    done = subprocess.run([*download, wanted], cwd=place, stderr=subprocess.PIPE, text=True)
    if done.returncode:
        print(done.stderr.strip(), file=sys.stderr)
        return None
    [sdist] = place.glob("[Dd]jango-*.tar.gz")
    return sdist


def unpacked(sdist: Path, place: Path) -> tuple[str, Path]:
    """Unpack the tests of Tasks; returns the version of Django and the directory `tests`."""
    with tarfile.open(sdist) as archive:
        members = [
            one for one in archive if one.name.partition("/")[2].startswith(TESTS) and one.isfile()
        ]
        if not members:
            sys.exit(f"{sdist.name} has no {TESTS}: Tasks are part of Django 6.0 and newer")
        archive.extractall(place / "django", members, filter="data")
    root = members[0].name.partition("/")[0]
    return root.rpartition("-")[2], place / "django" / root / "tests"


if __name__ == "__main__":
    sys.exit(main())
