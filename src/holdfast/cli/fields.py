"""Options of commands made of the declarations of records: one field there is one option here."""

from collections.abc import Callable, Collection, Mapping, Sequence
from datetime import datetime, timedelta
from typing import Any, TypeVar
from uuid import UUID

import click

from holdfast.cli.values import duration, moment
from holdfast.records.fields import declared
from holdfast.records.job import Awaited

F = TypeVar("F", bound=Callable[..., Any])


def options_of(
    record: type, *, leave_out: Collection[str], spelt: Mapping[str, Sequence[str]]
) -> Callable[[F], F]:
    """Give a command an option for each field of a record; `spelt` says which have other names."""
    made = []
    for field in declared(record):
        if field.name in leave_out:
            continue
        names = spelt.get(field.name, [f"--{field.name.replace('_', '-')}"])
        shown = f"{field.says}  [{field.default}]" if field.default is not None else field.says
        sort, metavar = _SORTS.get(field.type, (None, None))
        if field.choices:
            sort, metavar = click.Choice(field.choices), "WHAT"
        several = field.type == Awaited
        made.append(
            click.option(
                *names,
                field.name,
                type=sort,
                default=field.default,
                multiple=several,
                metavar=metavar,
                help=shown,
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
    Awaited: (click.UUID, "UUID"),
}
