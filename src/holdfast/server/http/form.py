"""A form made from the JSON schema of a value, without scripts; and the value that was sent.

Only what forms need of JSON schema is understood; what is not is a field for JSON text. The value
as a whole is checked against the schema before anybody gets it. A schema may be of another language
or wrong: what cannot be understood of it is not checked here, but by the job.
"""

import json
import math
import re
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from datetime import date, datetime
from html import escape
from typing import Any
from urllib.parse import unquote
from uuid import UUID

from holdfast.server.http.patterns import Effort, TooMuch, fits

Schema = Mapping[str, Any]
# The field of a value that is not an object, such as yes or no.
WHOLE = "answer"
# As deep as a value, or what a schema refers to, is followed.
DEEP = 40
# Steps that checking one answer may take: a fraction of a second.
STEPS = 1_000_000
_PLAIN = ("string", "integer", "number", "boolean")


class FormError(ValueError):
    """What was sent is not such a value; `fields` says what is wrong with which."""

    def __init__(self, fields: Mapping[str, str]) -> None:
        super().__init__("; ".join(f"{name}: {what}" for name, what in fields.items()))
        self.fields = fields


@dataclass(frozen=True, slots=True)
class Field:
    """One field: its name, its schema with references put in place, and whether it may be empty."""

    name: str
    schema: Schema
    required: bool

    @property
    def type(self) -> str:
        """Which of the simple types it has; empty for JSON text."""
        types = [one for one in _types(self.schema) if one != "null"]
        return types[0] if len(types) == 1 and types[0] in _PLAIN else ""

    @property
    def choices(self) -> list[Any] | None:
        """The values it may have, if they are listed."""
        return _list(self.schema, "enum")


def schema_of(text: str | None) -> Schema | None:
    """Return a schema that was stored; one that takes anything if it cannot be read."""
    try:
        schema = None if text is None else json.loads(text)
    except (ValueError, RecursionError):
        return {}
    return {} if _is_deeper(schema, 2 * DEEP) else schema


def fields_of(schema: Schema | None) -> list[Field]:
    """Return the fields for a value; one of text if there is no schema."""
    if schema is None:
        return [Field(WHOLE, {"type": "string"}, False)]
    top = _simple(schema, schema)
    if not _is_object(schema):
        return [Field(WHOLE, top, True)]
    required = set(_required(top))
    return [
        Field(name, _simple(one, schema), name in required)
        for name, one in top["properties"].items()
    ]


def value_of(schema: Schema | None, sent: Mapping[str, str]) -> Any:
    """Return the value that was sent; raises FormError."""
    fields = fields_of(schema)
    values: dict[str, Any] = {}
    wrong: dict[str, str] = {}
    for field in fields:
        # Browsers send the ends of lines of a text as CR LF.
        text = sent.get(field.name, "").replace("\r\n", "\n")
        try:
            if text or (field.required and field.type == "string" and field.choices is None):
                values[field.name] = _read(field, text)
            elif field.required:
                wrong[field.name] = "is missing"
        except ValueError as error:
            wrong[field.name] = str(error)
    if not wrong and schema is not None:
        is_whole = [field.name for field in fields] == [WHOLE] and not _is_object(schema)
        value = values.get(WHOLE) if is_whole else values
        for where, what in _misfits_of(value, schema):
            # Of a value that is not an object, all places are those of its only field.
            wrong.setdefault(WHOLE if is_whole else where[0] if where else "", what)
    if wrong:
        raise FormError(wrong)
    return values.get(WHOLE) if schema is None or not _is_object(schema) else values


def html_of(
    fields: list[Field], sent: Mapping[str, str], wrong: Mapping[str, str] | None = None
) -> str:
    """Return the fields as HTML, with what was sent before and what was wrong with it."""
    return "".join(
        _html(field, sent.get(field.name), (wrong or {}).get(field.name)) for field in fields
    )


def _read(field: Field, text: str) -> Any:
    if field.choices is not None:
        for one in field.choices:
            if json.dumps(one) == text:
                return one
        raise ValueError("is not one of the choices")
    match field.type:
        case "string":
            return text
        case "boolean":
            if text not in ("true", "false"):
                raise ValueError("is not yes or no")
            return text == "true"
        case "integer":
            if not re.fullmatch(r"[-+]?[0-9]{1,30}", text.strip()):
                raise ValueError("is not a whole number")
            return int(text)
        case "number":
            try:
                number = float(text)
            except ValueError:
                raise ValueError("is not a number") from None
            if not math.isfinite(number):
                raise ValueError("is not a number")
            return number
    try:
        return json.loads(text, parse_constant=_refuse)
    except (ValueError, RecursionError):
        raise ValueError("is not JSON") from None


def _refuse(word: str) -> Any:
    raise ValueError(word)


Place = tuple[str, ...]


def _misfits_of(value: Any, schema: Schema) -> Iterator[tuple[Place, str]]:
    """Yield where a value does not fit a schema, and why; in a time that has a limit."""
    check = _Check(schema)
    try:
        yield from check.misfits(value, schema, (), DEEP)
    except TooMuch:
        # Not left to the job: who answers must not be able to turn the check off.
        yield check.place, "takes too long to check: send something shorter"


