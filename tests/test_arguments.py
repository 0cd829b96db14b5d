"""Arguments travel as JSON by the name of their parameter, and arrive in the types that it says."""

import enum
import functools
import inspect
import json
import subprocess
import sys
import textwrap
import types
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, date, datetime, time, timedelta
from decimal import Decimal
from pathlib import Path
from typing import Annotated, Any, Literal, NamedTuple, NotRequired, TypedDict
from uuid import UUID

import msgspec
import pydantic
import pytest
from hypothesis import given
from hypothesis import strategies as st

from holdfast.arguments import Arguments, Result
from holdfast.errors import InvalidArguments, InvalidPayload, InvalidResult, InvalidTask

HERE = Path(__file__).name


class Colour(enum.Enum):
    RED = "red"


class Level(enum.IntEnum):
    HIGH = 9


@dataclass
class Address:
    street: str
    since: date
    tags: list[str] = field(default_factory=list)


class Point(msgspec.Struct):
    x: float
    y: float


class Box(TypedDict):
    size: int
    colour: NotRequired[Colour]


class Pair(NamedTuple):
    left: int
    right: str


class User(pydantic.BaseModel):
    name: str
    born: date | None = None


class Strict(pydantic.BaseModel):
    model_config = pydantic.ConfigDict(strict=True)
    at: datetime
    id: UUID


class Aliased(pydantic.BaseModel):
    full_name: str = pydantic.Field(alias="fullName")


@dataclass
class Letter:
    to: User
    copies: list[User]


def greet(name: str, shout: bool = False) -> str:
    return name.upper() if shout else name


def payload(fn: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
    return json.loads(bytes(Arguments(fn, fn.__name__).encode(args, kwargs)))


def travel(fn: Callable[..., Any], *args: Any, **kwargs: Any) -> inspect.BoundArguments:
    """Return the arguments that the function gets at the other end."""
    arguments = Arguments(fn, fn.__name__)
    arrived, named = arguments.decode(bytes(arguments.encode(args, kwargs)))
    return inspect.signature(fn).bind(*arrived, **named)


def refusal(fn: Callable[..., Any], *args: Any, **kwargs: Any) -> InvalidArguments:
    with pytest.raises(InvalidArguments) as caught:
        Arguments(fn, fn.__name__).encode(args, kwargs)
    return caught.value


def taking(hint: Any) -> Callable[..., Any]:
    def task(value: Any) -> None:
        pass

    task.__annotations__["value"] = hint
    return task


@pytest.mark.parametrize(
    ("hint", "value"),
    [
        (str, "Ada"),
        (int, 2**80),
        (float, 1e308),
        (float, 0.1),
        (bool, True),
        (None, None),
        (bytes, b"\0\xff"),
        (datetime, datetime(2026, 1, 2, 3, 4, 5, 6, tzinfo=UTC)),
        (datetime, datetime(2026, 1, 2, 3, 4, 5, 6)),
        (date, date(2026, 1, 2)),
        (time, time(3, 4, 5)),
        (timedelta, timedelta(days=-1, microseconds=7)),
        (UUID, UUID(int=42)),
        (Decimal, Decimal("1.10")),
        (Colour, Colour.RED),
        (Level, Level.HIGH),
        (Literal["a", "b"], "b"),
        (str | None, None),
        (int | str, "1"),
        (list[int], [1, 2]),
        (Sequence[int], [1, 2]),
        (tuple[int, str], (1, "a")),
        (tuple[int, ...], (1, 2, 3)),
        (set[int], {1, 2}),
        pytest.param(frozenset[str], frozenset("ab"), id="frozenset"),
        (dict[str, list[int]], {"a": [1]}),
        (dict[int, str], {1: "a"}),
        (Mapping[str, int], {"a": 1}),
        (Address, Address("Main", date(2026, 1, 2), ["a"])),
        (list[Address], [Address("Main", date(2026, 1, 2))]),
        (Point, Point(1.5, 2.0)),
        (Point | None, None),
        (Box, {"size": 1, "colour": Colour.RED}),
        (Pair, Pair(1, "a")),
        (Annotated[int, msgspec.Meta(gt=3)], 4),
        (User, User(name="Ada", born=date(1815, 12, 10))),
        (User | None, User(name="Ada")),
        (list[User], [User(name="Ada")]),
        (dict[str, User], {"a": User(name="Ada")}),
        (Strict, Strict(at=datetime(2026, 1, 2, tzinfo=UTC), id=UUID(int=1))),
        (Aliased, Aliased(fullName="Ada Lovelace")),
        (Letter, Letter(User(name="Ada"), [User(name="Grace")])),
        (Any, {"a": [1, None, "x"]}),
        (object, [1]),
    ],
    ids=str,
)
def test_a_value_arrives_as_it_was_given(hint: Any, value: Any) -> None:
    arrived = travel(taking(hint), value).arguments["value"]

    assert arrived == value
    assert type(arrived) is type(value)


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False)
    # NUL and half a surrogate pair are refused; see below.
    | st.text(st.characters(exclude_categories=["Cs"], exclude_characters="\0")),
    lambda inner: st.lists(inner) | st.dictionaries(st.sampled_from(["a", "b", "p0"]), inner),
    max_leaves=8,
)  # fmt: skip


