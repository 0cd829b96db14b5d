"""The rules that let the same schema run behind a pooler and, one day, on many nodes."""

from collections.abc import Callable
from typing import Any
from uuid import UUID, uuid4

import psycopg
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from holdfast import records
from tests.protocol import Leased, Open, Protocol

NAMES = [
    "default",
    "mail",
    "q",
    "",
    "ü" * 60,
    "👩‍👩‍👧‍👦",
    "'; drop table job; --",
    "a\\b%s{}",
    "x" * 120,
    *(f"queue {n}" for n in range(200)),
]
# Rows that belong to no queue; every node has all of them.
NOT_OF_JOBS = [
    "anomalies",
    "api_token",
    "api_tokens",
    "operation",
    "operations",
    "reply_link",
    "workflow",
]


def test_every_unique_index_of_a_table_with_parts_leads_with_the_part(db: Protocol) -> None:
    others = db.connection.execute(
        """
        select i.indexrelid::regclass::text
        from pg_index i
        join pg_class t on t.oid = i.indrelid and t.relnamespace = 'holdfast'::regnamespace
        join pg_attribute part on part.attrelid = t.oid and part.attname = 'part'
        where i.indisunique and i.indkey[0] <> part.attnum
        """
    ).fetchall()

    assert others == []


def test_every_table_of_jobs_carries_the_part(db: Protocol) -> None:
    tables = db.connection.execute(
        """
        select c.relname
        from pg_class c
        where c.relnamespace = 'holdfast'::regnamespace and c.relkind in ('r', 'p')
          and exists (select from pg_attribute a where a.attrelid = c.oid and a.attname = 'id')
          and not exists (
            select from pg_attribute a
            where a.attrelid = c.oid and a.attname = 'part' and a.attnotnull
              and a.atttypid = 'smallint'::regtype)
          and not c.relname = any(%s)
        """,
        [NOT_OF_JOBS],
    ).fetchall()

    assert tables == []


def test_no_table_has_triggers_except_two_that_stay_where_the_row_is_written(db: Protocol) -> None:
    triggers = db.connection.execute(
        """
        select c.relname, t.tgname
        from pg_trigger t
        join pg_class c on c.oid = t.tgrelid
        where c.relnamespace = 'holdfast'::regnamespace and t.tgparentid = 0
        order by c.relname
        """
    ).fetchall()

    # Each node notifies those who listen there; a row that a producer copies is checked alone.
    assert triggers == [("bell", "ring"), ("job", "rows of producers are checked")]


def test_no_foreign_key_ties_jobs_to_anything(db: Protocol) -> None:
    keys = db.connection.execute(
        """
        select k.conname
        from pg_constraint k
        join pg_class c on c.oid in (k.conrelid, k.confrelid)
        where k.contype = 'f' and c.relnamespace = 'holdfast'::regnamespace
        """
    ).fetchall()

    assert keys == []


def test_no_id_and_no_lease_is_drawn_from_a_sequence(db: Protocol) -> None:
    types = db.connection.execute(
        """
        select distinct a.atttypid::regtype::text
        from pg_attribute a
        join pg_class c on c.oid = a.attrelid and c.relnamespace = 'holdfast'::regnamespace
        where a.attname in ('id', 'token') and c.relkind in ('r', 'p', 'v')
          and not c.relname = any(%s)
        """,
        [NOT_OF_JOBS],
    ).fetchall()

    assert types == [("uuid",)]


def test_python_and_sql_agree_where_a_queue_lives(db: Protocol) -> None:
    rows = db.connection.execute(
        "select name, holdfast.queue_part(name) from unnest(%s::text[]) name", [NAMES]
    ).fetchall()

    assert dict(rows) == {name: records.queue_part(name) for name in NAMES}
    assert len({part for _, part in rows}) > 50


@settings(
    max_examples=200, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture]
)
@given(
    st.text(st.characters(exclude_categories=["Cs"], exclude_characters="\0")),
    st.uuids(),
    st.integers(0, 63),
)
def test_python_and_sql_agree_about_any_name_and_id(
    db: Protocol, name: str, id: UUID, part: int
) -> None:
    row = db.connection.execute(
        "select holdfast.queue_part(%(name)s), holdfast.part_of(%(id)s),"
        " holdfast.stamp(%(id)s, %(part)s::smallint), holdfast.part_of(holdfast.new_id(%(name)s))",
        {"name": name, "id": id, "part": part},
    ).fetchone()

    home = records.queue_part(name)
    assert row == (home, records.part_of(id), records.stamp(id, part), home)
    assert records.part_of(records.new_id(name)) == home
    assert records.part_of(records.stamp(id, part)) == part


@pytest.mark.parametrize("name", ["default", "mail", "ü 👩‍👧"])
def test_an_id_carries_the_part_of_its_queue(db: Protocol, name: str) -> None:
    made, given_id, foreign = db.enqueue(
        {"kind": "k", "queue": name},
        {"kind": "k", "queue": name, "id": str(records.new_id(name))},
        {"kind": "k", "queue": name, "id": str(uuid4())},
    )

    ids = [made.id, given_id.id, foreign.id]
    assert {records.part_of(id) for id in ids} == {records.queue_part(name)}
    assert {id.version for id in ids} == {8}
    assert {id.variant for id in ids} == {"specified in RFC 4122"}
    assert {job.id for job in db.claim(name, max_jobs=3)} == set(ids)


