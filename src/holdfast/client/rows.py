"""Jobs as rows of COPY: what is alike in many of them is rendered once."""

import secrets
from collections import Counter
from collections.abc import Iterable, Sequence
from typing import LiteralString
from uuid import UUID

from msgspec.structs import astuple, fields

from holdfast.client import wire
from holdfast.errors import InvalidJob, PayloadTooLarge
from holdfast.records import (
    PARTS,
    NewJob,
    QueueSettings,
    Record,
    id_head,
    part_of,
    queue_part,
    stamp,
)
from holdfast.records.fields import declared

# Texts of a job that are stored as they are: no function has to decide on them.
_TEXTS = [
    one.name
    for one in declared(NewJob)
    if one.type is str and one.nullable and one.name not in ("key", "lane")
]
# The columns of a row, in order: what differs from job to job comes first.
COLUMNS: LiteralString = (
    "id, part, payload, headers, priority, run_at, created_at, max_attempts, by_kind, queue, kind, "
    + ", ".join(_TEXTS)
)


class CopySettings(Record, frozen=True):
    """What COPY must know of a queue, since no function decides for it."""

    max_attempts: int = QueueSettings().max_attempts
    payload_limit: int = QueueSettings().payload_limit
    fair: bool = False
    by_kind: bool = False
    fanout: int = 1
    limit: int | None = None
    activity: str = QueueSettings().activity

    @property
    def is_plain(self) -> bool:
        """Whether COPY stores and tells all that enqueue would.

        A plain job is stored under the id it came with, waits for no other, and none is logged by
        itself.
        """
        return self.fanout == 1 and self.limit is None and self.activity != "all"


class Rows:
    """Renders jobs in COPY's text format, and counts them by queue and kind."""

    def __init__(self, now: str, *, wary: bool = False) -> None:
        # Wary: refuse what enqueue may judge otherwise. It counts a payload as PostgreSQL writes
        # it, with a space after each comma and colon.
        self._share = 2 / 3 if wary else 1.0
        self.queues: dict[str, CopySettings] = {}
        self.counts: Counter[tuple[str, str]] = Counter()
        self._now = now
        self._likes: dict[tuple[object, ...], _Like] = {}
        # As SQL makes the ids of one call: a random one, and then one after the other.
        self._last = secrets.randbits(62)

    def unknown(self, jobs: Iterable[NewJob]) -> set[str]:
        """Return the queues of jobs whose settings are not among `queues` yet."""
        return {job.queue for job in jobs} - self.queues.keys()

    def render(self, jobs: Sequence[NewJob], ids: Sequence[UUID] | None = None) -> str:
        """Return the rows of jobs; raise InvalidJob for what only enqueue can do.

        `ids` are those of jobs that have none, if they are made already; else each gets one.
        """
        rows = []
        for nth, job in enumerate(jobs):
            given = astuple(job)
            known = given[:_PAYLOAD] + given[_PAYLOAD + 1 : _HEADERS]
            try:
                like = self._likes.get(known)
            except TypeError:
                if job.after is not None:
                    self._like(job)  # says that it cannot be copied
                raise _not_texts(job) from None
            if like is None:
                if len(self._likes) >= _MOST_LIKES:
                    self._likes.clear()
                like = self._likes[known] = self._like(job)
            payload, headers = b"{}", b"\\N"
            if job.payload is not None:
                payload = wire.encoded(job.payload, f"payload of {job.kind!r}")
            size = len(payload)
            if job.headers is not None:
                headers = wire.encoded(job.headers, "headers")
                if headers[:1] != b"{":
                    raise InvalidJob(f"headers of {job.kind!r} must be an object", code="HF201")
                size += len(headers)
                headers = _escaped(headers)
            if size > like.limit:
                raise _too_large(job, size, like.limit)
            if b"\\" in payload:
                payload = payload.replace(b"\\", b"\\\\")
            if ids is not None:
                place = f"{ids[nth].hex}\t{like.part}"
            elif job.id is not None:
                place = _placed(job, like)
            elif like.fanout == 1:
                self._last = self._last + 1 & _LOW
                place = f"{like.head}{self._last | _VARIANT:016x}\t{like.part}"
            else:
                self._last = self._last + 1 & _LOW
                like.turn += 1  # to its parts by turns
                part = (like.part + like.turn % like.fanout) % PARTS
                place = f"{id_head(part)}{self._last | _VARIANT:016x}\t{part}"
            self.counts[like.whose] += 1
            try:
                rows.append(f"{place}\t{payload.decode()}\t{headers.decode()}\t{like.rest}")
            except UnicodeError as error:
                raise wire.not_unicode(error) from None
        text = "".join(rows)
        # JSON from elsewhere may have line breaks and tabs between its parts. All rows are looked
        # at together: to look at each payload takes a sixth of the time that a row does.
        if _is_broken(text, len(rows)):
            whole = [
                self._escaped_row(job, row) if _is_broken(row, 1) else row
                for job, row in zip(jobs, rows, strict=True)
            ]
            return "".join(whole)
        return text

    def _escaped_row(self, job: NewJob, row: str) -> str:
        """Return a row whose payload has breaks of its own."""
        id, part, _ = row.split("\t", 2)
        payload = _escaped(wire.encoded(job.payload, "payload")).decode()
        headers = "\\N"
        if job.headers is not None:
            headers = _escaped(wire.encoded(job.headers, "headers")).decode()
        return f"{id}\t{part}\t{payload}\t{headers}\t{self._like(job).rest}"

    def _like(self, job: NewJob) -> "_Like":
        """Check what is not a job's own, and render it."""
        for field in ("key", "lane", "delay", "run_at", "expires", "expires_at", "lease", "after"):
            if getattr(job, field) is not None:
                raise InvalidJob(
                    f"copy of {job.kind!r}: a job with `{field}` cannot be copied",
                    fix="Enqueue it with enqueue_many().",
                )
        for field in ("kind", "queue", "priority"):
            wire.check(field, getattr(job, field))
        queue = self.queues[job.queue]
        attempts = queue.max_attempts if job.max_attempts is None else job.max_attempts
        wire.check("max_attempts", attempts)
        texts = {field: getattr(job, field) for field in _TEXTS}
        for field, value in texts.items():
            if value is not None:
                wire.check(field, value)
        if job.tenant is None and queue.fair:
            texts["tenant"] = ""
        by_kind = "t" if queue.by_kind else "f"
        said = "\t".join(map(_text, (job.queue, job.kind, *texts.values())))
        rest = f"{job.priority}\t{self._now}\t{self._now}\t{attempts}\t{by_kind}\t{said}\n"
        return _Like(job.queue, job.kind, queue, rest, int(queue.payload_limit * self._share))


