"""Priorities of Django's Tasks, -100 to 100, as those of jobs, 0 to 9."""

from bisect import bisect_right

# Where each priority from 1 to 9 begins. Narrow around zero, so that 0, 1 and 10 differ.
_BEGINS = (-50, -10, 0, 1, 10, 25, 50, 75, 100)


def priority_of_job(priority: int) -> int:
    """Return the priority of a job for that of a task; 0, the usual one, is 3."""
    return bisect_right(_BEGINS, priority)
