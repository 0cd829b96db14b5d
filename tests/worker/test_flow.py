"""Chains and groups: described by plain expressions, stored at once, run in order by workers."""

import threading
from collections.abc import Callable, Generator
from typing import Any

import pytest
from msgspec.structs import replace

from holdfast import App, HoldfastError, InvalidJob, NewJob, chain, current, group
from holdfast.errors import InvalidArguments, InvalidTask, Misuse
from holdfast.middleware import around
from holdfast.worker import Worker
from holdfast.worker.claiming import Claiming
from holdfast.worker.loop import JobLoop
from holdfast.worker.settling import Ended

Drain = Callable[..., Worker]


@pytest.fixture
def ran(app: App) -> list[Any]:
    """What the tasks `add`, `double`, `total` and `broken` were called with, in order."""
    seen: list[Any] = []

    @app.task
    def add(x: int, y: int = 1) -> int:
        seen.append(("add", x))
        return x + y

    @app.task
    async def double(x: int) -> int:
        seen.append(("double", x))
        return 2 * x

    @app.task(keep_result=True)
    def total(numbers: list[int | None]) -> int:
        seen.append(("total", numbers))
        return sum(number or 0 for number in numbers)

    @app.task(max_attempts=1)
    def broken(x: int) -> int:
        raise ValueError(x)

    return seen


def test_a_chain_gives_each_the_result_of_the_one_before(
    app: App, ran: list[Any], drain: Drain
) -> None:
    add, double = app.tasks["add"], app.tasks["double"]
    chain(add.call(1), double, add, double).enqueue()
    drain()

    assert ran == [("add", 1), ("double", 2), ("add", 4), ("double", 5)]


def test_a_group_gives_what_follows_the_list_of_its_results(
    app: App, ran: list[Any], drain: Drain
) -> None:
    add, double, total = (app.tasks[name] for name in ("add", "double", "total"))
    last = group(add.call(1), add.call(10).then(double), double.call(100)).then(total).enqueue()
    drain()

    assert ran[-1] == ("total", [2, 22, 200])
    assert last.result() == 224


def test_a_task_is_mapped_over_items(app: App, ran: list[Any], drain: Drain) -> None:
    last = app.tasks["double"].map(range(50)).then(app.tasks["total"]).enqueue()
    drain()

    assert len(ran) == 51
    assert last.result() == 2450


def test_a_worker_that_stops_when_idle_runs_what_its_last_ends_release(
    app: App, ran: list[Any], drain: Drain, monkeypatch: pytest.MonkeyPatch
) -> None:
    # The ends are sent by a thread of their own, so slowly that all queues look empty meanwhile,
    # and the notification of what they release comes later still.
    monkeypatch.setattr(Claiming, "has_plenty", lambda self: True)
    monkeypatch.setattr(Claiming, "wake", lambda self, queue: False)
    found_nothing = threading.Event()

    def is_idle(self: Claiming, truly: Callable[[Claiming], bool] = Claiming.is_idle) -> bool:
        if idle := truly(self):
            found_nothing.set()
        return idle

    def settle(self: JobLoop, ended: Ended, truly: Any = JobLoop._settle) -> None:
        while not is_idle(self.claiming) and self.held:
            found_nothing.wait(0.01)
        truly(self, ended)

    monkeypatch.setattr(JobLoop, "_settle", settle)
    app.tasks["double"].map([1, 2]).then(app.tasks["total"]).enqueue()
    drain()

    assert ran[2:] == [("total", [2, 4])]


def test_a_result_that_cannot_be_stored_ends_its_own_job_and_no_other(
    app: App, ran: list[Any], drain: Drain
) -> None:
    app.client.queues.set("default", payload_limit=1000)

    @app.task(max_attempts=1)
    def long(x: int) -> str:
        return "x" * x

    @app.task
    def lengths(texts: list[str | None]) -> None:
        ran.append([text and len(text) for text in texts])

    app.tasks["long"].map([1, 5000, 3]).then(app.tasks["lengths"], if_failed="run").enqueue()
    drain()

    assert ran == [[1, None, 3]]


