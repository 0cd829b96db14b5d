"""A row that refuses to be written is one dead job that says why; nobody else notices."""

from collections.abc import Callable, Iterator

import psycopg
import pytest
from psycopg.types.json import Jsonb

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
    answers = {ids[one.id]: one.outcome for one in client.upkeep.reap()}
    assert client.upkeep.reap() == []
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
    [job] = client.jobs.list("queue:tasks subject:2")
    assert (job.state, bool(job.error)) == ("dead", True)
    assert f"({verb}, SQLSTATE" in client.jobs.explain(job.id)
    assert "holdfast job retry" in client.jobs.explain(job.id)
    [found] = [a for a in _detected(table) if a[0] == "row_refused"]
    assert found[1] == "tasks"
    assert client.upkeep.run().get("failed") is None
    # the counters agree with what is seen
    assert table.execute("select * from holdfast.recount()").fetchall() == []
    queue = client.queues.get("tasks")
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
    [job] = client.jobs.list("queue:tasks state:dead")

    assert client.claim("tasks", worker="w") == []
    [refused] = client.jobs.retry([job.id])
    assert refused.changed  # the row itself may be written; the next claim is refused again
    assert client.claim("tasks", worker="w") == []
    table.execute("drop trigger bad on task")
    [retried] = client.jobs.retry([job.id])

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
    [job] = client.jobs.list("queue:tasks state:dead")

    [retried], [cancelled] = client.jobs.retry([job.id]), client.jobs.cancel([job.id])

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
    assert [job.subject for job in client.jobs.list("queue:tasks state:dead")] == ["2"]


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

    assert len(client.jobs.list("")) == 4
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

    assert [one.queue for one in client.upkeep.reap()] == ["plain"]
    other.rollback()
    clock.advance(seconds=11)

    assert {one.queue for one in client.upkeep.reap()} == {"tasks"}


# What a trigger may call its refusal: as if it were the call's own trouble, or past what OTHERS is.
FAKED = {
    "serialization_failure": "raise exception 'row is bad' using errcode = '40001'",
    "deadlock": "raise exception 'row is bad' using errcode = '40P01'",
    "a cancel": "raise exception 'row is bad' using errcode = '57014'",
    "out of disk": "raise exception 'row is bad' using errcode = '53100'",
    "an error of ours": "raise exception 'row is bad' using errcode = 'HF204'",
    "lock timeout": "raise exception 'row is bad' using errcode = '55P03'",
    "an assertion": "assert false, 'row is bad'",
    "what no transaction takes": "execute 'vacuum task'",
    "a read-only transaction": "execute 'set transaction read only'; update task set item = 0",
}


@pytest.mark.parametrize("faked", FAKED)
@pytest.mark.parametrize("verb", ["claim", "ack", "nack", "touch", "expire"])
def test_whatever_a_trigger_calls_its_refusal_is_of_its_row(
    table: psycopg.Connection, client: Client, clock: Clock, faked: str, verb: str
) -> None:
    then = {"claim": "old.status = 'queued'", "touch": "new.status = 'started'"}
    table.execute(f"""
        create function fake() returns trigger language plpgsql as
          $$ begin {FAKED[faked]}; return new; end $$;
        create trigger bad before update on task for each row
          when (old.id = 2 and {then.get(verb, "new.status <> 'started'")}
            {"and old.status = 'started'" if verb == "touch" else ""})
          execute function fake();
    """)

    answers = settle(client, clock, verb)

    good = {"claim": "done", "ack": "done", "touch": "leased"}.get(verb, "queued")
    assert {answers[n] for n in (0, 1, 3, 4, 5)} == {good}
    [job] = client.jobs.list("queue:tasks subject:2")
    assert job.state == "dead"
    assert f"({verb}, SQLSTATE" in client.jobs.explain(job.id)
    assert table.execute("select * from holdfast.recount()").fetchall() == []


