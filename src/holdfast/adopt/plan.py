"""How a table becomes a queue: what was chosen, what it means, and the statements."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from datetime import timedelta
from typing import Any


@dataclass(frozen=True, slots=True)
class Step:
    """One statement of a plan, and what undoes it.

    One that is `alone` cannot run inside a transaction; `index` is what it makes.
    """

    name: str
    do: str
    undo: str = ""
    alone: bool = False
    index: str = ""


@dataclass(frozen=True, slots=True)
class Plan:
    """How a table becomes a queue: what its columns and values mean, and the statements."""

    queue: str
    relation: str
    part: int
    spec: Mapping[str, Any]
    steps: Sequence[Step]
    existing: Mapping[str, int]
    warnings: Sequence[str] = ()
    unknown: Mapping[str, int] = field(default_factory=dict)
    code: str = ""
    done: Sequence[str] = ()

    @property
    def sql(self) -> str:
        """The whole plan as a script, to read."""
        parts = [f"-- {step.name}\n{step.do};" for step in self.steps if step.do]
        return "\n\n".join(parts) + f"\n\n-- what the verbs do with the table\n{self.code}"


@dataclass(frozen=True, slots=True)
class Choices:
    """What the plan cannot find out by itself, or should do otherwise."""

    queue: str | None = None
    kind: str | None = None
    status: str | None = None
    order: str | None = None
    states: Mapping[str, Sequence[str]] = field(default_factory=dict)
    columns: Mapping[str, str] = field(default_factory=dict)
    payload: Sequence[str] = ()
    existing: str | None = None
    output: str | None = None
    done_when: str | None = None
    stuck_after: timedelta | None = None
    on_success: str | None = None
    unique_live: bool = False
    where: Mapping[str, str] = field(default_factory=dict)