def test_a_call_that_two_wait_for_is_stored_once(app: App, ran: list[Any], drain: Drain) -> None:
    add, double, total = (app.tasks[name] for name in ("add", "double", "total"))
    first = add.call(1)
    last = group(first.then(add), first.then(double), first).then(total).enqueue()
    drain()

    assert ran.count(("add", 1)) == 1
    assert last.result() == 3 + 4 + 2


def test_a_flow_is_part_of_the_transaction_of_its_connection(
    app: App, ran: list[Any], drain: Drain, connect: Any
) -> None:
    connection = connect(autocommit=False)
    chain(app.tasks["add"].call(1), app.tasks["double"]).enqueue(conn=connection)
    connection.rollback()
    drain()
    assert ran == []

    app.tasks["add"].map([1, 2]).enqueue(conn=connection)
    connection.commit()
    drain()
    assert len(ran) == 2


def test_a_handler_adds_what_follows_it_in_its_own_transaction(app: App, drain: Drain) -> None:
    seen: list[Any] = []

    @app.task
    def split(n: int) -> int:
        job = current()
        with job.transaction(result=n) as conn:
            app.client.on(conn).enqueue("join", after=[job.id], take={"n": 1})
        return n

    @app.task
    def join(n: int) -> None:
        seen.append(n)

    split.enqueue(7)
    drain()

    assert seen == [7]


def test_a_failure_stops_what_follows_or_not(app: App, ran: list[Any], drain: Drain) -> None:
    add, broken, total = (app.tasks[name] for name in ("add", "broken", "total"))
    waiting = broken.call(1).then(add).enqueue()
    cancelled = broken.call(1).then(add, if_failed="cancel").then(add, if_failed="cancel").enqueue()
    group(add.call(5), broken.call(1)).then(total, if_failed="run").enqueue()
    drain()

    assert ran == [("add", 5), ("total", [6, None])]
    assert waiting.state() == "queued"
    assert cancelled.state() == "cancelled"
    assert "Waits for 1 of 1 job" in app.client.jobs.explain(waiting.id)


def test_options_of_a_follower_are_its_own(app: App, ran: list[Any]) -> None:
    add = app.tasks["add"]
    last = add.call(1).then(add.options(queue="other", priority=7)).enqueue()

    job = app.client.jobs.get(last.id)
    assert job is not None
    assert (job.queue, job.priority) == ("other", 7)


async def _stored(app: App) -> tuple[int, int]:
    add, total = app.tasks["add"], app.tasks["total"]
    await add.map([1, 2]).then(total).aenqueue()
    handles = await group(add.call(1), add.call(2)).aenqueue()
    await app.aclose()
    return len(handles), sum(handle.created for handle in handles)


def test_flows_are_stored_from_coroutines(app: App, ran: list[Any], drain: Drain) -> None:
    import asyncio

    assert asyncio.run(_stored(app)) == (2, 2)
    drain()
    assert len(ran) == 5


def test_what_cannot_follow_is_refused(app: App, ran: list[Any]) -> None:
    add, total = app.tasks["add"], app.tasks["total"]

    @app.task
    def empty() -> None: ...

    @app.task
    def two(x: int, y: int) -> None: ...

    @app.task(key=lambda x: str(x))
    def keyed(x: int) -> None: ...

    with pytest.raises(InvalidTask, match="has no argument for the result"):
        add.call(1).then(empty)  # type: ignore[arg-type]
    with pytest.raises(InvalidArguments, match="missing `y`"):
        add.call(1).then(two)
    with pytest.raises(InvalidTask, match="is a function of the arguments, but `x` is a result"):
        add.call(1).then(keyed)
    with pytest.raises(Misuse, match="is not a task"):
        chain(add.call(1), len)  # type: ignore[call-overload]
    with pytest.raises(Misuse, match="an empty group"):
        group().then(total)
    call = add.call(1)
    with pytest.raises(Misuse, match="given twice"):
        group(call, call).enqueue()


def test_many_jobs_go_in_parts_and_keep_their_order(app: App, ran: list[Any]) -> None:
    jobs = [NewJob(kind="p")] * 5001 + [NewJob(kind="f", after=[1, 5001])]
    stored = app.client.enqueue_many(jobs)

    said = app.client.jobs.explain(stored[-1].id)
    assert said.startswith("Waits for 2 of 2 jobs")
    with pytest.raises(InvalidJob, match="job 1 of the call waits for 1"):
        app.client.enqueue("a", after=[1])
    with pytest.raises(InvalidJob, match="a job with `after` cannot be copied"):
        app.client.copy([NewJob(kind="a", after=[stored[0].id])])


