# ruff: noqa: N818 - errors of a handler are named as people name them
"""What becomes of a job is decided by a pure function: every row of its table is a test."""

import asyncio
import pickle
import random
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any
from uuid import UUID

import pytest

from holdfast import Cancel, Lease, Release, Retry, outcome, records
from holdfast.errors import InvalidPayload, InvalidResult, LeaseLost
from holdfast.outcome import NEVER, Exponential, Fixed, Policy, RetryBudget, decide

NOON = datetime(2026, 1, 1, 12, tzinfo=UTC)
TENTH = timedelta(seconds=0.1)


class Bounced(Exception):
    pass


class HardBounced(Bounced):
    pass


def lease(attempt: int = 1, max_attempts: int = 3) -> Lease:
    return Lease(
        **{
            **dict.fromkeys(Lease.__struct_fields__),
            "id": UUID(int=1),
            "kind": "send",
            "payload_json": "{}",
            "attempt": attempt,
            "max_attempts": max_attempts,
            "lease_until": NOON,
            "token": UUID(int=2),
        }  # type: ignore[arg-type]
    )


def raised_by(fail: Callable[[], Any]) -> BaseException:
    try:
        fail()
    except BaseException as error:
        return error
    raise AssertionError("nothing was raised")


def nack(error: BaseException, *, attempt: int = 1, retry: Policy = None) -> records.Failed:
    settlement = decide(lease(attempt), raised=error, retry=retry, rng=random.Random(0))
    assert isinstance(settlement, records.Failed)
    return settlement


@pytest.mark.parametrize(
    ("arguments", "settlement"),
    [
        ({}, records.Done(lease())),
        ({"returned": 42}, records.Done(lease())),
        ({"returned": 42, "keep_result": True}, records.Done(lease(), 42, keep=True)),
        ({"returned": None, "keep_result": True}, records.Done(lease(), None, keep=True)),
        ({"raised": Release()}, records.Released(lease())),
        ({"raised": Release(in_=60)}, records.Released(lease(), 60)),
        ({"raised": Release(TENTH)}, records.Released(lease(), TENTH)),
        ({"raised": Cancel("user left")}, records.Cancelled(lease(), "user left")),
        ({"raised": Cancel()}, records.Cancelled(lease(), "the handler cancelled its job")),
    ],
)
def test_what_a_handler_gives_says_how_its_lease_ends(
    arguments: dict[str, Any], settlement: records.Settlement
) -> None:
    assert decide(lease(), **arguments) == settlement


@pytest.mark.parametrize(
    ("error", "delay", "final", "kind", "message"),
    [
        (ValueError("no"), None, False, "ValueError", "no"),
        (Bounced("no"), None, False, f"{__name__}.Bounced", "no"),
        (SystemExit(3), None, False, "SystemExit", "3"),
        (Retry(in_=30), 30, False, "Retry", "the handler requested"),
        (Retry(TENTH, "busy"), TENTH, False, "Retry", "busy"),
        (Retry(reason="busy"), None, False, "Retry", "busy"),
        (InvalidPayload("bad"), None, True, "InvalidPayload", "HF230 bad"),
        (InvalidResult("bad"), None, True, "InvalidResult", "HF232 bad"),
        (LeaseLost(UUID(int=1)), None, False, "LeaseLost", "HF300 lease lost"),
    ],
)
def test_what_a_handler_raises_is_a_failed_attempt(
    error: Exception, delay: Any, final: bool, kind: str, message: str
) -> None:
    failed = nack(error)

    assert (failed.delay, failed.final, failed.error_kind) == (delay, final, kind)
    assert failed.message is not None
    assert failed.message.startswith(message)


def test_a_coroutine_that_nobody_awaited_is_not_done() -> None:
    async def work() -> None:
        pass

    settlement = decide(lease(), returned=work())

    assert isinstance(settlement, records.Failed)
    assert settlement.final
    assert "declare it with async def" in (settlement.message or "")


@pytest.mark.parametrize(
    ("retry", "attempt", "delay", "final"),
    [
        (None, 1, None, False),
        (30, 1, 30, False),
        (0, 1, 0, False),
        (1.5, 2, 1.5, False),
        (TENTH, 1, TENTH, False),
        (Fixed(30), 1, 30, False),
        (Fixed(TENTH), 9, 0.1, False),
        (lambda attempt, error: attempt * 10, 2, 20, False),
        (lambda attempt, error: None, 1, None, True),
        (lambda attempt, error: 1 if isinstance(error, Bounced) else 2, 1, 1, False),
        ({Bounced: 5}, 1, 5, False),
        ({Bounced: NEVER}, 1, None, True),
        ({Bounced: None}, 1, None, False),
        ({Exception: 7, Bounced: 5}, 1, 5, False),
        ({Exception: 7}, 1, 7, False),
        ({BaseException: 7}, 1, 7, False),
        ({OSError: 7}, 1, None, False),
        ({Bounced: Fixed(3)}, 1, 3, False),
        ({Bounced: lambda attempt, error: None}, 1, None, True),
    ],
)
def test_a_policy_says_when_to_try_again(
    retry: Policy, attempt: int, delay: Any, final: bool
) -> None:
    failed = nack(HardBounced("no"), attempt=attempt, retry=retry)

    assert (failed.delay, failed.final) == (delay, final)


