"""When to claim, from which queue and how much; and how to be notified when there is nothing."""

import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from time import monotonic
from uuid import uuid4

from holdfast.client import Client
from holdfast.client.statement import Row
from holdfast.errors import HoldfastError
from holdfast.records import Claim
from holdfast.worker.allowance import Allowance
from holdfast.worker.queue_slots import QueueSlots

# Jobs claimed ahead of free slots: as many as are run in this time, and never more than that.
AHEAD_SECONDS = 0.03
MOST_AHEAD = 400
# The pause before the first look at a queue that ran dry; each further one is three times as long.
FIRST_LOOK = 0.01
ENOUGH_LOOKS = 3
# How long the database remembers that this worker waits; it says so again well before that ends.
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
        self._ask_at = 0.0
        self._rated_at = monotonic()

    def wake(self, queue: str) -> bool:
        """Look for jobs now: a queue has some. False if there is no room for any."""
        slots = self.queues.get(queue)
        if slots is None:
            return False
        with self._lock:
            # The database has forgotten that this worker waits: it notifies each once.
            slots.awaited_until = 0.0
            if self._stopping.is_set() or slots.wanted() <= 0:
                return False
            slots.dry, slots.look_at, slots.told = False, 0.0, True
        self._bell.set()
        return True

    def listen_again(self) -> None:
        """Ask again to be notified, or look more often: notifications began or ceased to arrive."""
        with self._lock:
            soon = monotonic() + (0.0 if self._ear() is not None else self._poll())
            for slots in self.queues.values():
                slots.awaited_until, slots.look_at = 0.0, min(slots.look_at, soon)
        self._bell.set()

    def look_again(self) -> None:
        """Look at every queue at once, as if none had been looked at."""
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
        """Ask to be notified before looking: in this order no job slips in between."""
        ear = self._ear()
        if ear is None:
            return
        queues = [self.queues[claim.queue] for claim in claims]
        with self._lock:
            unheard = [slots for slots in queues if slots.dry and not self._is_awaited(slots, now)]
            for slots in unheard:
                # Before it is said, or a wake-up that comes while it is being said would be undone.
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
        """Plan the next look by how many jobs a claim gave."""
        full = given == claim.limit
        self._plan_look(self.queues[claim.queue], short=not full)
        if told and full:
            # There may be more than this worker has room for, and an enqueue notifies only a few.
            with suppress(HoldfastError):
                self._client.workers.pass_on(claim.queue)

    def rate(self) -> None:
        """Claim ahead what is run in a moment: nothing if jobs are long, many if they are short."""
        now = monotonic()
        if (passed := now - self._rated_at) < 0.05:
            return
        self._rated_at = now
        for slots in self.queues.values():
            rate, slots.ended = slots.ended / passed, 0
            slots.ahead = min(int(rate * AHEAD_SECONDS), MOST_AHEAD)

    def keep_unanswered(self, claims: Sequence[Claim], sent: float) -> None:
        """Remember claims whose outcome is unknown: they may have given leases."""
        self._unanswered += [(claim, sent) for claim in claims]

    def is_asking_due(self) -> bool:
        """Whether to ask now what claims with an unknown outcome gave."""
        return bool(self._unanswered) and self._ask_at <= monotonic()

    def has_plenty(self) -> bool:
        """Whether a queue of short jobs had all that was asked for: there is no end in sight."""
        return any(slots.ahead and not slots.dry for slots in self.queues.values())

    def ask_unanswered(self, longest: float) -> Iterator[tuple[Claim, float, Row]]:
        """Give what claims with an unknown outcome gave, rather than let it expire.

        More than once, until the `longest` lease is over: such a claim may still be on its way
        when the connection is back.
        """
        if not self.is_asking_due():
            return
        now = monotonic()
        self._ask_at = now + 1.0
        sent_at = {claim.token: sent for claim, sent in self._unanswered}
        for claim, row in self._client.drain.held([claim for claim, _ in self._unanswered]):
            yield claim, sent_at[claim.token], row
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
        """Whether every queue was empty for several looks: what is about to be promoted is work."""
        return all(slots.looks >= ENOUGH_LOOKS for slots in self.queues.values())

    def _is_awaited(self, slots: QueueSlots, now: float) -> bool:
        return slots.awaited_until > now and slots.ear == self._ear()

    def _plan_look(self, slots: QueueSlots, *, short: bool) -> None:
        """Look again soon after a queue ran dry, then ever less often.

        A job that was enqueued while nobody waited, in a transaction that commits only later,
        wakes nobody.
        """
        now = monotonic()
        # Under the lock: a wake-up wants a look now, which must not be put off.
        with self._lock:
            if short and slots.dry and (self._is_awaited(slots, now) or self._ear() is None):
                slots.look_at = now + min(self._poll(), FIRST_LOOK * 3**slots.looks)
                if self._ear() is not None:
                    # However rarely it looks: it has to say again that it waits.
                    slots.look_at = min(slots.look_at, slots.awaited_until)
                slots.looks += 1
            else:
                slots.dry, slots.look_at, slots.looks = short, 0.0, 0
