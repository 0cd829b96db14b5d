"""Converts Python values to JSON that PostgreSQL can store, and back to their types.

msgspec does it, with support for pydantic's models. Values that jsonb cannot store are found before
they are sent.
"""

import math
import re
import sys
from collections.abc import Callable, Mapping
from decimal import Decimal, InvalidOperation
from typing import Any

import msgspec


class Unfit(ValueError):  # noqa: N818 - read as "the payload" + str(unfit)
    """A value that jsonb cannot store: a predicate with the reason and the place."""

    fix = ""


class Encoded(bytes):
    """JSON from `encode`: it is checked, and encoding it again returns it unchanged."""

    __slots__ = ()


def encode(value: Any) -> Encoded:
    """Encode a value as JSON; raise Unfit if it cannot be."""
    if type(value) is Encoded:
        return value
    try:
        text = _ENCODER.encode(value)
    except RecursionError:
        raise Unfit("is nested too deeply to be JSON") from None
    except (TypeError, ValueError, OverflowError) as error:
        raise Unfit(f"is not JSON{_find(value, _not_json)}: {error}") from None
    try:
        # Of JSON that is given as it is, msgspec copies each byte: half an object of it would end
        # where another job begins. What is skipped is not decoded: 60 ns for a small payload.
        _WELL_FORMED.decode(text)
    except msgspec.DecodeError as error:
        raise Unfit(f"is not JSON, in what is given as msgspec.Raw: {error}") from None
    except RecursionError:
        raise Unfit("is nested too deeply to be JSON") from None
    if b"\\u0000" in text and _NUL.search(text):
        place = _find(plain(value), _has_nul)
        unfit = Unfit(f"contains a NUL character{place}, which PostgreSQL cannot store")
        unfit.fix = "Remove it, or send the bytes encoded as base64."
        raise unfit
    # msgspec writes NaN and the infinities as null, and silently lost numbers are the worst kind.
    if b"null" in text and (place := _find(plain(value), _not_finite)):
        raise Unfit(f"contains NaN or an infinity{place}, which JSON does not have")
    # Numbers that msgspec writes fit, but for long integers; those of JSON from elsewhere may not.
    if (
        _LONG.search(text) if type(value) is msgspec.Raw else len(text) > 300 and _has_digits(text)
    ) and _holds_beyond(text):
        unfit = Unfit("contains a number beyond 1e308 or with too many decimals")
        unfit.fix = "Send numbers that are too large for a double as a string."
        raise unfit
    return Encoded(text)


def decoder(wanted: Any) -> "msgspec.json.Decoder[Any]":
    """Make a decoder of JSON into a type; its errors are msgspec.ValidationError."""
    return msgspec.json.Decoder(wanted, dec_hook=_decoded)


def schema(wanted: Any) -> dict[str, Any]:
    """Return the JSON schema of a type."""
    return msgspec.json.schema(wanted, schema_hook=_schema)


def plain(value: Any) -> Any:
    """Return a value as JSON would decode it: dicts, lists, strings, numbers."""
    return None if isinstance(value, msgspec.Raw) else msgspec.to_builtins(value, enc_hook=_encoded)


def unsupported(wanted: Any) -> str:
    """Return which part of a type JSON cannot represent; nothing if it can represent all."""
    try:
        decoder(wanted)
        schema(wanted)
    except (NameError, TypeError) as error:
        return str(error).partition("\n")[0].rstrip(".")
    return ""


def _is_model(kind: Any) -> bool:
    # pydantic's models are recognised by attributes: the package itself is never imported.
    return hasattr(kind, "model_validate_json") and hasattr(kind, "model_dump")


def _encoded(value: Any) -> Any:
    if _is_model(type(value)):
        return value.model_dump(mode="json", by_alias=True, round_trip=True)
    name = type(value).__qualname__
    if isinstance(value, tuple | frozenset):
        raise TypeError(f"`{name}` cannot be a key")
    raise TypeError(f"`{name}` can't be serialised to JSON")


def _decoded(kind: Any, value: Any) -> Any:
    if _is_model(kind):
        # From JSON, not from Python: a strict model takes a date of JSON and no string of Python.
        return kind.model_validate_json(msgspec.json.encode(value))
    raise TypeError(f"`{kind!r}` can't be read from JSON")


def _schema(kind: Any) -> dict[str, Any]:
    if _is_model(kind):
        return {"type": "object", "title": kind.__name__}
    raise TypeError(f"`{getattr(kind, '__qualname__', kind)}` is not a JSON type")


def _find(value: Any, wrong: Callable[[Any], bool], path: str = "$", depth: int = 100) -> str:
    """Return where in a value the error is: " at `$.a[0]`", or nothing."""
    if isinstance(value, Mapping) and depth:
        for key, part in value.items():
            if wrong(key):
                return f" in a key of `{path}`"
            if place := _find(part, wrong, f"{path}.{key}", depth - 1):
                return place
    elif isinstance(value, list | tuple | set | frozenset) and depth:
        for nth, part in enumerate(value):
            if place := _find(part, wrong, f"{path}[{nth}]", depth - 1):
                return place
    elif wrong(value):
        return f" at `{path}`"
    return ""


def _not_json(value: Any) -> bool:
    try:
        _ENCODER.encode(value)
    except (TypeError, ValueError, OverflowError):
        return True
    return False


def _has_nul(value: Any) -> bool:
    return isinstance(value, str) and "\0" in value


def _not_finite(value: Any) -> bool:
    return isinstance(value, float) and not math.isfinite(value)


def _holds_beyond(text: bytes) -> bool:
    """Whether there is a number that does not fit a double; strings do not count."""
    return any(_beyond(number) for number in _NUMBER.findall(_STRING.sub(b'""', text)))


def _has_digits(text: bytes) -> bool:
    """Whether there may be 300 digits in a row; reads one byte of thirty."""
    return _NINE.search(text[::30]) is not None


def _beyond(number: bytes) -> bool:
    try:
        read = Decimal(number.decode())
    except InvalidOperation:
        return True
    exponent = read.as_tuple().exponent
    return abs(read) > _MOST or (isinstance(exponent, int) and exponent < -_DECIMALS)


_WELL_FORMED = msgspec.json.Decoder(msgspec.Raw)
_ENCODER = msgspec.json.Encoder(enc_hook=_encoded)
_MOST = Decimal(repr(sys.float_info.max))
# Each is a byte to send, however short the number is written.
_DECIMALS = 1000
# Only of what has a long exponent, or many digits, a number beyond the range can be made.
_LONG = re.compile(rb"[eE][+-]?[0-9]{3}|[0-9]{300}")
_NINE = re.compile(rb"[0-9]{9}")
_NUMBER = re.compile(rb"-?[0-9][0-9.eE+-]*")
_STRING = re.compile(rb'"(?:[^"\\]|\\.)*"', re.DOTALL)
_NUL = re.compile(rb"(?<!\\)(?:\\\\)*\\u0000")
