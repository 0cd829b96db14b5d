"""What operators do: to jobs, queues, schedules and workers. All of it is put on record."""

import re
from collections.abc import Sequence
from datetime import timedelta
from typing import Any, Literal
from uuid import UUID

from msgspec import UNSET
from msgspec.structs import asdict

from holdfast.errors import (
    UnknownJob,
    UnknownQueue,
    UnknownSchedule,
    UnknownStrike,
    UnknownWorker,
)
from holdfast.records import Change, Operation, Schedule
from holdfast.server import answers, bodies, look
from holdfast.server.call import Answer, Call
from holdfast.server.feed import operation
from holdfast.server.problems import Problem


async def retry(call: Call) -> Answer:
    """Give an ended job another life."""
    said: bodies.Retried = call.said
    id = await _mine(call)
    [change] = await call.client.jobs.retry(
        [id], reason=said.reason, actor=call.actor, delay=said.delay
    )
    return _changed(call, change)


async def cancel(call: Call) -> Answer:
    """Stop a job that waits or runs; a running handler is told."""
    said: bodies.Reason = call.said
    id = await _mine(call)
    [change] = await call.client.jobs.cancel([id], reason=said.reason, actor=call.actor)
    return _changed(call, change)


async def archive(call: Call) -> Answer:
    """Put an ended job away, where nobody counts or groups it."""
    said: bodies.Reason = call.said
    id = await _mine(call)
    [change] = await call.client.jobs.archive([id], reason=said.reason, actor=call.actor)
    return _changed(call, change)


async def purge(call: Call) -> Answer:
    """Delete a job for good."""
    id = await _mine(call)
    [change] = await call.client.jobs.purge([id], actor=call.actor)
    return _changed(call, change)


async def edit(call: Call) -> Answer:
    """Change a job that waits or is dead; another queue makes another id of it."""
    said: bodies.Edited = call.said
    if said.queue is not UNSET:
        call.user.check_queues([said.queue])
    id = await _mine(call)
    changes = {
        name: value
        for name in ("payload", "priority", "run_at", "max_attempts", "lease", "headers")
        if (value := getattr(said, name)) is not UNSET
    }
    if not changes and said.queue is UNSET:
        raise Problem(422, "HF222", "nothing to change", fix=_EDITABLE)
    if call.live.settings.redact and (found := await call.client.jobs.get(id)):
        changes |= call.live.redaction.restored(
            found.kind, changes, {"payload": found.payload_json, "headers": found.headers_json}
        )
    answer = Answer({})
    if changes:
        [change] = await call.client.jobs.edit(
            [id], reason=said.reason, actor=call.actor, **changes
        )
        answer = _changed(call, change)
    if said.queue is not UNSET:
        [change] = await call.client.jobs.move(
            [id], said.queue, reason=said.reason, actor=call.actor
        )
        answer = _changed(call, change)
    return answer


async def change_many(
    call: Call,
    verb: Literal["retry", "archive", "purge", "move"],
    ids: Sequence[UUID],
    *,
    reason: str | None = None,
    queue: str = "",
    state: str | None = None,
) -> dict[UUID, Change]:
    """Do one verb to named jobs, in `state` if one is given.

    Of those that are not the user's, it says that there are none.
    """
    if queue:
        call.user.check_queues([queue])
    told = {id: Change(id, changed=False, state=None) for id in ids}
    mine = list(told)
    if call.user.queues is not None or state is not None:
        mine = []
        for id in told:
            job = await call.client.jobs.get(id)
            if job is None or not call.user.sees(job.queue):
                continue
            if state in (None, job.state):
                mine.append(id)
            else:
                told[id] = Change(id, changed=False, state=job.state, detail=f"it is {job.state}")
    about: dict[str, Any] = {"reason": reason, "actor": call.actor}
    if verb == "move":
        changes = await call.client.jobs.move(mine, queue, **about)
    else:
        changes = await getattr(call.client, verb)(mine, **about)
    call.live.note_change()
    return told | {change.id: change for change in changes}


async def pause(call: Call) -> Answer:
    """Hand out nothing more of a queue."""
    said: bodies.Paused = call.said
    queue = call.part("queue")
    call.user.check_queues([queue])
    until = said.until
    if said.seconds is not None:
        until = await call.client.now() + timedelta(seconds=said.seconds)
    found = await call.client.queues.pause(queue, reason=said.reason, until=until, actor=call.actor)
    return Answer(answers.record(found))


async def resume(call: Call) -> Answer:
    """Hand out jobs of a queue again."""
    queue = call.part("queue")
    call.user.check_queues([queue])
    return Answer(answers.record(await call.client.queues.resume(queue, actor=call.actor)))


