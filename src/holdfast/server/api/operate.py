"""Actions of operators on jobs, queues, schedules and workers. All of them are recorded."""

import re
from collections.abc import Sequence
from datetime import timedelta
from typing import Any, Literal
from uuid import UUID

from msgspec import UNSET

from holdfast.errors import (
    UnknownJob,
    UnknownQueue,
    UnknownSchedule,
    UnknownStrike,
    UnknownWorker,
)
from holdfast.records import Change, Operation, Schedule
from holdfast.server.api import look
from holdfast.server.http import inputs, render
from holdfast.server.http.derive import given
from holdfast.server.http.problems import Problem
from holdfast.server.http.request import Answer, Request
from holdfast.server.live.feed import operation


async def retry(request: Request) -> Answer:
    """Retry an ended job, from attempt 1."""
    said: inputs.Retried = request.body
    id = await _mine(request)
    [change] = await request.client.jobs.retry(
        [id], reason=said.reason, actor=request.actor, delay=said.delay, fresh=said.fresh
    )
    return _changed(request, change)


async def cancel(request: Request) -> Answer:
    """Cancel a queued or running job; the worker of a running job is notified."""
    said: inputs.Reason = request.body
    id = await _mine(request)
    [change] = await request.client.jobs.cancel([id], reason=said.reason, actor=request.actor)
    return _changed(request, change)


async def archive(request: Request) -> Answer:
    """Archive an ended job.

    It can still be found and retried, but no longer counts or is grouped as dead.
    """
    said: inputs.Reason = request.body
    id = await _mine(request)
    [change] = await request.client.jobs.archive([id], reason=said.reason, actor=request.actor)
    return _changed(request, change)


async def delete(request: Request) -> Answer:
    """Delete a job permanently."""
    id = await _mine(request)
    [change] = await request.client.jobs.delete([id], actor=request.actor)
    return _changed(request, change)


async def edit(request: Request) -> Answer:
    """Change a queued or dead job.

    If it is moved to another queue, it gets a new id, which is in the response.
    """
    said = request.body
    if said.queue is not UNSET:
        request.user.check_queues([said.queue])
    id = await _mine(request)
    changes = {name: value for name, value in given(said).items() if name in inputs.EDITABLE}
    if not changes and said.queue is UNSET:
        raise Problem(422, "HF222", "nothing to change", fix=_EDITABLE)
    if request.live.settings.redact and (found := await request.client.jobs.get(id)):
        changes |= request.live.redaction.restored(
            found.kind, changes, {"payload": found.payload_json, "headers": found.headers_json}
        )
    answer = Answer({})
    if changes:
        [change] = await request.client.jobs.edit(
            [id], reason=said.reason, actor=request.actor, **changes
        )
        answer = _changed(request, change)
    if said.queue is not UNSET:
        [change] = await request.client.jobs.move(
            [id], said.queue, reason=said.reason, actor=request.actor
        )
        answer = _changed(request, change)
    return answer


async def change_many(
    request: Request,
    verb: Literal["retry", "archive", "delete", "move"],
    ids: Sequence[UUID],
    *,
    reason: str | None = None,
    queue: str = "",
    state: str | None = None,
) -> dict[UUID, Change]:
    """Apply one verb to these jobs, if they are in `state` when one is given.

    Jobs in queues of others are reported as unknown.
    """
    if queue:
        request.user.check_queues([queue])
    told = {id: Change(id, changed=False, state=None) for id in ids}
    mine = list(told)
    if request.user.queues is not None or state is not None:
        mine = []
        for id in told:
            job = await request.client.jobs.get(id)
            if job is None or not request.user.sees(job.queue):
                continue
            if state in (None, job.state):
                mine.append(id)
            else:
                told[id] = Change(id, changed=False, state=job.state, detail=f"it is {job.state}")
    about: dict[str, Any] = {"reason": reason, "actor": request.actor}
    if verb == "move":
        changes = await request.client.jobs.move(mine, queue, **about)
    else:
        changes = await getattr(request.client.jobs, verb)(mine, **about)
    request.live.note_change()
    return told | {change.id: change for change in changes}


async def pause(request: Request) -> Answer:
    """Pause a queue: no new jobs start, running ones finish."""
    said: inputs.Paused = request.body
    queue = request.part("queue")
    request.user.check_queues([queue])
    until = said.until
    if said.seconds is not None:
        until = await request.client.now() + timedelta(seconds=said.seconds)
    found = await request.client.queues.pause(
        queue, reason=said.reason, until=until, actor=request.actor
    )
    return Answer(render.record(found))


async def resume(request: Request) -> Answer:
    """Resume a paused queue."""
    queue = request.part("queue")
    request.user.check_queues([queue])
    return Answer(render.record(await request.client.queues.resume(queue, actor=request.actor)))


async def queue_set(request: Request) -> Answer:
    """Change settings of a queue, or create it."""
    settings: dict[str, Any] = request.body
    queue = request.part("queue")
    request.user.check_queues([queue])
    if unknown := settings.keys() & {"queue", "actor", "self"}:
        raise Problem(422, "HF221", f"setting {min(unknown)!r} of a queue is unknown")
    found = await request.client.queues.set(queue, actor=request.actor, **settings)
    return Answer(render.record(found))


