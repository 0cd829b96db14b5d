"""The protocol on a connection; whatever a test does, the counters must agree with the rows."""

from collections.abc import Iterator
from contextlib import closing
from typing import Any

import pytest

from tests.protocol import Later, Open, Protocol, Sessions, shared_database


@pytest.fixture(scope="session")
def sql_database(postgres: Any, template: str) -> Iterator[str]:
    with shared_database(postgres.url, template) as url:
        yield url


@pytest.fixture(scope="session")
def sessions_of_all(sql_database: str) -> Iterator[Sessions]:
    with closing(Sessions(sql_database)) as sessions:
        yield sessions


@pytest.fixture
def other(sessions_of_all: Sessions) -> Iterator[Open]:
    """Lends further sessions until the end."""
    with sessions_of_all.lent() as take:

        def open_session(*, autocommit: bool = True) -> Protocol:
            connection = take()
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
def later(db: Protocol) -> Later:
    """Moves the time for all sessions: `later(seconds=31)`."""
    return db.later


@pytest.fixture
def full_minute(db: Protocol) -> None:
    """Begin a second after a full minute: no step of ten seconds ends while a test runs."""
    db.connection.execute(
        "update holdfast_test.clock set ahead ="
        " date_trunc('minute', clock_timestamp()) + '61 s' - clock_timestamp()"
    )