def test_of_a_policy_by_exception_the_nearest_class_counts() -> None:
    policy: Policy = {Exception: 1, Bounced: 2, HardBounced: NEVER}

    assert nack(ValueError(), retry=policy).delay == 1
    assert nack(Bounced(), retry=policy).delay == 2
    assert nack(HardBounced(), retry=policy).final


def test_a_retry_that_names_its_time_is_not_asked_of_the_policy() -> None:
    assert nack(Retry(in_=30), retry=lambda attempt, error: None).delay == 30


def test_a_retry_without_a_time_follows_the_policy() -> None:
    assert nack(Retry(), retry=7).delay == 7


@pytest.mark.parametrize("answer", [-1, float("nan"), float("inf"), "soon", True])
def test_a_policy_that_answers_nonsense_leaves_the_backoff_to_the_queue(answer: Any) -> None:
    failed = nack(ValueError("the first error"), retry=lambda attempt, error: answer)

    assert (failed.delay, failed.final, failed.message) == (None, False, "the first error")
    assert "The retry policy itself failed" in (failed.traceback or "")


def test_a_policy_that_fails_does_not_hide_the_error_it_was_asked_about() -> None:
    def policy(attempt: int, error: BaseException) -> float:
        return 1 / 0

    failed = nack(raised_by(lambda: int("x")), retry=policy)

    assert (failed.error_kind, failed.delay) == ("ValueError", None)
    assert "ZeroDivisionError" in (failed.traceback or "")
    assert "invalid literal" in (failed.traceback or "")


@pytest.mark.parametrize("attempt", [1, 2, 5, 12, 100_000])
def test_exponential_delays_lie_anywhere_below_a_bound_that_doubles_up_to_the_cap(
    attempt: int,
) -> None:
    policy = Exponential(first=2, cap=600)
    bound = min(2 * 2 ** min(attempt - 1, 30), 600)

    delays = [policy.after(attempt, random.Random(seed)) for seed in range(2000)]

    assert 0 <= min(delays) < bound * 0.02
    assert bound * 0.98 < max(delays) <= bound


def test_fixed_delays_can_be_spread() -> None:
    delays = [Fixed(100, jitter=0.1).after(1, random.Random(seed)) for seed in range(2000)]

    assert 90 <= min(delays) < 91
    assert 109 < max(delays) <= 110


def test_the_same_seed_decides_the_same() -> None:
    def once() -> Any:
        return decide(
            lease(7), raised=ValueError(), retry=Exponential(), rng=random.Random(42)
        ).delay  # type: ignore[union-attr]

    assert once() == once()


# The traceback is what people read at night.


def test_a_traceback_shows_the_frames_of_the_handler_and_not_those_of_holdfast(
    tmp_path: Path,
) -> None:
    inside = Path(outcome.__file__).parent / "worker" / "life.py"
    namespace: dict[str, Any] = {"fail": lambda: int("x")}
    exec(compile("def run():\n    fail()\n", str(inside), "exec"), namespace)

    told = nack(raised_by(namespace["run"])).traceback or ""

    assert "life.py" not in told
    assert "test_outcome.py" in told
    assert told.startswith("Traceback (most recent call last):\n")
    assert told.endswith("ValueError: invalid literal for int() with base 10: 'x'\n")


def test_an_error_of_holdfast_alone_keeps_its_frames() -> None:
    inside = Path(outcome.__file__).parent / "worker" / "life.py"
    namespace: dict[str, Any] = {}
    exec(compile("def run():\n    1 / 0\n", str(inside), "exec"), namespace)
    error = raised_by(namespace["run"])
    assert error.__traceback__
    error = error.with_traceback(error.__traceback__.tb_next)

    assert "life.py" in (nack(error).traceback or "")


def test_causes_are_told_and_contexts_that_were_set_aside_are_not() -> None:
    def caused() -> None:
        try:
            int("x")
        except ValueError as error:
            raise Bounced("refused") from error

    def aside() -> None:
        try:
            int("x")
        except ValueError:
            raise Bounced("refused") from None

    assert "direct cause" in (nack(raised_by(caused)).traceback or "")
    assert "ValueError" not in (nack(raised_by(aside)).traceback or "")


def test_every_error_of_a_group_is_told() -> None:
    def fail() -> None:
        raise ExceptionGroup("both", [ValueError("one"), Bounced("two")])

    told = nack(raised_by(fail)).traceback or ""

    assert "ValueError: one" in told
    assert "Bounced: two" in told


def test_errors_that_are_each_others_cause_come_to_an_end() -> None:
    first, second = ValueError("first"), ValueError("second")
    first.__cause__, second.__cause__ = second, first

    assert "second" in (nack(first).traceback or "")