async def drain(request: Request) -> Answer:
    """Cancel all queued jobs of a queue, as an operation."""
    said: inputs.Drained = request.body
    queue = request.part("queue")
    request.user.check_queues([queue])
    if await request.client.queues.get(queue) is None:
        raise UnknownQueue(queue)
    preview = await request.client.operations.preview(
        "cancel",
        f"state:queued queue:{quoted(queue)} {request.user.filter}".strip(),
        reason=said.reason or f"queue {queue} drained",
        actor=request.actor,
    )
    return await _begin(request, preview.token, said.rate)


async def put_schedule(request: Request) -> Answer:
    """Create a schedule, or replace it."""
    said = request.body
    name = request.part("name")
    request.user.check_queues([said.queue])
    before = await _schedule(request, name)
    settings = given(said)
    if before is None:
        settings = {key: value for key, value in settings.items() if value is not None}
    else:
        settings |= _restored(request, before, settings)
    found = await request.client.schedules.set(name, actor=request.actor, **settings)
    return Answer(look.schedule_record(request, found), 201 if before is None else 200)


async def change_schedule(request: Request) -> Answer:
    """Change a schedule, pause it or resume it."""
    said = request.body
    name = request.part("name")
    found = await _known_schedule(request, name)
    settings = {key: value for key, value in given(said).items() if key not in ("paused", "reason")}
    if "queue" in settings:
        request.user.check_queues([settings["queue"]])
    settings |= _restored(request, found, settings)
    if settings:
        found = await request.client.schedules.set(name, actor=request.actor, **settings)
    if said.paused is True:
        found = await request.client.schedules.pause(name, reason=said.reason, actor=request.actor)
    elif said.paused is False:
        found = await request.client.schedules.resume(name, actor=request.actor)
    elif not settings:
        raise Problem(422, "HF222", "nothing to change")
    return Answer(look.schedule_record(request, found))


async def delete_schedule(request: Request) -> Answer:
    """Delete a schedule; its jobs stay."""
    name = request.part("name")
    await _known_schedule(request, name)
    await request.client.schedules.delete(name, actor=request.actor)
    return Answer({"name": name, "deleted": True})


async def run_schedule(request: Request) -> Answer:
    """Enqueue one job of a schedule now."""
    name = request.part("name")
    await _known_schedule(request, name)
    slot = await request.client.schedules.run(name, actor=request.actor)
    request.live.note_change()
    return Answer({"name": name, **render.record(slot)}, 201)


async def stop_worker(request: Request) -> Answer:
    """Request a worker to finish its running jobs and exit."""
    request.user.check_everywhere()
    name = request.part("worker")
    if not await request.client.workers.stop(name, actor=request.actor):
        raise UnknownWorker(f"no worker of the last day is named {name!r}")
    return Answer({"worker": name, "stopping": True}, 202)


async def release_lane(request: Request) -> Answer:
    """Release a lane that is halted, or whose worker is gone."""
    said: inputs.LaneOf = request.body
    lane = request.part("lane")
    request.user.check_queues([said.queue])
    done = await request.client.lanes.release(said.queue, lane, actor=request.actor)
    if done.outcome == "unknown":
        raise Problem(404, "HF316", f"queue {said.queue!r} has no lane {lane!r}")
    if done.outcome == "alive":
        raise Problem(
            409,
            "HF409",
            f"lane {lane!r} is held by job {done.job} on {done.worker}, which is alive",
            fix="Cancel that job, or stop its worker.",
            job=done.job,
            worker=done.worker,
            state="leased",
        )
    request.live.note_change(said.queue)
    return Answer({"queue": said.queue, "lane": lane, **render.record(done)})


async def strike(request: Request) -> Answer:
    """Add a strike: jobs that match it do not run.

    Claims after this do not return them. Running jobs finish.
    """
    said: inputs.NewStrike = request.body
    if said.queue is not None:
        request.user.check_queues([said.queue])
    else:
        request.user.check_everywhere()
    request.live.redaction.check_payload(said.payload)
    made = await request.client.strikes.add(
        queue=said.queue,
        kind=said.kind,
        payload=said.payload,
        mode=said.mode,
        reason=said.reason,
        expires=said.expires,
        actor=request.actor,
    )
    request.live.note_change()
    return Answer(look.strike(request, made), 201)


async def lift(request: Request) -> Answer:
    """Lift a strike; its jobs run again."""
    text = request.part("number")
    number = int(text) if text.isdecimal() and len(text) < 18 else -1
    known = {one.number: one for one in await request.client.strikes.list(all=True)}
    if number not in known:
        raise UnknownStrike(text)
    queue = known[number].queue
    if queue is None:
        request.user.check_everywhere()
    else:
        request.user.check_queues([queue])
    lifted = await request.client.strikes.lift(number, actor=request.actor)
    assert lifted is not None
    request.live.note_change()
    return Answer(look.strike(request, lifted))


