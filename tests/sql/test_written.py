"""Whoever inserts jobs without the functions is held to what enqueue accepts."""

from collections.abc import Iterator
from typing import Any
from uuid import UUID, uuid4

import psycopg
import pytest
from psycopg.types.json import Jsonb

from holdfast.records import new_id, part_of, queue_part, stamp
from tests.protocol import Later, Open, Protocol

COLUMNS = "part, id, queue, kind, priority, run_at, created_at, max_attempts, payload"


@pytest.fixture
def producer(db: Protocol, other: Open) -> Protocol:
    """A session with the rights of a producer."""
    session = other()
    session.connection.execute("set role holdfast_producer")
    return session


def write(session: Protocol, **given: Any) -> UUID:
    """Insert one job; what is not said is as it should be."""
    queue = given.get("queue", "default")
    row = {"id": new_id(queue), "queue": queue, "kind": "k", **given}
    row = {"part": part_of(row["id"]), **row}
    session.connection.execute(
        f"insert into holdfast.job ({', '.join(row)})"  # type: ignore[arg-type]
        f" values ({', '.join(['%s'] * len(row))})",
        list(row.values()),
    )
    return UUID(str(row["id"]))


BAD = {
    "another part in its id": ({"part": queue_part("default"), "id": new_id("mail")}, "HF206"),
    "a part of no queue": ({"id": stamp(uuid4(), 1000)}, "HF204"),
    "no attempts": ({"max_attempts": -5}, "HF204"),
    "a priority above all": ({"priority": 10}, "HF203"),
    "a priority below all": ({"priority": -1}, "HF203"),
    "an empty kind": ({"kind": ""}, "HF202"),
    "an empty queue": ({"queue": ""}, "HF202"),
    "a kind that is too long": ({"kind": "k" * 201}, "HF202"),
    "a queue that is too long": ({"queue": "q" * 121}, "HF202"),
    "a line feed in its kind": ({"kind": "a\nb"}, "HF202"),
    "a line feed in its queue": ({"queue": "a\nb"}, "HF202"),
    "a next line in its kind": ({"kind": "a\x85b"}, "HF202"),
    "an escape in its tenant": ({"tenant": "a\x1b[2J"}, "HF202"),
    "a tenant that is too long": ({"tenant": "t" * 201}, "HF202"),
    "an empty subject": ({"subject": ""}, "HF202"),
    "a time without end": ({"run_at": "infinity"}, "HF204"),
    "a time before all times": ({"run_at": "-infinity"}, "HF204"),
    "a creation that no calendar has": ({"created_at": "20000-01-01"}, "HF204"),
    "two megabytes": ({"payload": Jsonb("x" * 2_000_000)}, "HF210"),
    "two megabytes of headers": ({"headers": Jsonb({"a": "x" * 2_000_000})}, "HF210"),
    "headers that are a list": ({"headers": Jsonb([1])}, "HF201"),
}


@pytest.mark.parametrize("bad", BAD)
def test_a_job_that_enqueue_would_refuse_is_refused(
    db: Protocol, producer: Protocol, bad: str
) -> None:
    given, code = BAD[bad]

    with pytest.raises(psycopg.Error) as refusal:
        write(producer, **given)

    assert refusal.value.sqlstate == code
    assert db.table("select from holdfast.job") == []


def copy(session: Protocol, rows: str) -> None:
    cursor = session.connection.cursor()
    with cursor.copy("copy holdfast.job (part, id, queue, kind) from stdin") as stream:
        stream.write(rows)


def test_a_copy_with_one_bad_row_stores_nothing(db: Protocol, producer: Protocol) -> None:
    good, bad = new_id("default"), new_id("mail")
    rows = "".join(f"{part_of(good)}\t{id}\tdefault\tk\n" for id in (good, bad))

    with pytest.raises(psycopg.Error) as refusal:
        copy(producer, rows)

    assert refusal.value.sqlstate == "HF206"
    assert db.table("select from holdfast.job") == []


def test_jobs_in_a_part_of_another_queue_are_refused(db: Protocol, producer: Protocol) -> None:
    with pytest.raises(psycopg.Error) as refusal:
        write(producer, id=new_id("mail"))

    assert refusal.value.sqlstate == "HF206"
    assert db.table("select from holdfast.job") == []


@pytest.fixture
def counted(db: Protocol) -> Iterator[None]:
    """Rows that nobody counted: the counters are put right afterwards."""
    yield
    db.recount()


@pytest.mark.usefixtures("counted")
@pytest.mark.parametrize(
    "given",
    [
        {},
        {"queue": "Ünï ✓"},
        {"priority": 9, "max_attempts": 32767, "tenant": "", "subject": "s" * 500},
        {"payload": Jsonb("x" * 200_000), "headers": Jsonb({"a": "b" * 3000})},
        {"run_at": "2030-01-31", "created_at": "2001-01-01"},
    ],
)
def test_a_whole_job_is_stored(db: Protocol, producer: Protocol, given: dict[str, Any]) -> None:
    id = write(producer, **given)

    assert db.state(id) == "queued"


