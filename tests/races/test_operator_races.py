"""Two operators at the same jobs."""

import itertools
import random
from collections.abc import Callable
from typing import Any
from uuid import UUID

import pytest

from tests.protocol import Protocol

Start = Callable[..., Any]
AtOnce = Callable[..., list[Any]]


def dead(db: Protocol) -> UUID:
    id = db.put(max_attempts=1)
    db.nack(db.take(), message="boom")
    return id


ENDED = ["retry", "archive", "delete", "edit", "move"]
WAITING = ["cancel", "delete", "edit", "move"]


def act(session: Protocol, verb: str, id: UUID) -> Any:
    if verb == "edit":
        return session.edit(id, changes={"priority": 5})[0]
    if verb == "move":
        return session.move(id, queue="other")[0]
    return getattr(session, verb)(id)[0]


@pytest.mark.parametrize(("first", "second"), list(itertools.product(ENDED, repeat=2)))
@pytest.mark.parametrize("end", ["commit", "rollback"])
def test_two_operators_at_a_dead_job_are_both_answered(
    db: Protocol, held_open: Protocol, start: Start, first: str, second: str, end: str
) -> None:
    id = dead(db)
    assert act(held_open, first, id).changed
    other = start(lambda session: act(session, second, id))
    other.waits()

    getattr(held_open.connection, end)()

    answer = other.answer()
    # Told yes, the second did it; told no, the state says why. Never an error, never two jobs.
    assert answer.changed == (answer.detail is None)
    if end == "rollback":
        assert answer.changed
    if first == second in ("retry", "archive", "delete") and end == "commit":
        assert not answer.changed
    assert len(db.list()) <= 1


@pytest.mark.parametrize(("first", "second"), list(itertools.product(WAITING, repeat=2)))
@pytest.mark.parametrize("end", ["commit", "rollback"])
def test_two_operators_at_a_waiting_job_are_both_answered(
    db: Protocol, held_open: Protocol, start: Start, first: str, second: str, end: str
) -> None:
    id = db.put()
    assert act(held_open, first, id).changed
    other = start(lambda session: act(session, second, id))
    other.waits()

    getattr(held_open.connection, end)()

    answer = other.answer()
    assert answer.changed == (answer.detail is None)
    if end == "rollback":
        assert answer.changed
    assert len(db.list()) <= 1


@pytest.mark.proves("S0.21")
def test_two_operators_retry_a_job_once(db: Protocol, held_open: Protocol, start: Start) -> None:
    id = dead(db)
    held_open.retry(id, reason="first")
    second = start(lambda session: session.retry(id, reason="second")[0])
    waited = second.waits()

    held_open.connection.commit()

    assert waited
    assert (second.answer().changed, second.answer().state) == (False, "queued")
    assert db.job(id).reason == "first"
    assert len(db.claim(max_jobs=9)) == 1


def test_eight_retries_of_everything_retry_each_once(db: Protocol, at_once: AtOnce) -> None:
    for _ in range(30):
        dead(db)
    ids = list(db.find("state:dead"))

    def work(session: Protocol, nth: int) -> int:
        mine = random.Random(nth).sample(ids, len(ids))
        return sum(answer.changed for answer in session.retry(*mine))

    changed = at_once(8, work)

    assert not [each for each in changed if isinstance(each, Exception)]
    assert sum(changed) == 30
    assert db.depth() == {"queued": 30}


def test_a_cancel_and_a_death_end_a_job_once(
    db: Protocol, held_open: Protocol, start: Start
) -> None:
    id = db.put(max_attempts=1)
    job = db.take()
    held_open.nack(job, message="boom")
    cancel = start(lambda session: session.cancel(id)[0])
    waited = cancel.waits()

    held_open.connection.commit()

    assert waited
    assert (cancel.answer().changed, cancel.answer().state) == (False, "dead")
    assert db.depth() == {"dead": 1}
