"""The client's methods and what they answer, as tables; see tools/generate_fields.py.

`<!-- table: client.queues -->` has every method of a noun, `<!-- table: client: ack nack -->` some
of the client itself, `<!-- table: answers -->` every record that a method returns.
"""

import inspect
import re
from collections.abc import Callable, Iterator
from functools import cached_property
from typing import Any, get_args, get_type_hints

from holdfast import Client
from holdfast.records import Record


def table(name: str) -> str | None:
    """Return one of these tables by its name; None if it is not one of them."""
    if name == "answers":
        return _answers()
    if name.startswith("client: "):
        methods = dict(_methods(Client))
        return _table("", [(one, methods[one]) for one in name.removeprefix("client: ").split()])
    if name.startswith("client."):
        noun = name.removeprefix("client.")
        return _table(f"{noun}.", _methods(nouns()[noun]))
    return None


def nouns() -> dict[str, type]:
    """Return the client's nouns, by the name under which it has them."""
    return {
        name: get_type_hints(member.func)["return"]
        for owner in reversed(Client.__mro__)
        for name, member in vars(owner).items()
        if isinstance(member, cached_property)
    }


def _methods(owner: type) -> list[tuple[str, Callable[..., Any]]]:
    return [
        (name, member)
        for name, member in vars(owner).items()
        if inspect.isfunction(member) and not name.startswith("_")
    ]


def _table(prefix: str, methods: list[tuple[str, Callable[..., Any]]]) -> str:
    rows = [
        f"| `{prefix}{name}{_arguments(method)}` | {_sentence(method)} | {_answer(method)} |"
        for name, method in methods
    ]
    return "\n".join(["| method | | returns |", "|---|---|---|", *rows])


def _arguments(method: Callable[..., Any]) -> inspect.Signature:
    signature = inspect.signature(method)
    bare = [one.replace(annotation=one.empty) for one in list(signature.parameters.values())[1:]]
    return signature.replace(parameters=bare, return_annotation=signature.empty)


def _sentence(documented: Any) -> str:
    """Return the first sentence of a docstring, as one stands in a cell."""
    text = " ".join((inspect.getdoc(documented) or "").partition("\n\n")[0].split())
    return text.removesuffix(".")


def _answer(method: Callable[..., Any]) -> str:
    shown = inspect.formatannotation(inspect.signature(method).return_annotation)
    shown, optional = re.subn(r" \| None$", "", re.sub(r"\b\w+\.", "", shown))
    if hasattr(method, "__wrapped__"):
        given = shown.removeprefix("Iterator[").removesuffix("]")
        return "a context manager" if given == "None" else f"a context manager: `{given}`"
    if shown == "None":
        return ""
    return f"`{shown}`".replace("|", r"\|") + (" or None" if optional else "")


def _answers() -> str:
    rows = [
        f"| `{record.__name__}` | {_sentence(record)} | `{' '.join(_fields(record))}` |"
        for record in sorted(set(_records()), key=lambda one: one.__name__)
    ]
    return "\n".join(["| record | | fields |", "|---|---|---|", *rows])


def _records() -> Iterator[type[Record]]:
    for owner in (Client, *nouns().values()):
        for _, method in _methods(owner):
            yield from _inside(inspect.signature(method).return_annotation)


def _inside(annotation: Any) -> Iterator[type[Record]]:
    if isinstance(annotation, type) and issubclass(annotation, Record):
        yield annotation
    for part in get_args(annotation):
        yield from _inside(part)


def _fields(record: type[Record]) -> list[str]:
    """Return the names by which fields are read: `payload`, which decodes `payload_json`."""
    return [
        decoded if hasattr(record, decoded := name.removesuffix("_json")) else name
        for name in record.__struct_fields__
    ]
