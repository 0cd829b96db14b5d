"""Request bodies and responses derived from the records: each field of a record is one here."""

from collections.abc import Collection, Mapping
from datetime import datetime, timedelta
from typing import Annotated, Any, Union, get_args, get_origin, get_type_hints
from uuid import UUID

import msgspec
from msgspec import UNSET, Meta, UnsetType
from msgspec.structs import asdict, fields

from holdfast.records.fields import Field, Moment, declared
from holdfast.records.job import Awaited

# Whether a text is a UUID is checked where it is read, with its own error code.
_Uuid = Annotated[str, Meta(extra_json_schema={"format": "uuid"})]


class Body(msgspec.Struct, forbid_unknown_fields=True, kw_only=True):
    """A JSON object whose fields are all known."""


def body(
    record: type, says: str, *, leave_out: Collection[str] = (), more: type[Body] = Body
) -> Any:
    """Create the body type for a whole record; `more` has the fields that the record lacks."""
    made = [
        (one.name, _wire(one), *([] if one.required else [_default(one)]))
        for one in declared(record)
        if one.name not in leave_out
    ]
    return _struct(record.__name__, says, made, more)


def changes(
    record: type,
    name: str,
    says: str,
    *,
    only: Collection[str] | None = None,
    leave_out: Collection[str] = (),
    never_null: Collection[str] = (),
    more: type[Body] = Body,
) -> Any:
    """Create the body type that changes a record: any of its fields, but at least one."""
    made = [
        (one.name, _wire(one, null=one.name not in never_null, unset=True), UNSET)
        for one in declared(record)
        if one.name not in leave_out and (only is None or one.name in only)
    ]
    return _struct(name, says, made, more, at_least=1)


def answer(
    record: type,
    says: str = "",
    *,
    name: str = "",
    leave_out: Collection[str] = (),
    optional: Collection[str] = (),
    more: type[msgspec.Struct] = msgspec.Struct,
) -> Any:
    """Create the response type of a record, as `render.record` writes it.

    `optional` fields are left out if the record has None. `more` has additional fields, and those
    whose JSON has another type.
    """
    hints = get_type_hints(record, include_extras=True)
    known = {*leave_out, *(field.name for field in fields(more))}
    made: list[Any] = [
        (shown, Any if field.name != shown else _told(hints[field.name]))
        for field in fields(record)
        if (shown := field.name.removesuffix("_json")) not in {*known, *optional}
    ]
    made += [(name, str | UnsetType, UNSET) for name in optional]
    return _struct(name or record.__name__, says or record.__doc__ or "", made, more)


def given(body: Any) -> dict[str, Any]:
    """Return the fields of a body that are set."""
    return {name: value for name, value in asdict(body).items() if value is not UNSET}


def _struct(
    name: str, says: str, made: list[Any], more: type[msgspec.Struct], at_least: int = 0
) -> Any:
    about = {"__doc__": says, "at_least": at_least}
    return msgspec.defstruct(name, made, bases=(more,), kw_only=True, namespace=about)


def _wire(field: Field, *, null: bool = True, unset: bool = False) -> Any:
    """Return a field's type in JSON: durations are seconds, ids are texts, JSON stays."""
    value = _JSON.get(field.type, field.type)
    parts = [Annotated[value, field.limits] if field.limits else value]
    if field.nullable and null:
        parts.append(None)
    if unset:
        parts.append(UnsetType)
    return Annotated[Union[tuple(parts)], Meta(description=field.says)]  # noqa: UP007


def _default(field: Field) -> Any:
    return UNSET if field.type is Any else field.default


_JSON: dict[Any, Any] = {
    Any: msgspec.Raw | UnsetType,
    UUID: _Uuid,
    Mapping[str, Any]: dict[str, Any],
    timedelta: float,
    Awaited: list[_Uuid | int],
}


def _told(kind: Any) -> Any:
    """Return a type in a response: durations are seconds; only the description is kept."""
    if get_origin(kind) is Annotated:
        inner, *notes = get_args(kind)
        made = _told(inner)
        for note in notes:
            made = Annotated[made, note] if note.description else made
        return made
    if kind is timedelta:
        return float
    if kind is datetime:
        return Moment
    if get_origin(kind) is list:
        return list[tuple(map(_told, get_args(kind)))]  # type: ignore[misc]
    if type(None) in get_args(kind):
        return Union[tuple(map(_told, get_args(kind)))]  # noqa: UP007  of any number
    return kind
