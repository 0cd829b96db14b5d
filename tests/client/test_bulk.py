"""Very many jobs: sent by COPY where nothing has to be decided, with the answers of enqueue."""

from typing import Any

import psycopg
import pytest

from holdfast import Client, InvalidJob, NewJob
from holdfast.client.aio import storing as aio
from holdfast.client.rows import CopySettings, Rows
from holdfast.client.statement import Statement
from holdfast.client.sync import storing as sync
from holdfast.errors import PayloadTooLarge

MANY = aio._BULK


def jobs(number: int = MANY, **options: Any) -> list[NewJob]:
    return [NewJob(kind="greet", payload={"n": n}, **options) for n in range(number)]


@pytest.fixture
def sent(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """What was sent, as `enqueue` or `copied`: the names of the client's statements."""
    names: list[str] = []

    def statement(name: str, *arguments: Any, **more: Any) -> Any:
        names.append(name)
        return Statement(name, *arguments, **more)

    for module in (aio, sync):
        monkeypatch.setattr(module, "Statement", statement)
    return names


def test_many_plain_jobs_are_copied_and_answered_one_by_one(
    client: Client, connect: Any, sent: list[str]
) -> None:
    answers = client.enqueue_many(jobs())

    assert sent[-1] == "copied"
    assert all(one.created and one.behind is None for one in answers)
    stored = dict(connect().execute("select id, (payload ->> 'n')::int from holdfast.job"))
    assert [stored[one.id] for one in answers] == list(range(MANY))
    assert client.queues.get("default").queued == MANY
    assert [one.payload["n"] for one in client.claim(worker="w", limit=3)] == [0, 1, 2]


@pytest.mark.parametrize("options", [{"key": "k"}, {"lane": "l"}, {"delay": 0}, {"lease": 5}])
def test_jobs_that_need_a_decision_are_enqueued(
    client: Client, sent: list[str], options: dict[str, Any]
) -> None:
    client.enqueue_many([*jobs(), NewJob(kind="greet", **options)])

    assert set(sent) == {"enqueue"}


def test_jobs_of_a_queue_at_its_limit_say_what_they_wait_for(client: Client) -> None:
    client.queues.set("default", limit=1)
    client.enqueue("first")
    [held] = client.claim(worker="w")

    answers = client.enqueue_many(jobs())

    assert {one.behind for one in answers} == {held.id}


def test_jobs_of_a_fanned_out_queue_have_the_ids_they_are_stored_under(client: Client) -> None:
    client.queues.set("wide", fanout=4)

    answers = client.enqueue_many(jobs(queue="wide"))

    assert {one.id for one in answers} == {
        one.id for one in client.jobs.list("queue:wide", limit=MANY)
    }


def test_one_bad_job_of_many_stores_none(client: Client) -> None:
    with pytest.raises(PayloadTooLarge, match="payload of 'greet' is"):
        client.enqueue_many([*jobs(), NewJob(kind="greet", payload="x" * 300_000)])
    with pytest.raises(InvalidJob, match="priority 11"):
        client.enqueue_many([*jobs(), NewJob(kind="greet", priority=11)])

    assert client.jobs.count("kind:greet").jobs == 0


def test_many_jobs_on_the_callers_connection_leave_its_transaction_whole(
    database: str, connect: Any
) -> None:
    with Client(database) as client:
        with connect(autocommit=False) as connection:
            client.on(connection).enqueue_many(jobs())
            with pytest.raises(InvalidJob), connection.transaction():
                client.on(connection).enqueue_many([*jobs(), NewJob(kind="", payload={})])

        assert client.jobs.count("kind:greet").jobs == MANY


def test_many_jobs_of_several_queues_and_headers_arrive_as_they_were(client: Client) -> None:
    odd = "tab\t, line\n, slash \\ and \u20ac"
    mixed = [
        NewJob(kind=f"k{n % 3}", queue=f"q{n % 2}", payload=[odd], headers={"h": odd}, subject=odd)
        for n in range(MANY)
    ]

    client.enqueue_many(mixed)

    [found] = client.jobs.list("queue:q1", limit=1)
    assert (found.payload, found.headers, found.subject) == ([odd], {"h": odd}, odd)
    assert {one.queue: one.queued for one in client.queues.list()} == {
        "q0": MANY // 2,
        "q1": MANY // 2,
    }


def test_a_role_that_may_only_call_functions_can_store_many(
    client: Client, connect: Any, database: str, make_client: Any
) -> None:
    connection = connect()
    connection.execute("drop role if exists caller_only")
    connection.execute("create role caller_only login")
    connection.execute("grant usage on schema holdfast to caller_only")
    connection.execute("grant execute on function holdfast.enqueue(jsonb, boolean) to caller_only")
    connection.execute("grant select on holdfast.queues to caller_only")
    try:
        url = psycopg.conninfo.make_conninfo(database, user="caller_only")
        assert len(make_client(url).enqueue_many(jobs())) == MANY
        assert client.jobs.count("kind:greet").jobs == MANY
    finally:
        connection.execute("drop owned by caller_only")
        connection.execute("drop role caller_only")


def test_whatever_ends_a_copy_is_raised_as_it_is(client: Client) -> None:
    def broken() -> Any:
        yield from jobs(3)
        raise RuntimeError("x" * 100_000)

    with pytest.raises(RuntimeError, match="x" * 100_000):
        client.copy(broken())
    with pytest.raises(InvalidJob, match="is not a text of 1 to 200"):
        client.copy([*jobs(600), NewJob(kind="x" * 100_000)])

    assert client.jobs.count("kind:greet").jobs == 0


def test_a_queue_with_a_limit_far_behind_plain_ones_leaves_counters_exact(
    client: Client, connect: Any
) -> None:
    client.queues.set("narrow", limit=1)

    answers = client.enqueue_many([*jobs(), NewJob(kind="greet", queue="narrow")])

    assert all(one.created for one in answers)
    assert client.queues.get("default").queued == MANY
    stored = connect().execute("select count(*), count(distinct id) from holdfast.job").fetchone()
    assert stored == (MANY + 1, MANY + 1)
    assert connect().execute("select * from holdfast.recount()").fetchall() == []


def test_what_jobs_have_in_common_is_kept_for_some_shapes_only() -> None:
    rows = Rows("2026-01-01")
    rows.queues["default"] = CopySettings()

    for n in range(5000):
        rows.render([NewJob(kind="greet", subject=f"order {n}")])

    assert rows.counts == {("default", "greet"): 5000}
    assert len(rows._likes) <= 1000
