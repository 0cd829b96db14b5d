"""Sessions that meet: one holds its transaction open, another runs into it in a thread."""

from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import closing
from threading import Barrier
from time import monotonic
from typing import Any, Generic, TypeVar

import psycopg
import pytest

from tests.protocol import Later, Open, Protocol, Sessions, shared_database

Answer = TypeVar("Answer")
PATIENCE = 20.0


class Running(Generic[Answer]):
    """A call that runs in a thread on a session of its own."""

    def __init__(self, future: "Future[Answer]", pid: int, watcher: psycopg.Connection) -> None:
        self._future = future
        self._pid = pid
        self._watcher = watcher

    def waits(self, on: Protocol | None = None) -> bool:
        """Whether it came to wait for a lock, of this session if one is given; False at its end."""
        deadline = monotonic() + PATIENCE
        while monotonic() < deadline:
            [(pids,)] = self._watcher.execute("select pg_blocking_pids(%s)", [self._pid])
            if pids if on is None else on.connection.info.backend_pid in pids:
                return True
            if self._future.done():
                return False
        raise TimeoutError("neither waits nor ends")

    def answer(self) -> Answer:
        return self._future.result(timeout=PATIENCE)


@pytest.fixture(scope="session")
def races_database(postgres: Any, template: str) -> Iterator[str]:
    with shared_database(postgres.url, template) as url:
        yield url


@pytest.fixture(scope="session")
def sessions_of_all(races_database: str) -> Iterator[Sessions]:
    with closing(Sessions(races_database)) as sessions:
        yield sessions


@pytest.fixture
def other(sessions_of_all: Sessions) -> Iterator[Open]:
    """Lends further sessions until the end."""
    with sessions_of_all.lent() as take:

        def open_session(*, autocommit: bool = True) -> Protocol:
            connection = take()
            connection.execute("set statement_timeout = '20s'; set deadlock_timeout = '50ms'")
            connection.autocommit = autocommit
            return Protocol(connection)

        yield open_session


@pytest.fixture
def db(other: Open) -> Iterator[Protocol]:
    """The protocol, on an empty database; afterwards the counters are compared with the rows."""
    protocol = other()
    protocol.wipe()
    yield protocol
    assert protocol.recount() == []


@pytest.fixture
def held_open(other: Open) -> Protocol:
    """A session whose transaction stays open until `connection.commit()` or `rollback()`."""
    return other(autocommit=False)


@pytest.fixture
def later(db: Protocol) -> Later:
    return db.later


@pytest.fixture
def start(db: Protocol, other: Open) -> Iterator[Callable[..., Running[Any]]]:
    """Starts a call in a thread, on a session of its own unless one is given."""
    watcher = other().connection
    with ThreadPoolExecutor(max_workers=16) as pool:

        def run(
            work: Callable[[Protocol], Answer], session: Protocol | None = None
        ) -> Running[Answer]:
            session = session or other()
            pid = session.connection.info.backend_pid
            return Running(pool.submit(work, session), pid, watcher)

        yield run


@pytest.fixture
def at_once(other: Open) -> Callable[..., list[Any]]:
    """Runs a call in several threads that start together; answers what each returned or raised."""

    sessions: list[Protocol] = []

    def run(threads: int, work: Callable[[Protocol, int], Any]) -> list[Any]:
        barrier = Barrier(threads)
        sessions.extend(other() for _ in range(threads - len(sessions)))

        def one(nth: int, session: Protocol) -> Any:
            barrier.wait(PATIENCE)
            try:
                return work(session, nth)
            except psycopg.Error as error:
                return error

        with ThreadPoolExecutor(max_workers=threads) as pool:
            futures = [pool.submit(one, nth, sessions[nth]) for nth in range(threads)]
            return [future.result(timeout=200) for future in futures]

    return run
