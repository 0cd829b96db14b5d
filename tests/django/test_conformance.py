"""What Django asks of every backend of its Tasks, behaviour by behaviour: see conformance.md.

Written from Django's documentation and from what its own tests ask of its backends.
"""

import logging
import re
from dataclasses import FrozenInstanceError
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
from django.core.checks import run_checks
from django.core.exceptions import ImproperlyConfigured
from django.db import transaction
from django.test import override_settings
from django.utils.module_loading import import_string

from holdfast.django import HoldfastBackend, app_of
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
from tests.django.conftest import Drain, run_async
from tests.django.project import BACKEND

LIST = Path(__file__).with_name("conformance.md")
SIGNALS = {"enqueued": task_enqueued, "started": task_started, "finished": task_finished}


def test_every_behaviour_of_the_list_has_its_test() -> None:
    proofs = re.findall(r"`(test_\w+)::(test_\w+)`", LIST.read_text("utf-8"))
    missing = [
        (file, name)
        for file, name in proofs
        if f"def {name}(" not in LIST.with_name(f"{file}.py").read_text("utf-8")
    ]

    assert len(proofs) > 40
    assert missing == []


def test_a_new_result_has_nothing_of_a_run() -> None:
    from tests.django.shop.tasks import add

    result = add.enqueue(1, b=2)

    assert result.id
    assert result.enqueued_at is not None
    assert (result.started_at, result.last_attempted_at, result.finished_at) == (None, None, None)
    assert (result.errors, result.worker_ids, result.attempts) == ([], [], 0)
    assert (result.is_finished, result.backend, result.task) == (False, "default", add)
    assert (result.args, result.kwargs) == ([1], {"b": 2})


def test_a_result_cannot_be_changed() -> None:
    from tests.django.shop.tasks import add

    with pytest.raises(FrozenInstanceError):
        add.enqueue(1).status = "FAILED"


def test_a_result_that_is_looked_up_equals_the_one_of_enqueue() -> None:
    from tests.django.shop.tasks import add

    result = add.using(priority=5).enqueue(1, b=2)
    found = add.get_result(result.id)

    assert found == result


def test_refresh_changes_the_result_in_place(drain: Drain) -> None:
    from tests.django.shop.tasks import add

    result, again = add.enqueue(1, 2), add.enqueue(3, 4)
    drain()
    assert result.status == "READY"

    result.refresh()
    run_async(again.arefresh())
    assert (result.return_value, again.return_value) == (3, 7)
    assert result.worker_ids


@pytest.mark.parametrize("how", ["sync", "async"])
def test_a_result_of_another_task_or_none_is_refused(how: str) -> None:
    from tests.django.shop.tasks import add, store

    result = add.enqueue(1)

    def get(one: Any, id: str) -> Any:
        return one.get_result(id) if how == "sync" else run_async(one.aget_result(id))

    with pytest.raises(TaskResultMismatch):
        get(store, result.id)
    for unknown in ("123", "", "01a1ed9d-b8ad-801b-8b98-917cb8b70f05"):
        with pytest.raises(TaskResultDoesNotExist):
            get(add, unknown)


@pytest.mark.parametrize(
    ("given", "stored"),
    [
        ((1, 2), [1, 2]),
        (b"abc", "abc"),
        ({"a": (1,)}, {"a": [1]}),
        ([None, True, 1.5, "é\U0001f600"], [None, True, 1.5, "é\U0001f600"]),
        (2**70, 2**70),
    ],
)
def test_arguments_are_those_that_json_has(drain: Drain, given: Any, stored: Any) -> None:
    from tests.django.shop.odd import echo

    result = echo.enqueue(given, key=given)
    drain()

    found = echo.get_result(result.id)
    assert (result.args, result.kwargs) == (found.args, found.kwargs) == ([stored], {"key": stored})
    assert found.return_value == [[stored], {"key": stored}]


@pytest.mark.parametrize("how", ["enqueue", "aenqueue"])
@pytest.mark.parametrize(
    "given",
    [object(), {1, 2}, datetime(2026, 1, 1, tzinfo=UTC), b"\xff", float("nan"), "\0", "\ud800"],
    ids=["object", "set", "datetime", "not text", "nan", "nul", "half a character"],
)
def test_arguments_that_json_cannot_hold_are_refused(how: str, given: Any) -> None:
    from tests.django.shop.odd import echo

    for args, kwargs in (([given], {}), ([], {"key": given}), ([[{"a": given}]], {})):
        # An error of the caller, and of Python: Django's own backends raise one of these.
        with pytest.raises((TypeError, ValueError)):
            stored(how, echo, *args, **kwargs)
    assert app_of().client.jobs.list() == []


