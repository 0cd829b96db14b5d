"""Storing jobs."""

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any
from uuid import UUID

import msgspec

from holdfast.client import AsyncClient
from holdfast.errors import HoldfastError, InvalidJob, Misuse
from holdfast.records import Enqueued, NewJob, Started
from holdfast.server.http import inputs, render
from holdfast.server.http.derive import given
from holdfast.server.http.problems import Problem, problem_of
from holdfast.server.http.request import NDJSON, Answer, Request, decoded, media_type
from holdfast.watch.tracing import TRACEPARENT

# Jobs in one request.
MOST = inputs.MOST_JOBS


async def enqueue(request: Request) -> Answer:
    """Store one job.

    At most one live job of a queue and kind can have the same key: a second one is not stored,
    and the response is 200 with the id of the first.
    """
    wanted: Any = request.body
    _check(request, wanted)
    job = _job(wanted, _trace(request))
    if any(isinstance(one, int) for one in job.after or ()):
        raise InvalidJob(
            f"after {wanted.after} has a number, but this request has one job",
            code="HF214",
            fix="Give ids of jobs; or send all jobs as a list to /v1/jobs/bulk.",
        )
    await _check_after(request, [job])
    for refused in (await _outside(request, [(0, job)])).values():
        raise refused
    if request.is_single:
        stored = await request.live.calls.enqueue(job)
    else:
        [stored] = await request.client.enqueue_many([job])
    request.live.note_change()
    return Answer(_told(stored, wanted), 201 if stored.created else 200)


async def start_workflow(request: Request) -> Answer:
    """Start a workflow with its jobs, in any queues: all of them are stored, or none.

    Numbers in `after` are places in `jobs`, from 1. At most one live workflow of a name can have
    the same key: of a second one nothing is stored, and the response is 200 with the id of the
    first. If a job cannot be stored, `errors` of the problem lists each such job by its index.
    """
    said: inputs.NewWorkflow = request.body
    _check_number(said.jobs)
    jobs = _all_of_workflow(request, said.jobs)
    if said.child_of is not None:
        await _check_workflow(request, said.child_of)
    _refuse_some(await _outside(request, list(enumerate(jobs))))
    await _check_after(request, jobs)
    started = await request.client.workflows.start(
        said.name,
        jobs,
        key=said.key,
        deadline=said.deadline,
        child_of=said.child_of,
        actor=request.actor,
    )
    await _check_live(request, said, started)
    request.live.note_change()
    stored = list(enumerate(started.jobs))
    told = {"id": started.id, "created": started.created, "jobs": _outcomes(stored)}
    return Answer(told, 201 if started.created else 200)


async def send_event(request: Request) -> Answer:
    """Send an event: the job that has waited longest for its name and key goes on.

    If no job waits, the event is kept, and the first that waits takes it.
    """
    said: inputs.NewEvent = request.body
    request.user.check_everywhere()
    await request.client.send_event(
        said.name,
        None if said.payload is msgspec.UNSET else said.payload,
        key=said.key,
        keep=said.keep,
        everyone=said.everyone,
        sender=request.actor,
    )
    request.live.note_change()
    return Answer({"sent": said.name}, 202)


async def bulk(request: Request) -> Answer:
    """Store many jobs: a JSON array, or one JSON object per line.

    Valid jobs are stored; the others are listed in `errors` by their index. Send only those
    again, or use an `Idempotency-Key` to repeat the whole request. If some wait for others
    (`after`), all of them are stored, or none.
    """
    if (jobs := _all_jobs(request)) is not None:
        return await store(request, jobs, lambda job: job)
    return await store(request, _items(request), _read)


async def store(request: Request, items: Iterable[Any], read: Callable[[Any], Any]) -> Answer:
    """Store the jobs that `read` returns for the items."""
    wanted: list[tuple[int, NewJob]] = []
    errors: list[dict[str, Any]] = []
    trace = _trace(request)
    in_order = False
    for index, item in enumerate(items):
        said = None
        try:
            said = read(item)
            _check(request, said)
            wanted.append((index, _job(said, trace)))
        except HoldfastError as error:
            errors.append(_refused(index, error))
        # Also of one that is refused: the others must not be stored without it.
        in_order = in_order or _waits(item if said is None else said)
    outside = await _outside(request, wanted)
    errors += [_refused(index, error) for index, error in outside.items()]
    wanted = [(index, job) for index, job in wanted if index not in outside]
    if in_order:
        await _check_after(request, [job for _, job in wanted])
        stored, refused = await _store_together(request.client, wanted, errors)
    else:
        stored, refused = await _store(request.client, wanted)
    errors = sorted(errors + refused, key=lambda error: error["index"])
    request.live.note_change()
    created = sum(one.created for _, one in stored)
    return Answer(
        {
            "created": created,
            "skipped": len(stored) - created,
            "jobs": _outcomes(stored),
            "errors": errors,
        }
    )