async def queue_set(call: Call) -> Answer:
    """Change settings of a queue."""
    settings: dict[str, Any] = call.said
    queue = call.part("queue")
    call.user.check_queues([queue])
    if unknown := settings.keys() & {"queue", "actor", "self"}:
        raise Problem(422, "HF221", f"setting {min(unknown)!r} of a queue is unknown")
    found = await call.client.queues.set(queue, actor=call.actor, **settings)
    return Answer(answers.record(found))


async def drain(call: Call) -> Answer:
    """Cancel all that waits in a queue, as an operation."""
    said: bodies.Drained = call.said
    queue = call.part("queue")
    call.user.check_queues([queue])
    if await call.client.queues.get(queue) is None:
        raise UnknownQueue(queue)
    preview = await call.client.operations.preview(
        "cancel",
        f"state:queued queue:{quoted(queue)} {call.user.filter}".strip(),
        reason=said.reason or f"queue {queue} drained",
        actor=call.actor,
    )
    return await _begin(call, preview.token, said.rate)


async def put_schedule(call: Call) -> Answer:
    """Make a schedule, or make another one of it."""
    said: bodies.NewSchedule = call.said
    name = call.part("name")
    call.user.check_queues([said.queue])
    before = await _schedule(call, name)
    settings = {key: value for key, value in asdict(said).items() if value is not UNSET}
    if before is None:
        settings = {key: value for key, value in settings.items() if value is not None}
    else:
        settings |= _restored(call, before, settings)
    found = await call.client.schedules.set(name, actor=call.actor, **settings)
    return Answer(look.schedule_record(call, found), 201 if before is None else 200)


async def change_schedule(call: Call) -> Answer:
    """Change a schedule, pause it or resume it."""
    said: bodies.ChangedSchedule = call.said
    name = call.part("name")
    found = await _known_schedule(call, name)
    settings = {
        key: value
        for key, value in asdict(said).items()
        if value is not UNSET and key not in ("paused", "reason")
    }
    if "queue" in settings:
        call.user.check_queues([settings["queue"]])
    settings |= _restored(call, found, settings)
    if settings:
        found = await call.client.schedules.set(name, actor=call.actor, **settings)
    if said.paused is True:
        found = await call.client.schedules.pause(name, reason=said.reason, actor=call.actor)
    elif said.paused is False:
        found = await call.client.schedules.resume(name, actor=call.actor)
    elif not settings:
        raise Problem(422, "HF222", "nothing to change")
    return Answer(look.schedule_record(call, found))


async def delete_schedule(call: Call) -> Answer:
    """Delete a schedule; its jobs stay."""
    name = call.part("name")
    await _known_schedule(call, name)
    await call.client.schedules.delete(name, actor=call.actor)
    return Answer({"name": name, "deleted": True})


async def run_schedule(call: Call) -> Answer:
    """Enqueue one job of a schedule now."""
    name = call.part("name")
    await _known_schedule(call, name)
    slot = await call.client.schedules.run(name, actor=call.actor)
    call.live.note_change()
    return Answer({"name": name, **answers.record(slot)}, 201)


async def stop_worker(call: Call) -> Answer:
    """Ask a worker to finish what it runs and end."""
    call.user.check_everywhere()
    name = call.part("worker")
    if not await call.client.workers.stop(name, actor=call.actor):
        raise UnknownWorker(f"no worker of the last day is named {name!r}")
    return Answer({"worker": name, "stopping": True}, 202)


async def release_lane(call: Call) -> Answer:
    """Let a lane go on that is halted, or whose holder is gone."""
    said: bodies.LaneOf = call.said
    lane = call.part("lane")
    call.user.check_queues([said.queue])
    done = await call.client.lanes.release(said.queue, lane, actor=call.actor)
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
    call.live.note_change(said.queue)
    return Answer({"queue": said.queue, "lane": lane, **answers.record(done)})


async def strike(call: Call) -> Answer:
    """Let no job run that fits."""
    said: bodies.NewStrike = call.said
    if said.queue is not None:
        call.user.check_queues([said.queue])
    else:
        call.user.check_everywhere()
    call.live.redaction.check_payload(said.payload)
    made = await call.client.strikes.add(
        queue=said.queue,
        kind=said.kind,
        payload=said.payload,
        mode=said.mode,
        reason=said.reason,
        expires=said.expires,
        actor=call.actor,
    )
    call.live.note_change()
    return Answer(look.strike(call, made), 201)


