"""What the nodes of a cluster answer, as one answer. Pure functions."""

from collections.abc import Callable, Hashable, Iterable, Mapping, Sequence
from datetime import UTC, datetime
from itertools import islice
from typing import Any, TypeVar
from uuid import UUID

from msgspec.structs import replace

from holdfast.records import (
    Anomaly,
    Count,
    DeadGroup,
    Depth,
    Job,
    JobPage,
    LaneReleased,
    Operation,
    Preview,
    Queue,
    Success,
    WorkflowTally,
)

R = TypeVar("R")

_LONG_AGO = datetime.min.replace(tzinfo=UTC)
_COUNTS = (
    "queued", "leased", "dead", "done", "cancelled", "archived", "reconciled", "enqueued", "failed",
)  # fmt: skip
_RELEASED = ("released", "resumed", "alive", "free", "unknown")
_WORST = {"critical": 0, "warning": 1, "info": 2}
# Of the metrics of `series` those that add up; of the others the largest is shown.
_SUMS = ("enqueued", "done", "failed", "queued", "leased", "dead")


def newest(pages: Iterable[Sequence[Job]], limit: int) -> list[Job]:
    """Merge pages of jobs: ids are in the order of their creation, on all nodes together.

    A job that goes to another node while both are asked is on both pages, and shown once.
    """
    found = {job.id: job for page in pages for job in page}
    return sorted(found.values(), key=_id, reverse=True)[:limit]


def newest_ids(pages: Iterable[Sequence[UUID]], limit: int) -> list[UUID]:
    """Merge pages of ids, newest first."""
    return sorted({id for page in pages for id in page}, reverse=True)[:limit]


def searched(pages: Sequence[JobPage], limit: int) -> JobPage:
    """Merge what searches found.

    A node that stopped early knows nothing of what is older than where it stopped: of the others
    only what is newer is shown, or the next page would begin behind jobs that nobody has seen.
    """
    bounds = [page.searched_to for page in pages if page.searched_to is not None]
    bound = max(bounds, default=None)
    found = [[job for job in page.jobs if bound is None or job.id >= bound] for page in pages]
    jobs = newest(found, limit)
    seen = sum(page.searched for page in pages)
    return JobPage(jobs, None if len(jobs) >= limit else bound, seen)


def last_failed(pages: Iterable[Sequence[Job]], limit: int) -> list[Job]:
    """Merge pages of dead jobs, the most recent failure first; those without a time last."""
    jobs = list({job.id: job for page in pages for job in page}.values())
    jobs.sort(key=lambda job: (job.ended_at or _LONG_AGO, job.id), reverse=True)
    return jobs[:limit]


def counted(counts: Sequence[Count], most: int) -> Count:
    """Add up how many jobs match."""
    jobs = sum(one.jobs for one in counts)
    return Count(min(jobs, most), any(one.capped for one in counts) or jobs > most)


def queues(lists: Mapping[int, Sequence[Queue]], homes: Mapping[str, int]) -> list[Queue]:
    """Merge lists of queues by name: settings of the node where a queue lives, counts of all."""
    rows: dict[str, dict[int, Queue]] = {}
    for node, found in lists.items():
        for one in found:
            rows.setdefault(one.queue, {})[node] = one
    return [queue(rows[name], homes.get(name)) for name in sorted(rows)]


def queue(rows: Mapping[int, Queue], home: int | None) -> Queue:
    """Merge what the nodes know of one queue."""
    found = list(rows.values())
    base = rows.get(home, found[0]) if home is not None else found[0]
    ages = [one.oldest for one in found if one.oldest is not None]
    sums = {name: sum(getattr(one, name) for one in found) for name in _COUNTS}
    return replace(base, oldest=max(ages, default=None), **sums)


def depths(lists: Iterable[Sequence[Depth]]) -> list[Depth]:
    """Add up counters by queue, kind and state."""
    return _by(
        lists,
        lambda one: (one.queue, one.kind, one.state),
        lambda some: replace(some[0], jobs=sum(one.jobs for one in some)),
    )


def successes(lists: Iterable[Sequence[Success]]) -> list[Success]:
    """Add up attempts by queue and kind; the row of a whole queue stays before its kinds."""

    def add(some: list[Success]) -> Success:
        done, failed = sum(one.done for one in some), sum(one.failed for one in some)
        return replace(some[0], done=done, failed=failed, rate=done / max(done + failed, 1))

    return _by(lists, lambda one: (one.queue, one.kind is not None, one.kind or ""), add)


