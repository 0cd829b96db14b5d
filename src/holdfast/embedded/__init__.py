"""A real PostgreSQL for development and tests, with no server to install.

The data lives in ./.holdfast/pg. All processes that start it share one server; it stops when the
last of them leaves, however it leaves. It listens on a Unix socket that only its owner can reach.
"""

import atexit
import os
import shutil
import time
from collections.abc import Mapping
from pathlib import Path
from types import TracebackType
from typing import Self
from urllib.parse import quote

from holdfast.errors import EmbeddedUnavailable

try:
    from holdfast.embedded import _users
    from holdfast.embedded._launch import Launch
    from holdfast.embedded._place import place_for, unusable
except ModuleNotFoundError as error:  # of Windows: everything else works without this server
    _missing = error.name
else:
    _missing = None

__all__ = ["Database", "Server", "resolve", "start", "url"]


class Database:
    """A database to work with and where its address came from; a context manager.

    `origin` is "argument", "HOLDFAST_URL" or "embedded", so that a caller can say which.
    """

    def __init__(self, url: str, origin: str, server: "Server | None" = None) -> None:
        self.url = url
        self.origin = origin
        self.server = server

    def close(self) -> None:
        """Leave the embedded server, if it is one."""
        if self.server:
            self.server.stop()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()


class Server:
    """One user's hold on a running embedded server; a context manager."""

    def __init__(self, directory: Path, shown: str, place: int) -> None:
        about = _users.state(directory)
        self.data_dir = directory
        self.shown_dir = shown
        self.version: str = about["version"]
        self.source: str = about["source"]
        host, port = quote(about["socket"], safe=""), about["port"]
        self.url = f"postgresql://postgres@/postgres?host={host}&port={port}"
        self.tcp_url: str | None = None
        if about["tcp"]:
            secret = os.open(directory / "password", os.O_RDONLY | os.O_NOFOLLOW)
            with os.fdopen(secret) as file:
                password = file.read(200).strip()
            self.tcp_url = f"postgresql://postgres:{password}@127.0.0.1:{port}/postgres"
        self._place: int | None = place
        atexit.register(self.stop)

    def __str__(self) -> str:
        return f"PostgreSQL {self.version} (embedded, {self.shown_dir})"

    def stop(self) -> None:
        """Leave the server; it stops if no other process uses it. A second call does nothing."""
        place, self._place = self._place, None
        atexit.unregister(self.stop)
        if place is not None:
            _users.leave(self.data_dir, place)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.stop()


def resolve(url: str | None = None, *, data_dir: Path | str | None = None) -> Database:
    """Find the database: the argument, else HOLDFAST_URL, else the embedded server."""
    if url:
        return Database(url, "argument")
    if named := os.environ.get("HOLDFAST_URL"):
        return Database(named, "HOLDFAST_URL")
    server = start(data_dir)
    return Database(server.url, "embedded", server)


def url(data_dir: Path | str | None = None) -> str:
    """Start the embedded server, keep it until this process ends, and return its address."""
    return start(data_dir).url


def start(
    data_dir: Path | str | None = None,
    *,
    temporary: bool = False,
    settings: Mapping[str, str] | None = None,
    binaries: Path | str | None = None,
    tcp: bool = False,
) -> Server:
    """Start the server of a directory, or join it when it already runs.

    The directory is `data_dir`, else `pg` in HOLDFAST_HOME, else ./.holdfast/pg; a temporary one
    is made below `data_dir` or /tmp, and deleted when the server stops. `settings` and `binaries`
    count only for the process that starts it. `tcp` adds 127.0.0.1 with a random port and password.
    """
    if _missing:
        raise EmbeddedUnavailable(
            f"the embedded PostgreSQL does not run on this system (Python has no {_missing} here)",
            fix="Name a server:  HOLDFAST_URL=postgresql://…",
        )
    shown, directory, account = place_for(data_dir, temporary=temporary)
    try:
        with _users.turn(directory):
            place = _users.join(directory)
            try:
                if not _joinable(directory):
                    Launch(directory, shown, account, temporary, tcp).run(settings or {}, binaries)
                elif tcp and not _users.state(directory)["tcp"]:
                    raise EmbeddedUnavailable(
                        f"the server in {shown} already runs, and without TCP",
                        fix="End the other processes that use it, then try again.",
                    )
                return Server(directory, shown, place)
            except BaseException:
                os.close(place)
                if _users.vacant(directory):
                    _users.stop(directory)
                if temporary:
                    shutil.rmtree(directory, ignore_errors=True)
                raise
    except TimeoutError as error:
        raise EmbeddedUnavailable(
            f"another process has been starting or stopping the server in {shown} "
            f"for {_users.PATIENCE:.0f} s",
            tried=[str(error)],
            fix="End that process, then try again.",
        ) from error
    except OSError as error:
        raise unusable(shown, error) from error


def _joinable(directory: Path) -> bool:
    # A starter or stopper that was killed in its turn leaves a server between two states.
    deadline = time.monotonic() + 60
    while (status := _users.status(directory)) not in ("", "ready"):
        if time.monotonic() > deadline:
            raise TimeoutError(f"the server is {status}")
        time.sleep(0.05)
    return status == "ready"
