"""A form of a schema: what is shown, what is read, and what is refused."""

from dataclasses import dataclass
from datetime import date
from typing import Annotated, Any, Literal

import msgspec
import pytest

from holdfast.server.http.form import FormError, fields_of, html_of, value_of


@dataclass
class Place:
    city: str


@dataclass
class Approval:
    """All sorts of fields."""

    approved: bool
    by: str
    limit: int | None = None
    share: Annotated[float, msgspec.Meta(ge=0, le=1)] = 0.5
    mood: Literal["good", "bad"] | None = None
    until: date | None = None
    place: Place | None = None


SCHEMA = msgspec.json.schema(Approval)


def test_fields_are_read_by_their_types() -> None:
    sent = {
        "approved": "true",
        "by": "Ada\r\nL.",
        "limit": "42",
        "share": "0.25",
        "mood": '"bad"',
        "until": "2026-02-28",
        "place": '{"city": "Bern"}',
        "unknown": "x",
    }

    value = value_of(SCHEMA, sent)

    assert msgspec.convert(value, Approval) == Approval(
        True, "Ada\nL.", 42, 0.25, "bad", date(2026, 2, 28), Place("Bern")
    )


def test_what_is_optional_may_be_left_out() -> None:
    value = value_of(SCHEMA, {"approved": "false", "by": ""})

    assert value == {"approved": False, "by": ""}


@pytest.mark.parametrize(
    ("field", "text", "what"),
    [
        ("approved", "", "is missing"),
        ("approved", "maybe", "is not yes or no"),
        ("limit", "1.5", "is not a whole number"),
        ("limit", "9" * 400, "is not a whole number"),
        ("share", "2", "is too large"),
        ("share", "NaN", "is not a number"),
        ("mood", '"awful"', "is not one of the choices"),
        ("until", "2026-02-30", "is none of what it may be"),
        ("place", "{}", "is none of what it may be"),
        ("place", "{", "is not JSON"),
        ("place", "NaN", "is not JSON"),
        ("place", "[" * 100_000, "is not JSON"),
        ("by", "\0", "contains a NUL character"),
    ],
)
def test_what_does_not_fit_is_named(field: str, text: str, what: str) -> None:
    with pytest.raises(FormError) as refused:
        value_of(SCHEMA, {"approved": "true", "by": "Ada", field: text})

    assert refused.value.fields == {field: what}


@pytest.mark.parametrize(
    ("wanted", "text", "value"),
    [(bool, "true", True), (int, "7", 7), (str, "yes", "yes"), (list[int], "[1]", [1])],
)
def test_a_value_that_is_not_an_object_has_one_field(wanted: Any, text: str, value: Any) -> None:
    assert value_of(msgspec.json.schema(wanted), {"answer": text}) == value


def test_without_a_schema_the_answer_is_a_text() -> None:
    assert value_of(None, {"answer": "42"}) == "42"
    assert value_of(None, {}) is None


def test_a_schema_that_refers_to_itself_ends() -> None:
    schema = {"$ref": "#/$defs/a", "$defs": {"a": {"$ref": "#/$defs/a"}}}

    assert value_of(schema, {"answer": "1"}) == 1


def test_nothing_in_a_schema_or_an_answer_becomes_markup() -> None:
    bad = '"><script>alert(1)</script>'
    field = {"type": "string", "title": bad, "description": bad, "default": bad}
    schema = {"type": "object", "properties": {bad: field, "x": {"enum": [bad, "y"]}}}

    shown = html_of(fields_of(schema), {"x": bad}, {bad: bad})

    assert "<script" not in shown
    assert '""' not in shown