def test_a_trigger_that_sleeps_the_timeout_away_keeps_no_other_queue_from_being_reaped(
    table: psycopg.Connection, client: Client, clock: Clock
) -> None:
    client.enqueue("work", queue="plain")
    client.claim("tasks", worker="w", limit=9)
    client.claim("plain", worker="w")
    table.execute("""
        create function slow() returns trigger language plpgsql as
          $$ begin perform pg_sleep(600); return new; end $$;
        create trigger slow before update on task for each row execute function slow();
    """)
    clock.advance(seconds=31)
    table.execute("set statement_timeout = '300ms'")

    reaped = table.execute("select queue from holdfast.reap()").fetchall()

    assert reaped == [("plain",)]
    table.execute("set statement_timeout = 0; drop trigger slow on task")
    clock.advance(seconds=11)
    assert {one.queue for one in client.upkeep.reap()} == {"tasks"}


def test_a_call_that_is_cancelled_while_a_trigger_sleeps_is_cancelled(
    table: psycopg.Connection, client: Client
) -> None:
    table.execute("""
        create function slow() returns trigger language plpgsql as
          $$ begin perform pg_sleep(600); return new; end $$;
        create trigger slow before update on task for each row execute function slow();
        set statement_timeout = '300ms';
    """)

    with pytest.raises(psycopg.errors.QueryCanceled):
        table.execute("select * from holdfast.claim('tasks', 'w', gen_random_uuid(), 9)")

    table.execute("set statement_timeout = 0; drop trigger slow on task")
    assert client.jobs.list("queue:tasks state:dead") == []
    assert len(client.claim("tasks", worker="w", limit=9)) == 5


def test_a_nack_that_is_refused_is_an_attempt_with_its_error(
    table: psycopg.Connection, client: Client, clock: Clock
) -> None:
    table.execute(FAULTS["a trigger that raises when it waits again"][0])

    settle(client, clock, "nack")

    [job] = client.jobs.list("queue:tasks subject:2")
    [attempt] = client.jobs.attempts(job.id)
    assert (attempt.attempt, attempt.outcome, attempt.message) == (1, "failed", "no")
    assert attempt.worker == "w"


def test_a_row_that_refuses_to_be_handed_over_is_one_dead_job(
    table: psycopg.Connection, client: Client
) -> None:
    leases = client.claim("tasks", worker="w", limit=9)
    table.execute(FAULTS["a trigger that raises when it is touched"][0])
    answers = {
        lease.payload["id"]: table.execute(
            "select outcome, detail from holdfast.hand_over(%s, %s, gen_random_uuid(), "
            "'1 hour', 'elsewhere')",
            [lease.id, lease.token],
        ).fetchone()
        for lease in leases
    }

    assert {answers[n] for n in (1, 3, 4, 5)} == {("leased", None)}
    outcome, detail = answers[2] or ("", "")
    assert outcome == "lost"
    assert "row 2 is bad" in detail
    [job] = client.jobs.list("queue:tasks state:dead")
    assert "(hand_over, SQLSTATE" in client.jobs.explain(job.id)


@pytest.mark.parametrize(
    ("does", "answer"),
    [
        ("delete from task where id = old.id; return null", "unknown lost"),
        ("new.status := 'elsewhere'; return new", "done lost"),
        ("return null", "lost"),
        ("new.holdfast_token := null; new.status := 'queued'; return new", "done lost"),
    ],
)
def test_a_trigger_that_does_something_else_harms_only_its_row(
    table: psycopg.Connection, client: Client, clock: Clock, does: str, answer: str
) -> None:
    client.enqueue("work", queue="plain")
    leases = client.claim("tasks", worker="w", limit=9)
    [plain] = client.claim("plain", worker="w")
    ids = {lease.id: lease.payload["id"] for lease in leases} | {plain.id: 0}
    table.execute(f"""
        create function odd() returns trigger language plpgsql as $$ begin {does}; end $$;
        create trigger odd before update on task for each row
          when (old.id = 2 and new.status = 'done') execute function odd();
    """)

    answers = {ids[one.id]: one.outcome for one in client.ack([plain, *leases])}

    assert {answers[n] for n in (0, 1, 3, 4, 5)} == {"done"}
    assert answers[2] in answer.split()
    clock.advance(seconds=31)
    client.upkeep.reap()
    assert client.upkeep.run().get("failed") is None
    assert table.execute("select * from holdfast.recount()").fetchall() == []


