"""Jobs are stored in several ways, for speed; which one was taken shows in nothing but the time.

WAYS=1000 tries that many batches instead of a few, and other ones each time.
"""

import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any
from uuid import UUID

import psycopg
import pytest
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st

from holdfast import Client, NewJob
from holdfast.client.sync import storing
from holdfast.errors import HoldfastError
from tests.protocol import Protocol

Jobs = Sequence[NewJob]
Settings = Mapping[str, Mapping[str, Any]]
Way = Callable[[Client, psycopg.Connection, Jobs], Sequence[Any]]

QUEUES = ("default", "set", "odd\\N", "unset")
TEXTS = ("\t", "\n", "\r\n", "\\", "\\N", "\\.", "\\t", "ß€😀", '"', "'", "%s", "\x7f", "plain")

texts = st.sampled_from(TEXTS)
names = st.sampled_from(["a", "b", "\\N", "ß€😀", "a\\", "x" * 200])
# What a batch may have, beside a kind and a payload.
PLAIN = {
    "priority": st.sampled_from([0, 3, 9]),
    "headers": st.none() | st.dictionaries(texts, texts, max_size=2),
    "tenant": st.none() | names,
    "subject": st.none() | texts,
    "max_attempts": st.none() | st.sampled_from([1, 32767]),
}
DECIDED = {
    "priority": st.sampled_from([0, 3, 9]),
    "key": st.sampled_from([None, "k1", "taken", "runs", "\\N"]),
    "on_conflict": st.sampled_from(["skip", "replace", "after"]),
    "lane": st.sampled_from([None, "l1", "\\N"]),
    "delay": st.sampled_from([None, 0, 60]),
    "lease": st.sampled_from([None, 5]),
    "headers": st.none() | st.dictionaries(texts, texts, max_size=2),
}
payloads = st.none() | texts | st.dictionaries(texts, texts | st.floats(allow_nan=False))
settings_of_queues = st.dictionaries(
    st.sampled_from(QUEUES[:3]),
    st.fixed_dictionaries(
        {},
        optional={
            "fair": st.just(True),
            "by_kind": st.just(True),
            "limit": st.sampled_from([1, 5]),
            "fanout": st.just(4),
            "activity": st.sampled_from(["all", "off"]),
            "max_attempts": st.just(7),
        },
    ),
)


@st.composite
def batches(draw: Any, fields: Mapping[str, Any]) -> list[NewJob]:
    """Jobs that have a few of the fields, and are often of one queue."""
    number = draw(st.sampled_from([1, 2, 10, 12]))
    chosen = draw(st.sets(st.sampled_from(sorted(fields)), max_size=3))
    queues = draw(st.sets(st.sampled_from(QUEUES), min_size=1, max_size=2))
    own_keys = "key" in fields and draw(st.booleans())
    jobs = []
    for nth in range(number):
        options = {name: draw(fields[name]) for name in sorted(chosen)}
        if own_keys:
            options["key"] = f"own {number - nth}"
        options["queue"] = draw(st.sampled_from(sorted(queues)))
        jobs.append(NewJob(kind=draw(names), payload=[nth, draw(payloads)], **options))
    return jobs


class World:
    """A database in which the same is found each time, and what was changed in it."""

    def __init__(self, db: Protocol, queues: Settings, watched: bool) -> None:
        self._db = db
        self._fanned = {name for name, chosen in queues.items() if "fanout" in chosen}
        self._labels: dict[UUID | None, str] = {None: "none"}
        db.wipe()
        for queue, chosen in queues.items():
            db.queue_set(queue, **chosen)
        for queue in QUEUES[:2]:
            self._labels[db.put("a", queue=queue, key="runs")] = f"runs in {queue}"
            db.take(queue)
            self._labels[db.put("a", queue=queue, key="taken")] = f"waits in {queue}"
            for worker in ("w1", "w2"):
                db.connection.execute(
                    "select holdfast.await_work(queues => %s, worker => %s, patience => '1 hour')",
                    [[queue], worker],
                )
        db.connection.execute("delete from holdfast.event")
        if watched:
            db.connection.execute("select * from holdfast.watch()")

    def answers(self, got: Sequence[Any]) -> list[Any]:
        """Answers, with names for the jobs instead of their ids."""
        for nth, one in enumerate(got):
            self._labels.setdefault(one.id, f"new {nth}")
        label = self._labels.get
        return [
            (label(one.id), one.created, label(one.duplicate_of), label(one.behind), one.holder)
            for one in got
        ]

    def seen(self) -> dict[str, Any]:
        """What anybody can find out about the jobs, whom it woke, and in which order they run."""
        seen: dict[str, Any] = {
            "jobs": self._rows(
                "select id, queue, kind, key, lane, priority, payload, headers, tenant, subject,"
                " max_attempts, lease_for, by_kind, follow, token is null as waits,"
                " run_at - created_at as late from holdfast.job"
            ),
            "events": self._rows("select job, event, jobs, queue, kind, state from holdfast.event"),
            "counters": self._rows(
                "select null::uuid, queue, kind, sum(queued) as queued, sum(leased) as leased,"
                " sum(enqueued) as enqueued from holdfast.tally group by queue, kind"
            ),
            "waiting workers": self._rows("select null::uuid, queue, worker from holdfast.waiter"),
        }
        assert self._db.recount() == []
        for queue in QUEUES:
            order = []
            while got := self._db.claim(queue, max_jobs=50):
                order += [(one.priority, self._labels[one.id]) for one in got]
                self._db.ack(*got)
            # Parts of a queue have no order among them.
            seen[f"order in {queue}"] = sorted(order) if queue in self._fanned else order
        return seen

    def _rows(self, query: str) -> list[Any]:
        found = self._db.table(query)
        return sorted(((self._labels.get(row[0]), *row[1:]) for row in found), key=str)


