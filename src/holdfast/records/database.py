"""The database and its health."""

from datetime import datetime, timedelta
from typing import Literal

from holdfast.records.record import Record


class Relation(Record, frozen=True):
    """A table of the schema with its indexes, or all tables of one sort together.

    `rows` and `dead` are PostgreSQL's estimates: live rows, and rows that vacuum has yet to remove.
    """

    name: str
    size: int
    rows: int
    dead: int
    vacuumed_at: datetime | None


class System(Record, frozen=True):
    """The database: its schema, its server, how large it is, and its oldest open transaction."""

    schema: int
    release: str
    postgresql: str
    size: int
    connections: int
    max_connections: int
    oldest_transaction: timedelta | None
    relations: list[Relation]


class Checkup(Record, frozen=True):
    """One check of the doctor: what it found, why it matters, what to type."""

    name: str
    level: Literal["ok", "warn", "fail"]
    what: str
    why: str
    fix: str | None


class Member(Record, frozen=True):
    """A node of a Citus cluster, as it is seen from the one called `here`.

    `problem` says why it did not answer when it was asked last, and is None if it did.
    """

    node: int
    host: str
    port: int
    here: bool
    problem: str | None = None

    @property
    def address(self) -> str:
        """Where it listens."""
        return f"{self.host}:{self.port}"
