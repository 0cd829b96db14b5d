"""The counters as Prometheus reads them."""

from collections.abc import Iterable, Sequence

from starlette.responses import Response

from holdfast.model import Depth, Queue, WorkerRow
from holdfast.server.call import Call

MEDIA_TYPE = "text/plain; version=0.0.4; charset=utf-8"
# Kinds with a label of their own; the rest are `other`.
KINDS = 100


async def metrics(call: Call) -> Response:
    """Tell depth, age, what was finished, and who works."""
    live, user = call.live, call.user
    queues = [one for one in await live.queues() if user.sees(one.queue)]
    depth = [one for one in await live.depth() if user.sees(one.queue)]
    lines = [*_queues(queues), *_kinds(depth), *_workers(await live.workers())]
    lines += _family("listen_up", "gauge", [({}, float(live.feed.mode == "live"))])
    return Response("\n".join(lines) + "\n", media_type=MEDIA_TYPE)


def _queues(queues: Sequence[Queue]) -> Iterable[str]:
    states = ("queued", "leased", "dead")
    yield from _family(
        "queue_depth",
        "gauge",
        [
            ({"queue": one.queue, "state": state}, float(getattr(one, state)))
            for one in queues
            for state in states
        ],
    )
    yield from _family(
        "queue_oldest_seconds",
        "gauge",
        [
            ({"queue": one.queue}, one.oldest.total_seconds() if one.oldest else 0.0)
            for one in queues
        ],
    )


def _kinds(depth: Sequence[Depth]) -> Iterable[str]:
    jobs: dict[str, int] = {}
    for one in depth:
        jobs[one.kind] = jobs.get(one.kind, 0) + one.jobs
    named = set(sorted(jobs, key=lambda kind: -jobs[kind])[:KINDS])
    counts: dict[tuple[str, str, str], int] = {}
    for one in depth:
        if one.state == "done":
            key = (one.queue, one.kind if one.kind in named else "other", one.state)
            counts[key] = counts.get(key, 0) + one.jobs
    yield from _family(
        "jobs_finished_total",
        "counter",
        [
            ({"queue": queue, "kind": kind, "outcome": outcome}, float(count))
            for (queue, kind, outcome), count in counts.items()
        ],
    )


def _workers(workers: Sequence[WorkerRow]) -> Iterable[str]:
    alive = [one for one in workers if one.alive]
    yield from _family(
        "worker_slots",
        "gauge",
        [
            ({"use": "used"}, float(sum(one.busy for one in alive))),
            ({"use": "total"}, float(sum(one.slots for one in alive))),
        ],
    )


def _family(name: str, sort: str, values: Iterable[tuple[dict[str, str], float]]) -> list[str]:
    lines = [f"# TYPE holdfast_{name} {sort}"]
    for labels, value in values:
        told = ",".join(f'{label}="{_escaped(text)}"' for label, text in labels.items())
        place = f"{{{told}}}" if told else ""
        lines.append(f"holdfast_{name}{place} {value:g}")
    return lines


def _escaped(text: str) -> str:
    return text.replace("\\", "\\\\").replace('"', '\\"').replace("\n", "\\n")
