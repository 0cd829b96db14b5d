"""The developer's door: functions become tasks, calls become jobs, handles give results."""

import asyncio
import contextlib
import functools
import inspect
import os
import re
import subprocess
import sys
import textwrap
import threading
from collections.abc import AsyncIterator, Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from datetime import UTC, date, datetime, timedelta
from decimal import Decimal
from pathlib import Path
from typing import Any
from uuid import UUID

import psycopg
import pytest
from msgspec import structs

from holdfast import App, HoldfastError, InvalidJob, Lease, NotMigrated, Retry
from holdfast.app import Call, Handle, Task
from holdfast.errors import (
    InvalidArguments,
    InvalidSchedule,
    InvalidSetting,
    InvalidTask,
    JobCancelled,
    JobFailed,
    Misuse,
    ResultNotKept,
    ResultTimeout,
    ResultUnreadable,
)
from holdfast.outcome import decide
from holdfast.records import NewSchedule
from holdfast.worker import Worker

HERE = Path(__file__).name
NOWHERE = "postgresql://nobody@127.0.0.1:1/nothing"

Connect = Callable[..., psycopg.Connection]


@pytest.fixture
def app(database: str) -> Iterator[App]:
    with App(database) as app:
        yield app


@pytest.fixture
def greet(app: App) -> Task[..., str, str]:
    @app.task
    def greet(name: str, shout: bool = False) -> str:
        """Say hello."""
        return f"hello {name}".upper() if shout else f"hello {name}"

    return greet


def run_next(app: App) -> Lease:
    """Do what a worker does, once."""
    [lease] = app.client.claim(worker="test")
    task = app.tasks[lease.kind]
    args, kwargs = task.arguments.decode(lease.payload_json)
    returned, raised = None, None
    try:
        returned = task.fn(*args, **kwargs)
        if inspect.iscoroutine(returned):
            returned = asyncio.run(returned)
    except Exception as error:
        raised = error
    settlement = decide(
        lease,
        returned=task.encode_result(returned),
        raised=raised,
        retry=task.retry,
        keep_result=task.keep_result,
    )
    app.client.settle([settlement])
    return lease


# A task is its function.


@pytest.mark.parametrize("word", ["delay", "apply_async", "send", "defer"])
def test_a_method_of_another_queue_is_answered_with_ours(app: App, word: str) -> None:
    @app.task
    def greet(name: str) -> None: ...

    for enqueuer in (greet, greet.options(delay=5)):
        with pytest.raises(AttributeError, match=r"greet.enqueue\(…\) stores a job"):
            getattr(enqueuer, word)("Ada")
        assert not hasattr(enqueuer, word)
    with pytest.raises(AttributeError, match=r"has no attribute 'naem'$"):
        getattr(greet, "naem")  # noqa: B009


@pytest.mark.parametrize(
    ("word", "ours"),
    [
        ("s", "greet.call(…) is a call that is not stored"),
        ("signature", "greet.call(…) is a call that is not stored"),
        ("using", "greet.options(…).enqueue(…) stores a job with options"),
        ("configure", "greet.options(…).enqueue(…) stores a job with options"),
    ],
)
def test_a_method_that_makes_a_call_or_sets_options_is_answered_with_ours(
    app: App, word: str, ours: str
) -> None:
    @app.task
    def greet(name: str) -> None: ...

    with pytest.raises(AttributeError, match=re.escape(ours)):
        getattr(greet, word)


@pytest.mark.parametrize(
    ("word", "ours"), [("workers", "processes"), ("concurency", "concurrency")]
)
def test_an_unknown_option_of_a_worker_is_refused_before_it_waits_for_a_database(
    word: str, ours: str
) -> None:
    app = App(NOWHERE)
    app.task(plain)

    with pytest.raises(Misuse, match=rf"unknown option `{word}` \(did you mean `{ours}`\?\)"):
        app.run(**{word: 4})


def test_wrong_options_of_a_worker_are_refused_before_it_waits_for_a_database() -> None:
    app = App(NOWHERE)
    app.task(plain)

    with pytest.raises(Misuse, match="Give the slots of each"):
        app.run(queues=["default"])


@pytest.mark.parametrize(
    ("word", "option"),
    [("delay", "delay"), ("countdown", "delay"), ("eta", "run_at"), ("conn", "conn")],
)
def test_an_option_given_as_an_argument_is_answered_with_where_it_goes(
    app: App, word: str, option: str
) -> None:
    @app.task
    def greet(name: str) -> None: ...

    with pytest.raises(InvalidArguments, match=f"unknown argument `{word}`") as refused:
        greet.enqueue("Ada", **{word: 5})  # type: ignore[call-arg]
    assert f"greet.options({option}=…).enqueue(…)" in str(refused.value)
    if word != option:
        with pytest.raises(InvalidJob, match=rf"did you mean `{option}`\?"):
            greet.options(**{word: 5})  # type: ignore[typeddict-item]


@pytest.mark.parametrize(
    ("setting", "said"),
    [
        ("name", "did you mean `kind`?"),
        ("max_retries", "did you mean `max_attempts`?"),
        ("autoretry_for", "did you mean `retry`?"),
        ("soft_time_limit", "did you mean `timeout`?"),
        ("rate_limit", 'app.queue("…", rate_limit=10, rate_period=60)'),
        ("bind", "holdfast.current() is the running job"),
        ("cron", '@app.schedule("30 5 * * *") above @app.task'),
        ("countdown", "task.options(delay=…).enqueue(…)"),
    ],
)
def test_a_setting_of_another_queue_is_answered_with_ours(
    app: App, setting: str, said: str
) -> None:
    with pytest.raises(InvalidJob, match=f"unknown option `{setting}`") as refused:
        app.task(**{setting: 5})(print)  # type: ignore[call-overload]

    assert said in str(refused.value)
    assert "`kind`" not in str(refused.value) or setting == "name"


