"""Verbs that meet at several jobs or keys in opposite orders: one waits, none is given up."""

from collections.abc import Callable, Sequence
from datetime import timedelta
from typing import Any
from uuid import UUID

import pytest
from psycopg.types.json import Jsonb

from tests.protocol import Open, Protocol

Start = Callable[..., Any]


def keyed(*keys: str, **more: Any) -> list[dict[str, Any]]:
    return [{"kind": "k", "key": key, **more} for key in keys]


def hold(session: Protocol, id: Any) -> None:
    """Lock one job, as a verb does that has come to it."""
    session.connection.execute("select from holdfast.job where id = %s for update", [id])


def patient(other: Open) -> Protocol:
    """A session that looks for deadlocks after a second, as sessions do, and not at once."""
    session = other()
    session.connection.execute("set deadlock_timeout = '1s'")
    return session


def meet(start: Start, gate: Protocol, *works: Callable[[Protocol], Any]) -> list[Any]:
    """Have calls wait behind what `gate` holds, one after the other, then let them go on."""
    running = []
    for work in works:
        running.append(start(work))
        assert running[-1].waits()
    gate.connection.rollback()
    return [call.answer() for call in running]


def test_two_replacing_imports_in_opposite_order_wait_for_each_other(
    db: Protocol, held_open: Protocol, other: Open, start: Start
) -> None:
    a, b, c = (each.id for each in db.enqueue(*keyed("a", "b", "c")))
    second_gate = other(autocommit=False)
    hold(held_open, a)
    hold(second_gate, b)
    # Both have looked which keys are taken before either changes a job; then one has `a`, the
    # other would have `c`, and both want `b`.
    one = keyed("a", "b", "c", on_conflict="replace", payload={"by": 1})
    two = keyed("c", "b", "a", on_conflict="replace", payload={"by": 2})
    first = start(lambda session: session.enqueue(*one))
    assert first.waits()
    second = start(lambda session: session.enqueue(*two))
    assert second.waits()
    held_open.connection.rollback()
    assert first.waits()
    second_gate.connection.rollback()

    assert [each.id for each in first.answer()] == [a, b, c]
    assert [each.id for each in second.answer()] == [c, b, a]
    assert len({job.payload["by"] for job in db.claim(max_jobs=9)}) == 1


def test_two_replacing_imports_of_follow_ups_in_opposite_order_wait_for_each_other(
    db: Protocol, held_open: Protocol, start: Start
) -> None:
    db.enqueue(*keyed("a", "b", "c"))
    running = db.claim(max_jobs=3)
    follow = [each.id for each in db.enqueue(*keyed("a", "b", "c", on_conflict="replace"))]
    hold(held_open, follow[1])

    first, second = meet(
        start,
        held_open,
        lambda session: session.enqueue(*keyed("a", "b", "c", on_conflict="replace")),
        lambda session: session.enqueue(*keyed("c", "b", "a", on_conflict="replace")),
    )

    assert [each.id for each in first] == follow
    assert [each.id for each in second] == follow[::-1]
    assert len(running) == 3


def test_a_replacing_import_and_a_cancel_of_the_same_jobs_wait_for_each_other(
    db: Protocol, held_open: Protocol, start: Start
) -> None:
    # the order of keys is the opposite of that of ids: locked by keys, they would deadlock
    ids = [each.id for each in db.enqueue(*keyed("c", "b", "a"))]
    hold(held_open, ids[1])

    _, cancelled = meet(
        start,
        held_open,
        lambda session: session.enqueue(*keyed("a", "b", "c", on_conflict="replace")),
        lambda session: session.cancel(*ids),
    )

    assert [each.changed for each in cancelled] == [True] * 3


