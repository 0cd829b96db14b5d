"""What a field refuses, in the words of the database: before anything is sent to it.

The limits themselves are those of the field's type. SQL has its own checks and sentences, with "of
item 1" in them; a test compares both.
"""

import re
from collections.abc import Iterator, Mapping
from datetime import timedelta
from typing import Any
from unicodedata import category

from msgspec import Meta

from holdfast.errors import InvalidJob
from holdfast.records.fields import Field, declared
from holdfast.records.ids import UNSEEN, is_reserved
from holdfast.records.record import Record

_UNSEEN = re.compile(f"[{UNSEEN}]")


def refusals(record: type[Record], given: Mapping[str, Any]) -> Iterator[InvalidJob]:
    """Say which values the fields of a record cannot have; fields that it has not are left out."""
    for field in declared(record):
        if field.name in given and (no := refusal(field, given[field.name])):
            yield no


def refusal(field: Field, value: Any) -> InvalidJob | None:
    """Return why a field cannot have a value; None if it can."""
    if value is None and field.nullable:
        return None
    if field.choices:
        return _unless_one_of(field, value)
    if field.limits is None:
        return None
    if field.type is str:
        return _unless_text(field.name, value, field.limits)
    if field.type in (int, timedelta):
        return _unless_number(field, value, field.limits)
    return None  # a time: where it is sent, it is read


def _unless_one_of(field: Field, value: Any) -> InvalidJob | None:
    if value in field.choices:
        return None
    *others, last = field.choices
    known = f"{', '.join(others)} or {last}"
    return InvalidJob(f"{field.name} {value!r} is not {known}", code="HF205")


def _unless_text(name: str, value: Any, limits: Meta) -> InvalidJob | None:
    is_label = limits.pattern is None
    if is_label and isinstance(value, int | float) and not isinstance(value, bool):
        value = str(value)
    longest = limits.max_length or 0
    if not isinstance(value, str):
        return InvalidJob(f"{name} {value!r} is not a text", code="HF202")
    if is_label and not 1 <= len(value) <= longest:
        size = len(value.encode("utf-8", "replace"))
        return InvalidJob(
            f"{name} is {len(value)} characters and {size} bytes long",
            code="HF202",
            fix=f"It may have 1 to {longest} characters; pass a hash of longer values.",
        )
    if not value:
        fix = f"Give {name} a name of 1 to {longest} characters."
        return InvalidJob(f"{name} is missing", code="HF202", fix=fix)
    if len(value) > longest:
        told = f"{name} '{value[:40]}…' is {len(value)} characters long, the limit is {longest}"
        return InvalidJob(told, code="HF202")
    if not is_label and (found := _UNSEEN.search(value)):
        unseen = "contains a control character"
        if category(found[0]) != "Cc":
            unseen = "contains an invisible character or one that changes the direction of text"
        return InvalidJob(
            f"{name} {value!a} {unseen}", code="HF202", fix="Use printable characters only."
        )
    if name == "queue" and is_reserved(value):
        return InvalidJob(
            f"queue {value!r} belongs to Holdfast",
            code="HF211",
            fix='Names that begin with "holdfast." are reserved; choose another.',
        )
    return None


def _unless_number(field: Field, value: Any, limits: Meta) -> InvalidJob | None:
    whole = field.type is int
    shown, number = repr(value), value
    if isinstance(value, timedelta) and not whole:
        number = value.total_seconds()
        shown = str(int(number) if number.is_integer() else number)
    if (
        isinstance(number, int if whole else int | float)
        and not isinstance(number, bool)
        and (limits.ge is None or number >= limits.ge)
        and (limits.gt is None or number > limits.gt)
        and (limits.le is None or number <= limits.le)
    ):
        return None
    sort = "whole number" if whole else "number of seconds"
    if limits.ge is None:
        told = f"above {limits.gt}" + ("" if limits.le is None else f", up to {limits.le}")
    else:
        told = f"from {limits.ge}" + ("" if limits.le is None else f" to {limits.le}")
    return InvalidJob(
        f"{field.name} {shown} is not a {sort} {told}",
        code="HF203" if field.name == "priority" else "HF204",
    )