def test_a_traceback_is_cut_in_the_middle_and_ends_with_the_error() -> None:
    def fail() -> None:
        raise ValueError("€" * 200_000 + " the end")

    failed = nack(raised_by(fail))

    assert failed.traceback
    assert len(failed.traceback.encode()) <= outcome.LONGEST_TRACEBACK
    assert "bytes left out" in failed.traceback
    assert failed.traceback.startswith("Traceback")
    assert failed.traceback.endswith("the end\n")
    assert failed.message
    assert len(failed.message.encode()) <= outcome.LONGEST_MESSAGE


def test_deep_recursion_is_told_briefly() -> None:
    def fail() -> None:
        fail()

    told = nack(raised_by(fail)).traceback or ""

    assert "Previous line repeated" in told
    assert len(told) < 5000


def test_what_postgresql_cannot_store_is_written_so_that_it_can() -> None:
    failed = nack(ValueError("nul \0 and half a pair \ud83d"))

    assert failed.message == "nul \\0 and half a pair \\ud83d"
    assert (failed.traceback or "").encode()
    assert "\0" not in (failed.traceback or "")


def test_an_error_that_cannot_even_be_printed_is_told() -> None:
    class Broken(Exception):
        def __str__(self) -> str:
            raise RuntimeError("no words")

    failed = nack(Broken())

    assert failed.message == "<str() of the error failed: RuntimeError>"
    assert "Broken" in (failed.traceback or "")


def test_a_local_class_is_named_where_it_is() -> None:
    class Local(Exception):
        pass

    assert (nack(Local()).error_kind or "").endswith(
        "test_a_local_class_is_named_where_it_is.<locals>.Local"
    )


def test_what_is_run_as_a_program_names_its_errors_as_if_it_were_imported_by_no_name() -> None:
    local = type("Bounced", (Exception,), {"__module__": "__main__"})

    assert nack(local()).error_kind == "Bounced"


@pytest.mark.parametrize(
    "settlement",
    [
        decide(lease(), returned=[1], keep_result=True),
        decide(lease(), raised=ValueError("no")),
        decide(lease(), raised=Cancel("no")),
        decide(lease(), raised=Release(1)),
    ],
)
def test_a_settlement_survives_the_way_from_another_process(settlement: records.Settlement) -> None:
    assert pickle.loads(pickle.dumps(settlement)) == settlement


@pytest.mark.parametrize("error", [Retry(30, "busy"), Release(1), Cancel("left")])
def test_what_a_handler_raises_survives_the_way_from_another_process(error: Exception) -> None:
    arrived = pickle.loads(pickle.dumps(error))

    assert (type(arrived), vars(arrived)) == (type(error), vars(error))


# The budget for retries.


def test_retries_are_a_share_of_first_attempts_once_the_reserve_is_spent() -> None:
    budget = RetryBudget(0.2, reserve=10, cap=60)
    failed = [budget.charge(records.Failed(lease(1), delay=1)) for _ in range(1000)]

    at_once = [one for one in failed if one == records.Failed(lease(1), delay=1)]

    assert 205 <= len(at_once) <= 215


def test_out_of_budget_a_retry_waits_for_the_cap_and_never_dies() -> None:
    budget = RetryBudget(0.0, reserve=1, cap=60)
    budget.charge(records.Failed(lease()))

    assert budget.charge(records.Failed(lease())) == records.Failed(lease(), delay=60)
    assert budget.charge(records.Failed(lease(), delay=TENTH)) == records.Failed(lease(), delay=60)
    assert budget.charge(records.Failed(lease(), delay=90)) == records.Failed(lease(), delay=90)


def test_success_earns_retries_up_to_the_reserve() -> None:
    budget = RetryBudget(0.5, reserve=2, cap=60)
    for _ in range(2):
        budget.charge(records.Failed(lease(2)))
    assert budget.charge(records.Failed(lease(2))) == records.Failed(lease(2), delay=60)

    for _ in range(100):
        budget.charge(records.Done(lease(1)))

    free = [budget.charge(records.Failed(lease(2))) == records.Failed(lease(2)) for _ in range(3)]
    assert free == [True, True, False]


@pytest.mark.parametrize(
    "settlement",
    [
        records.Done(lease(2)),
        records.Released(lease(2)),
        records.Cancelled(lease(2)),
        records.Failed(lease(3)),
        records.Failed(lease(2), final=True),
        records.Failed((UUID(int=1), UUID(int=2))),
    ],
)
def test_what_is_no_retry_costs_nothing(settlement: records.Settlement) -> None:
    budget = RetryBudget(0.2, reserve=1)

    assert budget.charge(settlement) == settlement
    assert budget.saved == 1


@pytest.mark.parametrize("error", [asyncio.CancelledError(), KeyboardInterrupt(), SystemExit(1)])
def test_a_handler_that_interrupts_itself_has_failed(error: BaseException) -> None:
    assert isinstance(outcome.decide(lease(), raised=error), records.Failed)
