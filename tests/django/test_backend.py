"""Django's Tasks on Holdfast: what is enqueued, what a worker makes of it, what is known of it."""

from collections.abc import Callable, Iterator
from contextlib import suppress
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from asgiref.sync import sync_to_async
from django.core.checks import run_checks
from django.db import connection, transaction
from django.test import override_settings

from holdfast import Client, NewJob
from holdfast.client import client_on
from holdfast.django import app_of, schedule
from holdfast.django.database import DjangoApp
from holdfast.django.priorities import priority_of_job
from holdfast.django.tasks_api import (
    InvalidTask,
    TaskResultDoesNotExist,
    TaskResultMismatch,
    default_task_backend,
    task,
    task_enqueued,
    task_finished,
    task_started,
)
from tests.conftest import Clock
from tests.django.conftest import Drain, run_async
from tests.django.project import BACKEND

Told = list[tuple[str, str]]


@pytest.fixture
def told() -> Iterator[Told]:
    """What the signals tell: the name, and the status of the result."""
    told: Told = []
    receivers: list[tuple[Any, Callable[..., None]]] = []
    signals = {"enqueued": task_enqueued, "started": task_started, "finished": task_finished}
    for name, signal in signals.items():

        def receive(sender: type, task_result: Any, name: str = name, **_: Any) -> None:
            told.append((name, str(task_result.status)))

        signal.connect(receive)
        receivers.append((signal, receive))
    yield told
    for signal, receive in receivers:
        signal.disconnect(receive)


def test_a_call_is_run_by_a_worker_and_its_result_is_known(drain: Drain, told: Told) -> None:
    from tests.django.shop.tasks import add

    result = add.enqueue(1, b=2)
    assert (result.status, result.attempts, result.is_finished) == ("READY", 0, False)
    with pytest.raises(ValueError, match="not finished"):
        _ = result.return_value
    drain()

    result.refresh()
    assert (result.status, result.return_value, result.attempts) == ("SUCCESSFUL", 3, 1)
    assert (result.args, result.kwargs, result.backend) == ([1], {"b": 2}, "default")
    assert result.enqueued_at <= result.started_at <= result.finished_at
    assert result.last_attempted_at == result.started_at
    assert told == [("enqueued", "READY"), ("started", "RUNNING"), ("finished", "SUCCESSFUL")]


def test_coroutines_are_tasks_and_may_use_the_orm(drain: Drain, told: Told) -> None:
    from tests.django.shop.tasks import aadd, astore

    sum, stored = aadd.enqueue(1, 2), astore.enqueue(7)
    drain()

    assert aadd.get_result(sum.id).return_value == 3
    assert astore.get_result(stored.id).return_value == 1
    assert told.count(("finished", "SUCCESSFUL")) == 2


def test_coroutines_can_enqueue_and_look_at_results(drain: Drain) -> None:
    from tests.django.shop.tasks import add

    async def enqueue() -> Any:
        return await add.aenqueue(2, 3)

    async def look(result: Any) -> Any:
        await result.arefresh()
        return (await add.aget_result(result.id)).return_value, result.return_value

    result = run_async(enqueue())
    drain()

    assert run_async(look(result)) == (5, 5)


def test_a_job_is_stored_if_and_only_if_atomic_commits(database: str) -> None:
    from tests.django.shop.models import Order
    from tests.django.shop.tasks import add

    with Client(database) as client:
        with transaction.atomic():
            Order.objects.create(number=1)
            kept = add.enqueue(1)
            assert client.jobs.list() == []
            assert add.get_result(kept.id).status == "READY"  # as the transaction sees it
        with suppress(RuntimeError), transaction.atomic():
            Order.objects.create(number=2)
            lost = add.enqueue(2)
            raise RuntimeError("the card was refused")
        with transaction.atomic():
            with suppress(RuntimeError), transaction.atomic():
                add.enqueue(3)
                raise RuntimeError("only the savepoint")
            inner = add.enqueue(4)
        outside = add.enqueue(5)

        stored = {str(job.id) for job in client.jobs.list()}
    assert stored == {kept.id, inner.id, outside.id}
    assert list(Order.objects.values_list("number", flat=True)) == [1]
    with pytest.raises(TaskResultDoesNotExist):
        add.get_result(lost.id)


