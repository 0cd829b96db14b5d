"""What a package tells about its rows."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, LiteralString


class Unreadable(Exception):  # noqa: N818 - it is counted, never shown as an error
    """A row that cannot become a job of Holdfast; the text says why, for all rows like it."""


@dataclass(frozen=True, kw_only=True)
class Found:
    """One row in our words: a call to make, or, with a `schedule`, a call to repeat.

    `options` are fields of a NewJob; `payload` is given where the package stores JSON that need not
    be a call. A call `of_django` is stored as Holdfast's backend for Django stores it. `schedule`
    has its name and its rule. With a `problem` it stays where it is.
    """

    id: Any
    kind: str
    args: Sequence[Any] = ()
    kwargs: Mapping[str, Any] = field(default_factory=dict)
    payload: Any = None
    options: Mapping[str, Any] = field(default_factory=dict)
    of_django: bool = False
    attempts: int = 0
    schedule: Mapping[str, Any] | None = None
    problem: str = ""


@dataclass(frozen=True, kw_only=True)
class Rows:
    """A table of a package whose rows wait to run.

    `waiting` selects and locks them in the order in which they would run, each with its `id` and a
    `kind` to report it by; `running` counts by kind what its workers hold; `take` does to the rows
    `any(%s)` what keeps its workers from them.
    """

    table: str
    waiting: LiteralString
    running: LiteralString
    take: LiteralString
    read: Callable[[Any], Found]