@pytest.mark.parametrize("policy", ["skip", "replace", "after"])
def test_a_retry_and_an_enqueue_of_the_same_keys_wait_for_each_other(
    db: Protocol, held_open: Protocol, start: Start, policy: str
) -> None:
    # they end in the order opposite to that of their keys
    dead = [each.id for each in db.enqueue(*keyed("c", "b", "a", max_attempts=1))]
    for job in db.claim(max_jobs=3):
        db.nack(job)
        db.later(seconds=1)
    held_open.enqueue(*keyed("b"))

    retried, enqueued = meet(
        start,
        held_open,
        lambda session: session.retry(*dead),
        lambda session: session.enqueue(*keyed("a", "b", "c", on_conflict=policy)),
    )

    # each key is somebody's: the retried job's or a new one's, and nobody was given up
    live = {job.key for job in db.claim(max_jobs=9)}
    assert live == {"a", "b", "c"}
    assert len(retried) == len(enqueued) == 3


def put_keyed(db: Protocol, queue: str, *keys: str) -> list[UUID]:
    return [each.id for each in db.enqueue(*keyed(*keys, queue=queue))]


def test_a_move_and_an_enqueue_of_the_same_keys_do_not_deadlock(
    db: Protocol, held_open: Protocol, start: Start
) -> None:
    # the order of keys is the opposite of that of ids
    ids = put_keyed(db, "here", "c", "b", "a")
    held_open.enqueue(*keyed("b", queue="there"))

    # a move soon leaves a job whose key somebody is about to take: it need not be seen to wait
    moving = start(lambda session: session.move(*ids, queue="there"))
    moving.waits()
    enqueuing = start(lambda session: session.enqueue(*keyed("a", "b", "c", queue="there")))
    enqueuing.waits()
    held_open.connection.rollback()
    moved, enqueued = moving.answer(), enqueuing.answer()

    there = [job.key for job in db.claim("there", max_jobs=9)]
    assert sorted(there) == ["a", "b", "c"]
    assert sum(each.changed for each in moved) + sum(each.created for each in enqueued) == 3


def test_two_moves_of_the_same_keys_do_not_deadlock(
    db: Protocol, held_open: Protocol, start: Start
) -> None:
    one, two = put_keyed(db, "one", "c", "b", "a"), put_keyed(db, "two", "a", "b", "c")
    held_open.enqueue(*keyed("b", queue="there"))

    moves = []
    for ids in (one, two):
        moves.append(start(lambda session, ids=ids: session.move(*ids, queue="there")))
        moves[-1].waits()
    held_open.connection.rollback()
    changed = [each.changed for move in moves for each in move.answer()]

    there = [job.key for job in db.claim("there", max_jobs=9)]
    assert len(there) == len(set(there)) == sum(changed) >= 2
    assert len(db.list()) == 6


def test_moved_jobs_keep_the_order_of_their_ids(db: Protocol) -> None:
    ids = put_keyed(db, "here", "c", "a", "b")

    db.move(*ids, queue="there")

    assert [job.key for job in db.claim("there", max_jobs=9)] == ["c", "a", "b"]


def in_parts(db: Protocol, queue: str, steps: Sequence[int]) -> list[str]:
    """Keys, each above the one before, that a queue fanned out to 8 parts keeps so far into it."""
    home = "select (holdfast.home(%s, 8, null, %s, null) - holdfast.queue_part(%s) + 64) %% 64"
    keys: list[str] = []
    for n in range(10_000):
        if len(keys) == len(steps):
            return keys
        row = db.connection.execute(home, [queue, f"{n:05}", queue]).fetchone()
        if row == (steps[len(keys)],):
            keys.append(f"{n:05}")
    raise AssertionError("too few keys")


def fanned_at(db: Protocol, *parts: int) -> list[str]:
    """Names of queues, fanned out to 8 parts, whose first parts are these."""
    names = []
    for part in parts:
        name = next(
            f"q{n}"
            for n in range(10_000)
            if db.connection.execute("select holdfast.queue_part(%s)", [f"q{n}"]).fetchone()
            == (part,)
        )
        db.queue_set(name, fanout=8)
        names.append(name)
    return names