def test_a_job_joins_the_transaction_of_the_thread_that_async_code_uses() -> None:
    from tests.django.shop.tasks import add

    async def order() -> list[str]:
        @sync_to_async
        def begin() -> Any:
            block = transaction.atomic()
            block.__enter__()
            return block

        block = await begin()
        result = await add.aenqueue(1)
        await sync_to_async(transaction.set_rollback)(True)
        await sync_to_async(block.__exit__)(None, None, None)
        gone: str = result.id
        return [gone, (await add.aenqueue(2)).id]

    gone, stored = run_async(order())

    assert [str(job.id) for job in app_of().client.jobs.list()] == [stored]
    assert gone != stored


def test_the_context_has_the_attempt_and_the_result(drain: Drain) -> None:
    from tests.django.shop.tasks import attempt

    result = attempt.enqueue(4, 5)
    drain()

    assert attempt.get_result(result.id).return_value == [1, result.id, 4, 5]


def test_a_failed_task_has_its_error_and_no_value(drain: Drain, told: Told) -> None:
    from tests.django.shop.tasks import fail

    result = fail.enqueue()
    drain()

    result.refresh()
    assert (result.status, result.is_finished, result.attempts) == ("FAILED", True, 1)
    [error] = result.errors
    assert error.exception_class is ValueError
    assert "the card was refused" in error.traceback
    assert "in fail" in error.traceback
    with pytest.raises(ValueError, match="failed"):
        _ = result.return_value
    assert told[1:] == [("started", "RUNNING"), ("finished", "FAILED")]


def test_a_task_is_tried_again_and_finishes_once(drain: Drain, told: Told) -> None:
    from tests.django.shop.tasks import fail_twice

    result = fail_twice.enqueue()
    drain()

    result.refresh()
    assert (result.status, result.return_value, result.attempts) == ("SUCCESSFUL", [3, 3], 3)
    assert [error.exception_class for error in result.errors] == [KeyError, KeyError]
    assert len(set(result.worker_ids)) == 1
    assert result.started_at < result.last_attempted_at
    assert [name for name, _ in told] == ["enqueued", "started", "started", "started", "finished"]


def test_between_attempts_a_task_is_ready_and_has_its_errors(drain: Drain) -> None:
    from tests.django.shop.tasks import retry_later

    result = retry_later.enqueue()
    drain()

    result.refresh()
    assert (result.status, result.attempts, len(result.errors)) == ("READY", 1, 1)
    assert result.errors[0].exception_class_path == "tests.django.shop.tasks.BouncedError"


def test_what_json_cannot_hold_is_refused_when_enqueued_and_fails_when_returned(
    drain: Drain,
) -> None:
    from tests.django.shop.tasks import add, unfit

    with pytest.raises(TypeError, match="Unsupported type"):
        add.enqueue(object())
    result = unfit.enqueue()
    drain()

    result.refresh()
    assert (result.status, result.attempts) == ("FAILED", 1)
    assert "JSON cannot hold" in result.errors[0].traceback


def test_a_cancelled_job_is_a_failed_task() -> None:
    from tests.django.shop.tasks import add

    result = add.enqueue(1)
    client_on(connection).jobs.cancel([result.id], reason="ordered twice")

    result.refresh()
    assert result.status == "FAILED"
    assert "ordered twice" in result.errors[0].traceback
    assert result.errors[0].exception_class.__name__ == "JobCancelled"


def test_a_task_does_not_run_before_run_after(drain: Drain, clock: Clock) -> None:
    from tests.django.shop.tasks import add

    after = datetime.now(UTC) + timedelta(hours=1)
    result = add.using(run_after=after).enqueue(1)
    drain()
    result.refresh()
    assert result.status == "READY"

    clock.advance(hours=2)
    drain()
    found = add.get_result(result.id)
    assert (found.status, found.task.run_after) == ("SUCCESSFUL", after)


def test_without_time_zones_run_after_is_local_time() -> None:
    from tests.django.shop.tasks import add

    with override_settings(USE_TZ=False, TIME_ZONE="Europe/Paris"):
        result = add.using(run_after=datetime(2040, 1, 1, 12)).enqueue(1)

    [job] = app_of().client.jobs.list()
    assert job.run_at == datetime(2040, 1, 1, 11, tzinfo=UTC)
    assert result.task.run_after == datetime(2040, 1, 1, 12)


def test_higher_priorities_run_first(drain: Drain) -> None:
    from tests.django.shop.models import Order
    from tests.django.shop.tasks import store

    for priority in (-100, 0, 100, -1, 1, 10, -11, 25, 50, 75):
        store.using(priority=priority).enqueue(priority)
    drain(queues={"default": 1})

    ran = list(Order.objects.order_by("id").values_list("number", flat=True))
    assert ran == [100, 75, 50, 25, 10, 1, 0, -1, -11, -100]


