"""Leasing jobs and ending leases: what a worker in any language does."""

from collections.abc import Sequence
from typing import Any
from uuid import UUID, uuid5

import msgspec
from msgspec import UNSET, UnsetType

from holdfast import jsonb
from holdfast.errors import HoldfastError, InvalidJob, UnknownJob, UnknownQueue
from holdfast.records import Ack, Cancel, Nack, Release, Settled, Settlement
from holdfast.server import answers, bodies
from holdfast.server.access import COOKIE
from holdfast.server.call import Answer, Call, decoded
from holdfast.server.problems import Problem

# What a token that is no UUID is taken for: it proves nothing.
_NO_TOKEN = UUID(int=0)
_CLAIMS = UUID("4f1c6f0e-6f0b-4d4e-9c59-0f8f5e0f7c11")


async def claim(call: Call) -> Answer:
    """Lease jobs, at once or as soon as there is one within `wait` seconds.

    What was leased for a client that has gone is given back.
    """
    wanted: bodies.NewClaim = call.said
    call.user.check_queues(wanted.queues)
    for queue in wanted.queues:
        if queue.startswith("holdfast."):
            raise Problem(403, "HF211", f"queue {queue!r} belongs to Holdfast")
    await _check_worker(call, wanted.worker)
    if wanted.worker in call.live.consumers.stopped:
        call.live.consumers.claimed(call, wanted, [])
        return Answer({"leases": [], "stop": True})
    token = _claim_token(call)
    leases = await call.client.held([token]) if token else []
    if not leases:
        leases = await call.live.waits.claim(
            call.request, call.client, wanted, token, caller=call.user.shares_as
        )
        call.live.consumers.claimed(call, wanted, leases)
    told: dict[str, Any] = {"leases": [answers.lease(lease) for lease in leases]}
    if not leases:
        told |= await _why_nothing(call, wanted.queues)
    call.live.note_change()
    return Answer(told)


async def ack(call: Call) -> Answer:
    """End a lease with success."""
    said: bodies.Acked = call.said
    done = Ack(await _mine(call, said.token), _result(said.result), said.keep)
    results = None if done.result is None else [done.result]
    [settled] = await call.client.ack([done.lease], results, keep=said.keep)
    return await _ended(call, done, settled)


async def nack(call: Call) -> Answer:
    """End a lease with failure: the job waits for its next attempt, or is dead."""
    said: bodies.Nacked = call.said
    error = _failure(said.error)
    failed = Nack(
        await _mine(call, said.token),
        error.kind,
        error.message,
        error.traceback,
        said.retry_in,
        said.final,
    )
    [settled] = await call.client.settle([failed])
    return await _ended(call, failed, settled)


async def release(call: Call) -> Answer:
    """Give a lease back unused."""
    said: bodies.Released = call.said
    unused = Release(await _mine(call, said.token), said.delay)
    [settled] = await call.client.settle([unused])
    return await _ended(call, unused, settled)


async def touch(call: Call) -> Answer:
    """Hold on to a lease."""
    said: bodies.Touched = call.said
    held = await _mine(call, said.token)
    progress = None
    if said.progress is not None:
        told = msgspec.structs.asdict(said.progress)
        progress = [{name: value for name, value in told.items() if value is not None}]
    [touched] = await call.client.touch([held], said.lease, progress=progress)
    call.live.consumers.touched(held[1])
    await _raise_if_lost(call, touched)
    until = answers.moment(touched.lease_until)
    answer = {"id": touched.id, "lease_until": until, "extended": touched.detail is None}
    return Answer(answer if touched.detail is None else answer | {"detail": touched.detail})


async def settle(call: Call) -> Answer:
    """End many leases, each in its own way; what is wrong with one does not keep the others."""
    said: bodies.Settlements = call.said
    results: list[dict[str, Any]] = [{} for _ in said.items]
    wanted: list[tuple[int, Settlement]] = []
    for nth, item in enumerate(said.items):
        try:
            wanted.append((nth, _settlement(bytes(item))))
        except HoldfastError as error:
            results[nth] = _failed(error)
    foreign = await _foreign(call, [_id(one) for _, one in wanted])
    for nth, one in wanted:
        if _id(one) in foreign:
            gone = {"ok": False, "status": 404, "code": UnknownJob.code, "detail": None}
            results[nth] = {"id": _id(one)} | gone
    wanted = [(nth, one) for nth, one in wanted if _id(one) not in foreign]
    settled = await call.client.settle([one for _, one in wanted])
    for (nth, one), answer in zip(wanted, settled, strict=True):
        results[nth] = _outcome(answer, tell=call.user.queues is None)
        call.live.consumers.settled(one, answer)
    call.live.note_change()
    return Answer({"results": results})


async def _check_worker(call: Call, worker: str) -> None:
    """Refuse the name of a worker of queues that are not the caller's: its row is theirs."""
    if call.user.queues is None:
        return
    for one in await call.live.workers():
        if one.worker == worker and not all(map(call.user.sees, one.queues)):
            raise Problem(
                403,
                "HF401",
                f"a worker of other queues is named {worker!r}",
                fix="Choose another name, such as one with a random end.",
            )


