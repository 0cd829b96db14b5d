"""enqueue_one stores, answers and refuses what enqueue does, for one job with nothing to decide."""

from collections import Counter
from typing import Any
from uuid import UUID, uuid4

import psycopg
import pytest
from psycopg.rows import dict_row
from psycopg.types.json import Jsonb

from holdfast.records import new_id, stamp
from tests.protocol import Open, Protocol

# What differs between two jobs that were stored alike.
OWN = "id", "pos", "run_at", "created_at"

QUEUES: dict[str, dict[str, Any]] = {
    "never set": {},
    "of its own attempts": {"max_attempts": 7},
    "fair": {"fair": True},
    "by kind": {"by_kind": True},
    "limited": {"limit": 1},
    "rated": {"rate_limit": 10, "rate_period": 60},
    "fanned out": {"fanout": 8},
    "tells all": {"activity": "all"},
    "tells nothing": {"activity": "off"},
}
JOBS: dict[str, dict[str, Any]] = {
    "nothing": {},
    "a payload": {"payload": {"to": "ada@example.org", "n": 12345}},
    "null": {"payload": None},
    "a long payload": {"payload": "x" * 299},
    "a longer payload": {"payload": "x" * 5000},
    "a short number of many digits": {"payload": 1e300},
    "umlauts": {"kind": "grüßen", "payload": {"ä": "😀"}},
    "a priority": {"priority": 9},
    "a long kind": {"kind": "k" * 200},
}
REFUSED: dict[str, dict[str, Any]] = {
    "no kind": {"kind": None},
    "an empty kind": {"kind": ""},
    "a kind too long": {"kind": "k" * 201},
    "a kind of two lines": {"kind": "a\nb"},
    "a kind that turns the text": {"kind": "a\u202eb"},
    "an empty queue": {"queue": ""},
    "a queue too long": {"queue": "q" * 121},
    "a queue of ours": {"queue": "holdfast.upkeep"},
    "a queue of two lines": {"queue": "a\nb"},
    "a priority too high": {"priority": 10},
    "a priority below zero": {"priority": -1},
    "a payload too large": {"payload": "x" * 262144},
}


def one(db: Protocol, id: UUID, job: dict[str, Any], *, repeat: bool | None = None) -> Any:
    """Call enqueue_one; what it answers but for null is completed as enqueue's answer."""
    given = {"kind": "k", **job}
    priority = given.pop("priority", None)
    if "payload" in given:
        given["payload"] = Jsonb(given["payload"])
    arguments = {"id": id, **given, "repeat": repeat}
    if priority is not None:
        arguments["priority"] = priority
    values = {name: value for name, value in arguments.items() if value is not None or name in job}
    names = ", ".join(
        f"{name} => %({name})s" + ("::smallint" if name == "priority" else "") for name in values
    )
    row = db.connection.execute(f"select holdfast.enqueue_one({names})", values).fetchone()
    assert row
    return row[0]


def both(db: Protocol, job: dict[str, Any], queue: str = "default") -> tuple[UUID, UUID]:
    """Store a job in both ways; returns the ids."""
    given = {"queue": queue, **job}
    [answer] = db.enqueue({"kind": "k", "id": str(new_id(queue)), **given})
    said = one(db, id := new_id(queue), given)
    if said is None:
        assert (answer.created, answer.duplicate_of, answer.behind) == (True, None, None)
        return answer.id, id
    assert said.keys() == {"id", "created", "duplicate_of", "behind", "holder", "held_since"}
    assert (said["created"], said["behind"]) == (
        answer.created,
        answer.behind and str(answer.behind),
    )
    assert said["holder"] == answer.holder
    return answer.id, UUID(said["id"])


def stored(db: Protocol, id: UUID) -> dict[str, Any]:
    cursor = db.connection.cursor(row_factory=dict_row)
    row = cursor.execute("select * from holdfast.job where id = %s", [id]).fetchone()
    assert row
    assert row["pos"] is not None
    assert row["run_at"] == row["created_at"]
    return {name: value for name, value in row.items() if name not in OWN}


