"""Looking: jobs, dead ones by how they failed, queues, workers, schedules, kinds."""

import base64
import binascii
from datetime import UTC, datetime, timedelta
from functools import partial
from typing import Any
from uuid import UUID

from holdfast import cron
from holdfast.errors import InvalidSchedule, UnknownJob, UnknownQueue, UnknownSchedule
from holdfast.records import Event, Job, Operation, Schedule, Strike, Success, WorkerRow
from holdfast.server import answers, bodies
from holdfast.server.call import Answer, Call
from holdfast.server.feed import operation
from holdfast.server.problems import Problem

# A list shows payloads up to this many characters; of larger ones only the beginning.
PREVIEW = 2000
HOUR = timedelta(hours=1)
DAY = timedelta(days=1)
# Slots to come that are told of a schedule.
NEXT = 10


async def jobs(call: Call) -> Answer:
    """List jobs that match a filter, newest first."""
    asked: bodies.Page = call.asked
    return await _page(call, asked, asked.q)


async def export(call: Call) -> Answer:
    """List jobs that match a filter with their whole payloads, newest first."""
    asked: bodies.Page = call.asked
    return await _page(call, asked, asked.q, whole=True)


async def dead(call: Call) -> Answer:
    """List dead jobs, newest first or those that failed last first."""
    asked: bodies.DeadPage = call.asked
    if asked.order == "failed":
        return await _died(call, asked)
    return await _page(call, asked, f"state:dead {asked.q}".strip())


async def upcoming(call: Call) -> Answer:
    """List what waits in a queue, in the order in which it will run."""
    name = call.part("queue")
    if not call.user.sees(name) or await call.reads.queues.get(name) is None:
        raise UnknownQueue(name)
    jobs = await call.reads.queues.upcoming(name, limit=call.asked.limit)
    return Answer({"jobs": [_short(call, one) for one in jobs], "cursor": None})


async def job(call: Call) -> Answer:
    """Tell everything that is known of a job."""
    id = await call.job_id()
    found = await call.reads.jobs.get(id)
    if found is None:
        await _raise_if_remembered(call, id)
    if found is None or not call.user.sees(found.queue):
        raise UnknownJob(id)
    told = call.live.redaction.record(found)
    told["explain"] = await call.reads.jobs.explain(found.id)
    include = set(call.asked.include.split(","))
    if "attempts" in include:
        attempts = await call.reads.jobs.attempts(found.id)
        told["attempts"] = [call.live.redaction.attempt(found, one) for one in attempts]
    if "events" in include:
        page = await call.reads.activity.list(job=found.id, limit=200)
        told["events"] = [_event(call, one) for one in page.events]
    return Answer(told)


async def queues(call: Call) -> Answer:
    """List queues with their settings and what waits in them."""
    found = [queue for queue in await call.live.queues() if call.user.sees(queue.queue)]
    return Answer({"queues": [answers.record(queue) for queue in found]})


async def queue(call: Call) -> Answer:
    """Tell of one queue, and what kinds of jobs it holds."""
    name = call.part("queue")
    found = await call.reads.queues.get(name) if call.user.sees(name) else None
    if found is None:
        raise UnknownQueue(name)
    depth = [one for one in await call.live.depth() if one.queue == name and one.jobs]
    kinds = [{"kind": one.kind, "state": one.state, "jobs": one.jobs} for one in depth]
    hour, day = [await call.reads.queues.success(name, span=span) for span in (HOUR, DAY)]
    success = {"hour": [_rate(one) for one in hour], "day": [_rate(one) for one in day]}
    return Answer(answers.record(found) | {"kinds": kinds, "success": success})


def _rate(one: Success) -> dict[str, Any]:
    return {"kind": one.kind, "done": one.done, "failed": one.failed, "rate": one.rate}


async def dead_groups(call: Call) -> Answer:
    """List dead jobs by how they failed, the largest group first."""
    groups = [one for one in await call.live.dead_groups() if call.user.sees(one.queue)]
    told = [answers.record(one) | {"group": one.fingerprint} for one in groups]
    return Answer({"groups": told})


async def workers(call: Call) -> Answer:
    """List the workers of the last day, HTTP consumers among them."""
    return Answer({"workers": [answers.record(one) for one in await _workers(call)]})


async def schedules(call: Call) -> Answer:
    """List schedules."""
    found = [one for one in await call.live.schedules() if call.user.sees(one.queue)]
    return Answer({"schedules": [schedule_record(call, one) for one in found]})


async def schedule(call: Call) -> Answer:
    """Tell of one schedule, its last slots and its next ones."""
    name = call.part("name")
    found = await call.reads.schedules.get(name)
    if found is None or not call.user.sees(found.queue):
        raise UnknownSchedule(f"no schedule is named {name!r}")
    slots = await call.reads.schedules.slots(name, limit=20)
    told = schedule_record(call, found) | {"slots": [answers.record(one) for one in slots]}
    rule = _rule(found)
    if rule is not None and found.state == "active":
        told["next"] = cron.next_slots(rule, await call.reads.now(), NEXT)
    return Answer(told)


