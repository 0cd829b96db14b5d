"""A table of the application becomes a queue, works as one, and is given back as it was."""

from collections.abc import Callable, Iterator
from datetime import timedelta
from typing import Any
from uuid import uuid4

import psycopg
import pytest

from holdfast import Client, adopt
from holdfast.adopt import Choices
from holdfast.errors import AdoptionBlocked, CannotAdopt, HoldfastError
from tests.adoption.shapes import IMAGES, ORDERS, PAGES, REPORTS, SHAPES, Shape

Connect = Callable[..., psycopg.Connection]


@pytest.fixture
def client(database: str) -> Iterator[Client]:
    with Client(database) as opened:
        yield opened


def adopted(database: str, shape: Shape, rows: int = 100, **changes: Any) -> adopt.Plan:
    with psycopg.connect(database, autocommit=True) as connection:
        shape.create(connection, rows)
    plan = adopt.plan(database, shape.table, Choices(**{**_fields(shape.choices), **changes}))
    adopt.adopt(database, plan)
    if shape.before:
        with psycopg.connect(database, autocommit=True) as connection:
            connection.execute(shape.before)
    return plan


@pytest.mark.proves("S1.6", "S1.16", "S1.18")
@pytest.mark.parametrize("shape", SHAPES, ids=lambda shape: shape.name)
def test_a_table_of_any_shape_is_adopted_worked_off_and_given_back(
    database: str, connect: Connect, client: Client, shape: Shape
) -> None:
    connection = connect()
    shape.create(connection, 100)
    structure, digest = shape.structure(connection), shape.digest(connection)
    adopt.adopt(database, adopt.plan(database, shape.table, shape.choices))
    if shape.before:
        connection.execute(shape.before)
    queue = shape.choices.queue or ""

    leases = client.claim(queue, worker="w", limit=100)
    [dead, back, *others] = leases
    assert len(leases) == 5
    client.nack([dead], error_kind="Boom", message="no", final=True)
    client.release([back])
    assert {s.outcome for s in client.ack(others)} == {"done"}
    [again] = client.claim(queue, worker="w", limit=100)
    client.ack([again])
    connection.execute(shape.insert.format(n=1))

    found = client.queues.get(queue)
    assert found is not None
    existing = 100 - 5
    assert (found.queued, found.leased, found.dead, found.done) == (1, 0, 1, existing + 4)
    assert again.id == back.id
    buried = client.jobs.get(dead.id)
    assert buried is not None
    assert buried.error == "Boom: no"
    if shape in (REPORTS, IMAGES):
        with pytest.raises(CannotAdopt, match=r"1 rows of .* are failed"):
            adopt.unadopt(database, shape.table)
        connection.execute(f"update {shape.table} set status = default where status = 'failed'")
    adopt.unadopt(database, shape.table)

    connection.execute(f"delete from {shape.table} where {shape.marker.format(n=1)}")
    assert shape.structure(connection) == structure
    assert shape.digest(connection) == digest
    assert connection.execute(
        "select count(*) from pg_proc where pronamespace = 'holdfast_adopted'::regnamespace"
    ).fetchone() == (0,)
    assert client.queues.get(queue) is None


def test_the_plan_is_sql_and_changes_nothing(database: str, connect: Connect) -> None:
    REPORTS.create(connect(), 20)
    before = REPORTS.structure(connect())

    plan = adopt.plan(database, "report_jobs", REPORTS.choices)

    assert "create unique index concurrently" in plan.sql
    assert "not valid" in plan.sql
    assert "validate constraint" in plan.sql
    assert 'create or replace function holdfast_adopted."64_claim"' in plan.sql
    assert plan.existing == {"done": 19, "queued": 1}
    assert REPORTS.structure(connect()) == before
    assert adopt.adopted(database) == []


