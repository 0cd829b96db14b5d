"""Producers against each other and against the workers."""

from collections.abc import Callable
from typing import Any

import pytest

from tests.protocol import Open, Protocol

Start = Callable[..., Any]
AtOnce = Callable[..., list[Any]]
KEYED = {"kind": "k", "key": "1"}


def test_a_duplicate_waits_for_the_first_and_is_told_of_it(
    db: Protocol, held_open: Protocol, start: Start
) -> None:
    [first] = held_open.enqueue(KEYED)
    second = start(lambda session: session.enqueue(KEYED)[0])
    waited = second.waits()

    held_open.connection.commit()

    answer = second.answer()
    assert waited
    assert (answer.created, answer.duplicate_of) == (False, first.id)
    assert db.depth() == {"queued": 1}


@pytest.mark.proves("S3.33")
def test_a_duplicate_of_a_job_that_is_undone_is_created(
    db: Protocol, held_open: Protocol, start: Start
) -> None:
    held_open.enqueue(KEYED)
    second = start(lambda session: session.enqueue(KEYED)[0])
    waited = second.waits()

    held_open.connection.rollback()

    assert waited
    assert second.answer().created
    assert db.depth() == {"queued": 1}


@pytest.mark.proves("S3.7", "S3.30", "S3.34")
@pytest.mark.parametrize("policy", ["skip", "replace", "after"])
def test_sixteen_producers_of_one_key_make_one_job(
    db: Protocol, at_once: AtOnce, policy: str
) -> None:
    answers = at_once(16, lambda session, nth: session.enqueue({**KEYED, "on_conflict": policy})[0])

    assert [each.created for each in answers].count(True) == 1
    assert len({each.id for each in answers}) == 1
    assert db.depth() == {"queued": 1}


@pytest.mark.parametrize("policy", ["replace", "after"])
def test_sixteen_producers_make_one_follow_up(db: Protocol, at_once: AtOnce, policy: str) -> None:
    db.put(**KEYED)
    running = db.take()

    answers = at_once(16, lambda session, nth: session.enqueue({**KEYED, "on_conflict": policy})[0])

    assert [each.created for each in answers].count(True) == 1
    [follow_up] = {each.id for each in answers}
    assert follow_up != running.id
    assert db.depth() == {"queued": 1, "leased": 1}


@pytest.mark.proves("S3.30", "S3.34")
def test_a_key_under_fire_never_has_two_live_jobs(db: Protocol, at_once: AtOnce) -> None:
    def work(session: Protocol, nth: int) -> list[int]:
        live = []
        for n in range(40):
            if nth < 4:
                session.enqueue({**KEYED, "on_conflict": ["skip", "replace", "after"][n % 3]})
            else:
                session.ack(*session.claim(worker=f"w{nth}", max_jobs=3))
                session.sweep()
            row = session.connection.execute(
                "select count(*) filter (where not follow) from holdfast.job"
            ).fetchone()
            assert row is not None
            live.append(row[0])
        return live

    answers = at_once(6, work)

    assert not [each for each in answers if isinstance(each, Exception)]
    assert max(n for each in answers for n in each) == 1


def test_a_follow_up_written_while_its_job_ended_is_found_by_the_sweep(
    db: Protocol, held_open: Protocol
) -> None:
    db.put(**KEYED)
    job = db.take()
    [follow_up] = held_open.enqueue({**KEYED, "on_conflict": "after"})
    db.ack(job)
    held_open.connection.commit()
    stranded = db.claim()
    sentence = db.explain(follow_up.id)

    db.sweep()

    assert follow_up.created
    assert stranded == []
    assert "job ," not in sentence
    assert [each.id for each in db.claim()] == [follow_up.id]


def test_a_stranded_follow_up_gives_way_to_a_new_job_and_then_runs(
    db: Protocol, held_open: Protocol
) -> None:
    db.put(**KEYED)
    job = db.take()
    [follow_up] = held_open.enqueue({**KEYED, "on_conflict": "after"})
    db.ack(job)
    held_open.connection.commit()
    new = db.put(**KEYED)
    db.sweep()

    first = db.take()
    waiting = db.claim()
    db.ack(first)

    assert (first.id, waiting) == (new, [])
    assert [each.id for each in db.claim()] == [follow_up.id]


def test_work_asked_for_after_a_waiting_job_runs_after_the_asking(
    db: Protocol, held_open: Protocol
) -> None:
    db.put(**KEYED)
    held_open.enqueue({**KEYED, "on_conflict": "after"})
    # What the open transaction has written is not visible to this run.
    early = db.claim()
    db.ack(*early)

    held_open.connection.commit()
    db.sweep()

    assert len(db.claim()) == 1


@pytest.mark.parametrize("policy", ["skip", "replace"])
def test_a_replacement_under_way_is_not_claimed_half_done(
    db: Protocol, held_open: Protocol, start: Start, policy: str
) -> None:
    db.put(**KEYED, payload="old")
    held_open.enqueue({**KEYED, "payload": "new", "on_conflict": policy})

    claim = start(lambda session: session.claim())

    assert not claim.waits()
    claimed = [job.payload for job in claim.answer()]
    held_open.connection.commit()
    assert claimed + [job.payload for job in db.claim()] == [
        "new" if policy == "replace" else "old"
    ]


