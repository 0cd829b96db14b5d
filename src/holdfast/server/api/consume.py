"""Leasing jobs and ending leases: what a worker in any language does."""

import itertools
from collections.abc import Sequence
from typing import Any
from uuid import UUID, uuid5

import msgspec
from msgspec import UNSET, UnsetType
from msgspec.structs import replace

from holdfast import jsonb
from holdfast.client import wire
from holdfast.errors import HoldfastError, InvalidJob, LeaseLost, UnknownJob, UnknownQueue
from holdfast.records import Cancelled, Done, Failed, Released, Settled, Settlement, is_reserved
from holdfast.server.doors.access import COOKIE
from holdfast.server.http import inputs, render
from holdfast.server.http.problems import Problem
from holdfast.server.http.request import Answer, Request, decoded

# Stands in for a token that is not a UUID: it never holds a lease.
_NO_TOKEN = UUID(int=0)
_CLAIMS = UUID("4f1c6f0e-6f0b-4d4e-9c59-0f8f5e0f7c11")


async def claim(request: Request) -> Answer:
    """Lease jobs, at once or as soon as one is ready.

    With `wait` the request is held until there is a job, for up to 60 seconds. If the client
    disconnects, its jobs are released. An empty list is not an error: `paused` means that the
    queue is paused, `stop` that the worker should exit.
    """
    wanted: inputs.NewClaim = request.body
    request.user.check_queues(wanted.queues)
    for queue in wanted.queues:
        if is_reserved(queue):
            raise Problem(403, "HF211", f"queue {queue!r} belongs to Holdfast")
    await _check_worker(request, wanted.worker)
    if wanted.worker in request.live.consumers.stopped:
        request.live.consumers.claimed(request, wanted, [])
        return Answer({"leases": [], "stop": True})
    token = _claim_token(request)
    leases = await request.client.held([token]) if token else []
    if not leases:
        leases = await request.live.waits.claim(
            request.http, request.client, wanted, token, caller=request.user.shares_as
        )
        request.live.consumers.claimed(request, wanted, leases)
    told: dict[str, Any] = {"leases": [render.lease(lease) for lease in leases]}
    if not leases:
        told |= await _why_nothing(request, wanted.queues)
    request.live.note_change()
    return Answer(told)


async def ack(request: Request) -> Answer:
    """End a lease with success.

    If it is repeated after a lost reply, the outcome is `already`, not a 409.
    """
    said: inputs.Acked = request.body
    held = await _mine(request, said.token)
    done = Done(held, _result(said.result), said.keep)
    if request.is_single and wire.is_plain_ack(done):
        settled = await request.live.calls.ack(held)
    else:
        results = None if done.result is None else [done.result]
        recent = request.live.recent.take(1)
        [settled] = await request.client.ack([held], results, keep=said.keep, recent=recent)
    return await _ended(request, done, settled)


async def nack(request: Request) -> Answer:
    """End a lease with failure.

    The job waits for its next attempt, after `retry_in` seconds or the queue's backoff, or is
    dead.
    """
    said: inputs.Nacked = request.body
    error = _failure(said.error)
    failed = Failed(
        await _mine(request, said.token),
        error.kind,
        error.message,
        error.traceback,
        said.retry_in,
        said.final,
    )
    [settled] = await request.client.settle([failed])
    return await _ended(request, failed, settled)


async def release(request: Request) -> Answer:
    """Return a job without running it; the attempt does not count."""
    said: inputs.Released = request.body
    unused = Released(await _mine(request, said.token), said.delay)
    [settled] = await request.client.settle([unused])
    return await _ended(request, unused, settled)


async def touch(request: Request) -> Answer:
    """Extend a lease, report progress, and add lines to the log of the job."""
    said: inputs.Touched = request.body
    held = await _mine(request, said.token)
    progress = None
    if said.progress is not None:
        told = msgspec.structs.asdict(said.progress)
        progress = [{name: value for name, value in told.items() if value is not None}]
    [touched] = await request.client.touch([held], said.lease, progress=progress)
    request.live.consumers.touched(held[1])
    await _raise_if_lost(request, touched)
    if said.log:
        await request.client.log([held], [said.log])
    until = render.moment(touched.lease_until)
    answer = {"id": touched.id, "lease_until": until, "extended": touched.detail is None}
    return Answer(answer if touched.detail is None else answer | {"detail": touched.detail})


