"""How Python values travel to SQL: JSON, array literals, COPY rows.

Pure functions, shared by the written client and the generated one. What PostgreSQL could not store
is refused here, before anything is sent.
"""

import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from datetime import datetime, timedelta
from difflib import get_close_matches
from functools import cache
from inspect import signature
from typing import (
    Any,
    LiteralString,
    TypeVar,
)
from uuid import UUID

import msgspec
from msgspec.structs import astuple, fields

from holdfast import cron, jsonb
from holdfast.errors import InvalidJob, InvalidSchedule, PayloadTooLarge
from holdfast.records import (
    PARTS,
    UNSEEN,
    Cancelled,
    Done,
    Duration,
    Failed,
    Finding,
    Held,
    NewJob,
    NewSchedule,
    QueueSettings,
    Record,
    Settlement,
    new_id,
    part_of,
    queue_part,
    stamp,
)
from holdfast.records.fields import declared

R = TypeVar("R", bound=Record)


@cache
def name_of(source: LiteralString) -> str:
    """Return the name of the function or view that a call is of, for errors and logs."""
    return source.removeprefix("holdfast.").partition("(")[0].partition(" ")[0]


def columns(
    record: type, *, without: Sequence[str] = (), names: Mapping[str, str] | None = None
) -> LiteralString:
    """Return the select list that fills a record's fields in their order, `without` the last ones.

    `names` says what a field is called in SQL, where it is called otherwise.
    """
    called = names or {}
    found = (called.get(f.name, f.name).removesuffix("_json") for f in fields(record))
    return ", ".join(f'"{name}"' for name in found if name not in without)


@cache
def maker(record: type[R]) -> Callable[[Sequence[Any]], R]:
    """Return what makes a record of a row that has its `columns`."""
    by_name = any(one.kind is one.KEYWORD_ONLY for one in signature(record).parameters.values())
    if not by_name:
        return lambda row: record(*row)
    names = [field.name for field in fields(record)]
    return lambda row: record(**dict(zip(names, row, strict=True)))


def new_job(kind: str, payload: Any, options: Mapping[str, Any]) -> NewJob:
    """Make a NewJob of a call's arguments; an unknown option is an error that names the nearest."""
    for option in options:
        if option not in _NAMES:
            near = get_close_matches(option, _NAMES, n=1)
            raise InvalidJob(
                f"enqueue of {kind!r}: unknown option `{option}`"
                + (f" (did you mean `{near[0]}`?)" if near else ""),
                fix=f"Options are: {', '.join(_NAMES[2:])}.",
            )
    return NewJob(kind=kind, payload=payload, **options)


def items(jobs: Sequence[NewJob], ids: Sequence[UUID]) -> str:
    """Encode jobs as the array holdfast.enqueue takes."""
    rendered = [_item(job, id) for job, id in zip(jobs, ids, strict=True)]
    return msgspec.json.encode(rendered).decode()


def ids_of(jobs: Iterable[NewJob]) -> list[UUID]:
    """Return each job's own id, or one made for it."""
    return [job.id or new_id(job.queue) for job in jobs]


def encoded(value: Any, what: str) -> bytes:
    """Encode a value as JSON that jsonb accepts; raise InvalidJob naming what cannot be."""
    try:
        return jsonb.encode(value)
    except jsonb.Unfit as unfit:
        raise InvalidJob(f"{what} {unfit}", code="HF204", fix=unfit.fix) from None


def settings(values: Mapping[str, Any], what: str) -> str:
    """Encode settings or changes as a JSON object; durations become seconds."""
    return _object(_seconds(values), what)


def interval(duration: Duration | None) -> timedelta | None:
    """Return a duration as a timedelta; a plain number is seconds."""
    if duration is None or isinstance(duration, timedelta):
        return duration
    return timedelta(seconds=duration)


def array(values: Iterable[UUID]) -> str:
    """Render ids or tokens as an array literal: several times faster than adapting a list."""
    return "{" + ",".join(map(str, values)) + "}"


def held_arrays(leases: Iterable[Held]) -> tuple[str, str]:
    """Render leases as arrays of ids and tokens: parallel, or one token that serves all."""
    pairs = [id_and_token(lease) for lease in leases]
    tokens = [token for _, token in pairs]
    if len(set(tokens)) == 1:
        del tokens[1:]
    return array(id for id, _ in pairs), array(tokens)


def id_and_token(lease: Held) -> tuple[UUID, UUID]:
    """Return what proves a lease."""
    return lease if isinstance(lease, tuple) else (lease.id, lease.token)


def results(values: Sequence[Any] | None) -> str | None:
    """Encode what handlers returned as the array holdfast.ack takes."""
    if values is None:
        return None
    return msgspec.json.encode([msgspec.Raw(encoded(v, "result")) for v in values]).decode()


def findings(found: Iterable[Finding]) -> str:
    """Encode what a detector of one's own found as the array holdfast.report takes."""
    said = [
        {f.name: value for f in fields(one) if (value := getattr(one, f.name)) is not None}
        for one in found
    ]
    return encoded(said, "findings").decode()