async def lift(call: Call) -> Answer:
    """Let the jobs of a strike run again."""
    text = call.part("number")
    number = int(text) if text.isdecimal() and len(text) < 18 else -1
    known = {one.number: one for one in await call.client.strikes.list(all=True)}
    if number not in known:
        raise UnknownStrike(text)
    queue = known[number].queue
    if queue is None:
        call.user.check_everywhere()
    else:
        call.user.check_queues([queue])
    lifted = await call.client.strikes.lift(number, actor=call.actor)
    assert lifted is not None
    call.live.note_change()
    return Answer(look.strike(call, lifted))


async def preview(call: Call) -> Answer:
    """Count the jobs that an operation would be done to."""
    said: bodies.Previewed = call.said
    call.live.redaction.check_filter(said.q)
    if said.queue is not None:
        call.user.check_queues([said.queue])
    found = await call.client.operations.preview(
        said.op,
        f"{said.q} {call.user.filter}".strip(),
        most=said.limit,
        reason=said.reason,
        actor=call.actor,
        delay=said.delay,
        queue=said.queue,
    )
    return Answer(
        {
            "op": said.op,
            "q": found.selects,
            "count": found.total,
            "capped": found.capped,
            "as_of": answers.moment(found.as_of),
            "sample": found.sample,
            "preview_token": f"pv_{found.token}",
        }
    )


async def start(call: Call) -> Answer:
    """Carry out what was previewed."""
    said: bodies.Started = call.said
    try:
        token = UUID(said.preview_token.removeprefix("pv_"))
    except ValueError:
        token = UUID(int=0)
    return await _begin(call, token, said.rate)


async def stop_operation(call: Call) -> Answer:
    """Stop an operation behind its last chunk; what it did stays done."""
    found = await look.find_operation(call)
    stopped = await call.client.operations.cancel(found.id, actor=call.actor)
    assert stopped is not None
    if stopped.state != "cancelled":
        raise Problem(409, "HF409", f"operation {found.id} is {stopped.state}", state=stopped.state)
    call.live.note_change()
    return Answer(operation(stopped))


async def undo_operation(call: Call) -> Answer:
    """Undo what an operation did, as far as jobs are as it left them."""
    said: bodies.Undone = call.said
    found = await look.find_operation(call)
    started = await call.client.operations.undo(
        found.id, rate=_rate(said.rate), reason=said.reason, actor=call.actor
    )
    assert started is not None
    return _begun(call, started)


async def _begin(call: Call, token: UUID, rate: float | str | None) -> Answer:
    started = await call.client.operations.start(token, rate=_rate(rate), actor=call.actor)
    if started is None:
        raise Problem(404, "HF314", "there is no such preview", fix="Preview it again.")
    return _begun(call, started)


def _begun(call: Call, started: Operation) -> Answer:
    call.live.operations.ring()
    place = f"{call.request.scope.get('root_path', '')}/v1/operations/{started.id}"
    return Answer(operation(started), 202, {"Location": place})


def _restored(call: Call, before: Schedule, settings: dict[str, Any]) -> dict[str, Any]:
    """Return the settings that hold a mask, with what is behind it as it was."""
    options = settings.get("options") or {}
    stored = {
        "payload": before.payload_json,
        "headers": answers.encode(before.options.get("headers")).decode(),
    }
    found = call.live.redaction.restored(
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
        raise Problem(422, "HF406", f"rate {rate!r} is not one such as 200/s or 60/m")
    return value


def quoted(text: str) -> str:
    """Return a text as a filter takes it, whatever is in it."""
    return '"' + text.replace("\\", "\\\\").replace('"', '\\"') + '"'


async def _schedule(call: Call, name: str) -> Schedule | None:
    found = await call.client.schedules.get(name)
    if found is not None and not call.user.sees(found.queue):
        raise Problem(403, "HF401", f"schedule {name!r} is not in a queue of {call.user.name}")
    return found


async def _known_schedule(call: Call, name: str) -> Schedule:
    found = await _schedule(call, name)
    if found is None:
        raise UnknownSchedule(f"no schedule is named {name!r}")
    return found


_EDITABLE = "Fields are: payload, priority, run_at, max_attempts, lease, headers, queue."


async def _mine(call: Call) -> UUID:
    id = await call.job_id()
    if call.user.queues is not None:
        found = await call.reads.jobs.get(id)
        if found is None or not call.user.sees(found.queue):
            raise UnknownJob(id)
    return id


def _changed(call: Call, change: Change) -> Answer:
    if not change.changed:
        if change.state is None:
            raise UnknownJob(change.id)
        raise Problem(
            409, "HF409", change.detail or "nothing was changed", job=change.id, state=change.state
        )
    call.live.note_change()
    told: dict[str, Any] = {"id": change.new_id or change.id, "state": change.state}
    return Answer(told)