@pytest.mark.parametrize(
    "settings",
    [
        {"rate_limit": "10/m"},
        {"rate_limit": "10/m", "rate_period": 60},
        {"rate_limit": 10},
        {"rate_period": 60},
    ],
)
def test_a_rate_that_no_queue_can_have_is_refused_where_it_is_declared(
    app: App, settings: Any
) -> None:
    with pytest.raises(Misuse, match="Ten a minute:  rate_limit=10, rate_period=60"):
        app.queue("mail", **settings)

    assert app.queues == {}


def test_an_interval_in_words_is_refused(app: App) -> None:
    task = app.task(lambda: None, kind="rates")

    with pytest.raises(InvalidSchedule, match="every '5m' is not an interval"):
        app.schedule(every="5m")(task)  # type: ignore[arg-type]


def test_queues_without_their_slots_are_refused(app: App) -> None:
    app.task(lambda: None, kind="rates")

    with pytest.raises(Misuse, match="Give the slots of each"):
        Worker(app, queues=["mail"])  # type: ignore[arg-type]


def test_a_call_of_a_task_is_a_call_of_its_function(greet: Task[..., str, str]) -> None:
    assert greet("Ada") == "hello Ada"
    assert greet("Ada", shout=True) == "HELLO ADA"
    assert (greet.__name__, greet.__doc__) == ("greet", "Say hello.")
    assert str(inspect.signature(greet)) == "(name: str, shout: bool = False) -> str"


def test_a_call_of_an_async_task_is_awaited(app: App) -> None:
    @app.task
    async def double(number: int) -> int:
        return number * 2

    assert asyncio.run(double(21)) == 42


def test_tasks_say_how_they_are_run(app: App) -> None:
    class Awaitable:
        async def __call__(self) -> None:
            pass

    async def coroutine(number: int) -> None:
        pass

    def function() -> None:
        pass

    assert app.task(coroutine).runs == "async"
    assert app.task(function).runs == "thread"
    assert app.task(kind="a", process=True)(function).runs == "process"
    assert app.task(kind="b")(functools.partial(coroutine, 1)).runs == "async"
    assert app.task(kind="c")(Awaitable()).runs == "async"


@pytest.mark.proves("S3.37")
def test_settings_of_a_task_are_there_for_its_worker(app: App) -> None:
    @app.task(
        kind="mail.send",
        queue="mail",
        lease=timedelta(minutes=2),
        timeout=200,
        retry=5,
        retry_budget=0.1,
        keep_result=True,
        process=True,
        memory=2**29,
    )
    def send() -> None:
        pass

    assert app.tasks == {"mail.send": send}
    assert (send.kind, send.queue, send.lease, send.timeout) == ("mail.send", "mail", 120.0, 200.0)
    assert (send.retry, send.retry_budget, send.keep_result) == (5, 0.1, True)
    assert (send.runs, send.memory, send.check) == ("process", 2**29, None)


def test_two_functions_cannot_be_of_one_kind(app: App) -> None:
    @app.task
    def greet() -> None:
        pass

    with pytest.raises(InvalidTask) as caught:

        @app.task(kind="greet")
        def other() -> None:
            pass

    assert caught.value.code == "HF231"
    assert caught.value.what.count(HERE) == 2


def test_a_function_that_is_declared_again_takes_its_own_place(app: App) -> None:
    def declare() -> Task[..., Any, Any]:
        @app.task
        def greet() -> None:
            pass

        return greet

    declare()
    newest = declare()

    assert app.tasks == {"greet": newest}


class Mailer:
    def send(self, to: str) -> None:
        pass


def generator() -> Iterator[int]:
    yield 1


async def async_generator() -> AsyncIterator[int]:
    yield 1


def plain() -> None:
    pass


def by_id(id: int) -> None:
    pass