@pytest.mark.parametrize("fanned_since", [False, True])
def test_a_retry_and_an_enqueue_of_keys_in_several_parts_wait_for_each_other(
    db: Protocol, held_open: Protocol, start: Start, fanned_since: bool
) -> None:
    [queue] = fanned_at(db, 20)
    keys = in_parts(db, queue, [5, 3, 1])
    if fanned_since:
        db.connection.execute("update holdfast.queue set fanout = 1")
    ids = put_keyed(db, queue, *keys)
    db.cancel(*ids)
    db.queue_set(queue, fanout=8)
    held_open.enqueue(*keyed(keys[1], queue=queue))

    retried, enqueued = meet(
        start,
        held_open,
        lambda session: session.retry(*ids),
        lambda session: session.enqueue(*keyed(*keys, queue=queue)),
    )

    assert [each.changed for each in retried] == [True] * 3
    assert [each.created for each in enqueued] == [False] * 3


def test_a_retry_and_an_enqueue_of_queues_that_share_parts_wait_for_each_other(
    db: Protocol, held_open: Protocol, start: Start
) -> None:
    first, second = fanned_at(db, 20, 21)
    high, higher = in_parts(db, first, [3, 4])
    [low] = in_parts(db, second, [0])
    ids = [*put_keyed(db, first, high), *put_keyed(db, second, low)]
    db.cancel(*ids)
    held_open.enqueue(*keyed(higher, queue=first))

    enqueuing = start(
        lambda session: session.enqueue(
            *keyed(high, higher, queue=first), *keyed(low, queue=second)
        )
    )
    assert enqueuing.waits()
    retrying = start(lambda session: session.retry(*ids))
    assert retrying.waits()
    held_open.connection.rollback()

    assert [each.created for each in enqueuing.answer()] == [True] * 3
    assert [each.changed for each in retrying.answer()] == [False] * 2


@pytest.mark.parametrize("verb", ["cancel", "delete", "move"])
def test_operators_at_a_job_and_at_what_follows_it_wait_for_each_other(
    db: Protocol, held_open: Protocol, start: Start, verb: str
) -> None:
    first = db.put("k", key="a")
    running = db.take()
    [follows] = db.enqueue(*keyed("a", on_conflict="after"))
    db.release(running)
    more = [db.put(), db.put()]
    hold(held_open, more[0])
    to = {"queue": "there"} if verb == "move" else {}

    one, two = meet(
        start,
        held_open,
        lambda session: getattr(session, verb)(first, *more, **to),
        lambda session: getattr(session, verb)(follows.id, *more, **to),
    )

    assert [each.changed for each in one] == [True] * 3
    assert [each.changed for each in two][1:] == [False] * 2


def test_retried_jobs_keep_the_order_in_which_they_ended(db: Protocol) -> None:
    dead = [each.id for each in db.enqueue(*keyed("c", "a", "b", max_attempts=1))]
    for job in db.claim(max_jobs=3):
        db.nack(job)
        db.later(seconds=1)

    db.retry(*dead)

    assert [job.id for job in db.claim(max_jobs=3)] == dead


@pytest.mark.parametrize("setting", ["limit", "fair", "by_kind"])
@pytest.mark.parametrize("verb", ["nack", "cancel"])
def test_a_setting_that_changes_the_rows_waits_for_a_batch(
    db: Protocol, held_open: Protocol, start: Start, setting: str, verb: str
) -> None:
    db.enqueue(*[{"kind": "k"}] * 3)
    jobs = db.claim(max_jobs=3)
    # the order of the rows in the table is now the opposite of that of their ids
    for job in sorted(jobs, key=lambda each: each.id, reverse=True):
        db.connection.execute("select holdfast.touch(array[%s], array[%s])", [job.id, job.token])
    db.connection.execute("vacuum full holdfast.job")
    middle = sorted(job.id for job in jobs)[1]
    hold(held_open, middle)
    value: Any = 9 if setting == "limit" else True

    def settle(session: Protocol) -> Any:
        if verb == "cancel":
            return session.cancel(*[job.id for job in jobs])
        return session.nack(*jobs, delay=timedelta(0))

    _, settled = meet(
        start,
        held_open,
        lambda session: session.queue_set("default", **{setting: value}),
        settle,
    )

    assert len(settled) == 3


