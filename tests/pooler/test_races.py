"""More clients than servers: calls of one worker meet any session, and none meets the other's."""

import threading
from collections import Counter
from collections.abc import Callable
from typing import Any
from uuid import UUID

import psycopg
import pytest

from holdfast import Client, NewJob
from tests.pgbouncer import BINARY, Pooled

pytestmark = pytest.mark.skipif(BINARY is None, reason="pgbouncer is not installed")

BATCHES = 150


def together(*lives: Callable[[], None]) -> list[BaseException]:
    """Live these lives, each in a thread; returns what went wrong."""
    failures: list[BaseException] = []

    def live(life: Callable[[], None]) -> None:
        try:
            life()
        except BaseException as error:
            failures.append(error)

    threads = [threading.Thread(target=live, args=[life]) for life in lives]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return failures


@pytest.mark.proves("S4.35")
def test_two_workers_and_a_producer_lose_and_double_nothing(pooled: Pooled, database: str) -> None:
    url = pooled(database)
    stored: list[UUID] = []
    claimed: list[UUID] = []
    done: list[UUID] = []
    produced = threading.Event()

    def produce() -> None:
        with Client(url) as client:
            for _ in range(BATCHES):
                # One batch in ten has a job in a lane: of those only one at a time can be done.
                lane = "a" if len(stored) % 20 == 0 else None
                jobs = [NewJob(kind="greet"), NewJob(kind="greet", lane=lane)]
                stored.extend(answer.id for answer in client.enqueue_many(jobs))
        produced.set()

    def work(worker: str) -> Callable[[], None]:
        def life() -> None:
            with Client(url) as client:
                while (leases := client.claim(worker=worker, limit=7)) or not produced.is_set():
                    claimed.extend(lease.id for lease in leases)
                    client.touch(leases)
                    kept, given_back = leases[:-1], leases[-1:]
                    done.extend(a.id for a in client.ack(kept) if a.outcome == "done")
                    if len(claimed) % 3:
                        client.release(given_back)
                    else:
                        done.extend(a.id for a in client.ack(given_back) if a.outcome == "done")

        return life

    failures = together(produce, work("ada"), work("bob"))

    with Client(database) as client:
        # A lane whose next job nobody was told of moves on with the next upkeep.
        while client.upkeep.run() and (leases := client.claim(worker="last", limit=1000)):
            done.extend(answer.id for answer in client.ack(leases))
    assert failures == []
    assert len(stored) == 2 * BATCHES
    assert Counter(done) == Counter(stored)


def test_a_limit_holds_for_workers_that_share_sessions(pooled: Pooled, database: str) -> None:
    url = pooled(database)
    with Client(database) as client:
        client.queues.set("default", limit=3)
        stored = client.enqueue_many([NewJob(kind="greet") for _ in range(300)])
    done: list[UUID] = []
    held: Counter[str] = Counter()
    most: list[int] = []

    def work(worker: str) -> Callable[[], None]:
        def life() -> None:
            with Client(url) as client:
                while len(done) < len(stored):
                    leases = client.claim(worker=worker, limit=2)
                    held[worker] = len(leases)
                    most.append(held.total())
                    held[worker] = 0
                    done.extend(answer.id for answer in client.ack(leases))

        return life

    failures = together(*map(work, ("ada", "bob", "eve", "joe")))

    assert failures == []
    assert max(most) <= 3
    assert Counter(done) == Counter(answer.id for answer in stored)


def test_settings_of_a_claim_never_reach_another_client(pooled: Pooled, database: str) -> None:
    url = pooled(database)
    seen: set[Any] = set()

    def work() -> None:
        with Client(url) as client:
            for _ in range(100):
                client.enqueue("greet")
                client.ack(client.claim(worker="ada", limit=2))

    def look() -> None:
        with psycopg.connect(url, autocommit=True, prepare_threshold=None) as connection:
            for _ in range(200):
                seen.add(
                    connection.execute(
                        "select current_setting('synchronous_commit'),"
                        " current_setting('enable_seqscan'), current_setting('search_path')"
                    ).fetchone()
                )

    failures = together(work, work, look)

    assert failures == []
    assert seen == {("on", "on", '"$user", public')}