@pytest.mark.parametrize(
    ("settings", "fn", "told"),
    [
        ({}, generator, "it is a generator: declare a function or a coroutine"),
        ({}, async_generator, "it is a generator: declare a function or a coroutine"),
        ({}, Mailer.send, "it is a method: declare a function"),
        ({}, lambda: None, "is not a function with a name"),
        ({}, 42, "is not a function with a name"),
        ({"kind": "a\n"}, plain, r"kind 'a\n' contains a control character"),
        ({"aliases": ["x" * 201]}, plain, "is 201 characters long, the limit is 200"),
        ({"memory": 2**30}, plain, "memory= needs process=True"),
        ({"lease": 0}, plain, "lease 0 is not a number of seconds above 0, up to 31536000"),
        ({"lease": timedelta(400)}, plain, "lease 34560000 is not a number of seconds above 0"),
        ({"lease": "soon"}, plain, "lease 'soon' is not a number of seconds above 0"),
        ({"expires": float("nan")}, plain, "expires nan is not a number of seconds above 0"),
        ({"queue": "holdfast.mine"}, plain, "queue 'holdfast.mine' belongs to Holdfast"),
        ({"queue": ""}, plain, "queue is missing"),
        ({"queue": 5}, plain, "queue 5 is not a text"),
        ({"lane": "x" * 201}, plain, "is 201 characters long, the limit is 200"),
        ({"key": "x" * 501}, plain, "key is 501 characters and 501 bytes long"),
        ({"on_conflict": "wait"}, plain, "on_conflict 'wait' is not skip, replace or after"),
        ({"priority": True}, plain, "priority True is not a whole number from 0 to 9"),
        ({"timeout": timedelta(-1)}, plain, "timeout"),
        ({"timeout": "2m"}, plain, "timeout '2m' is not a number of seconds"),
        ({"timeout": True}, plain, "timeout True is not a number of seconds"),
        ({"process": True, "memory": "1GB"}, plain, "memory '1GB' is not a number of bytes"),
        ({"retry_budget": "20%"}, plain, "retry_budget '20%' is not a share of its attempts"),
        ({"old_arguments": ["user"]}, plain, "old_arguments ['user'] does not say the new names"),
        ({"key": "order-{id}"}, by_id, "key='order-{id}' would be the same for every job"),
        ({"lane": "user-{id}"}, by_id, "write  lane=lambda …: f'user-{id}'"),
        ({"retry": "soon"}, plain, "'soon' is not a retry policy"),
        ({"retry": -1}, plain, "-1 is not a retry policy"),
        ({"retry": True}, plain, "True is not a retry policy"),
        ({"retry": {"ValueError": 1}}, plain, "'ValueError' is not an exception class"),
        ({"retry": {ValueError: "soon"}}, plain, "'soon' is not a retry policy for ValueError"),
        ({"retry_budget": -0.1}, plain, "retry_budget -0.1"),
        ({"priority": 10}, plain, "priority 10 is not a whole number from 0 to 9"),
        ({"max_attempts": 0}, plain, "max_attempts 0 is not a whole number from 1 to 32767"),
    ],
)
def test_what_cannot_be_a_task_is_refused_at_declaration(
    settings: Any, fn: Any, told: str, app: App
) -> None:
    with pytest.raises(InvalidTask) as caught:
        app.task(**settings)(fn)

    assert told in caught.value.what
    assert app.tasks == {}


@pytest.mark.parametrize(
    ("options", "code", "told"),
    [
        ({"priority": 100}, "HF203", "priority 100 is not a whole number from 0 to 9"),
        ({"delay": -5}, "HF204", "delay -5 is not a number of seconds from 0 to 3153600000"),
        ({"max_attempts": 0}, "HF204", "max_attempts 0 is not a whole number from 1 to 32767"),
        ({"queue": "a\tb"}, "HF202", r"queue 'a\tb' contains a control character"),
        ({"queue": "holdfast.mine"}, "HF211", "queue 'holdfast.mine' belongs to Holdfast"),
        ({"if_failed": "stop"}, "HF205", "if_failed 'stop' is not wait, cancel or run"),
    ],
)
def test_a_wrong_option_of_a_call_is_refused_where_it_stands(
    options: Any, code: str, told: str
) -> None:
    send = App(NOWHERE).task(plain)

    with pytest.raises(InvalidJob) as caught:
        send.options(**options)

    assert (caught.value.code, caught.value.what) == (code, f"plain.options: {told}")
    assert "send.options(**options)" in caught.value.why


def test_what_a_job_may_have_a_task_may_have_too() -> None:
    app = App(NOWHERE)

    app.task(
        priority=9, max_attempts=32767, lease=0.5, expires=timedelta(days=36500), key=42, lane=None
    )(plain)

    assert app.tasks["plain"].call().job.priority == 9
    assert app.tasks["plain"].options(delay=0, key=None, subject="x" * 500).call().job.delay == 0


def test_a_wrong_setting_of_a_queue_is_refused_at_declaration() -> None:
    app = App(NOWHERE)

    for settings, told in [
        ({"limit": 0}, "limit 0 is not a whole number from 1"),
        ({"lease": timedelta(0)}, "lease 0 is not a number of seconds above 0, up to 31104000"),
        ({"activity": "some"}, "activity 'some' is not off, failures or all"),
    ]:
        with pytest.raises(InvalidSetting, match=told):
            app.queue("mail", **settings)
    with pytest.raises(InvalidSetting, match=r"queue 'holdfast\.mine' belongs to Holdfast"):
        app.queue("holdfast.mine", limit=1)
    assert app.queues == {}


def test_a_bound_method_is_a_function(app: App) -> None:
    assert app.task(Mailer().send).kind == "send"


def test_an_unknown_setting_is_refused_with_the_nearest(app: App) -> None:
    with pytest.raises(InvalidJob, match=r"unknown option `queu` \(did you mean `queue`\?\)"):
        app.task(queu="mail")(plain)  # type: ignore[call-overload]


# Enqueue.


def test_a_call_is_stored_as_a_job_of_its_kind(app: App, greet: Task[..., str, str]) -> None:
    handle = greet.enqueue("Ada", shout=True)

    job = app.client.jobs.get(handle.id)
    assert job
    assert (job.kind, job.queue, job.state) == ("greet", "default", "queued")
    assert job.payload == {"name": "Ada", "shout": True}
    assert handle.created
    assert handle.state() == "queued"


def test_the_settings_of_a_task_are_the_defaults_of_its_jobs(app: App) -> None:
    @app.task(
        queue="mail",
        priority=5,
        max_attempts=7,
        lease=90,
        lane="a lane",
        key="a key",
        tenant="a tenant",
        subject="a subject",
    )
    def send() -> None:
        pass

    job = app.client.jobs.get(send.enqueue().id)

    assert job
    assert (job.queue, job.priority, job.max_attempts) == ("mail", 5, 7)
    assert (job.lane, job.key, job.tenant, job.subject) == (
        "a lane",
        "a key",
        "a tenant",
        "a subject",
    )
    assert job.lease == timedelta(seconds=90)


