"""What the kernel tells of processes; 0 where it does not. Standard library only."""

import os
from collections.abc import Iterator
from pathlib import Path


def cpu(pid: int) -> float:
    """Return the seconds that the first thread of a process has run so far, to the nanosecond."""
    try:
        return int(Path(f"/proc/{pid}/schedstat").read_text().split()[0]) / 1e9
    except (OSError, IndexError):
        return 0.0


def family_cpu(pid: int) -> float:
    """Return the seconds a process and its children have run, those that have ended included."""
    ticks = sum(sum(map(int, _stat(member)[11:15])) for member in _family(pid))
    return ticks / os.sysconf("SC_CLK_TCK")


def family_memory(pid: int) -> float:
    """Return the resident megabytes of a process and its children."""
    pages = 0
    for member in _family(pid):
        try:
            pages += int(Path(f"/proc/{member}/statm").read_text().split()[1])
        except OSError:
            continue
    return pages * os.sysconf("SC_PAGE_SIZE") / 1e6


def parent(pid: int) -> int:
    """Return the process that started this one."""
    return int((_stat(pid) or ["", "0"])[1])


def _family(pid: int) -> Iterator[int]:
    yield pid
    try:
        threads = [*Path(f"/proc/{pid}/task").iterdir()]
    except OSError:
        return
    for thread in threads:
        try:
            children = (thread / "children").read_text().split()
        except OSError:
            continue
        for child in children:
            yield from _family(int(child))


def _stat(pid: int) -> list[str]:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    except OSError:
        return []