@given(st.lists(JSON, max_size=3), st.dictionaries(st.sampled_from(["d", "more", "x"]), JSON))
def test_any_call_that_the_function_takes_arrives_as_it_was_made(
    args: list[Any], kwargs: dict[str, Any]
) -> None:
    def task(a: Any = 1, b: Any = 2, /, c: Any = 3, *rest: Any, d: Any = 4, **more: Any) -> None:
        pass

    made = inspect.signature(task).bind(*args, **kwargs)

    arrived = travel(task, *args, **kwargs)

    made.apply_defaults()
    arrived.apply_defaults()
    assert arrived.arguments == {**made.arguments, "rest": tuple(made.arguments["rest"])}


def test_the_payload_is_an_object_by_the_names_of_the_parameters() -> None:
    assert payload(greet, "Ada", shout=True) == {"name": "Ada", "shout": True}
    assert payload(greet, name="Ada") == {"name": "Ada"}
    assert payload(greet, "Ada", False) == {"name": "Ada", "shout": False}


def test_variable_arguments_are_an_array_and_further_names() -> None:
    def task(first: int, *rest: int, **more: str) -> None:
        pass

    assert payload(task, 1, 2, 3, a="x") == {"first": 1, "rest": [2, 3], "a": "x"}
    assert payload(task, 1) == {"first": 1}


def test_a_parameter_may_be_called_anything() -> None:
    def task(self: int, cls: int, p0: int, __struct_fields__: int, _hidden: int) -> None:
        pass

    assert travel(task, 1, 2, 3, 4, 5).args == (1, 2, 3, 4, 5)
    assert travel(task, _hidden=5, self=1, cls=2, p0=3, __struct_fields__=4).args == (1, 2, 3, 4, 5)


def test_a_parameter_without_a_type_takes_anything_json_can_say() -> None:
    def task(a, b=None):  # type: ignore[no-untyped-def]
        pass

    assert travel(task, {"x": [1]}, b="y").arguments == {"a": {"x": [1]}, "b": "y"}


def test_a_default_of_none_lets_none_be_given() -> None:
    def task(a: int = None) -> None:  # type: ignore[assignment] # noqa: RUF013
        pass

    assert travel(task, None).arguments == {"a": None}


def test_methods_partials_and_wrapped_functions_take_what_remains() -> None:
    class Mailer:
        def send(self, to: str) -> None:
            pass

    @functools.wraps(greet)
    def wrapped(*args: Any, **kwargs: Any) -> str:
        return greet(*args, **kwargs)

    assert payload(Mailer().send, "ada") == {"to": "ada"}
    assert json.loads(
        bytes(Arguments(functools.partial(greet, "Ada"), "partial").encode((), {"shout": True}))
    ) == {"shout": True}
    assert "Expected `str`" in str(refusal(wrapped, 42))