def test_keys_and_lanes_can_be_chosen_by_the_arguments(app: App) -> None:
    @app.task(
        key=lambda user, day="today": f"{user}/{day}",
        lane=lambda user, day=None: f"user {user}",
        tenant=lambda user, **_: str(user),
        subject=lambda user, **_: None,
    )
    def report(user: int, day: str = "today") -> None:
        pass

    job = app.client.jobs.get(report.enqueue(7, day="monday").id)

    assert job
    assert (job.key, job.lane, job.tenant, job.subject) == ("7/monday", "user 7", "7", None)


@pytest.mark.parametrize("call", ["positional", "named", "mixed"])
def test_a_lane_may_be_chosen_by_some_of_the_arguments_however_they_are_given(
    app: App, call: str
) -> None:
    @app.task(lane=lambda user, **_: f"user {user}", tenant=lambda day: day, key=_third)
    def report(user: int, day: str, page: int = 1) -> None:
        pass

    handle = {
        "positional": lambda: report.enqueue(7, "monday", 3),
        "named": lambda: report.enqueue(page=3, day="monday", user=7),
        "mixed": lambda: report.enqueue(7, page=3, day="monday"),
    }[call]()

    job = app.client.jobs.get(handle.id)
    assert job
    assert (job.lane, job.tenant, job.key) == ("user 7", "monday", "page 3")


def _third(*, page: int) -> str:
    return f"page {page}"


def test_a_function_that_the_arguments_do_not_fit_is_named(app: App) -> None:
    @app.task(lane=lambda customer: f"customer {customer}")
    def report(user: int) -> None:
        pass

    with pytest.raises(InvalidTask, match=r"report: lane=<lambda> \(.*\) takes \(customer\)"):
        report.enqueue(user=7)


def test_an_error_inside_the_function_of_a_lane_is_its_own(app: App) -> None:
    @app.task(lane=lambda user: user + "1")
    def report(user: int) -> None:
        pass

    with pytest.raises(TypeError, match="unsupported operand"):
        report.enqueue(7)


def test_a_time_to_expire_at_takes_the_place_of_the_tasks_own_span(app: App) -> None:
    @app.task(expires=timedelta(minutes=10))
    def remind() -> None: ...

    then = datetime(2030, 1, 31, tzinfo=UTC)
    usual, other = remind.enqueue(), remind.options(expires_at=then).enqueue()
    timed, job = app.client.jobs.get(other.id), app.client.jobs.get(usual.id)
    assert timed
    assert timed.expires_at == then
    assert job
    assert job.expires_at == job.run_at + timedelta(minutes=10)
    with pytest.raises(InvalidTask, match="expires -1 is not a number of seconds above 0"):
        app.task(kind="late", expires=-1)(lambda: None)


def test_options_take_the_place_of_settings(app: App) -> None:
    @app.task(queue="mail", priority=5, key=lambda: "chosen")
    def send() -> None:
        pass

    late = datetime(2099, 1, 1, tzinfo=UTC)
    sends = send.options(queue="bulk", run_at=late).options(priority=1, key=None)

    job = app.client.jobs.get(sends.enqueue().id)

    assert job
    assert (job.queue, job.priority, job.key, job.run_at) == ("bulk", 1, None, late)
    assert send.call().job.queue == "mail"


def test_an_option_nobody_knows_is_refused_with_the_nearest(greet: Task[..., str, str]) -> None:
    with pytest.raises(InvalidJob) as caught:
        greet.options(dealy=5)  # type: ignore[call-arg]

    assert caught.value.what == "greet.options: unknown option `dealy` (did you mean `delay`?)"
    assert HERE in caught.value.why


def test_wrong_arguments_are_refused_in_the_callers_stack_before_anything_is_connected() -> None:
    app = App(NOWHERE)

    @app.task
    def greet(name: str) -> None:
        pass

    with pytest.raises(InvalidArguments) as caught:
        greet.enqueue(42)  # type: ignore[arg-type]

    assert str(caught.value).splitlines()[0] == (
        "HF200 greet.enqueue: Expected `str`, got `int` - at `$.name`"
    )
    where = str(caught.value).splitlines()[1]
    assert HERE in where
    assert "greet.enqueue(42)" in where


def test_wrong_arguments_of_aenqueue_are_refused_before_it_is_awaited() -> None:
    app = App(NOWHERE)

    @app.task
    async def greet(name: str) -> None:
        pass

    with pytest.raises(InvalidArguments, match=r"HF201 greet\.aenqueue: unknown argument `nmae`"):
        greet.aenqueue(nmae="Ada")  # type: ignore[call-arg]


@pytest.mark.proves("S3.10")
def test_a_second_job_with_the_same_key_is_told_to_be_a_duplicate(app: App) -> None:
    @app.task(key=lambda name: name)
    def greet(name: str) -> None:
        pass

    first, second = greet.enqueue("Ada"), greet.enqueue("Ada")

    assert (second.created, second.id, second.duplicate_of) == (False, first.id, first.id)


