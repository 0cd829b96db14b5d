"""Finds the jobs that a test expects, and describes how the nearest one differs."""

import json
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from typing import Any, Protocol

from holdfast import jsonb, synonyms
from holdfast.errors import Misuse
from holdfast.outcome import seconds
from holdfast.records import Duration, Job

# A run_at that was computed in the test and in the code under test differs by their distance.
WITHIN = 10.0
# delay is compared with what the database stored, both by one clock.
_WITHIN_DELAY = 0.001

FIELDS = ("queue", "key", "lane", "tenant", "subject", "priority", "max_attempts", "headers")
"""Fields of a job that a test can expect as they are stored."""


class Parameters(Protocol):
    """What a task takes, and how a stored call is read."""

    @property
    def names(self) -> Sequence[str]:
        """The parameters that have a place."""

    @property
    def defaults(self) -> Mapping[str, Any]:
        """What a call that does not give them has."""

    def takes(self, name: str) -> bool:
        """Whether an argument of this name is taken."""

    def opened(self, payload_json: str) -> str | bytes:
        """Return the arguments of a stored call by name, as JSON."""


class Declared(Protocol):
    """A task, whether of an App or of Django."""

    @property
    def kind(self) -> str:
        """The kind of its jobs."""

    @property
    def arguments(self) -> Parameters:
        """What it takes."""


@dataclass(slots=True)
class Expected:
    """What a job should be: its kind, some of its arguments, some of its fields."""

    kind: str
    arguments: dict[str, Any] = field(default_factory=dict)
    fields: dict[str, Any] = field(default_factory=dict)
    defaults: Mapping[str, Any] = field(default_factory=dict)
    within: float = WITHIN
    task: Declared | None = None

    @classmethod
    def read(
        cls,
        task: Declared | str,
        places: Sequence[Any],
        args: Mapping[str, Any] | None,
        within: Duration,
        given: Mapping[str, Any],
    ) -> "Expected":
        """Tell the arguments of a task from the fields of its job, all of them given by name."""
        expected = cls(task if isinstance(task, str) else task.kind, within=seconds(within))
        if not isinstance(task, str):
            expected.defaults = task.arguments.defaults
            expected.task = task
        expected.arguments.update(_by_name(task, places))
        expected.arguments.update(args or {})
        known = (*FIELDS, "run_at", "delay")
        for name, value in given.items():
            takes = not isinstance(task, str) and name in task.arguments.names
            if name in known and not takes:
                expected.fields[name] = value
            elif name in known:
                raise Misuse(
                    f"`{name}` is an argument of {expected.kind} and a field of its job",
                    fix=f'For the argument:  args={{"{name}": …}}',
                )
            else:
                expected.arguments[name] = value
        if not isinstance(task, str):
            expected._refuse_unknown(task)
        return expected

    def differences(self, job: Job) -> dict[str, str]:
        """Return what differs in a job, by the names of arguments and fields."""
        found: dict[str, str] = {}
        if job.kind != self.kind:
            found["kind"] = f"expected {self.kind}, is {job.kind}"
        payload = self._payload(job)
        stored = {**self.defaults, **payload} if job.kind == self.kind else payload
        for name, value in self.arguments.items():
            if name not in stored:
                found[name] = f"expected {value!r}, is not given"
            elif not _equal(value, stored[name]):
                found[name] = f"expected {value!r}, is {stored[name]!r}"
        for name, value in self.fields.items():
            if told := self._field(job, name, value):
                found[name] = told
        return found

    def _payload(self, job: Job) -> dict[str, Any]:
        if self.task is not None and job.kind == self.kind:
            return dict(json.loads(self.task.arguments.opened(job.payload_json)))
        return job.payload if isinstance(job.payload, dict) else {}

    def __str__(self) -> str:
        given = ", ".join(f"{name}={value!r}" for name, value in self.arguments.items())
        fields = "".join(f", {name} {value!r}" for name, value in self.fields.items())
        return f"{self.kind}({given}){fields}"

    def _field(self, job: Job, name: str, value: Any) -> str:
        if name == "run_at" and isinstance(value, datetime):
            close = abs((job.run_at - value).total_seconds()) <= self.within
            return "" if close else f"expected {value} ± {self.within:g} s, is {job.run_at}"
        if name == "delay" and isinstance(value, int | float | timedelta):
            waits = (job.run_at - job.created_at).total_seconds()
            close = abs(waits - seconds(value)) <= _WITHIN_DELAY
            return "" if close else f"expected {seconds(value):g} s, is {waits:g} s"
        stored = job.run_at - job.created_at if name == "delay" else getattr(job, name)
        return "" if _equal(value, stored) else f"expected {value!r}, is {stored!r}"

    def _refuse_unknown(self, task: Declared) -> None:
        for name in self.arguments:
            if not task.arguments.takes(name):
                known = [*task.arguments.names, *FIELDS, "run_at", "delay"]
                near = synonyms.meant(name, known)
                meant = f" (did you mean `{near}`?)" if near else ""
                raise Misuse(
                    f"{task.kind} has no argument `{name}`{meant}",
                    fix=f"Expect its arguments, or fields of its job: {', '.join(known)}.",
                )


