"""claim against everything that wants the same jobs."""

from collections import Counter
from collections.abc import Callable
from datetime import timedelta
from typing import Any

import pytest

from tests.protocol import Protocol

Start = Callable[..., Any]
AtOnce = Callable[..., list[Any]]


@pytest.mark.proves("S0.4", "S0.5", "S3.34")
def test_a_claim_passes_over_what_another_is_claiming(
    db: Protocol, held_open: Protocol, start: Start
) -> None:
    first, second = db.put(), db.put()
    taken = held_open.take()

    claim = start(lambda session: session.claim(max_jobs=9))

    assert not claim.waits()
    assert taken.id == first
    assert [job.id for job in claim.answer()] == [second]


def test_what_a_claim_gives_up_is_there_for_the_next(db: Protocol, held_open: Protocol) -> None:
    id = db.put()
    held_open.take()
    during = db.claim()

    held_open.connection.rollback()

    assert during == []
    assert [(job.id, job.attempt) for job in db.claim()] == [(id, 1)]


@pytest.mark.proves("S0.5", "S3.34", "S3.38")
def test_eight_workers_share_the_jobs_without_one_twice(db: Protocol, at_once: AtOnce) -> None:
    db.enqueue(*[{"kind": "k", "priority": n % 10} for n in range(400)])

    def work(session: Protocol, nth: int) -> list[Any]:
        mine = []
        while jobs := session.claim(worker=f"w{nth}", max_jobs=7):
            mine += [job.id for job in jobs]
            session.ack(*jobs)
        return mine

    done = Counter(id for ids in at_once(8, work) for id in ids)

    assert len(done) == 400
    assert set(done.values()) == {1}
    assert db.depth() == {"done": 400}


def test_eight_workers_reclaim_an_abandoned_claim_once(db: Protocol, at_once: AtOnce) -> None:
    db.enqueue(*[{"kind": "k"}] * 40)
    db.claim(max_jobs=40)
    db.later(seconds=31)

    claims = at_once(8, lambda session, nth: session.claim(worker=f"w{nth}", max_jobs=40))

    assert not [claim for claim in claims if isinstance(claim, Exception)]
    ids = [job.id for claim in claims for job in claim]
    assert len(ids) == len(set(ids))
    rest = db.claim(max_jobs=40)
    assert len(ids) + len(rest) == 40
    assert {job.attempt for claim in [*claims, rest] for job in claim} == {2}


def test_a_job_being_cancelled_is_not_claimed(
    db: Protocol, held_open: Protocol, start: Start
) -> None:
    id = db.put()
    held_open.cancel(id)

    claim = start(lambda session: session.claim())

    assert not claim.waits()
    assert claim.answer() == []
    held_open.connection.rollback()
    assert [job.id for job in db.claim()] == [id]


def test_a_job_being_claimed_is_cancelled_as_leased(
    db: Protocol, held_open: Protocol, start: Start
) -> None:
    id = db.put()
    job = held_open.take()
    cancel = start(lambda session: session.cancel(id))
    waited = cancel.waits()

    held_open.connection.commit()

    [answer] = cancel.answer()
    assert waited
    assert (answer.changed, answer.state) == (True, "cancelled")
    assert db.ack(job)[0].outcome == "lost"
    assert db.depth() == {"cancelled": 1}


@pytest.mark.parametrize("verb", ["edit", "move", "delete"])
def test_a_job_being_claimed_can_no_longer_be_changed(
    db: Protocol, held_open: Protocol, start: Start, verb: str
) -> None:
    id = db.put()
    job = held_open.take()
    change = start(_change(verb, id))
    waited = change.waits()

    held_open.connection.commit()

    [answer] = change.answer()
    assert waited
    assert (answer.changed, answer.state) == (False, "leased")
    assert db.ack(job)[0].outcome == "done"