def test_a_job_that_must_wait_says_behind_which(app: App) -> None:
    @app.task(lane="axiom")
    def price(scenario: str) -> None:
        pass

    first, second, third = (price.enqueue(scenario) for scenario in "abc")

    assert (first.behind, second.behind, third.behind) == (None, first.id, second.id)


def test_async_code_enqueues_and_looks_with_await(app: App) -> None:
    @app.task(key=lambda number: str(number))
    async def double(number: int) -> int:
        return number * 2

    async def main() -> None:
        async with app:
            first = await double.aenqueue(1)
            second = await double.options(queue="other").aenqueue(2)
            third = await app.aenqueue_many([double.call(1), double.call(3)])

            stored = await app.aclient.jobs.get(second.id)
            assert stored
            assert (await first.astate(), stored.queue) == ("queued", "other")
            assert await second.acancel("no need")
            assert not await second.acancel()
            assert [handle.created for handle in third] == [False, True]

    asyncio.run(main())


@dataclass
class Order:
    at: datetime
    day: date
    price: Decimal
    tags: set[str]
    ratio: float
    parent: UUID | None = None


def test_arguments_come_out_of_the_database_as_they_went_in(app: App) -> None:
    orders: list[Order] = []

    @app.task
    def ship(order: Order, *numbers: float, **labels: str) -> None:
        orders.append(order)
        assert numbers == (1e308, 0.1, -5e-324, 2.0)
        assert labels == {"ü": "\u2028 '\"\\ %s {}"}

    order = Order(datetime.now(UTC), date(2026, 1, 2), Decimal("0.10"), {"a"}, 1e22, UUID(int=3))
    ship.enqueue(order, 1e308, 0.1, -5e-324, 2.0, ü="\u2028 '\"\\ %s {}")

    run_next(app)

    assert orders == [order]


def test_no_database_means_hf110_and_no_migration_behind_ones_back(empty_database: str) -> None:
    with App(empty_database) as app:
        with pytest.raises(NotMigrated):
            app.task(plain).enqueue()
        with pytest.raises(NotMigrated):
            app.task(plain).enqueue()


# In the caller's transaction.


@pytest.mark.proves("S3.28")
def test_a_job_is_part_of_the_callers_transaction(
    app: App, greet: Task[..., str, str], connect: Connect
) -> None:
    conn = connect(autocommit=False)

    handle = greet.options(conn=conn).enqueue("Ada")
    assert handle.state() is None
    conn.rollback()
    assert handle.state() is None

    handle = greet.options(conn=conn).enqueue("Ada")
    [other] = app.enqueue_many([greet.call("Grace")], conn=conn)
    conn.commit()
    assert (handle.state(), other.state()) == ("queued", "queued")


def test_enqueueing_on_a_connection_needs_no_address(
    connect: Connect, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.delenv("HOLDFAST_URL", raising=False)
    monkeypatch.chdir(tmp_path)
    app = App()

    handle = app.task(plain).options(conn=connect()).enqueue()

    assert handle.created
    assert list(tmp_path.iterdir()) == []


def test_async_jobs_are_part_of_an_async_transaction(
    app: App, greet: Task[..., str, str], database: str
) -> None:
    async def main() -> None:
        async with app, await psycopg.AsyncConnection.connect(database) as conn:
            handle = await greet.options(conn=conn).aenqueue("Ada")
            [other] = await app.aenqueue_many([greet.call("Grace")], conn=conn)
            assert await handle.astate() is None
            await conn.commit()
            assert (await handle.astate(), await other.astate()) == ("queued", "queued")

    asyncio.run(main())


def test_what_is_no_connection_is_named(greet: Task[..., str, str], connect: Connect) -> None:
    with pytest.raises(Misuse, match=r"conn is a str") as caught:
        greet.options(conn="postgresql://").enqueue("Ada")
    assert HERE in caught.value.why

    async def main() -> None:
        with pytest.raises(Misuse, match="aenqueue cannot use a synchronous connection"):
            await greet.options(conn=connect()).aenqueue("Ada")

    asyncio.run(main())


# Many at once.


def test_many_calls_are_stored_in_their_order(app: App, greet: Task[..., str, str]) -> None:
    @app.task(key=lambda number: str(number), queue="other")
    async def double(number: int) -> int:
        return number * 2

    calls: list[Call[Any]] = [greet.call("Ada"), double.call(1), double.call(1), greet.call("Alan")]

    handles = app.enqueue_many(calls)

    assert [handle.created for handle in handles] == [True, True, False, True]
    assert handles[2].duplicate_of == handles[1].id
    jobs = [app.client.jobs.get(handle.id) for handle in handles]
    assert [job and job.payload for job in jobs] == [
        {"name": "Ada"},
        {"number": 1},
        {"number": 1},
        {"name": "Alan"},
    ]


def test_very_many_calls_are_stored_in_their_order_too(
    app: App, greet: Task[..., str, str], connect: Connect
) -> None:
    handles = app.enqueue_many(greet.call(str(number)) for number in range(12_001))

    stored = dict(connect().execute("select id, payload ->> 'name' from holdfast.job").fetchall())
    assert [stored[handle.id] for handle in handles] == [str(number) for number in range(12_001)]


@pytest.mark.proves("S3.33")
def test_of_very_many_calls_all_are_stored_or_none(app: App, greet: Task[..., str, str]) -> None:
    calls = [greet.call("Ada") for _ in range(6000)]
    wrong = greet.call("Ada")
    calls.append(replace(wrong, job=structs.replace(wrong.job, priority=10)))

    with pytest.raises(InvalidJob):
        app.enqueue_many(calls)

    assert app.client.jobs.find() == []


def test_no_calls_need_no_database() -> None:
    assert App(NOWHERE).enqueue_many([]) == []


def test_what_is_no_call_of_this_app_is_refused(app: App, greet: Task[..., str, str]) -> None:
    stranger = App(NOWHERE).task(plain)

    for wrong in ["greet", greet, stranger.call()]:
        with pytest.raises(Misuse, match="is not a call of a task of this app"):
            app.enqueue_many([wrong])  # type: ignore[list-item]


def test_one_call_is_not_many(app: App, greet: Task[..., str, str]) -> None:
    with pytest.raises(Misuse, match=r"store this one:  greet\.enqueue\(…\)"):
        app.enqueue_many(greet.call("Ada"))  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("word", "ours"),
    [
        ("send_task", 'app.client.enqueue("kind", {…})'),
        ("enqueue", "task.enqueue(…) stores a job"),
        ("worker_main", "app.run() is a worker"),
        ("add_periodic_task", "@app.schedule"),
    ],
)
def test_what_an_app_has_in_another_queue_is_answered_with_ours(
    app: App, word: str, ours: str
) -> None:
    assert not hasattr(app, word)
    with pytest.raises(AttributeError, match=re.escape(ours)):
        getattr(app, word)
    with pytest.raises(AttributeError, match=r"has no attribute 'naem'$"):
        app.naem  # type: ignore[attr-defined]  # noqa: B018