def dead_groups(lists: Iterable[Sequence[DeadGroup]]) -> list[DeadGroup]:
    """Add up dead jobs that failed alike, the largest group first."""

    def add(some: list[DeadGroup]) -> DeadGroup:
        return replace(
            max(some, key=lambda one: one.last_at),
            jobs=sum(one.jobs for one in some),
            first_at=min(one.first_at for one in some),
        )

    groups = _by(lists, lambda one: (one.queue, one.kind, one.fingerprint), add)
    return sorted(groups, key=lambda one: (one.jobs, one.last_at), reverse=True)


def tallies(lists: Iterable[Sequence[WorkflowTally]]) -> list[WorkflowTally]:
    """Add up workflows by name and state."""
    return _by(
        lists,
        lambda one: (one.name, one.state),
        lambda some: replace(some[0], workflows=sum(one.workflows for one in some)),
    )


def lane_released(answers: Iterable[LaneReleased]) -> LaneReleased:
    """Return what was done to a lane on the node where most was done."""
    return min(answers, key=lambda one: _RELEASED.index(one.outcome))


def anomalies(lists: Iterable[Sequence[Anomaly]], limit: int) -> list[Anomaly]:
    """Merge anomalies, the worst and newest first, those that are muted last."""
    found = sorted((one for some in lists for one in some), key=lambda one: one.id)
    found.sort(key=lambda one: one.raised_at, reverse=True)
    found.sort(key=lambda one: (one.muted, _WORST.get(one.severity, len(_WORST))))
    return found[:limit]


def points(
    metric: str, lists: Iterable[Sequence[tuple[datetime, float | None]]]
) -> list[tuple[datetime, float | None]]:
    """Merge a metric over time: counts add up; of ages and percentiles the largest is shown."""
    found: dict[datetime, list[float]] = {}
    for some in lists:
        for at, value in some:
            known = found.setdefault(at, [])
            if value is not None:
                known.append(value)
    merge = sum if metric in _SUMS else max
    return [(at, merge(values) if values else None) for at, values in sorted(found.items())]


def previews(parts: Sequence[Preview]) -> Preview:
    """Add up what an operation would change on each node; the parts have one token."""
    sample = newest_ids([one.sample for one in parts], 10)
    total = sum(one.total for one in parts)
    return replace(parts[0], total=total, capped=any(one.capped for one in parts), sample=sample)


def operation(parts: Sequence[Operation]) -> Operation:
    """Add up the parts of an operation: it runs while one of them does."""
    first = parts[0]
    states = [one.state for one in parts]
    ends = [one.ended_at for one in parts]
    problems = [one.problem for one in parts if one.problem]
    return replace(
        first,
        state=next((one for one in _STATES if one in states), first.state),
        total=sum(one.total for one in parts),
        capped=any(one.capped for one in parts),
        rate=None if first.rate is None else sum(one.rate or 0.0 for one in parts),
        seen=sum(one.seen for one in parts),
        changed=sum(one.changed for one in parts),
        undoable=sum(one.undoable for one in parts),
        ended_at=None if None in ends else max(one for one in ends if one is not None),
        ended_by=next((one.ended_by for one in parts if one.ended_by), None),
        problem="; ".join(dict.fromkeys(problems)) or None,
    )


# What the whole of an operation is called, if one of its parts is in this state: the first that is.
_STATES = ("running", "failed", "cancelled", "done", "previewed")


def split(most: int, ids: Mapping[int, Sequence[UUID]]) -> dict[int, int]:
    """Return how many of the newest `most` jobs each node has, of the newest that it named."""
    ranked = sorted(((id, node) for node, some in ids.items() for id in some), reverse=True)
    shares: dict[int, int] = {}
    for _, node in islice(ranked, most):
        shares[node] = shares.get(node, 0) + 1
    return shares


def _by(
    lists: Iterable[Sequence[R]], key: Callable[[R], Any], add: Callable[[list[R]], R]
) -> list[R]:
    found: dict[Hashable, list[R]] = {}
    for some in lists:
        for one in some:
            found.setdefault(key(one), []).append(one)
    return [add(found[name]) for name in sorted(found)]  # type: ignore[type-var]


def _id(job: Job) -> UUID:
    return job.id