def ways(db: Protocol, id: UUID, job: dict[str, Any]) -> set[str]:
    """Store a job in one way; returns the functions by which."""
    called = (
        "select funcname, calls from pg_stat_xact_user_functions "
        "where funcname in ('store_one', 'store_plain', 'store_items', 'check_items')"
    )
    with db.connection.transaction():
        db.connection.execute("set local track_functions = 'all'")
        before = Counter(dict(db.connection.execute(called)))
        one(db, id, job)
        return set(Counter(dict(db.connection.execute(called))) - before)


@pytest.mark.parametrize("job", JOBS.values(), ids=JOBS.keys())
@pytest.mark.parametrize("settings", QUEUES.values(), ids=QUEUES.keys())
def test_both_ways_store_the_same_row(
    db: Protocol, settings: dict[str, Any], job: dict[str, Any]
) -> None:
    if settings:
        db.queue_set("default", **settings)
    first, second = both(db, job)

    rows = [stored(db, first), stored(db, second)]
    if settings.get("fanout"):  # by its id, which is its own
        assert all(0 <= row.pop("part") < 64 for row in rows)
    assert rows[0] == rows[1]
    assert db.depth() == {"queued": 2}
    events = db.connection.execute(
        "select part, event, state, queue, kind from holdfast.event where job = any(%s)",
        [[first, second]],
    ).fetchall()
    assert len(events) == (2 if settings.get("activity") == "all" else 0)
    assert len({event[1:] for event in events}) <= 1


@pytest.mark.parametrize("job", REFUSED.values(), ids=REFUSED.keys())
@pytest.mark.parametrize("known", [False, True])
def test_both_ways_refuse_the_same(db: Protocol, job: dict[str, Any], known: bool) -> None:
    if known:
        db.queue_set("default", max_attempts=3)
    item = {"kind": "k", "queue": "default", "payload": {}, "priority": 0, **job}
    queue = item["queue"]

    with pytest.raises(psycopg.Error) as by_item:
        db.enqueue({**item, "id": str(new_id(queue))})
    with pytest.raises(psycopg.Error) as by_one:
        one(db, new_id(queue), item)

    assert str(by_item.value.sqlstate).startswith("HF2")
    assert by_one.value.sqlstate == by_item.value.sqlstate
    assert by_one.value.diag.message_primary == by_item.value.diag.message_primary
    assert by_one.value.diag.message_hint == by_item.value.diag.message_hint
    assert db.depth() == {}


def test_a_number_beyond_all_doubles_is_refused(db: Protocol) -> None:
    with pytest.raises(psycopg.Error) as refused:
        db.connection.execute(
            "select holdfast.enqueue_one(holdfast.new_id(), 'k', payload => '1e400')"
        )

    assert refused.value.sqlstate == "HF204"


def test_a_payload_over_the_limit_of_its_queue_is_refused(db: Protocol) -> None:
    db.queue_set("default", payload_limit=60)
    both(db, {"payload": "x" * 58})

    with pytest.raises(psycopg.Error) as refused:
        one(db, new_id(), {"payload": "x" * 60})

    assert refused.value.sqlstate == "HF210"


def test_an_adopted_queue_is_refused(db: Protocol) -> None:
    db.queue_set("letters", max_attempts=3)
    db.connection.execute("update holdfast.queue set adopted = 77 where name = 'letters'")
    codes = []

    for attempt in (
        lambda: db.enqueue({"kind": "k", "queue": "letters"}),
        lambda: one(db, new_id("letters"), {"queue": "letters"}),
    ):
        with pytest.raises(psycopg.Error) as refused:
            attempt()
        codes.append(refused.value.sqlstate)

    assert codes == ["HF226", "HF226"]