@pytest.mark.parametrize(
    ("what", "value"),
    [
        ("tuple", [1, [2]]),
        ("bytes", "abc"),
        ("nothing", None),
        ("nested", {"a": [{"b": [1]}]}),
    ],
)
def test_return_values_are_those_that_json_has(drain: Drain, what: str, value: Any) -> None:
    from tests.django.shop.odd import returns

    result = returns.enqueue(what)
    drain()

    result.refresh()
    assert (result.status, result.return_value) == ("SUCCESSFUL", value)


@pytest.mark.parametrize("what", ["set", "nan", "nul", "bytes", "half"])
def test_a_return_value_that_json_cannot_hold_fails_the_task(drain: Drain, what: str) -> None:
    from tests.django.shop.odd import returns_odd

    result = returns_odd.enqueue(what)
    drain()

    result.refresh()
    assert (result.status, len(result.errors)) == ("FAILED", 1)
    assert issubclass(result.errors[0].exception_class, TypeError | ValueError)


def test_an_error_of_an_error_is_told_whole(drain: Drain) -> None:
    from tests.django.shop.odd import raises_complex

    result = raises_complex.enqueue()
    drain()

    result.refresh()
    [error] = result.errors
    assert error.exception_class is ValueError
    assert error.traceback.endswith("ValueError: This task failed\n")
    assert 'ValueError(ValueError("This task failed"))' in error.traceback
    assert result.enqueued_at <= result.started_at <= result.finished_at
    with pytest.raises(ValueError, match="Task failed"):
        _ = result.return_value


@pytest.mark.parametrize("name", ["exits", "aexits"])
def test_a_task_that_exits_fails_and_the_worker_goes_on(drain: Drain, name: str) -> None:
    from tests.django.shop import odd
    from tests.django.shop.tasks import add

    result = getattr(odd, name).enqueue()
    other = add.enqueue(1, 1)
    drain(queues={"default": 1})

    result.refresh()
    other.refresh()
    assert (result.status, other.return_value) == ("FAILED", 2)
    assert result.errors[0].exception_class is SystemExit


@pytest.mark.parametrize("name", ["raises_local", "raises_unspeakable"])
def test_an_exception_that_cannot_be_imported_is_named_all_the_same(
    drain: Drain, name: str
) -> None:
    from tests.django.shop import odd

    result = getattr(odd, name).enqueue()
    drain()

    result.refresh()
    [error] = result.errors
    assert result.status == "FAILED"
    assert error.exception_class_path.startswith("tests.django.shop.odd.")
    assert "Error" in error.traceback
    with pytest.raises(ImportError):
        _ = error.exception_class


def test_signals_have_the_backend_as_sender_and_the_result_as_it_is_then(drain: Drain) -> None:
    from tests.django.shop.tasks import add, fail

    told: list[Any] = []

    def receive(sender: Any, task_result: Any, signal: Any, **_: Any) -> None:
        name = next(name for name, one in SIGNALS.items() if one is signal)
        known = (task_result.status, bool(task_result.worker_ids), task_result.finished_at is None)
        told.append((name, sender, *known, len(task_result.errors)))

    for signal in SIGNALS.values():
        signal.connect(receive)
    try:
        add.enqueue(1)
        fail.enqueue()
        drain(queues={"default": 1})
    finally:
        for signal in SIGNALS.values():
            signal.disconnect(receive)

    backend = HoldfastBackend
    assert told[:2] == [("enqueued", backend, "READY", False, True, 0)] * 2
    assert told[2:] == [
        ("started", backend, "RUNNING", True, True, 0),
        ("finished", backend, "SUCCESSFUL", True, False, 0),
        ("started", backend, "RUNNING", True, True, 0),
        ("finished", backend, "FAILED", True, False, 1),
    ]


def test_django_logs_what_happens_to_a_task(drain: Drain, caplog: pytest.LogCaptureFixture) -> None:
    from tests.django.shop.tasks import add, fail

    logger = type(add).__mro__[1].__module__.partition(".base")[0]
    with caplog.at_level(logging.DEBUG, logger=logger):
        done, failed = add.enqueue(1), fail.enqueue()
        drain(queues={"default": 1})

    said = {
        (record.levelname, record.getMessage()): record.exc_info
        for record in caplog.records
        if record.name.startswith(logger)
    }
    messages = [message for _, message in said]
    for one in (done, failed):
        assert any(one.id in message and "enqueued" in message for message in messages)
        assert any(one.id in message and "RUNNING" in message for message in messages)
    assert any(done.id in message and "SUCCESSFUL" in message for message in messages)
    [trace] = [trace for (level, _), trace in said.items() if level == "ERROR"]
    assert trace
    assert "the card was refused" in str(trace[1])


def test_the_context_is_the_result_as_it_is_while_it_runs(drain: Drain) -> None:
    from tests.django.shop.odd import describes_itself

    result = describes_itself.enqueue(5)
    drain(queues={"mail": 1})

    result.refresh()
    assert result.return_value == ["RUNNING", [5], 7, "mail", 1, False, True]