def test_rows_that_refuse_are_settled_beside_others_in_one_call(
    table: psycopg.Connection, client: Client
) -> None:
    """Each lease ends in its own way: done, failed, given back, cancelled by its holder."""
    table.execute(
        "create trigger bad before update on task for each row "
        "when (old.id in (2, 3) and old.status = 'started') execute function refuse_it()"
    )
    client.enqueue("work", queue="plain")
    leases = client.claim("tasks", worker="w", limit=9)
    [plain] = client.claim("plain", worker="w")
    verbs = {0: "ack", 1: "ack", 2: "cancel", 3: "nack", 4: "release", 5: "cancel"}
    numbers = [0, *(lease.payload["id"] for lease in leases)]
    items = [
        {"id": str(lease.id), "token": str(lease.token), "verb": verbs[number], "message": "no"}
        for number, lease in zip(numbers, [plain, *leases], strict=True)
    ]

    answers = table.execute(
        "select outcome, detail from holdfast.settle(%s) order by ord", [Jsonb(items)]
    ).fetchall()

    said = dict(zip(numbers, answers, strict=True))
    assert {n: outcome for n, (outcome, _) in said.items()} == {
        0: "done",
        1: "done",
        2: "lost",
        3: "lost",
        4: "queued",
        5: "cancelled",
    }
    assert "row 2 is bad" in said[2][1]
    assert {"2", "3"} <= {job.subject for job in client.jobs.list("queue:tasks state:dead")}
    assert table.execute("select * from holdfast.recount()").fetchall() == []


@pytest.mark.parametrize("column", ["started_at", "error_message", "finished_at"])
def test_a_column_that_came_to_refuse_null_is_one_dead_job(
    database: str, connect: Connect, client: Client, clock: Clock, column: str
) -> None:
    """What a nack takes away again: no time of a start, no end. The check came after adopting."""
    connection = connect()
    connection.execute("""
        create table task (id integer primary key, status text default 'queued',
          started_at timestamptz, error_message text, finished_at timestamptz);
        insert into task (id) select generate_series(1, 3);
    """)
    adopt.adopt(database, adopt.plan(database, "task", Choices(queue="tasks")))
    leases = client.claim("tasks", worker="w", limit=9)
    connection.execute(
        f"update task set {column} = coalesce({column}::text, '2026-01-01')::"  # type: ignore[arg-type]
        f"{'text' if column == 'error_message' else 'timestamptz'};"
        f"alter table task alter {column} set not null"
    )

    if column == "error_message":  # an ack leaves it as it is; a retry would empty it
        assert {one.outcome for one in client.ack(leases)} == {"done"}
        assert not any(one.changed for one in client.jobs.retry([lease.id for lease in leases]))
    else:
        assert {one.outcome for one in client.nack(leases, message="no")} == {"lost"}
    assert len(client.jobs.list("queue:tasks state:dead")) == 3
    assert client.upkeep.run().get("failed") is None
    assert connection.execute("select * from holdfast.recount()").fetchall() == []


@pytest.mark.parametrize(
    "question",
    [
        "select * from holdfast.list('queue:plain')",
        "select * from holdfast.list('state:queued queue:plain', 5)",
        "select * from holdfast.search('queue:plain')",
        "select * from holdfast.get((select id from holdfast.list('queue:plain')))",
    ],
)
def test_who_asks_for_one_queue_does_not_wait_for_a_table_that_is_another(
    table: psycopg.Connection, client: Client, connect: Connect, question: str
) -> None:
    """To know that no row of it fits, an adopted table would be read from end to end."""
    client.enqueue("work", queue="plain")
    other = connect(autocommit=False)
    other.execute("lock table task in access exclusive mode")
    table.execute("set statement_timeout = '5s'")

    assert len(table.execute(question).fetchall()) == 1  # type: ignore[call-overload]
