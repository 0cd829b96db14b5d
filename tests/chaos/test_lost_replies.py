"""The reply of a statement that never arrives, for each statement in a worker's life."""

from collections.abc import Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path

import pytest

from tests.chaos.conftest import SEED, Scale, at_full_length
from tests.chaos.proxy import Fault
from tests.chaos.server import Server
from tests.chaos.stage import Stage

LEASE = 30.0
# The deadline of a call and what comes after it; far less than a lease.
PATIENCE = 20.0
# The life that is shown says these: a statement that is no longer said would prove nothing.
SAID = {"claim", "settle", "await_work", "touch", "beat", "begin", "insert", "ack", "commit"}
# What is said in a handler's own transaction.
IN_TRANSACTION = {"begin", "insert", "ack", "commit"}


@pytest.fixture
def lives(hurt_server: Server, tmp_path: Path) -> "Lives":
    return Lives(hurt_server, tmp_path)


class Lives:
    """The same short life of a worker, led with one fault each, several at a time."""

    def __init__(self, server: Server, place: Path) -> None:
        self._server = server
        self._place = place

    def lead(self, faults: Iterable[Fault]) -> list[str]:
        """Lead a life with each fault; returns what went wrong."""
        with ThreadPoolExecutor(6) as pool:
            return [problem for problem in pool.map(self._lead, faults) if problem]

    def said(self) -> set[str]:
        """Lead a life without a fault; returns what was said in it."""
        return set("+".join(self._live(None)).split("+"))

    def _lead(self, fault: Fault) -> str:
        try:
            self._live(fault)
        except AssertionError as error:
            return f"{fault}: {error}"
        return ""

    def _live(self, fault: Fault | None) -> Sequence[str]:
        place = self._place / f"{fault}"
        place.mkdir()
        with (
            self._server.database() as url,
            Stage(self._server, url, place, SEED) as stage,
            stage.proxy() as (proxy, address),
        ):
            proxy.faults += [fault] if fault else []
            stage.start(4, url=address)
            stage.enqueue("nap", 3, lease=LEASE)
            stage.until(stage.began(3), PATIENCE)
            stage.enqueue("nap", 1, first=10, lease=6.0, seconds=3.0)
            stage.enqueue("book", 2, first=20, lease=LEASE)
            stage.enqueue("nap", 6, first=30, lease=LEASE, seconds=0.1)
            stage.enqueue("fail", 1, first=40, lease=LEASE, max_attempts=1)
            stage.drained(PATIENCE)
            stage.judge(dead=1)
            assert not fault or fault.done_at, f"{fault.verb} was not said {fault.nth} times"
            again = {"book"} if fault and _breaks(fault) else set()
            twice = [runs for runs in stage.runs_twice() if runs[0].kind not in again]
            assert not twice, f"ran twice: {twice}\n{stage.fleet.said()}"
            assert stage.effects() == [(20, 1), (21, 1)]
            said = stage.fleet.said()
            # That of the handler that fails is told, and no other.
            its_own = said.count("\nValueError: 40 is not to my liking")
            assert said.count("Traceback") == its_own, said
            return proxy.exchanges


def _breaks(fault: Fault) -> bool:
    """Whether the fault rolls a handler's own transaction back, so that it has to run again."""
    committed = fault.verb == "commit" and fault.do in ("cut", "tear", "swallow")
    return fault.verb in IN_TRANSACTION and not committed


def test_a_reply_that_is_cut_off_costs_nothing(lives: Lives, scale: Scale) -> None:
    said = lives.said()
    assert said >= SAID

    verbs = sorted(said if scale.long else said & SAID)
    faults = [Fault(verb, do) for verb in verbs for do in ("cut", "refuse", "tear")]
    if not scale.long:
        faults = [fault for fault in faults if fault.do == "cut"]
    problems = lives.lead(faults)

    assert not problems, "\n\n".join(problems)


def test_a_reply_that_is_swallowed_costs_no_lease(lives: Lives, scale: Scale) -> None:
    # A handler's own statement may take as long as it needs.
    # Short, all four are among what the life above is seen to say.
    short = ["claim", "settle", "touch", "commit"]
    verbs = sorted(lives.said() - {"insert"}) if scale.long else short

    problems = lives.lead([Fault(verb, "swallow") for verb in verbs])

    assert not problems, "\n\n".join(problems)


@at_full_length
def test_a_late_reply_costs_nothing(lives: Lives) -> None:
    problems = lives.lead([Fault(verb, "delay", seconds=2.0) for verb in sorted(lives.said())])

    assert not problems, "\n\n".join(problems)


@at_full_length
def test_later_replies_that_are_cut_off_cost_nothing(lives: Lives) -> None:
    faults = [Fault(verb, "cut") for verb in ("claim", "settle", "touch", "ack", "commit")]
    problems = lives.lead([replace(fault, nth=nth) for fault in faults for nth in (2, 3)])

    problems = [problem for problem in problems if "was not said" not in problem]
    assert not problems, "\n\n".join(problems)
