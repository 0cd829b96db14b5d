"""How Python values travel to SQL: JSON and array literals.

Pure functions, shared by the written client and the generated one. What PostgreSQL could not store
is refused here, before anything is sent.
"""

from collections.abc import Callable, Iterable, Mapping, Sequence
from datetime import datetime, timedelta
from functools import cache
from inspect import signature
from math import isfinite
from typing import (
    Any,
    LiteralString,
    TypeVar,
)
from uuid import UUID

import msgspec
from msgspec import structs
from msgspec.structs import astuple, fields

from holdfast import cron, jsonb, synonyms
from holdfast.errors import InvalidJob, InvalidSchedule
from holdfast.records import (
    Cancelled,
    Done,
    Duration,
    Enqueued,
    Failed,
    Finding,
    Held,
    NewJob,
    NewSchedule,
    NewStep,
    Record,
    Released,
    Settlement,
    Suspended,
    new_ids,
)
from holdfast.records.fields import declared
from holdfast.records.limits import refusal

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
            near = synonyms.meant(option, [*_NAMES, "conn"])
            if near == "conn":
                raise InvalidJob(
                    f"enqueue of {kind!r}: unknown option `{option}`",
                    fix="To enqueue in its transaction:  client.on(connection).enqueue(…)",
                )
            raise InvalidJob(
                f"enqueue of {kind!r}: unknown option `{option}`"
                + (f" (did you mean `{near}`?)" if near else ""),
                fix=f"Options are: {', '.join(_NAMES[2:])}.",
            )
    return NewJob(kind=kind, payload=payload, **options)


def items(jobs: Sequence[NewJob], ids: Sequence[UUID]) -> str:
    """Encode jobs as the array holdfast.enqueue takes."""
    rendered = [_item(job, id) for job, id in zip(jobs, ids, strict=True)]
    try:
        return msgspec.json.encode(rendered).decode()
    except UnicodeError as error:
        raise not_unicode(error) from None


def by_ids(jobs: list[NewJob], ids: Sequence[UUID]) -> list[NewJob]:
    """Return jobs that name what they wait for by ids, not by numbers: they may go in parts."""
    if not any(job.after for job in jobs):
        return jobs
    return [
        job
        if not job.after
        else structs.replace(job, after=[_one_of(one, nth, ids) for one in job.after])
        for nth, job in enumerate(jobs, 1)
    ]


def _one_of(one: UUID | int, nth: int, ids: Sequence[UUID]) -> UUID:
    if isinstance(one, UUID):
        return one
    if one in range(1, nth):
        return ids[one - 1]
    raise InvalidJob(
        f"job {nth} of the call waits for {one!r}, which is not a job before it",
        code="HF214",
        fix="Give ids of jobs, or numbers: 1 is the first job of this call.",
    )


def texts_of_one(job: NewJob, id: UUID) -> list[str] | None:
    """Return the values that holdfast.enqueue_one takes, as texts; None if it takes more or other.

    It judges them as holdfast.enqueue does. What cannot even be a value of their types is left to
    that one, which says so.
    """
    kind, payload, queue, priority, *rest = astuple(job)
    del rest[-1]  # its id
    if (
        rest != _REST
        or type(priority) is not int
        or priority not in _FITS
        or type(kind) is not str
        or type(queue) is not str
        or not (kind.isprintable() and queue.isprintable())
    ):
        return None
    try:
        said = "{}" if payload is None else encoded(payload, f"payload of {kind!r}").decode()
    except UnicodeError as error:
        raise not_unicode(error) from None
    return [str(id), kind, queue, said, str(priority)]


def enqueued(answer: str) -> Enqueued:
    """Decode what holdfast.enqueue_one answers if there is more to say than that it is stored."""
    return msgspec.json.decode(answer, type=Enqueued)


def ids_of(jobs: Sequence[NewJob]) -> list[UUID]:
    """Return each job's own id, or one made for it."""
    try:
        made = new_ids([job.queue for job in jobs])
        return [job.id or id for job, id in zip(jobs, made, strict=True)]
    except UnicodeError as error:
        raise not_unicode(error) from None
    except AttributeError:
        for job in jobs:
            check("queue", job.queue)
        raise


def not_unicode(error: UnicodeError) -> InvalidJob:
    """Return our own error for a text that is not Unicode, such as half of a surrogate pair."""
    return InvalidJob(f"a job has a text that is not Unicode: {error}", code="HF202")


def are_plain(jobs: Iterable[NewJob]) -> bool:
    """Whether storing these jobs needs no decision: on keys, lanes, times, or ids sent before."""
    return all(
        job.key is None
        and job.on_conflict == "skip"
        and job.lane is None
        and job.id is None
        and job.delay is None
        and job.run_at is None
        and job.expires is None
        and job.expires_at is None
        and job.lease is None
        and job.after is None
        and job.workflow is None
        and job.child_of is None
        for job in jobs
    )


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


def lines(logged: Iterable[Iterable[str]]) -> str:
    """Encode what handlers logged as the array holdfast.log takes."""
    return msgspec.json.encode([list(map(text, each)) for each in logged]).decode()


def decoded_object(document: str) -> dict[str, Any]:
    """Decode a JSON object that SQL made."""
    return msgspec.json.decode(document, type=dict[str, Any])