def _outcomes(stored: Iterable[tuple[int, Enqueued]]) -> list[dict[str, Any]]:
    """Return what became of each job of a request, by its index."""
    return [
        {"index": index, "id": one.id, "created": one.created}
        | ({"duplicate_of": one.duplicate_of} if one.duplicate_of else {})
        for index, one in stored
    ]


def _all_of_workflow(request: Request, items: Sequence[bytes]) -> list[NewJob]:
    """Read the jobs of a workflow; if one is refused, so is the request, which names them all."""
    jobs: list[NewJob] = []
    refused: dict[int, HoldfastError] = {}
    trace = _trace(request)
    for index, item in enumerate(items):
        where = f"job {index + 1}"
        try:
            said = decoded(item, inputs.NewJob, where=where)
            if said.workflow is not None:
                raise Problem(
                    422,
                    "HF406",
                    f"{where}: workflow {said.workflow!r} is not allowed here",
                    fix="Leave it out: the job belongs to the workflow that the request starts.",
                )
            _check(request, said)
            jobs.append(_job(said, trace))
        except HoldfastError as error:
            refused[index] = error
    _refuse_some(refused)
    return jobs


def _refuse_some(refused: Mapping[int, HoldfastError]) -> None:
    """Refuse a request of which some jobs are refused, by their index."""
    if refused:
        first = problem_of(next(iter(refused.values())))
        told = [_refused(index, error) for index, error in refused.items()]
        raise Problem(first.status, first.code, first.what, fix=first.fix, errors=told)


async def _check_live(request: Request, said: inputs.NewWorkflow, started: Started) -> None:
    """Refuse a user of some queues the id of a live workflow that uses others."""
    queues = request.user.queues
    if started.created or queues is None:
        return
    if await request.client.workflows.get(started.id, queues=queues) is None:
        raise Problem(
            403,
            "HF401",
            f"a live workflow {said.name!r} has the key {said.key!r}, and it uses queues that "
            f"{request.user.name} may not use",
            fix="Use another name or key.",
        )


def _all_jobs(request: Request) -> list[Any] | None:
    """Read an array of valid jobs at once; None if it has to be read item by item."""
    if media_type(request.http) == NDJSON:
        return None
    try:
        jobs = _JOBS.decode(request.body)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        return None
    return jobs if len(jobs) <= MOST else None


_JOBS: msgspec.json.Decoder[list[Any]] = msgspec.json.Decoder(list[inputs.NewJob])


def _read(item: bytes) -> Any:
    return decoded(item, inputs.NewJob, where="job")


def _waits(said: Any) -> bool:
    """Tell whether a job, or an item that is not one, names others that it waits for."""
    if isinstance(said, bytes):
        try:
            said = msgspec.json.decode(said)
        except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
            return False
    after = said.get("after") if isinstance(said, dict) else getattr(said, "after", None)
    return bool(after)


def _items(request: Request) -> list[bytes]:
    body: bytes = request.body
    if media_type(request.http) == NDJSON:
        lines = [line for line in body.split(b"\n") if line.strip()]
    else:
        lines = [bytes(item) for item in decoded(body or b"[]", list[msgspec.Raw])]
    _check_number(lines)
    return lines


def _check_number(items: Sequence[bytes]) -> None:
    if len(items) > MOST:
        raise Problem(413, "HF413", f"{len(items)} jobs in one request; at most {MOST} are allowed")


async def _store(
    client: AsyncClient, jobs: list[tuple[int, NewJob]]
) -> tuple[list[tuple[int, Enqueued]], list[dict[str, Any]]]:
    """Store jobs; if one is refused, split them in two halves and try each half."""
    if not jobs:
        return [], []
    try:
        async with client.attempt():
            stored = await client.enqueue_many(job for _, job in jobs)
    except Misuse as error:
        if len(jobs) == 1:
            return [], [_refused(jobs[0][0], error)]
        half = len(jobs) // 2
        first, first_errors = await _store(client, jobs[:half])
        second, second_errors = await _store(client, jobs[half:])
        return first + second, first_errors + second_errors
    return [(index, one) for (index, _), one in zip(jobs, stored, strict=True)], []