def test_a_workflow_is_started_under_its_name_and_knows_its_result(
    app: App, ran: list[Any], drain: Drain
) -> None:
    add, total = app.tasks["add"], app.tasks["total"]

    @app.workflow
    def sums(numbers: list[int]) -> Any:
        return add.map(numbers).then(total)

    first = sums.options(key="7", deadline=3600).start([1, 2])
    second = sums.options(key="7").start([3])
    assert (first.created, second.created, second.id) == (True, False, first.id)
    assert first.state() == "running"
    with pytest.raises(Misuse, match="has its key"):
        second.result()
    drain()

    assert first.result() == 5
    assert first.state() == "done"
    found = app.client.workflows.get(first.id)
    assert found is not None
    assert (found.name, found.jobs.total, found.jobs.done) == ("sums", 3, 3)
    assert sums.options(key="7").start([3]).created


def test_a_workflow_of_a_group_returns_the_list_and_an_empty_one_is_refused(
    app: App, ran: list[Any], drain: Drain
) -> None:
    total = app.tasks["total"]

    @app.workflow(name="side by side")
    def beside(lists: list[list[int]]) -> Any:
        return total.map(lists)

    run = beside.start([[1, 2], [3]])
    drain()

    assert run.result() == [3, 3]
    with pytest.raises(Misuse, match="a group without calls"):
        beside.start([])
    with pytest.raises(Misuse, match="unknown option `keys`"):
        beside.options(keys="7")  # type: ignore[call-arg]


def test_a_handler_adds_children_and_followers_to_its_workflow_in_its_transaction(
    app: App, ran: list[Any], drain: Drain
) -> None:
    add, double, total = (app.tasks[name] for name in ("add", "double", "total"))

    @app.task(retry=0)
    def split(parts: int) -> int:
        job = current()
        with job.transaction(result=parts) as connection:
            add.map(range(parts)).then(total).enqueue(conn=connection, child_of=job.id)
            chain(double.call(50), add).enqueue(conn=connection, after=[job.id], workflow=job.id)
            if job.attempt == 1:
                raise ConnectionError  # nothing is stored
        return parts

    @app.workflow
    def splitting(parts: int) -> Any:
        return group(split.call(parts))

    run = splitting.start(3)
    drain()

    kinds = [one.kind for one in app.client.workflows.jobs(run.id)]
    assert kinds == ["split", "add", "add", "add", "total", "double", "add"]
    assert ("total", [1, 2, 3]) in ran
    assert ran.count(("double", 50)) == 1
    assert run.state() == "done"


def test_a_cancelled_workflow_refuses_what_its_handler_adds(
    app: App, ran: list[Any], drain: Drain
) -> None:
    add = app.tasks["add"]
    caught: list[HoldfastError] = []

    @app.task(max_attempts=1)
    def late(parts: int) -> None:
        job = current()
        app.client.workflows.cancel(job.id)
        try:
            add.map(range(parts)).enqueue(child_of=job.id)
        except HoldfastError as error:
            caught.append(error)

    @app.workflow
    def lost() -> Any:
        return group(late.call(2))

    run = lost.start()
    drain()

    assert [error.code for error in caught] == ["HF216"]
    assert ran == []
    assert run.state() is not None


def test_middleware_is_around_every_job_of_a_flow(app: App, ran: list[Any], drain: Drain) -> None:
    seen: list[str] = []

    class Notes:
        def enqueue(self, job: NewJob) -> Generator[NewJob, Any, None]:
            seen.append(job.kind)
            yield replace(job, tenant="acme")

    add, total = app.tasks["add"], app.tasks["total"]
    app.around_enqueue = around([Notes()], "enqueue")
    last = add.map([1, 2]).then(total).enqueue()

    assert seen == ["add", "add", "total"]
    job = app.client.jobs.get(last.id)
    assert job is not None
    assert job.tenant == "acme"