async def _mine(call: Call, token: str) -> tuple[UUID, UUID]:
    """Return the lease in the path; a token of other queues has nothing to do with it."""
    held = _held(call, token)
    if await _foreign(call, [held[0]]):
        raise UnknownJob(held[0])
    return held


async def _foreign(call: Call, ids: Sequence[UUID]) -> set[UUID]:
    """Return those of the jobs that are in queues that are not the caller's."""
    if call.user.queues is None:
        return set()
    found: set[UUID] = set()
    for start in range(0, len(ids), 100):
        filter = "id:" + ",".join(map(str, ids[start : start + 100]))
        jobs = await call.client.jobs.list(filter, limit=100)
        found |= {job.id for job in jobs if not call.user.sees(job.queue)}
    return found


def _id(one: Settlement) -> UUID:
    return one.lease[0] if isinstance(one.lease, tuple) else one.lease.id


def _claim_token(call: Call) -> UUID | None:
    """Make the token of a claim that may come twice: the second finds what the first was given.

    The caller's own secret is part of it, so that nobody else can make it of a key that is guessed.
    """
    headers = call.request.headers
    key = headers.get("idempotency-key")
    if not key:
        return None
    secrets = [headers.get("authorization", ""), headers.get("x-api-key", "")]
    secrets.append(call.request.cookies.get(COOKIE, ""))
    return uuid5(_CLAIMS, "\n".join([call.user.caller, key, *secrets]))


async def _why_nothing(call: Call, queues: Sequence[str]) -> dict[str, Any]:
    """Say of an empty claim that its queue is paused; refuse a queue that nobody ever used."""
    known = {queue.queue: queue for queue in await call.live.queues()}
    missing = [queue for queue in queues if queue not in known and queue != "default"]
    if missing:
        # Not from what is remembered: it may have been made a moment ago.
        for queue in missing:
            if await call.reads.queues.get(queue) is None:
                raise UnknownQueue(queue)
    paused = [queue for queue in queues if queue in known and known[queue].paused_at]
    return {"paused": True} if len(paused) == len(queues) else {}


def _held(call: Call, token: str) -> tuple[UUID, UUID]:
    text = call.part("id")
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


def _failure(error: bodies.Failure | str | None) -> bodies.Failure:
    if isinstance(error, str):
        return bodies.Failure(message=error)
    return error or bodies.Failure()


async def _ended(call: Call, settlement: Settlement, settled: Settled) -> Answer:
    call.live.consumers.settled(settlement, settled)
    await _raise_if_lost(call, settled)
    call.live.note_change()
    if settled.outcome in ("done", "already") and isinstance(settlement, Ack):
        told: dict[str, Any] = {"id": settled.id, "state": "done"}
    else:
        job = await call.client.jobs.get(settled.id)
        told = {"id": settled.id, "state": job.state if job else settled.outcome}
        if job is not None and job.state == "queued":
            told |= {"attempt": job.attempt, "run_at": answers.moment(job.run_at)}
        if job is not None and job.fingerprint:
            told["group"] = job.fingerprint
    if settled.outcome == "already":
        told["already"] = True
    return Answer(told)


async def _raise_if_lost(call: Call, settled: Settled) -> None:
    if settled.outcome != "lost":
        settled.raise_if_lost()
        return
    job = await call.client.jobs.get(settled.id)
    if job is not None and not call.user.sees(job.queue):
        raise UnknownJob(settled.id)
    facts: dict[str, Any] = {"state": job.state, "attempt": job.attempt} if job else {}
    raise Problem(
        409,
        "HF300",
        f"lease lost: {settled.detail or settled.id}",
        fix="Whatever was done under this lease must count as not done: stop, and claim again.",
        job=settled.id,
        **facts,
    )


def _settlement(item: bytes) -> Settlement:
    said: bodies.SettleItem = decoded(item, bodies.SettleItem, where="item")
    try:
        held = UUID(said.id), _token(said.token)
    except ValueError:
        raise UnknownJob(said.id) from None
    if said.verb == "ack":
        return Ack(held, _result(said.result), said.keep)
    if said.verb == "release":
        return Release(held, said.delay)
    if said.verb == "cancel":
        return Cancel(held, said.reason)
    error = _failure(said.error)
    delay = said.delay if said.retry_in is None else said.retry_in
    return Nack(held, error.kind, error.message, error.traceback, delay, said.final)


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
    # Who holds a job is not for somebody of other queues.
    detail = settled.detail if tell else None
    return told | {"ok": False, "status": status, "code": code, "detail": detail}


def _failed(error: HoldfastError) -> dict[str, Any]:
    status = getattr(error, "status", 404 if isinstance(error, UnknownJob) else 422)
    return {"ok": False, "status": status, "code": error.code, "detail": error.what}