@pytest.mark.proves("S1.17")
def test_rows_without_a_status_are_what_their_owner_says(
    database: str, connect: Connect, client: Client
) -> None:
    PAGES.create(connect(), 50)
    with pytest.raises(CannotAdopt, match="--existing done"):
        adopt.plan(database, "pages", Choices())
    adopt.adopt(database, adopt.plan(database, "pages", Choices(existing="done")))

    connect().execute("insert into pages values ('new', 1, 'x')")

    assert [lease.payload["site"] for lease in client.claim("pages", worker="w", limit=99)] == [
        "new"
    ]


@pytest.mark.proves("S2.13")
def test_a_check_takes_the_new_value_and_gives_it_up_again(
    database: str, connect: Connect, client: Client
) -> None:
    adopted(database, IMAGES)
    [lease] = client.claim("images", worker="w")

    client.nack([lease], message="x" * 500, final=True)

    row = connect().execute(
        "select status, length(error_message) from images where status = 'failed'"
    )
    assert row.fetchall() == [("failed", 80)]
    with pytest.raises(psycopg.errors.CheckViolation):
        connect().execute("update images set status = 'nonsense'")

    connect().execute("delete from images where status = 'failed'")
    adopt.unadopt(database, "images")

    checks = connect().execute("""
        select convalidated from pg_constraint
        where conrelid = 'images'::regclass and contype = 'c'
    """)
    assert checks.fetchall() == [(True,)]
    with pytest.raises(psycopg.errors.CheckViolation):
        connect().execute("update images set status = 'failed'")


def test_an_adoption_that_failed_is_taken_up_where_it_stopped(
    database: str, connect: Connect
) -> None:
    REPORTS.create(connect(), 100)
    plan = adopt.plan(database, "report_jobs", REPORTS.choices)
    blocker = connect(autocommit=False)
    told: list[str] = []

    def stand_in_the_way(step: str) -> None:
        told.append(step)
        if "trigger" in step and len(told) < 20:
            blocker.execute("lock table report_jobs in row exclusive mode")

    with pytest.raises(AdoptionBlocked, match="could not get its lock"):
        adopt.adopt(database, plan, told=stand_in_the_way, patience=timedelta(seconds=0.3))
    done = len(told) - 1
    blocker.rollback()
    told.clear()
    adopt.adopt(database, adopt.plan(database, "report_jobs"), told=told.append)

    assert done + len(told) == len(plan.steps)
    [found] = adopt.adopted(database)
    assert (found["live"], found["queued"], found["done"]) == (True, 5, 95)


def test_an_index_that_failed_half_way_is_made_anew(database: str, connect: Connect) -> None:
    REPORTS.create(connect(), 10)
    plan = adopt.plan(database, "report_jobs", REPORTS.choices)
    index = next(step for step in plan.steps if "order of what waits" in step.name)
    connect().execute(index.do.replace("concurrently ", ""))
    connect().execute(
        "update pg_index set indisvalid = false where indexrelid = 'holdfast_64_ready'::regclass"
    )

    adopt.adopt(database, plan)

    assert connect().execute(
        "select indisvalid from pg_index where indexrelid = 'holdfast_64_ready'::regclass"
    ).fetchone() == (True,)


@pytest.mark.parametrize(
    ("table", "choices", "said"),
    [
        ("nothing", Choices(), "table nothing does not exist"),
        ("holdfast.job", Choices(), "not a plain table"),
        ("keyless", Choices(), "no primary key"),
        ("dated", Choices(existing="done"), "column day of the key .* is date"),
        ("report_jobs", Choices(columns={"lane": "colour"}), "no column colour"),
        ("report_jobs", Choices(columns={"shape": "id"}), "no such meaning"),
        ("report_jobs", Choices(columns={"priority": "title"}), "cannot be priority"),
        ("report_jobs", Choices(states={"gone": ["x"]}), "no such state"),
        ("report_jobs", Choices(output="reports.colour"), "has no column colour"),
    ],
)
def test_what_cannot_be_adopted_is_refused_with_a_reason(
    database: str, connect: Connect, table: str, choices: Choices, said: str
) -> None:
    REPORTS.create(connect(), 1)
    connect().execute("create table keyless (a int); create table dated (day date primary key)")

    with pytest.raises(CannotAdopt, match=said) as refused:
        adopt.plan(database, table, choices)

    assert refused.value.code == "HF250"


