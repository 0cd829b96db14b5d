"""Where payloads go that are too large for the row of a job, which has only their address.

A store is any object with `name`, `put`, `get`, `delete` and `list`. What a rolled back transaction
or a job that is gone leaves behind is deleted by `app.sweep_payloads()`.
"""

import os
import re
from collections.abc import Iterable, Iterator, Sequence
from contextlib import suppress
from datetime import datetime
from pathlib import Path
from tempfile import mkstemp
from typing import TYPE_CHECKING, Any, LiteralString, Protocol
from uuid import uuid4

from holdfast.callsite import caller
from holdfast.errors import Misuse

if TYPE_CHECKING:
    from holdfast.client.statement import Statement

# PostgreSQL compresses what is larger than 2 kB, and stores it beside the row; up to here that is
# cheaper than another round trip.
ABOVE = 64 * 1024


class PayloadStore(Protocol):
    """Keeps payloads by address; `name` is stored with every job, and is that of one place."""

    name: str

    def put(self, address: str, data: bytes) -> None:
        """Keep a payload; when it returns, a crash does not lose it."""

    def get(self, address: str) -> bytes:
        """Return a payload; raises KeyError if there is none."""

    def delete(self, address: str) -> None:
        """Delete a payload, if there is one."""

    def list(self, before: datetime) -> Iterable[str]:
        """Return the addresses of payloads that were put before a time."""


class ClaimCheck:
    """Sends payloads above a size to a store; the job carries their address and checksum."""

    def __init__(self, store: "PayloadStore | TableStore", *, above: int = ABOVE) -> None:
        verbs = ("put", "get", "delete", "list")
        name: Any = getattr(store, "name", None)
        if isinstance(store, type) or not all(callable(getattr(store, v, None)) for v in verbs):
            raise Misuse(
                f"{store!r} is not a store of payloads",
                why=caller(),
                fix="Give an object with name, put, get, delete and list.",
            )
        if not isinstance(name, str) or not 0 < len(name) <= 50:
            raise Misuse(
                f"the store {store!r} has no name of 1 to 50 characters",
                why=caller(),
                fix='Give it one that stays:  name = "payloads"',
            )
        if not above >= 0:
            raise Misuse(f"above={above!r} is not a number of bytes", why=caller())
        self.store = store
        self.above = above


class DirectoryStore:
    """Keeps payloads as files in a directory, which producers and workers share."""

    def __init__(self, path: str | Path, *, name: str = "files") -> None:
        self.name = name
        self._path = Path(path)

    def put(self, address: str, data: bytes) -> None:
        """Write a file; it is complete or not there, also after a crash of the machine."""
        file = self._file(address)
        _make(self._path)
        # By a name that is an address too: what a crash leaves behind is swept some day.
        open_file, name = mkstemp(dir=self._path, prefix=f"{address}.", suffix=".part")
        part = Path(name)
        try:
            with os.fdopen(open_file, "wb") as writing:
                writing.write(data)
                writing.flush()
                os.fsync(open_file)
            part.replace(file)
        except BaseException:
            part.unlink(missing_ok=True)
            raise
        _sync(self._path)

    def get(self, address: str) -> bytes:
        """Read a file."""
        try:
            return self._file(address).read_bytes()
        except (FileNotFoundError, IsADirectoryError):
            raise KeyError(address) from None

    def delete(self, address: str) -> None:
        """Delete a file."""
        self._file(address).unlink(missing_ok=True)

    def list(self, before: datetime) -> Iterator[str]:
        """Return the names of files that are older."""
        for file in self._path.iterdir() if self._path.is_dir() else ():
            with suppress(FileNotFoundError):
                if (
                    _ADDRESS.fullmatch(file.name)
                    and file.is_file()
                    and file.stat().st_mtime < before.timestamp()
                ):
                    yield file.name

    def _file(self, address: str) -> Path:
        # An address comes from the database: it must not lead out of the directory.
        if not _ADDRESS.fullmatch(address):
            raise KeyError(address)
        return self._path / address


_ADDRESS = re.compile(r"[A-Za-z0-9_-][A-Za-z0-9._-]{0,199}", re.ASCII)


def _make(path: Path) -> None:
    """Make a directory and those above it, so that a crash does not lose them."""
    if path.is_dir():
        return
    _make(path.parent)
    path.mkdir(exist_ok=True)
    _sync(path.parent)


def _sync(path: Path) -> None:
    """Have the names in a directory written: the content of a file is not enough to find it."""
    if os.name == "nt":  # directories cannot be opened
        return
    place = os.open(path, os.O_RDONLY)
    try:
        os.fsync(place)
    finally:
        os.close(place)


class TableStore:
    """Keeps payloads in a table of the same database, in the transaction that enqueues the job."""

    name = "table"

    def put(self, address: str, data: bytes) -> "Statement":
        """Return the statement that keeps a payload, for the connection of the enqueue."""
        sql = "select holdfast.large_put(address => %s::text, data => %s::bytea)"
        return _statement("large_put", sql, [address, data], repeatable=False)

    def get(self, client: Any, address: str) -> bytes:
        """Return a payload; raises KeyError if there is none."""
        sql = "select holdfast.large_get(address => %s::text)"
        [(data,)] = client._door.run(_statement("large_get", sql, [address], reads=True))
        if data is None:
            raise KeyError(address)
        return bytes(data)

    def delete(self, client: Any, addresses: Iterable[str]) -> None:
        """Delete payloads."""
        sql = "select holdfast.large_delete(addresses => %s::text[])"
        client._door.run(_statement("large_delete", sql, [list(addresses)]))

    def list(self, client: Any, before: datetime) -> Iterator[str]:
        """Return the addresses of payloads that were put before a time."""
        sql = "select holdfast.large_list(before => %s::timestamptz)"
        rows = client._door.run(_statement("large_list", sql, [before], reads=True))
        return (address for (address,) in rows)


def sweep(client: Any, store: PayloadStore | TableStore, before: datetime) -> int:
    """Delete the payloads that were put before a time and that no job has; returns how many."""
    old = set(store.list(client, before) if isinstance(store, TableStore) else store.list(before))
    if not old:
        return 0
    # After they were listed: a job that was enqueued meanwhile has a younger one.
    sql = "select holdfast.large_used(store => %s::text)"
    rows = client._door.run(_statement("large_used", sql, [store.name], reads=True))
    left = old - {address for (address,) in rows}
    if isinstance(store, TableStore):
        store.delete(client, left)
    else:
        for address in left:
            store.delete(address)
    return len(left)


def new_address() -> str:
    """Return an address that nothing has."""
    return uuid4().hex


def _statement(
    name: str,
    sql: LiteralString,
    values: Sequence[Any],
    *,
    reads: bool = False,
    repeatable: bool = True,
) -> "Statement":
    # Whoever declares tasks needs no driver.
    from holdfast.client.statement import Statement

    return Statement(name, sql, values, reads=reads, repeatable=repeatable)
