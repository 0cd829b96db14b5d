"""What people type for durations, times, sizes and JSON."""

import json
import re
import sys
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING, Any
from uuid import UUID

import click

from holdfast.errors import InvalidJob, PayloadTooLarge

if TYPE_CHECKING:
    from holdfast.records import NewJob

_UNITS = {"ms": 0.001, "s": 1, "m": 60, "h": 3600, "d": 86400, "w": 604800}
_SIZES = {
    "": 1,
    "b": 1,
    "k": 1024,
    "kb": 1024,
    "m": 1048576,
    "mb": 1048576,
    "g": 1 << 30,
    "gb": 1 << 30,
}
_SWITCH = {"on": True, "true": True, "yes": True, "off": False, "false": False, "no": False}
# Far above what any queue accepts; it only keeps a wrong file out of memory.
_MOST_STDIN = 64 * 1048576


def duration(value: str) -> timedelta:
    """Read a number with a unit, as in the filter language; without one it is seconds."""
    found = re.fullmatch(r"(\d+(?:\.\d+)?)\s*(ms|s|m|h|d|w|)", value)
    if not found:
        raise click.BadParameter(f"{value!r} is not a duration such as 30s, 10m, 2h or 7d")
    try:
        return timedelta(seconds=float(found[1]) * _UNITS[found[2] or "s"])
    except OverflowError:
        raise click.BadParameter(f"{value!r} is too long") from None


def moment(value: str) -> datetime:
    """Read a point in time; refuse one that every machine would read differently."""
    try:
        at = datetime.fromisoformat(value)
    except ValueError:
        example = datetime.now(UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
        raise click.BadParameter(f"{value!r} is not a time such as {example}") from None
    if at.tzinfo is None:
        raise click.BadParameter(f"{value!r} has no time zone; add Z for UTC, or +02:00")
    return at


def size(value: str) -> int:
    """Read a number of bytes."""
    found = re.fullmatch(r"(\d+)\s*([a-z]*)", value.lower())
    if not found or found[2] not in _SIZES:
        raise click.BadParameter(f"{value!r} is not a size such as 1000, 256kB or 1MB")
    return int(found[1]) * _SIZES[found[2]]


def whole(value: str) -> int:
    """Read a whole number."""
    if not re.fullmatch(r"-?\d+", value):
        raise click.BadParameter(f"{value!r} is not a whole number")
    return int(value)


def on_or_off(value: str) -> bool:
    """Read a switch."""
    if value.lower() not in _SWITCH:
        raise click.BadParameter(f"{value!r} is neither on nor off")
    return _SWITCH[value.lower()]


def json_value(text: str, what: str = "payload") -> Any:
    """Check that a text is JSON and keep it as it is, so that no digit is lost; - reads stdin."""
    import msgspec

    if text == "-":
        text = _stdin(what)
    try:
        json.loads(text, parse_int=str, parse_float=str, parse_constant=_no_constant)
    except RecursionError:
        raise InvalidJob(f"{what} is nested too deeply", code="HF204") from None
    except ValueError as error:
        raise InvalidJob(
            f"{what} is not JSON: {_excerpt(text)}",
            why=f"{error}",
            fix="""Quote the whole with ' and names and strings with ", as in '{"name": "Ada"}'.""",
            code="HF204",
        ) from None
    return msgspec.Raw(text.encode())


def new_jobs(text: str) -> "list[NewJob]":
    """Read a JSON array of jobs, each with the fields that SQL and HTTP take; - reads stdin."""
    import msgspec

    from holdfast.client import wire

    raw = json_value(text, "the list of jobs")
    try:
        items = msgspec.json.decode(raw, type=list[dict[str, msgspec.Raw]])
    except msgspec.ValidationError as error:
        raise InvalidJob(
            f"the list of jobs is not a JSON array of objects: {error}",
            fix="""For example '[{"kind": "fetch"}, {"kind": "print", "after": [1]}]'.""",
        ) from None
    jobs = []
    for nth, item in enumerate(items, 1):
        # The payload stays as it is, so that no digit is lost.
        payload = item.pop("payload", None)
        fields = {name: msgspec.json.decode(value) for name, value in item.items()}
        for name in ("id", "child_of"):
            if fields.get(name) is not None:
                fields[name] = _id(fields[name], f"{name} of job {nth}")
        if fields.get("after") is not None:
            fields["after"] = _awaited(fields["after"], f"after of job {nth}")
        if fields.get("workflow") is not None:
            raise InvalidJob(
                f"job {nth} names a workflow: {fields['workflow']!r}",
                fix="Leave it out: the job belongs to the workflow that is started.",
            )
        jobs.append(wire.new_job(fields.pop("kind", None), payload, fields))
    return jobs


def _awaited(given: Any, what: str) -> list[UUID | int]:
    if not isinstance(given, list):
        raise InvalidJob(f"{what} is {given!r}, which is not a list of jobs", code="HF204")
    return [one if type(one) is int else _id(one, what) for one in given]


def _id(given: Any, what: str) -> UUID:
    try:
        return UUID(given)
    except (ValueError, AttributeError, TypeError):
        raise InvalidJob(f"{what} has {given!r}, which is not an id", code="HF204") from None


def headers(pairs: tuple[str, ...]) -> dict[str, str] | None:
    """Read NAME=VALUE options as headers."""
    for pair in pairs:
        if not pair.partition("=")[1]:
            raise click.BadParameter(f"{pair!r} is not NAME=VALUE", param_hint="'--header'")
    return dict(pair.split("=", 1) for pair in pairs) or None


def _stdin(what: str) -> str:
    raw: bytes = sys.stdin.buffer.read(_MOST_STDIN + 1)
    if len(raw) > _MOST_STDIN:
        raise PayloadTooLarge(
            f"{what} on stdin is over 64 MB", fix="Store it elsewhere and pass its address."
        )
    try:
        return raw.decode()
    except UnicodeDecodeError as error:
        raise InvalidJob(f"{what} on stdin is not UTF-8: {error.reason}", code="HF204") from None


def _no_constant(word: str) -> Any:
    raise ValueError(f"{word} is not a value of JSON")


def _excerpt(text: str) -> str:
    return repr(text) if len(text) <= 60 else f"{text[:60]!r}…"
