"""Options of commands made of the declarations of records: one field there is one option here."""

from collections.abc import Callable, Collection, Mapping, Sequence
from datetime import datetime, timedelta
from typing import Annotated, Any, Literal, TypeVar, get_args, get_origin, get_type_hints
from uuid import UUID

import click
from msgspec.structs import fields

from holdfast.cli.values import duration, moment

F = TypeVar("F", bound=Callable[..., Any])


def options_of(
    record: type, *, leave_out: Collection[str], spelt: Mapping[str, Sequence[str]]
) -> Callable[[F], F]:
    """Give a command an option for each field of a record; `spelt` says which have other names."""
    hints = get_type_hints(record, include_extras=True)
    made = []
    for field in fields(record):
        if field.name in leave_out:
            continue
        names = spelt.get(field.name, [f"--{field.name.replace('_', '-')}"])
        kind, says = _bare(hints[field.name])
        shown = f"{says}  [{field.default}]" if field.default is not None else says
        sort, metavar = _SORTS.get(kind, (None, None))
        if get_origin(kind) is Literal:
            sort, metavar = click.Choice(get_args(kind)), "WHAT"
        made.append(
            click.option(
                *names, field.name, type=sort, default=field.default, metavar=metavar, help=shown
            )
        )

    def give(command: F) -> F:
        for option in reversed(made):
            command = option(command)
        return command

    return give


_SORTS: dict[Any, tuple[Any, str]] = {
    timedelta: (duration, "10m"),
    datetime: (moment, "TIME"),
    int: (int, "N"),
    UUID: (click.UUID, "UUID"),
}


def _bare(kind: Any) -> tuple[Any, str]:
    """Return the type of a field without limits and null, and its sentence."""
    says = ""
    while True:
        if get_origin(kind) is Annotated:
            kind, *notes = get_args(kind)
            says = next((note.description for note in notes if note.description), says)
        elif get_origin(kind) is not Literal and type(None) in get_args(kind):
            kind = next(part for part in get_args(kind) if part is not type(None))
        elif timedelta in get_args(kind):
            return timedelta, says
        else:
            return kind, says