def test_a_call_cannot_have_a_connection_before_it_is_enqueued(
    greet: Task[..., str, str], connect: Connect
) -> None:
    with pytest.raises(Misuse, match="a call has no connection yet"):
        greet.options(conn=connect()).call("Ada")


# Results.


@pytest.fixture
def divide(app: App) -> Task[..., Order, Order]:
    @app.task(keep_result=True, max_attempts=2, retry=0)
    def divide(number: int, by: int) -> Order:
        return Order(
            datetime(2026, 1, 1, tzinfo=UTC), date(2026, 1, 2), Decimal(number) / by, set(), 0.5
        )

    return divide


def test_a_result_is_returned_in_the_type_of_the_function(
    app: App, divide: Task[..., Order, Order]
) -> None:
    handle = divide.enqueue(1, 2)
    run_next(app)

    result = handle.result(timeout=100)

    assert result == divide(1, 2)
    assert asyncio.run(aresult(app, handle)) == result


async def aresult(app: App, handle: Handle[Any]) -> Any:
    async with app:
        return await handle.aresult(timeout=100)


def test_a_result_that_does_not_come_in_time_is_given_up_in_an_event_loop_too(
    app: App, divide: Task[..., Order, Order]
) -> None:
    async def ask() -> None:
        async with app:
            with pytest.raises(ResultTimeout):
                await asyncio.wait_for(handle.aresult(timeout=0.1), 30)

    handle = divide.enqueue(1, 2)

    asyncio.run(ask())


def test_a_result_is_waited_for(app: App, divide: Task[..., Order, Order]) -> None:
    handle = divide.enqueue(1, 2)

    with ThreadPoolExecutor() as threads:
        waiting = threads.submit(handle.result, 30)
        assert not waiting.done()
        run_next(app)
        assert waiting.result().price == Decimal("0.5")


@pytest.mark.parametrize(
    ("word", "ours"), [("get", "result(timeout=…)"), ("status", "state()"), ("revoke", "cancel()")]
)
def test_what_a_handle_has_in_another_queue_is_answered_with_ours(
    greet: Task[..., str, str], word: str, ours: str
) -> None:
    handle = greet.enqueue("Ada")

    with pytest.raises(AttributeError, match=re.escape(f"write  handle.{ours}")):
        getattr(handle, word)
    assert not hasattr(handle, "naem")


def test_a_result_may_be_none(app: App) -> None:
    @app.task(keep_result=True)
    def nothing() -> None:
        pass

    handle = nothing.enqueue()
    run_next(app)

    assert handle.result(timeout=100) is None  # type: ignore[func-returns-value]


def test_a_dead_job_raises_what_it_died_of(app: App, divide: Task[..., Order, Order]) -> None:
    handle = divide.enqueue(1, 0)
    run_next(app)
    run_next(app)

    with pytest.raises(JobFailed) as caught:
        handle.result(timeout=100)

    assert caught.value.code == "HF330"
    assert "DivisionByZero" in caught.value.error
    assert (caught.value.id, caught.value.attempts) == (handle.id, 2)


def test_a_cancelled_job_raises_why(divide: Task[..., Order, Order]) -> None:
    handle = divide.enqueue(1, 1)
    assert handle.cancel("she left")
    assert not handle.cancel("again")

    with pytest.raises(JobCancelled, match="was cancelled: she left"):
        handle.result(timeout=100)


def test_a_result_that_nobody_kept_is_told_as_such(app: App, greet: Task[..., str, str]) -> None:
    handle = greet.enqueue("Ada")
    run_next(app)

    with pytest.raises(ResultNotKept, match="keep_result=True"):
        handle.result(timeout=100)
    assert handle.state() is None


def test_a_job_that_does_not_end_in_time_raises_a_timeout(divide: Task[..., Order, Order]) -> None:
    handle = divide.enqueue(1, 1)

    with pytest.raises(TimeoutError) as caught:
        handle.result(timeout=0.05)

    assert isinstance(caught.value, ResultTimeout)
    assert handle.state() == "queued"