def test_a_replacement_waits_for_a_claim_under_way_and_follows_it(
    db: Protocol, held_open: Protocol, start: Start
) -> None:
    db.put(**KEYED, payload="old")
    held_open.take()
    replace = start(
        lambda session: session.enqueue({**KEYED, "payload": "new", "on_conflict": "replace"})[0]
    )
    waited = replace.waits()

    held_open.connection.commit()

    assert waited
    assert replace.answer().created
    assert db.depth() == {"queued": 1, "leased": 1}


def test_a_key_freed_by_an_ack_under_way_is_waited_for(
    db: Protocol, held_open: Protocol, start: Start
) -> None:
    db.put(**KEYED)
    held_open.ack(db.take())
    enqueue = start(lambda session: session.enqueue(KEYED)[0])
    waited = enqueue.waits()

    held_open.connection.commit()

    assert waited
    assert enqueue.answer().created
    assert len(db.claim()) == 1


def test_two_imports_of_the_same_items_in_opposite_orders_do_not_deadlock(
    db: Protocol, held_open: Protocol, start: Start
) -> None:
    def items(*keys: str) -> list[dict[str, str]]:
        return [{"kind": "k", "key": key} for key in keys]

    held_open.enqueue(*items("m"))
    one = start(lambda session: session.enqueue(*items("a", "m", "z")))
    one.waits()
    two = start(lambda session: session.enqueue(*items("z", "m", "a")))
    two.waits()

    held_open.connection.rollback()

    created = [each.created for each in one.answer()] + [each.created for each in two.answer()]
    assert created.count(True) == 3
    assert db.depth() == {"queued": 3}


@pytest.mark.proves("S3.28")
def test_imports_of_overlapping_items_all_arrive(db: Protocol, at_once: AtOnce) -> None:
    def work(session: Protocol, nth: int) -> int:
        keys = [str(n) for n in range(60)]
        if nth % 2:
            keys.reverse()
        items = [{"kind": "k", "key": key} for key in keys]
        return sum(
            each.created for n in range(0, 60, 20) for each in session.enqueue(*items[n : n + 20])
        )

    created = at_once(6, work)

    assert not [each for each in created if isinstance(each, Exception)]
    assert sum(created) == 60
    assert db.depth() == {"queued": 60}


def test_a_repeat_waits_for_the_first_sending(
    db: Protocol, held_open: Protocol, start: Start
) -> None:
    item = {"kind": "k", "id": str(db.value("new_id"))}
    [first] = held_open.enqueue(item)
    again = start(lambda session: session.enqueue(item, repeat=True)[0])
    waited = again.waits()

    held_open.connection.commit()

    assert waited
    assert (again.answer().id, again.answer().created) == (first.id, True)
    assert len(db.claim(max_jobs=9)) == 1


@pytest.mark.parametrize("end", ["commit", "rollback"])
def test_a_repeat_that_meets_the_ack_of_its_job_does_not_run_it_again(
    db: Protocol, held_open: Protocol, start: Start, end: str
) -> None:
    item = {"kind": "k", "id": str(db.value("new_id"))}
    db.enqueue(item)
    job = db.take()
    held_open.ack(job)
    again = start(lambda session: session.enqueue(item, repeat=True)[0])
    again.waits()

    getattr(held_open.connection, end)()

    assert (again.answer().id, again.answer().created) == (job.id, True)
    assert db.claim() == []
    assert db.depth() == ({"done": 1} if end == "commit" else {"leased": 1})


def test_repeats_beside_the_worker_run_nothing_twice(db: Protocol, at_once: AtOnce) -> None:
    items = [{"kind": "k", "id": str(db.value("new_id"))} for _ in range(60)]
    db.enqueue(*items)

    def work(session: Protocol, nth: int) -> list[Any]:
        ran = []
        if nth < 2:
            while jobs := session.claim(worker=f"w{nth}", max_jobs=2):
                ran += [job.id for job in jobs]
                session.ack(*jobs)
        else:
            for item in items:
                session.enqueue(item, repeat=True)
        return ran

    answers = at_once(4, work)

    assert not [each for each in answers if isinstance(each, Exception)]
    ran = [id for ids in answers for id in ids] + [job.id for job in db.claim(max_jobs=99)]
    assert len(ran) == len(set(ran)) == 60


def test_a_lane_job_enqueued_while_the_lane_empties_is_found(
    db: Protocol, other: Open, at_once: AtOnce
) -> None:
    def work(session: Protocol, nth: int) -> int:
        done = 0
        for _ in range(30):
            if nth < 2:
                session.enqueue(*[{"kind": "k", "lane": "l"}] * 2)
            else:
                jobs = session.claim(worker=f"w{nth}", max_jobs=2)
                done += len(jobs)
                session.ack(*jobs)
        return done

    done = at_once(4, work)
    assert not [each for each in done if isinstance(each, Exception)]
    db.sweep()
    while jobs := db.claim(max_jobs=9):
        db.ack(*jobs)

    assert db.depth() == {"done": 120}