def test_two_recounts_at_once_correct_once(db: Protocol, held_open: Protocol, start: Start) -> None:
    db.enqueue(*[{"kind": "k"}] * 3)
    db.connection.execute("delete from holdfast.tally")
    [found] = held_open.recount()
    second = start(lambda session: session.recount())
    assert second.waits()

    held_open.connection.commit()

    assert found.queued == 3
    assert second.answer() == []
    assert db.depth() == {"queued": 3}


@pytest.mark.parametrize("policy", ["replace", "after"])
def test_an_ack_and_an_enqueue_that_is_at_its_follow_up_do_not_wait_for_each_other(
    db: Protocol, held_open: Protocol, start: Start, policy: str
) -> None:
    # the follow-up has the lower id: by ids it would be locked first, and the ack comes to it last
    low, high = sorted(str(db.value("new_id")) for _ in range(2))
    db.enqueue(*keyed("a", id=high))
    job = db.take()
    db.enqueue(*keyed("a", id=low, on_conflict="after"))
    db.release(job)
    hold(held_open, low)
    # sees two jobs that wait, and waits for the first
    enqueued = start(lambda session: session.enqueue(*keyed("a", on_conflict=policy)))
    assert enqueued.waits()
    again = db.take()

    acked = start(lambda session: session.ack(again))
    acked.waits()
    held_open.connection.rollback()

    assert [each.outcome for each in acked.answer()] == ["done"]
    enqueued.answer()
    ran = []
    for _ in range(3):
        db.sweep()
        jobs = db.claim()
        db.ack(*jobs)
        ran += [str(job.id) for job in jobs]
    assert low in ran


def test_a_sweep_waits_for_nobody_who_takes_the_key_of_a_follow_up(
    db: Protocol, other: Open, held_open: Protocol, start: Start
) -> None:
    stranding = other(autocommit=False)
    db.enqueue(*keyed("a"))
    job = db.take()
    [follow_up] = stranding.enqueue(*keyed("a", on_conflict="after"))
    db.ack(job)
    stranding.connection.commit()
    held_open.enqueue(*keyed("a"))

    swept = start(lambda session: session.sweep())
    answer = swept.answer()
    held_open.connection.rollback()

    assert answer == 0
    assert db.sweep() == 1
    assert db.take().id == follow_up.id


def test_two_imports_of_which_one_finds_an_earlier_key_free_wait_for_each_other(
    db: Protocol, held_open: Protocol, start: Start
) -> None:
    db.enqueue(*keyed("a"))
    job = db.take()
    held_open.enqueue(*keyed("m"))
    # it passed `a`, which is taken, has `c`, and waits for `m`
    one = start(lambda session: session.enqueue(*keyed("a", "c", "m")))
    assert one.waits()
    db.ack(job)
    # it has `a`, which is free by now, and waits for `c`
    two = start(lambda session: session.enqueue(*keyed("a", "c")))
    assert two.waits()

    held_open.connection.rollback()

    created = [each.created for each in (*one.answer(), *two.answer())]
    assert created.count(True) in (3, 2)
    assert {job.key for job in db.claim(max_jobs=9)} >= {"c", "m"}


def test_a_move_and_an_import_into_both_queues_do_not_deadlock(
    db: Protocol, other: Open, held_open: Protocol, start: Start
) -> None:
    to, source = sorted(("one", "two"), key=lambda name: (db.value("queue_part", queue=name), name))
    ids = [each.id for each in db.enqueue(*keyed("y", "z", queue=source))]
    held_open.enqueue(*keyed("y", queue=to))
    # it has taken `y` out of its queue, and waits for it in the other
    moved = start(lambda session: session.move(*ids, queue=to), patient(other))
    moved.waits()
    # it has `z` in the other queue, and waits for `y` in the first
    items = [*keyed("z", queue=to), *keyed("y", queue=source)]
    enqueued = start(lambda session: session.enqueue(*items), patient(other))
    enqueued.waits()

    held_open.connection.rollback()

    assert len(moved.answer()) == len(enqueued.answer()) == 2
    assert {job.key for job in db.claim(to, max_jobs=9)} <= {"y", "z"}


