"""Databases for tests: copies of a template that is migrated once, each made in milliseconds."""

import atexit
import os
import shutil
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any, LiteralString
from urllib.parse import quote, urlencode
from uuid import uuid4

import psycopg
from psycopg import sql
from psycopg.conninfo import conninfo_to_dict

from holdfast import conninfo, embedded, schema
from holdfast.testing import clock

__all__ = ["VARIABLE", "Databases", "Prepare", "shared"]

VARIABLE = "HOLDFAST_TEST_URL"

Prepare = Callable[[str], Any]
"""Adds what all tests need to the template, whose address it gets: tables, rows, migrations."""

# A database of a test need not survive the machine.
_SETTINGS = {
    "fsync": "off",
    "full_page_writes": "off",
    "synchronous_commit": "off",
    "max_connections": "200",
}
# Below this, a directory in memory is left to those who need it more.
_ENOUGH_MEMORY = 4 * 1024**3


class Databases:
    """A server, and the databases made on it. What is over is dropped, all of it in the end."""

    def __init__(self, url: str | None = None) -> None:
        self._server: embedded.Server | None = None
        if url is None:
            self._server = embedded.start(_memory(), temporary=True, settings=_SETTINGS)
            url = self._server.url
        self.url = url
        self._lock = threading.RLock()
        self._over: list[str] = []
        self._lock_over = threading.Lock()
        self._templates: list[str] = []
        self._ahead: dict[str, _Ahead] = {}
        self._copies = 0
        try:
            self._connection = psycopg.connect(url, autocommit=True)
        except psycopg.OperationalError as error:
            self._leave()
            raise conninfo.cannot_connect(url, error, source=VARIABLE) from error
        self._copied = _strategy(self._connection)

    @property
    def closed(self) -> bool:
        """Whether it was closed."""
        return self._connection.closed

    def template(self) -> str:
        """Make a migrated database whose time can be moved; returns its address."""
        name = f"holdfast_template_{uuid4().hex}"
        self._create(name, "template0")
        self._templates.append(name)
        url = _address(self.url, name)
        schema.migrate(url)
        clock.install(url)
        return url

    def seal(self, template: str) -> None:
        """End all sessions of a template: a database can be copied while no session uses it."""
        self._end_sessions(conninfo.database(template))

    @contextmanager
    def copy(self, template: str) -> Iterator[str]:
        """Make a copy of a template for the length of the block; yields its address."""
        url = self.take_copy(template)
        try:
            yield url
        finally:
            self.give_back(url)

    def take_copy(self, template: str) -> str:
        """Return the address of a new copy of a template."""
        source = conninfo.database(template)
        with self._lock:
            self._copies += 1
            ahead = self._ahead.pop(source, None)
            name = (ahead.result() if ahead else None) or self._copy_now(source)
            # The second test comes with others, as a rule: the next copy is made while it runs.
            if self._copies > 1:
                self._ahead[source] = _Ahead(lambda: self._copy_now(source))
        return _address(self.url, name)

    def give_back(self, url: str) -> None:
        """End the sessions of a copy, and have it dropped soon."""
        name = conninfo.database(url)
        self._end_sessions(name)
        with self._lock_over:
            self._over.append(name)

    @contextmanager
    def snapshot(self, url: str) -> Iterator[Callable[[], None]]:
        """Keep a copy of a database as it is; yields how to return to it. Ends its sessions."""
        name, kept = conninfo.database(url), f"holdfast_test_{uuid4().hex}"

        def restore() -> None:
            self._end_sessions(name)
            dropped = sql.SQL("drop database {} with (force)").format(sql.Identifier(name))
            self._connection.execute(dropped)
            self._create(name, kept)

        self._end_sessions(name)
        self._create(kept, name)
        self._connection.execute(
            sql.SQL("alter database {} with allow_connections true").format(sql.Identifier(name))
        )
        try:
            yield restore
        finally:
            with self._lock_over:
                self._over.append(kept)

    def close(self) -> None:
        """Drop all that was made, and leave the server."""
        with self._lock:
            if self._connection.closed:
                return
            made = [ahead.result() for ahead in self._ahead.values()]
            self._ahead.clear()
            if self._server is None:  # else all of it goes with the server
                self._over += [name for name in made if name] + self._templates
                with suppress(psycopg.Error):
                    self._drop_over(self._connection)
            self._connection.close()
            self._leave()

    def _copy_now(self, source: str) -> str:
        name = f"holdfast_test_{uuid4().hex}"
        with psycopg.connect(self.url, autocommit=True) as connection:
            # Sessions that were ended take a moment to be gone, and PostgreSQL looks again only a
            # tenth of a second later: by now they are.
            self._drop_over(connection)
            self._create(name, source, connection)
        return name

    def _create(
        self, name: str, source: str, connection: "psycopg.Connection[Any] | None" = None
    ) -> None:
        (connection or self._connection).execute(
            sql.SQL("create database {} template {} {}").format(
                sql.Identifier(name), sql.Identifier(source), sql.SQL(self._copied)
            )
        )

    def _end_sessions(self, name: str) -> None:
        # Nobody comes again either: what a test forgot to stop must not work on until this is
        # dropped.
        with self._lock:
            self._connection.execute(
                sql.SQL("alter database {} with allow_connections false").format(
                    sql.Identifier(name)
                )
            )
            self._connection.execute(
                "select pg_terminate_backend(pid) from pg_stat_activity where datname = %s", [name]
            )

    def _drop_over(self, connection: "psycopg.Connection[Any]") -> None:
        with self._lock_over:
            over, self._over = self._over, []
        for name in over:
            dropped = sql.SQL("drop database if exists {} with (force)")
            connection.execute(dropped.format(sql.Identifier(name)))

    def _leave(self) -> None:
        if self._server:
            self._server.stop()


