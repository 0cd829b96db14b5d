"""Ports for programs that have to be told one."""

import os
import random
import socket
from contextlib import ExitStack
from itertools import count
from pathlib import Path

_OURS = 1_500
"""How many ports each process of a parallel run has for itself."""

_turn = count(random.SystemRandom().randrange(_OURS))


def free_port(beside: int = 0) -> int:
    """Return a port of this machine that nobody listens on, nor on so many that follow it.

    It is below those that the kernel gives to whoever connects or asks for any port. One of those
    may be somebody's before the program that was told of it listens; and who connects to one again
    and again while nobody listens there gets it himself in the end, as both ends of a connection.
    """
    above = Path("/proc/sys/net/ipv4/ip_local_port_range")
    end = int(above.read_text().split()[0]) if above.exists() else 32_768
    process = int(os.environ.get("PYTEST_XDIST_WORKER", "gw0").removeprefix("gw")) % 8
    first = end - (process + 1) * _OURS - beside
    while True:
        port = first + next(_turn) % _OURS
        try:
            with ExitStack() as taken:
                for one in range(port, port + beside + 1):
                    taken.enter_context(socket.create_server(("127.0.0.1", one)))
        except OSError:
            continue
        return port
