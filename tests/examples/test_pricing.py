"""Loan pricing: one run at a time, through failures, silence and late answers."""

import asyncio
import time
from collections.abc import Iterator

import httpx
import pytest

from examples.pricing.__main__ import HANGS, SCENARIOS, story
from examples.pricing.app import app, price
from examples.pricing.axiom import CONFUSED, Axiom
from holdfast.server import Server, Settings
from holdfast.upkeep.loop import Upkeep
from tests.conftest import Clock
from tests.examples.conftest import Use, shows
from tests.server.serving import Serving, serving


@pytest.fixture(autouse=True)
def pricing(use: Use, server: Serving, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("STUCK_AFTER", "0.5")
    use(app).client.queues.set("pricing", backoff=0.1)


@pytest.fixture
def axiom(monkeypatch: pytest.MonkeyPatch) -> Iterator[Axiom]:
    """An Axiom that works, except for the page that hangs, which answers too late."""
    axiom = Axiom(hangs=HANGS)
    with axiom.serving() as url:
        monkeypatch.setenv("AXIOM_URL", url)
        yield axiom


@pytest.mark.proves("S2.1", "S2.2", "S2.7", "S2.15", "S2.22", "S2.26", "S2.27")
def test_two_hundred_runs_never_overlap_and_nearly_all_of_them_succeed(
    axiom: Axiom, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    # Whoever gives up a run that is only slow has it overlap with the next.
    monkeypatch.setenv("STUCK_AFTER", "3")
    axiom.failures = 0.3

    asyncio.run(story(axiom, SCENARIOS))

    queue = app.client.queues.get("pricing")
    assert queue
    assert (len(SCENARIOS), queue.done + queue.dead) == (200, 201)
    assert axiom.most_at_once == 1
    assert axiom.runs > 250
    assert queue.done / 201 >= 0.95
    told = capsys.readouterr().out
    assert f"{queue.done} priced, {queue.done / 201:.1%} of what ended" in told
    assert shows("pricing", told)
    assert all(5 < job.result["rate"] < 12 for job in app.client.jobs.list("state:done", limit=200))


@pytest.mark.proves("S2.16", "S2.17", "S2.21")
def test_a_run_that_hangs_is_failed_with_the_reason_and_the_next_one_starts(axiom: Axiom) -> None:
    asyncio.run(story(axiom, SCENARIOS[:3]))

    [dead] = app.client.jobs.list("queue:pricing state:dead")
    assert dead.payload == {"scenario": HANGS}
    assert dead.error == "NoAnswer: no answer from outside within 00:00:00.5"
    done = app.client.jobs.list("queue:pricing state:done")
    assert len(done) == 3
    assert all(dead.ended_at < job.ended_at for job in done)


@pytest.mark.proves("S2.21", "S2.22")
def test_an_answer_that_comes_too_late_changes_nothing(axiom: Axiom) -> None:
    asyncio.run(story(axiom, SCENARIOS[:1]))

    assert axiom.too_late == 1
    assert [job.state for job in app.client.jobs.list("queue:pricing")] == ["done", "dead"]


def test_without_the_lane_axiom_is_confused(axiom: Axiom) -> None:
    axiom.seconds = 0.3
    app.enqueue_many(price.options(lane=None, max_attempts=1).call(name) for name in SCENARIOS[:4])

    asyncio.run(story(axiom, SCENARIOS[4:5]))

    assert axiom.most_at_once > 1
    assert CONFUSED in {job.error.split(": ")[1] for job in app.client.jobs.list("state:dead")}


@pytest.mark.proves("S2.3", "S2.4", "S2.5")
def test_the_runs_of_five_and_half_past_wait_for_each_other(axiom: Axiom, clock: Clock) -> None:
    app.client.schedules.declare(app.schedules)
    upkeep = Upkeep(app.client, holder="test")
    upkeep.turn()
    clock.advance(days=4)
    while len(jobs := app.client.jobs.list("queue:pricing")) < 2:
        upkeep.turn()
        time.sleep(0.02)
    told = [app.client.jobs.explain(job.id) for job in jobs]

    assert {job.payload["scenario"] for job in jobs} == {"30-year fixed", "15-year fixed"}
    assert sum("waits to be claimed" in why for why in told) == 1
    assert sum("nothing is ahead of it" in why for why in told) == 1


@pytest.mark.proves("S2.6", "S2.23")
def test_a_program_with_a_token_runs_a_schedule_now(database: str) -> None:
    app.client.schedules.declare(app.schedules)
    secret = app.client.tokens.create("cron", ["operate"], queues=["pricing"]).secret
    run_now = "/v1/schedules/rates-30-year/run"

    closed = Server(database, settings=Settings(ways=["token"]))
    with serving(closed) as serves, serves.client() as api:
        refused = api.post(run_now, json={})
        answer = api.post(run_now, json={}, headers={"Authorization": f"Bearer {secret}"})

    assert (refused.status_code, answer.status_code) == (401, 201)
    [job] = app.client.jobs.list("queue:pricing")
    assert str(job.id) == answer.json()["job"]
    assert (job.kind, job.lane, job.payload) == ("price", "axiom", {"scenario": "30-year fixed"})


@pytest.mark.proves("S2.24")
def test_failed_runs_are_retried_at_the_push_of_a_button(axiom: Axiom, api: httpx.Client) -> None:
    axiom.failures = 1.0
    asyncio.run(story(axiom, SCENARIOS[:2]))
    axiom.failures = 0.0

    wanted = {"op": "retry", "q": 'queue:pricing error:"AxiomError*"', "reason": "Axiom is back"}
    preview = api.post("/v1/operations:preview", json=wanted).json()
    api.post("/v1/operations", json={"preview_token": preview["preview_token"]})
    while app.client.queues.get("pricing").queued < 2:
        time.sleep(0.02)
    asyncio.run(story(axiom, SCENARIOS[2:3]))

    assert preview["count"] == 2
    reasons = [job.reason for job in app.client.jobs.list("queue:pricing state:done")]
    assert reasons.count("Axiom is back") == 2