@pytest.mark.parametrize("known", [False, True])
def test_a_plain_job_is_stored_by_one_function(db: Protocol, known: bool) -> None:
    if known:
        db.queue_set("default", max_attempts=3)

    assert ways(db, new_id(), {"payload": {"to": "ada"}, "priority": 3}) == {"store_one"}


def test_a_job_with_no_payload_has_an_empty_one(db: Protocol) -> None:
    one(db, id := new_id(), {})
    db.connection.execute("select holdfast.enqueue_one(holdfast.new_id(), 'k', payload => null)")

    assert [lease.payload for lease in db.claim(max_jobs=9)] == [{}, {}]
    assert db.job(id).queue == "default"


def test_an_id_of_another_part_is_stamped_and_answered(db: Protocol) -> None:
    id = stamp(uuid4(), 5)

    said = one(db, id, {"queue": "mail"})

    assert UUID(said["id"]) != id
    assert db.job(UUID(said["id"])).queue == "mail"


def test_an_id_that_is_there_already_is_stored_once(db: Protocol) -> None:
    one(db, id := new_id(), {})

    again = one(db, id, {})

    assert (again["id"], again["created"]) == (str(id), True)
    assert db.depth() == {"queued": 1}


def test_an_id_of_another_job_is_refused(db: Protocol) -> None:
    one(db, id := new_id(), {})

    with pytest.raises(psycopg.Error) as refused:
        one(db, id, {"kind": "other"})

    assert refused.value.sqlstate == "HF206"


@pytest.mark.parametrize("then", ["waits", "was claimed", "has ended"])
def test_a_repeat_stores_nothing_twice(db: Protocol, then: str) -> None:
    one(db, id := new_id(), {})
    if then != "waits":
        [lease] = db.claim()
        if then == "has ended":
            db.ack(lease)

    again = one(db, id, {}, repeat=True)

    assert (again["id"], again["created"]) == (str(id), True)
    assert sum(db.depth().values()) == 1


def test_a_repeat_of_what_never_came_is_stored(db: Protocol) -> None:
    said = one(db, id := new_id(), {}, repeat=True)

    assert (said["id"], said["created"]) == (str(id), True)
    assert db.depth() == {"queued": 1}


def test_a_job_of_a_queue_at_its_limit_says_what_it_waits_for(db: Protocol) -> None:
    db.queue_set("default", limit=1)
    said = one(db, id := new_id(), {})
    assert (said["behind"], said["holder"]) == (None, None)
    db.claim(worker="ada")

    said = one(db, new_id(), {})

    assert (said["behind"], said["holder"]) == (str(id), "ada")
    assert said["held_since"] is not None


def test_a_job_of_a_paused_queue_is_stored(db: Protocol) -> None:
    db.pause("default")

    assert one(db, new_id(), {}) is None
    assert db.depth() == {"queued": 1}


@pytest.mark.parametrize("watched", ["default", ""])
def test_a_watched_queue_tells_of_it(db: Protocol, watched: str) -> None:
    db.connection.execute(
        "insert into holdfast.watched (queue, since, place, until) "
        "values (%s, holdfast.now(), 0, holdfast.now() + '1 minute')",
        [watched],
    )

    one(db, id := new_id(), {"kind": "greet"})

    events = db.connection.execute("select job, event, kind from holdfast.event").fetchall()
    assert events == [(id, "enqueued", "greet")]


def test_a_waiting_worker_is_told(db: Protocol, other: Open) -> None:
    listener = other()
    listener.connection.execute("listen holdfast")
    listener.value("await_work", queues=["default"], worker="ada")

    one(db, new_id(), {})

    [notification] = listener.connection.notifies(timeout=100, stop_after=1)
    assert notification.payload == "default\nada"


def test_it_joins_the_transaction_of_its_caller(db: Protocol) -> None:
    with db.connection.transaction(force_rollback=True):
        one(db, new_id(), {})
        assert db.depth() == {"queued": 1}

    assert db.depth() == {}
    assert db.claim() == []