def test_a_job_moves_between_queues_of_one_part(db: Protocol) -> None:
    first, second = [
        name for name in (f"queue {n}" for n in range(1000)) if records.queue_part(name) == 7
    ][:2]
    waiting = db.put(queue=first, payload=1)
    db.put(queue=first, payload=2, max_attempts=1, priority=1)
    db.nack(dying := db.take(first), message="no")

    answers = db.move(waiting, dying.id, queue=second)

    assert [(answer.changed, answer.new_id) for answer in answers] == [
        (True, waiting),
        (True, dying.id),
    ]
    assert [job.payload for job in db.claim(second, max_jobs=2)] == [1]
    assert db.claim(first) == []
    assert db.job(dying.id).queue == second


CALLS: dict[str, Callable[[Protocol, Leased], Any]] = {
    "enqueue": lambda db, _: db.enqueue({"kind": "k", "key": "a", "lane": "l"}, {"kind": "k"}),
    "claim": lambda db, _: db.claim(max_jobs=2, kinds=["k", "work"]),
    "touch": lambda db, held: db.touch(held),
    "ack": lambda db, held: db.ack(held),
    "nack": lambda db, held: db.nack(held, message="no"),
    "release": lambda db, held: db.release(held),
    "settle": lambda db, held: db.settle({"id": held.id, "token": held.token, "verb": "release"}),
    "held": lambda db, held: db.held(held.token),
    "hand_over": lambda db, held: db.hand_over(held),
    "declare_kinds": lambda db, _: db.declare_kinds({"kind": "k", "done_when": True}),
    "doubtful": lambda db, _: db.doubtful("work"),
    "reconcile": lambda db, held: db.reconcile(held, done=[True]),
    "await_work": lambda db, _: db.value("await_work", queues=["default"], worker="ada"),
    "reap": lambda db, _: db.reap(),
    "promote": lambda db, _: db.promote(),
    "sweep": lambda db, _: db.sweep(),
    "fold": lambda db, _: db.fold(),
    "raise_floors": lambda db, _: db.raise_floors(),
    "turn_pages": lambda db, _: db.value("turn_pages"),
    "upkeep": lambda db, _: db.upkeep(),
    "cancel": lambda db, held: db.cancel(held.id),
    "retry": lambda db, held: db.retry(held.id),
    "edit": lambda db, held: db.edit(held.id, changes={"priority": 2}),
    "move": lambda db, held: db.move(held.id, queue="other"),
    "archive": lambda db, held: db.archive(held.id),
    "delete": lambda db, held: db.delete(held.id),
    "queue_set": lambda db, _: db.queue_set("default", limit=7, fair=True),
    "lane_set": lambda db, _: db.lane_set("default", "l", limit=2),
    "pause": lambda db, _: db.pause("default"),
    "resume": lambda db, _: db.resume("default"),
    "recount": lambda db, _: db.recount(),
    "list": lambda db, _: db.list("kind:work -state:dead"),
    "explain": lambda db, held: db.explain(held.id),
    "attempts": lambda db, held: db.attempts(held.id),
}


@pytest.mark.parametrize("verb", CALLS)
def test_a_call_leaves_nothing_behind_in_its_session(db: Protocol, other: Open, verb: str) -> None:
    db.put(max_attempts=1)
    held = db.take()
    session = other(autocommit=False)
    before = session_state(session)
    session.connection.rollback()

    with session.connection.transaction():
        inside_before = session_settings(session)
        CALLS[verb](session, held)
        inside_after = session_settings(session)
    after = session_state(session)

    assert inside_after == inside_before
    assert after == before


def test_an_asynchronous_claim_changes_its_own_transaction_only(db: Protocol, other: Open) -> None:
    db.put()
    session = other(autocommit=False)
    before = session_state(session)
    session.connection.rollback()

    session.claim(durable=False)
    session.connection.commit()

    assert session_state(session) == before


def test_a_refusal_leaves_nothing_behind_in_its_session(db: Protocol) -> None:
    before = session_state(db)

    for call in (
        lambda: db.enqueue({"kind": ""}),
        lambda: db.claim("default", ""),
        lambda: db.queue_set("q", nonsense=1),
        lambda: db.list("nonsense:1"),
    ):
        with pytest.raises(psycopg.Error):
            call()

    assert session_state(db) == before


def session_settings(db: Protocol) -> dict[str, str]:
    rows = db.connection.execute(
        "select name, setting from pg_settings"
        " where name not like 'transaction_%' and name not like 'plpgsql.%'"
    )
    return dict(rows.fetchall())


def session_state(db: Protocol) -> dict[str, Any]:
    """What another client would find in this session if a pooler gave it to him."""
    counts = db.connection.execute(
        """
        select
          (select count(*) from pg_locks where locktype = 'advisory' and pid = pg_backend_pid()),
          (select count(*) from pg_prepared_statements),
          (select count(*) from pg_cursors where is_holdable),
          (select count(*) from pg_class where relpersistence = 't'),
          (select count(*) from pg_listening_channels())
        """
    ).fetchone()
    return session_settings(db) | {"left behind": counts}


def test_a_worker_never_needs_the_same_session_twice(db: Protocol, other: Open) -> None:
    id = db.put(lane="l", key="k")
    token = uuid4()

    other().claim(token=token)
    [held] = other().held(token)
    touched = other().touch(held)
    settled = other().ack(held)
    repeated = other().ack(held)

    assert held.id == id
    assert [answer.outcome for answer in (*touched, *settled, *repeated)] == [
        "leased",
        "done",
        "already",
    ]


def test_claim_and_ack_are_part_of_the_callers_transaction(db: Protocol, other: Open) -> None:
    id = db.put()
    worker = other(autocommit=False)

    worker.ack(worker.take())
    worker.connection.rollback()
    undone = db.state(id)
    worker.ack(worker.take())
    worker.connection.commit()

    assert undone == "queued"
    assert db.state(id) is None