def settlements(wanted: Iterable[Settlement]) -> str:
    """Encode settlements as the array holdfast.settle takes."""
    return msgspec.json.encode([_settlement(one) for one in wanted]).decode()


def steps(done: Iterable[tuple[Held, NewStep]]) -> str:
    """Encode the results of steps as the array holdfast.step takes."""
    return msgspec.json.encode([_step(lease, step) for lease, step in done]).decode()


def is_plain_ack(settlement: Settlement) -> bool:
    """Whether a settlement is an ack with nothing to store: what most of them are."""
    return type(settlement) is Done and settlement.result is None and not settlement.keep


def schedules(declared: Iterable[NewSchedule]) -> str:
    """Encode declarations as the array holdfast.schedule_declare takes."""
    return encoded([_schedule(one) for one in declared], "schedules").decode()


def declared_queues(queues: Mapping[str, Mapping[str, Any]]) -> str:
    """Encode the settings of queues as the array holdfast.queue_declare takes."""
    said = [{"queue": name, **_seconds(settings)} for name, settings in queues.items()]
    return encoded(said, "settings of queues").decode()


def schedule_settings(name: str, values: Mapping[str, Any]) -> str:
    """Encode settings of a schedule as a JSON object; refuse a rule that could never fire."""
    return _object(_of_schedule(name, values), f"settings of schedule {name}")


def _item(job: NewJob, id: UUID) -> dict[str, Any]:
    item: dict[str, Any] = {"id": id, "kind": job.kind, "queue": job.queue}
    if astuple(job)[4:-1] == _PLAIN:
        if job.payload is not None:
            item["payload"] = msgspec.Raw(encoded(job.payload, f"payload of {job.kind!r}"))
        if job.priority:
            item["priority"] = job.priority
        return item
    for name, value, default in zip(_NAMES, astuple(job), _DEFAULTS, strict=True):
        # What is left at its default is not sent: SQL knows it.
        if value is None or name in item or (default is not None and value == default):
            continue
        if name in ("payload", "headers", "take"):
            item[name] = msgspec.Raw(encoded(value, f"{name} of {job.kind!r}"))
        elif isinstance(value, datetime):
            item[name] = moment(value, name)
        elif isinstance(value, timedelta):
            item[name] = value.total_seconds()
        else:
            item[name] = finite(value, name)
    return item


def finite(value: Any, name: str) -> Any:
    """Return a value; refuse a number that JSON cannot say: it would be sent as null, unset."""
    if isinstance(value, float) and not isfinite(value):
        raise InvalidJob(
            f"{name} {value} is not a finite number", code="HF204", fix="Leave it out for none."
        )
    return value


_NAMES = [field.name for field in fields(NewJob)]
_DEFAULTS = [field.default for field in fields(NewJob)]
# What a job has beside its kind, payload, queue and priority if it has nothing more.
assert _NAMES[:4] == ["kind", "payload", "queue", "priority"], "the order of texts_of_one"
assert _NAMES[-1] == "id", "the order of texts_of_one"
_REST = _DEFAULTS[4:-1]
_PLAIN = tuple(_REST)
_FITS = range(-(1 << 15), 1 << 15)


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
    return {
        k: v.total_seconds() if isinstance(v, timedelta) else finite(v, k)
        for k, v in values.items()
    }


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
        if wanted.recent:
            item["recent"] = True
        return item
    if isinstance(wanted, Cancelled):
        item["reason"] = text(wanted.reason)
        return item
    if isinstance(wanted, Suspended):
        item |= {"name": wanted.name, "nth": wanted.nth}
        if wanted.event is not None:
            item |= {"event": wanted.event, "key": wanted.key}
            if wanted.schema is not None:
                item["schema"] = wanted.schema
        if wanted.until is not None:
            item["until"] = moment(wanted.until, "until")
    if isinstance(wanted, Failed):
        item["error_kind"] = text(wanted.error_kind)
        item["message"] = text(wanted.message)
        item["traceback"] = text(wanted.traceback)
        if wanted.log:
            item["log"] = text(wanted.log)
        if wanted.final:
            item["final"] = True
    elif isinstance(wanted, Released) and wanted.unread:
        item["unread"] = {"shape": wanted.unread.shape, "problem": text(wanted.unread.problem)}
    if (delay := interval(wanted.delay)) is not None:
        item["delay"] = delay.total_seconds()
    return item


def _step(lease: Held, step: NewStep) -> dict[str, Any]:
    id, token = id_and_token(lease)
    return {
        "id": id,
        "token": token,
        "name": step.name,
        "nth": step.nth,
        "seconds": step.seconds,
        "result": msgspec.Raw(step.result_json),
    }


def text(value: str | None) -> str | None:
    """Make any string one that PostgreSQL can store: an error's own words must not hide it."""
    if value is None:
        return None
    return value.replace("\0", "\\0").encode("utf-8", "backslashreplace").decode()


def check(field: str, value: Any) -> None:
    """Refuse a value of a job's field that its declaration does not allow."""
    if refused := refusal(_FIELDS[field], value):
        raise refused
    if _FIELDS[field].type is str and not isinstance(value, str):
        raise InvalidJob(f"{field} {value!r} is not a text", code="HF202")


_FIELDS = {one.name: one for one in declared(NewJob)}
