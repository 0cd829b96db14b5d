"""A worker with plenty to do: it settles apart from its claims, and holds jobs ahead."""

import asyncio
import threading
import time
from collections.abc import Callable
from contextvars import ContextVar
from itertools import pairwise
from typing import Any

import psycopg
import pytest

import holdfast
from holdfast import App, Client
from holdfast.client.sync.drain import Drain, Exchanged
from holdfast.errors import UnknownOutcome
from holdfast.worker.claiming import Claiming
from holdfast.worker.loop import JobLoop

Start = Callable[..., Any]
AHEAD = 50


def wait_for(condition: Callable[[], Any], seconds: float = 60.0) -> None:
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline, "it did not come to pass"
        time.sleep(0.005)


@pytest.fixture(autouse=True)
def _ahead(monkeypatch: pytest.MonkeyPatch) -> None:
    """Have workers claim ahead from the start, however fast this machine is."""

    def rate(claiming: Claiming) -> None:
        for slots in claiming.queues.values():
            slots.ahead = AHEAD

    monkeypatch.setattr(Claiming, "rate", rate)


class Acks:
    """What a worker settles apart from its claims, and what is done to it."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.apart = self.settled = 0
        self.go = threading.Event()
        self.go.set()
        self.lost_replies = 0
        exchange = Drain.exchange

        def send(
            drain: Drain, ids: Any, tokens: Any, settlements: Any, claims: Any, **more: Any
        ) -> Any:
            apart = bool(ids) and not claims
            if apart:
                self.apart += len(ids)
                assert self.go.wait(60)
            answer = exchange(drain, ids, tokens, settlements, claims, **more)
            self.settled += len(ids)
            if apart and self.lost_replies:
                self.lost_replies -= 1
                raise UnknownOutcome("ack", "the reply was lost")
            return answer

        monkeypatch.setattr(Drain, "exchange", send)


@pytest.fixture
def acks(monkeypatch: pytest.MonkeyPatch) -> Acks:
    return Acks(monkeypatch)


def replace_repeated(answer: Exchanged) -> Exchanged:
    return Exchanged(answer.lost, answer.settled, answer.leased, repeated=True)


def count(database: str, condition: str) -> int:
    with psycopg.connect(database, autocommit=True) as connection:
        query: Any = f"select count(*) from holdfast.job where {condition}"
        [(jobs,)] = connection.execute(query).fetchall()
    return int(jobs)


@pytest.mark.parametrize("sort", ["async", "def"])
def test_while_there_is_plenty_claims_do_not_wait_for_acks(
    app: App, start: Start, database: str, acks: Acks, sort: str
) -> None:
    ran: list[int] = []
    if sort == "async":

        @app.task(kind="short")
        async def short(n: int) -> None:
            ran.append(n)
    else:

        @app.task(kind="short")
        def short(n: int) -> None:
            ran.append(n)

    app.enqueue_many(short.call(n) for n in range(2000))
    acks.go.clear()
    running = start(concurrency=10)
    wait_for(lambda: acks.apart)
    first = len(ran)

    # Far more than it has room for: these were claimed while an ack hung.
    wait_for(lambda: len(ran) > first + 5 * AHEAD)
    acks.go.set()
    wait_for(lambda: count(database, "true") == 0)

    assert sorted(ran) == list(range(2000))
    wait_for(lambda: running.worker.counts.acked == 2000)


def test_a_worker_whose_acks_hang_holds_only_so_many_jobs_that_have_ended(
    app: App, start: Start, database: str, acks: Acks, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("holdfast.worker.loop.MOST_UNSETTLED", 200)
    ran: list[int] = []
    most = 0

    @app.task
    async def short(n: int) -> None:
        nonlocal most
        ran.append(n)
        most = max(most, len(ran) - acks.settled)

    app.enqueue_many(short.call(n) for n in range(3000))
    acks.go.clear()
    running = start(concurrency=10)
    wait_for(lambda: len(ran) > 200)
    before = 0
    while before != (before := running.worker.counts.claimed):
        time.sleep(0.5)  # that nothing more is claimed has no event

    acks.go.set()
    wait_for(lambda: count(database, "true") == 0)

    assert sorted(ran) == list(range(3000))
    # The bound, what it had in hand then, and what one more claim may give.
    assert most <= 200 + 2 * (AHEAD + 10)


def test_an_ack_whose_reply_is_lost_is_sent_again_and_nothing_runs_twice(
    app: App, start: Start, database: str, acks: Acks
) -> None:
    ran: list[int] = []

    @app.task
    async def short(n: int) -> None:
        ran.append(n)

    acks.lost_replies = 3
    app.enqueue_many(short.call(n) for n in range(1000))
    running = start(concurrency=10)
    wait_for(lambda: count(database, "true") == 0)
    wait_for(lambda: not running.worker._jobs.held)

    assert acks.lost_replies == 0
    assert sorted(ran) == list(range(1000))
    assert (running.worker.counts.acked, running.worker.counts.lost) == (1000, 0)


def test_an_ack_that_nobody_could_send_ends_the_worker(
    app: App, start: Start, monkeypatch: pytest.MonkeyPatch
) -> None:
    exchange = Drain.exchange

    def broken(drain: Drain, ids: Any, *rest: Any, **more: Any) -> Any:
        if ids and threading.current_thread().name == "holdfast-settler":
            raise ZeroDivisionError("a fault of ours")
        return exchange(drain, ids, *rest, **more)

    monkeypatch.setattr(Drain, "exchange", broken)

    @app.task
    async def short() -> None: ...

    app.enqueue_many(short.call() for _ in range(1000))
    running = start(concurrency=10)

    with pytest.raises(ZeroDivisionError):
        running.join()


@pytest.mark.parametrize("sort", ["async", "def"])
def test_jobs_held_ahead_are_given_back_at_a_stop_and_what_runs_may_end(
    app: App, start: Start, database: str, monkeypatch: pytest.MonkeyPatch, sort: str
) -> None:
    monkeypatch.setattr("holdfast.worker.loop.LONGEST_AHEAD", 60.0)
    began, go = [], threading.Event()
    if sort == "async":

        @app.task(kind="block")
        async def block() -> None:
            began.append(holdfast.current().id)
            await asyncio.to_thread(go.wait, 60)
    else:

        @app.task(kind="block")
        def block() -> None:
            began.append(holdfast.current().id)
            go.wait(60)

    app.enqueue_many(block.call() for _ in range(200))
    running = start(concurrency=2)
    wait_for(lambda: len(began) == 2 and count(database, "token is not null") > 10)
    running.worker.stop()

    wait_for(lambda: count(database, "token is not null") == 2)
    assert len(began) == 2, "nothing starts after the stop"
    go.set()
    running.join()
    assert count(database, "token is null and attempt = 0") == 198


def test_leases_of_jobs_held_ahead_are_renewed(
    app: App, start: Start, database: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("holdfast.worker.loop.LONGEST_AHEAD", 60.0)
    go, attempts = threading.Event(), []

    @app.task
    def block() -> None:
        go.wait(60)
        attempts.append(holdfast.current().attempt)

    app.enqueue_many(block.call() for _ in range(20))
    running = start(concurrency=1, lease=1.5)
    wait_for(lambda: running.worker.counts.claimed == 20)
    held = list(running.worker._jobs.held)
    first = max(job.deadline for job in held)
    # Every one of them until later than a lease lasts from there.
    wait_for(lambda: all(job.deadline > first + 1.5 for job in held))
    go.set()
    wait_for(lambda: count(database, "true") == 0)

    assert attempts == [1] * 20
    assert running.worker.counts.lost == 0


def test_what_was_claimed_beside_a_refused_settlement_runs_at_once(
    app: App, start: Start, database: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """To a server that is far both are sent together, and the claim is carried out."""
    exchange, given = Drain.exchange, []

    def far(drain: Drain, ids: Any, tokens: Any, settlements: Any, claims: Any, **more: Any) -> Any:
        if settlements and claims and not given:
            given.append(exchange(drain, [], [], [], claims))
            return exchange(drain, ids, tokens, settlements, [], **more)
        return exchange(drain, ids, tokens, settlements, claims, **more)

    monkeypatch.setattr(Drain, "exchange", far)
    monkeypatch.setattr(Claiming, "rate", lambda _: None)  # nothing is claimed before it has ended
    attempts = []

    @app.task(keep_result=True, max_attempts=1)
    def large() -> str:
        return "x" * 300_000

    @app.task
    def short() -> None:
        attempts.append(holdfast.current().attempt)

    large.enqueue()
    app.enqueue_many(short.call() for _ in range(5))
    start(concurrency=1)
    wait_for(lambda: len(attempts) == 5)

    assert [len(rows) for rows in given[0].leased] == [1]
    assert attempts == [1] * 5
    wait_for(lambda: count(database, "true") == 0)


def test_what_a_claim_gave_that_was_sent_twice_runs_at_once(
    app: App, start: Start, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The first was cut off, and still under way when the second was sent: both have leased."""
    exchange, twice = Drain.exchange, []

    def cut_off(
        drain: Drain, ids: Any, tokens: Any, settlements: Any, claims: Any, **more: Any
    ) -> Any:
        if claims and not twice:
            twice.append(exchange(drain, [], [], [], claims))
            return replace_repeated(exchange(drain, ids, tokens, settlements, claims, **more))
        return exchange(drain, ids, tokens, settlements, claims, **more)

    monkeypatch.setattr(Drain, "exchange", cut_off)
    attempts = []

    @app.task
    def short() -> None:
        attempts.append(holdfast.current().attempt)

    app.enqueue_many(short.call() for _ in range(10))
    start(concurrency=5)
    wait_for(lambda: len(attempts) == 10)

    assert [len(rows) for rows in twice[0].leased] == [5]
    assert attempts == [1] * 10