def test_a_retry_and_an_import_of_a_fanned_out_queue_wait_for_each_other(
    db: Protocol, held_open: Protocol, start: Start
) -> None:
    db.queue_set("wide", fanout=16)
    rows = db.table(
        "select key, holdfast.home('wide', 16, null, key, null) as part"
        " from unnest('{a,b,c,e,f,g,h}'::text[]) key"
    )
    parts = {row.key: row.part for row in rows}
    # of two keys, the later one lives in the earlier part
    first, last = next((a, z) for a in "abc" for z in "efgh" if parts[a] > parts[z])
    dead = [each.id for each in db.enqueue(*keyed(first, last, queue="wide", max_attempts=1))]
    for job in [*db.claim("wide", max_jobs=9), *db.claim("wide", max_jobs=9)]:
        db.nack(job)
    held_open.enqueue(*keyed("d", queue="wide"))

    enqueued, retried = meet(
        start,
        held_open,
        lambda session: session.enqueue(*keyed(first, "d", last, queue="wide")),
        lambda session: session.retry(*dead),
    )

    assert len(enqueued) == 3
    assert len(retried) == 2


def test_a_retry_and_an_archive_of_jobs_that_ended_differently_wait_for_each_other(
    db: Protocol, held_open: Protocol, start: Start
) -> None:
    ids = sorted(each.id for each in db.enqueue(*[{"kind": "k", "max_attempts": 1}] * 3))
    db.cancel(*ids[1:])
    db.nack(db.take())
    held_open.connection.execute("select from holdfast.ended where id = %s for update", [ids[1]])

    # by ids the dead one comes first; by tables it comes last
    retried = start(lambda session: session.retry(*ids))
    assert retried.waits()
    archived = start(lambda session: session.archive(ids[0], ids[2]))
    archived.waits()
    held_open.connection.rollback()

    assert [each.changed for each in retried.answer()] == [True] * 3
    assert len(archived.answer()) == 2


def test_a_limit_and_a_fan_out_of_one_queue_wait_for_each_other(
    db: Protocol, held_open: Protocol, start: Start
) -> None:
    db.queue_set("wide", max_attempts=3)
    held_open.connection.execute("select from holdfast.queue where name = 'wide' for update")

    limited = start(lambda session: session.queue_set("wide", limit=3))
    assert limited.waits()
    fanned = start(lambda session: session.queue_set("wide", fanout=4))
    assert fanned.waits()
    held_open.connection.rollback()

    limited.answer()
    fanned.answer()
    [row] = db.table("select lease_limit, fanout from holdfast.queue where name = 'wide'")
    assert (row.lease_limit, row.fanout) == (3, 4)


STEPS = [
    "forgotten", "operations", "notes", "unused", "unreadable", "links", "workflows", "lines",
    "reaped", "rescued", "promoted", "unstruck", "expired", "strays",
    "follows", "settings", "starts", "unblocked", "lanes", "folded", "dead", "sampled", "rolled",
    "archived", "activity",
]  # fmt: skip


def test_a_release_waits_for_no_step_of_upkeep_but_the_floors(
    db: Protocol, other: Open, held_open: Protocol, start: Start
) -> None:
    names = [row.name for row in db.table("select name from holdfast.upkeep_steps() order by nth")]
    db.put()
    job = db.take()
    held_open.value("upkeep", steps=STEPS)

    release = start(lambda session: session.release(job))

    assert names == [*STEPS, "floors", "raised", "pages"]
    assert not release.waits()
    assert release.answer()[0].outcome == "queued"


