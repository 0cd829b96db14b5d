"""A form made from the JSON schema of a value, without scripts; and the value that was sent.

Only what forms need of JSON schema is understood; what is not is a field for JSON text. The value
as a whole is checked against the schema before anybody gets it.
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

Schema = Mapping[str, Any]
# The field of a value that is not an object, such as yes or no.
WHOLE = "answer"
# As deep as a value, or what a schema refers to, is followed.
DEEP = 40
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
        return _type(self.schema)


def fields_of(schema: Schema | None) -> list[Field]:
    """Return the fields for a value; one of text if there is no schema."""
    if schema is None:
        return [Field(WHOLE, {"type": "string"}, False)]
    top = _simple(schema, schema)
    if top.get("type") != "object" or not isinstance(top.get("properties"), dict):
        return [Field(WHOLE, top, True)]
    required = top.get("required", ())
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
            if text or (field.required and field.type == "string" and "enum" not in field.schema):
                values[field.name] = _read(field, text)
            elif field.required:
                wrong[field.name] = "is missing"
        except ValueError as error:
            wrong[field.name] = str(error)
    if not wrong and schema is not None:
        is_whole = [field.name for field in fields] == [WHOLE] and not _is_object(schema)
        value = values.get(WHOLE) if is_whole else values
        for where, what in _misfits(value, schema, schema, "", DEEP):
            wrong.setdefault(where.partition(".")[0] or fields[0].name if fields else "", what)
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


def _is_object(schema: Schema) -> bool:
    top = _simple(schema, schema)
    return top.get("type") == "object" and isinstance(top.get("properties"), dict)


def _read(field: Field, text: str) -> Any:
    if "enum" in field.schema:
        for one in field.schema["enum"]:
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


def _misfits(
    value: Any, schema: Schema, whole: Schema, where: str, left: int
) -> Iterator[tuple[str, str]]:
    """Yield where a value does not fit its schema, and why."""
    if left == 0:
        yield where, "is nested too deeply"
        return
    schema = _followed(schema, whole)
    if "anyOf" in schema:
        if all(any(_misfits(value, one, whole, where, left - 1)) for one in schema["anyOf"]):
            yield where, "is none of what it may be"
        return
    types = schema.get("type")
    if types is not None and not any(_is(value, one) for one in _listed(types)):
        yield where, f"is not {' or '.join(_listed(types))}"
        return
    if "enum" in schema and not any(_same(value, one) for one in schema["enum"]):
        yield where, "is not one of the choices"
    if "const" in schema and not _same(value, schema["const"]):
        yield where, f"is not {schema['const']}"
    if isinstance(value, str):
        yield from ((where, what) for what in _misfits_of_text(value, schema))
    elif isinstance(value, int | float) and not isinstance(value, bool):
        yield from ((where, what) for what in _misfits_of_number(value, schema))
    elif isinstance(value, list):
        if not schema.get("minItems", 0) <= len(value) <= schema.get("maxItems", math.inf):
            yield where, "has too few or too many items"
        if isinstance(items := schema.get("items"), dict):
            for nth, one in enumerate(value):
                yield from _misfits(one, items, whole, f"{where}.{nth}", left - 1)
    elif isinstance(value, dict):
        known = schema.get("properties", {})
        for name in schema.get("required", ()):
            if name not in value:
                yield f"{where}.{name}".lstrip("."), "is missing"
        for name, one in value.items():
            at = f"{where}.{name}".lstrip(".")
            if name in known:
                yield from _misfits(one, known[name], whole, at, left - 1)
            elif schema.get("additionalProperties") is False:
                yield at, "is not a field of it"


def _misfits_of_text(value: str, schema: Schema) -> Iterator[str]:
    if "\0" in value:
        yield "contains a NUL character"
    if len(value) < schema.get("minLength", 0):
        yield "is missing" if not value else f"needs {schema['minLength']} characters or more"
    if len(value) > schema.get("maxLength", math.inf):
        yield f"may have {schema['maxLength']} characters"
    if "pattern" in schema and not re.search(schema["pattern"], value[:10_000]):
        yield "does not have the right form"
    reads = _FORMATS.get(schema.get("format", ""))
    try:
        if reads:
            reads(value)
    except ValueError:
        yield f"is not a {schema['format']}"


def _misfits_of_number(value: float, schema: Schema) -> Iterator[str]:
    if value < schema.get("minimum", -math.inf) or value <= schema.get(
        "exclusiveMinimum", -math.inf
    ):
        yield "is too small"
    if value > schema.get("maximum", math.inf) or value >= schema.get("exclusiveMaximum", math.inf):
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


def _same(one: Any, other: Any) -> bool:
    # In Python True is 1.
    return type(one) is type(other) and bool(one == other)


def _listed(types: Any) -> list[str]:
    return types if isinstance(types, list) else [types]


def _followed(schema: Schema, whole: Schema) -> Schema:
    """Return a schema with what it refers to in its place."""
    for _ in range(DEEP):
        if "$ref" not in schema:
            break
        name = unquote(str(schema["$ref"]).removeprefix("#/$defs/"))
        beside = {key: value for key, value in schema.items() if key != "$ref"}
        schema = {**whole.get("$defs", {}).get(name, {}), **beside}
    return schema


def _simple(schema: Schema, whole: Schema) -> Schema:
    """Return a schema as a field shows it: without references, and without null beside a type."""
    schema = _followed(schema, whole)
    real = [_followed(one, whole) for one in schema.get("anyOf", ())]
    real = [one for one in real if one.get("type") != "null"]
    if len(real) == 1:
        schema = {**real[0], **{k: v for k, v in schema.items() if k != "anyOf"}}
    if "const" in schema and "enum" not in schema:
        schema = {**schema, "enum": [schema["const"]]}
    return schema


def _type(schema: Schema) -> str:
    types = [one for one in _listed(schema.get("type", "")) if one != "null"]
    return types[0] if len(types) == 1 and types[0] in _PLAIN else ""


def _html(field: Field, sent: str | None, wrong: str | None) -> str:
    shown = field.schema.get("default") if sent is None else None
    if sent is None and shown is not None and field.type == "string" and "enum" not in field.schema:
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
    if "enum" in field.schema:
        return [(json.dumps(one), str(one)) for one in field.schema["enum"]]
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
        case "string" if field.schema.get("format") or field.schema.get("maxLength", 999) <= 100:
            return f'<input {head} value="{escape(sent)}">'
    # A first line that is empty is not part of a text area.
    hint = "" if field.type == "string" else ' placeholder="JSON" spellcheck="false"'
    return f'<textarea {head} rows="3"{hint}>\n{escape(sent)}</textarea>'
