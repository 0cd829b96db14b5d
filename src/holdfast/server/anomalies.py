"""What looks wrong and why: anomalies, detectors, explanations, forecasts, the doctor."""

from datetime import timedelta
from typing import Any

from holdfast.errors import UnknownAnomaly, UnknownQueue
from holdfast.records import Anomaly, Detector
from holdfast.server import answers, bodies
from holdfast.server.call import Answer, Call
from holdfast.server.problems import Problem


async def anomalies(call: Call) -> Answer:
    """List what looks wrong, the worst first."""
    asked: bodies.Anomalies = call.asked
    found = await (call.reads.anomalies.list(over=True) if asked.over else call.live.anomalies())
    seen = [one for one in found if _sees(call, one)]
    return Answer({"anomalies": [answers.record(one) for one in seen[: asked.limit]]})


async def anomaly(call: Call) -> Answer:
    """Tell of one anomaly."""
    return Answer(answers.record(await _found(call)))


async def ack(call: Call) -> Answer:
    """Say that somebody knows of an anomaly and cares."""
    said: bodies.Noted = call.said
    found = await _found(call)
    acked = await call.client.anomalies.ack(found.id, note=said.note, actor=call.actor)
    return Answer(answers.record(acked or found))


async def mute(call: Call) -> Answer:
    """Tell nobody of an anomaly, or of all that its detector finds, for good or a while."""
    said: bodies.Muted = call.said
    found = await _found(call)
    until = None
    if said.seconds is not None:
        until = await call.client.now() + timedelta(seconds=said.seconds)
    await call.client.anomalies.mute(
        found.code,
        until=until,
        reason=said.reason,
        actor=call.actor,
        **_scope(call, found, said.all),
    )
    return Answer(answers.record(await call.client.anomalies.get(found.id) or found))


async def unmute(call: Call) -> Answer:
    """Tell again of an anomaly, or of all that its detector finds."""
    said: bodies.Unmuted = call.said
    found = await _found(call)
    scope = _scope(call, found, said.all)
    await call.client.anomalies.unmute(found.code, actor=call.actor, **scope)
    return Answer(answers.record(await call.client.anomalies.get(found.id) or found))


async def detectors(call: Call) -> Answer:
    """List what is looked for, and how closely."""
    return Answer(
        {"detectors": [_detector(call, one) for one in await call.reads.detectors.list()]}
    )


async def detector_set(call: Call) -> Answer:
    """Change how closely a detector looks, at all queues or one."""
    said: bodies.Tuned = call.said
    if said.queue is not None or call.user.queues is not None:
        call.user.check_queues([said.queue or ""])
    if unknown := said.thresholds.keys() & {"code", "queue", "actor", "self", "enabled"}:
        raise Problem(422, "HF221", f"threshold {min(unknown)!r} of a detector is unknown")
    settings: dict[str, Any] = {**said.thresholds, "enabled": said.enabled}
    if said.enabled is None:
        del settings["enabled"]
    found = await call.client.detectors.set(
        call.part("code"), queue=said.queue, actor=call.actor, **settings
    )
    return Answer(_detector(call, found))


async def explain_queue(call: Call) -> Answer:
    """Say how a queue does, and what keeps it back."""
    name = call.part("queue")
    if not call.user.sees(name) or await call.reads.queues.get(name) is None:
        raise UnknownQueue(name)
    return Answer({"queue": name, "explain": await call.reads.queues.explain(name)})


async def explain_lane(call: Call) -> Answer:
    """Say who holds a lane, and what is next in it."""
    asked: bodies.LaneOf = call.asked
    call.user.check_queues([asked.queue])
    lane = call.part("lane")
    why = await call.reads.lanes.explain(asked.queue, lane)
    return Answer({"queue": asked.queue, "lane": lane, "explain": why})


async def forecasts(call: Call) -> Answer:
    """Say when queues will have drained, and how many slots that takes."""
    asked: bodies.Forecast = call.asked
    found = await call.reads.queues.forecast(
        asked.queue or None, target=asked.target, span=asked.span
    )
    seen = [answers.record(one) for one in found if call.user.sees(one.queue)]
    return Answer({"forecasts": seen})


async def doctor(call: Call) -> Answer:
    """Tell what the database says of its own health."""
    call.user.check_everywhere()
    return Answer({"checks": [answers.record(one) for one in await call.client.doctor()]})


def _detector(call: Call, one: Detector) -> dict[str, Any]:
    told = answers.record(one)
    if call.user.queues is not None and one.queues is not None:
        told["queues"] = {name: how for name, how in one.queues.items() if call.user.sees(name)}
    return told


def _sees(call: Call, one: Anomaly) -> bool:
    return call.user.queues is None if one.queue is None else call.user.sees(one.queue)


async def _found(call: Call) -> Anomaly:
    id = call.part("id")
    found = await call.client.anomalies.get(id)
    if found is None or not _sees(call, found):
        raise UnknownAnomaly(id)
    return found


def _scope(call: Call, one: Anomaly, everything: bool) -> dict[str, str | None]:
    if everything and call.user.queues is None:
        return {"queue": None, "subject": None}
    return {"queue": one.queue, "subject": None if everything else one.subject or None}
