"""Reads a pickle of plain values without running anything that it names.

`pickle.loads` calls whatever the data says. Here a name in the data stays a name: nothing is
imported and nothing is called, except the types of the standard library for times and decimals.
"""

import datetime
import io
import pickle
from decimal import Decimal
from typing import Any, cast
from uuid import UUID

from holdfast.moving.found import Unreadable

_TYPES = {
    ("datetime", "date"): datetime.date,
    ("datetime", "datetime"): datetime.datetime,
    ("datetime", "time"): datetime.time,
    ("datetime", "timedelta"): datetime.timedelta,
    ("datetime", "timezone"): datetime.timezone,
    ("decimal", "Decimal"): Decimal,
}
_VALUES = (str, bool, int, float, Decimal, datetime.date, datetime.time, datetime.timedelta)
# A few kilobytes can name one list a million times.
_MOST = 100_000


class Name(str):
    """A function or class that the data names."""


def read(data: bytes, *, named: str) -> dict[str, Any]:
    """Return the plain values of a pickled dictionary; its value `named` may be a function's name.

    Raises Unreadable if there is anything else.
    """
    try:
        reader = _Reader(io.BytesIO(data))
        loaded = reader.load()
        if type(loaded.get(named)) is Name:
            loaded[named] = str(loaded[named])
        return cast("dict[str, Any]", _Walk(reader.uuid).plain(loaded))
    except Unreadable:
        raise
    except Exception as error:
        raise Unreadable("its pickle has more than plain values") from error


class _Reader(pickle.Unpickler):
    def __init__(self, file: io.BytesIO) -> None:
        super().__init__(file)
        # One that is made for this pickle alone: its data can change the class.
        self.uuid = type("Uuid", (), {})

    def find_class(self, module: str, name: str) -> Any:
        if (module, name) == ("uuid", "UUID"):
            return self.uuid
        return _TYPES.get((module, name)) or Name(f"{module}.{name}")


class _Walk:
    def __init__(self, uuid: type) -> None:
        self._uuid = uuid
        self._left = _MOST

    def plain(self, value: Any) -> Any:
        self._left -= 1
        if self._left < 0:
            raise Unreadable(f"it has more than {_MOST:,} values")
        if type(value) is Name:
            raise Unreadable("an argument is a function or a class")
        if value is None or isinstance(value, _VALUES):
            return value
        if type(value) is self._uuid:
            return UUID(int=vars(value)["int"])
        if type(value) in (list, tuple, set):
            return [self.plain(one) for one in value]
        if type(value) is dict and all(type(key) is str for key in value):
            return {key: self.plain(one) for key, one in value.items()}
        raise Unreadable(f"it has a value of the type {type(value).__name__}")
