"""Runs a task under faults, and counts its effect."""

from collections.abc import Callable, Sequence, Sized
from contextlib import ExitStack
from typing import TYPE_CHECKING, Any

import msgspec
from psycopg.types.json import Jsonb

from holdfast.app import Call
from holdfast.client.statement import Statement
from holdfast.errors import Misuse, NotMigrated
from holdfast.testing.draining import LIMIT
from holdfast.testing.faults import Fault
from holdfast.testing.report import Drained

if TYPE_CHECKING:
    from holdfast.testing.kit import Kit

Effect = str | Callable[[], int | Sized]


def assert_once(kit: "Kit", call: Call[Any], effect: Effect, under: Sequence[Fault]) -> None:
    """Raise AssertionError unless the effect of a call is there once, whatever goes wrong."""
    if not isinstance(call, Call):
        raise Misuse(
            f"assert_effect_once: {call!r} is not a call of a task",
            fix="Give it one:  holdfast.assert_effect_once(task.call(…), …)",
        )
    if not under:
        raise Misuse("assert_effect_once: `under` names no fault")
    wrong = []
    with ExitStack() as stack:
        restore = stack.enter_context(kit._returning()) if len(under) > 1 else None
        for nth, fault in enumerate(under):
            if nth and restore:
                restore()
            times, drained, struck = _tried(kit, call, effect, fault)
            if times != 1:
                wrong.append(_told(fault, times, drained, struck))
    if wrong:
        raise AssertionError(
            f"the effect of {_shown(call)} must be there once\n" + "\n".join(wrong) + _ADVICE
        )


def _tried(kit: "Kit", call: Call[Any], effect: Effect, fault: Fault) -> tuple[int, Drained, bool]:
    """Return how often the effect is there, what ran, and whether the fault struck."""
    before = _count(kit, call, effect)
    call.task.app.enqueue_many([call])
    kit._faults.arm(fault, call.task.kind)
    try:
        drained = kit._drained([call.task.app], wait=True, limit=LIMIT)
    finally:
        struck = not kit._faults.disarm()
    return _count(kit, call, effect) - before, drained, struck


def _count(kit: "Kit", call: Call[Any], effect: Effect) -> int:
    if isinstance(effect, str):
        given = {**call.task.arguments.defaults, **msgspec.json.decode(call.job.payload)}
        values = {k: Jsonb(v) if isinstance(v, dict | list) else v for k, v in given.items()}
        statement: Any = Statement("effect", effect, values, reads=True)  # type: ignore[arg-type]
        count = _selected(kit, statement)
    else:
        count = effect()
    if isinstance(count, Sized):
        return len(count)
    if not isinstance(count, int):
        raise Misuse(
            f"the effect must be counted by a number, not {count!r}",
            fix=_SELECT_ONE,
        )
    return count


def _selected(kit: "Kit", statement: Any) -> Any:
    """Return what the SQL selects; a table that is not there is not one of Holdfast."""
    try:
        rows = kit.client._door.run(statement)
    except NotMigrated as error:
        raise Misuse(
            f"the effect cannot be counted: {str(error.__cause__).partition(chr(10))[0]}",
            why="Each test has a database of its own, a copy of the template.",
            fix="Add your tables to the template: override the fixture holdfast_schema.",
        ) from error.__cause__
    if len(rows) != 1 or len(rows[0]) != 1:
        raise Misuse(
            f"the effect must be counted by a number, not by {len(rows)} rows", fix=_SELECT_ONE
        )
    return rows[0][0]


def _told(fault: Fault, times: int, drained: Drained, struck: bool) -> str:
    what = f"{fault}: " if struck else f"{fault} (it did not come to that): "
    return "\n".join([f"  {what}{times} times", *(f"    {ran}" for ran in drained)])


def _shown(call: Call[Any]) -> str:
    given = msgspec.json.decode(call.job.payload)
    return f"{call.task.kind}({', '.join(f'{name}={value!r}' for name, value in given.items())})"


_SELECT_ONE = 'Select one:  "select count(*) from …"'
_ADVICE = (
    "\nWrite it in  with current().transaction() as conn:  or make it idempotent,"
    " for example with a unique key."
)