def test_every_priority_of_django_is_one_of_holdfast_in_the_same_order() -> None:
    ranks = [priority_of_job(priority) for priority in range(-100, 101)]

    assert ranks == sorted(ranks)
    assert set(ranks) == set(range(10))
    assert [priority_of_job(usual) for usual in (-1, 0, 1, 10)] == [2, 3, 4, 5]


def test_a_result_has_the_options_of_its_call(drain: Drain) -> None:
    from tests.django.shop.tasks import add

    result = add.using(priority=-7, queue_name="mail").enqueue(1)

    found = add.get_result(result.id).task
    assert (found.priority, found.queue_name, found.backend) == (-7, "mail", "default")
    drain(queues={"default": 1})
    assert add.get_result(result.id).status == "READY"
    drain(queues={"mail": 1})
    assert add.get_result(result.id).status == "SUCCESSFUL"


def test_a_running_task_has_its_worker_and_its_start(drain: Drain) -> None:
    from tests.django.shop.tasks import look_at_itself

    result = look_at_itself.enqueue()
    worker = drain()

    status, started, workers = look_at_itself.get_result(result.id).return_value
    assert status == "RUNNING"
    assert started is not None
    assert workers == [worker.id]


def test_results_of_other_tasks_and_of_no_task_are_refused() -> None:
    from tests.django.shop.tasks import add, fail

    result = add.enqueue(1)
    [plain] = client_on(connection).enqueue_many([_plain_job()])

    with pytest.raises(TaskResultMismatch):
        fail.get_result(result.id)
    for unknown in ("nonsense", "00000000-0000-0000-0000-000000000000", str(plain.id)):
        with pytest.raises(TaskResultDoesNotExist):
            default_task_backend.get_result(unknown)


def test_a_job_that_somebody_else_wrote_has_a_result_or_none_and_no_error_of_ours() -> None:
    call = {"args": [1], "kwargs": {}}
    path = "tests.django.shop.tasks"

    def stored(kind: str, payload: object, **headers: object) -> str:
        return str(client_on(connection).enqueue(kind, payload, headers=headers).id)

    unknown = [
        stored("nowhere.to.be.found", call),
        stored("os.getcwd", call),
        stored(f"{path}.plain", call),
        stored(f"{path}.add", {"args": 1, "kwargs": []}),
    ]
    for id in unknown:
        with pytest.raises(TaskResultDoesNotExist):
            default_task_backend.get_result(id)
    for said in (5, {"run_after": "soon", "priority": "high", "backend": ["other"]}):
        found = default_task_backend.get_result(stored(f"{path}.add", call, django=said))
        assert (found.args, found.task.run_after, found.task.priority) == ([1], None, 0)
        assert found.backend == "default"


def test_a_job_runs_and_has_a_result_although_its_queue_is_not_allowed_any_more(
    drain: Drain,
) -> None:
    from tests.django.shop.tasks import attempt

    result = attempt.using(queue_name="mail").enqueue(1)
    with override_settings(TASKS={"default": {"BACKEND": BACKEND, "QUEUES": ["default"]}}):
        assert attempt.get_result(result.id).task.queue_name == "mail"
        drain(queues={"mail": 1})
        assert attempt.get_result(result.id).status == "SUCCESSFUL"


def test_a_job_under_a_path_that_the_task_had_before_still_runs(drain: Drain) -> None:
    from tests.django.shop.tasks import invoice

    old = NewJob(kind="shop.old.invoice", payload={"args": [1], "kwargs": {}})
    [enqueued] = client_on(connection).enqueue_many([old])
    drain()

    assert invoice.get_result(str(enqueued.id)).status == "SUCCESSFUL"


def test_wrong_arguments_are_refused_when_enqueued() -> None:
    from tests.django.shop.tasks import add, attempt

    with pytest.raises(TypeError, match=r"add\.enqueue: missing a required argument: 'a'\."):
        add.enqueue()
    with pytest.raises(TypeError, match=r"'delay'.*add\.using\(…\)\.enqueue\(…\)"):
        add.enqueue(1, delay=5)
    with pytest.raises(AttributeError, match=r"add\.enqueue\(…\) stores a job"):
        add.delay(1)
    attempt.enqueue(1, 2)  # the context is not theirs to give

    assert app_of().client.jobs.count().jobs == 1


def test_a_key_keeps_a_second_call_out(told: Told) -> None:
    from tests.django.shop.tasks import add

    first = add.using(key="order-1").enqueue(1)
    second = add.using(key="order-1").enqueue(1)

    assert first.id == second.id
    assert len(told) == 1