@pytest.mark.parametrize("verb", ["edit", "move", "delete"])
def test_a_job_whose_claim_is_undone_is_changed(
    db: Protocol, held_open: Protocol, start: Start, verb: str
) -> None:
    id = db.put()
    held_open.take()
    change = start(_change(verb, id))
    change.waits()

    held_open.connection.rollback()

    assert change.answer()[0].changed


@pytest.mark.parametrize("verb", ["edit", "move", "delete"])
def test_a_job_being_changed_is_not_claimed(
    db: Protocol, held_open: Protocol, start: Start, verb: str
) -> None:
    id = db.put()
    _change(verb, id)(held_open)

    claim = start(lambda session: session.claim())

    assert not claim.waits()
    assert claim.answer() == []


def test_a_limit_is_exact_under_eight_workers(db: Protocol, at_once: AtOnce) -> None:
    db.queue_set("default", limit=3)
    db.enqueue(*[{"kind": "k"}] * 60)

    def work(session: Protocol, nth: int) -> int:
        most = 0
        for _ in range(20):
            jobs = session.claim(worker=f"w{nth}", max_jobs=2)
            row = session.connection.execute(
                "select count(*) from holdfast.job where token is not null"
            ).fetchone()
            assert row is not None
            most = max(most, row[0])
            session.ack(*jobs)
        return most

    most = at_once(8, work)

    assert not [each for each in most if isinstance(each, Exception)]
    assert max(most) == 3


@pytest.mark.parametrize("setting", [{"limit": 1}, {"rate_limit": 2, "rate_period": 3600}])
def test_a_claim_waits_at_the_gate_for_the_one_before_and_then_counts_it(
    db: Protocol, held_open: Protocol, start: Start, setting: dict[str, int]
) -> None:
    db.queue_set("default", **setting)
    db.enqueue(*[{"kind": "k"}] * 3)
    db.ack(db.take())  # the gate is there from the first claim on

    held_open.take()
    claim = start(lambda session: session.claim())
    waited = claim.waits()
    held_open.connection.commit()

    assert waited
    assert claim.answer() == []


def test_a_limit_is_exact_for_one_burst(db: Protocol, at_once: AtOnce) -> None:
    db.queue_set("default", limit=5)
    db.enqueue(*[{"kind": "k"}] * 60)

    claims = at_once(8, lambda session, nth: session.claim(worker=f"w{nth}", max_jobs=4))

    assert sum(len(claim) for claim in claims) == 5


def test_a_rate_is_exact_under_eight_workers(db: Protocol, at_once: AtOnce) -> None:
    db.queue_set("default", rate_limit=10, rate_period=3600)
    db.enqueue(*[{"kind": "k"}] * 60)

    def work(session: Protocol, nth: int) -> int:
        started = 0
        for _ in range(5):
            jobs = session.claim(worker=f"w{nth}", max_jobs=3)
            started += len(jobs)
            session.ack(*jobs)
        return started

    assert sum(at_once(8, work)) == 10


def test_tenants_take_turns_under_eight_workers(db: Protocol, at_once: AtOnce) -> None:
    db.queue_set("default", fair=True)
    for tenant, jobs in (("big", 200), ("small", 20)):
        db.enqueue(*[{"kind": "k", "tenant": tenant}] * jobs)

    claims = at_once(
        8, lambda session, nth: [session.take(worker=f"w{nth}").tenant for _ in range(5)]
    )

    assert Counter(tenant for claim in claims for tenant in claim) == {"big": 20, "small": 20}


def test_a_promotion_under_way_hides_a_job_and_doubles_none(
    db: Protocol, held_open: Protocol, start: Start
) -> None:
    id = db.put(delay=5)
    db.later(seconds=6)
    held_open.promote()

    claim = start(lambda session: session.claim())

    assert not claim.waits()
    assert claim.answer() == []
    held_open.connection.commit()
    assert [job.id for job in db.claim(max_jobs=9)] == [id]


