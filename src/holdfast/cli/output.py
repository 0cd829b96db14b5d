"""How answers look: JSON documents, aligned tables, short ids, relative times."""

import re
import shutil
import sys
import unicodedata
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import fields, is_dataclass
from datetime import UTC, datetime, timedelta
from typing import Any
from uuid import UUID

import click

from holdfast.records import Record

COLOURS = {
    "leased": "cyan",
    "done": "green",
    "dead": "red",
    "cancelled": "yellow",
    "paused": "yellow",
}


def json_document(value: Any) -> str:
    """Render records as JSON: full ids, times in UTC, durations in seconds, payloads verbatim."""
    import msgspec

    return msgspec.json.format(msgspec.json.encode(plain(value)), indent=2).decode()


def json_line(value: Any) -> str:
    """Render records as JSON on one line, for streams."""
    import msgspec

    return msgspec.json.encode(plain(value)).decode()


def plain(value: Any) -> Any:
    """Convert records to values for JSON."""
    if isinstance(value, Record):
        return dict(_plain_field(name, getattr(value, name)) for name in value.__struct_fields__)
    if is_dataclass(value):
        return dict(_plain_field(f.name, getattr(value, f.name)) for f in fields(value))
    if isinstance(value, Mapping):
        return {str(key): plain(part) for key, part in value.items()}
    if isinstance(value, list | tuple):
        return [plain(part) for part in value]
    if isinstance(value, datetime):
        return value.astimezone(UTC)
    if isinstance(value, timedelta):
        return value.total_seconds()
    return value


def table(headings: Sequence[str], rows: Iterable[Sequence[Any]]) -> str:
    """Align rows under their headings; whole numbers to the right; the last column may be cut."""
    body = [list(row) for row in rows]
    cells = [list(headings), *([clean(str(cell)) for cell in row] for row in body)]
    widths = [max(map(_width, column)) for column in zip(*cells, strict=True)]
    numeric = [any(isinstance(cell, int) for cell in column) for column in zip(*body, strict=True)]
    numeric = numeric or [False] * len(headings)
    lines = []
    for nth, row in enumerate(cells):
        padded = [
            " " * (width - _width(cell)) + cell if right else cell + " " * (width - _width(cell))
            for cell, width, right in zip(row, widths, numeric, strict=True)
        ]
        line = _cut("  ".join(padded).rstrip())
        lines.append(line if nth == 0 else _coloured(line, row))
    return "\n".join(lines)


def block(pairs: Mapping[str, Any]) -> str:
    """Align names and values in two columns; leave out what is None."""
    known = {name: clean(str(value)) for name, value in pairs.items() if value is not None}
    width = max(map(len, known), default=0)
    return "\n".join(f"{name:{width}}  {value}" for name, value in known.items())


def short(id: UUID) -> str:
    """Return the end of an id, which is random; its beginning is the time."""
    return str(id)[-8:]


def pretty(json_text: str) -> str:
    """Indent JSON as it is stored, digit for digit; of what is encrypted, say that it is."""
    import msgspec

    from holdfast import codec

    if told := codec.told(json_text):
        return told
    return clean(msgspec.json.format(json_text, indent=2), keep="\n")


def stored(json_text: str | None) -> str | None:
    """Return JSON as it is stored, or say how it is."""
    from holdfast import codec

    return codec.told(json_text) or json_text


def ago(at: datetime | None) -> str:
    """Format how long ago something was."""
    return "-" if at is None else span(datetime.now(UTC) - at)


def ahead(at: datetime) -> timedelta:
    """Return how far in the future something is; below zero if it is past."""
    return at - datetime.now(UTC)


def span(duration: timedelta | None) -> str:
    """Format a duration in its largest unit: 3.2 s, 41 m, 2 h, 3 d."""
    if duration is None:
        return "-"
    seconds = max(0.0, duration.total_seconds())
    for unit, size in (("d", 86400), ("h", 3600), ("m", 60)):
        # Below two of a unit the smaller one says more: 90 s, not 2 m.
        if seconds > 1.99 * size or seconds == size:
            return f"{seconds / size:.0f} {unit}"
    return f"{seconds:.0f} s" if seconds >= 10 or seconds % 1 == 0 else f"{seconds:.1f} s"


def moment(at: datetime) -> str:
    """Format a point in time in UTC."""
    return at.astimezone(UTC).strftime("%Y-%m-%d %H:%M:%S UTC")


def clean(text: str, keep: str = "") -> str:
    """Make text harmless for a terminal: control characters are shown, not obeyed."""
    return re.sub(
        r"[\x00-\x1f\x7f-\x9f\u202a-\u202e\u2066-\u2069]",
        lambda found: found[0] if found[0] in keep else _escaped(found[0]),
        text,
    )


def counted(number: int, noun: str) -> str:
    """Format a count: 1 job, 2 jobs."""
    return f"{number} {noun}" if number == 1 else f"{number} {noun}s"


def _plain_field(name: str, value: Any) -> tuple[str, Any]:
    if not name.endswith("_json"):
        return name, plain(value)
    import msgspec

    return name.removesuffix("_json"), None if value is None else msgspec.Raw(value.encode())


def _escaped(character: str) -> str:
    return " " if character in "\n\t" else character.encode("unicode_escape").decode()


def _width(text: str) -> int:
    if text.isascii():
        return len(text)
    return sum(
        0 if unicodedata.combining(c) else 2 if unicodedata.east_asian_width(c) in "WF" else 1
        for c in text
    )


def _cut(line: str) -> str:
    if not sys.stdout.isatty():
        return line
    columns = shutil.get_terminal_size().columns
    if _width(line) <= columns:
        return line
    while _width(line) >= columns:
        line = line[:-1]
    return line + "…"


def _coloured(line: str, cells: Sequence[str]) -> str:
    for cell in cells:
        if cell in COLOURS:
            word = re.compile(rf"(?<!\S){cell}(?!\S)")
            return word.sub(click.style(cell, fg=COLOURS[cell]), line, count=1)
    return line