async def preview(request: Request) -> Answer:
    """Count the jobs that an operation would change.

    Jobs that match later are not changed. The preview can be started for ten minutes.
    """
    said: inputs.Previewed = request.body
    request.live.redaction.check_filter(said.q)
    if said.queue is not None:
        request.user.check_queues([said.queue])
    found = await request.client.operations.preview(
        said.op,
        f"{said.q} {request.user.filter}".strip(),
        most=said.limit,
        reason=said.reason,
        actor=request.actor,
        delay=said.delay,
        queue=said.queue,
    )
    return Answer(
        {
            "op": said.op,
            "q": found.selects,
            "count": found.total,
            "capped": found.capped,
            "as_of": render.moment(found.as_of),
            "sample": found.sample,
            "preview_token": f"pv_{found.token}",
        }
    )


async def start(request: Request) -> Answer:
    """Start an operation that was previewed."""
    said: inputs.Started = request.body
    try:
        token = UUID(said.preview_token.removeprefix("pv_"))
    except ValueError:
        token = UUID(int=0)
    return await _begin(request, token, said.rate)


async def stop_operation(request: Request) -> Answer:
    """Stop an operation; what it changed stays changed."""
    found = await look.find_operation(request)
    stopped = await request.client.operations.cancel(found.id, actor=request.actor)
    assert stopped is not None
    if stopped.state != "cancelled":
        raise Problem(409, "HF409", f"operation {found.id} is {stopped.state}", state=stopped.state)
    request.live.note_change()
    return Answer(operation(stopped))


async def undo_operation(request: Request) -> Answer:
    """Undo an operation.

    The undo is an operation too, and is returned. It changes jobs that are still as the first
    operation left them: retried jobs that have not started are dead again, cancelled jobs are
    queued again, archived and moved jobs go back. Deleted jobs cannot be restored. An operation
    can be undone for seven days.
    """
    said: inputs.Undone = request.body
    found = await look.find_operation(request)
    started = await request.client.operations.undo(
        found.id, rate=_rate(said.rate), reason=said.reason, actor=request.actor
    )
    assert started is not None
    return begun(request, started)


async def _begin(request: Request, token: UUID, rate: float | str | None) -> Answer:
    started = await request.client.operations.start(token, rate=_rate(rate), actor=request.actor)
    if started is None:
        raise Problem(404, "HF314", "no preview has this token", fix="Create a new preview.")
    return begun(request, started)


def begun(request: Request, started: Operation) -> Answer:
    """Answer that an operation has begun, and run it."""
    request.live.operations.ring()
    place = f"{request.http.scope.get('root_path', '')}/v1/operations/{started.id}"
    return Answer(operation(started), 202, {"Location": place})


def _restored(request: Request, before: Schedule, settings: dict[str, Any]) -> dict[str, Any]:
    """Return the settings; a masked value keeps what is stored."""
    options = settings.get("options") or {}
    stored = {
        "payload": before.payload_json,
        "headers": render.encode(before.options.get("headers")).decode(),
    }
    found = request.live.redaction.restored(
        None, {"payload": settings.get("payload"), **options}, stored
    )
    if "headers" in found:
        found["options"] = options | {"headers": found.pop("headers")}
    return found


def _rate(rate: float | str | None) -> float | None:
    if not isinstance(rate, str):
        return rate
    found = re.fullmatch(r"(\d{1,7}(?:\.\d+)?)\s*(?:/\s*([smh]))?", rate.strip())
    value = float(found[1]) / {"s": 1, "m": 60, "h": 3600}[found[2] or "s"] if found else 0.0
    if not value:
        raise Problem(422, "HF406", f"rate {rate!r} should look like 200/s or 60/m")
    return value


def quoted(text: str) -> str:
    """Return a text, quoted for a filter."""
    return '"' + text.replace("\\", "\\\\").replace('"', '\\"') + '"'


async def _schedule(request: Request, name: str) -> Schedule | None:
    found = await request.client.schedules.get(name)
    if found is not None and not request.user.sees(found.queue):
        raise Problem(403, "HF401", f"schedule {name!r} is not in a queue of {request.user.name}")
    return found


async def _known_schedule(request: Request, name: str) -> Schedule:
    found = await _schedule(request, name)
    if found is None:
        raise UnknownSchedule(f"no schedule is named {name!r}")
    return found


_EDITABLE = "Fields are: payload, priority, run_at, max_attempts, lease, headers, queue."


async def _mine(request: Request) -> UUID:
    id = await request.job_id()
    if request.user.queues is not None:
        found = await request.reads.jobs.get(id)
        if found is None or not request.user.sees(found.queue):
            raise UnknownJob(id)
    return id


def _changed(request: Request, change: Change) -> Answer:
    if not change.changed:
        if change.state is None:
            raise UnknownJob(change.id)
        raise Problem(
            409, "HF409", change.detail or "nothing was changed", job=change.id, state=change.state
        )
    request.live.note_change()
    told: dict[str, Any] = {"id": change.new_id or change.id, "state": change.state}
    return Answer(told)
