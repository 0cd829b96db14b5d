"""A worker's slots of one queue, and when to claim more jobs."""

from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass, field

from holdfast.current import CurrentJob


@dataclass(slots=True)
class QueueSlots:
    """The slots of one queue: jobs that run in them, and some claimed ahead that wait for one."""

    queue: str
    slots: int
    kinds: Sequence[str]
    running: int = 0
    waiting: deque[CurrentJob] = field(default_factory=deque)
    ahead: int = 0
    ended: int = 0
    # When to claim again, and whether the last claim returned fewer jobs than requested.
    look_at: float = 0.0
    dry: bool = False
    looks: int = 0
    # It has been empty for a while: the next claim is one of the regular polls.
    rests: bool = False
    # Until when the database will notify this worker of the next job, and on which connection.
    awaited_until: float = 0.0
    ear: int | None = None
    # The worker was notified of work; there may be more than it has room for.
    told: bool = False

    def wanted(self) -> int:
        """How many jobs to claim: none while enough wait for a slot."""
        if len(self.waiting) > self.ahead // 2:
            return 0
        return max(self.slots - self.running, 0) + self.ahead - len(self.waiting)
