"""Work that is done elsewhere: the lease is handed over, and the answer comes later."""

from collections.abc import Callable
from typing import Any

import psycopg
import pytest

import holdfast
from holdfast import App
from holdfast.records import Ticket
from holdfast.worker import Worker
from tests.conftest import Clock

Drain = Callable[..., Worker]


@pytest.fixture
def tickets(app: App) -> list[Ticket]:
    """What the outside system was told by a task `price` that hands its lease over."""
    told: list[Ticket] = []

    @app.task(lane="axiom", max_attempts=2, retry=0)
    def price(scenario: str) -> None:
        told.append(holdfast.current().hand_over(timeout=180))
        if scenario == "refused":
            raise ConnectionError("the service hung up")

    return told


@pytest.mark.proves("S2.22")
def test_an_answer_from_outside_ends_the_job(
    app: App, drain: Drain, tickets: list[Ticket], database: str
) -> None:
    handle = app.tasks["price"].enqueue("base")
    drain()

    assert handle.state() == "leased"
    with psycopg.connect(database, autocommit=True) as conn:
        ticket = tickets[0]
        row = conn.execute(
            "select outcome from holdfast.ack(ids => array[%s], tokens => array[%s])",
            [ticket.id, ticket.token],
        ).fetchone()
    assert row == ("done",)
    assert handle.state() is None


def test_an_async_handler_hands_over_as_well(app: App, drain: Drain) -> None:
    told: list[Ticket] = []

    @app.task
    async def price() -> None:
        told.append(await holdfast.current().ahand_over(timeout=180))

    handle = price.enqueue()
    drain()

    [settled] = app.client.ack([(told[0].id, told[0].token)])
    assert settled.outcome == "done"
    assert handle.state() is None


def test_a_job_that_waits_for_an_answer_keeps_its_lane(
    app: App, drain: Drain, tickets: list[Ticket]
) -> None:
    first, second = (app.tasks["price"].enqueue(name) for name in ("base", "up"))
    drain()

    assert (first.state(), second.state()) == ("leased", "queued")
    assert len(tickets) == 1

    app.client.ack([(tickets[0].id, tickets[0].token)])
    drain()

    assert (first.state(), second.state()) == (None, "leased")


def test_a_failure_reported_from_outside_is_tried_again(
    app: App, drain: Drain, tickets: list[Ticket]
) -> None:
    handle = app.tasks["price"].enqueue("base")
    drain()

    first = tickets[0]
    [answer] = app.client.nack([(first.id, first.token)], message="step 20 is missing", delay=0)
    assert answer.outcome == "queued"
    drain()

    assert len(tickets) == 2
    assert handle.state() == "leased"


def test_a_handler_that_fails_after_handing_over_has_failed(
    app: App, drain: Drain, tickets: list[Ticket]
) -> None:
    handle = app.tasks["price"].enqueue("refused")
    drain()

    assert handle.state() == "dead"
    attempts = app.client.jobs.attempts(handle.id)
    assert [attempt.error_kind for attempt in attempts] == ["ConnectionError"] * 2


@pytest.mark.proves("S2.16", "S2.17")
def test_without_an_answer_the_attempt_fails_and_the_next_run_starts(
    app: App, drain: Drain, tickets: list[Ticket], clock: Clock
) -> None:
    first = app.tasks["price"].options(max_attempts=1).enqueue("base")
    second = app.tasks["price"].enqueue("up")
    drain()
    clock.advance(seconds=181)
    app.client.upkeep.run()
    drain()

    assert first.state() == "dead"
    [attempt] = app.client.jobs.attempts(first.id)
    assert attempt.error_kind == "NoAnswer"
    assert "no answer" in (attempt.message or "")
    assert second.state() == "leased"


def test_the_worker_that_handed_over_can_change_nothing(
    app: App, drain: Drain, tickets: list[Ticket]
) -> None:
    seen: list[Any] = []

    @app.task
    def sly() -> None:
        job = holdfast.current()
        job.hand_over(timeout=60)
        seen.append(app.client.ack([job.lease])[0])

    handle = sly.enqueue()
    drain()

    assert seen[0].outcome == "lost"
    assert "handed over" in seen[0].detail
    assert handle.state() == "leased"
