"""Each fault strikes as it does in production: naive code shows it, careful code does not."""

import asyncio
from collections.abc import Callable, Iterator
from typing import Any

import psycopg
import pytest

from holdfast import App, current
from holdfast.app import Task
from holdfast.errors import Misuse
from holdfast.testing import FAULTS, Fault, Kit

PAID = "select count(*) from payment where order_id = %(order_id)s"
INSERT = "insert into payment values (%s)"

Pay = Task[..., None, Any]


@pytest.fixture
def app(holdfast: Kit) -> Iterator[App]:
    with App() as app:
        yield app


@pytest.fixture
def naive(app: App) -> Pay:
    """Commits its effect on a connection of its own, before its job is settled."""

    @app.task(lease=600)
    def naive(order_id: int) -> None:
        with psycopg.connect(app.url) as conn:
            conn.execute(INSERT, [order_id])

    return naive


@pytest.fixture
def careful(app: App) -> Pay:
    """Commits its effect and the end of its job together."""

    @app.task(lease=600)
    def careful(order_id: int) -> None:
        with current().transaction() as conn:
            conn.execute(INSERT, [order_id])

    return careful


@pytest.fixture
def paid(holdfast: Kit) -> Callable[[], int]:
    def paid() -> int:
        with psycopg.connect(holdfast.url) as conn:
            return len(conn.execute("select from payment").fetchall())

    return paid


def test_a_worker_that_crashes_after_its_commit_pays_twice_unless_it_is_careful(
    holdfast: Kit, naive: Pay, careful: Pay, paid: Callable[[], int]
) -> None:
    for task in (naive, careful):
        holdfast.crash_next(task, at="after_commit")
        task.enqueue(1)

    drained = holdfast.drain()
    assert [(ran.kind, ran.ended) for ran in drained] == [
        ("naive", "crashed"),
        ("careful", "crashed"),
    ]
    assert len(holdfast.drain()) == 0  # its lease has not expired

    holdfast.travel(hours=1)
    [again] = holdfast.drain(wait=True).ran
    assert (again.kind, again.attempt, again.ended) == ("naive", 2, "done")
    assert paid() == 3


def test_a_crash_runs_no_finally_and_rolls_back_what_was_not_committed(
    holdfast: Kit, app: App, paid: Callable[[], int]
) -> None:
    cleaned = []

    @app.task(lease=600)
    def work() -> None:
        try:
            with current().transaction() as conn:
                conn.execute(INSERT, [1])
        finally:
            cleaned.append(current().attempt)

    holdfast.crash_next(work, at="before_commit")
    work.enqueue()
    assert [ran.ended for ran in holdfast.drain()] == ["crashed"]
    assert (paid(), cleaned) == (0, [])

    holdfast.travel(seconds=601)
    assert [ran.ended for ran in holdfast.drain(wait=True)] == ["done"]
    assert (paid(), cleaned) == (1, [2])


@pytest.mark.parametrize("at", ["start", "half", "return"])
def test_a_worker_can_crash_at_any_point(holdfast: Kit, app: App, at: str) -> None:
    reached = []

    @app.task
    def work() -> None:
        reached.append("begun")
        current().progress(1, 2, "half")
        reached.append("ended")

    holdfast.crash_next(work, at=at)
    work.enqueue()
    holdfast.drain()

    assert reached == {"start": [], "half": ["begun"], "return": ["begun", "ended"]}[at]
    assert [job.state for job in holdfast.enqueued(work)] == ["leased"]


def test_a_crash_without_a_point_comes_at_the_first_commit_or_at_the_return(
    holdfast: Kit, app: App, paid: Callable[[], int]
) -> None:
    ran = []

    @app.task
    def without_commit() -> None:
        ran.append("whole")

    @app.task
    def with_commit() -> None:
        with psycopg.connect(holdfast.url) as conn:
            conn.execute("insert into payment values (1)")

    without_commit.enqueue()
    with_commit.enqueue()
    holdfast.crash_next(without_commit)
    holdfast.crash_next(with_commit)

    assert [one.ended for one in holdfast.drain()] == ["crashed", "crashed"]
    assert (ran, paid()) == (["whole"], 0)


def test_async_handlers_crash_too(holdfast: Kit, app: App, paid: Callable[[], int]) -> None:
    cleaned = []

    @app.task
    async def work() -> None:
        try:
            async with current().transaction() as conn:
                await conn.execute(INSERT, [1])
        finally:
            cleaned.append(current().attempt)

    async def test() -> None:
        holdfast.crash_next(work, at="before_commit")
        await work.aenqueue()
        drained = await holdfast.adrain(wait=True)
        assert [ran.ended for ran in drained] == ["crashed", "done"]

    asyncio.run(test())
    assert (paid(), cleaned) == (1, [2])


def test_a_worker_that_loses_its_lease_pays_twice_unless_it_is_careful(
    holdfast: Kit, naive: Pay, careful: Pay, paid: Callable[[], int]
) -> None:
    holdfast.lose_lease(naive)
    naive.enqueue(1)
    assert [ran.ended for ran in holdfast.drain()] == ["lost", "done"]
    assert paid() == 2

    holdfast.lose_lease(careful)
    careful.enqueue(2)
    assert [ran.ended for ran in holdfast.drain()] == ["lost", "done"]
    assert paid() == 3


def test_a_handler_learns_that_it_has_lost_its_lease(
    holdfast: Kit, app: App, paid: Callable[[], int]
) -> None:
    held = []

    @app.task
    def work() -> None:
        with current().transaction() as conn:
            conn.execute(INSERT, [1])
            held.append(current().held())
            current().progress(1, note="paid")
            held.append(current().held())

    holdfast.lose_lease(work, at="paid")
    work.enqueue()
    drained = holdfast.drain()

    assert held == [True, False, True, True]
    assert [ran.ended for ran in drained] == ["lost", "done"]
    assert paid() == 1


