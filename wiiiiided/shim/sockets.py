"""Whose is the other end of a TCP connection of this machine? Asked of the kernel's tables.

    /proc/self/net/tcp      local 0A00000A:D431   remote 0A00000A:24F5   state 01   uid   inode
    /proc/<pid>/fd/7        socket:[inode]

A connection within one machine stands there twice, once for each end, and the row of the other end
is ours with both addresses exchanged. Its uid says which user has it, its inode which process does.
Only an established one counts: a socket whose owner has closed it shows root's number.
"""

from __future__ import annotations

import errno
import os
import socket
import sys
from dataclasses import dataclass

from wiiiiided.shim import processes

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterator
    from typing import Any

TABLES = ("/proc/self/net/tcp", "/proc/self/net/tcp6")
ESTABLISHED = "01"  # the state, as the table prints it
# A cable that is out for a minute ends nothing; a machine that is gone is noticed in the end.
KEEPALIVE = ((socket.TCP_KEEPIDLE, 30), (socket.TCP_KEEPINTVL, 15), (socket.TCP_KEEPCNT, 6))
SILENT_S = 120  # the same, for what was sent and is not acknowledged: keepalive rests meanwhile
# How a connection ends when the other machine is gone, not only the process there.
SILENCE = frozenset((errno.ETIMEDOUT, errno.EHOSTUNREACH, errno.ENETUNREACH))
MAPPED = bytes(10) + b"\xff\xff"  # an IPv4 address on a socket that could speak both


@dataclass(frozen=True)
class End:
    """One end of a connection."""

    uid: int
    inode: int


def other_end(here: tuple[Any, ...], there: tuple[Any, ...]) -> End | None:
    """The end at `there` of a connection that this side knows as `here`; None when it is not on
    this machine, or closed. OSError where the system has no such tables."""
    mine, theirs = _printed(here), _printed(there)
    missing = []
    for table in TABLES:
        try:
            for fields in _rows(table):
                if fields[1] in theirs and fields[2] in mine and fields[3] == ESTABLISHED:
                    return End(int(fields[7]), int(fields[9]))
        except OSError as problem:  # a kernel without this family
            missing.append(problem)
    if len(missing) == len(TABLES):
        raise missing[0]
    return None


def is_of_the_family(link: socket.socket) -> bool:
    """Whether a descendant of this process has the other end."""
    try:
        end = other_end(link.getsockname(), link.getpeername())
    except OSError:  # it is gone, or nobody can tell
        return False
    if end is None:
        return False
    name = f"socket:[{end.inode}]"
    return any(processes.has_open(one.pid, name) for one in processes.descendants(os.getpid()))


def inode(link: socket.socket) -> int:
    """The kernel's name for a socket, the same for every copy of it."""
    return os.fstat(link.fileno()).st_ino


def tune(link: socket.socket, far: bool = False) -> None:
    """Small answers at once, and an end to a machine that says nothing any more.

    `far` is for a connection to another machine's shim, which reads whatever comes. A rank that is
    stopped reads nothing, and must not lose its connection for that.
    """
    link.setblocking(False)
    link.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    link.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
    for option, value in KEEPALIVE:
        link.setsockopt(socket.IPPROTO_TCP, option, value)
    if far:
        # Less than the last probe's time: the kernel looks at it then.
        link.setsockopt(socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT, SILENT_S * 1000 - 500)


def _rows(table: str) -> Iterator[list[str]]:
    with open(table) as file:
        for line in file:
            yield line.split()


def _printed(address: tuple[Any, ...]) -> set[str]:
    """An address as the tables print it: 32-bit numbers in the machine's byte order, then a port.
    An IPv4 address stands there in one of two ways."""
    host, port = str(address[0]).partition("%")[0], int(address[1])
    if ":" in host:
        forms = [socket.inet_pton(socket.AF_INET6, host)]
    else:
        plain = socket.inet_aton(host)
        forms = [plain, MAPPED + plain]
    return {f"{_words(form)}:{port:04X}" for form in forms}


def _words(address: bytes) -> str:
    words = (address[at : at + 4] for at in range(0, len(address), 4))
    return "".join(f"{int.from_bytes(word, sys.byteorder):08X}" for word in words)