def schedule_record(call: Call, one: Schedule) -> dict[str, Any]:
    """Return a schedule as JSON can say it, its rule in English too."""
    rule = _rule(one)
    return call.live.redaction.schedule(one) | {"explain": rule.explain() if rule else None}


async def kinds(call: Call) -> Answer:
    """List kinds: what workers declared of them, who handles them, and how many jobs there are."""
    declared = {kind.kind: kind for kind in await call.live.kinds()}
    jobs: dict[str, dict[str, int]] = {}
    for depth in await call.live.depth():
        if depth.jobs and call.user.sees(depth.queue):
            states = jobs.setdefault(depth.kind, {})
            states[depth.state] = states.get(depth.state, 0) + depth.jobs
    handled: dict[str, list[str]] = {}
    for worker in await _workers(call):
        for kind in worker.kinds if worker.alive else ():
            handled.setdefault(kind, []).append(worker.worker)
    names = sorted(jobs.keys() | (declared.keys() if call.user.queues is None else set()))
    return Answer(
        {
            "kinds": [
                {
                    "kind": name,
                    "declared": name in declared,
                    **(declared[name].about if name in declared else {}),
                    "workers": handled.get(name, []),
                    "jobs": jobs.get(name, {}),
                }
                for name in names
            ]
        }
    )


async def lanes(call: Call) -> Answer:
    """List lanes, the longest waiting first."""
    found = [one for one in await call.live.lanes() if call.user.sees(one.queue)]
    return Answer({"lanes": [answers.record(one) for one in found]})


async def operations(call: Call) -> Answer:
    """List operations, the newest first; of a user of some queues, their own."""
    found = await call.reads.operations.list(limit=call.asked.limit)
    return Answer({"operations": [operation(one) for one in found if _is_mine(call, one)]})


async def one_operation(call: Call) -> Answer:
    """Tell how far an operation has come."""
    return Answer(operation(await find_operation(call)))


async def find_operation(call: Call) -> Operation:
    """Return the operation in the path; refuse one there is not."""
    text = call.part("id")
    known = text.isdecimal() and len(text) < 18
    found = await call.reads.operations.get(int(text)) if known else None
    if found is None or not _is_mine(call, found):
        raise Problem(404, "HF314", f"there is no operation {text}")
    return found


async def series(call: Call) -> Answer:
    """Tell a metric over time."""
    asked: bodies.Series = call.asked
    start = asked.start
    since = datetime.fromtimestamp(start, UTC) if isinstance(start, int | float) else start
    points = await call.reads.activity.series(
        asked.metric,
        queues=_queues_of(call, asked.queue),
        kind=asked.kind or None,
        since=since,
        step=asked.step,
    )
    return Answer(
        {
            "metric": asked.metric,
            "queue": asked.queue or None,
            "step": asked.step,
            "points": [(int(at.timestamp()), value) for at, value in points],
        }
    )


async def activity(call: Call) -> Answer:
    """List what happened and what people did, the newest first; behind `after`, the oldest."""
    asked: bodies.Asked = call.asked
    job = None
    if asked.job:
        call.request.path_params["id"] = asked.job
        job = await call.job_id()
    page = await call.reads.activity.list(
        queues=_queues_of(call, asked.queue),
        kind=asked.kind or None,
        event=asked.event or None,
        actor=asked.actor or None,
        worker=asked.worker or None,
        job=job,
        since=asked.start,
        until=asked.end,
        before=int(asked.cursor) if asked.cursor and not asked.after else None,
        after=int(asked.cursor or asked.after) if asked.after else None,
        limit=asked.limit,
    )
    last = page.searched_to
    if last is None and len(page.events) == asked.limit:
        last = page.events[-1].seq
    return Answer(
        {
            "events": [_event(call, one) for one in page.events],
            "cursor": None if last is None else str(last),
        }
    )


async def strikes(call: Call) -> Answer:
    """List rules by which jobs do not run, the newest first."""
    found = await call.reads.strikes.list(all=call.asked.all)
    seen = [one for one in found if one.queue is None or call.user.sees(one.queue)]
    return Answer({"strikes": [strike(call, one) for one in seen]})


def strike(call: Call, one: Strike) -> dict[str, Any]:
    """Return a strike as JSON can say it, without what is redacted."""
    told = answers.record(one)
    return told | {"payload": call.live.redaction.payload(one.kind, told["payload"])}


def _event(call: Call, one: Event) -> dict[str, Any]:
    return answers.event(one, call.live.redaction)