def progress(said: Sequence[Mapping[str, Any] | None] | None) -> str | None:
    """Encode what holders say of their work as the array holdfast.touch takes."""
    return None if said is None else encoded(said, "progress").decode()


def decoded_object(document: str) -> dict[str, Any]:
    """Decode a JSON object that SQL made."""
    return msgspec.json.decode(document, type=dict[str, Any])


def settlements(wanted: Iterable[Settlement]) -> str:
    """Encode settlements as the array holdfast.settle takes."""
    return msgspec.json.encode([_settlement(one) for one in wanted]).decode()


def is_plain_ack(settlement: Settlement) -> bool:
    """Whether a settlement is an ack with nothing to store: what most of them are."""
    return type(settlement) is Done and settlement.result is None and not settlement.keep


def schedules(declared: Iterable[NewSchedule]) -> str:
    """Encode declarations as the array holdfast.schedule_declare takes."""
    return encoded([_schedule(one) for one in declared], "schedules").decode()


def schedule_settings(name: str, values: Mapping[str, Any]) -> str:
    """Encode settings of a schedule as a JSON object; refuse a rule that could never fire."""
    return _object(_of_schedule(name, values), f"settings of schedule {name}")


def copy_rows(jobs: Iterable[NewJob], queues: Mapping[str, "CopySettings"], now: str) -> str:
    """Render jobs in COPY's text format; raise InvalidJob for what only enqueue can do."""
    return "".join([_copy_row(job, now, queues[job.queue]) for job in jobs])


def _copy_row(job: NewJob, now: str, queue: "CopySettings") -> str:
    for field in ("key", "lane", "delay", "run_at", "lease"):
        if getattr(job, field) is not None:
            raise InvalidJob(
                f"copy of {job.kind!r}: a job with `{field}` cannot be copied",
                fix="Enqueue it with enqueue_many().",
            )
    for field in ("kind", "queue", "priority"):
        _check(field, getattr(job, field))
    if job.queue.startswith("holdfast."):
        raise InvalidJob(
            f"queue {job.queue!r} belongs to Holdfast",
            code="HF211",
            fix='Names that begin with "holdfast." are reserved; choose another.',
        )
    attempts = queue.max_attempts if job.max_attempts is None else job.max_attempts
    _check("max_attempts", attempts)
    texts = [getattr(job, field) for field in _COPIED_TEXTS]
    for field, value in zip(_COPIED_TEXTS, texts, strict=True):
        if value is not None:
            _check(field, value)
    payload = b"{}" if job.payload is None else encoded(job.payload, f"payload of {job.kind!r}")
    headers = None if job.headers is None else encoded(job.headers, "headers").decode()
    size = len(payload) + len(headers or "")
    if size > queue.payload_limit:
        raise PayloadTooLarge(
            f"payload of {job.kind!r} is {size} bytes, "
            f"the limit for queue {job.queue!r} is {queue.payload_limit}",
            fix="Store the data elsewhere and pass its address, or raise payload_limit.",
        )
    id = job.id or new_id(job.queue)
    if part_of(id) != queue_part(job.queue):
        # Its part would change, and the caller would not learn the id it is stored under.
        raise InvalidJob(
            f"id {id} of {job.kind!r} was not made for queue {job.queue!r}",
            fix=f"Make it with new_id({job.queue!r}), or enqueue the job: that answers its id.",
            code="HF206",
        )
    # The random end of an id spreads a fanned-out queue evenly over its parts.
    part = (queue_part(job.queue) + id.int % queue.fanout) % PARTS
    if job.tenant is None and queue.fair:
        texts[_COPIED_TEXTS.index("tenant")] = ""
    given = (job.queue, job.kind, payload.decode(), headers, *texts)
    rest = "\t".join(map(_copy_text, given))
    return (
        f"{part}\t{stamp(id, part)}\t{job.priority}\t{now}\t{now}\t{attempts}"
        f"\t{'t' if queue.by_kind else 'f'}\t{rest}\n"
    )


# What is copied as it is: every text of a job that no function has to decide on.
_COPIED_TEXTS = [
    one.name
    for one in declared(NewJob)
    if one.type is str and one.nullable and one.name not in ("key", "lane")
]
# The columns of a row, in order.
COPIED: LiteralString = (
    "part, id, priority, run_at, created_at, max_attempts, by_kind, queue, kind, payload, headers, "
    + ", ".join(_COPIED_TEXTS)
)


class CopySettings(Record, frozen=True):
    """What COPY must know of a queue, since no function decides for it."""

    max_attempts: int = QueueSettings().max_attempts
    payload_limit: int = QueueSettings().payload_limit
    fair: bool = False
    by_kind: bool = False
    fanout: int = 1