async def settle(request: Request) -> Answer:
    """End many leases, each with its own verb.

    The request never fails as a whole: each item has its own result, in the same order.
    """
    said: inputs.Settlements = request.body
    if (acks := _plain_acks(said.items)) is not None:
        return await _ack_all(request, acks)
    results: list[dict[str, Any]] = [{} for _ in said.items]
    wanted: list[tuple[int, Settlement]] = []
    for nth, item in enumerate(said.items):
        try:
            wanted.append((nth, _settlement(bytes(item))))
        except HoldfastError as error:
            results[nth] = _failed(error)
    foreign = await _foreign(request, [_id(one) for _, one in wanted])
    for nth, one in wanted:
        if _id(one) in foreign:
            results[nth] = _gone(_id(one))
    wanted = [(nth, one) for nth, one in wanted if _id(one) not in foreign]
    recent = request.live.recent.take(sum(type(one) is Done for _, one in wanted))
    settled = await request.client.settle(_with_recent([one for _, one in wanted], recent))
    for (nth, one), answer in zip(wanted, settled, strict=True):
        results[nth] = _outcome(answer, tell=request.user.queues is None)
        request.live.consumers.settled(one, answer)
    request.live.note_change()
    return Answer({"results": results})


async def _ack_all(request: Request, acks: Sequence[inputs.PlainAck]) -> Answer:
    """End many leases in the way that most end: with success, and nothing to store."""
    foreign = await _foreign(request, [ack.id for ack in acks])
    mine = [(ack.id, ack.token) for ack in acks if ack.id not in foreign]
    recent = request.live.recent.take(len(mine))
    others = await request.client.together.ack_all(mine, recent=recent)
    request.live.consumers.acked(mine, others)
    request.live.note_change()
    if not foreign and not others:
        return Answer({"results": [{"id": ack.id, "ok": True, "state": "done"} for ack in acks]})
    settled = iter(others.get(nth) or Settled(id, "done") for nth, (id, _) in enumerate(mine))
    tell = request.user.queues is None
    return Answer(
        {
            "results": [
                _gone(ack.id) if ack.id in foreign else _outcome(next(settled), tell=tell)
                for ack in acks
            ]
        }
    )


def _with_recent(wanted: Sequence[Settlement], recent: int) -> Sequence[Settlement]:
    """Have so many of those that are done kept for a day, from the first."""
    if not recent:
        return wanted
    left = itertools.count(recent, -1)
    return [
        replace(one, recent=True) if isinstance(one, Done) and next(left) > 0 else one
        for one in wanted
    ]


def _plain_acks(items: Sequence[msgspec.Raw]) -> Sequence[inputs.PlainAck] | None:
    """Read items as acks with nothing to store; None if they are not."""
    try:
        return _PLAIN_ACKS.decode(b"[%b]" % b",".join(items))
    except msgspec.DecodeError:
        return None


_PLAIN_ACKS = msgspec.json.Decoder(list[inputs.PlainAck])


async def _check_worker(request: Request, worker: str) -> None:
    """Refuse the name of a worker that belongs to queues of other callers."""
    if request.user.queues is None:
        return
    for one in await request.live.workers():
        if one.worker == worker and not all(map(request.user.sees, one.queues)):
            raise Problem(
                403,
                "HF401",
                f"a worker of other queues is named {worker!r}",
                fix="Choose another name, such as one with a random end.",
            )


async def _mine(request: Request, token: str) -> tuple[UUID, UUID]:
    """Return the lease in the path; refuse a caller who may not use its queue."""
    held = _held(request, token)
    if await _foreign(request, [held[0]]):
        raise UnknownJob(held[0])
    return held


async def _foreign(request: Request, ids: Sequence[UUID]) -> set[UUID]:
    """Return the jobs that are in queues the caller may not use."""
    if request.user.queues is None:
        return set()
    found: set[UUID] = set()
    for start in range(0, len(ids), 100):
        filter = "id:" + ",".join(map(str, ids[start : start + 100]))
        jobs = await request.client.jobs.list(filter, limit=100)
        found |= {job.id for job in jobs if not request.user.sees(job.queue)}
    return found


def _id(one: Settlement) -> UUID:
    return one.lease[0] if isinstance(one.lease, tuple) else one.lease.id


def _claim_token(request: Request) -> UUID | None:
    """Derive the token of a claim that may be repeated: the repeat finds the jobs of the first.

    The caller's own secret is part of it, so that others cannot derive it from a guessed key.
    """
    headers = request.http.headers
    key = headers.get("idempotency-key")
    if not key:
        return None
    secrets = [headers.get("authorization", ""), headers.get("x-api-key", "")]
    secrets.append(request.http.cookies.get(COOKIE, ""))
    return uuid5(_CLAIMS, "\n".join([request.user.caller, key, *secrets]))


