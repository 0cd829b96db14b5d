"""A plan in progress: what was found out about the table, and the steps so far."""

from collections.abc import Iterable, Mapping, Sequence
from typing import Any, cast

import psycopg
from psycopg.types.json import Jsonb

from holdfast.adopt.catalog import Column, columns_of, literal_sql, locate, name_sql
from holdfast.adopt.plan import Choices, Step
from holdfast.adopt.survey import Survey
from holdfast.errors import CannotAdopt


class Draft:
    """The state that the functions of a plan read and extend."""

    def __init__(self, connection: psycopg.Connection, table: str, choices: Choices) -> None:
        self.connection = connection
        self.choices = choices
        self.relation, self.schema, self.name = locate(connection, table)
        self.survey = Survey(connection, self.relation)
        self.found: dict[str, Column] = {c.name: c for c in columns_of(connection, self.relation)}
        self.types: dict[str, str] = {name: column.type for name, column in self.found.items()}
        self.deletes = choices.on_success == "delete"
        self.status_added = False
        self.warnings: list[str] = []
        self.unknown: dict[str, int] = {}
        self.widened: dict[str, list[str]] = {}
        self.relaxed: dict[str, list[str]] = {}
        self.steps: list[Step] = []

    def add(self, name: str, type: str) -> None:
        self.types[name] = type
        self.found[name] = Column(name, type, type, None, False, False, False)

    def known(self, names: Iterable[str]) -> None:
        for name in names:
            if name not in self.types:
                raise CannotAdopt(
                    f"{self.relation} has no column {name}",
                    fix=f"It has: {', '.join(self.types)}.",
                )

    def one(self, query: str, *values: Any, found: bool = False) -> Any:
        cursor = self.connection.execute(query, list(values) or None)
        row = cursor.fetchone()
        return row is not None if found else row and row[0]

    def where(self) -> list[dict[str, str]]:
        return [
            {"column": name, "value": value, "type": self.types[name]}
            for name, value in self.choices.where.items()
        ]

    def mine(self) -> str:
        """The rows that are jobs, whatever their status."""
        mine = [
            f"job.{name_sql(one['column'])} = {literal_sql(one['value'])}::{one['type']}"
            for one in self.where()
        ]
        return " and ".join(mine) or "true"

    def refuse_cut(self, name: str, value: str, option: str) -> None:
        column = self.found[name]
        if not self.survey.holds(column, value):
            raise CannotAdopt(
                f"column {name} is {column.type} and cannot hold {value!r}",
                fix=f"Name a value that it can hold:  {option}; or change the type of the column.",
            )

    def words_written(self, states: Mapping[str, Sequence[str]]) -> dict[str, str]:
        """Of several values for a state the first is written."""
        return {
            state: values[0]
            for state, values in states.items()
            if values and not (self.deletes and state == "done")
        }

    def live(self, status: str, states: Mapping[str, Sequence[str]]) -> str:
        """Rows that wait or run."""
        if self.status_added:
            return self.mine()
        column = self.found[status]
        values = [
            f"{literal_sql(value)}::{column.type}"
            for state in ("queued", "leased")
            for value in states[state]
            # a value that is yet to be added to an enumeration
            if self.survey.holds(column, value)
        ]
        return f"job.{name_sql(status)} in ({', '.join(values)}) and {self.mine()}"

    def before(self) -> dict[str, Column]:
        """The columns that the table has now."""
        return {c.name: c for c in columns_of(self.connection, self.relation)}

    def index(self, name: str, index: str, do: str, relation: str = "") -> None:
        place = index_name(relation or self.relation, index)
        if self.one("select to_regclass(%s)::text", place):
            raise CannotAdopt(
                f"an index or table {place} already exists",
                why="It is yours, or an earlier adoption left it.",
                fix=f"Rename or drop it:  drop index {place}",
            )
        self.steps.append(
            Step(name, do, f"drop index concurrently if exists {place}", alone=True, index=place)
        )

    def words(self, part: int, spec: Mapping[str, Any]) -> dict[str, str]:
        row = self.connection.execute(
            f"select holdfast.adopted_words({_ROW}, '')", self._row(part, spec)
        ).fetchone()
        assert row
        return cast("dict[str, str]", row[0])

    def code(self, part: int, queue: str, spec: Mapping[str, Any]) -> str:
        return cast(
            str, self.one(f"select holdfast.adopted_code({_ROW})", *self._row(part, spec, queue))
        )

    def _row(self, part: int, spec: Mapping[str, Any], queue: str = "") -> list[Any]:
        return [part, queue or self.name, self.relation, Jsonb(dict(spec))]


def index_name(relation: str, index: str) -> str:
    """An index lives in the schema of its table."""
    cut = relation.rindex(".") if not relation.endswith('"') else relation.rindex('."')
    return f"{relation[:cut]}.{name_sql(index)}"


_ROW = "holdfast.adoption_of(%s::smallint, %s, %s, %s)"
