"""What a table refuses: what cannot be a queue, what its constraints would not let through."""

from collections.abc import Mapping, Sequence
from typing import Any

from holdfast.adopt.catalog import ask_owner, literal_sql, name_sql, refuse_kin
from holdfast.adopt.draft import Draft, index_name
from holdfast.adopt.meanings import written
from holdfast.adopt.plan import Step
from holdfast.adopt.survey import Unique, each
from holdfast.errors import CannotAdopt


def refuse_what_cannot_be(draft: Draft) -> None:
    if draft.choices.on_success not in (None, "keep", "delete"):
        raise CannotAdopt(
            f"--on-success {draft.choices.on_success} is not keep or delete",
            fix="Delete rows that are done, or keep them:  --on-success delete",
        )
    refuse_kin(draft.connection, draft.relation)
    for name in draft.found:
        if name.startswith("hf_"):
            raise CannotAdopt(
                f"{draft.relation} has a column {name}",
                why="Names that begin with hf_ are those of the functions that are generated.",
                fix=f"Rename it:  alter table {draft.relation} rename {name_sql(name)} to …",
            )
    draft.survey.refuse_rules(["update", "delete"] if draft.deletes else ["update"])
    draft.survey.refuse_row_security()
    draft.survey.refuse_triggers()


def refuse_a_changing_key(
    draft: Draft, key: Sequence[str], status: str, columns: Mapping[str, str]
) -> None:
    for name in (status, *written(columns)):
        if name in key:
            raise CannotAdopt(
                f"column {name} is part of the primary key of {draft.relation}",
                why="The queue writes it, and a row could not be found again.",
                fix="Give the table a key that stays, such as an id.",
            )


def refuse_filter(draft: Draft, status: str, columns: Mapping[str, str]) -> None:
    draft.known(draft.choices.where)
    for name, value in draft.choices.where.items():
        if name in (status, *written(columns)):
            raise CannotAdopt(
                f"column {name} is written by the queue and cannot choose its rows",
                fix="Name a column that stays:  --where-column environment=production",
            )
        draft.refuse_cut(name, value, f"--where-column {name}=VALUE")


def try_constraints(
    draft: Draft, status: str, states: Mapping[str, Sequence[str]], columns: Mapping[str, str]
) -> None:
    """Say what the table will refuse, and the way out."""
    touched = [status, *written(columns)]
    live = draft.live(status, states)
    for check in draft.survey.checks():
        if check.columns == [status] or not set(check.columns) & set(touched):
            continue
        refused = [
            state
            for state, changes in _changes(draft, status, states, columns).items()
            if draft.survey.refuses(check, draft.before(), live, changes)
        ]
        if refused:
            draft.warnings.append(
                f"constraint {check.name} refuses rows that are {each(refused)}: "
                f"CHECK ({check.condition}); such jobs cannot be written. "
                "Change or drop the constraint first"
            )
    for unique in draft.survey.uniques(touched):
        _tell_unique(draft, unique, status)
    for reference in draft.survey.references():
        if len(reference.columns) > 1 and set(reference.columns) & set(touched):
            draft.warnings.append(
                f"constraint {reference.name} references {reference.table} by "
                f"{each(reference.columns)}: rows are refused unless that has what is written"
            )
    if draft.deletes:
        _tell_referenced(draft)


def _tell_unique(draft: Draft, unique: Unique, status: str) -> None:
    if draft.choices.unique_live and unique.plain and status in unique.columns:
        return
    over = each(unique.columns) if unique.columns else unique.index_definition
    ways = []
    if unique.plain and status in unique.columns and len(unique.columns) > 1:
        rest = each(name for name in unique.columns if name != status)
        ways.append(f"--unique-live lets {rest} repeat in rows that have ended")
    if not draft.deletes:
        ways.append("--on-success delete deletes done rows")
    draft.warnings.append(
        f"{unique.called} is unique over {over}, and the queue writes {each(unique.touches)}: "
        "a job that would violate it cannot be written" + (f". {'; '.join(ways)}" if ways else "")
    )


def _tell_referenced(draft: Draft) -> None:
    for table, on_delete in draft.survey.referenced():
        draft.warnings.append(
            {
                "c": f"rows of {table} are deleted with a job that is done: they reference it",
                "n": f"rows of {table} lose their reference when a job is done",
                "d": f"rows of {table} lose their reference when a job is done",
            }.get(
                on_delete,
                f"a job that rows of {table} reference cannot be deleted when it is done",
            )
        )


