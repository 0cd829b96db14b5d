"""A row that refuses to be written is one dead job that says why; nobody else notices."""

from collections.abc import Callable, Iterator

import psycopg
import pytest

from holdfast import App, Client, adopt
from holdfast.adopt import Choices
from holdfast.worker import Worker
from tests.conftest import Clock

Connect = Callable[..., psycopg.Connection]

CHOICES = Choices(
    queue="tasks",
    states={"queued": ["queued"], "leased": ["started"], "done": ["done"], "dead": ["failed"]},
    done_when="job.divisor is not null and 1 / job.divisor > 5",
)

# What row 2 refuses, and at which verbs.
FAULTS = {
    "a trigger that raises when it is taken": (
        (
            "create trigger bad before update on task for each row "
            "when (old.id = 2 and new.status = 'started') execute function refuse_it()"
        ),
        "claim",
    ),
    "a trigger that raises when it is done": (
        (
            "create trigger bad before update on task for each row "
            "when (old.id = 2 and new.status = 'done') execute function refuse_it()"
        ),
        "ack",
    ),
    "a trigger that raises when it waits again": (
        (
            "create trigger bad before update on task for each row "
            "when (old.id = 2 and new.status = 'queued') execute function refuse_it()"
        ),
        "nack release expire",
    ),
    "a check": (
        "alter table task add check (not (id = 2 and status = 'done')) not valid",
        "ack",
    ),
    "a unique index with the status": (
        (
            "update task set item = 7 where id = 2;"
            "insert into task (id, item, status) values (99, 7, 'done');"
            "create unique index on task (item, status)"
        ),
        "ack",
    ),
    "a trigger that raises when it is touched": (
        (
            "create trigger bad before update on task for each row "
            "when (old.id = 2 and old.status = 'started' and new.status = 'started') "
            "execute function refuse_it()"
        ),
        "touch",
    ),
    "a condition that fails": ("update task set divisor = 0 where id = 2", "expire"),
}
CASES = [(name, verb) for name, (_, verbs) in FAULTS.items() for verb in verbs.split()]


@pytest.fixture
def client(database: str) -> Iterator[Client]:
    with Client(database) as opened:
        yield opened


@pytest.fixture
def table(database: str, connect: Connect) -> psycopg.Connection:
    connection = connect()
    connection.execute("""
        create table task (id integer primary key, status text default 'queued', item integer,
          divisor integer);
        insert into task (id, item) select g, g from generate_series(1, 5) g;
        create function refuse_it() returns trigger language plpgsql as
          $$ begin raise exception 'row % is bad', old.id; end $$;
    """)
    adopt.adopt(database, adopt.plan(database, "task", CHOICES))
    return connection


def settle(client: Client, clock: Clock, verb: str) -> dict[int, str]:
    """Claim all five rows and an ordinary job, and do this to them; what was answered for each."""
    client.enqueue("work", queue="plain")
    leases = client.claim("tasks", worker="w", limit=9)
    [plain] = client.claim("plain", worker="w")
    ids = {lease.id: lease.payload["id"] for lease in leases} | {plain.id: 0}
    both = [plain, *leases]
    if verb == "claim":
        assert sorted(ids.values()) == [0, 1, 3, 4, 5]
        return {ids[one.id]: one.outcome for one in client.ack(both)}
    assert sorted(ids.values()) == [0, 1, 2, 3, 4, 5]
    if verb == "ack":
        return {ids[one.id]: one.outcome for one in client.ack(both)}
    if verb == "nack":
        return {ids[one.id]: one.outcome for one in client.nack(both, message="no")}
    if verb == "release":
        return {ids[one.id]: one.outcome for one in client.release(both)}
    if verb == "touch":
        return {ids[one.id]: one.outcome for one in client.touch(both)}
    clock.advance(seconds=31)
    answers = {ids[one.id]: one.outcome for one in client.reap()}
    assert client.reap() == []
    return answers


@pytest.mark.parametrize(("fault", "verb"), CASES, ids=[f"{n}: {v}" for n, v in CASES])
def test_a_row_that_refuses_is_one_dead_job_and_its_neighbours_go_on(
    table: psycopg.Connection, client: Client, clock: Clock, fault: str, verb: str
) -> None:
    table.execute(FAULTS[fault][0])

    answers = settle(client, clock, verb)

    good = {"claim": "done", "ack": "done", "touch": "leased"}.get(verb, "queued")
    assert {answers[n] for n in (0, 1, 3, 4, 5)} == {good}
    assert answers.get(2) == {"claim": None, "expire": None}.get(verb, "lost")
    [job] = client.list("queue:tasks subject:2")
    assert (job.state, bool(job.error)) == ("dead", True)
    assert f"({verb}, SQLSTATE" in client.explain(job.id)
    assert "holdfast job retry" in client.explain(job.id)
    [found] = [a for a in _detected(table) if a[0] == "row_refused"]
    assert found[1] == "tasks"
    assert client.upkeep().get("failed") is None
    # the counters agree with what is seen
    assert table.execute("select * from holdfast.recount()").fetchall() == []
    queue = client.queue("tasks")
    assert queue is not None
    assert queue.dead == 1


