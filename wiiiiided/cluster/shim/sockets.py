"""Which process has the other end of a TCP connection within this machine, asked of the kernel.

    does this machine have that address?     bind(2) to it: no  ─► no process here has it
    NETLINK_SOCK_DIAG, that one connection   state │ uid │ inode
    /proc/self/net/tcp      local 0A00000A:D431   remote 0A00000A:24F5   state 01   uid   inode
    /proc/<pid>/fd/7        socket:[inode]

A connection within one machine is listed twice, once for each end, with the two addresses
exchanged. The other end's uid names its user, its inode the process. Only an established one
counts: a socket that its owner has closed shows uid 0.

The tables are printed whole, 25 ms at 30,000 connections, so they are read only where the kernel
does not answer for one: a client that connects a hundred times a second would hold up a daemon.
Whether the kernel answers is tried once, with this process's own end, which must exist.
"""

from __future__ import annotations

import errno
import os
import socket
import struct
import sys
from dataclasses import dataclass

from wiiiiided.cluster.shim import processes

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterator
    from typing import Any

TABLES = ("/proc/self/net/tcp", "/proc/self/net/tcp6")
ESTABLISHED = "01"  # the state, as the table prints it
# A cable that is out for a minute ends nothing; a machine that is gone is noticed in the end.
KEEPALIVE = ((socket.TCP_KEEPIDLE, 30), (socket.TCP_KEEPINTVL, 15), (socket.TCP_KEEPCNT, 6))
SILENT_S = 120  # the same, for bytes sent and not acknowledged: keepalive rests meanwhile
# The errors of a connection when the other machine is gone, not only the process there.
SILENCE = frozenset((errno.ETIMEDOUT, errno.EHOSTUNREACH, errno.ENETUNREACH))
MAPPED = bytes(10) + b"\xff\xff"  # an IPv4 address on a socket that could speak both

# linux/netlink.h, linux/inet_diag.h: a header, then the socket in question: ports and addresses in
# network order, the interface, and no cookie. The answer begins with the header, too.
NETLINK_SOCK_DIAG, SOCK_DIAG_BY_FAMILY, NLMSG_ERROR, NLM_F_REQUEST = 4, 20, 2, 1
REQUEST = struct.Struct("=IHHII BBxxI")
WHICH = struct.Struct("=2s2s16s16sI8s")
ANSWER = struct.Struct("=IHHII xBxx 48s 12x II")  # state, which, uid, inode
NO_COOKIE = b"\xff" * 8
_answered: list[
    bool
] = []  # not empty once it has: a socket that it does not find then does not exist
ANSWER_S = 1.0  # the kernel answers before it returns from `send`


@dataclass(frozen=True)
class SocketEnd:
    """One end of a connection."""

    uid: int
    inode: int


def other_end(here: tuple[Any, ...], there: tuple[Any, ...]) -> SocketEnd | None:
    """The end at `there` of a connection whose end at this side is `here`; None when it is not on
    this machine, or closed. OSError where the kernel gives no answer at all."""
    if not is_of_this_machine(there):
        return None
    try:
        return _by_netlink(here, there)
    except OSError:  # a kernel without it, or one that does not permit it
        return _by_tables(here, there)


def is_of_this_machine(address: tuple[Any, ...]) -> bool:
    """Whether a socket can be bound to that address: as good as a list of all interfaces, with
    every loopback address, and never out of date."""
    host, scope = _plain(address)
    family = socket.AF_INET6 if len(host) == 16 else socket.AF_INET
    text = socket.inet_ntop(family, host)
    try:
        with socket.socket(family, socket.SOCK_DGRAM | socket.SOCK_CLOEXEC) as trial:
            trial.bind((text, 0, 0, scope) if family == socket.AF_INET6 else (text, 0))
    except OSError as problem:
        return problem.errno != errno.EADDRNOTAVAIL  # anything else says nothing about it
    return True


