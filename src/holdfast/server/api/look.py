"""Reading: jobs, dead groups, queues, workers, schedules, kinds."""

import base64
import binascii
from datetime import UTC, datetime, timedelta
from functools import partial
from typing import Any
from uuid import UUID

from holdfast import cron
from holdfast.errors import InvalidSchedule, UnknownJob, UnknownQueue, UnknownSchedule
from holdfast.records import Event, Job, Operation, Schedule, Strike, Success, WorkerRow
from holdfast.server.http import inputs, render
from holdfast.server.http.problems import Problem
from holdfast.server.http.request import Answer, Request
from holdfast.server.live.feed import operation

# A list shows payloads up to this many characters, and only the beginning of larger ones.
PREVIEW = 2000
HOUR = timedelta(hours=1)
DAY = timedelta(days=1)
# How many coming slots of a schedule are shown.
NEXT = 10


async def jobs(request: Request) -> Answer:
    """List jobs that match a filter, newest first."""
    asked: inputs.Page = request.query
    return await _page(request, asked, asked.q)


async def export(request: Request) -> Answer:
    """List jobs that match a filter with their whole payloads, newest first."""
    asked: inputs.Page = request.query
    return await _page(request, asked, asked.q, whole=True)


async def dead(request: Request) -> Answer:
    """List dead jobs, newest first or by when they failed."""
    asked: inputs.DeadPage = request.query
    if asked.order == "failed":
        return await _died(request, asked)
    return await _page(request, asked, f"state:dead {asked.q}".strip())


async def upcoming(request: Request) -> Answer:
    """List the jobs that wait in a queue, in the order in which they will run.

    Ready jobs come first, by priority and age, then scheduled jobs. Jobs that wait for another
    job to end are left out. A fair queue takes its tenants in turn.
    """
    name = request.part("queue")
    if not request.user.sees(name) or await request.reads.queues.get(name) is None:
        raise UnknownQueue(name)
    jobs = await request.reads.queues.upcoming(name, limit=request.query.limit)
    return Answer({"jobs": [_short(request, one) for one in jobs], "cursor": None})


async def job(request: Request) -> Answer:
    """Show everything known about a job, and why it is not running."""
    found = await _found(request)
    told = request.live.redaction.record(found)
    explained = await request.reads.jobs.explain(found.id)
    told["explain"] = explained and request.live.redaction.text(found, explained)
    include = set(request.query.include.split(","))
    if "attempts" in include:
        attempts = await request.reads.jobs.attempts(found.id)
        told["attempts"] = [request.live.redaction.attempt(found, one) for one in attempts]
    if "events" in include:
        page = await request.reads.activity.list(job=found.id, limit=200)
        told["events"] = [
            event
            | {"reason": event["reason"] and request.live.redaction.text(found, event["reason"])}
            for event in (_event(request, one) for one in page.events)
        ]
    if "steps" in include:
        steps = await request.reads.steps.list(found.id)
        told["steps"] = [request.live.redaction.step(found, one) for one in steps]
    return Answer(told)


async def job_log(request: Request) -> Answer:
    """Show what the handlers of a job logged while they ran: its newest lines, oldest first."""
    asked: inputs.LinesOf = request.query
    found = await _found(request)
    lines = await request.reads.jobs.lines(found.id, after=asked.after, newest=asked.limit)
    return Answer({"lines": request.live.redaction.lines(found, lines)})


async def queues(request: Request) -> Answer:
    """List queues with their settings and counts."""
    found = [queue for queue in await request.live.queues() if request.user.sees(queue.queue)]
    return Answer({"queues": [render.record(queue) for queue in found]})


async def queue(request: Request) -> Answer:
    """Show one queue, its kinds of jobs, and how many attempts succeeded."""
    name = request.part("queue")
    found = await request.reads.queues.get(name) if request.user.sees(name) else None
    if found is None:
        raise UnknownQueue(name)
    depth = [one for one in await request.live.depth() if one.queue == name and one.jobs]
    kinds = [{"kind": one.kind, "state": one.state, "jobs": one.jobs} for one in depth]
    hour, day = [await request.reads.queues.success(name, span=span) for span in (HOUR, DAY)]
    success = {"hour": [_rate(one) for one in hour], "day": [_rate(one) for one in day]}
    return Answer(render.record(found) | {"kinds": kinds, "success": success})


async def explain_queue(request: Request) -> Answer:
    """Explain the state of a queue, and what holds it up."""
    name = request.part("queue")
    if not request.user.sees(name) or await request.reads.queues.get(name) is None:
        raise UnknownQueue(name)
    return Answer({"queue": name, "explain": await request.reads.queues.explain(name)})


