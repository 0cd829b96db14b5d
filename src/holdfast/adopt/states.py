"""Which values of the status mean what, and the column made to take those that are written."""

from collections.abc import Mapping, Sequence
from typing import LiteralString

from holdfast.adopt.catalog import ask_owner, literal_sql, name_sql
from holdfast.adopt.draft import Draft
from holdfast.adopt.meanings import STATES, WORDS, constant, means
from holdfast.adopt.plan import Step
from holdfast.adopt.survey import Check
from holdfast.errors import CannotAdopt


def choose_states(draft: Draft, status: str) -> tuple[dict[str, list[str]], dict[str, int]]:
    counts: dict[str, int] = {}
    if not draft.status_added:
        # As it is stored, and as the owner: types and their casts may be the owner's.
        counts = dict(
            ask_owner(
                draft.connection,
                draft.relation,
                f"select case when {name_sql(status)} is not null "
                f"then format('%s', {name_sql(status)}) end as status, count(*) as rows "
                f"from {draft.relation} job where {draft.mine()} "
                f"group by {name_sql(status)} order by 2 desc limit 50",
            )
        )
    labels = [
        label for (label,) in draft.connection.execute(_LABELS, [draft.relation, status]).fetchall()
    ]
    checks = [c for c in draft.survey.checks() if c.columns == [status]]
    words = [w for c in checks for w in c.words]
    default = constant(draft.found[status].default)
    lookups = [r for r in draft.survey.references() if status in r.columns]
    words += [w for r in lookups for w in draft.survey.words_of(r, status)]
    known = list(
        dict.fromkeys([*labels, *words, *([default] if default else []), *filter(None, counts)])
    )
    states: dict[str, list[str]] = {s: [v for v in known if means(s, v)] for s in STATES}
    for state, values in draft.choices.states.items():
        if state not in STATES:
            raise CannotAdopt(
                f"--map {state}: no such state",
                fix=f"States are: {', '.join(STATES)}.",
            )
        for other in states.values():
            other[:] = [value for value in other if value not in values]
        states[state] = list(values)
    if not states["queued"]:
        _queued_by_default(draft, status, states, default)
    needed = ("queued", "leased", "dead") if draft.deletes else ("queued", "leased", "done", "dead")
    for state in needed:
        if not states[state]:
            states[state] = [WORDS[state]]
    for state, value in draft.words_written(states).items():
        if not (labels and value not in labels):
            draft.refuse_cut(status, value, f"--map {state}=VALUE")
        for lookup in lookups:
            allowed = draft.survey.words_of(lookup, status)
            if allowed and value not in allowed:
                raise CannotAdopt(
                    f"column {status} references {lookup.table}, which has no {value!r}",
                    why=f"It has: {', '.join(allowed)}.",
                    fix=f"Insert it there, or name one of them:  --map {state}=VALUE",
                )
    _allow(draft, status, states, labels, checks)
    understood = {value: state for state, values in states.items() for value in values}
    for value in known:
        if value not in understood:
            rows = draft.unknown[value] = counts.get(value, 0)
            draft.warnings.append(
                f"status {value!r} ({rows} rows) is not a state: these rows are ignored; "
                f"to use them, add  --map STATE={value}"
            )
    existing: dict[str, int] = {}
    for value, rows in counts.items():
        state = understood.get(value, "left alone")
        existing[state] = existing.get(state, 0) + rows
    return states, existing


def _queued_by_default(
    draft: Draft, status: str, states: dict[str, list[str]], default: str | None
) -> None:
    """New rows have the default: if nothing else says queued, they are the jobs."""
    meant = {value for values in states.values() for value in values}
    if default and default not in meant:
        states["queued"] = [default]
        draft.warnings.append(
            f"status {default!r}, the default of column {status}, is taken to mean queued; "
            "to change that, add  --map queued=VALUE"
        )
    elif not draft.status_added:
        draft.warnings.append(
            f"nothing in {draft.relation} says that a row waits: a row is a job when its "
            f"status is {WORDS['queued']!r}; else say  --map queued=VALUE"
        )


def _allow(
    draft: Draft,
    status: str,
    states: Mapping[str, Sequence[str]],
    labels: Sequence[str],
    checks: Sequence[Check],
) -> None:
    """Let the column take the values that will be written."""
    written = list(draft.words_written(states).values())
    if labels:
        for value in written:
            if value not in labels:
                draft.steps.append(
                    Step(
                        f"value {value} of {draft.types[status]}",
                        f"alter type {draft.types[status]} add value if not exists "
                        f"{literal_sql(value)}",
                        alone=True,
                    )
                )
                draft.warnings.append(
                    f"value {value!r} is added to type {draft.types[status]} and stays there"
                )
    for check in checks:
        column = draft.found[status]
        missing = [
            value
            for value in written
            # what an enumeration does not know yet, the check cannot either
            if (labels and value not in labels) or not draft.survey.allows(check, column, value)
        ]
        if not missing:
            continue
        draft.widened[check.name] = missing
        more = ", ".join(map(literal_sql, missing))
        new, old = name_sql(f"{check.name[:50]}_holdfast"), name_sql(check.name)
        wider = f"check (({check.condition}) or {name_sql(status)}::text in ({more}))"
        only = " no inherit" if check.no_inherit else ""
        wider += only
        table = f"alter table {draft.relation}"
        draft.steps += [
            Step(
                f"constraint {check.name}: also {', '.join(missing)}",
                f"{table} drop constraint if exists {new}, add constraint {new} {wider} not valid",
                f"{table} drop constraint if exists {new}",
            ),
            Step(
                f"constraint {check.name}: look at the rows",
                f"{table} validate constraint {new}",
                # The last of the undoing: what was there before holds again.
                f"{table} validate constraint {old}" if check.valid else "",
            ),
            Step(
                f"constraint {check.name}: in place of the old",
                f"{table} drop constraint if exists {old}",
                f"{table} drop constraint if exists {old}, "
                f"add constraint {old} check ({check.condition}){only} not valid"
                + (
                    f";\ncomment on constraint {old} on {draft.relation} "
                    f"is {literal_sql(check.comment)}"
                    if check.comment
                    else ""
                ),
            ),
        ]


_LABELS: LiteralString = """
select e.enumlabel from pg_attribute a join pg_enum e on e.enumtypid = a.atttypid
where a.attrelid = %s::regclass and a.attname = %s order by e.enumsortorder
"""