def test_a_lost_reply_of_a_commit_pays_twice_unless_it_is_careful(
    holdfast: Kit, naive: Pay, careful: Pay, paid: Callable[[], int]
) -> None:
    holdfast.drop_connection_at("commit", task=naive)
    naive.enqueue(1)
    drained = holdfast.drain(raises=False, wait=True)
    assert [ran.ended for ran in drained] == ["failed", "done"]
    assert paid() == 2

    holdfast.drop_connection_at("commit", task=careful)
    careful.enqueue(2)
    assert [ran.ended for ran in holdfast.drain()] == ["done"]  # Holdfast looks it up
    assert paid() == 3

    holdfast.drop_connection_at("commit", task=careful, committed=False)
    careful.enqueue(3)
    drained = holdfast.drain(wait=True)
    assert [ran.ended for ran in drained] == ["released", "done"]
    assert paid() == 4


def test_a_producer_that_repeats_a_lost_commit_enqueues_twice_unless_it_has_a_key(
    holdfast: Kit, naive: Pay
) -> None:
    def order(**options: Any) -> None:
        for _ in range(2):
            try:
                with psycopg.connect(holdfast.url) as conn:
                    naive.options(conn=conn, **options).enqueue(1)
                return
            except psycopg.OperationalError:
                pass

    holdfast.drop_connection_at("commit")
    order()
    assert len(holdfast.enqueued(naive)) == 2

    holdfast.drop_connection_at("commit")
    order(key="order-1")
    assert len(holdfast.enqueued(naive, key="order-1")) == 1


def test_an_effect_is_there_once_under_every_fault_if_the_task_is_careful(
    holdfast: Kit, careful: Pay
) -> None:
    holdfast.assert_effect_once(careful.call(order_id=7), PAID)


def test_a_naive_task_is_told_under_which_faults_it_repeats_its_effect(
    holdfast: Kit, naive: Pay
) -> None:
    with pytest.raises(AssertionError) as caught:
        holdfast.assert_effect_once(naive.call(order_id=7), PAID)

    told = str(caught.value)
    assert told.startswith("the effect of naive(order_id=7) must be there once\n")
    assert [str(fault) for fault in FAULTS if f"  {fault}: 2 times" in told] == [
        "crash after the commit",
        "crash at return",
        "lose lease at start",
        "lose lease before the commit",
        "lose lease at return",
        "drop connection after the commit",
    ]
    assert "crash before the commit" not in told
    assert "current().transaction()" in told


def test_an_effect_is_counted_in_an_async_test_too(holdfast: Kit, app: App) -> None:
    @app.task
    async def pay(order_id: int) -> None:
        async with current().transaction() as conn:
            await conn.execute(INSERT, [order_id])

    async def test() -> None:
        faults = [Fault("crash", "after_commit"), Fault("drop_connection", "after_commit")]
        holdfast.assert_effect_once(pay.call(1), PAID, under=faults)

    asyncio.run(test())


def test_effects_elsewhere_are_counted_by_a_function(holdfast: Kit, app: App) -> None:
    naive_gateway: list[int] = []
    careful_gateway: dict[str, int] = {}

    @app.task
    def charge(amount: int) -> None:
        naive_gateway.append(amount)
        careful_gateway[str(current().id)] = amount  # an idempotency key

    at_return = [Fault("crash", "return")]
    holdfast.assert_effect_once(charge.call(5), lambda: careful_gateway, under=at_return)
    with pytest.raises(AssertionError, match="crash at return: 2 times"):
        holdfast.assert_effect_once(charge.call(5), lambda: len(naive_gateway), under=at_return)


def test_a_fault_that_could_not_strike_is_not_taken_for_a_proof(holdfast: Kit, app: App) -> None:
    @app.task
    def work() -> None: ...

    holdfast.crash_next(work, at="before_commit")
    work.enqueue()

    with pytest.raises(Misuse, match="ended without reaching 'before_commit'"):
        holdfast.drain()
    assert len(holdfast.drain()) == 0


def test_a_fault_that_could_not_strike_tells_what_the_handler_raised(
    holdfast: Kit, app: App
) -> None:
    @app.task
    def work() -> None:
        raise ValueError("no such order")

    holdfast.crash_next(work, at="before_commit")
    work.enqueue()

    with pytest.raises(Misuse, match="It raised ValueError: no such order") as caught:
        holdfast.drain(raises=False)
    assert isinstance(caught.value.__cause__, ValueError)


def test_a_handler_that_uses_the_loop_of_the_test_is_told_that_a_crash_has_its_own(
    holdfast: Kit, app: App
) -> None:
    async def test() -> None:
        of_the_test: asyncio.Future[None] = asyncio.get_running_loop().create_future()

        @app.task
        async def work() -> None:
            await of_the_test

        holdfast.crash_next(work)
        await work.aenqueue()

        with pytest.raises(Misuse, match="runs on an event loop of its own"):
            await holdfast.adrain(raises=False)

    asyncio.run(test())


@pytest.mark.parametrize(
    ("effect", "told"),
    [
        ("select count(*) from paymint", 'cannot be counted: relation "paymint" does not exist'),
        ("select order_id from payment", "counted by a number, not by 0 rows"),
    ],
)
def test_an_effect_that_cannot_be_counted_is_told_as_such(
    holdfast: Kit, careful: Pay, effect: str, told: str
) -> None:
    with pytest.raises(Misuse, match=told):
        holdfast.assert_effect_once(careful.call(1), effect)