def test_a_job_being_promoted_can_be_cancelled(
    db: Protocol, held_open: Protocol, start: Start
) -> None:
    id = db.put(delay=5)
    db.later(seconds=6)
    held_open.promote()
    cancel = start(lambda session: session.cancel(id))
    waited = cancel.waits()

    held_open.connection.commit()

    assert waited
    assert cancel.answer()[0].changed
    assert db.claim() == []


def test_a_job_being_cancelled_is_not_promoted(
    db: Protocol, held_open: Protocol, start: Start
) -> None:
    id = db.put(delay=5)
    db.later(seconds=6)
    held_open.cancel(id)

    promote = start(lambda session: session.promote())

    assert not promote.waits()
    assert promote.answer() == 0


def test_a_retry_after_a_nack_meets_no_claim_half_way(db: Protocol, at_once: AtOnce) -> None:
    db.enqueue(*[{"kind": "k", "max_attempts": 50}] * 5)

    def work(session: Protocol, nth: int) -> list[tuple[Any, int]]:
        seen = []
        for _ in range(20):
            jobs = session.claim(worker=f"w{nth}", max_jobs=2)
            seen += [(job.id, job.attempt) for job in jobs]
            session.nack(*jobs, delay=timedelta(0))
        return seen

    seen = [pair for pairs in at_once(6, work) for pair in pairs]

    # Every attempt of every job was given to exactly one worker.
    assert len(seen) == len(set(seen))


def test_an_open_claim_of_one_job_by_kind_leaves_the_other_kinds_to_the_others(
    db: Protocol, held_open: Protocol
) -> None:
    db.queue_set("default", by_kind=True)
    kinds = [f"k{n:02}" for n in range(20)]
    ids = [db.put(kind) for kind in kinds]
    taken = held_open.claim(kinds=kinds)

    others = db.claim(max_jobs=99, kinds=kinds)

    assert [job.id for job in taken] == ids[:1]
    assert [job.id for job in others] == ids[1:]


def test_a_claim_by_kind_passes_over_what_another_is_claiming(
    db: Protocol, held_open: Protocol, start: Start
) -> None:
    db.queue_set("default", by_kind=True)
    ids = [db.put("ab"[n % 2]) for n in range(30)]
    taken = held_open.claim(max_jobs=20, kinds=["a", "b"])

    claim = start(lambda session: session.claim(max_jobs=5, kinds=["b", "a"]))

    assert not claim.waits()
    assert [job.id for job in taken] == ids[:20]
    assert [job.id for job in claim.answer()] == ids[20:25]


def _change(verb: str, id: Any) -> Callable[[Protocol], Any]:
    def change(session: Protocol) -> Any:
        if verb == "edit":
            return session.edit(id, changes={"priority": 5})
        if verb == "move":
            return session.move(id, queue="other")
        return session.delete(id)

    return change


@pytest.mark.parametrize("jobs", [1, 3])
def test_a_fair_claim_passes_over_what_an_operator_is_at(
    db: Protocol, held_open: Protocol, jobs: int
) -> None:
    db.queue_set("default", fair=True)
    ids = [db.put(tenant=tenant) for tenant in "aaaaaabb"]
    held_open.edit(*ids[:4], ids[6], changes={"payload": {"n": 1}})

    first = db.claim(max_jobs=jobs)
    rest = db.claim(max_jobs=8)

    assert len(first) == jobs
    assert {job.id for job in [*first, *rest]} == {ids[4], ids[5], ids[7]}


def test_a_fair_claim_passes_over_an_import_that_replaces_thousands(
    db: Protocol, held_open: Protocol
) -> None:
    db.queue_set("default", fair=True)
    items = [{"kind": "k", "key": f"{n:05}", "on_conflict": "replace"} for n in range(3000)]
    db.enqueue(*items)
    last = db.put("k")
    held_open.enqueue(*items)

    assert [job.id for job in db.claim()] == [last]