def test_a_function_around_another_may_take_names_alone() -> None:
    def ship(order: int, to: str) -> str:
        return f"{order} to {to}"

    @functools.wraps(ship)
    def logged(**kwargs: Any) -> str:
        return ship(**kwargs)

    for fn in (ship, logged):
        arguments = Arguments(fn, fn.__name__)
        args, kwargs = arguments.decode(bytes(arguments.encode((7, "Ada"), {})))
        assert fn(*args, **kwargs) == "7 to Ada"


# At enqueue, in the caller's stack.


def test_a_wrong_type_is_told_with_its_place_and_the_callers_line() -> None:
    error = refusal(greet, 42)

    assert error.code == "HF200"
    assert str(error).splitlines()[0] == (
        "HF200 greet.enqueue: Expected `str`, got `int` - at `$.name`"
    )
    assert HERE in error.where
    assert error.where.endswith("Arguments(fn, fn.__name__).encode(args, kwargs)")


@pytest.mark.parametrize(
    ("args", "kwargs", "told"),
    [
        ((), {"nmae": "Ada"}, "unknown argument `nmae` (did you mean `name`?)"),
        (("Ada",), {"volume": 11}, "unknown argument `volume`"),
        ((), {}, "missing `name`"),
        ((), {"shout": True}, "missing `name`"),
        (("Ada", True, 3), {}, "takes 2 positional arguments, got 3"),
        (("Ada",), {"name": "Grace"}, "got two values for the argument `name`"),
    ],
)
def test_arguments_that_no_call_could_take_are_refused(args: Any, kwargs: Any, told: str) -> None:
    error = refusal(greet, *args, **kwargs)

    assert (error.code, error.what) == ("HF201", f"greet.enqueue: {told}")


@pytest.mark.parametrize(
    ("hint", "value", "told"),
    [
        (list[int], [1, "2"], "Expected `int`, got `str` - at `$.value[1]`"),
        (Address, {"street": 1}, "Expected `str`, got `int` - at `$.value.street`"),
        (Colour, "blue", "Invalid enum value 'blue' - at `$.value`"),
        (Level, True, "Expected `int`, got `bool` - at `$.value`"),
        (Literal["a"], "b", "Invalid enum value 'b' - at `$.value`"),
        (UUID, "not one", "Invalid UUID - at `$.value`"),
        (Annotated[int, msgspec.Meta(gt=3)], 3, "Expected `int` >= 4 - at `$.value`"),
        (int, None, "Expected `int`, got `null` - at `$.value`"),
        (Box, {}, "Object missing required field `size` - at `$.value`"),
    ],
    ids=str,
)
def test_a_value_that_does_not_fit_is_refused(hint: Any, value: Any, told: str) -> None:
    error = refusal(taking(hint), value)

    assert (error.code, error.what) == ("HF200", f"task.enqueue: {told}")


def test_a_model_says_what_it_does_not_like() -> None:
    error = refusal(taking(User), {"name": "Ada", "born": "long ago"})

    assert error.code == "HF200"
    assert "born" in error.what
    assert "`$.value`" in error.what


@pytest.mark.parametrize(
    ("value", "told"),
    [
        ("a\0", "contains a NUL character at `$.value`, which PostgreSQL cannot store"),
        ({"a": ["b", "\0"]}, "contains a NUL character at `$.value.a[1]`"),
        ({"\0": 1}, "contains a NUL character in a key of `$.value`"),
        (Address("\0", date(2026, 1, 1)), "contains a NUL character at `$.value.street`"),
        ([1.0, float("nan")], "contains NaN or an infinity at `$.value[1]`"),
        (float("nan"), "contains NaN or an infinity at `$.value`"),
        (Point(float("inf"), 0), "contains NaN or an infinity at `$.value.x`"),
        ({"a": "\ud83d"}, "is not JSON at `$.value.a`: 'utf-8' codec can't encode"),
        pytest.param(
            [object()],
            "is not JSON at `$.value[0]`: `object` can't be serialised to JSON",
            id="object",
        ),
        ({(1, 2): 3}, "is not JSON: `tuple` cannot be a key"),
    ],
    ids=repr,
)
def test_what_jsonb_cannot_hold_is_refused(value: Any, told: str) -> None:
    error = refusal(taking(Any), value)

    assert error.code == "HF204"
    assert error.what.startswith(f"task.enqueue: the payload {told}")


