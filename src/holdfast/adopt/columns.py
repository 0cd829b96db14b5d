"""Which columns mean what, and which are added."""

from collections.abc import Mapping, Sequence

from holdfast.adopt.catalog import literal_sql, name_sql
from holdfast.adopt.draft import Draft
from holdfast.adopt.meanings import (
    ADDED,
    CHANGED,
    EMPTIED,
    GUESSES,
    MEANINGS,
    WORDS,
    WRITTEN,
    fits,
)
from holdfast.adopt.plan import Step
from holdfast.errors import CannotAdopt


def choose_status(draft: Draft) -> str:
    named = draft.choices.status
    found = next((name for name in GUESSES["status"] if name in draft.types), None)
    status = named or found
    if status and status in draft.types:
        if draft.found[status].generated:
            raise CannotAdopt(
                f"column {status} of {draft.relation} is generated",
                why="The queue writes the status of a row.",
                fix="Name another column, which is added if need be:  --column status=phase",
            )
        return status
    # There is no status column: the owner decides about existing rows; new ones wait.
    name = named or "status"
    existing = draft.choices.existing
    if existing is None:
        raise CannotAdopt(
            f"{draft.relation} has no column for the status of a row",
            why="One would be added, and every row that exists needs a state.",
            fix="Name the state:  --existing done (or queued, dead, cancelled); "
            "or name the column:  --column status=COLUMN",
        )
    if existing not in WORDS:
        raise CannotAdopt(
            f"--existing {existing} is not a state", fix=f"States are: {', '.join(WORDS)}."
        )
    quoted = name_sql(name)
    draft.steps.append(
        Step(
            f"column {name}: existing rows are {WORDS[existing]}",
            # The first default is that of rows of before, which are not written.
            f"alter table {draft.relation} add column if not exists {quoted} varchar(20) "
            f"not null default {literal_sql(WORDS[existing])};\n"
            f"alter table {draft.relation} alter column {quoted} "
            f"set default {literal_sql(WORDS['queued'])}",
            f"alter table {draft.relation} drop column if exists {quoted}",
        )
    )
    draft.add(name, "character varying(20)")
    draft.status_added = True
    return name


def choose_columns(draft: Draft, status: str) -> dict[str, str]:
    found: dict[str, str] = {}
    for meaning, names in GUESSES.items():
        if meaning == "status":
            continue
        right = [n for n in names if n in draft.found and fits(meaning, draft.found[n].base)]
        for name in right:
            why = _unfit(draft, meaning, name)
            if not why:
                found[meaning] = name
                break
            draft.warnings.append(
                f"column {name} is not used for {meaning}: {why}; a column is added instead"
                if meaning in ADDED
                else f"column {name} is not used for {meaning}: {why}"
            )
    for meaning, name in draft.choices.columns.items():
        if meaning not in MEANINGS:
            raise CannotAdopt(
                f"--column {meaning}={name}: no such meaning",
                fix=f"Meanings are: {', '.join(sorted(MEANINGS))}.",
            )
        if name.lower() == "none":
            found.pop(meaning, None)
            continue
        draft.known([name])
        if not fits(meaning, draft.found[name].base):
            raise CannotAdopt(f"column {name} is {draft.types[name]}, which cannot be {meaning}")
        if why := _unfit(draft, meaning, name):
            raise CannotAdopt(
                f"column {name} cannot be {meaning}: {why}",
                fix=f"Name another, or none:  --column {meaning}=none",
            )
        found[meaning] = name
    if "max_attempts" in found and "max_retries" in found:
        found.pop("max_retries")
    if status in found.values():
        raise CannotAdopt(f"column {status} is the status and cannot be something else")
    return found


def _unfit(draft: Draft, meaning: str, name: str) -> str:
    """Why a column would refuse what is written to it; nothing if it would not."""
    column = draft.found[name]
    if meaning not in CHANGED:
        return ""
    if column.generated:
        return "PostgreSQL generates it"
    if column.not_null and meaning in EMPTIED:
        return "it is not null, and the queue empties it"
    if column.constrained:
        return f"its type {column.type} has constraints of its own"
    for reference in draft.survey.references():
        if name in reference.columns:
            return f"it references {reference.table}"
    return ""


def add_columns(draft: Draft, columns: dict[str, str], status: str) -> list[str]:
    added = []
    if draft.status_added:
        # Times that belong to an added status are added too; other code writes them as well.
        for meaning, name in (("started_at", "started_at"), ("ended_at", "completed_at")):
            if meaning not in columns and draft.choices.columns.get(meaning) != "none":
                columns[meaning] = name if name not in draft.found else f"holdfast_{name}"
                added.append((columns[meaning], "timestamp with time zone"))
    for meaning, type in ADDED.items():
        if meaning not in columns:
            columns[meaning] = f"holdfast_{meaning}"
            added.append((columns[meaning], type))
    for name, type in added:
        if name in draft.found:
            raise CannotAdopt(
                f"{draft.relation} has a column {name} already",
                why="It is yours, or an earlier adoption left it.",
                fix="Rename or drop it:  "
                f"alter table {draft.relation} drop column {name_sql(name)}",
            )
        draft.add(name, type)
    adds = ",\n  ".join(f"add column if not exists {name_sql(n)} {t}" for n, t in added)
    drops = ",\n  ".join(f"drop column if exists {name_sql(name)}" for name, _ in added)
    draft.steps.append(
        Step(
            "columns of the lease",
            f"alter table {draft.relation}\n  {adds}",
            f"alter table {draft.relation}\n  {drops}",
        )
    )
    return [name for name, _ in added] + ([status] if draft.status_added else [])


def choose_order(draft: Draft, columns: Mapping[str, str]) -> list[str]:
    if draft.choices.order:
        order = [part.strip() for part in draft.choices.order.split(",")]
        draft.known(order)
        for name in order:
            if not draft.survey.orders(draft.found[name]):
                raise CannotAdopt(
                    f"column {name} is {draft.types[name]}, which has no order",
                    fix="Name another:  --order COLUMN",
                )
        return order
    return [columns["created_at"]] if "created_at" in columns else []


def hidden(status: str, columns: Mapping[str, str], added: Sequence[str]) -> list[str]:
    """What handlers are not told: what the queue itself writes."""
    written = [columns[m] for m in WRITTEN if m in columns]
    return list(dict.fromkeys([status, *written, *added]))
