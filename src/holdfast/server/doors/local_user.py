"""Which user's process is at the other end of a connection on this machine.

An address of this machine is not an identity: a proxy has the same address, for all its clients.
The system knows which user opened a socket, but only Linux reports it.
"""

import ipaddress
import os
import socket
import struct
import sys
from collections.abc import Sequence
from functools import cache
from pathlib import Path

__all__ = ["KNOWN", "owner", "trusted"]

# Whether the system reports it.
KNOWN = sys.platform == "linux"

_SOCK_DIAG, _BY_FAMILY, _REQUEST, _ERROR, _ANY_COOKIE = 4, 20, 1, 2, b"\xff" * 8
_HEAD = struct.Struct("=IHHII")
# How many bytes of a reply come before the user and the inode.
_BEFORE_USER = _HEAD.size + 4 + 48 + 12


@cache
def trusted() -> frozenset[int]:
    """Return the ids of the user who runs this server."""
    users = {os.geteuid()}
    if os.geteuid() == 0:
        # `sudo holdfast dev`: the browser belongs to the user who typed it.
        told = os.environ.get("SUDO_UID", "")
        users |= {int(told)} if told.isdecimal() else set()
    if "microsoft" in _read("/proc/sys/kernel/osrelease").lower():
        # Under WSL the browser is a Windows program, and root passes its connections on.
        users.add(0)
    return frozenset(users)


def owner(caller: Sequence[object] | None, server: Sequence[object] | None) -> int | None:
    """Return the user whose socket a connection came from; None if it is unknown.

    A socket that was closed in the meantime has no owner, and the system reports root: it counts
    as unknown.
    """
    try:
        source, target = _end(caller), _end(server)
    except (TypeError, ValueError, IndexError):
        return None
    if source[0].version != target[0].version:
        return None
    try:
        return _asked(source, target)
    except (OSError, struct.error):
        return _listed(source, target)


_End = tuple[ipaddress.IPv4Address | ipaddress.IPv6Address, int]


def _end(address: Sequence[object] | None) -> _End:
    if address is None:
        raise TypeError("no address")
    host, port = address[0], address[1]
    return ipaddress.ip_address(str(host)), int(str(port))


def _asked(source: _End, target: _End) -> int | None:
    """Look up one socket; the cost does not depend on how many there are."""
    family = socket.AF_INET if source[0].version == 4 else socket.AF_INET6
    about = struct.pack("=BBBxI", family, socket.IPPROTO_TCP, 0, 0xFFFFFFFF)
    about += struct.pack(">HH", source[1], target[1])
    about += source[0].packed.ljust(16, b"\0") + target[0].packed.ljust(16, b"\0")
    about += struct.pack("=I", 0) + _ANY_COOKIE
    head = _HEAD.pack(_HEAD.size + len(about), _BY_FAMILY, _REQUEST, 1, 0)
    with socket.socket(socket.AF_NETLINK, socket.SOCK_RAW, _SOCK_DIAG) as asking:
        asking.settimeout(1.0)
        asking.sendto(head + about, (0, 0))
        answer = asking.recv(4096)
    _, sort, _, _, _ = _HEAD.unpack_from(answer)
    if sort == _ERROR:
        (code,) = struct.unpack_from("=i", answer, _HEAD.size)
        if -code == 2:  # there is no such socket
            return None
        raise OSError(-code, "the system does not report it")
    user, inode = struct.unpack_from("=II", answer, _BEFORE_USER)
    return int(user) if inode else None


def _listed(source: _End, target: _End) -> int | None:
    """Look for it in the list of all sockets."""
    wanted = [_hex(source), _hex(target)]
    name = "tcp" if source[0].version == 4 else "tcp6"
    for line in _read(f"/proc/net/{name}").splitlines()[1:]:
        fields = line.split()
        if fields[1:3] == wanted and fields[9] != "0":
            return int(fields[7])
    return None


def _hex(end: _End) -> str:
    words = struct.iter_unpack(">I", end[0].packed)
    text = "".join(f"{struct.unpack('=I', struct.pack('>I', word))[0]:08X}" for (word,) in words)
    return f"{text}:{end[1]:04X}"


def _read(path: str) -> str:
    try:
        return Path(path).read_text("ascii", "replace")
    except OSError:
        return ""
