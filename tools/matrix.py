"""Install the built wheel with the lowest and the newest dependencies on every Python, and use it.

    make matrix                          every interpreter that is found, lowest and newest
    make matrix ARGS="--only 3.13"       one of them

Each combination has an environment of its own, outside of the work tree. What is run is
tools/matrix_story.py: a small program that goes once around, through all that a dependency could
break. Interpreters are looked for in PATH and in ~/.pyenv; those that are missing are named.
"""

import argparse
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

VERSIONS = ("3.11", "3.12", "3.13", "3.14", "3.13t", "3.14t")
RESOLUTIONS = ("lowest-direct", "highest")
# What the story uses; the embedded PostgreSQL comes with `dev`.
EXTRAS = "crypto,dev,django,otel"
ALSO = ("pytest>=8",)
HERE = Path(__file__).resolve().parent.parent


def main() -> int:
    """Run every combination; returns 1 if one fails."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--only", help="one version of Python")
    parser.add_argument("--resolution", choices=RESOLUTIONS, help="one of them")
    chosen = parser.parse_args()
    uv = shutil.which("uv", path=str(Path(sys.executable).parent)) or shutil.which("uv")
    if uv is None:
        sys.exit("matrix needs uv:  .venv/bin/python -m pip install uv")
    failed = []
    with tempfile.TemporaryDirectory(prefix="holdfast-matrix-") as place:
        wheel = built(uv, Path(place))
        for version in [chosen.only] if chosen.only else VERSIONS:
            if (python := found(version)) is None:
                print(f"{version}: no such interpreter here", flush=True)
                continue
            for resolution in [chosen.resolution] if chosen.resolution else RESOLUTIONS:
                name = f"{version} {resolution}"
                problem = tried(uv, python, resolution, wheel, Path(place) / name.replace(" ", "-"))
                print(f"{name}: {problem or 'ok'}", flush=True)
                failed += [name] if problem else []
    return 1 if failed else 0


def built(uv: str, place: Path) -> Path:
    """Build the wheel; returns its file."""
    build = [uv, "build", "--quiet", "--wheel", "--out-dir", str(place), str(HERE)]
    subprocess.run(build, check=True)
    [wheel] = place.glob("*.whl")
    return wheel


def tried(uv: str, python: Path, resolution: str, wheel: Path, place: Path) -> str:
    """Install and run the story; returns what failed."""
    subprocess.run([uv, "venv", "--quiet", "--python", python, place], check=True)
    inside = place / "bin" / "python"
    install = [uv, "pip", "install", "--quiet", "--python", inside, "--resolution", resolution]
    for command in (
        [*install, f"{wheel}[{EXTRAS}]", *ALSO],
        [inside, HERE / "tools" / "matrix_story.py"],
    ):
        done = subprocess.run(command, cwd=place, capture_output=True, text=True, check=False)
        if done.returncode:
            return "failed\n" + "\n".join((done.stdout + done.stderr).splitlines()[-25:])
    return ""


def found(version: str) -> Path | None:
    """Return an interpreter of a version that can make environments."""
    for python in candidates(version):
        asked = (
            "import sys, sysconfig; free = sysconfig.get_config_var('Py_GIL_DISABLED'); "
            "print('%d.%d%s' % (*sys.version_info[:2], 't' if free else ''))"
        )
        told = subprocess.run([python, "-c", asked], capture_output=True, text=True, check=False)
        if told.stdout.strip() == version:
            return python
    return None


def candidates(version: str) -> Iterator[Path]:
    """Where an interpreter may be."""
    if which := shutil.which(f"python{version}"):
        yield Path(which)
    plain = version.removesuffix("t")
    yield from sorted(Path.home().glob(f".pyenv/versions/{plain}*/bin/python3"))
    yield Path(sys.executable)


if __name__ == "__main__":
    sys.exit(main())
