"""Request bodies and answers made of the records: one field there is one field here."""

from collections.abc import Collection, Mapping
from datetime import datetime, timedelta
from typing import Annotated, Any, Union, get_args, get_origin, get_type_hints
from uuid import UUID

import msgspec
from msgspec import UNSET, Meta, UnsetType
from msgspec.structs import fields

from holdfast.records.fields import Moment

# What a text must be to be a UUID is checked where it is read, with a code of its own.
_Uuid = Annotated[str, Meta(extra_json_schema={"format": "uuid"})]


class Body(msgspec.Struct, forbid_unknown_fields=True, kw_only=True):
    """A JSON object whose fields are all known."""


def body(
    record: type, says: str, *, leave_out: Collection[str] = (), more: type[Body] = Body
) -> Any:
    """Make the body that gives a whole record; `more` has the fields that the record lacks."""
    made = [
        (field.name, kind) if field.required else (field.name, kind, _default(kind, field.default))
        for field, kind in _wire_fields(record)
        if field.name not in leave_out
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
    """Make the body that changes a record: any of its fields, but one of them at least."""
    made = [
        (field.name, _or_unset(kind, null=field.name not in never_null), UNSET)
        for field, kind in _wire_fields(record)
        if field.name not in leave_out and (only is None or field.name in only)
    ]
    return _struct(name, says, made, more, at_least=1)


def answer(
    record: type,
    says: str = "",
    *,
    name: str = "",
    leave_out: Collection[str] = (),
    more: type[msgspec.Struct] = msgspec.Struct,
) -> Any:
    """Make what a record is to those who get it as JSON, as `render.record` writes it.

    `more` has fields that are added, and those whose JSON has a type of its own.
    """
    hints = get_type_hints(record, include_extras=True)
    known = {*leave_out, *(field.name for field in fields(more))}
    made = [
        (shown, Any if field.name != shown else _told(hints[field.name]))
        for field in fields(record)
        if (shown := field.name.removesuffix("_json")) not in known
    ]
    return _struct(name or record.__name__, says or record.__doc__ or "", made, more)


def given(body: Any) -> dict[str, Any]:
    """Return the fields of a body that are there."""
    values = ((name, getattr(body, name)) for name in body.__struct_fields__)
    return {name: value for name, value in values if value is not UNSET}


def _struct(
    name: str, says: str, made: list[Any], more: type[msgspec.Struct], at_least: int = 0
) -> Any:
    about = {"__doc__": says, "at_least": at_least}
    return msgspec.defstruct(name, made, bases=(more,), kw_only=True, namespace=about)


def _wire_fields(record: type) -> list[tuple[Any, Any]]:
    hints = get_type_hints(record, include_extras=True)
    return [(field, _wire(hints[field.name])) for field in fields(record)]


def _wire(kind: Any) -> Any:
    """Return a type as JSON has it: durations are seconds, ids are texts, JSON stays as it is."""
    if get_origin(kind) is Annotated:
        inner, *notes = get_args(kind)
        made = _wire(inner)
        for note in notes:
            made = Annotated[made, note]
        return made
    if kind is Any:
        return msgspec.Raw | UnsetType
    if kind is UUID:
        return _Uuid
    if kind == Mapping[str, Any]:
        return dict[str, Any]
    parts = get_args(kind)
    if timedelta in parts or kind is timedelta:
        rest = [part for part in parts if part not in (timedelta, float)]
        return Union[(float, *rest)] if rest else float
    if type(None) in parts:
        return Union[tuple(map(_wire, parts))]  # noqa: UP007  of any number
    return kind


def _told(kind: Any) -> Any:
    """Return a type as an answer has it: durations are seconds; of the notes, what it means."""
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


def _default(kind: Any, default: Any) -> Any:
    return UNSET if UnsetType in get_args(_bare(kind)) else default


def _or_unset(kind: Any, *, null: bool) -> Any:
    if get_origin(kind) is Annotated:
        inner, *notes = get_args(kind)
        made = _or_unset(inner, null=null)
        if made is not inner and type(None) not in get_args(made) and len(get_args(inner)) < 2:
            # Limits belong to the value, not to the union.
            return kind | UnsetType
        for note in notes:
            made = Annotated[made, note]
        return made
    union = {type(None), UnsetType} & set(get_args(kind))
    parts = get_args(kind) if union else (kind,)
    kept = [part for part in parts if null or part is not type(None)]
    return Union[(*kept, UnsetType)]


def _bare(kind: Any) -> Any:
    return _bare(get_args(kind)[0]) if get_origin(kind) is Annotated else kind
