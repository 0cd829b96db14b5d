"""How long a call waits for a reply: until its deadline, looking up now and then."""

from collections.abc import Generator
from time import monotonic
from typing import Any, TypeVar

import psycopg
from psycopg.abc import PQGen

RV = TypeVar("RV")

# The driver looks up so often while it waits for a reply.
TICK = 0.1
# After so long without a reply, and then again and again, the client looks whether another server
# has taken over: one that stands still does not hang up.
QUIET = 3.0


class TooLate(psycopg.OperationalError):
    """There was no reply before the deadline."""


class Quiet(Exception):  # noqa: N818
    """There has been no reply for a while; the generator that waits can go on with `wanted`."""

    def __init__(self, wanted: Any) -> None:
        super().__init__()
        self.wanted = wanted


def until(gen: PQGen[RV], deadline: float, wanted: Any = None) -> Generator[Any, Any, RV]:
    """Run a generator of the driver until it has waited past the deadline, or for a while."""
    quiet = 0.0
    try:
        if wanted is None:
            wanted = next(gen)
        while True:
            ready = yield wanted
            if not ready:
                quiet += TICK
                if monotonic() > deadline:
                    raise TooLate("no answer from the server before the deadline")
                if quiet >= QUIET:
                    raise Quiet(wanted)
            wanted = gen.send(ready)
    except StopIteration as stop:
        result: RV = stop.value
        return result