def _rate(one: Success) -> dict[str, Any]:
    return {"kind": one.kind, "done": one.done, "failed": one.failed, "rate": one.rate}


async def dead_groups(request: Request) -> Answer:
    """List dead jobs by how they failed, the largest group first."""
    groups = [one for one in await request.live.dead_groups() if request.user.sees(one.queue)]
    told = [render.record(one) | {"group": one.fingerprint} for one in groups]
    return Answer({"groups": told})


async def workers(request: Request) -> Answer:
    """List the workers of the last day, HTTP consumers among them."""
    return Answer({"workers": [render.record(one) for one in await _workers(request)]})


async def schedules(request: Request) -> Answer:
    """List schedules."""
    found = [one for one in await request.live.schedules() if request.user.sees(one.queue)]
    return Answer({"schedules": [schedule_record(request, one) for one in found]})


async def schedule(request: Request) -> Answer:
    """Show one schedule with its last and next slots."""
    name = request.part("name")
    found = await request.reads.schedules.get(name)
    if found is None or not request.user.sees(found.queue):
        raise UnknownSchedule(f"no schedule is named {name!r}")
    slots = await request.reads.schedules.slots(name, limit=20)
    told = schedule_record(request, found) | {"slots": [render.record(one) for one in slots]}
    rule = _rule(found)
    if rule is not None and found.state == "active":
        told["next"] = cron.next_slots(rule, await request.reads.now(), NEXT)
    return Answer(told)


def schedule_record(request: Request, one: Schedule) -> dict[str, Any]:
    """Return a schedule as JSON, with its rule in English."""
    rule = _rule(one)
    return request.live.redaction.schedule(one) | {"explain": rule.explain() if rule else None}


async def kinds(request: Request) -> Answer:
    """List kinds: what workers declared about them, who handles them, how many jobs they have."""
    declared = {kind.kind: kind for kind in await request.live.kinds()}
    jobs: dict[str, dict[str, int]] = {}
    for depth in await request.live.depth():
        if depth.jobs and request.user.sees(depth.queue):
            states = jobs.setdefault(depth.kind, {})
            states[depth.state] = states.get(depth.state, 0) + depth.jobs
    handled: dict[str, list[str]] = {}
    for worker in await _workers(request):
        for kind in worker.kinds if worker.alive else ():
            handled.setdefault(kind, []).append(worker.worker)
    names = sorted(jobs.keys() | (declared.keys() if request.user.queues is None else set()))
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


async def lanes(request: Request) -> Answer:
    """List lanes, the longest waiting first."""
    found = [one for one in await request.live.lanes() if request.user.sees(one.queue)]
    return Answer({"lanes": [render.record(one) for one in found]})


async def explain_lane(request: Request) -> Answer:
    """Explain which job holds a lane, and what is next in it."""
    asked: inputs.LaneOf = request.query
    request.user.check_queues([asked.queue])
    lane = request.part("lane")
    why = await request.reads.lanes.explain(asked.queue, lane)
    return Answer({"queue": asked.queue, "lane": lane, "explain": why})


async def operations(request: Request) -> Answer:
    """List operations, the newest first; a token for some queues sees its own."""
    found = await request.reads.operations.list(limit=request.query.limit)
    return Answer({"operations": [operation(one) for one in found if _is_mine(request, one)]})


async def one_operation(request: Request) -> Answer:
    """Show how far an operation has come."""
    return Answer(operation(await find_operation(request)))


async def find_operation(request: Request) -> Operation:
    """Return the operation in the path; refuse an unknown id."""
    text = request.part("id")
    known = text.isdecimal() and len(text) < 18
    found = await request.reads.operations.get(int(text)) if known else None
    if found is None or not _is_mine(request, found):
        raise Problem(404, "HF314", f"no operation has the id {text}")
    return found


async def series(request: Request) -> Answer:
    """Show a metric over time.

    There is no point if nothing was measured. The step may be larger than requested.
    """
    asked: inputs.Series = request.query
    start = asked.start
    since = datetime.fromtimestamp(start, UTC) if isinstance(start, int | float) else start
    points = await request.reads.activity.series(
        asked.metric,
        queues=_queues_of(request, asked.queue),
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


async def activity(request: Request) -> Answer:
    """List events and actions of operators, the newest first.

    How much is recorded is a setting of each queue. A short page with a cursor means that the
    search stopped early; the next page continues there.
    """
    asked: inputs.Asked = request.query
    job = None
    if asked.job:
        request.http.path_params["id"] = asked.job
        job = await request.job_id()
    page = await request.reads.activity.list(
        queues=_queues_of(request, asked.queue),
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
            "events": [_event(request, one) for one in page.events],
            "cursor": None if last is None else str(last),
        }
    )


