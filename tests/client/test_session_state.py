"""What a caller sets, holds or creates on a connection of the pool does not meet the next one."""

from collections.abc import Iterator
from contextlib import suppress
from typing import Any

import psycopg
import pytest
from psycopg import ClientCursor, sql
from psycopg.conninfo import make_conninfo
from psycopg.rows import dict_row

from holdfast import AsyncClient, Client
from holdfast.client.sync.pool import _Connection
from holdfast.errors import Refused
from tests.client.conftest import MakeClient

LEFT = """
    select json_build_object(
      'user', current_user, 'session', session_user, 'path', current_setting('search_path'),
      'tenant', nullif(current_setting('shop.tenant', true), ''),
      'timeout', current_setting('statement_timeout'), 'zone', current_setting('timezone'),
      'read-only', current_setting('transaction_read_only'),
      'locks', (select count(*) from pg_locks
        where locktype = 'advisory' and pid = pg_backend_pid()),
      'channels', (select count(*) from pg_listening_channels()),
      'cursors', (select count(*) from pg_cursors where is_holdable),
      'temporary', to_regclass('pg_temp.held')::text)
"""

HABITS = {
    "search_path": "set search_path = elsewhere",
    "a setting of its own": "set shop.tenant = 'acme'",
    "a setting by a function": "select shop_tenant('acme')",
    "statement_timeout": "set statement_timeout = '1h'",
    "time zone": "set timezone = 'Asia/Tokyo'",
    "read-only": "set default_transaction_read_only = on",
    "a lock": "select pg_advisory_lock(7)",
    "a channel": "listen shop",
    "a temporary table": "create temporary table held (i int)",
    "a cursor": "declare held cursor with hold for select 1",
    "a role, left again": "set role pg_monitor; reset role",
}


@pytest.fixture
def single(make_client: MakeClient, database: str) -> Iterator[Any]:
    """A client of either kind, with one connection that all its calls use."""
    with psycopg.connect(database) as connection:
        connection.execute(
            "create function public.shop_tenant(text) returns text language sql "
            "as $$ select set_config('shop.tenant', $1, false) $$"
        )
    return make_client(pool_size=1)


def within(client: Any, *statements: str, fail: bool = False) -> Any:
    """Run statements in a transaction that ends a job; returns what the last one returned."""
    if isinstance(client, Client):
        return within_sync(client, statements, fail)
    return client._runner.run(within_async(client._client, statements, fail))


def within_sync(client: Client, statements: tuple[str, ...], fail: bool) -> Any:
    client.enqueue("greet")
    [lease] = client.claim(worker="w")
    found = None
    with suppress(ZeroDivisionError), client.transaction(lease) as connection:
        for statement in statements:
            found = connection.execute(statement)
        found = found.fetchone() if found and found.description else None
        if fail:
            raise ZeroDivisionError
    return found


async def within_async(client: AsyncClient, statements: tuple[str, ...], fail: bool) -> Any:
    await client.enqueue("greet")
    [lease] = await client.claim(worker="w")
    found = None
    with suppress(ZeroDivisionError):
        async with client.transaction(lease) as connection:
            for statement in statements:
                found = await connection.execute(statement)
            found = await found.fetchone() if found and found.description else None
            if fail:
                raise ZeroDivisionError
    return found


@pytest.mark.direct_only("a pooler's other clients may leave something in the session, too")
@pytest.mark.parametrize("fail", [False, True], ids=["committed", "rolled back"])
@pytest.mark.parametrize("habit", HABITS.values(), ids=HABITS)
def test_the_next_caller_finds_the_session_as_the_first_did(
    single: Any, habit: str, fail: bool
) -> None:
    before = within(single, LEFT)

    within(single, habit, fail=fail)

    assert within(single, LEFT) == before


@pytest.mark.direct_only("options of the address are not for a pooler")
def test_what_the_address_sets_stays_set(make_client: MakeClient, database: str) -> None:
    with psycopg.connect(database) as connection:
        connection.execute("create role shopkeeper")
        connection.execute("grant holdfast_worker, holdfast_producer to shopkeeper")
    try:
        options = "-c search_path=shop,public -c shop.tenant=acme -c role=shopkeeper"
        client = make_client(make_conninfo(database, options=options), pool_size=1)
        within(client, "set search_path = elsewhere", "set shop.tenant = 'other'", "reset role")

        [found] = within(client, LEFT)
        assert (found["path"], found["tenant"]) == ("shop,public", "acme")
        assert found["user"] == "shopkeeper"
    finally:
        client.close()
        with psycopg.connect(database) as connection:
            connection.execute("drop owned by shopkeeper")
            connection.execute("drop role shopkeeper")


def test_the_factories_of_a_connection_are_given_back(database: str) -> None:
    with Client(database, pool_size=1) as client:
        client.enqueue("greet")
        [lease] = client.claim(worker="w")
        with client.transaction(lease) as connection:
            before = connection.row_factory, connection.cursor_factory
            connection.row_factory, connection.cursor_factory = dict_row, ClientCursor  # type: ignore[assignment]
        client.enqueue_many([])
        client.enqueue("greet")
        [lease] = client.claim(worker="w")

        with client.transaction(lease) as connection:
            assert (connection.row_factory, connection.cursor_factory) == before


@pytest.mark.direct_only("a pooler may lend the other session, with what a client left in it")
def test_a_step_leaves_nothing_behind_either(database: str) -> None:
    with Client(database, pool_size=1) as client:
        with client.steps.transaction() as connection:
            connection.execute("set shop.tenant = 'acme'")
            connection.execute("select pg_advisory_lock(7)")

        with client.steps.transaction() as connection:
            [found] = connection.execute(LEFT).fetchone() or [{}]
    assert (found["tenant"], found["locks"]) == (None, 0)


def test_the_commit_is_still_one_round_trip(database: str, monkeypatch: pytest.MonkeyPatch) -> None:
    waited = []
    wait = _Connection.wait
    monkeypatch.setattr(
        _Connection, "wait", lambda *args, **kwargs: (waited.append(1), wait(*args, **kwargs))[1]
    )
    with Client(database, pool_size=1) as client, client.steps.transaction() as connection:
        connection.execute("select 1")
        waited.clear()

    assert waited == [1]


@pytest.mark.parametrize("local", ["", "local"])
def test_an_ack_under_a_role_without_rights_says_what_to_type(single: Any, local: str) -> None:
    with pytest.raises(Refused, match="reset role"):
        within(single, sql.SQL("set {} role pg_monitor").format(sql.SQL(local)).as_string())
