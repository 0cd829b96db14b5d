"""Nobody stops others by a lock that anybody can take."""

from uuid import uuid4

import pytest

from holdfast import Client, adopt
from holdfast.adopt import Choices
from tests.conftest import Connect


@pytest.fixture
def beside_a_stranger(direct: str, connect: Connect) -> str:
    """A database in which a role without any right has the advisory locks that one can guess."""
    stranger = connect(direct)
    name = f"stranger_{uuid4().hex[:8]}"
    stranger.execute(f"create role {name}")
    stranger.execute(f"set session authorization {name}")
    stranger.execute(
        "select pg_advisory_lock(class, key) from generate_series(4900, 4915) class, "
        "generate_series(0, 100) key"
    )
    return direct


def test_a_role_without_rights_holds_up_neither_a_release_nor_upkeep(
    beside_a_stranger: str, connect: Connect
) -> None:
    session = connect(beside_a_stranger)
    session.execute("set statement_timeout = '60s'")
    with Client(beside_a_stranger) as client:
        job = client.enqueue("work")
        [lease] = client.claim(worker="w")

        session.execute(
            "select * from holdfast.release(array[%s], array[%s])", [job.id, lease.token]
        )
        session.execute("select holdfast.await_end(array[%s], 'somebody')", [job.id])
        session.execute("select * from holdfast.recount()").fetchall()
        folded = session.execute("select holdfast.fold()").fetchone()

        assert client.jobs.get(job.id).state == "queued"  # type: ignore[union-attr]
        assert folded != (0,)
        for turn in session.execute("select name from holdfast.turn").fetchall():
            assert session.execute("select holdfast.take_turn(%s)", turn).fetchone() == (True,)
        assert session.execute("select holdfast.stop_releases()").fetchone() == (True,)


def test_a_role_without_rights_does_not_keep_a_table_from_being_adopted(
    beside_a_stranger: str, connect: Connect
) -> None:
    connect(beside_a_stranger).execute(
        "create table public.orders (id integer primary key, status text default 'queued')"
    )
    adopt.adopt(beside_a_stranger, adopt.plan(beside_a_stranger, "public.orders", Choices()))

    with Client(beside_a_stranger) as client:
        assert client.queues.list() != []


def test_a_turn_is_one_transactions_until_it_ends(direct: str, connect: Connect) -> None:
    one, other = connect(direct, autocommit=False), connect(direct, autocommit=False)

    assert one.execute("select holdfast.take_turn('fold')").fetchone() == (True,)
    assert one.execute("select holdfast.take_turn('fold')").fetchone() == (True,)
    assert other.execute("select holdfast.take_turn('fold')").fetchone() == (False,)
    assert other.execute("select holdfast.take_turn('detect')").fetchone() == (True,)
    one.rollback()
    assert other.execute("select holdfast.take_turn('fold')").fetchone() == (True,)


def test_a_release_under_way_keeps_the_floors_where_they_are(direct: str, connect: Connect) -> None:
    one, other = connect(direct, autocommit=False), connect(direct, autocommit=False)
    third = connect(direct, autocommit=False)
    release = "select * from holdfast.release('{}'::uuid[], '{}'::uuid[])"
    one.execute(release)
    third.execute(release)

    assert other.execute("select holdfast.stop_releases()").fetchone() == (False,)
    one.rollback()
    third.rollback()
    assert other.execute("select holdfast.stop_releases()").fetchone() == (True,)