def together(client: Client, connection: psycopg.Connection, jobs: Jobs) -> Sequence[Any]:
    return client.enqueue_many(jobs)


def one_by_one(client: Client, connection: psycopg.Connection, jobs: Jobs) -> Sequence[Any]:
    with connection.transaction():
        return [client.on(connection).enqueue_many([job])[0] for job in jobs]


def in_a_transaction(client: Client, connection: psycopg.Connection, jobs: Jobs) -> Sequence[Any]:
    with connection.transaction(), connection.transaction():
        return client.on(connection).enqueue_many(jobs)


def in_steps(client: Client, connection: psycopg.Connection, jobs: Jobs) -> Sequence[Any]:
    with limits(_MANY=3):
        return client.enqueue_many(jobs)


def by_copy(client: Client, connection: psycopg.Connection, jobs: Jobs) -> Sequence[Any]:
    with limits(_BULK=1, _STRETCH=3):
        return client.enqueue_many(jobs)


def with_repeat(client: Client, connection: psycopg.Connection, jobs: Jobs) -> Sequence[Any]:
    return client.enqueue_many(jobs, repeat=True)


@contextmanager
def limits(**changed: int) -> Iterator[None]:
    with pytest.MonkeyPatch.context() as patch:
        for name, value in changed.items():
            patch.setattr(storing, name, value)
        yield


@pytest.fixture(scope="module")
def client(sql_database: str) -> Iterator[Client]:
    with Client(sql_database) as client:
        yield client


@pytest.fixture(scope="module")
def connection(sql_database: str) -> Iterator[psycopg.Connection]:
    with psycopg.connect(sql_database, autocommit=True) as connection:
        yield connection


FEW = settings(
    max_examples=int(os.environ.get("WAYS", "4" if "HOLDFAST_TEST_AGAIN" in os.environ else "12")),
    derandomize="WAYS" not in os.environ,
    deadline=None,
    database=None,
    suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow],
)
BARE = [NewJob(kind="a", payload=nth) for nth in range(12)]


@FEW
@given(batches(PLAIN), settings_of_queues, st.booleans())
@example(BARE, {}, False)
@example(BARE, {"default": {"activity": "all"}}, False)
@example(BARE[:1], {"default": {"activity": "all"}}, False)
@example(BARE[:1], {"default": {"fair": True, "by_kind": True, "max_attempts": 7}}, True)
@example(BARE, {"default": {"limit": 1}}, True)
def test_plain_jobs_are_stored_alike_in_every_way(
    db: Protocol,
    client: Client,
    connection: psycopg.Connection,
    jobs: Jobs,
    queues: Settings,
    watched: bool,
) -> None:
    ways = (together, one_by_one, in_a_transaction, in_steps, by_copy, with_repeat)
    first, *others = (done(db, client, connection, way, jobs, queues, watched) for way in ways)
    for other in others:
        assert other == first


@FEW
@given(batches(DECIDED), settings_of_queues, st.booleans())
@example([NewJob(kind="a", key=f"k{9 - nth}", payload=nth) for nth in range(10)], {}, True)
@example([NewJob(kind="a", key=f"k{nth}") for nth in range(10)], {"default": {"fair": True}}, False)
@example([NewJob(kind="a", key=f"k{nth % 10}") for nth in range(12)], {}, False)
def test_jobs_with_decisions_are_stored_alike_in_every_way(
    db: Protocol,
    client: Client,
    connection: psycopg.Connection,
    jobs: Jobs,
    queues: Settings,
    watched: bool,
) -> None:
    first, *others = (
        done(db, client, connection, way, jobs, queues, watched)
        for way in (together, in_a_transaction, by_copy, with_repeat)
    )
    for other in others:
        assert other == first


def done(
    db: Protocol,
    client: Client,
    connection: psycopg.Connection,
    way: Way,
    jobs: Jobs,
    queues: Settings,
    watched: bool,
) -> dict[str, Any]:
    """What came of storing jobs in one way."""
    world = World(db, queues, watched)
    try:
        answers = world.answers(way(client, connection, jobs))
    except HoldfastError as error:
        return {"refused": (type(error).__name__, error.code), **world.seen()}
    return {"answers": answers, **world.seen()}
