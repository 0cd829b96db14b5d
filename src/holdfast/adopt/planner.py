"""Read a table's shape, and say how it becomes a queue."""

from typing import Any, cast

import psycopg

from holdfast.adopt.catalog import key_of
from holdfast.adopt.columns import add_columns, choose_columns, choose_order, choose_status, hidden
from holdfast.adopt.constraints import (
    refuse_a_changing_key,
    refuse_filter,
    refuse_what_cannot_be,
    relax,
    try_constraints,
)
from holdfast.adopt.draft import Draft
from holdfast.adopt.meanings import KEY_TYPES
from holdfast.adopt.plan import Choices, Plan
from holdfast.adopt.states import choose_states
from holdfast.adopt.steps import add_indexes, add_output, add_verbs
from holdfast.errors import CannotAdopt


def make_plan(connection: psycopg.Connection, table: str, choices: Choices) -> Plan:
    """Read a table's shape and propose what it means."""
    draft = Draft(connection, table, choices)
    chosen = draft.choices
    queue = chosen.queue or draft.name
    part = _part(draft, queue)
    refuse_what_cannot_be(draft)
    key = key_of(draft.connection, draft.relation)
    if unfit := [name for name in key if draft.found[name].base.split("(")[0] not in KEY_TYPES]:
        raise CannotAdopt(
            f"column {unfit[0]} of the key of {draft.relation} is {draft.types[unfit[0]]}",
            fix="A key is made of integers, uuids and texts.",
        )
    status = choose_status(draft)
    columns = choose_columns(draft, status)
    refuse_a_changing_key(draft, key, status, columns)
    refuse_filter(draft, status, columns)
    added = add_columns(draft, columns, status)
    states, existing = choose_states(draft, status)
    try_constraints(draft, status, states, columns)
    order = [*choose_order(draft, columns), *key]
    unseen = hidden(status, columns, added)
    spec: dict[str, Any] = {
        "key": key,
        "status": status,
        "status_type": draft.types[status],
        "states": states,
        "order": list(dict.fromkeys(order)),
        "columns": columns,
        "types": {meaning: draft.types[name] for meaning, name in columns.items()},
        "hidden": unseen,
        # What handlers get: they do not know columns that come later.
        "row": [name for name in draft.types if name not in unseen],
        "widened": draft.widened,
        "relaxed": draft.relaxed,
        **({"on_success": "delete"} if draft.deletes else {}),
        **({"where": draft.where()} if chosen.where else {}),
        "timezone": draft.one("select current_setting('TimeZone')"),
        **({"kind": chosen.kind} if chosen.kind else {}),
    }
    if chosen.payload:
        draft.known(chosen.payload)
        single = len(chosen.payload) == 1 and "json" in draft.types[chosen.payload[0]]
        spec |= {"payload_column": chosen.payload[0]} if single else {"payload": chosen.payload}
    if chosen.stuck_after:
        if "started_at" not in columns:
            raise CannotAdopt(
                "no column shows when other code started a row",
                fix="Name it:  --column started_at=COLUMN, or omit --stuck-after.",
            )
        spec["stuck_after"] = f"{chosen.stuck_after.total_seconds()} seconds"
    add_output(draft, spec)
    relax(draft, spec, part)
    add_indexes(draft, spec, part)
    code = draft.code(part, queue, spec)
    add_verbs(draft, part, queue)
    return Plan(
        queue,
        draft.relation,
        part,
        spec,
        draft.steps,
        existing,
        draft.warnings,
        draft.unknown,
        code,
    )


def _part(draft: Draft, queue: str) -> int:
    taken = draft.one("select relation from holdfast.adopted where queue = %s", queue)
    if taken:
        raise CannotAdopt(
            f"queue {queue} already belongs to table {taken}", fix="Name another:  --queue NAME"
        )
    if draft.one("select from holdfast.job where queue = %s limit 1", queue, found=True):
        raise CannotAdopt(f"queue {queue} has jobs of its own", fix="Name another:  --queue NAME")
    return cast(int, draft.one("select holdfast.free_part()"))
