"""The directory of a server's files: private, and accessible to the user who runs it."""

import fcntl
import hashlib
import os
import pwd
import re
import shlex
import stat
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from holdfast.embedded._account import Account, account_for, name_of
from holdfast.embedded._users import prepare
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
    # A directory that the user named is trusted. One that only exists where a command was started
    # may come from anywhere: unpacked from an archive, or created by another user.
    named = temporary or data_dir is not None or bool(os.environ.get("HOLDFAST_HOME"))
    shown = os.path.relpath(path) if path.is_relative_to(Path.cwd()) else str(path)
    try:
        if not path.parent.exists():
            path.parent.mkdir(parents=True, exist_ok=True)
            if data_dir is None:
                _ignore_in_git(path.parent)
        if not named:
            _check_found(path, shown)
        account = account_for(path)
        if account.switch and not account.can_enter(path.parent):
            _move_within_reach(path, account)
        directory = path.resolve()
        _own(directory, account, shown)
        _check_seal(directory, shown, named=named)
        _check_recovery(directory / "data", shown)
    except OSError as error:
        raise unusable(shown, error) from error
    return shown, directory, account


def unusable(shown: str, error: OSError) -> EmbeddedUnavailable:
    """The error if the file system does not allow a server in a directory."""
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
    with _alone(directory):
        if any(directory.iterdir()) and not (directory / "lock").exists():
            raise EmbeddedUnavailable(
                f"{shown} is not empty and was not created by holdfast",
                fix="Name a directory that is empty or does not exist.",
            )
        directory.chmod(0o700)
        if found.st_uid != account.uid:
            os.chown(directory, account.uid, account.gid)
        # The lock is the first thing put there: by it the next process knows the directory.
        prepare(directory)


def _check_found(path: Path, shown: str) -> None:
    """Refuse a directory that the user did not name unless it belongs only to this user."""
    for place in (path.parent, path):
        try:
            found = place.lstat()
        except FileNotFoundError:
            continue
        # Root's own link to where the account of the server can reach the data, see above.
        link = stat.S_ISLNK(found.st_mode) and found.st_uid == 0 and place == path
        owners = {os.geteuid()} if place == path.parent else {os.geteuid(), *_server_accounts()}
        wrong = ""
        if found.st_uid not in owners:
            wrong = f"it belongs to user {name_of(found.st_uid)}"
        elif not link and not stat.S_ISDIR(found.st_mode):
            wrong = "it is not a directory"
        elif not link and found.st_mode & 0o022:
            wrong = "others may write to it"
        if wrong:
            raise _not_ours(shown, f"{place}: {wrong}")


def _server_accounts() -> set[int]:
    if os.geteuid() != 0:
        return set()
    known = (one for one in pwd.getpwall() if one.pw_name in ("postgres", "nobody"))
    return {one.pw_uid for one in known}


def _check_seal(directory: Path, shown: str, *, named: bool) -> None:
    """Refuse data that was not created here: data unpacked from an archive has no seal.

    The seal contains the file's identity and creation time, which only the kernel decides.
    """
    seal, made = directory / "seal", directory / "made"
    with _alone(directory):
        _check_or_make_seal(directory, seal, made, shown, named=named)


@contextmanager
def _alone(directory: Path) -> Iterator[None]:
    """Have others that look at the same directory wait, threads of this process too."""
    place = os.open(directory, os.O_RDONLY | os.O_DIRECTORY)
    try:
        fcntl.flock(place, fcntl.LOCK_EX)
        yield
    finally:
        os.close(place)


def _check_or_make_seal(
    directory: Path, seal: Path, made: Path, shown: str, *, named: bool
) -> None:
    if named or {one.name for one in directory.iterdir()} <= _BEFORE_DATA:
        if not _sealed(seal, made):
            made.unlink(missing_ok=True)
            seal.unlink(missing_ok=True)
            os.close(os.open(seal, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o400))
            place = os.open(made, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o400)
            with os.fdopen(place, "w") as file:
                file.write(_mark(seal))
    elif not _sealed(seal, made):
        raise _not_ours(shown, "it was copied here, or unpacked from an archive")


def _sealed(seal: Path, made: Path) -> bool:
    try:
        with os.fdopen(os.open(made, os.O_RDONLY | os.O_NOFOLLOW), "r") as file:
            return file.read(200) == _mark(seal)
    except (OSError, ValueError):
        return False


def _mark(seal: Path) -> str:
    found = seal.lstat()
    return f"{found.st_dev}:{found.st_ino}:{found.st_ctime_ns}"


def _check_recovery(data: Path, shown: str) -> None:
    """Refuse data that would be recovered by running a command, or by asking another server."""
    found = [name for name in ("recovery.signal", "standby.signal") if (data / name).exists()]
    for name in ("postgresql.conf", "postgresql.auto.conf"):
        with suppress(FileNotFoundError):
            found += _RECOVERY.findall((data / name).read_text("utf-8", "replace"))
    if found:
        raise EmbeddedUnavailable(
            f"the data in {shown} is set up for recovery: {', '.join(found)}",
            fix="Start it with PostgreSQL's own pg_ctl, and name it in HOLDFAST_URL.",
        )


def _not_ours(shown: str, why: str) -> EmbeddedUnavailable:
    return EmbeddedUnavailable(
        f"refusing to start the data in {shown}",
        tried=[why],
        fix=f"Delete it, or if it is yours, confirm once:  HOLDFAST_HOME={_home(shown)} holdfast …",
    )


def _home(shown: str) -> str:
    return shlex.quote(str(Path(shown).parent))


# What is there before any data: nothing that was unpacked into these could do harm.
_BEFORE_DATA = {".gitignore", "lock", "users", "seal", "made"}

# Settings by which PostgreSQL runs a command, or follows another server, before anybody connects.
_RECOVERY = re.compile(
    r"^\s*(restore_command|recovery_end_command|archive_cleanup_command|primary_conninfo)\b(?!\s*=?\s*'')",
    re.MULTILINE | re.IGNORECASE,
)


def _ignore_in_git(home: Path) -> None:
    with suppress(FileExistsError), (home / ".gitignore").open("x") as file:
        file.write("*\n")
