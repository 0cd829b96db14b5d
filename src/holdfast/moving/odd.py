"""Values that PostgreSQL can hold and Python cannot: their rows stay, and the others are moved."""

import json
from collections.abc import Iterable
from typing import Any

import psycopg
from psycopg.types.datetime import DateLoader, TimestampLoader, TimestamptzLoader
from psycopg.types.json import set_json_loads

from holdfast.moving.found import Unreadable


class Odd:
    """Stands for a value that cannot be read."""

    def __init__(self, why: str) -> None:
        self.why = why


def allow(cursor: "psycopg.Cursor[Any] | psycopg.ServerCursor[Any]") -> None:
    """Let a cursor return such values as `Odd`, where it would raise in the midst of the rows."""
    cursor.adapters.register_loader("timestamptz", _Timestamptz)
    cursor.adapters.register_loader("timestamp", _Timestamp)
    cursor.adapters.register_loader("date", _Date)
    set_json_loads(_json, cursor)


def refuse(row: Iterable[Any]) -> None:
    """Raise Unreadable if a row has such a value."""
    for value in row:
        if type(value) is Odd:
            raise Unreadable(value.why)


def _json(data: str | bytes) -> Any:
    try:
        return json.loads(data)
    except RecursionError:
        return Odd("its JSON is nested too deeply")
    except ValueError as error:  # an integer of more digits than Python converts
        return Odd(f"its JSON cannot be read: {error}")


class _Timestamptz(TimestamptzLoader):
    def load(self, data: Any) -> Any:
        return _time(super().load, data)


class _Timestamp(TimestampLoader):
    def load(self, data: Any) -> Any:
        return _time(super().load, data)


class _Date(DateLoader):
    def load(self, data: Any) -> Any:
        return _time(super().load, data)


def _time(load: Any, data: Any) -> Any:
    try:
        return load(data)
    except (psycopg.DataError, ValueError, OverflowError):
        return Odd(f"its time {bytes(data).decode()} is beyond what Python can hold")