def test_a_table_with_leases_is_not_given_back_unless_forced(
    database: str, connect: Connect, client: Client
) -> None:
    adopted(database, REPORTS)
    client.claim("reports", worker="w", limit=2)

    with pytest.raises(CannotAdopt, match="2 rows"):
        adopt.unadopt(database, "report_jobs")
    adopt.unadopt(database, "report_jobs", force=True)

    states = connect().execute("select status, count(*) from report_jobs group by 1 order by 1")
    assert states.fetchall() == [("completed", 95), ("queued", 5)]


def test_jobs_of_a_table_are_rows_and_are_not_enqueued(database: str, client: Client) -> None:
    adopted(database, REPORTS)

    with pytest.raises(HoldfastError, match=r"queue 'reports' is table public\.report_jobs") as one:
        client.enqueue("reports", queue="reports")

    assert one.value.code == "HF226"


def test_a_migration_generates_the_verbs_anew(
    database: str, connect: Connect, client: Client
) -> None:
    from holdfast import schema

    adopted(database, REPORTS)
    connect().execute("update holdfast.migration set checksum = '' where version = 0")
    connect().execute('drop function holdfast_adopted."64_oldest"()')

    schema.migrate(database)

    assert len(client.jobs.list("queue:reports state:queued")) == 5
    assert len(client.claim("reports", worker="w", limit=9)) == 5


def test_every_verb_speaks_to_rows(database: str, connect: Connect, client: Client) -> None:
    adopted(database, REPORTS)
    connection = connect()
    [a, b, c] = client.claim("reports", worker="w", limit=3)
    mixed = client.enqueue("plain")
    [plain] = client.claim(worker="w")

    assert {lease.id for lease in client.held([a.token])} == {a.id, b.id, c.id}
    touched = client.touch([a, plain], lease=90)
    assert [one.outcome for one in touched] == ["leased", "leased"]
    # one call that settles rows and jobs together, in the order given
    assert [one.outcome for one in client.ack([plain, a])] == ["done", "done"]
    assert [one.outcome for one in client.ack([plain, a])] == ["already", "already"]
    assert [one.outcome for one in client.ack([(b.id, uuid4())])] == ["lost"]
    [cancelled] = client.jobs.cancel([b.id], reason="not needed")
    assert (cancelled.changed, cancelled.state) == (True, "dead")  # the table has no word for it
    assert [one.outcome for one in client.touch([b])] == ["lost"]
    [retried] = client.jobs.retry([b.id], reason="needed after all")
    assert (retried.changed, retried.state) == (True, "queued")
    kept = client.jobs.get(b.id)
    assert kept is not None
    assert kept.reason == "needed after all"
    ticket = client.hand_over(c, timeout=60)
    assert [one.outcome for one in client.ack([c])] == ["lost"]
    assert [one.outcome for one in client.ack([ticket])] == ["done"]
    [moved] = client.jobs.move([b.id], "elsewhere")
    assert "adopted table" in (moved.detail or "")
    assert "waits to be claimed" in client.jobs.explain(b.id)
    assert "Done at" in client.jobs.explain(a.id)
    assert connection.execute("select count(*) from holdfast.recount()").fetchone() == (0,)
    assert mixed.created


def test_paused_limited_and_rated_tables_hand_out_what_they_may(
    database: str, client: Client
) -> None:
    adopted(database, REPORTS)
    client.queues.set("reports", limit=2)
    assert len(client.claim("reports", worker="w", limit=9)) == 2
    assert client.claim("reports", worker="w", limit=9) == []
    client.queues.set("reports", limit=None, rate_limit=1, rate_period=60)
    assert len(client.claim("reports", worker="w", limit=9)) == 1
    assert client.claim("reports", worker="w", limit=9) == []
    client.queues.set("reports", rate_limit=None, rate_period=None)
    client.queues.pause("reports")
    assert client.claim("reports", worker="w", limit=9) == []
    client.queues.resume("reports")
    assert len(client.claim("reports", worker="w", limit=9)) == 2