@pytest.mark.parametrize("value", ["\\u0000", "null", {"a": None}, "\\\\u0000 \\"])
def test_what_only_looks_like_it_is_not_refused(value: Any) -> None:
    assert travel(taking(Any), value).arguments["value"] == value


def test_endless_nesting_is_refused() -> None:
    endless: list[Any] = []
    endless.append(endless)

    assert "nested too deeply" in refusal(taking(Any), endless).what


def test_arguments_by_place_cannot_be_given_by_name() -> None:
    def task(a: int, /, *rest: int) -> None:
        pass

    def open_task(a: int, /, **more: int) -> None:
        pass

    assert refusal(task, a=1).what.endswith("the argument `a` can only be given by its place")
    assert refusal(task, 1, rest=[2]).what.endswith("`rest` is given by places, not by name")
    # Python would take it: the payload has one name for both.
    assert refusal(open_task, 1, a=2).what.endswith("got two values for the argument `a`")


def test_further_names_have_their_type_too() -> None:
    def task(**more: int) -> None:
        pass

    assert travel(task, a=1).kwargs == {"a": 1}
    assert refusal(task, a="x").what.endswith("Expected `int`, got `str` - at `$.a`")


# At claim.


def test_a_parameter_that_was_added_with_a_default_does_not_spoil_waiting_jobs() -> None:
    def later(name: str, shout: bool = False, times: int = 1) -> None:
        pass

    stored = bytes(Arguments(greet, "greet").encode(("Ada",), {}))

    assert Arguments(later, "greet").decode(stored) == ((), {"name": "Ada"})


def test_the_default_is_the_one_the_function_has_when_it_runs() -> None:
    def earlier(name: str, /, volume: int = 1) -> int:
        return volume

    def later(name: str, /, volume: int = 2) -> int:
        return volume

    stored = bytes(Arguments(earlier, "greet").encode(("Ada",), {}))

    args, kwargs = Arguments(later, "greet").decode(stored)
    assert later(*args, **kwargs) == 2


@pytest.mark.parametrize(
    ("stored", "told"),
    [
        ('{"name": "Ada", "volume": 11}', "there is no argument `volume`"),
        ("{}", "the argument `name` is missing"),
        ('{"name": 42}', "Expected `str`, got `int` - at `$.name`"),
        ("[]", "Expected `object`, got `array`"),
        ("null", "Expected `object`, got `null`"),
    ],
)
def test_a_payload_that_does_not_fit_says_that_the_function_changed(stored: str, told: str) -> None:
    with pytest.raises(InvalidPayload) as caught:
        Arguments(greet, "greet").decode(stored)

    assert caught.value.code == "HF230"
    assert told in caught.value.what
    assert f"{HERE}:" in caught.value.what
    assert "The function changed" in caught.value.why


def test_a_missing_default_before_an_argument_by_place_is_filled_in() -> None:
    def task(a: int, b: int = 2, c: int = 3, /, d: int = 4, *rest: int) -> tuple[int, ...]:
        return (a, b, c, d, *rest)

    def run(stored: str) -> tuple[int, ...]:
        args, kwargs = Arguments(task, "task").decode(stored)
        return task(*args, **kwargs)

    assert run('{"a": 1}') == (1, 2, 3, 4)
    assert run('{"a": 1, "c": 30}') == (1, 2, 30, 4)
    assert run('{"a": 1, "d": 40}') == (1, 2, 3, 40)
    assert run('{"a": 1, "rest": [5]}') == (1, 2, 3, 4, 5)


def test_deeply_nested_payloads_are_refused_and_not_fatal() -> None:
    stored = '{"value": ' + "[" * 100_000 + "]" * 100_000 + "}"

    with pytest.raises(InvalidPayload):
        Arguments(taking(Any), "task").decode(stored)


# At declaration.


