"""An agent whose worker is killed: each call of the model once, and a person who approves."""

import pytest

from examples.agent import __main__ as program
from examples.agent import app as agent
from examples.agent.app import app, refunds, support
from tests.examples.conftest import Use, shows
from tests.server.serving import Serving


@pytest.fixture(autouse=True)
def used(use: Use, server: Serving, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(agent, "SERVER", server.url)
    monkeypatch.setattr(agent, "outbox", [])
    monkeypatch.setenv("MODEL_CALLS", "")
    use(app)


def test_a_killed_agent_goes_on_where_it_was_and_pays_for_no_call_twice(
    capsys: pytest.CaptureFixture[str],
) -> None:
    program.story()

    told = capsys.readouterr().out
    assert "without steps, killed in turn 3: 9 calls of the model" in told
    assert "6 calls in all, 1 refund, 1 link" in told
    assert shows("agent", told)


def test_what_a_person_refuses_is_not_done() -> None:
    agent.set_up()
    job = support.enqueue("My kettle never came.")
    program.work_until(lambda: program.waits(job.id))

    said = program.answered(agent.outbox[0], approved="false", note="the parcel came")
    program.work_until(lambda: job.state() == "done")

    assert said == "Thank you. Your answer was sent."
    assert refunds() == 0
    [step] = [one for one in app.client.steps.list(job.id) if one.kind == "event"]
    assert step.result == {"approved": False, "note": "the parcel came"}
