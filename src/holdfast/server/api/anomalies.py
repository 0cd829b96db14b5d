"""Problems and their causes: anomalies, detectors, forecasts, the doctor."""

from datetime import timedelta
from typing import Any

from holdfast.errors import UnknownAnomaly
from holdfast.records import Anomaly, Detector
from holdfast.server.http import inputs, render
from holdfast.server.http.problems import Problem
from holdfast.server.http.request import Answer, Request


async def anomalies(request: Request) -> Answer:
    """List anomalies, the worst first."""
    asked: inputs.Anomalies = request.query
    found = await (
        request.reads.anomalies.list(over=True) if asked.over else request.live.anomalies()
    )
    seen = [one for one in found if _sees(request, one)]
    return Answer({"anomalies": [render.record(one) for one in seen[: asked.limit]]})


async def anomaly(request: Request) -> Answer:
    """Show one anomaly."""
    return Answer(render.record(await _found(request)))


async def ack(request: Request) -> Answer:
    """Acknowledge an anomaly."""
    said: inputs.Noted = request.body
    found = await _found(request)
    acked = await request.client.anomalies.ack(found.id, note=said.note, actor=request.actor)
    return Answer(render.record(acked or found))


async def mute(request: Request) -> Answer:
    """Mute an anomaly, or everything its detector finds, forever or for a while."""
    said: inputs.Muted = request.body
    found = await _found(request)
    until = None
    if said.seconds is not None:
        until = await request.client.now() + timedelta(seconds=said.seconds)
    await request.client.anomalies.mute(
        found.code,
        until=until,
        reason=said.reason,
        actor=request.actor,
        **_scope(request, found, said.all),
    )
    return Answer(render.record(await request.client.anomalies.get(found.id) or found))


async def unmute(request: Request) -> Answer:
    """Unmute an anomaly, or everything its detector finds."""
    said: inputs.Unmuted = request.body
    found = await _found(request)
    scope = _scope(request, found, said.all)
    await request.client.anomalies.unmute(found.code, actor=request.actor, **scope)
    return Answer(render.record(await request.client.anomalies.get(found.id) or found))


async def detectors(request: Request) -> Answer:
    """List the detectors and their thresholds."""
    return Answer(
        {"detectors": [_detector(request, one) for one in await request.reads.detectors.list()]}
    )


async def detector_set(request: Request) -> Answer:
    """Change the thresholds of a detector, for all queues or one."""
    said: inputs.Tuned = request.body
    if said.queue is not None or request.user.queues is not None:
        request.user.check_queues([said.queue or ""])
    if unknown := said.thresholds.keys() & {"code", "queue", "actor", "self", "enabled"}:
        raise Problem(422, "HF221", f"threshold {min(unknown)!r} of a detector is unknown")
    settings: dict[str, Any] = {**said.thresholds, "enabled": said.enabled}
    if said.enabled is None:
        del settings["enabled"]
    found = await request.client.detectors.set(
        request.part("code"), queue=said.queue, actor=request.actor, **settings
    )
    return Answer(_detector(request, found))


async def forecasts(request: Request) -> Answer:
    """Forecast when queues will be empty, and how many slots that takes."""
    asked: inputs.Forecast = request.query
    found = await request.reads.queues.forecast(
        asked.queue or None, target=asked.target, span=asked.span
    )
    seen = [render.record(one) for one in found if request.user.sees(one.queue)]
    return Answer({"forecasts": seen})


async def doctor(request: Request) -> Answer:
    """Check the health of the database."""
    request.user.check_everywhere()
    return Answer({"checks": [render.record(one) for one in await request.client.doctor()]})


def _detector(request: Request, one: Detector) -> dict[str, Any]:
    told = render.record(one)
    if request.user.queues is not None and one.queues is not None:
        told["queues"] = {name: how for name, how in one.queues.items() if request.user.sees(name)}
    return told


def _sees(request: Request, one: Anomaly) -> bool:
    return request.user.queues is None if one.queue is None else request.user.sees(one.queue)


async def _found(request: Request) -> Anomaly:
    id = request.part("id")
    found = await request.client.anomalies.get(id)
    if found is None or not _sees(request, found):
        raise UnknownAnomaly(id)
    return found


def _scope(request: Request, one: Anomaly, everything: bool) -> dict[str, str | None]:
    if everything and request.user.queues is None:
        return {"queue": None, "subject": None}
    return {"queue": one.queue, "subject": None if everything else one.subject or None}