def _by_name(task: Declared | str, places: Sequence[Any]) -> dict[str, Any]:
    names = [] if isinstance(task, str) else task.arguments.names
    if len(places) > len(names):
        raise Misuse(
            f"{task if isinstance(task, str) else task.kind}: {places[len(names)]!r} has no name",
            fix="Give arguments by their names.",
        )
    return dict(zip(names, places, strict=False))


def nothing_matches(expected: Expected, jobs: Sequence[Job], hint: str) -> str:
    """Describe the job that is nearest to what was expected, and what else there is."""
    told = [f"no job matches {expected}"]
    if nearest := min(
        (job for job in jobs if job.kind == expected.kind),
        key=lambda job: len(expected.differences(job)),
        default=None,
    ):
        same = sum(job.kind == expected.kind for job in jobs)
        told.append(f"Nearest of {same} {_jobs(same)} of {expected.kind}: {_shown(nearest)}")
        told += [f"  {name}: {how}" for name, how in expected.differences(nearest).items()]
    else:
        told.append(f"No job of {expected.kind} is enqueued.")
    others = Counter(job.kind for job in jobs if job.kind != expected.kind)
    if others:
        told.append("Enqueued are also: " + _counted(others))
    return "\n".join([*told, *([hint] if hint else [])])


def wrong_count(expected: Expected, matching: Sequence[Job], count: int) -> str:
    """Describe that another number of jobs matches."""
    told = [f"{len(matching)} {_jobs(len(matching))} match {expected}, expected {count}"]
    return "\n".join([*told, *(f"  {_shown(job)}" for job in matching)])


def unexpected(expected: "Expected | str", found: Sequence[Job]) -> str:
    """Describe the jobs that should not be there."""
    told = [
        f"expected {expected}, found {len(found)}:"
        if isinstance(expected, str)
        else f"{len(found)} {_jobs(len(found))} match {expected}, expected none"
    ]
    return "\n".join([*told, *(f"  {_shown(job)}" for job in found)])


def _equal(expected: Any, stored: Any) -> bool:
    try:
        plain = jsonb.plain(expected)
    except Exception:  # not a value of JSON: mock.ANY and its like compare themselves
        return bool(expected == stored)
    return bool(plain == stored or expected == stored)


def _shown(job: Job) -> str:
    return f"{job.kind} {job.payload_json}, {job.state}, queue {job.queue!r}, run_at {job.run_at}"


def _jobs(count: int) -> str:
    return "job" if count == 1 else "jobs"


def _counted(kinds: Mapping[str, int]) -> str:
    return ", ".join(f"{kind} ({count})" for kind, count in sorted(kinds.items()))