def _changes(
    draft: Draft, status: str, states: Mapping[str, Sequence[str]], columns: Mapping[str, str]
) -> dict[str, list[dict[str, str]]]:
    """What is written to a row, by the state it comes to: first the claim, then the end."""
    words = draft.words_written(states)
    ends = {
        "queued": {"error": "'error'", "run_at": "now()"},
        "done": {"ended_at": "now()"},
        "dead": {"error": "'error'", "ended_at": "now()", "failed_at": "now()"},
    }
    tries = f"coalesce({name_sql(columns['attempt'])}, 0) + 1"
    claim = {
        "token": "gen_random_uuid()",
        "lease_until": "now()",
        "worker": "'worker'",
        "started_at": "now()",
        "attempt": tries,
    }
    cleared = {"token": "null", "lease_until": "null", "worker": "'worker'"}
    found: dict[str, list[dict[str, str]]] = {}
    before = draft.before()
    for state, value in words.items():
        if state == "cancelled":
            continue
        changes = [claim | {"status": literal_sql(words["leased"])}]
        if state != "leased":
            empty = {"started_at": "null", "worker": "null"} if state == "queued" else {}
            changes.append(
                cleared
                | {"run_at": "null", "ended_at": "null", "failed_at": "null"}
                | empty
                | ends[state]
                | {"status": literal_sql(value)}
            )
        named = {"status": status, **columns}
        found[state] = [
            {named[m]: v for m, v in change.items() if m in named and named[m] in before}
            for change in changes
        ]
    return found


def relax(draft: Draft, spec: Mapping[str, Any], part: int) -> None:
    """Have what is unique with the status hold for rows that wait or run only."""
    status = spec["status"]
    uniques = [
        u
        for u in draft.survey.uniques([status])
        if u.plain and status in u.columns and len(u.columns) > 1
    ]
    if not draft.choices.unique_live:
        return
    if not uniques:
        raise CannotAdopt(
            f"{draft.relation} has nothing that is unique over its status and other columns",
            fix="Omit --unique-live.",
        )
    words = draft.words(part, spec)
    live = f"({words['is_queued']} or {words['is_leased']})"
    for number, unique in enumerate(uniques, 1):
        rest = [name for name in unique.columns if name != status]
        named = ", ".join(map(name_sql, rest))
        twice = ask_owner(
            draft.connection,
            draft.relation,
            f"select row({named})::text as twice from {draft.relation} job "
            f"where {draft.live(status, spec['states'])} "
            f"and num_nulls({named}) = 0 group by {named} having count(*) > 1 limit 1",
        )
        if twice:
            raise CannotAdopt(
                f"{draft.relation} has two live rows of {each(rest)} {twice[0][0]}",
                fix="Remove one of them, or omit --unique-live.",
            )
        draft.relaxed[unique.index] = list(unique.columns)
        index = f"holdfast_{part}_live{number}"
        table = f"alter table {draft.relation}"
        place = index_name(draft.relation, unique.index)
        draft.index(
            f"unique {unique.index}: one row that waits or runs",
            index,
            f"create unique index concurrently if not exists {name_sql(index)} "
            f"on {draft.relation} ({named}) where {live}",
        )
        if unique.constraint:
            gone = f"{table} drop constraint if exists {name_sql(unique.constraint)}"
            back = (
                f"{table} add constraint {name_sql(unique.constraint)} "
                f"unique using index {name_sql(unique.index)}"
            )
            if unique.comment:
                back += (
                    f";\ncomment on constraint {name_sql(unique.constraint)} "
                    f"on {draft.relation} is {literal_sql(unique.comment)}"
                )
        else:
            gone = f"drop index if exists {place}"
            back = (
                f"comment on index {place} is {literal_sql(unique.comment)}"
                if unique.comment
                else ""
            )
        make = unique.index_definition.replace(
            "CREATE UNIQUE INDEX ", "create unique index concurrently if not exists ", 1
        )
        draft.steps += [
            Step(f"unique {unique.index}: in place of the old", gone, back),
            # The undoing begins here: the index is there before the constraint is.
            Step(f"unique {unique.index}: as it was", "", make, alone=True, index=place),
        ]
