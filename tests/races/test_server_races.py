"""The same request, link or chunk, by several at once."""

from collections.abc import Callable
from datetime import timedelta
from hashlib import sha256
from typing import Any

import pytest

from tests.protocol import Leased, Protocol
from tests.races.conftest import Running

HASH = sha256(b"secret").digest()


def once(session: Protocol) -> tuple[Any, ...]:
    [row] = session.call(
        "once", columns=("known", "same", "answer"), caller="a", key="k", digest="d"
    )
    return tuple(row)


def test_a_repeat_waits_for_the_first_and_gets_its_answer(
    db: Protocol, held_open: Protocol, start: Callable[..., Running[Any]]
) -> None:
    once(held_open)
    repeat = start(once)
    assert repeat.waits()

    held_open.value("answered", caller="a", key="k", answer="done")
    held_open.connection.commit()

    assert repeat.answer() == (True, True, "done")


def test_a_repeat_of_what_was_rolled_back_is_the_first(
    db: Protocol, held_open: Protocol, start: Callable[..., Running[Any]]
) -> None:
    once(held_open)
    repeat = start(once)
    assert repeat.waits()

    held_open.connection.rollback()

    assert repeat.answer() == (False, True, None)


def test_of_many_who_follow_a_link_one_gets_in(
    db: Protocol, at_once: Callable[..., list[Any]]
) -> None:
    db.call(
        "token_create", columns=("id",), id="l", hash=HASH, name="l", scopes=["read"], sort="link"
    )

    spent = at_once(8, lambda session, _: session.call(
        "link_spend", columns=("name",), id="l", hash=HASH
    ))  # fmt: skip

    assert sum(len(rows) for rows in spent) == 1


def test_a_chunk_under_way_is_passed_over(db: Protocol, held_open: Protocol) -> None:
    token = _operation(db, 10)

    held_open.call("operation_step", columns=("seen",), max_jobs=5)
    meanwhile = db.call("operation_step", columns=("seen",), max_jobs=5)
    held_open.connection.commit()
    [after] = db.call("operation_step", columns=("seen", "changed"), max_jobs=5)

    assert meanwhile == []
    assert tuple(after) == (10, 10)
    assert token is not None


def test_a_chunk_that_was_rolled_back_is_done_by_the_next(
    db: Protocol, held_open: Protocol
) -> None:
    _operation(db, 4)
    held_open.call("operation_step", columns=("seen",))
    held_open.connection.rollback()

    [row] = db.call("operation_step", columns=("seen", "changed"))

    assert tuple(row) == (4, 4)


def test_many_who_step_at_once_do_each_job_once(
    db: Protocol, at_once: Callable[..., list[Any]]
) -> None:
    _operation(db, 200)

    def steps(session: Protocol, _: int) -> None:
        for _turn in range(60):
            session.call("operation_step", columns=("seen",), max_jobs=7)

    at_once(6, steps)
    while db.call("operation_step", columns=("seen",)):
        pass

    [row] = db.table("select state, seen, changed from holdfast.operations")
    assert tuple(row) == ("done", 200, 200)
    assert db.depth() == {"cancelled": 200}


def test_an_undo_waits_for_who_is_just_beginning_a_job_and_leaves_it_that(
    db: Protocol, held_open: Protocol, start: Callable[..., Running[Any]]
) -> None:
    db.enqueue(*[{"kind": "a", "max_attempts": 1}] * 2)
    db.nack(*db.claim(max_jobs=2), error_kind="E", message="m")
    [row] = db.call("operation_preview", columns=("id", "token"), verb="retry", filter="kind:a")
    db.call("operation_start", columns=("id",), token=row.token, rate=1e6)
    while db.call("operation_step", columns=("seen",)):
        pass
    begun = held_open.take()
    db.call("operation_undo", columns=("id",), id=row.id, rate=1e6)

    undone = start(
        lambda session: session.call("operation_step", columns=("seen", "changed", "verb"))
    )
    assert undone.waits()
    held_open.connection.commit()

    assert [tuple(answer) for answer in undone.answer()] == [(2, 1, "undo")]
    assert db.depth() == {"leased": 1, "dead": 1}
    assert [one.outcome for one in db.ack(begun)] == ["done"]


def release_lane(session: Protocol) -> str:
    [row] = session.call("lane_release", columns=("outcome",), queue="default", lane="l")
    return str(row.outcome)


def abandoned(db: Protocol, **options: Any) -> Leased:
    """A job in a lane whose worker was not seen since it claimed, two minutes ago."""
    db.put(lane="l", **options)
    leased = db.take(worker="gone", lease=timedelta(hours=1))
    db.table("update holdfast.lease set claimed_at = claimed_at - interval '2 minutes' returning 1")
    return leased


@pytest.mark.parametrize(("end", "outcome"), [("commit", "alive"), ("rollback", "released")])
def test_who_releases_a_lane_waits_for_a_hand_over_and_then_knows(
    db: Protocol, held_open: Protocol, start: Callable[..., Running[Any]], end: str, outcome: str
) -> None:
    leased = abandoned(db)
    held_open.hand_over(leased, timeout=timedelta(hours=1))
    released = start(release_lane)
    assert released.waits()

    getattr(held_open.connection, end)()

    assert released.answer() == outcome


def test_who_releases_a_lane_holds_no_lane_while_a_failure_halts_it(
    db: Protocol, held_open: Protocol, start: Callable[..., Running[Any]]
) -> None:
    db.queue_set("default", lane_on_failure="halt")
    leased = abandoned(db, max_attempts=1)
    held_open.table("select id from holdfast.job for update")
    released = start(release_lane)
    assert released.waits()

    held_open.nack(leased)
    held_open.connection.commit()

    assert released.answer() == "resumed"


def test_of_two_who_release_a_lane_one_does(
    db: Protocol, held_open: Protocol, start: Callable[..., Running[Any]]
) -> None:
    abandoned(db)
    first = release_lane(held_open)
    second = start(release_lane)
    assert second.waits()

    held_open.connection.commit()

    assert (first, second.answer()) == ("released", "free")


def _operation(db: Protocol, jobs: int) -> Any:
    db.enqueue(*[{"kind": "a"}] * jobs)
    [row] = db.call("operation_preview", columns=("token",), verb="cancel", filter="kind:a")
    # At such a rate the next chunk is due at once.
    db.call("operation_start", columns=("id",), token=row.token, rate=1e6)
    return row.token