class _Ahead:
    """A copy that is made in a thread, for whoever asks next."""

    def __init__(self, make: Callable[[], str]) -> None:
        self._name: str | None = None

        def work() -> None:
            with suppress(psycopg.Error):  # made again when it is needed, and told then
                self._name = make()

        self._thread = threading.Thread(target=work, name="holdfast-test-copy", daemon=True)
        self._thread.start()

    def result(self) -> str | None:
        self._thread.join()
        return self._name


def shared(url: str | None = None) -> Databases:
    """Return the databases of this process, on the server that is named, else an embedded one."""
    url = url or os.environ.get(VARIABLE) or None
    with _LOCK:
        made = _SHARED.get(url)
        if made is None or made.closed:
            made = _SHARED[url] = Databases(url)
            atexit.register(made.close)
        return made


def _strategy(connection: "psycopg.Connection[Any]") -> LiteralString:
    """Return how this server copies a database fastest.

    Files are copied in less time than it takes to log their pages, unless each of about a thousand
    has to reach the disk: then that takes seconds.
    """
    [fsync] = connection.execute("select current_setting('fsync')").fetchone() or [""]
    new = connection.info.server_version >= 150_000
    return "strategy file_copy" if new and fsync == "off" else ""


def _address(server: str, name: str) -> str:
    """Return the address of a database in the form that every driver can read."""
    given = {key: str(value) for key, value in conninfo_to_dict(server).items() if value}
    user, password = given.pop("user", ""), given.pop("password", "")
    host, port = given.pop("host", ""), given.pop("port", "")
    place = quote(user, safe="") + (f":{quote(password, safe='')}" if password else "")
    place += "@" if place else ""
    if "," in host + port or "/" in host:  # a directory of sockets, or several hosts
        given |= {"host": host, "port": port}
    else:
        place += host + (f":{port}" if port else "")
    given.pop("dbname", None)
    parameters = urlencode({k: v for k, v in given.items() if v}, quote_via=quote, safe="/")
    return f"postgresql://{place}/{quote(name)}" + (f"?{parameters}" if parameters else "")


def _memory() -> Path | None:
    """Return a directory whose files are memory, if there is one: copies take a tenth there."""
    files = Path("/dev/shm")
    if not (files.is_dir() and os.access(files, os.W_OK)):
        return None
    return files if shutil.disk_usage(files).free > _ENOUGH_MEMORY else None


_SHARED: dict[str | None, Databases] = {}
_LOCK = threading.Lock()