def test_higher_priorities_go_first(database: str, connect: Connect, client: Client) -> None:
    adopted(database, ORDERS)
    connect().execute("""
        update "Shop Floor"."Order" set priority = case priority when 0 then 3 end
        where state = 'new';
        insert into "Shop Floor"."Order" ("select", priority) values ('first', 7), ('then', 5)
    """)

    leases = client.claim("orders", worker="w", limit=3)

    assert [lease.priority for lease in leases] == [7, 5, 3]


def test_of_a_lane_one_row_runs_at_a_time_and_in_order(
    database: str, connect: Connect, client: Client
) -> None:
    adopted(database, PAGES, rows=1)
    connect().execute(
        "insert into pages select 's' || g % 2, g, 'x' from generate_series(10, 15) g"
    )

    first = client.claim("pages", worker="w", limit=10)
    assert sorted(lease.payload["number"] for lease in first) == [10, 11]
    assert client.claim("pages", worker="w", limit=10) == []
    client.ack(first[:1])
    [second] = client.claim("pages", worker="w", limit=10)

    assert second.payload["number"] == first[0].payload["number"] + 2
    assert second.lane == first[0].lane


@pytest.mark.parametrize(
    ("bound_by", "commits"), [("nothing", "off"), ("lane", "on"), ("limit", "on"), ("rate", "on")]
)
def test_a_claim_that_lets_rows_in_under_a_limit_is_durable_whatever_was_asked(
    database: str, connect: Connect, client: Client, bound_by: str, commits: str
) -> None:
    shape = PAGES if bound_by == "lane" else REPORTS
    adopted(database, shape)
    queue = shape.choices.queue or ""
    if bound_by == "limit":
        client.queues.set(queue, limit=2)
    elif bound_by == "rate":
        client.queues.set(queue, rate_limit=1, rate_period=60)
    connection = connect()

    with connection.transaction():
        claim = "select from holdfast.claim(%s, 'w', %s, durable => false)"
        assert connection.execute(claim, [queue, uuid4()]).rowcount == 1
        # What the transaction commits with: a crash must not forget who is in.
        assert connection.execute("show synchronous_commit").fetchone() == (commits,)


def test_a_failed_row_waits_for_its_next_attempt_and_dies_after_the_last(
    database: str, connect: Connect, client: Client
) -> None:
    adopted(database, IMAGES)
    connect().execute("update images set max_attempts = 2")
    [lease] = client.claim("images", worker="w")
    client.nack([lease], message="no", delay=3600)
    assert "the next is due in" in client.jobs.explain(lease.id)
    assert lease.id not in {one.id for one in client.claim("images", worker="w", limit=9)}
    connect().execute("update images set holdfast_run_at = now() where error_message is not null")
    [again] = client.claim("images", worker="w")
    [settled] = client.nack([again], message="no again")

    assert (again.id, again.attempt) == (lease.id, 2)
    assert settled.outcome == "dead"
    assert [one.attempt for one in client.jobs.attempts(lease.id)] == [1, 2]
    assert connect().execute("select attempts from images where status = 'failed'").fetchall() == [
        (2,)
    ]


def test_dashboards_and_searches_see_rows(database: str, client: Client) -> None:
    adopted(database, REPORTS)

    found = client.jobs.list('queue:reports state:queued payload.title:"report 20"')
    everywhere = client.jobs.list("state:queued", limit=99)

    assert [job.subject for job in found] == ["20"]
    assert len(everywhere) == 5
    assert {d.state: d.jobs for d in client.queues.depth() if d.queue == "reports" and d.jobs} == {
        "queued": 5,
        "done": 95,
    }


def _fields(choices: Choices) -> dict[str, Any]:
    return {name: getattr(choices, name) for name in Choices.__dataclass_fields__}
