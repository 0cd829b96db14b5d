"""What a drain did: every attempt that ran, how it ended, and what it raised."""

from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Literal
from uuid import UUID

from holdfast.outcome import error_kind, error_message

Ended = Literal[
    "done",
    "failed",
    "dead",
    "cancelled",
    "released",
    "suspended",
    "handed over",
    "lost",
    "crashed",
]


@dataclass(frozen=True, slots=True)
class Ran:
    """One attempt of one job, and how it ended; `error` is what its handler raised."""

    id: UUID
    kind: str
    attempt: int
    ended: Ended
    error: BaseException | None = field(default=None, compare=False)

    def __str__(self) -> str:
        told = f"{self.kind} {self.id}, attempt {self.attempt}: {self.ended}"
        if self.error is None:
            return told
        return f"{told} ({error_kind(self.error)}: {error_message(self.error)})"


@dataclass(slots=True)
class Drained:
    """The attempts that ran, in order. `str()` of it lists them."""

    ran: list[Ran] = field(default_factory=list)

    def __iter__(self) -> Iterator[Ran]:
        return iter(self.ran)

    def __len__(self) -> int:
        return len(self.ran)

    def __str__(self) -> str:
        counts = Counter(ran.ended for ran in self.ran)
        told = ", ".join(f"{count} {ended}" for ended, count in counts.items()) or "nothing ran"
        return "\n".join([told, *(f"  {ran}" for ran in self.ran)])

    @property
    def done(self) -> Sequence[Ran]:
        """The attempts that succeeded."""
        return self._that("done")

    @property
    def failed(self) -> Sequence[Ran]:
        """The attempts that failed and will be followed by another."""
        return self._that("failed")

    @property
    def dead(self) -> Sequence[Ran]:
        """The attempts that failed and were the last."""
        return self._that("dead")

    @property
    def crashed(self) -> Sequence[Ran]:
        """The attempts whose worker was made to vanish."""
        return self._that("crashed")

    @property
    def lost(self) -> Sequence[Ran]:
        """The attempts that ended after another worker had taken the job."""
        return self._that("lost")

    @property
    def errors(self) -> Sequence[BaseException]:
        """What the handlers of failed and dead attempts raised, in order."""
        return [ran.error for ran in self.ran if ran.error and ran.ended in ("failed", "dead")]

    def _that(self, ended: Ended) -> list[Ran]:
        return [ran for ran in self.ran if ran.ended == ended]