@pytest.mark.parametrize("policy", ["replace", "after"])
def test_an_enqueue_that_waits_for_the_job_of_its_key_is_not_at_the_follow_up(
    db: Protocol, other: Open, held_open: Protocol, start: Start, policy: str
) -> None:
    guard = other(autocommit=False)
    low, high = sorted(str(db.value("new_id")) for _ in range(2))
    db.enqueue(*keyed("a"))
    job = db.take()
    db.enqueue(*keyed("a", id=high, on_conflict="after"))
    hold(guard, high)
    enqueued = start(lambda session: session.enqueue(*keyed("a", on_conflict=policy)))
    assert enqueued.waits()  # for the follow-up, the only one of the key that waits
    db.ack(job)
    db.enqueue(*keyed("a", id=low))  # the follow-up is stranded: a new job has its key
    hold(held_open, low)

    guard.connection.rollback()

    assert enqueued.waits(on=held_open)
    db.connection.execute("select from holdfast.job where id = %s for update nowait", [high])
    held_open.connection.rollback()
    [answer] = enqueued.answer()
    assert (str(answer.id), answer.created) == (low, False)


@pytest.mark.parametrize("policy", ["skip", "replace"])
def test_an_enqueue_locks_what_it_waits_for_and_what_has_its_keys_in_one_order(
    db: Protocol, held_open: Protocol, start: Start, policy: str
) -> None:
    low, high = sorted(db.value("new_id") for _ in range(2))
    awaited, rival = (low, high) if policy == "skip" else (high, low)
    db.enqueue({"kind": "p", "id": str(awaited)}, *keyed("a", id=str(rival)))
    hold(held_open, high)
    enqueued = start(
        lambda session: session.enqueue(
            *keyed("a", on_conflict=policy), {"kind": "f", "after": [1, str(awaited)]}
        )
    )
    assert enqueued.waits()  # with skip, it has found somebody at the job that its item is
    edited = start(lambda session: session.edit(low, high, changes={"priority": 1}))
    assert edited.waits()

    held_open.connection.commit()

    assert [one.created for one in enqueued.answer()] == [False, True]
    assert [one.changed for one in edited.answer()] == [True, True]


@pytest.mark.parametrize("way", ["replaced", "waited for"])
def test_an_enqueue_that_waits_for_a_key_does_not_hold_a_job_that_waits(
    db: Protocol, held_open: Protocol, start: Start, way: str
) -> None:
    job = db.put("k", key="z")
    follower = db.put("k", key="a", after=[str(job)])
    held = db.take()
    held_open.put("k", key="b")
    items = keyed("b", "z")
    if way == "replaced":
        items += keyed("a", on_conflict="replace", payload={"n": 1})
    else:
        items.append({"kind": "f", "after": [str(follower)]})
    enqueued = start(lambda session: session.enqueue(*items))
    assert enqueued.waits(on=held_open)

    acked = start(lambda session: session.ack(held)[0].outcome)
    waited = acked.waits()
    held_open.connection.commit()

    assert (waited, acked.answer()) == (False, "done")
    created = [one.created for one in enqueued.answer()]
    assert created == [False, True, way == "waited for"]
    assert db.job(follower).payload == ({"n": 1} if way == "replaced" else {})


@pytest.mark.parametrize("way", ["replaced", "waited for"])
def test_an_enqueue_waits_for_who_is_at_a_job_that_waits(
    db: Protocol, held_open: Protocol, start: Start, way: str
) -> None:
    follower = db.put("k", key="a", after=[str(db.put())])
    hold(held_open, follower)
    items = (
        keyed("a", "b", on_conflict="replace")
        if way == "replaced"
        else [*keyed("b"), {"kind": "f", "after": [str(follower)]}]
    )
    enqueued = start(lambda session: session.enqueue(*items))
    assert enqueued.waits(on=held_open)

    held_open.cancel(follower)
    held_open.connection.commit()

    assert [one.created for one in enqueued.answer()] == [True, True]