def _detected(table: psycopg.Connection) -> list[tuple[str, str]]:
    table.execute("select holdfast.detect(array['row_refused', 'table_broken', 'counters_drift'])")
    return table.execute(  # type: ignore[return-value]
        "select code, queue from holdfast.anomalies where resolved_at is null"
    ).fetchall()


def test_a_row_that_was_mended_is_retried(
    table: psycopg.Connection, client: Client, clock: Clock
) -> None:
    table.execute(FAULTS["a trigger that raises when it is taken"][0])
    settle(client, clock, "claim")
    [job] = client.list("queue:tasks state:dead")

    assert client.claim("tasks", worker="w") == []
    [refused] = client.retry([job.id])
    assert refused.changed  # the row itself may be written; the next claim is refused again
    assert client.claim("tasks", worker="w") == []
    table.execute("drop trigger bad on task")
    [retried] = client.retry([job.id])

    assert (retried.changed, retried.state) == (True, "queued")
    [lease] = client.claim("tasks", worker="w")
    assert [one.outcome for one in client.ack([lease])] == ["done"]
    assert table.execute("select count(*) from holdfast.adopted_fault").fetchone() == (0,)
    assert _detected(table) == []


def test_a_row_that_refuses_everything_says_so_when_it_is_retried(
    table: psycopg.Connection, client: Client
) -> None:
    table.execute(
        "create trigger bad before update on task for each row when (old.id = 2) "
        "execute function refuse_it()"
    )
    client.claim("tasks", worker="w", limit=9)
    [job] = client.list("queue:tasks state:dead")

    [retried], [cancelled] = client.retry([job.id]), client.cancel([job.id])

    for answer in (retried, cancelled):
        assert not answer.changed
        assert "row 2 is bad" in (answer.detail or "")


def test_a_row_that_the_application_mends_is_a_job_again_at_once(
    table: psycopg.Connection, client: Client
) -> None:
    table.execute(
        "create trigger bad before update on task for each row "
        "when (old.item = 2 and new.status = 'started') execute function refuse_it()"
    )
    assert len(client.claim("tasks", worker="w", limit=9)) == 4

    table.execute("update task set item = 20 where id = 2")

    assert [lease.payload["id"] for lease in client.claim("tasks", worker="w", limit=9)] == [2]
    assert table.execute("select * from holdfast.recount()").fetchall() == []


def test_a_worker_goes_on_beside_a_row_that_refuses(
    table: psycopg.Connection, database: str, client: Client
) -> None:
    table.execute(FAULTS["a check"][0])
    ran: list[int] = []
    with App(database) as app:

        @app.task(queue="tasks", kind="tasks")
        def do(id: int, item: int, divisor: int | None) -> None:
            ran.append(id)

        Worker(app, until_idle=True).run()

    assert sorted(ran) == [1, 2, 3, 4, 5]
    states = dict(table.execute("select status, count(*) from task group by 1").fetchall())
    assert states == {"done": 4, "started": 1}
    assert [job.subject for job in client.list("queue:tasks state:dead")] == ["2"]


def test_a_priority_that_is_far_too_high_counts_as_the_highest(
    database: str, connect: Connect, client: Client
) -> None:
    connect().execute("""
        create table task (id integer primary key, status text default 'queued', priority integer,
          attempts integer);
        insert into task (id, priority, attempts) values (1, 5, 0), (2, 100000, 99999), (3, -8, -1);
    """)
    adopt.adopt(database, adopt.plan(database, "task", Choices(queue="tasks")))
    client.enqueue("work")

    assert len(client.list("")) == 4
    leases = client.claim("tasks", worker="w", limit=9)
    assert [(lease.payload["id"], lease.priority) for lease in leases] == [(2, 9), (1, 5), (3, 0)]
    assert {one.outcome for one in client.nack(leases, message="no")} == {"queued", "dead"}
    assert [row[0] for row in connect().execute("select queue from holdfast.queues")]


def test_nobody_cries_wolf_over_the_counters_of_an_adopted_table(
    table: psycopg.Connection, client: Client, clock: Clock
) -> None:
    for _ in range(3):
        assert _detected(table) == []
        clock.advance(seconds=31)
    client.claim("tasks", worker="w", limit=2)

    assert _detected(table) == []


def test_a_table_that_is_locked_keeps_no_other_queue_from_being_reaped(
    table: psycopg.Connection, client: Client, clock: Clock, connect: Connect
) -> None:
    client.claim("tasks", worker="w", limit=9)
    client.enqueue("work", queue="plain")
    client.claim("plain", worker="w")
    clock.advance(seconds=31)
    other = connect(autocommit=False)
    other.execute("lock table task in access exclusive mode")

    assert [one.queue for one in client.reap()] == ["plain"]
    other.rollback()
    clock.advance(seconds=11)

    assert {one.queue for one in client.reap()} == {"tasks"}