def test_options_are_chosen_by_the_arguments_of_a_call() -> None:
    from tests.django.shop.tasks import invoice

    invoice.enqueue(42)

    [job] = app_of().client.jobs.list()
    assert (job.key, job.lane, job.max_attempts) == ("invoice-42", "invoices", 7)


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"queue_name": "nowhere"}, "not valid for backend"),
        ({"priority": 101}, "whole number between -100 and 100"),
        ({"priority": 1.5}, "whole number between -100 and 100"),
        ({"run_after": datetime(2040, 1, 1)}, "aware datetime"),
        ({"timeout": 5}, "the same for all calls"),
        ({"max_attempts": 0}, "max_attempts 0 is not a whole number from 1 to 32767"),
        ({"countdown": 5}, r"unknown option `countdown` \(did you mean `run_after`\?\)"),
        ({"delay": 5}, r"did you mean `run_after`\?"),
        ({"queue": "mail"}, r"did you mean `queue_name`\?"),
    ],
)
def test_wrong_options_are_refused_where_they_are_given(options: Any, said: str) -> None:
    from tests.django.shop.tasks import add

    with (
        override_settings(TASKS={"default": {"BACKEND": BACKEND, "QUEUES": ["default", "mail"]}}),
        pytest.raises(InvalidTask, match=said),
    ):
        add.using(**options)


def test_wrong_declarations_are_refused_where_they_are_made() -> None:
    from tests.django.shop.tasks import plain

    with pytest.raises(InvalidTask, match="module level"):

        @task
        def inner() -> None: ...

    with pytest.raises(InvalidTask, match="first argument of 'context'"):
        task(takes_context=True)(plain)
    with pytest.raises(InvalidTask, match="'soon' is not a retry policy"):
        task(retry="soon")(plain)
    with pytest.raises(InvalidTask, match="lease -1 is not a number of seconds above 0"):
        task(lease=-1)(plain)
    with pytest.raises(InvalidTask, match=r"`max_retries` \(did you mean `max_attempts`\?\)"):
        task(max_retries=3)(plain)
    with pytest.raises(InvalidTask, match=r"`queue` \(did you mean `queue_name`\?\)"):
        task(queue="mail")(plain)
    with pytest.raises(InvalidTask, match=r"`rate_limit`. Limit its queue:  app_of\(\).queue"):
        task(rate_limit="10/m")(plain)


def test_a_schedule_without_the_arguments_of_its_task_is_refused() -> None:
    from tests.django.shop.tasks import add

    with pytest.raises(TypeError, match=r"add\.schedule: missing a required argument: 'a'"):
        schedule("0 7 * * *", name="another")(add)


def test_a_receiver_that_fails_does_not_fail_the_task(drain: Drain) -> None:
    from tests.django.shop.tasks import add

    def broken(**_: Any) -> None:
        raise RuntimeError("the receiver is broken")

    task_started.connect(broken)
    task_finished.connect(broken)
    try:
        result = add.enqueue(1, 1)
        drain()
    finally:
        task_started.disconnect(broken)
        task_finished.disconnect(broken)

    assert add.get_result(result.id).return_value == 2


def test_the_backend_says_what_it_supports() -> None:
    backend = default_task_backend

    assert backend.supports_defer
    assert backend.supports_async_task
    assert backend.supports_get_result
    assert backend.supports_priority


def test_checks_name_what_is_wrong_with_the_settings() -> None:
    assert [one for one in run_checks() if "holdfast" in (one.id or "")] == []
    wrong = {"BACKEND": BACKEND, "OPTIONS": {"database": "elsewhere", "retries": 3}}
    with override_settings(
        TASKS={"default": wrong}, INSTALLED_APPS=["django.contrib.contenttypes"]
    ):
        said = [one.id for one in default_task_backend.check()]

    assert said == ["holdfast.E001", "holdfast.E002", "holdfast.E004"]


def test_a_missing_schema_is_answered_with_what_to_type(empty_database: str) -> None:
    from holdfast import NotMigrated
    from tests.django.shop.tasks import add

    with connection.cursor() as cursor:
        cursor.execute("drop schema holdfast cascade")

    with pytest.raises(NotMigrated, match=r"python manage\.py migrate"):
        add.enqueue(1)


def _plain_job() -> NewJob:
    return NewJob(kind="plain", payload={"a": 1})


def test_middleware_of_the_settings_may_be_named_by_what_makes_it() -> None:
    usual = DjangoApp("default")
    names = ["holdfast.integrations.sentry", "holdfast.integrations.structlog"]
    with override_settings(HOLDFAST={"MIDDLEWARE": names}):
        app = DjangoApp("default")

    assert len(app.around_run) == len(usual.around_run) + 2