def test_upkeep_turns_no_page_while_somebody_waits_for_a_job_that_it_holds(
    db: Protocol, held_open: Protocol, start: Start
) -> None:
    [[page]] = db.connection.execute(
        "select to_char((now() at time zone 'UTC')::date + 3, '\"history_\"YYYYMMDD')"
    )
    db.connection.execute(f"drop table if exists holdfast.{page}")
    job = db.put()
    hold(held_open, job)  # as reap does

    def cancel(session: Protocol) -> bool:
        # Upkeep gives up after a moment: not the one at which this looks for deadlocks.
        session.connection.execute("set deadlock_timeout = '10min'")
        return session.cancel(job)[0].changed

    cancelled = start(cancel)
    assert cancelled.waits()  # it has looked at the history

    held_open.value("turn_pages")
    held_open.connection.commit()

    assert cancelled.answer()
    db.value("turn_pages")
    assert db.connection.execute(f"select from holdfast.{page}").rowcount == 0


def step(session: Protocol) -> None:
    session.connection.execute("select from holdfast.operation_step()")


def begun(session: Protocol, *items: dict[str, Any], name: str, key: str | None = None) -> UUID:
    query = "select workflow from holdfast.workflow_start(name => %s, key => %s, items => %s)"
    row = session.connection.execute(query, [name, key, Jsonb(list(items))]).fetchone()
    assert row is not None
    return UUID(str(row[0]))


@pytest.mark.parametrize("first", ["retry", "ack"])
@pytest.mark.parametrize("way", ["retried", "undone", "in a workflow"])
def test_a_retry_that_brings_a_key_back_with_a_job_and_an_ack_of_who_has_it_take_turns(
    db: Protocol, held_open: Protocol, start: Start, way: str, first: str
) -> None:
    flow = begun(db, {"kind": "late", "run_at": "2100-01-01"}, name="w")
    more = {"workflow": str(flow)} if way == "in a workflow" else {}
    cause = db.put("p", max_attempts=1, **more)
    keyed_one = db.put("k", key="a", after=[str(cause)], if_failed="cancel", **more)
    if way == "undone":
        [seen] = db.call("operation_preview", columns=("token",), verb="cancel", filter="kind:p")
        [operation] = db.call("operation_start", columns=("id",), token=seen.token)
        step(db)
        db.later(seconds=60)
        step(db)
    else:
        db.nack(db.take(), final=True)
    # it has the key, and is waited for by a job that was cancelled because of the same one
    rival = db.put("k", key="a", **more)
    both = db.put("f", after=[str(cause), str(rival)], if_failed="cancel", **more)
    assert [db.state(id) for id in (keyed_one, both)] == ["cancelled"] * 2
    if way == "undone":
        db.call("operation_undo", columns=("id",), id=operation.id)
    held = db.take()
    held_open.connection.execute(
        "select from holdfast.link where parent = %s and follower = %s for update", [rival, both]
    )
    calls: dict[str, Callable[[Protocol], Any]] = {
        "retry": (lambda session: step(session) if way == "undone" else session.retry(cause)),
        "ack": lambda session: session.ack(held)[0].outcome,
    }

    running = {first: start(calls[first])}
    assert running[first].waits()
    second = "ack" if first == "retry" else "retry"
    running[second] = start(calls[second])
    assert running[second].waits()
    held_open.connection.rollback()

    running["retry"].answer()
    assert running["ack"].answer() == "done"
    # the key was in use when it was asked for, or the ack was waited for
    back = "cancelled" if first == "retry" else "queued"
    assert [db.state(id) for id in (cause, keyed_one, both)] == ["queued", back, "queued"]
    db.ack(db.take())
    assert {job.id for job in db.claim(max_jobs=9)} == {both, keyed_one} - (
        {keyed_one} if first == "retry" else set()
    )


