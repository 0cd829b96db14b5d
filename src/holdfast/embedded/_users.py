"""The users of an embedded server, and its end when there are none.

Every user holds a shared lock on a file, which the kernel drops even when the user is killed.
Whoever starts the server also starts this file as a program: it looks once a second whether a user
is left. Only the standard library is imported, so that this watcher stays small.
"""

import fcntl
import json
import os
import re
import shutil
import signal
import socket
import stat
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

_SOCKETS = re.compile(r"holdfast-[a-z0-9_]{8}")
# Longer than any start, stop or initdb that still makes progress.
PATIENCE = 90.0


def prepare(directory: Path) -> None:
    """Create the files that are locked, for the owner of the directory."""
    owner = directory.stat()
    for name in ("lock", "users"):
        flags = os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW
        descriptor = os.open(directory / name, flags, 0o600)
        if os.geteuid() == 0:
            os.fchown(descriptor, owner.st_uid, owner.st_gid)
        os.close(descriptor)


@contextmanager
def turn(directory: Path) -> Iterator[None]:
    """Come, go, start and stop one at a time, across processes and threads."""
    lock = _open(directory / "lock")
    try:
        deadline = time.monotonic() + PATIENCE
        while not _locked(lock, fcntl.LOCK_EX):
            if time.monotonic() > deadline:
                raise TimeoutError(f"{directory / 'lock'} is held by another process")
            time.sleep(0.01)
        yield
    finally:
        os.close(lock)


def join(directory: Path) -> int:
    """Count the caller in, within its turn; the descriptor is its place until it is closed."""
    place = _open(directory / "users")
    # Exclusive locks on this file are taken and dropped within a turn: this one never waits.
    fcntl.flock(place, fcntl.LOCK_SH)
    return place


def leave(directory: Path, place: int) -> None:
    """Count the caller out, and stop the server if it was the last."""
    try:
        with turn(directory):
            os.close(place)
            place = -1
            if vacant(directory):
                stop(directory)
    except (FileNotFoundError, TimeoutError):
        # The directory was deleted, or somebody is stuck in his turn: the server ends by itself
        # in the first case, by the watcher in the second.
        if place >= 0:
            os.close(place)


def vacant(directory: Path) -> bool:
    """Whether no user is left; asked within a turn."""
    users = _open(directory / "users")
    try:
        return _locked(users, fcntl.LOCK_EX)
    finally:
        os.close(users)


def state(directory: Path) -> dict[str, Any]:
    """What the last starter wrote about its server; empty when there is none, or it is no use."""
    try:
        with os.fdopen(os.open(directory / "server.json", os.O_RDONLY | os.O_NOFOLLOW)) as file:
            found = json.loads(file.read(10_000))
    except (OSError, ValueError):
        return {}
    fits = isinstance(found, dict) and all(
        isinstance(found.get(name), kind)
        for name, kind in (("socket", str), ("port", int), ("version", str), ("source", str))
    )
    return found if fits and _may_hold_sockets(directory, Path(found["socket"])) else {}


def status(directory: Path) -> str:
    """ "ready", "starting", "stopping", or "" when no server answers."""
    about = state(directory)
    if not about or not _answers(f"{about['socket']}/.s.PGSQL.{about['port']}"):
        return ""
    lines = _postmaster(directory)
    return lines[7].strip() if len(lines) > 7 else "starting"


def stop(directory: Path) -> None:
    """Stop the server and delete it if it is temporary; called within a turn."""
    if status(directory):
        _shut_down(directory)
    temporary = state(directory).get("temporary")
    forget(directory)
    if temporary:
        shutil.rmtree(directory, ignore_errors=True)


def forget(directory: Path) -> None:
    """Remove what describes a server that runs no more."""
    about = state(directory)
    sockets = Path(about.get("socket", directory))
    if sockets != directory:
        # By their names, and never a tree: whatever else is there is not ours.
        for name in (f".s.PGSQL.{about['port']}", f".s.PGSQL.{about['port']}.lock"):
            with suppress(OSError):
                (sockets / name).unlink()
        with suppress(OSError):
            sockets.rmdir()
    (directory / "server.json").unlink(missing_ok=True)


def _may_hold_sockets(directory: Path, sockets: Path) -> bool:
    """Whether sockets may be there: in the directory itself, or one made for them in /tmp."""
    if sockets == directory:
        return True
    if sockets.parent != Path("/tmp") or not _SOCKETS.fullmatch(sockets.name):
        return False
    try:
        found = sockets.lstat()
    except FileNotFoundError:
        return True
    private = stat.S_ISDIR(found.st_mode) and not found.st_mode & 0o077
    return private and found.st_uid == directory.stat().st_uid


def start_watcher(directory: Path, launch: str) -> None:
    """Start the watcher, detached from the caller's terminal, session and process tree."""
    if not sys.executable:
        return
    # The shell ends at once, so that the watcher is nobody's child to wait for.
    command = [sys.executable, "-I", "-S", __file__, str(directory), launch]
    subprocess.run(
        ["/bin/sh", "-c", '"$@" &', "sh", *command],
        stdin=subprocess.DEVNULL,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
        cwd="/",
        start_new_session=True,
        check=True,
    )


def watch(directory: Path, launch: str) -> None:
    """Stop one launch of the server once its users are gone; return when it runs no more."""
    while True:
        time.sleep(1)
        with suppress(TimeoutError), turn(directory):
            if state(directory).get("launch") != launch or not status(directory):
                return
            if vacant(directory):
                stop(directory)
                return


def _open(path: Path) -> int:
    # Never created here: the watcher must not bring a deleted directory back to life.
    return os.open(path, os.O_RDWR | os.O_CLOEXEC | os.O_NOFOLLOW)


def _locked(descriptor: int, kind: int) -> bool:
    try:
        fcntl.flock(descriptor, kind | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True


def _answers(path: str) -> bool:
    with socket.socket(socket.AF_UNIX) as caller:
        caller.settimeout(5)
        try:
            caller.connect(path)
        except OSError:
            return False
    return True


def _postmaster(directory: Path) -> list[str]:
    try:
        return (directory / "data" / "postmaster.pid").read_text().splitlines()
    except FileNotFoundError:
        return []


def _shut_down(directory: Path) -> None:
    for how, patience in ((signal.SIGINT, 30.0), (signal.SIGQUIT, 10.0)):
        lines = _postmaster(directory)
        if not lines:
            return
        os.kill(int(lines[0]), how)
        deadline = time.monotonic() + patience
        while _postmaster(directory) and time.monotonic() < deadline:
            time.sleep(0.01)


if __name__ == "__main__":
    with suppress(FileNotFoundError):
        watch(Path(sys.argv[1]), sys.argv[2])
