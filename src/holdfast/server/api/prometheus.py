"""The state of the queues for Prometheus.

All values come from the database, so that every server exports the same; workers export what they
measure themselves.
"""

from collections import Counter
from collections.abc import Iterable, Sequence
from datetime import timedelta
from typing import Literal

from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.exposition import choose_encoder
from starlette.responses import Response

from holdfast import __version__
from holdfast.records import Depth, Queue, WorkerRow, WorkflowTally
from holdfast.server.doors.access import User
from holdfast.server.http.request import Request
from holdfast.watch.labels import MOST_KINDS, MOST_QUEUES, Names

Place = tuple[str, str]
Count = Literal["enqueued", "done", "dead", "cancelled"]


async def metrics(request: Request) -> Response:
    """Return the metrics in Prometheus format."""
    live, user = request.live, request.user
    queues, depth = await live.queues(), await live.depth()
    dead = await live.dead_oldest()
    totals = live.totals
    totals.take(depth)
    told = [
        *_queues([one for one in queues if user.sees(one.queue)], dead, totals),
        *_jobs(totals, user),
        *_workers(await live.workers()),
        *(_workflows(await live.workflows(), totals) if user.queues is None else ()),
        _gauge(
            "listen_up", "1 while notifications arrive; at 0 it polls", live.feed.mode == "live"
        ),
        _info(),
    ]
    encode, media_type = choose_encoder(request.http.headers.get("accept", ""))
    return Response(encode(_Told(told)), headers={"Content-Type": media_type})


class Totals:
    """How many jobs were enqueued and ended, as counters that never decrease.

    The database has a running total only for `done`. Other counts can shrink by a delete or a
    retry, which must not look like a restart, so only growth is added up here, from zero.
    """

    def __init__(self) -> None:
        self.queues = Names(MOST_QUEUES)
        self.kinds = Names(MOST_KINDS)
        self.workflows = Names(MOST_KINDS)
        self._before: dict[Place, Counter[str]] | None = None
        self._grown: dict[Place, Counter[str]] = {}

    def take(self, depth: Sequence[Depth]) -> None:
        """Add the current counts of the database."""
        now: dict[Place, Counter[str]] = {}
        # The busiest first, in case there are not enough labels for all.
        for one in sorted(depth, key=lambda one: -one.jobs):
            counts = now.setdefault((one.queue, one.kind), Counter())
            counts[one.state] += one.jobs
            counts["enqueued"] += one.jobs
            self.queues.label(one.queue)
            self.kinds.label(one.kind)
        for place, counts in now.items():
            before = counts if self._before is None else self._before.get(place, Counter())
            grown = self._grown.setdefault(place, Counter())
            for name in ("enqueued", "dead", "cancelled"):
                grown[name] += max(counts[name] - before[name], 0)
            grown["done"] = max(counts["done"], grown["done"])
        self._before = now

    def told(self, name: Count, user: User) -> dict[Place, int]:
        """Return one of the counters, by the labels of queue and kind."""
        sums: Counter[Place] = Counter()
        for (queue, kind), counts in self._grown.items():
            if user.sees(queue):
                sums[self.queues.label(queue), self.kinds.label(kind)] += counts[name]
        return sums


class _Told:
    def __init__(self, families: Iterable[Metric]) -> None:
        self._families = list(families)

    def collect(self) -> Iterable[Metric]:
        return self._families


def _queues(
    queues: Sequence[Queue], dead: dict[str, timedelta], totals: Totals
) -> Iterable[Metric]:
    jobs: Counter[tuple[str, str]] = Counter()
    oldest: dict[str, float] = {}
    oldest_dead: dict[str, float] = {}
    paused: dict[str, float] = {}
    for one in queues:
        label = totals.queues.label(one.queue)
        for state in ("queued", "leased", "dead"):
            jobs[label, state] += max(getattr(one, state), 0)
        for ages, age in ((oldest, one.oldest), (oldest_dead, dead.get(one.queue))):
            ages[label] = max(ages.get(label, 0.0), age.total_seconds() if age else 0.0)
        paused[label] = max(paused.get(label, 0.0), float(one.paused_at is not None))
    depth = GaugeMetricFamily(
        "holdfast_queue_depth", "Jobs in a queue, by state", labels=["queue", "state"]
    )
    for labels, count in jobs.items():
        depth.add_metric(labels, count)
    yield depth
    for name, help, values in (
        ("queue_oldest_seconds", "How long the longest-waiting job has been due", oldest),
        ("dead_oldest_seconds", "How long ago the oldest dead job died", oldest_dead),
        ("queue_paused", "1 while the queue is paused", paused),
    ):
        family = GaugeMetricFamily(f"holdfast_{name}", help, labels=["queue"])
        for label, value in values.items():
            family.add_metric([label], value)
        yield family


def _jobs(totals: Totals, user: User) -> Iterable[Metric]:
    came = CounterMetricFamily(
        "holdfast_jobs_enqueued", "Jobs that were enqueued", labels=["queue", "kind"]
    )
    for place, count in totals.told("enqueued", user).items():
        came.add_metric(place, count)
    yield came
    ended = CounterMetricFamily(
        "holdfast_jobs_finished", "Jobs that ended, by how", labels=["queue", "kind", "outcome"]
    )
    outcomes: tuple[Count, ...] = ("done", "dead", "cancelled")
    for outcome in outcomes:
        for place, count in totals.told(outcome, user).items():
            ended.add_metric([*place, outcome], count)
    yield ended


def _workers(workers: Sequence[WorkerRow]) -> Iterable[Metric]:
    alive = [one for one in workers if one.alive]
    slots = GaugeMetricFamily(
        "holdfast_worker_slots", "Slots of all running workers, used and total", labels=["use"]
    )
    slots.add_metric(["used"], sum(one.busy for one in alive))
    slots.add_metric(["total"], sum(one.slots for one in alive))
    yield slots
    yield _gauge("workers", "Running workers, including HTTP consumers", len(alive))


def _workflows(workflows: Sequence[WorkflowTally], totals: Totals) -> Iterable[Metric]:
    sums: Counter[tuple[str, str]] = Counter()
    for one in sorted(workflows, key=lambda one: -one.workflows):
        sums[totals.workflows.label(one.name), one.state] += one.workflows
    family = GaugeMetricFamily(
        "holdfast_workflows",
        "Workflows that are live, or ended within the last hour, by how",
        labels=["name", "state"],
    )
    for labels, count in sums.items():
        family.add_metric(labels, count)
    yield family


def _info() -> Metric:
    family = GaugeMetricFamily(
        "holdfast_build_info", "The version of this program", labels=["version"]
    )
    family.add_metric([__version__], 1)
    return family


def _gauge(name: str, help: str, value: float) -> Metric:
    return GaugeMetricFamily(f"holdfast_{name}", help, value=float(value))
