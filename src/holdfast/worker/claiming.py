"""When to claim, from which queue and how many jobs; and how to be notified if there are none."""

import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from time import monotonic
from uuid import UUID, uuid4

from holdfast.client import Client
from holdfast.client.statement import Row
from holdfast.errors import HoldfastError
from holdfast.records import Claim
from holdfast.worker.allowance import Allowance
from holdfast.worker.queue_slots import QueueSlots

# Jobs claimed ahead of free slots: as many as are run in this time, and never more than that.
AHEAD_SECONDS = 0.03
MOST_AHEAD = 400
# The pause before the first poll of a queue that ran empty; each further one is three times as
# long.
FIRST_LOOK = 0.01
ENOUGH_LOOKS = 3
# From here on they are no longer counted: the pause would be years, and soon too large a number.
MANY_LOOKS = 30
# How long this worker stays on the list of waiting workers; it renews this well before.
PATIENCE = 60.0
SAYS_AGAIN = 10.0


class Claiming:
    """The claims of one worker. Its queues are shared with the loop, under the loop's lock."""

    def __init__(
        self,
        client: Client,
        queues: Sequence[QueueSlots],
        *,
        worker: str,
        lease: float | None,
        poll: Callable[[], float],
        stopping: threading.Event,
        lock: threading.Lock,
        bell: threading.Event,
        ear: Callable[[], int | None] = lambda: None,
        allowance: Allowance | None = None,
    ) -> None:
        self.queues = {one.queue: one for one in queues}
        self._client = client
        self._worker = worker
        self._lease = lease
        self._poll = poll
        self._stopping = stopping
        self._lock = lock
        self._bell = bell
        self._ear = ear
        self._allowance = allowance
        self._unanswered: list[tuple[Claim, float]] = []
        # How many jobs each of these may still have leased: they stay set aside.
        self._reserved: dict[UUID, int] = {}
        self._ask_at = 0.0
        self._rated_at = monotonic()

    def wake(self, queue: str) -> bool:
        """Claim now, because a queue has jobs. False if there is no free slot."""
        slots = self.queues.get(queue)
        if slots is None:
            return False
        with self._lock:
            # The database has removed this worker from its list: it notifies each once.
            slots.awaited_until = 0.0
            if self._stopping.is_set() or slots.wanted() <= 0:
                return False
            slots.dry, slots.look_at, slots.told = False, 0.0, True
        self._bell.set()
        return True

    def listen_again(self) -> None:
        """Request notifications again, or poll more often, because they start or stop arriving."""
        with self._lock:
            soon = monotonic() + (0.0 if self._ear() is not None else self._poll())
            for slots in self.queues.values():
                slots.awaited_until, slots.look_at = 0.0, min(slots.look_at, soon)
        self._bell.set()

    def seen_empty(self) -> None:
        """Count it as a poll that upkeep has just found no job in these queues.

        What it did before, and how it looked, is what a poll does. Those that come soon after a
        queue ran empty are made all the same, and so are those of a worker that nobody notifies.
        """
        now = monotonic()
        with self._lock:
            for slots in self.queues.values():
                if slots.dry and slots.rests and self._is_awaited(slots, now):
                    later = max(slots.look_at, now + self._poll())
                    slots.look_at = min(later, slots.awaited_until)

    def look_again(self) -> None:
        """Claim from every queue at once, as at the start."""
        with self._lock:
            for slots in self.queues.values():
                slots.look_at, slots.looks = 0.0, 0

    def next(self) -> list[Claim]:
        """Return the claims that are due."""
        if self._stopping.is_set():
            return []
        now = monotonic()
        claims = []
        for slots in self.queues.values():
            wanted = slots.wanted() if slots.look_at <= now else 0
            if self._allowance:
                wanted = self._allowance.ask(wanted)
            if wanted > 0:
                claims.append(
                    Claim(slots.queue, self._worker, wanted, self._lease, slots.kinds, uuid4())
                )
        return claims

    def take_told(self, claims: Sequence[Claim]) -> set[str]:
        """Return the queues of these claims that the worker was notified of since the last."""
        with self._lock:
            told = [slots for claim in claims if (slots := self.queues[claim.queue]).told]
            for slots in told:
                slots.told = False
        return {slots.queue for slots in told}

    def await_work(self, claims: Sequence[Claim], now: float) -> None:
        """Request notifications before claiming: in this order no job is missed."""
        ear = self._ear()
        if ear is None:
            return
        queues = [self.queues[claim.queue] for claim in claims]
        with self._lock:
            unheard = [slots for slots in queues if slots.dry and not self._is_awaited(slots, now)]
            for slots in unheard:
                # Before the call; otherwise a notification that arrives during the call would be
                # lost.
                slots.awaited_until, slots.ear = now + PATIENCE - SAYS_AGAIN, ear
        if not unheard:
            return
        names, kinds = [slots.queue for slots in unheard], unheard[0].kinds
        try:
            self._client.workers.await_work(
                names, worker=self._worker, patience=PATIENCE, kinds=kinds, ear=ear
            )
        except BaseException:
            for slots in unheard:
                slots.awaited_until = 0.0
            raise

    def note(self, claim: Claim, given: int, *, told: bool) -> None:
        """Plan the next claim by how many jobs the last one returned."""
        full = given == claim.limit
        self._plan_look(self.queues[claim.queue], short=not full)
        if told and full:
            # There may be more jobs than this worker has slots, and an enqueue notifies only a few.
            with suppress(HoldfastError):
                self._client.workers.pass_on(claim.queue)

    def rate(self) -> None:
        """How many jobs to claim ahead: none if jobs are long, many if they are short."""
        now = monotonic()
        if (passed := now - self._rated_at) < 0.05:
            return
        self._rated_at = now
        for slots in self.queues.values():
            rate, slots.ended = slots.ended / passed, 0
            slots.ahead = min(int(rate * AHEAD_SECONDS), MOST_AHEAD)

    def answered(self, claims: Sequence[Claim]) -> None:
        """Free what was set aside for claims: what they have leased counts itself."""
        if self._allowance:
            self._allowance.give_back(sum(claim.limit for claim in claims))

    def keep_unanswered(
        self, claims: Sequence[Claim], sent: float, *, reserved: bool = True
    ) -> None:
        """Remember claims whose outcome is unknown: they may have leased jobs."""
        self._unanswered += [(claim, sent) for claim in claims]
        if reserved:
            self._reserved.update((claim.token, claim.limit) for claim in claims)

    def found(self, claim: Claim) -> None:
        """Free what was set aside for one job that such a claim has leased."""
        if self._allowance and self._reserved.get(claim.token):
            self._reserved[claim.token] -= 1
            self._allowance.give_back(1)

    def is_asking_due(self) -> bool:
        """Whether to look up now what claims with an unknown outcome leased."""
        return bool(self._unanswered) and self._ask_at <= monotonic()

    def has_plenty(self) -> bool:
        """Whether a queue of short jobs returned all that was requested: there may be more."""
        return any(slots.ahead and not slots.dry for slots in self.queues.values())

    def ask_unanswered(self, longest: float) -> Iterator[tuple[Claim, float, Row]]:
        """Return what claims with an unknown outcome leased, instead of letting it expire.

        Repeated until the `longest` lease is over: such a claim may still be running when the
        connection is back.
        """
        if not self.is_asking_due():
            return
        now = monotonic()
        self._ask_at = now + 1.0
        sent_at = {claim.token: sent for claim, sent in self._unanswered}
        for claim, row in self._client.drain.held([claim for claim, _ in self._unanswered]):
            yield claim, sent_at[claim.token], row
        for claim, sent in self._unanswered:
            reserved = self._reserved.pop(claim.token, 0) if now >= sent + longest else 0
            if self._allowance:
                self._allowance.give_back(reserved)
        self._unanswered = [(c, sent) for c, sent in self._unanswered if now < sent + longest]

    def pause(self) -> float:
        """Return how long there is nothing to claim."""
        if self._stopping.is_set() or (self._allowance and not self._allowance.left()):
            return 1.0
        now = monotonic()
        looks = [slots.look_at - now for slots in self.queues.values() if slots.wanted() > 0]
        asks = [self._ask_at - now] if self._unanswered else []
        return max(min([*looks, *asks], default=1.0), 0.0)

    def is_idle(self) -> bool:
        """Whether every queue was empty for several polls: jobs about to be ready count as work."""
        return all(slots.looks >= ENOUGH_LOOKS for slots in self.queues.values())

    def _is_awaited(self, slots: QueueSlots, now: float) -> bool:
        return slots.awaited_until > now and slots.ear == self._ear()

    def _plan_look(self, slots: QueueSlots, *, short: bool) -> None:
        """Poll again soon after a queue ran empty, then less and less often.

        A job that was enqueued while no worker waited, in a transaction that commits only later,
        notifies no worker.
        """
        now = monotonic()
        # Under the lock: a notification requests a claim now, which must not be delayed.
        with self._lock:
            if short and slots.dry and (self._is_awaited(slots, now) or self._ear() is None):
                poll, soon = self._poll(), FIRST_LOOK * 3**slots.looks
                slots.look_at, slots.rests = now + min(poll, soon), poll <= soon
                if self._ear() is not None:
                    # Even if it polls rarely, it has to renew its place on the list of waiting
                    # workers.
                    slots.look_at = min(slots.look_at, slots.awaited_until)
                slots.looks = min(slots.looks + 1, MANY_LOOKS)
            else:
                slots.dry, slots.look_at, slots.looks, slots.rests = short, 0.0, 0, False
