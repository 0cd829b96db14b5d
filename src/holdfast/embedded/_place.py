"""Where a server's files live: a private directory that the user who runs it can reach."""

import hashlib
import os
import tempfile
from contextlib import suppress
from pathlib import Path

from holdfast.embedded._account import Account, account_for, name_of
from holdfast.errors import EmbeddedUnavailable


def place_for(data_dir: Path | str | None, *, temporary: bool) -> tuple[str, Path, Account]:
    """Make the server's directory; returns how to show it, where it is and who runs the server."""
    if temporary:
        path = Path(tempfile.mkdtemp(prefix="holdfast-", dir=data_dir or "/tmp"))
    elif data_dir is not None:
        path = Path(os.path.abspath(data_dir))  # noqa: PTH100  resolve() would lose the symlink
    else:
        home = Path(os.path.abspath(os.environ.get("HOLDFAST_HOME") or ".holdfast"))  # noqa: PTH100
        path = home / "pg"
    shown = os.path.relpath(path) if path.is_relative_to(Path.cwd()) else str(path)
    try:
        if not path.parent.exists():
            path.parent.mkdir(parents=True, exist_ok=True)
            if data_dir is None:
                _ignore_in_git(path.parent)
        account = account_for(path)
        if account.switch and not account.can_enter(path.parent):
            _move_within_reach(path, account)
        directory = path.resolve()
        _own(directory, account, shown)
    except OSError as error:
        raise unusable(shown, error) from error
    return shown, directory, account


def unusable(shown: str, error: OSError) -> EmbeddedUnavailable:
    """What to raise when the file system does not let a server live in a directory."""
    return EmbeddedUnavailable(
        f"cannot keep a database in {shown}: {error.strerror or error}",
        fix="Name another directory in HOLDFAST_HOME, or a server in HOLDFAST_URL.",
    )


def _move_within_reach(path: Path, account: Account) -> None:
    if path.is_dir() and not path.is_symlink():
        if any(path.iterdir()):
            raise EmbeddedUnavailable(
                f"user {account.name}, who runs the server for root, cannot reach {path}",
                fix=f"Move it out of {path.parent}, or let others pass through there (chmod o+x).",
            )
        path.rmdir()
    digest = hashlib.sha256(os.fsencode(path)).hexdigest()[:16]
    target = Path("/var/tmp") / f"holdfast-{digest}"
    _own(target, account, str(target))
    with suppress(FileExistsError):
        path.symlink_to(target)


def _own(directory: Path, account: Account, shown: str) -> None:
    directory.mkdir(mode=0o700, exist_ok=True)
    found = directory.lstat()
    if found.st_uid not in {account.uid, os.geteuid()}:
        raise EmbeddedUnavailable(
            f"{shown} belongs to user {name_of(found.st_uid)}, not to {account.name}",
            fix="Name another directory in HOLDFAST_HOME, or a server in HOLDFAST_URL.",
        )
    # In this order: the lock is the first thing another process puts there.
    if any(directory.iterdir()) and not (directory / "lock").exists():
        raise EmbeddedUnavailable(
            f"{shown} is not empty and was not made by holdfast",
            fix="Name a directory that is empty or does not exist.",
        )
    directory.chmod(0o700)
    if found.st_uid != account.uid:
        os.chown(directory, account.uid, account.gid)


def _ignore_in_git(home: Path) -> None:
    with suppress(FileExistsError), (home / ".gitignore").open("x") as file:
        file.write("*\n")