class _Check:
    """One value against one schema."""

    def __init__(self, whole: Schema) -> None:
        self.place: Place = ()
        self._whole = whole
        self._effort = Effort(STEPS)

    def misfits(
        self, value: Any, given: Any, place: Place, left: int
    ) -> Iterator[tuple[Place, str]]:
        """Yield where a value does not fit its schema, and why."""
        self.place = place
        if left == 0:
            yield place, "is nested too deeply"
            return
        schema = _followed(given, self._whole)
        self._effort.spend(10 + len(schema))
        if ways := _list(schema, "anyOf"):
            if all(any(self.misfits(value, one, place, left - 1)) for one in ways):
                yield place, "is none of what it may be"
            return
        types = _types(schema)
        if types and not any(_is(value, one) for one in types):
            yield place, f"is not {' or '.join(types)}"
            return
        choices = _list(schema, "enum")
        if choices is not None and not any(self._same(value, one) for one in choices):
            yield place, "is not one of the choices"
        if "const" in schema and not self._same(value, schema["const"]):
            yield place, f"is not {json.dumps(schema['const'])}"
        if isinstance(value, str):
            yield from ((place, what) for what in self._misfits_of_text(value, schema))
        elif isinstance(value, int | float) and not isinstance(value, bool):
            yield from ((place, what) for what in _misfits_of_number(value, schema))
        elif isinstance(value, list):
            yield from self._misfits_of_list(value, schema, place, left)
        elif isinstance(value, dict):
            yield from self._misfits_of_object(value, schema, place, left)

    def _misfits_of_list(
        self, value: list[Any], schema: Schema, place: Place, left: int
    ) -> Iterator[tuple[Place, str]]:
        if not _limit(schema, "minItems", 0) <= len(value) <= _limit(schema, "maxItems", math.inf):
            yield place, "has too few or too many items"
        if isinstance(items := schema.get("items"), dict):
            for nth, one in enumerate(value):
                yield from self.misfits(one, items, (*place, str(nth)), left - 1)

    def _misfits_of_object(
        self, value: dict[str, Any], schema: Schema, place: Place, left: int
    ) -> Iterator[tuple[Place, str]]:
        required = _required(schema)
        self._effort.spend(len(required))
        known = _object(schema, "properties")
        for name in required:
            if name not in value:
                yield (*place, name), "is missing"
        for name, one in value.items():
            if name in known:
                yield from self.misfits(one, known[name], (*place, name), left - 1)
            elif schema.get("additionalProperties") is False and not schema.get(
                "patternProperties"
            ):
                yield (*place, name), "is not a field of it"

    def _misfits_of_text(self, value: str, schema: Schema) -> Iterator[str]:
        if "\0" in value:
            yield "contains a NUL character"
        least, most = _limit(schema, "minLength", 0), _limit(schema, "maxLength", math.inf)
        if len(value) < least:
            yield "is missing" if not value else f"needs {least} characters or more"
        if len(value) > most:
            yield f"may have {most} characters"
        pattern = schema.get("pattern")
        if isinstance(pattern, str) and fits(pattern, value, self._effort) is False:
            yield "does not have the right form"
        format = schema.get("format")
        reads = _FORMATS.get(format) if isinstance(format, str) else None
        try:
            if reads:
                reads(value)
        except ValueError:
            yield f"is not a {format}"

    def _same(self, one: Any, other: Any, left: int = DEEP) -> bool:
        """Whether two values are the same in JSON, where 1 is 1.0 and not true."""
        self._effort.spend(1)
        if left == 0:  # not looked at so deeply: the job does
            return True
        if isinstance(one, dict) and isinstance(other, dict):
            return one.keys() == other.keys() and all(
                self._same(part, other[name], left - 1) for name, part in one.items()
            )
        if isinstance(one, list) and isinstance(other, list):
            return len(one) == len(other) and all(
                self._same(*pair, left - 1) for pair in zip(one, other, strict=True)
            )
        if isinstance(one, bool) or isinstance(other, bool):
            return one is other
        return bool(one == other)


def _misfits_of_number(value: float, schema: Schema) -> Iterator[str]:
    if value < _limit(schema, "minimum", -math.inf) or value <= _limit(
        schema, "exclusiveMinimum", -math.inf
    ):
        yield "is too small"
    if value > _limit(schema, "maximum", math.inf) or value >= _limit(
        schema, "exclusiveMaximum", math.inf
    ):
        yield "is too large"


_FORMATS: dict[str, Callable[[str], object]] = {
    "date": date.fromisoformat,
    "date-time": datetime.fromisoformat,
    "uuid": UUID,
}


def _is(value: Any, type: str) -> bool:
    match type:
        case "integer":
            return isinstance(value, int) and not isinstance(value, bool)
        case "number":
            return isinstance(value, int | float) and not isinstance(value, bool)
    kinds = {"string": str, "boolean": bool, "object": dict, "array": list}
    return value is None if type == "null" else isinstance(value, kinds.get(type, object))