async def _check_after(request: Request, jobs: Sequence[NewJob]) -> None:
    """Refuse a user of some queues to wait for jobs of others, whose results would be taken."""
    if request.user.queues is None:
        return
    mine = {job.id for job in jobs}
    asked = {one for job in jobs for one in job.after or () if isinstance(one, UUID)}
    for id in sorted(asked - mine):
        found = await request.client.jobs.get(id)
        if found is None or not request.user.sees(found.queue):
            raise InvalidJob(f"job {id} is not known, so nothing can wait for it", code="HF214")


async def _store_together(
    client: AsyncClient, jobs: list[tuple[int, NewJob]], errors: list[dict[str, Any]]
) -> tuple[list[tuple[int, Enqueued]], list[dict[str, Any]]]:
    """Store jobs of which some wait for others: all of them, or none."""
    if errors:
        return [], []
    stored = await client.enqueue_many(job for _, job in jobs)
    return [(index, one) for (index, _), one in zip(jobs, stored, strict=True)], []


def _refused(index: int, error: HoldfastError) -> dict[str, Any]:
    told = {"index": index, "code": error.code, "detail": error.what}
    return told | ({"fix": error.fix} if error.fix else {})


def _trace(request: Request) -> Mapping[str, str]:
    """Return the trace of a request, for jobs that do not name their own."""
    headers = request.http.headers
    if not TRACEPARENT.fullmatch(headers.get("traceparent", "")):
        return {}
    found = {name: headers.get(name, "") for name in ("traceparent", "tracestate")}
    return {name: text for name, text in found.items() if 0 < len(text) <= 512}


def _check(request: Request, wanted: Any) -> None:
    """Refuse a job of a queue that is not the user's."""
    request.user.check_queues([wanted.queue])


async def _outside(
    request: Request, jobs: Sequence[tuple[int, NewJob]]
) -> dict[int, HoldfastError]:
    """Find jobs that a user of some queues would add to workflows with jobs in others."""
    if request.user.queues is None:
        return {}
    refused: dict[UUID, HoldfastError | None] = {}
    outside: dict[int, HoldfastError] = {}
    for index, job in jobs:
        for id in filter(None, (job.workflow, job.child_of)):
            if id not in refused:
                refused[id] = None
                try:
                    await _check_workflow(request, id)
                except HoldfastError as error:
                    refused[id] = error
            if (refusal := refused[id]) is not None:
                outside[index] = refusal
    return outside


async def _check_workflow(request: Request, id: UUID) -> None:
    """Refuse a user of some queues a workflow that is not within them, or that does not exist.

    One that gets a job in another queue meanwhile is fine: the user came first.
    """
    queues = request.user.queues
    if queues is not None and not await request.client.workflows.within(id, queues):
        raise Problem(
            403,
            "HF401",
            f"{request.user.name} may not add to the workflow of {id}: it has jobs in queues "
            "other than those of the user, or none, or does not exist",
            fix=f"Its queues are: {', '.join(queues)}.",
        )


def _job(wanted: Any, trace: Mapping[str, str]) -> NewJob:
    fields = given(wanted)
    if trace and "traceparent" not in (wanted.headers or {}):
        fields["headers"] = {**(wanted.headers or {}), **trace}
    if wanted.id is not None:
        fields["id"] = _id(wanted.id)
    for name in ("workflow", "child_of"):
        if (text := getattr(wanted, name)) is not None:
            fields[name] = _id(text)
    if wanted.after is not None:
        fields["after"] = [one if isinstance(one, int) else _id(one) for one in wanted.after]
    return NewJob(**fields)


def _id(text: str) -> UUID:
    try:
        return UUID(text)
    except ValueError:
        raise InvalidJob(f"id {text!r} is not a UUID", code="HF205") from None


def _told(stored: Enqueued, wanted: Any) -> dict[str, object]:
    told: dict[str, object] = {"id": stored.id, "state": "queued", "created": stored.created}
    if stored.created and wanted.run_at is not None:
        told["run_at"] = render.moment(wanted.run_at)
    if stored.duplicate_of is not None:
        told["duplicate_of"] = stored.duplicate_of
    if stored.behind is not None:
        told["behind"] = stored.behind
    if stored.holder is not None:
        told["holder"] = stored.holder
        told["held_since"] = render.moment(stored.held_since)
    return told