def test_using_makes_another_task_and_leaves_the_first() -> None:
    from tests.django.shop.tasks import add

    after = datetime.now(UTC) + timedelta(hours=1)
    changed = add.using(priority=10).using(queue_name="mail").using(run_after=after)

    assert changed is not add
    assert (changed.priority, changed.queue_name, changed.run_after) == (10, "mail", after)
    assert (add.priority, add.queue_name, add.run_after) == (0, "default", None)
    assert add.using() == add


@pytest.mark.parametrize("priority", [-100, -1, 0, 1, 100, 3.0])
def test_priorities_between_the_bounds_are_taken_and_kept(priority: Any) -> None:
    from tests.django.shop.tasks import add

    result = add.using(priority=priority).enqueue(1)

    assert add.get_result(result.id).task.priority == priority


def test_an_unknown_backend_is_refused_by_name() -> None:
    from tests.django.shop.tasks import add

    with pytest.raises(ImproperlyConfigured, match="unknown"):
        add.using(backend="unknown")


def test_a_task_may_be_used_on_another_backend(drain: Drain) -> None:
    from tests.django.shop.tasks import add

    own = add.get_backend().__class__.__mro__[1].__module__.rpartition(".")[0]
    tasks = {
        "default": {"BACKEND": BACKEND, "QUEUES": []},
        "second": {"BACKEND": BACKEND, "QUEUES": ["other"], "OPTIONS": {"max_attempts": 2}},
        "immediate": {"BACKEND": f"{own}.immediate.ImmediateBackend"},
    }
    with override_settings(TASKS=tasks):
        result = add.using(backend="second", queue_name="other").enqueue(1)
        assert result.backend == "second"
        found = add.using(backend="second", queue_name="other").get_result(result.id)
        assert (found.backend, found.task.backend) == ("second", "second")
        assert add.using(backend="immediate").enqueue(1, 2).return_value == 3
    usual = add.enqueue(2, 2)
    drain(queues={"default": 1})

    assert add.get_result(usual.id).return_value == 4  # by a worker that has one backend only


@pytest.mark.parametrize("how", ["enqueue", "aenqueue"])
def test_a_task_is_validated_again_when_it_is_enqueued(how: str) -> None:
    from tests.django.shop.tasks import add

    with (
        override_settings(TASKS={"default": {"BACKEND": BACKEND, "QUEUES": ["mail"]}}),
        pytest.raises(InvalidTask, match="Queue 'default' is not valid"),
    ):
        stored(how, add, 1)

    assert app_of().client.jobs.list() == []


@pytest.mark.parametrize("function", [any, "method"])
def test_what_no_worker_could_import_is_not_a_task(function: Any) -> None:
    class Shop:
        def method(self) -> None: ...

    with pytest.raises(InvalidTask, match="module level"):
        task()(Shop().method if function == "method" else function)


def test_a_task_has_a_name_and_a_path_and_can_be_called() -> None:
    from tests.django.shop.tasks import aadd, add

    assert (add.name, add.module_path) == ("add", "tests.django.shop.tasks.add")
    assert import_string(add.module_path) is add
    assert (add.call(1, 2), aadd.call(1, 2)) == (3, 3)
    assert (run_async(add.acall(1, 2)), run_async(aadd.acall(1, 2))) == (3, 3)


def test_enqueue_does_not_wait_for_the_commit_and_signals_at_once() -> None:
    from tests.django.shop.tasks import add

    told: list[str] = []

    def receive(task_result: Any, **_: Any) -> None:
        told.append(task_result.id)

    task_enqueued.connect(receive)
    try:
        with transaction.atomic():
            result = add.enqueue(1)
            assert told == [result.id]
            assert add.get_result(result.id).status == "READY"
    finally:
        task_enqueued.disconnect(receive)


def test_a_task_that_should_have_run_already_runs_now(drain: Drain) -> None:
    from tests.django.shop.tasks import add

    result = add.using(run_after=datetime.now(UTC) - timedelta(days=1)).enqueue(1, 1)
    drain()

    result.refresh()
    assert result.return_value == 2


def test_checks_of_django_ask_the_backend() -> None:
    assert [
        one for one in run_checks() if one.id and one.id.startswith(("tasks", "holdfast"))
    ] == []
    assert list(default_task_backend.check()) == []
    wrong = {"default": {"BACKEND": BACKEND, "OPTIONS": {"database": "nowhere"}}}
    with override_settings(TASKS=wrong):
        assert "holdfast.E002" in [one.id for one in run_checks()]


def stored(how: str, task: Any, *args: Any, **kwargs: Any) -> Any:
    """Enqueue a call, in one of two ways."""
    if how == "enqueue":
        return task.enqueue(*args, **kwargs)
    return run_async(task.aenqueue(*args, **kwargs))