# What is of the wrong type in a schema counts as not there.


def _limit(schema: Schema, name: str, otherwise: float) -> float:
    found = schema.get(name)
    return found if isinstance(found, int | float) and not isinstance(found, bool) else otherwise


def _list(schema: Schema, name: str) -> list[Any] | None:
    found = schema.get(name)
    return found if isinstance(found, list) else None


def _object(schema: Schema, name: str) -> dict[str, Any]:
    found = schema.get(name)
    return found if isinstance(found, dict) else {}


def _required(schema: Schema) -> list[str]:
    return [one for one in _list(schema, "required") or () if isinstance(one, str)]


def _types(schema: Schema) -> list[str]:
    """Return the types that a value may have; none if that is not said in a known way."""
    found = schema.get("type")
    types: list[Any] = found if isinstance(found, list) else [found]
    return types if all(isinstance(one, str) for one in types) else []


def _is_deeper(value: Any, left: int) -> bool:
    parts = value.values() if isinstance(value, dict) else value if isinstance(value, list) else ()
    return left == 0 or any(_is_deeper(one, left - 1) for one in parts)


def _is_object(schema: Schema) -> bool:
    top = _simple(schema, schema)
    return top.get("type") == "object" and isinstance(top.get("properties"), dict)


def _followed(given: Any, whole: Schema) -> Schema:
    """Return a schema with what it refers to in its place."""
    if given is False:  # nothing fits
        return {"enum": []}
    found: dict[str, Any] = {}
    known = _object(whole, "$defs")
    seen: set[str] = set()
    while isinstance(given, dict):
        for key, value in given.items():
            found.setdefault(key, value)
        name = unquote(str(given.get("$ref", "")).removeprefix("#/$defs/"))
        if "$ref" not in given or name in seen or len(seen) == DEEP:
            break
        seen.add(name)
        given = known.get(name)
    found.pop("$ref", None)
    return found


def _simple(given: Any, whole: Schema) -> Schema:
    """Return a schema as a field shows it: without references, and without null beside a type."""
    schema = _followed(given, whole)
    real = [_followed(one, whole) for one in _list(schema, "anyOf") or ()]
    real = [one for one in real if one.get("type") != "null"]
    if len(real) == 1:
        schema = {**real[0], **{k: v for k, v in schema.items() if k != "anyOf"}}
    if "const" in schema and _list(schema, "enum") is None:
        schema = {**schema, "enum": [schema["const"]]}
    return schema


def _html(field: Field, sent: str | None, wrong: str | None) -> str:
    shown = field.schema.get("default") if sent is None else None
    if sent is None and shown is not None and field.type == "string" and field.choices is None:
        sent = str(shown)
    elif sent is None:
        sent = "" if shown is None else json.dumps(shown)
    name, id = escape(field.name), escape(f"field-{field.name}")
    title = escape(str(field.schema.get("title") or field.name.replace("_", " ")))
    if field.name == WHOLE:
        title = "Answer"
    about = escape(str(field.schema.get("description", "")))
    rest = "" if field.required else " <small>optional</small>"
    note = f"<small>{about}</small>" if about else ""
    fault = (
        f'<p class="wrong" role="alert" id="{id}-wrong">{title} {escape(wrong)}</p>'
        if wrong
        else ""
    )
    told = f' aria-invalid="true" aria-describedby="{id}-wrong"' if wrong else ""
    choices = _choices(field)
    if choices:
        options = "".join(
            f'<label><input type="radio" name="{name}" value="{escape(value)}"'
            f"{' checked' if value == sent else ''}{' required' if field.required else ''}{told}> "
            f"{escape(label)}</label>"
            for value, label in choices
        )
        return f"<fieldset><legend>{title}{rest}</legend>{note}{options}{fault}</fieldset>"
    control = _control(field, id, sent, told)
    return f'<p><label for="{id}">{title}{rest}</label>{note}{control}</p>{fault}'


def _choices(field: Field) -> list[tuple[str, str]]:
    if field.choices is not None:
        return [(json.dumps(one), str(one)) for one in field.choices]
    if field.type == "boolean":
        return [("true", "Yes"), ("false", "No")]
    return []


def _control(field: Field, id: str, sent: str, told: str) -> str:
    head = f'id="{id}" name="{escape(field.name)}"{told}'
    if field.required and field.type != "string":
        head += " required"
    match field.type:
        case "integer":
            return f'<input {head} inputmode="numeric" value="{escape(sent)}">'
        case "number":
            return f'<input {head} inputmode="decimal" value="{escape(sent)}">'
        case "string" if field.schema.get("format") == "date":
            return f'<input {head} type="date" value="{escape(sent)}">'
        case "string" if (
            field.schema.get("format") or _limit(field.schema, "maxLength", 999) <= 100
        ):
            return f'<input {head} value="{escape(sent)}">'
    # A first line that is empty is not part of a text area.
    hint = "" if field.type == "string" else ' placeholder="JSON" spellcheck="false"'
    return f'<textarea {head} rows="3"{hint}>\n{escape(sent)}</textarea>'
