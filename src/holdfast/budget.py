"""How many connections a worker process opens at most, and what they are for."""

from typing import NamedTuple

# To claim and to settle, each on a connection of its own, for upkeep, and to tell other workers.
OWN = 4
# To listen and to renew leases, past the pooler where there is one.
PAST_POOLER = 2
# What handlers of one sort (async, or in threads) have beside one for each slot, to enqueue.
SPARE = 4
# Of more slots than these, not all hold transactions at once.
MOST_SLOTS = 32


class Budget(NamedTuple):
    """The connections of one worker process, by what they are for."""

    own: int
    past_pooler: int
    handlers: int

    @property
    def total(self) -> int:
        """All of them."""
        return sum(self)


def for_handlers(slots: int) -> int:
    """Return how many connections handlers need if each slot holds a transaction."""
    return SPARE + min(slots, MOST_SLOTS)


def of_worker(slots: int, sorts: int = 1) -> Budget:
    """Return the budget of a worker whose handlers are of so many sorts: async, in threads."""
    return Budget(OWN, PAST_POOLER, for_handlers(slots) * sorts)