def _queues_of(call: Call, queue: str) -> list[str] | None:
    if queue:
        call.user.check_queues([queue])
        return [queue]
    return None if call.user.queues is None else list(call.user.queues)


def _is_mine(call: Call, one: Operation) -> bool:
    """Whether a user may know of an operation; of some queues, those of their own queues only."""
    if call.user.queues is None:
        return True
    return one.actor == call.user.name and call.user.filter in one.filter.split()


async def _workers(call: Call) -> list[WorkerRow]:
    return [
        one
        for one in await call.live.workers()
        if call.user.queues is None or any(map(call.user.sees, one.queues))
    ]


def _rule(one: Schedule) -> cron.Rule | None:
    try:
        return cron.rule(cron=one.cron, every=one.every, anchor=one.anchor, tz=one.tz)
    except InvalidSchedule:
        return None  # made by a machine with other time zones; `problem` says so


async def _raise_if_remembered(call: Call, id: UUID) -> None:
    known = await call.reads.jobs.receipt(id)
    if known is None or known.outcome != "acked" or not call.user.sees(known.queue):
        return
    raise Problem(
        410,
        "HF410",
        f"job {id} was done by {known.worker} and deleted",
        fix="Set keep_done of its queue to keep done jobs for a while.",
        job=id,
        queue=known.queue,
        worker=known.worker,
        claimed_at=answers.moment(known.claimed_at),
        state="done",
    )


async def _page(call: Call, asked: bodies.Page, filter: str, *, whole: bool = False) -> Answer:
    call.live.redaction.check_filter(filter)
    filter = f"{filter} {call.user.filter}".strip()
    before = _behind(asked.cursor) if asked.cursor else None
    found = await call.reads.jobs.search(filter, limit=asked.limit + 1, before=before)
    shown = found.jobs[: asked.limit]
    record = call.live.redaction.record if whole else partial(_short, call)
    told: dict[str, Any] = {"jobs": [record(one) for one in shown], "cursor": None}
    if len(found.jobs) > asked.limit:
        told["cursor"] = _cursor(shown[-1].id)
    elif found.searched_to is not None:
        at = datetime.fromtimestamp((found.searched_to.int >> 80) / 1000, UTC)
        told |= {"cursor": _cursor(found.searched_to), "searched_to": at}
        told["searched"] = found.searched
    if asked.count:
        counted = await call.reads.jobs.count(filter)
        told |= {"count": counted.jobs, "capped": counted.capped}
    return Answer(told)


async def _died(call: Call, asked: bodies.DeadPage) -> Answer:
    call.live.redaction.check_filter(asked.q)
    filter = f"{asked.q} {call.user.filter}".strip()
    before = _behind_failure(asked.cursor) if asked.cursor else None
    found = await call.reads.dead.list(filter, limit=asked.limit + 1, before=before)
    shown = found[: asked.limit]
    told: dict[str, Any] = {"jobs": [_short(call, one) for one in shown], "cursor": None}
    if len(found) > asked.limit and (ended_at := shown[-1].ended_at) is not None:
        told["cursor"] = _packed(f"{ended_at.isoformat()} {shown[-1].id}".encode())
    if asked.count:
        counted = await call.reads.jobs.count(f"state:dead {filter}".strip())
        told |= {"count": counted.jobs, "capped": counted.capped}
    return Answer(told)


def _short(call: Call, job: Job) -> dict[str, Any]:
    told: dict[str, Any] = call.live.redaction.record(job)
    for name in ("payload", "headers", "result"):
        size = len(getattr(job, f"{name}_json") or "")
        if size > PREVIEW:
            shown = str(bytes(told[name]), "utf-8") if told[name] is not None else ""
            told |= {name: None, f"{name}_preview": shown[:PREVIEW], f"{name}_size": size}
    return told


def _cursor(id: UUID) -> str:
    return _packed(id.bytes)


def _packed(cursor: bytes) -> str:
    return base64.urlsafe_b64encode(cursor).decode().rstrip("=")


def _behind_failure(cursor: str) -> tuple[datetime, UUID]:
    try:
        packed = base64.urlsafe_b64decode(cursor + "=" * (-len(cursor) % 4)).decode()
        at, id = packed.split(" ")
        moment = datetime.fromisoformat(at)
        if moment.tzinfo is None:
            raise ValueError
        return moment, UUID(id)
    except (ValueError, binascii.Error):
        raise _bad_cursor(cursor) from None


def _behind(cursor: str) -> UUID:
    try:
        return UUID(bytes=base64.urlsafe_b64decode(cursor + "=" * (-len(cursor) % 4)))
    except (ValueError, binascii.Error):
        raise _bad_cursor(cursor) from None


def _bad_cursor(cursor: str) -> Problem:
    return Problem(
        422,
        "HF406",
        f"cursor {cursor!r} is none of this server's",
        fix="Pass the cursor of the page before, or none.",
    )
