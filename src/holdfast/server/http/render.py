"""Records as JSON: ids as strings, times in UTC, durations in seconds, payloads as stored."""

from collections.abc import Callable, Mapping
from datetime import UTC, datetime, timedelta
from functools import cache
from typing import TYPE_CHECKING, Any

import msgspec
from msgspec.structs import fields

from holdfast.records import LABELS, Event, Lease

if TYPE_CHECKING:
    from holdfast.server.http.redaction import Redaction

encode = msgspec.json.Encoder().encode


def record(value: Any) -> dict[str, Any]:
    """Return a record as values for JSON."""
    kind: Any = type(value)
    return {name: plain(getattr(value, field)) for name, field, plain in _plan(kind)}


def lease(held: Lease) -> dict[str, Any]:
    """Return a leased job for its consumer."""
    told: dict[str, Any] = {
        "id": held.id,
        "token": held.token,
        "queue": held.queue,
        "kind": held.kind,
        "payload": msgspec.Raw(held.payload_json.encode()),
        "priority": held.priority,
        "attempt": held.attempt,
        "max_attempts": held.max_attempts,
        "lease_until": held.lease_until.astimezone(UTC),
        "run_at": held.run_at.astimezone(UTC),
        "created_at": held.created_at.astimezone(UTC),
        "worker": held.worker,
        "length": held.length.total_seconds(),
    }
    if held.error is not None:
        told["error"] = held.error
    if held.followed:
        told["followed"] = True
    for name in LABELS:
        if (value := getattr(held, name)) is not None:
            told[name] = value
    if held.headers_json is not None:
        told["headers"] = msgspec.Raw(held.headers_json.encode())
        if isinstance(trace := held.headers.get("traceparent"), str):
            told["traceparent"] = trace
    return told


def event(one: Event, redaction: "Redaction") -> dict[str, Any]:
    """Return an event of the log, redacted, with its position as its id."""
    told = record(one) | {"id": str(one.seq)}
    del told["seq"]
    return told | {"detail": redaction.detail(one.kind, told["detail"])}


def moment(at: datetime | None) -> datetime | None:
    """Return a time in UTC."""
    return None if at is None else at.astimezone(UTC)


def raw(text: str | None) -> msgspec.Raw | None:
    """Return stored JSON unchanged, digit for digit."""
    return None if text is None else msgspec.Raw(text.encode())


@cache
def _plan(kind: Any) -> list[tuple[str, str, Callable[[Any], Any]]]:
    return [
        (field.name.removesuffix("_json"), field.name, raw if _is_json(field.name) else _plain)
        for field in fields(kind)
    ]


def _is_json(name: str) -> bool:
    return name.endswith("_json")


def _plain(value: Any) -> Any:
    if isinstance(value, datetime):
        return value.astimezone(UTC)
    if isinstance(value, timedelta):
        return value.total_seconds()
    if isinstance(value, Mapping):
        return {str(key): _plain(part) for key, part in value.items()}
    return value


def pretty(value: Any) -> str:
    """Return a document as indented JSON."""
    return msgspec.json.format(encode(value), indent=2).decode()