@pytest.mark.parametrize("way", ["added to", "started"])
def test_a_retry_of_a_job_with_a_key_and_who_opens_its_workflow_take_turns(
    db: Protocol, held_open: Protocol, start: Start, way: str
) -> None:
    flow = begun(db, *keyed("b", max_attempts=1), name="w", key="7")
    dead = db.take()
    db.nack(dead, final=True)
    db.value("tend_workflows")  # it has ended
    held_open.enqueue(*keyed("a"))

    def open_it(session: Protocol) -> Any:
        if way == "started":
            return begun(session, *keyed("a", "b"), name="w", key="7") != flow
        return [one.created for one in session.enqueue(*keyed("a", "b", workflow=str(flow)))]

    opening, retried = meet(start, held_open, open_it, lambda session: session.retry(dead.id))

    assert opening == (True if way == "started" else [True, True])
    assert [one.changed for one in retried] == [False]
    assert retried[0].detail == "a live job has the same key 'b'"


def test_a_retry_that_brings_nothing_back_leaves_its_workflow_ended(db: Protocol) -> None:
    flow = begun(db, *keyed("b", max_attempts=1), name="w")
    dead = db.take()
    db.nack(dead, final=True)
    db.value("tend_workflows")
    query = f"select * from holdfast.workflow where id = '{flow}'"
    [was] = db.table(query)
    db.put("k", key="b")

    [retried] = db.retry(dead.id)

    assert not retried.changed
    assert was.ended_at is not None
    assert db.table(query) == [was]


def test_two_retries_of_one_workflow_and_one_key_take_turns(
    db: Protocol, held_open: Protocol, start: Start
) -> None:
    flow = begun(
        db,
        {"kind": "p", "max_attempts": 1},
        *keyed("a", after=[1], if_failed="cancel"),
        name="w",
    )
    cause = db.take()
    db.nack(cause, final=True)
    [again] = db.enqueue(*keyed("a", max_attempts=1, workflow=str(flow)))
    db.nack(db.take(), final=True)
    db.value("tend_workflows")
    held_open.connection.execute("select from holdfast.member where id = %s for update", [cause.id])

    first, second = meet(
        start,
        held_open,
        lambda session: session.retry(cause.id),
        lambda session: session.retry(again.id),
    )

    assert [first[0].changed, second[0].changed] == [True, False]
    assert len(db.claim(max_jobs=9)) == 1


def test_what_was_cancelled_because_of_a_job_whose_key_is_in_use_stays_so(db: Protocol) -> None:
    cause = db.put("p", max_attempts=1)
    middle = db.put("k", key="a", after=[str(cause)], if_failed="cancel")
    last = db.put("l", key="z", after=[str(middle)], if_failed="cancel")
    beside = db.put("b", after=[str(cause)], if_failed="cancel")
    both = db.put("c", after=[str(last), str(beside)], if_failed="cancel")
    db.nack(db.take(), final=True)
    db.put("k", key="a")

    db.retry(cause)

    states = [db.state(id) for id in (cause, middle, last, beside, both)]
    assert states == ["queued", "cancelled", "cancelled", "queued", "queued"]


@pytest.mark.parametrize("verb", ["release", "nack"])
def test_a_settle_that_waits_for_a_job_holds_the_key_of_no_other(
    db: Protocol, held_open: Protocol, start: Start, verb: str
) -> None:
    """An enqueue that is at one of its jobs comes to wait for the keys of the others next."""
    db.enqueue({"kind": "k", "key": "a"}, {"kind": "k", "key": "b"})
    first, last = sorted(db.claim(max_jobs=2), key=lambda job: job.id)
    held_open.connection.execute("select from holdfast.job where id = %s for update", [last.id])
    settle = start(lambda session: getattr(session, verb)(first, last))
    assert settle.waits(held_open)

    [again] = held_open.enqueue({"kind": "k", "key": first.key})
    held_open.connection.commit()

    assert again.duplicate_of == first.id
    assert [each.outcome for each in settle.answer()] == ["queued", "queued"]