@pytest.mark.usefixtures("counted")
def test_a_queues_own_limit_counts(db: Protocol, producer: Protocol) -> None:
    db.queue_set("default", payload_limit=500_000)
    write(producer, payload=Jsonb("x" * 400_000))
    db.queue_set("default", payload_limit=5_000)

    with pytest.raises(psycopg.Error) as refusal:
        write(producer, payload=Jsonb("x" * 6_000))

    assert refusal.value.sqlstate == "HF210"


@pytest.mark.usefixtures("counted")
def test_a_fanned_out_queue_takes_jobs_in_each_of_its_parts(
    db: Protocol, producer: Protocol
) -> None:
    db.queue_set("default", fanout=4)
    home = queue_part("default")
    for step in range(4):
        write(producer, id=stamp(new_id(), (home + step) % 64))

    producer.value("copied", queue="default", kinds=["k"], counts=[4])

    assert len(db.claim(max_jobs=9)) == 4
    with pytest.raises(psycopg.Error) as refusal:
        write(producer, id=stamp(new_id(), (home + 4) % 64))
    assert refusal.value.sqlstate == "HF206"


# -- rows that the owner wrote, or that were there before


def misplace(db: Protocol, jobs: int, queue: str = "default") -> None:
    """Store jobs whose ids carry another part than they lie in, as the owner may."""
    db.connection.execute(
        "insert into holdfast.job (part, id, queue, kind)"
        " select p, holdfast.id_in(((p + 1) %% 64)::smallint), %s, 'odd'"
        " from holdfast.queue_part(%s) p, generate_series(1, %s)",
        [queue, queue, jobs],
    )


@pytest.mark.usefixtures("counted")
def test_misplaced_jobs_do_not_keep_others_from_being_reaped(db: Protocol, later: Later) -> None:
    misplace(db, 250)
    for _ in range(250):
        db.take()
    later(seconds=1)
    good = db.put(queue="mail")
    db.take("mail")
    later(seconds=31)

    assert good in {job.id for job in db.reap(max_jobs=1000)}
    assert db.state(good) == "queued"


@pytest.mark.usefixtures("counted")
def test_a_misplaced_job_is_mended_when_its_lease_has_run_out(db: Protocol, later: Later) -> None:
    misplace(db, 1)
    taken = db.take()
    later(seconds=31)

    [reaped] = db.reap()

    again = db.take()
    assert again.id == reaped.id == stamp(taken.id, queue_part("default"))
    [answer] = db.ack(again)
    assert answer.outcome == "done"


def refuse_death(db: Protocol, id: UUID) -> Any:
    """Have the database refuse to bury one job."""
    db.connection.execute(
        f"create function holdfast_test.no() returns trigger language plpgsql as"
        f" $$ begin if new.id = '{id}' then raise 'not this one'; end if; return new; end $$;"
        " create trigger no before insert on holdfast.attempt for each row"
        " execute function holdfast_test.no()"
    )


@pytest.fixture
def stubborn(db: Protocol, later: Later) -> Iterator[UUID]:
    """A job of ten whose expired lease cannot be taken back, in one claim."""
    ids = [job.id for job in db.enqueue(*[{"kind": "k"}] * 10)]
    db.claim(max_jobs=10)
    refuse_death(db, ids[3])
    later(seconds=31)
    yield ids[3]
    db.connection.execute("drop function if exists holdfast_test.no() cascade")


def test_a_job_that_cannot_be_taken_back_stands_in_nobodys_way(
    db: Protocol, stubborn: UUID
) -> None:
    reaped = {job.id for job in db.reap()}

    assert (len(reaped), stubborn in reaped) == (9, False)


def test_it_is_reported_and_explained(db: Protocol, stubborn: UUID) -> None:
    db.reap()

    changes = db.call("detect", codes=["zombie_job"], columns=("change", "subject"))
    [anomaly] = db.table("select detail from holdfast.anomalies where code = 'zombie_job'")

    assert [(row.change, row.subject) for row in changes] == [("raised", str(stubborn))]
    assert "cannot be reclaimed: P0001: not this one" in anomaly.detail
    assert "cannot be reclaimed (P0001: not this one)" in db.explain(stubborn)


def test_it_is_taken_back_once_it_can_be(db: Protocol, stubborn: UUID, later: Later) -> None:
    db.reap()
    db.connection.execute("drop function holdfast_test.no() cascade")
    assert db.reap() == []

    later(seconds=61)

    assert [job.id for job in db.reap()] == [stubborn]
    db.reap()
    assert db.call("detect", codes=["zombie_job"], columns=("change",)) == []


def test_claims_that_are_being_settled_do_not_hide_those_behind_them(
    db: Protocol, other: Open, later: Later
) -> None:
    held = db.enqueue(*[{"kind": "k"}] * 210)
    for _ in held:
        db.take()
    later(seconds=1)
    behind = db.put("k")
    db.take()
    later(seconds=31)
    settling = other(autocommit=False)
    settling.connection.execute(
        "select from holdfast.job where id = any(%s) for update", [[each.id for each in held]]
    )

    assert [job.id for job in db.reap()] == [behind]
    settling.connection.rollback()