class _Like:
    """What jobs have in common that differ in id, payload and headers only."""

    def __init__(
        self, queue: str, kind: str, settings: CopySettings, rest: str, limit: int
    ) -> None:
        self.whose = (queue, kind)
        self.part = queue_part(queue)
        self.head = id_head(self.part)
        self.fanout = settings.fanout
        self.limit = limit
        self.rest = rest
        self.turn = secrets.randbelow(settings.fanout)


_NAMES = [field.name for field in fields(NewJob)]
_PAYLOAD = _NAMES.index("payload")
_HEADERS = _NAMES.index("headers")
assert _NAMES[_HEADERS:] == ["headers", "id"], "what is a job's own stands at the end"
_TABS = COLUMNS.count(",")
# Jobs that each have a subject of their own have little in common: no more than this is kept.
_MOST_LIKES = 1000
# The second half of an id: two bits that say what sort it is, and 62 of its own.
_VARIANT = 1 << 63
_LOW = (1 << 62) - 1


def _placed(job: NewJob, like: _Like) -> str:
    """Return the id and the part of a job that has an id of its own."""
    assert job.id is not None
    if part_of(job.id) != like.part:
        # Its part would change, and the caller would not learn the id it is stored under.
        raise InvalidJob(
            f"id {job.id} of {job.kind!r} was not made for queue {job.queue!r}",
            fix=f"Make it with new_id({job.queue!r}), or enqueue the job: that answers its id.",
            code="HF206",
        )
    # The random end of an id spreads a fanned-out queue evenly over its parts.
    part = (like.part + job.id.int % like.fanout) % PARTS
    return f"{stamp(job.id, part)}\t{part}"


def _too_large(job: NewJob, size: int, limit: int) -> PayloadTooLarge:
    return PayloadTooLarge(
        f"payload of {job.kind!r} is {size} bytes, the limit for queue {job.queue!r} is {limit}",
        fix="Store the data elsewhere and pass its address, or raise payload_limit.",
    )


def _not_texts(job: NewJob) -> InvalidJob:
    return InvalidJob(
        f"copy of {job.kind!r}: its fields are not all texts and numbers",
        fix="Only payload and headers can hold lists and objects.",
    )


def _is_broken(text: str, rows: int) -> bool:
    """Whether rows do not end where they should."""
    return text.count("\n") != rows or text.count("\t") != rows * _TABS or "\r" in text


def _escaped(json: bytes) -> bytes:
    json = json.replace(b"\\", b"\\\\")
    return json.replace(b"\t", b"\\t").replace(b"\n", b"\\n").replace(b"\r", b"\\r")


def _text(value: str | None) -> str:
    if value is None:
        return "\\N"
    if "\0" in value:
        raise InvalidJob(f"{value!r} contains a NUL character", code="HF202")
    escaped = value.replace("\\", "\\\\")
    return escaped.replace("\t", "\\t").replace("\n", "\\n").replace("\r", "\\r")
