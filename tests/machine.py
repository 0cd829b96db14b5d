"""How busy the machine is, for the few tests that hold a wall clock against a promise."""

import time


def slowness() -> float:
    """Return how much longer than its CPU time work takes now: 1 on a quiet machine."""
    began, used = time.perf_counter(), time.process_time()
    while time.process_time() - used < 0.2:
        sum(range(1000))
    return max(1.0, (time.perf_counter() - began) / 0.2)
