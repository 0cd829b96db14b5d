"""One verb for many jobs."""

from datetime import datetime
from typing import Any, Literal
from uuid import UUID

from holdfast.records.record import Record, decoded_object


class Preview(Record, frozen=True):
    """The jobs that an operation would change; `token` starts it within ten minutes.

    `selects` is the filter with the states that its verb applies to. Jobs that match after `as_of`
    are not changed. `total` is counted up to a million: `capped` means that there are more.
    """

    id: int
    token: UUID
    selects: str
    as_of: datetime
    total: int
    capped: bool
    sample: list[UUID]


class Operation(Record, frozen=True):
    """One verb for many jobs, and its progress: `seen` of `total`, `changed` of those.

    `undoable` of these can be undone, for seven days. An undo is an operation too, and names the
    one it undoes in `arguments`.
    """

    id: int
    state: Literal["previewed", "running", "done", "cancelled", "failed"]
    verb: Literal["retry", "cancel", "archive", "delete", "move", "undo"]
    filter: str
    arguments_json: str
    most: int | None
    as_of: datetime
    total: int
    capped: bool
    rate: float | None
    reason: str | None
    actor: str | None
    seen: int
    changed: int
    created_at: datetime
    started_at: datetime | None
    ended_at: datetime | None
    ended_by: str | None
    problem: str | None
    undoable: int

    @property
    def arguments(self) -> dict[str, Any]:
        """Its further arguments, decoded at each access."""
        return decoded_object(self.arguments_json)
