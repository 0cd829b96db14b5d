"""The metrics of a worker, served to Prometheus on its own port."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import timedelta
from time import monotonic
from typing import TYPE_CHECKING, Any, NamedTuple

from holdfast import __version__
from holdfast.current import CurrentJob
from holdfast.errors import HoldfastError, Misuse
from holdfast.watch.labels import MOST_KINDS, Names

if TYPE_CHECKING:
    from prometheus_client import Counter, Histogram, Metric

# Buckets from 5 ms to an hour, for waiting and for running.
PICKUP = (0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 15, 60, 300, 900, 3600)
RUN = (0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30, 60, 300, 900, 3600)


@dataclass(frozen=True, slots=True)
class Address:
    """Where metrics are served: a port of this machine, unless another address is named."""

    host: str
    port: int

    @classmethod
    def read(cls, text: str | int) -> "Address":
        """Read `9464` or `0.0.0.0:9464`; raises Misuse for anything else."""
        host, _, port = str(text).rpartition(":")
        if not port.isdecimal() or not 0 <= int(port) < 65536:
            raise Misuse(
                f"metrics cannot be served on {text!r}", fix="Say a port, or  0.0.0.0:9464"
            )
        return cls(host.strip("[]") or "127.0.0.1", int(port))

    def __str__(self) -> str:
        return f"{f'[{self.host}]' if ':' in self.host else self.host}:{self.port}"


class Meter:
    """The counters and histograms of one worker.

    Their endpoint also exports what the program itself has registered with prometheus-client.
    """

    def __init__(self) -> None:
        prometheus = _prometheus()
        self._kinds = Names(MOST_KINDS)
        self._known: dict[tuple[str, str], _Kind] = {}
        self._registry = registry = prometheus.CollectorRegistry(auto_describe=False)
        place = ["queue", "kind"]
        self._pickup: Histogram = prometheus.Histogram(
            "holdfast_pickup_seconds",
            "From when a job was due to the start of its handler",
            place,
            buckets=PICKUP,
            registry=registry,
        )
        self._run: Histogram = prometheus.Histogram(
            "holdfast_run_seconds",
            "How long handlers ran, however they ended",
            place,
            buckets=RUN,
            registry=registry,
        )
        self._attempts: Counter = prometheus.Counter(
            "holdfast_attempts_total",
            "Attempts that ended, by how",
            [*place, "outcome"],
            registry=registry,
        )
        self._lost: Counter = prometheus.Counter(
            "holdfast_leases_lost_total",
            "Leases lost before the handler had ended",
            place,
            registry=registry,
        )
        info = prometheus.Gauge(
            "holdfast_build_info", "The version of this program", ["version"], registry=registry
        )
        info.labels(__version__).set(1)

    def watch(self, name: str, help: str, value: Callable[[], float]) -> None:
        """Export a value that is read at each scrape."""
        gauge = _prometheus().Gauge(f"holdfast_{name}", help, registry=self._registry)
        gauge.set_function(value)

    def started(self, job: CurrentJob) -> None:
        """Record that a handler starts now."""
        lease = job.lease
        # By the database's clock until the claim, by this one's after it: they may differ.
        claimed_at = lease.lease_until - timedelta(seconds=job.lease_seconds)
        waited = (claimed_at - lease.run_at).total_seconds() + monotonic() - job.claimed
        self._of(job).pickup.observe(max(waited, 0.0))

    def ran(self, job: CurrentJob, seconds: float) -> None:
        """Record how long a handler ran until it ended or was abandoned."""
        self._of(job).run.observe(seconds)

    def ended(self, job: CurrentJob, outcome: str) -> None:
        """Record how an attempt ended."""
        known = self._of(job)
        if (counter := known.attempts.get(outcome)) is None:
            labels = job.queue, self._kinds.label(job.kind), outcome
            counter = known.attempts[outcome] = self._attempts.labels(*labels)
        counter.inc()

    def lost(self, job: CurrentJob) -> None:
        """Record that a lease was lost."""
        self._of(job).lost.inc()
        self.ended(job, "lost")

    @contextmanager
    def served(self, address: Address) -> Iterator[None]:
        """Serve at an address during the block."""
        prometheus = _prometheus()
        try:
            server, thread = prometheus.start_http_server(
                address.port, address.host, _Everything(self._registry, prometheus.REGISTRY)
            )
        except OSError as error:
            raise HoldfastError(
                f"cannot listen on {address}: {error.strerror or error}",
                fix="Choose another:  --metrics PORT",
                code="HF405",
            ) from None
        try:
            yield
        finally:
            server.shutdown()
            server.server_close()
            thread.join()

    def _of(self, job: CurrentJob) -> "_Kind":
        place = job.queue, job.kind
        if (known := self._known.get(place)) is None:
            labels = place[0], self._kinds.label(place[1])
            pickup, run = self._pickup.labels(*labels), self._run.labels(*labels)
            known = self._known[place] = _Kind(pickup, run, self._lost.labels(*labels), {})
        return known


class _Kind(NamedTuple):
    pickup: "Histogram"
    run: "Histogram"
    lost: "Counter"
    attempts: "dict[str, Counter]"


class _Everything:
    """Our metrics and the program's own, without the creation times of counters."""

    def __init__(self, *registries: Any) -> None:
        self._registries = registries

    def collect(self) -> Iterator["Metric"]:
        ours, theirs = self._registries
        for family in ours.collect():
            family.samples = [one for one in family.samples if not one.name.endswith("_created")]
            yield family
        yield from theirs.collect()


def _prometheus() -> Any:
    try:
        import prometheus_client
    except ImportError:
        raise Misuse(
            "metrics need prometheus-client", fix='Run:  pip install "holdfast[metrics]"'
        ) from None
    return prometheus_client
