"""Handlers that end in ways nobody expects: each costs its own job and nobody else's."""

from tests.chaos.stage import Stage

ODD = "tests.chaos.odd:app"

# What the job of each comes to at its only attempt.
ENDS = {
    "unspeakable": "dead",
    "unspeakable_in_thread": "dead",
    "leave": "dead",
    "leave_in_thread": "dead",
    "interrupt": "dead",
    "cancel_itself": "dead",
    "policy": "dead",
    "zero_byte": "dead",
    "half_character": "dead",
    "loud": "dead",
    "strange_result": "dead",
    "zero_result": "dead",
    "half_result": "dead",
    "not_a_number": "dead",
    "odd_progress": "done",
}


def test_what_ends_oddly_costs_its_own_job_only(stage: Stage) -> None:
    worker = stage.start(4, app=ODD)
    odd = {}
    for n, kind in enumerate(ENDS):
        [odd[kind]] = stage.enqueue(kind, 1, first=n, max_attempts=1)
        stage.enqueue("fine", 2, first=100 + 2 * n, seconds=0.2)
    slow = stage.enqueue("fine", 2, first=200, lease=3.0, seconds=4.0)
    stage.drained(40)

    assert worker.code is None, worker.said()
    states = dict(stage.rows("select id, state from holdfast.jobs"))
    assert {kind: states[id] for kind, id in odd.items()} == ENDS, stage.told()
    fine = stage.witness.runs("fine")
    assert len(fine) == 2 * len(ENDS) + len(slow)
    assert {run.attempt for run in fine} == {1}


def test_a_payload_nobody_can_decode_waits_uncounted_and_holds_up_nobody(stage: Stage) -> None:
    worker = stage.start(4, app=ODD)
    stage.client.enqueue("fine", {"n": "not a number"})
    stage.client.enqueue("fine", {"m": 1})
    stage.enqueue("fine", 3)
    left = "select attempt, payload::text from holdfast.jobs where state = 'queued' order by 2"
    waiting = [(0, '{"m": 1}'), (0, '{"n": "not a number"}')]
    stage.until(lambda: stage.live() == 2 and stage.rows(left) == waiting)

    assert worker.code is None
    assert len(stage.witness.runs("fine")) == 3


def test_a_handler_that_refuses_to_be_cancelled_does_not_hold_up_the_end(stage: Stage) -> None:
    worker = stage.start(4, "--grace", "1s", app=ODD)
    stage.enqueue("stubborn", 1)
    stage.until(stage.began(1))
    worker.terminate()

    assert worker.wait(25) == 0, worker.said()
