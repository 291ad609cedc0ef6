"""Who is at the other end of a TCP connection? The kernel's table knows, for this machine's own.

    sl  local_address rem_address   st … uid          /proc/net/tcp, tcp6
     7: 0100007F:9C42 0100007F:24F5 01 … 1000         the client's end of a connection to our port

Addresses are printed as numbers of the machine's byte order, IPv6 as four of them. A client may
have an IPv6 socket and speak IPv4 with it: then its line is in tcp6 and ends like the other.
Only an established connection counts: a socket whose owner has closed it shows root's number.
"""

from __future__ import annotations

import socket
import sys
from typing import Final

_TABLES: Final = ("/proc/net/tcp", "/proc/net/tcp6")
_ESTABLISHED: Final = "01"


def uid_at(connection: socket.socket) -> int | None:
    """The user of the process at the other end; None when it is not on this machine, or gone."""
    try:
        here, there = _printed(connection.getsockname()), _printed(connection.getpeername())
    except OSError:  # it has gone
        return None
    for table in _TABLES:
        try:
            with open(table) as file:
                for line in file:
                    if there in line and (uid := _match(line, there, here)) is not None:
                        return uid
        except OSError:  # a kernel without this family
            continue
    return None


def _match(line: str, local: str, remote: str) -> int | None:
    fields = line.split()
    if not (fields[1].endswith(local) and fields[2].endswith(remote)):
        return None
    return int(fields[7]) if fields[3] == _ESTABLISHED else None


def _printed(address: tuple[str, int]) -> str:
    """An address and port as the table prints them."""
    host, port = address[0].partition("%")[0], address[1]
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    packed = socket.inet_pton(family, host)
    words = [packed[at : at + 4] for at in range(0, len(packed), 4)]
    return "".join(f"{int.from_bytes(word, sys.byteorder):08X}" for word in words) + f":{port:04X}"