async def strikes(request: Request) -> Answer:
    """List the strikes: rules that keep jobs from running, the newest first."""
    found = await request.reads.strikes.list(all=request.query.all)
    seen = [one for one in found if one.queue is None or request.user.sees(one.queue)]
    return Answer({"strikes": [strike(request, one) for one in seen]})


def strike(request: Request, one: Strike) -> dict[str, Any]:
    """Return a strike as JSON, redacted."""
    told = render.record(one)
    return told | {"payload": request.live.redaction.payload(one.kind, told["payload"])}


def _event(request: Request, one: Event) -> dict[str, Any]:
    return render.event(one, request.live.redaction)


def _queues_of(request: Request, queue: str) -> list[str] | None:
    if queue:
        request.user.check_queues([queue])
        return [queue]
    return None if request.user.queues is None else list(request.user.queues)


def _is_mine(request: Request, one: Operation) -> bool:
    """Whether a user may see an operation; with some queues, only operations of these queues."""
    if request.user.queues is None:
        return True
    return one.actor == request.user.name and request.user.filter in one.filter.split()


async def _workers(request: Request) -> list[WorkerRow]:
    return [
        one
        for one in await request.live.workers()
        if request.user.queues is None or any(map(request.user.sees, one.queues))
    ]


def _rule(one: Schedule) -> cron.Rule | None:
    try:
        return cron.rule(cron=one.cron, every=one.every, anchor=one.anchor, tz=one.tz)
    except InvalidSchedule:
        return None  # created by a machine with other time zones; `problem` explains it


async def _found(request: Request) -> Job:
    """Return the job that is asked for; raises unless the caller may see it."""
    id = await request.job_id()
    found = await request.reads.jobs.get(id)
    if found is None:
        await _raise_if_remembered(request, id)
    if found is None or not request.user.sees(found.queue):
        raise UnknownJob(id)
    return found


async def _raise_if_remembered(request: Request, id: UUID) -> None:
    known = await request.reads.jobs.receipt(id)
    if known is None or known.outcome != "acked" or not request.user.sees(known.queue):
        return
    raise Problem(
        410,
        "HF410",
        f"job {id} was done by {known.worker} and deleted",
        fix="Set keep_done of its queue to keep all done jobs for a while.",
        job=id,
        queue=known.queue,
        worker=known.worker,
        claimed_at=render.moment(known.claimed_at),
        state="done",
    )


async def _page(
    request: Request, asked: inputs.Page, filter: str, *, whole: bool = False
) -> Answer:
    request.live.redaction.check_filter(filter)
    filter = f"{filter} {request.user.filter}".strip()
    before = _behind(asked.cursor) if asked.cursor else None
    found = await request.reads.jobs.search(filter, limit=asked.limit + 1, before=before)
    shown = found.jobs[: asked.limit]
    record = request.live.redaction.record if whole else partial(_short, request)
    told: dict[str, Any] = {"jobs": [record(one) for one in shown], "cursor": None}
    if len(found.jobs) > asked.limit:
        told["cursor"] = _cursor(shown[-1].id)
    elif found.searched_to is not None:
        at = datetime.fromtimestamp((found.searched_to.int >> 80) / 1000, UTC)
        told |= {"cursor": _cursor(found.searched_to), "searched_to": at}
        told["searched"] = found.searched
    if asked.count:
        counted = await request.reads.jobs.count(filter)
        told |= {"count": counted.jobs, "capped": counted.capped}
    return Answer(told)


async def _died(request: Request, asked: inputs.DeadPage) -> Answer:
    request.live.redaction.check_filter(asked.q)
    filter = f"{asked.q} {request.user.filter}".strip()
    before = _behind_failure(asked.cursor) if asked.cursor else None
    found = await request.reads.dead.list(filter, limit=asked.limit + 1, before=before)
    shown = found[: asked.limit]
    told: dict[str, Any] = {"jobs": [_short(request, one) for one in shown], "cursor": None}
    if len(found) > asked.limit and (ended_at := shown[-1].ended_at) is not None:
        told["cursor"] = _packed(f"{ended_at.isoformat()} {shown[-1].id}".encode())
    if asked.count:
        counted = await request.reads.jobs.count(f"state:dead {filter}".strip())
        told |= {"count": counted.jobs, "capped": counted.capped}
    return Answer(told)


def _short(request: Request, job: Job) -> dict[str, Any]:
    told: dict[str, Any] = request.live.redaction.record(job)
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
        f"cursor {cursor!r} was not made by this server",
        fix="Pass the cursor of the previous page, or none.",
    )