def test_a_claim_of_unknown_outcome_counts_towards_how_many_jobs_a_worker_takes(
    app: App, start: Start, monkeypatch: pytest.MonkeyPatch
) -> None:
    exchange, lost = Drain.exchange, []

    def cut(drain: Drain, ids: Any, tokens: Any, settlements: Any, claims: Any, **more: Any) -> Any:
        answer = exchange(drain, ids, tokens, settlements, claims, **more)
        if claims and not lost:
            lost.append(answer)
            raise UnknownOutcome("claim", "the reply was lost")
        return answer

    monkeypatch.setattr(Drain, "exchange", cut)
    ran = []

    @app.task
    def short() -> None:
        ran.append(1)

    app.enqueue_many(short.call() for _ in range(20))
    start(concurrency=5, max_jobs=7).join()

    assert [len(rows) for rows in lost[0].leased] == [5]
    assert len(ran) == 7


def test_a_settlement_that_cannot_be_sent_alone_is_sent_again(
    app: App, start: Start, database: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    settle, refused = Client.settle, []

    def locked(client: Client, settlements: Any) -> Any:
        if len(refused) < 2:
            refused.append(settlements)
            raise psycopg.errors.LockNotAvailable("canceling statement due to lock timeout")
        return settle(client, settlements)

    monkeypatch.setattr(Client, "settle", locked)

    @app.task(keep_result=True, max_attempts=1)
    def large() -> str:
        return "x" * 300_000

    large.enqueue()
    running = start(concurrency=1)
    wait_for(lambda: count(database, "true") == 0)

    assert len(refused) == 2
    assert running.error is None


def test_jobs_held_ahead_of_a_long_one_are_left_to_others(
    app: App, start: Start, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("holdfast.worker.loop.LONGEST_AHEAD", 0.1)
    go, attempts = threading.Event(), []
    busy: list[Claiming] = []

    def rate(claiming: Claiming) -> None:
        # Jobs have been short until now, as the first worker sees it.
        if not busy:
            busy.append(claiming)
            for slots in claiming.queues.values():
                slots.ahead = AHEAD

    monkeypatch.setattr(Claiming, "rate", rate)

    @app.task(kind="work")
    def work(n: int) -> None:
        if n == 0:
            go.wait(60)
        attempts.append((n, holdfast.current().attempt))

    app.enqueue_many(work.call(n) for n in range(20))
    first = start(concurrency=1)
    wait_for(lambda: first.worker.counts.claimed == 20)
    second = start(concurrency=1)
    wait_for(lambda: len(attempts) == 19)

    assert first.worker.counts.claimed == 20, "it does not claim them again"
    assert second.worker.counts.claimed >= 19
    assert sorted(attempts) == [(n, 1) for n in range(1, 20)]
    go.set()
    wait_for(lambda: len(attempts) == 20)


def test_what_a_claim_gives_after_the_stop_is_given_back(
    app: App, start: Start, database: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("holdfast.worker.loop.LONGEST_AHEAD", 60.0)
    exchange, leased, go = Drain.exchange, threading.Event(), threading.Event()

    def slow(drain: Drain, *arguments: Any, **more: Any) -> Any:
        answer = exchange(drain, *arguments, **more)
        if any(answer.leased):
            leased.set()
            assert go.wait(60)
        return answer

    monkeypatch.setattr(Drain, "exchange", slow)
    give_back, given_back = JobLoop.give_back_waiting, threading.Event()

    def noted(jobs: JobLoop) -> None:
        give_back(jobs)
        given_back.set()

    monkeypatch.setattr(JobLoop, "give_back_waiting", noted)
    ran = []

    @app.task
    async def short() -> None:
        ran.append(1)

    app.enqueue_many(short.call() for _ in range(20))
    running = start(concurrency=10)
    assert leased.wait(60)
    running.worker.stop()
    assert given_back.wait(60)
    go.set()
    running.join()

    assert not ran
    assert count(database, "token is null and attempt = 0") == 20


@pytest.mark.parametrize("sort", ["async", "def"])
@pytest.mark.parametrize(
    "error",
    [SystemExit, KeyboardInterrupt, GeneratorExit, StopIteration, asyncio.CancelledError],
)
def test_whatever_a_handler_raises_ends_its_own_job_only(
    app: App, drain: Start, sort: str, error: type[BaseException]
) -> None:
    ran: list[int] = []
    if sort == "async":

        @app.task(kind="odd", max_attempts=1)
        async def odd(n: int) -> None:
            ran.append(n)
            if n % 2:
                raise error
    else:

        @app.task(kind="odd", max_attempts=1)
        def odd(n: int) -> None:
            ran.append(n)
            if n % 2:
                raise error

    app.enqueue_many(odd.call(n) for n in range(20))
    worker = drain(concurrency=4)

    assert sorted(ran) == list(range(20))
    assert (worker.counts.acked, worker.counts.failed) == (10, 10)


def test_handlers_that_wait_for_nothing_share_no_context(app: App, drain: Start) -> None:
    said: ContextVar[str] = ContextVar("said", default="nothing")
    seen = []

    @app.task
    async def short(n: int) -> None:
        seen.append((said.get(), holdfast.current().payload["n"] == n))
        said.set(f"{n} was here")

    app.enqueue_many(short.call(n) for n in range(300))
    drain(concurrency=20)

    assert seen == [("nothing", True)] * 300


def test_a_handler_keeps_its_context_and_its_task_while_it_waits(app: App, drain: Start) -> None:
    said: ContextVar[int] = ContextVar("said")
    together = asyncio.Barrier(10)
    tasks, kept = set(), []

    @app.task
    async def waits(n: int) -> None:
        said.set(n)
        task = asyncio.current_task()
        async with asyncio.timeout(60):
            await together.wait()
            tasks.add(task)
            await asyncio.sleep(0)
            kept.append(said.get() == n == holdfast.current().payload["n"])
            kept.append(asyncio.current_task() is task)

    app.enqueue_many(waits.call(n) for n in range(10))
    drain(concurrency=10)

    assert kept == [True] * 20
    assert len(tasks) == 10


def test_a_handler_that_cancels_its_own_task_hurts_no_other(app: App, drain: Start) -> None:
    ended = []

    @app.task(max_attempts=1)
    async def odd(n: int) -> None:
        if n % 7 == 0:
            task = asyncio.current_task()
            assert task
            task.cancel()
        elif n % 3 == 0:
            await asyncio.sleep(0)
        ended.append(n)

    app.enqueue_many(odd.call(n) for n in range(300))
    worker = drain(concurrency=20)

    assert sorted(ended) == list(range(300))
    assert (worker.counts.acked, worker.counts.failed) == (300, 0)


def test_handlers_that_never_wait_leave_others_their_turn(app: App, start: Start) -> None:
    turns: list[int] = []
    ran: list[int] = []

    def turn() -> None:
        turns.append(len(ran))
        if len(ran) < 1000:
            asyncio.get_running_loop().call_soon(turn)

    @app.task(queue="others")
    async def others() -> None:
        turn()
        # It blocks the loop until all of them have arrived there.
        wait_for(lambda: len(running.worker._jobs._runners["async"]._arrived) == 1000)

    @app.task
    async def short(n: int) -> None:
        ran.append(n)

    running = start(queues={"others": 1, "default": 1000})
    others.enqueue()
    wait_for(lambda: turns)
    app.enqueue_many(short.call(n) for n in range(1000))
    wait_for(lambda: turns[-1] == 1000)

    steps = [after - before for before, after in pairwise(turns)]
    assert max(steps) <= 100, "one task begins some of them between two turns, not all"