def _item(job: NewJob, id: UUID) -> dict[str, Any]:
    item: dict[str, Any] = {"id": id, "kind": job.kind, "queue": job.queue}
    for name, value, default in zip(_NAMES, astuple(job), _DEFAULTS, strict=True):
        # What is left at its default is not sent: SQL knows it.
        if value is None or name in item or (default is not None and value == default):
            continue
        if name in ("payload", "headers"):
            item[name] = msgspec.Raw(encoded(value, f"{name} of {job.kind!r}"))
        elif isinstance(value, datetime):
            item[name] = moment(value, name)
        elif isinstance(value, timedelta):
            item[name] = value.total_seconds()
        else:
            item[name] = value
    return item


_NAMES = [field.name for field in fields(NewJob)]
_DEFAULTS = [field.default for field in fields(NewJob)]


def _schedule(new: NewSchedule) -> dict[str, Any]:
    # Without what is left at its default, so that a new release with another field or default does
    # not look like a changed declaration.
    values = [(field, getattr(new, field.name)) for field in fields(new)[1:]]
    given = {field.name: value for field, value in values if value != field.default}
    return {"name": new.name, **_of_schedule(new.name, given)}


def _of_schedule(name: str, values: Mapping[str, Any]) -> dict[str, Any]:
    every = interval(values.get("every"))
    anchor = values.get("anchor")
    try:
        if every is not None or values.get("cron") is not None:
            cron.rule(
                cron=values.get("cron"),
                every=every,
                anchor=anchor and moment(anchor, "anchor"),
                tz=values.get("tz") or "UTC",
            )
        else:
            cron.check_zone(values.get("tz") or "UTC")
    except InvalidSchedule as error:
        raise InvalidSchedule(f"schedule {name}: {error.what}", fix=error.fix) from None
    plain = _seconds(values)
    if isinstance(options := values.get("options"), Mapping):
        plain["options"] = _seconds(options)
    return plain


def _object(values: Mapping[str, Any], what: str) -> str:
    # Each by itself: one of them may be JSON already.
    parts = {name: msgspec.Raw(encoded(value, what)) for name, value in values.items()}
    return msgspec.json.encode(parts).decode()


def _seconds(values: Mapping[str, Any]) -> dict[str, Any]:
    return {k: v.total_seconds() if isinstance(v, timedelta) else v for k, v in values.items()}


def moment(at: datetime, what: str) -> datetime:
    """Return a point in time; refuse one that every machine would read differently."""
    if at.tzinfo is None:
        raise InvalidJob(
            f"{what} {at.isoformat()} has no time zone",
            code="HF204",
            fix="Say which:  datetime.now(UTC), or  at.replace(tzinfo=…)",
        )
    return at


def _settlement(wanted: Settlement) -> dict[str, Any]:
    id, token = id_and_token(wanted.lease)
    item: dict[str, Any] = {"id": id, "token": token, "verb": wanted.verb}
    if isinstance(wanted, Done):
        if wanted.result is not None:
            item["result"] = msgspec.Raw(encoded(wanted.result, f"result of job {id}"))
        if wanted.keep:
            item["keep"] = True
        return item
    if isinstance(wanted, Cancelled):
        item["reason"] = text(wanted.reason)
        return item
    if isinstance(wanted, Failed):
        item["error_kind"] = text(wanted.error_kind)
        item["message"] = text(wanted.message)
        item["traceback"] = text(wanted.traceback)
        if wanted.log:
            item["log"] = text(wanted.log)
        if wanted.final:
            item["final"] = True
    if (delay := interval(wanted.delay)) is not None:
        item["delay"] = delay.total_seconds()
    return item


def text(value: str | None) -> str | None:
    """Make any string one that PostgreSQL can store: an error's own words must not hide it."""
    if value is None:
        return None
    return value.replace("\0", "\\0").encode("utf-8", "backslashreplace").decode()


def _check(field: str, value: Any) -> None:
    """Refuse a value of a job's field that its declaration does not allow."""
    limits = _LIMITS[field]
    if limits.le is not None and value not in range(int(limits.ge or 0), int(limits.le) + 1):
        raise InvalidJob(
            f"{field} {value!r} is not a whole number from {limits.ge} to {limits.le}",
            code="HF203" if field == "priority" else "HF204",
        )
    if limits.max_length is not None and (
        not isinstance(value, str)
        or not 0 < len(value) <= limits.max_length
        or (limits.pattern and _CONTROL.search(value))
    ):
        sort = "printable characters" if limits.pattern else "characters"
        raise InvalidJob(
            f"{field} {value!r} is not a text of 1 to {limits.max_length} {sort}", code="HF202"
        )


_LIMITS = {one.name: one.limits for one in declared(NewJob) if one.limits}


def _copy_text(value: str | None) -> str:
    if value is None:
        return "\\N"
    if "\0" in value:
        raise InvalidJob(f"{value!r} holds a NUL character", code="HF202")
    escaped = value.replace("\\", "\\\\")
    return escaped.replace("\t", "\\t").replace("\n", "\\n").replace("\r", "\\r")


_CONTROL = re.compile(f"[{UNSEEN}]")