def test_a_result_of_another_shape_is_told_as_such(
    app: App, divide: Task[..., Order, Order]
) -> None:
    handle = divide.enqueue(1, 1)
    [lease] = app.client.claim(worker="old")
    app.client.settle([decide(lease, returned="three", keep_result=True)])

    with pytest.raises(ResultUnreadable, match="is not what divide returns"):
        handle.result(timeout=100)


def test_a_result_is_waited_for_although_its_job_is_not_committed_yet(
    app: App, divide: Task[..., Order, Order], connect: Connect
) -> None:
    conn = connect(autocommit=False)
    handle = divide.options(conn=conn).enqueue(1, 1)

    with ThreadPoolExecutor() as threads:
        waiting = threads.submit(handle.result, 30)
        with pytest.raises(TimeoutError):
            handle.result(timeout=0.05)
        conn.commit()
        run_next(app)
        assert waiting.result() == divide(1, 1)


def test_a_handler_that_asks_for_another_attempt_gets_it(app: App) -> None:
    @app.task(keep_result=True)
    def stubborn() -> int:
        attempts.append(1)
        if len(attempts) < 3:
            raise Retry(in_=0)
        return len(attempts)

    attempts: list[int] = []
    handle = stubborn.enqueue()
    for _ in range(3):
        run_next(app)

    assert handle.result(timeout=100) == 3


# Schedules, lifespan, checks: what a worker reads.


def test_a_schedule_is_declared_with_the_settings_of_its_task(app: App) -> None:
    @app.schedule("30 5 * * MON-FRI", tz="Europe/Paris", missed="skip", payload={"day": "today"})
    @app.schedule(every=300, name="often", overlap="skip", payload={"day": "now"})
    @app.task(queue="rates", priority=3, key=lambda day: f"rates-{day}")
    def rates(day: str) -> None:
        pass

    often, mornings = app.schedules

    assert mornings == NewSchedule(
        name="rates",
        kind="rates",
        cron="30 5 * * MON-FRI",
        tz="Europe/Paris",
        missed="skip",
        queue="rates",
        payload={"day": "today"},
        options={"priority": 3, "key": "rates-today"},
    )
    assert (often.name, often.every, often.overlap) == ("often", timedelta(minutes=5), "skip")
    assert often.payload == {"day": "now"}


def test_a_schedule_that_can_never_fire_is_refused(app: App) -> None:
    task = app.task(plain)

    with pytest.raises(InvalidSchedule):
        app.schedule("61 * * * *")(task)
    with pytest.raises(InvalidSchedule):
        app.schedule("0 5 * * *", tz="Europe/Pari")(task)
    with pytest.raises(InvalidSchedule):
        app.schedule()(task)
    with pytest.raises(InvalidArguments, match=r"plain\.schedule: unknown argument `day`"):
        app.schedule("0 5 * * *", payload={"day": 1})(task)
    assert app.schedules == []


@pytest.mark.parametrize(
    ("given", "told"),
    [
        ({"cron": 300}, r"cron 300 is not an expression[\s\S]*every=300"),
        ({"cron": "* * * * *", "tz": None}, "time zone 'None' is unknown"),
        ({"every": 60, "payload": [1]}, r"payload \[1\] of the schedule of 'plain' is not valid"),
        ({"every": 60, "payload": []}, r"payload \[\] of the schedule of 'plain' is not valid"),
        ({"every": 60, "name": 5}, "name 5 of the schedule of 'plain' is not valid"),
        ({"every": 60, "overlap": "no"}, "overlap 'no' is not queue, skip or cancel"),
        ({"every": 60, "missed": False}, "missed False is not skip, once or all"),
    ],
)
def test_a_schedule_that_no_worker_could_store_is_refused_at_declaration(
    app: App, given: Any, told: str
) -> None:
    with pytest.raises(InvalidSchedule, match=told):
        app.schedule(**given)(app.task(plain))
    assert app.schedules == []


def test_two_schedules_need_two_names(app: App) -> None:
    task = app.schedule("0 5 * * *")(app.task(plain))

    with pytest.raises(InvalidTask, match="two schedules have the name 'plain'"):
        app.schedule("0 6 * * *")(task)


def test_a_schedule_under_its_task_is_refused(app: App) -> None:
    with pytest.raises(InvalidTask, match="is scheduled but is not a task"):

        @app.task
        @app.schedule("0 5 * * *")  # type: ignore[type-var]
        def rates() -> None:
            pass


@pytest.mark.parametrize("form", ["async generator", "generator", "async manager", "manager"])
def test_a_lifespan_opens_before_and_closes_after(form: str) -> None:
    app = App(NOWHERE)
    events: list[str] = []

    def opened(given: App) -> Iterator[str]:
        assert given is app
        events.append("open")
        try:
            yield "pool"
        finally:
            events.append("close")

    async def aopened(given: App) -> AsyncIterator[str]:
        for yielded in opened(given):
            yield yielded

    app.lifespan(
        {
            "async generator": aopened,
            "generator": opened,
            "async manager": contextlib.asynccontextmanager(aopened),
            "manager": contextlib.contextmanager(opened),
        }[form]
    )

    async def main() -> None:
        async with app.resources() as resources:
            events.append(resources)

    asyncio.run(main())
    assert events == ["open", "pool", "close"]
    with pytest.raises(Misuse, match="an app has one lifespan"):
        app.lifespan(opened)


def test_without_a_lifespan_there_are_no_resources() -> None:
    async def main() -> None:
        async with App(NOWHERE).resources() as resources:
            assert resources is None

    asyncio.run(main())


