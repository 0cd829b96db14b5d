"""A form of a schema: what is shown, what is read, and what is refused."""

from contextlib import suppress
from dataclasses import dataclass
from datetime import date
from typing import Annotated, Any, Literal

import msgspec
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from holdfast.server.http.form import FormError, fields_of, html_of, schema_of, value_of


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


def text(**rules: Any) -> dict[str, Any]:
    """A schema of one text."""
    return {"type": "string", **rules}


@pytest.mark.parametrize(
    ("pattern", "sent"),
    [
        ("^[a-z]+$", "abc"),
        ("b", "abc"),  # it may be anywhere
        (r"^\w+\s\w+$", "Zoë Müller"),
        (r"^(?:\+49|0)[1-9]\d{2,10}$", "+4930123456"),
        (r"^[\w.+-]+@[\w-]+(\.[\w-]+)+$", "ada@example.co.uk"),
        (r"^(?P<year>\d{4})-(?<month>\d\d)?$", "2026-"),
        (r"\bcat\b", "a cat."),
        (r"^a{2,3}?b*[^c\]]{1,}\x41\u00e9$", "aabb-Aé"),
        ("^(|a|bc)*$", "abca"),
    ],
)
def test_a_text_that_its_pattern_finds_is_taken(pattern: str, sent: str) -> None:
    assert value_of(text(pattern=pattern), {"answer": sent}) == sent


@pytest.mark.parametrize(
    ("pattern", "sent"),
    [
        ("^[a-z]+$", "abc\n"),  # the end of a text is not the end of its last line
        ("^[a-z]+$", "a" * 20_000 + "<script>"),
        (r"^a{2,3}$", "aaaa"),
        (r"^\d+$", "12e"),
        (r"\bcat\b", "concatenate"),
        ("^(ab|cd)+$", "abc"),
        (r"^[^\s-]$", "-"),
    ],
)
def test_a_text_that_its_pattern_does_not_find_is_refused(pattern: str, sent: str) -> None:
    with pytest.raises(FormError) as refused:
        value_of(text(pattern=pattern), {"answer": sent})

    assert refused.value.fields == {"answer": "does not have the right form"}


@pytest.mark.parametrize(
    "pattern",
    ["^(a+)+$", "^(a|a)*$", "^(a|aa)+$", "(a*)*b", "^(([a-z])+.)+[A-Z]([a-z])+$", "(.*){9}x"],
)
def test_a_pattern_takes_a_moment_whatever_was_sent(pattern: str) -> None:
    # `re` tries one way after the other, and there are more ways with every letter.
    with pytest.raises(FormError):
        value_of(text(pattern=pattern), {"answer": "a" * 2000 + "!"})


@pytest.mark.parametrize(
    "pattern",
    [
        "(?<x>a)[[",
        "(a",
        "a)",
        "[a",
        "*",
        "a**",
        "\\",
        r"^\p{L}+$",
        r"(a)\1",
        "(?=a)b",
        "(?<!a)b",
        "(?i)A",
        r"\Aabc\Z",
        "[]",
        "[z-a]",
        "a{3,1}",
        "a{100000}",
        "((((){1000}){1000}){1000}){1000}",
        "((((a{99}){99}){99}){99}){99}",
        "(" * 5000,
        5,
        None,
        ["a"],
    ],
)
def test_a_pattern_that_the_form_cannot_judge_is_left_to_the_job(pattern: Any) -> None:
    assert value_of(text(pattern=pattern), {"answer": "anything"}) == "anything"


def test_an_answer_that_takes_too_long_to_check_is_refused_and_named() -> None:
    twice: dict[str, Any] = {"anyOf": [{"$ref": "#/$defs/a"}, {"$ref": "#/$defs/a"}]}
    name = {"type": "object", "properties": {"name": twice}, "$defs": {"a": twice}}
    slow = text(pattern=".{5,900}x")

    for schema, sent, field in ((name, "1", "name"), (slow, "a" * 30_000, "answer")):
        with pytest.raises(FormError) as refused:
            value_of(schema, {field: sent})
        assert refused.value.fields == {field: "takes too long to check: send something shorter"}


