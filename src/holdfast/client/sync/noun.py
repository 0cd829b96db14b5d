"""Generated from aio/noun.py by tools/generate_sync_client.py: edit that."""

from collections.abc import Sequence
from typing import Any, LiteralString, TypeVar

from holdfast.client import wire
from holdfast.client.statement import Statement
from holdfast.client.sync.pool import Bound, Pool
from holdfast.records import Record

R = TypeVar("R", bound=Record)


class Noun:
    """One group of methods. `source` is what follows `from` in SQL: a function or a view.

    `reads` means that a call changes nothing: it may be repeated and cancelled at any time. A call
    that is not `repeatable` is sent again only if the first certainly had no effect.
    """

    def __init__(self, door: Pool | Bound) -> None:
        self._door = door

    def _all(
        self,
        record: type[R],
        source: LiteralString,
        parameters: Sequence[Any] = (),
        *,
        reads: bool = False,
        repeatable: bool = True,
    ) -> list[R]:
        sql = f"select {wire.columns(record)} from {source}"
        statement = Statement(
            wire.name_of(source), sql, parameters, reads=reads, repeatable=repeatable
        )
        made = wire.maker(record)
        return [made(row) for row in self._door.run(statement)]

    def _one(
        self,
        record: type[R],
        source: LiteralString,
        parameters: Sequence[Any] = (),
        *,
        reads: bool = False,
        repeatable: bool = True,
    ) -> R:
        """Return the only row; it is an error if there is none."""
        [found] = self._all(record, source, parameters, reads=reads, repeatable=repeatable)
        return found

    def _first(
        self,
        record: type[R],
        source: LiteralString,
        parameters: Sequence[Any] = (),
        *,
        reads: bool = False,
    ) -> R | None:
        """Return the first row; None if there is none."""
        found = self._all(record, source, parameters, reads=reads)
        return found[0] if found else None

    def _value(
        self,
        function: LiteralString,
        parameters: Sequence[Any] = (),
        *,
        reads: bool = False,
        repeatable: bool = True,
    ) -> Any:
        """Return the single value of a function."""
        statement = Statement(
            wire.name_of(function),
            f"select {function}",
            parameters,
            reads=reads,
            repeatable=repeatable,
        )
        [(value,)] = self._door.run(statement)
        return value