def test_a_check_may_be_a_function_or_sql_with_the_names_of_arguments(
    app: App, connect: Connect
) -> None:
    @app.task
    def ship(order: int, day: date = date(2026, 1, 2), lines: list[int] | None = None) -> None:
        pass

    ship.enqueue(7, lines=[1, 2])
    [lease] = app.client.claim(worker="test")
    conn = connect()

    ship.done_when("select %(order)s = 7 and %(day)s::date = '2026-01-02' and %(lines)s @> '[2]'")
    assert ship.check
    assert ship.check(conn, lease) is True
    ship.done_when("select 1 where %(order)s = 8")
    assert ship.check(conn, lease) is False

    @ship.done_when
    def shipped(conn: psycopg.Connection[Any], job: Lease) -> bool:
        return bool(job.payload["order"] == 7)

    assert ship.check(conn, lease) is True
    with pytest.raises(InvalidTask, match="`oder` is not an argument of ship"):
        ship.done_when("select %(oder)s = 7")


# The life of an app.


def client_after(start: threading.Barrier, app: App) -> Any:
    start.wait()
    return app.client


def test_threads_share_one_client() -> None:
    before = sys.getswitchinterval()
    sys.setswitchinterval(1e-6)
    try:
        with ThreadPoolExecutor(4) as threads:
            for _ in range(50):
                app, start = App(NOWHERE), threading.Barrier(4)
                clients = [threads.submit(client_after, start, app) for _ in range(4)]
                assert len({client.result() for client in clients}) == 1
    finally:
        sys.setswitchinterval(before)


def test_every_event_loop_has_a_client_that_goes_when_the_loop_is_gone(
    database: str, connect: Connect
) -> None:
    app = App(database, name="loops")

    async def main() -> Any:
        await app.task(plain).aenqueue()
        return app.aclient

    clients = [asyncio.run(main()) for _ in range(3)]
    assert len(set(clients)) == 3
    app.close()

    query = "select count(*) from pg_stat_activity where application_name = 'holdfast loops'"
    while connect().execute(query).fetchone() != (0,):
        pass


def test_an_async_client_needs_a_running_loop(app: App) -> None:
    with pytest.raises(Misuse, match="no event loop is running"):
        _ = app.aclient


def test_an_app_that_was_closed_opens_again(app: App, greet: Task[..., str, str]) -> None:
    greet.enqueue("Ada")
    app.close()

    assert greet.enqueue("Grace").state() == "queued"


FORKS = textwrap.dedent(
    """
    import asyncio, os, sys
    from holdfast import App

    app = App(sys.argv[1])

    @app.task
    def greet(name: str) -> None: ...

    greet.enqueue("before")
    children = []
    for number in range(4):
        if not (pid := os.fork()):
            for _ in range(20):
                greet.enqueue(f"child {number}")
            asyncio.run(greet.aenqueue(f"async child {number}"))
            os._exit(0)
        children.append(pid)
    for _ in range(20):
        greet.enqueue("parent")
    for pid in children:
        assert os.waitpid(pid, 0)[1] == 0
    greet.enqueue("after")
    app.close()
    """
)


def test_a_forked_child_has_connections_of_its_own(database: str, connect: Connect) -> None:
    run_script(FORKS, database)

    jobs = connect().execute("select count(*), count(distinct id) from holdfast.job").fetchone()
    assert jobs == (1 + 4 * 21 + 20 + 1, 1 + 4 * 21 + 20 + 1)


EMBEDDED = textwrap.dedent(
    """
    from holdfast import App

    with App() as app:
        @app.task
        def greet(name: str) -> None: ...

        print(greet.enqueue("Ada").state(), app.database.origin)
    """
)


def test_without_an_address_the_embedded_database_is_used_migrated_and_named(
    tmp_path: Path,
) -> None:
    environment = {key: value for key, value in os.environ.items() if key != "HOLDFAST_URL"}

    done = run_script(EMBEDDED, cwd=tmp_path, env=environment)

    assert done.stdout == "queued embedded\n"
    assert done.stderr.startswith("using PostgreSQL ")
    assert done.stderr.endswith("HOLDFAST_URL names another\n")


def test_holdfast_is_imported_in_a_moment_and_brings_no_driver() -> None:
    script = (
        "import sys, time; started = time.process_time(); import holdfast; "
        "print(time.process_time() - started); "
        "print([m for m in ('psycopg', 'click', 'asyncio') if m in sys.modules]); "
        "print(callable(holdfast.current), holdfast.App, holdfast.current.__name__)"
    )

    runs = [run_script(script).stdout.splitlines() for _ in range(3)]

    # The quickest: a neighbour can take time from a processor, and never gives it any.
    assert min(float(seconds) for seconds, *_ in runs) <= 0.2
    _, heavy, last = runs[0]
    assert heavy == "[]"
    assert last == "True <class 'holdfast.app.App'> current"


def run_script(script: str, *args: str, **options: Any) -> subprocess.CompletedProcess[str]:
    done = subprocess.run(
        [sys.executable, "-W", "error", "-c", script, *args],
        capture_output=True,
        text=True,
        timeout=200,
        **options,
    )
    assert done.returncode == 0, done.stderr
    return done


def test_every_error_of_results_is_one_of_holdfast() -> None:
    for kind in (JobFailed, JobCancelled, ResultNotKept, ResultTimeout, ResultUnreadable):
        assert issubclass(kind, HoldfastError)