@pytest.mark.parametrize(
    ("hint", "told"),
    [
        (complex, "`complex` is not a JSON type"),
        (Path, "`Path` is not a JSON type"),
        (Callable[[int], int], "`Callable` is not a JSON type"),
        (Iterable[int], "`Iterable` is not a JSON type"),
        (type, "`type` is not a JSON type"),
        (list[Path], "`Path` is not a JSON type"),
        (User | Aliased, "Type unions may not contain more than one custom type"),
        (Address | Point, "Type unions may not contain more than one"),
    ],
    ids=str,
)
def test_a_type_that_cannot_travel_is_refused_when_the_task_is_declared(
    hint: Any, told: str
) -> None:
    with pytest.raises(InvalidTask) as caught:
        Arguments(taking(hint), "task")

    assert caught.value.code == "HF231"
    assert caught.value.what.startswith("task: the argument `value` can't be serialised to JSON: ")
    assert told in caught.value.what


def test_a_type_inside_a_class_that_cannot_travel_is_refused_too() -> None:
    @dataclass
    class Holder:
        inside: list[complex]

    with pytest.raises(InvalidTask, match="`complex` is not a JSON type"):
        Arguments(taking(Holder), "task")


FUTURE = textwrap.dedent(
    """
    from __future__ import annotations
    from dataclasses import dataclass
    from holdfast.arguments import Arguments

    def around():
        @dataclass
        class Local:
            x: int

        def task(value: Local) -> None: ...
        return Arguments(task, "task")

    def early(value: Later) -> None: ...
    def never(value: Nowhere) -> None: ...

    waits = Arguments(early, "early")
    lost = Arguments(never, "never")

    @dataclass
    class Later:
        x: int
    """
)


def test_types_are_found_where_the_task_is_declared_or_later(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    module = types.ModuleType("future")
    monkeypatch.setitem(sys.modules, "future", module)
    namespace = vars(module)
    exec(compile(FUTURE, "future.py", "exec"), namespace)
    later = namespace["Later"](1)

    local = namespace["around"]()
    assert type(local.decode('{"value": {"x": 1}}')[0][0]).__name__ == "Local"
    assert namespace["waits"].decode('{"value": {"x": 1}}') == ((later,), {})
    with pytest.raises(InvalidTask) as caught:
        namespace["lost"].encode((1,), {})
    assert "'Nowhere'" in caught.value.what


def test_the_schema_of_a_payload_can_be_shown() -> None:
    schema = Arguments(greet, "greet").schema()

    [(_, shape)] = schema["$defs"].items()
    assert shape["properties"] == {"name": {"type": "string"}, "shout": {"type": "boolean"}}
    assert shape["required"] == ["name"]


def test_neither_pydantic_nor_anything_heavy_is_imported() -> None:
    script = "import sys, holdfast.arguments; print([m for m in %r if m in sys.modules])"
    heavy = ["pydantic", "sqlalchemy", "django", "psycopg"]

    done = subprocess.run(
        [sys.executable, "-c", script % heavy], capture_output=True, text=True, check=True
    )

    assert done.stdout.strip() == "[]"


# Results.


@pytest.mark.parametrize(
    ("hint", "value"),
    [
        (str, "x"),
        (None, None),
        (Address, Address("Main", date(2026, 1, 2))),
        (User, User(name="Ada")),
    ],
    ids=str,
)
def test_a_result_comes_back_as_it_was_returned(hint: Any, value: Any) -> None:
    def task() -> Any:
        pass

    task.__annotations__["return"] = hint
    result = Result(task, "task")

    assert result.decode(bytes(result.encode(value)).decode()) == value


@pytest.mark.parametrize(
    ("value", "told"),
    [
        (object(), "is not JSON at `$`"),
        ({"a": "\0"}, "contains a NUL character at `$.a`"),
        (float("nan"), "contains NaN or an infinity at `$`"),
    ],
)
def test_a_result_that_cannot_be_kept_is_refused(value: Any, told: str) -> None:
    with pytest.raises(InvalidResult) as caught:
        Result(greet, "greet").encode(value)

    assert caught.value.what.startswith(f"the result of greet {told}")


def test_a_result_type_that_cannot_be_kept_is_refused_at_declaration() -> None:
    def task() -> complex:
        return 1j

    with pytest.raises(InvalidTask, match="its result cannot be kept: `complex`"):
        Result(task, "task")