async def _why_nothing(request: Request, queues: Sequence[str]) -> dict[str, Any]:
    """Report that the queue of an empty claim is paused; refuse a queue that does not exist."""
    known = {queue.queue: queue for queue in await request.live.queues()}
    missing = [queue for queue in queues if queue not in known and queue != "default"]
    if missing:
        # Not from the cache: the queue may be new.
        for queue in missing:
            if await request.reads.queues.get(queue) is None:
                raise UnknownQueue(queue)
    paused = [queue for queue in queues if queue in known and known[queue].paused_at]
    return {"paused": True} if len(paused) == len(queues) else {}


def _held(request: Request, token: str) -> tuple[UUID, UUID]:
    text = request.part("id")
    try:
        id = UUID(text)
    except ValueError:
        raise UnknownJob(text) from None
    return id, _token(token)


def _token(text: str) -> UUID:
    try:
        return UUID(text)
    except ValueError:
        return _NO_TOKEN


def _failure(error: inputs.Failure | str | None) -> inputs.Failure:
    if isinstance(error, str):
        return inputs.Failure(message=error)
    return error or inputs.Failure()


async def _ended(request: Request, settlement: Settlement, settled: Settled) -> Answer:
    request.live.consumers.settled(settlement, settled)
    await _raise_if_lost(request, settled)
    request.live.note_change()
    if settled.outcome in ("done", "already") and isinstance(settlement, Done):
        told: dict[str, Any] = {"id": settled.id, "state": "done"}
    else:
        job = await request.client.jobs.get(settled.id)
        told = {"id": settled.id, "state": job.state if job else settled.outcome}
        if job is not None and job.state == "queued":
            told |= {"attempt": job.attempt, "run_at": render.moment(job.run_at)}
        if job is not None and job.fingerprint:
            told["group"] = job.fingerprint
    if settled.outcome == "already":
        told["already"] = True
    return Answer(told)


async def _raise_if_lost(request: Request, settled: Settled) -> None:
    if settled.outcome != "lost":
        settled.raise_if_lost()
        return
    job = await request.client.jobs.get(settled.id)
    if job is not None and not request.user.sees(job.queue):
        raise UnknownJob(settled.id)
    facts: dict[str, Any] = {"state": job.state, "attempt": job.attempt} if job else {}
    lost = LeaseLost(settled.id, settled.detail or "")
    raise Problem(
        409,
        lost.code,
        lost.what,
        fix="Treat all work under this lease as not done: stop, and claim again.",
        job=settled.id,
        **facts,
    )


def _settlement(item: bytes) -> Settlement:
    said: inputs.SettleItem = decoded(item, inputs.SettleItem, where="item")
    try:
        held = UUID(said.id), _token(said.token)
    except ValueError:
        raise UnknownJob(said.id) from None
    if said.verb == "ack":
        return Done(held, _result(said.result), said.keep)
    if said.verb == "release":
        return Released(held, said.delay)
    if said.verb == "cancel":
        return Cancelled(held, said.reason)
    error = _failure(said.error)
    delay = said.delay if said.retry_in is None else said.retry_in
    return Failed(held, error.kind, error.message, error.traceback, delay, said.final)


def _result(value: msgspec.Raw | UnsetType) -> Any:
    if value is UNSET:
        return None
    try:
        jsonb.encode(value)
    except jsonb.Unfit as unfit:
        raise InvalidJob(f"result {unfit}", code="HF204", fix=unfit.fix) from None
    return value


def _outcome(settled: Settled, *, tell: bool) -> dict[str, Any]:
    told: dict[str, Any] = {"id": settled.id}
    if settled.outcome == "already":
        return told | {"ok": True, "already": True}
    if settled.held:
        return told | {"ok": True, "state": settled.outcome}
    code, status = ("HF300", 409) if settled.outcome == "lost" else ("HF310", 404)
    # Callers of other queues may not see who holds a job.
    detail = settled.detail if tell else None
    return told | {"ok": False, "status": status, "code": code, "detail": detail}


def _gone(id: UUID) -> dict[str, Any]:
    return {"id": id, "ok": False, "status": 404, "code": UnknownJob.code, "detail": None}


def _failed(error: HoldfastError) -> dict[str, Any]:
    status = getattr(error, "status", 404 if isinstance(error, UnknownJob) else 422)
    return {"ok": False, "status": status, "code": error.code, "detail": error.what}