@pytest.mark.parametrize(
    ("schema", "text", "value"),
    [
        ({"enum": [{"a": [1]}, [1, 2], "x"]}, '{"a": [1]}', {"a": [1]}),
        ({"enum": [1, "1", True, None]}, "true", True),
        ({"anyOf": [{"enum": [1, 2]}, {"type": "array"}]}, "1.0", 1.0),
        ({"const": {"a": 1}}, '{"a": 1}', {"a": 1}),
        ({"type": "integer", "minimum": 3, "exclusiveMinimum": True}, "7", 7),
        ({"type": "integer", "exclusiveMinimum": True}, "1", 1),
        ({"type": "object", "required": "name"}, "{}", {}),
        ({"type": "object", "required": [["name"], 1]}, "{}", {}),
        ({"type": "object", "properties": ["a"]}, '{"a": 1}', {"a": 1}),
        ({"type": "array", "items": [{"type": "string"}]}, "[1]", [1]),
        ({"type": ["string", {}]}, "1", 1),
        ({"type": "file"}, "1", 1),
        ({"$ref": "#/definitions/a", "definitions": {"a": {"type": "string"}}}, "1", 1),
        ({"$ref": "#/$defs/a", "$defs": [1]}, "1", 1),
        ({"anyOf": [True]}, "1", 1),
        ({"anyOf": {}}, "1", 1),
        ({"additionalProperties": False, "patternProperties": {"^x": {}}}, '{"x": 1}', {"x": 1}),
    ],
)
def test_what_a_schema_says_in_another_way_is_left_to_the_job(
    schema: Any, text: str, value: Any
) -> None:
    assert value_of(schema, {"answer": text}) == value


@pytest.mark.parametrize(
    ("schema", "text"),
    [
        ({"enum": [1, "1"]}, "true"),
        ({"anyOf": [{"enum": [1]}, {"enum": [[1]]}]}, "true"),
        ({"anyOf": [{"enum": [[1]]}, {"const": [0]}]}, "[true]"),
        ({"anyOf": [False, False]}, "1"),
    ],
)
def test_true_is_not_a_number_and_nothing_fits_false(schema: Any, text: str) -> None:
    with pytest.raises(FormError):
        value_of(schema, {"answer": text})


def test_a_field_with_a_dot_in_its_name_is_named() -> None:
    schema = {"type": "object", "properties": {"a.b": {"type": "integer", "minimum": 3}}}

    with pytest.raises(FormError) as refused:
        value_of(schema, {"a.b": "1"})

    assert refused.value.fields == {"a.b": "is too small"}


@pytest.mark.parametrize(
    "stored", ['{"minimum": 1' + "0" * 9000 + "}", '{"enum": ' + "[" * 600 + "]" * 600 + "}"]
)
def test_a_schema_that_cannot_be_read_takes_anything(stored: str) -> None:
    assert schema_of(stored) == {}
    assert schema_of('{"type": "null"}') == {"type": "null"}
    assert schema_of(None) is None


WORDS = [
    "type", "properties", "required", "enum", "const", "anyOf", "$ref", "$defs", "items", "pattern",
    "format", "minimum", "exclusiveMaximum", "minLength", "maxLength", "maxItems", "default",
    "title", "description", "additionalProperties", "answer", "a",
]  # fmt: skip
SAID = ["object", "string", "integer", "null", "array", "#/$defs/a", "a", "date", "^(a|b)*$", "[["]
LEAVES = st.none() | st.booleans() | st.integers(-3, 3) | st.sampled_from(SAID)
ANYTHING = st.recursive(
    LEAVES,
    lambda inner: (
        st.lists(inner, max_size=3) | st.dictionaries(st.sampled_from(WORDS), inner, max_size=4)
    ),
    max_leaves=25,
)
SCHEMAS = st.dictionaries(st.sampled_from(WORDS), ANYTHING, max_size=5)
SENT = st.sampled_from(["", "1", "true", "a", '"a"', "null", "[1, {}]", '{"a": {"a": [1]}}'])


@settings(max_examples=600, deadline=None)
@given(SCHEMAS, SENT, SENT)
@example({"type": "object", "properties": {"a": True, "b": 1}}, "1", "1")
@example({"type": {}}, "1", "1")
@example({"type": "string", "minLength": "x", "maxLength": [], "format": {}}, "1", "1")
def test_whatever_a_schema_is_the_form_shows_and_reads(schema: Any, one: str, other: str) -> None:
    sent = {"answer": one, "a": other}
    fields = fields_of(schema)

    with suppress(FormError):
        value_of(schema, sent)
    shown = html_of(fields, sent, {field.name: "is wrong" for field in fields})

    assert shown.count("is wrong") >= len(fields)
