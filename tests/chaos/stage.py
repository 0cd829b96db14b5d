"""One scenario's world: a database, workers, and what may be asked about what became of jobs."""

import random
import time
from collections.abc import Callable, Collection, Iterator, Sequence
from contextlib import contextmanager
from datetime import timedelta
from pathlib import Path
from typing import Any, Self
from uuid import UUID

import psycopg
from psycopg.conninfo import conninfo_to_dict, make_conninfo

from holdfast import Client
from holdfast.records import NewJob
from tests.chaos.fleet import APP, Fleet, Worker
from tests.chaos.proxy import Proxy
from tests.chaos.server import WORKER, Server
from tests.chaos.witness import Run, by_job


class Stage:
    """The world of one scenario; a context manager that leaves no process behind."""

    def __init__(self, server: Server, url: str, place: Path, seed: int) -> None:
        self.server = server
        self.url = url
        self.worker_url = make_conninfo(url, user=WORKER, application_name="")
        self.dependency = place / "dependency"
        self.fleet = Fleet(self.worker_url, place, CHAOS_DEPENDENCY=str(self.dependency))
        self.witness = self.fleet.witness
        self.client = Client(url, application_name="chaos", timeout=30)
        self.rng = random.Random(seed)
        self.ids: list[UUID] = []
        self.facts: dict[str, object] = {}
        # Done jobs are kept, so that each accepted ack can be counted.
        for queue in ("default", "lanes"):
            self.client.queues.set(queue, keep_done=86400)

    def __enter__(self) -> Self:
        self.fleet.__enter__()
        return self

    def __exit__(self, *_: object) -> None:
        self.fleet.__exit__()
        self.client.close()

    def enqueue(
        self,
        kind: str,
        count: int = 1,
        *,
        first: int = 0,
        lease: float = 30.0,
        max_attempts: int = 100,
        queue: str = "default",
        lane: str | None = None,
        **payload: Any,
    ) -> list[UUID]:
        """Store jobs numbered from `first`; they are counted in the verdict."""
        jobs = [
            NewJob(
                kind=kind,
                payload={"n": n, **payload},
                queue=queue,
                lane=lane,
                lease=timedelta(seconds=lease),
                max_attempts=max_attempts,
            )
            for n in range(first, first + count)
        ]
        ids = [job.id for job in self.client.enqueue_many(jobs)]
        self.ids += ids
        return ids

    def start(self, slots: int = 8, *options: str, app: str = APP, url: str = "") -> Worker:
        """Start one more worker."""
        return self.fleet.start("-q", f"default:{slots},lanes:1", *options, app=app, url=url)

    @contextmanager
    def proxy(self) -> Iterator[tuple[Proxy, str]]:
        """Put a proxy before the server; yields it and the address for workers."""
        with Proxy(self.server.socket) as proxy:
            yield proxy, proxy.url(str(conninfo_to_dict(self.url)["dbname"]), WORKER)

    def until(self, what: Callable[[], object], patience: float = 30.0, why: str = "") -> float:
        """Wait until something is so; returns how long that took."""
        started = time.monotonic()
        while not what():
            waited = time.monotonic() - started
            assert waited < patience, f"not within {patience:g} s: {why or what}\n{self.told()}"
            assert not self.fleet.fallen(), f"a worker ended by itself\n{self.told()}"
            time.sleep(0.02)
        return time.monotonic() - started

    def began(self, count: int, kind: str | None = None) -> Callable[[], bool]:
        """Whether so many handlers have begun."""
        return lambda: len(self.witness.runs(kind)) >= count

    def runs_of(self, worker: Worker) -> list[Run]:
        """Return what ran in a worker's own process."""
        return [run for run in self.witness.runs() if run.pid == worker.pid]

    def held_by(self, worker: Worker) -> set[str]:
        """Return the jobs whose leases a worker holds, whether it has begun them or not."""
        names = list({run.worker for run in self.runs_of(worker)})
        held = "select id::text from holdfast.job where token is not null and worker = any(%s)"
        return {id for (id,) in self.rows(held, names)}

    def started_again(
        self, jobs: Collection[str], *, since: float, patience: float
    ) -> dict[str, float]:
        """Wait until each of the jobs has begun after a time; returns how long after."""

        def begun() -> dict[str, float]:
            runs = self.witness.runs()
            return {run.job: run.start - since for run in reversed(runs) if run.start > since}

        self.until(lambda: begun().keys() >= set(jobs), patience, "jobs did not begin again")
        return {job: waited for job, waited in begun().items() if job in jobs}

    def speed(self, start: float, end: float) -> float:
        """Return how many handlers ended in each second between two times."""
        facts = self.witness.facts()
        ended = sum(fact.what == "finish" and start <= fact.at < end for fact in facts)
        return ended / (end - start)

    def recovery(self, speed: float, *, since: float, patience: float) -> float:
        """Wait for a second in which handlers end at this speed; returns when it began."""
        found: list[float] = []

        def recovered() -> bool:
            ends = [fact.at - since for fact in self.witness.facts() if fact.what == "finish"]
            starts = (step / 10 for step in range(int(10 * (time.time() - since - 1)) + 1))
            found.extend(x for x in starts if sum(x <= end < x + 1 for end in ends) >= speed)
            return bool(found)

        self.until(recovered, patience, f"{speed:.0f} jobs/s were not reached again")
        return found[0]

    def live(self) -> int:
        """Return how many jobs wait or run."""
        return int(self.value("select count(*) from holdfast.job"))

    def drained(self, patience: float = 30.0) -> float:
        """Wait until no job is live; returns how long that took."""
        return self.until(lambda: not self.live(), patience, "jobs are left")

    def value(self, query: str, *parameters: Any) -> Any:
        """Return the one value a query answers, also just after a restart."""
        return self.rows(query, *parameters)[0][0]

    def rows(self, query: str, *parameters: Any) -> list[Any]:
        """Return what a query answers, also just after a restart."""
        deadline = time.monotonic() + 30
        while True:
            try:
                with psycopg.connect(self.url, autocommit=True) as connection:
                    return connection.execute(query, parameters).fetchall()
            except psycopg.OperationalError:
                if time.monotonic() > deadline:
                    raise
                time.sleep(0.1)

    def execute(self, statements: str) -> None:
        """Run statements that answer nothing."""
        with psycopg.connect(self.url) as connection:
            connection.execute(statements)

    @staticmethod
    def alive(pid: int) -> bool:
        """Whether a process runs."""
        try:
            state = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
        except OSError:
            return False
        return state != "Z"

    def told(self) -> str:
        """Return what is known of the jobs that are left, and the workers' last words."""
        try:
            left = self.rows(
                "select id, kind, state, attempt, worker, error, holdfast.explain(id) "
                "from holdfast.jobs where state in ('queued', 'leased', 'dead') limit 10"
            )
        except psycopg.OperationalError as error:
            left = [str(error)]
        return "\n".join(map(str, left)) + "\n" + self.fleet.said()

    def judge(self, ids: Sequence[UUID] | None = None, *, dead: int = 0) -> None:
        """Demand that nothing was lost and nothing acked twice, by the rows and by the counters."""
        ids = set(self.ids if ids is None else ids)
        ended = self.rows(
            "select id, state, count(*) from holdfast.jobs "
            "where state not in ('queued', 'leased') group by id, state"
        )
        known = {id for id, _, _ in ended}
        lost = [id for id in ids if id not in known]
        assert not lost, f"{len(lost)} of {len(ids)} jobs lost: {lost[:5]}\n{self.told()}"
        twice = [id for id, _, count in ended if count > 1]
        assert not twice, f"{len(twice)} jobs ended twice: {twice[:5]}"
        states = [state for id, state, _ in ended if id in ids]
        assert states.count("dead") == dead, self.told()
        assert states.count("done") == len(ids) - dead, self.told()
        assert self.rows("select * from holdfast.recount()") == []
        counted = self.value("select coalesce(sum(done), 0) from holdfast.queues")
        assert counted == states.count("done"), f"{counted} acks were counted"
        self.facts |= {"jobs": len(ids), "lost": 0, "acked twice": 0}

    def sessions(self) -> int:
        """Return how many sessions workers have."""
        return int(self.value("select count(*) from pg_stat_activity where usename = %s", WORKER))

    def effects(self) -> list[tuple[int, int]]:
        """Return how often each number has its effect in the database."""
        return self.rows("select n, count(*) from chaos.effect group by n order by n")

    def runs_twice(self) -> list[list[Run]]:
        """Return the runs of each job that ran more than once."""
        return [runs for runs in by_job(self.witness.runs()).values() if len(runs) > 1]