def _by_netlink(here: tuple[Any, ...], there: tuple[Any, ...]) -> SocketEnd | None:
    """OSError where the kernel does not answer: then it does not find our own end either."""
    kind = socket.SOCK_DGRAM | socket.SOCK_CLOEXEC
    with socket.socket(socket.AF_NETLINK, kind, NETLINK_SOCK_DIAG) as link:
        link.settimeout(ANSWER_S)
        found = _diagnosed(link, there, here)
        if found is None and not _answered and _diagnosed(link, here, there) is None:
            raise OSError(errno.ENOENT, "the kernel does not find a connection that is there")
    _answered[:] = [True]
    return None if found is None or found[0] != int(ESTABLISHED) else found[1]


def _diagnosed(
    link: socket.socket, local: tuple[Any, ...], remote: tuple[Any, ...]
) -> tuple[int, SocketEnd] | None:
    """State and owner of the socket with these two ends; None: there is none."""
    (source, scope), (target, _) = _plain(local), _plain(remote)
    family = socket.AF_INET6 if len(source) == 16 else socket.AF_INET
    ports = (int(end[1]).to_bytes(2, "big") for end in (local, remote))
    which = WHICH.pack(*ports, source.ljust(16, b"\0"), target.ljust(16, b"\0"), scope, NO_COOKIE)
    size = REQUEST.size + WHICH.size
    header = (size, SOCK_DIAG_BY_FAMILY, NLM_F_REQUEST, 1, 0)
    link.send(REQUEST.pack(*header, family, socket.IPPROTO_TCP, 0xFFFFFFFF) + which)
    data = link.recv(4096)
    if len(data) < ANSWER.size or int.from_bytes(data[4:6], sys.byteorder) == NLMSG_ERROR:
        return None
    *_, state, found, uid, inode = ANSWER.unpack_from(data)
    # Where the connection is gone, the kernel answers with a listening socket.
    return (state, SocketEnd(uid, inode)) if found[:4] == which[:4] else None


def _plain(address: tuple[Any, ...]) -> tuple[bytes, int]:
    """An address in network order, 4 or 16 bytes, and its interface, 0: any."""
    host = str(address[0]).partition("%")[0]
    if ":" not in host:
        return socket.inet_aton(host), 0
    packed = socket.inet_pton(socket.AF_INET6, host)
    if packed.startswith(MAPPED):
        return packed[len(MAPPED) :], 0
    return packed, int(address[3]) if len(address) > 3 else 0


def _by_tables(here: tuple[Any, ...], there: tuple[Any, ...]) -> SocketEnd | None:
    mine, theirs = _printed(here), _printed(there)
    missing = []
    for table in TABLES:
        try:
            for fields in _rows(table):
                if fields[1] in theirs and fields[2] in mine and fields[3] == ESTABLISHED:
                    return SocketEnd(int(fields[7]), int(fields[9]))
        except OSError as problem:  # a kernel without this family
            missing.append(problem)
    if len(missing) == len(TABLES):
        raise missing[0]
    return None


def is_of_the_family(link: socket.socket) -> bool:
    """Whether a descendant of this process has the other end."""
    try:
        end = other_end(link.getsockname(), link.getpeername())
    except OSError:  # the connection is gone, or the kernel gives no answer
        return False
    if end is None:
        return False
    name = f"socket:[{end.inode}]"
    return any(processes.has_open(one.pid, name) for one in processes.descendants(os.getpid()))


def inode(link: socket.socket) -> int:
    """The kernel's name for a socket, the same for every copy of it."""
    return os.fstat(link.fileno()).st_ino


def tune(link: socket.socket, far: bool = False) -> None:
    """Send small answers at once, and end the connection of a machine that has fallen silent.

    `far` is for a connection to another machine's shim, which always reads. A rank that is stopped
    reads nothing, and must not lose its connection for that.
    """
    link.setblocking(False)
    link.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    link.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
    for option, value in KEEPALIVE:
        link.setsockopt(socket.IPPROTO_TCP, option, value)
    if far:
        # Less than the last probe's time, at which the kernel checks it.
        link.setsockopt(socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT, SILENT_S * 1000 - 500)


def _rows(table: str) -> Iterator[list[str]]:
    with open(table) as file:
        for line in file:
            yield line.split()


def _printed(address: tuple[Any, ...]) -> set[str]:
    """An address as the tables print it: 32-bit numbers in the machine's byte order, then a port.
    An IPv4 address is printed in one of two ways."""
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
