"""A way to move bytes over TCP: the options of its sockets, and how its calls are made.

Both ends get the same description, so that a way is written down once.
"""

from __future__ import annotations

import dataclasses
import socket
from dataclasses import dataclass
from typing import Any, Self

KB, MB = 1024, 1024 * 1024


@dataclass(frozen=True)
class SocketWay:
    """The defaults are what the sweep compares with: nothing set but NODELAY."""

    label: str
    send_buffer: int = 0  # SO_SNDBUF; 0: the kernel's own tuning
    receive_buffer: int = 0  # SO_RCVBUF
    nodelay: bool = True
    quickack: str = ""  # "once": after connecting; "always": before every receive too
    lowat: int = 0  # TCP_NOTSENT_LOWAT
    send_chunk: int = 256 * KB  # bytes given to one send
    receive_chunk: int = 256 * KB  # bytes asked of one receive
    streams: int = 1
    header: int = 0  # bytes of a header before each chunk
    gathered: bool = True  # header and chunk in one sendmsg; else in two sends
    into: bool = True  # recv_into the place; else recv, and a copy to the place

    def plain(self) -> dict[str, Any]:
        return dataclasses.asdict(self)

    @classmethod
    def of(cls, plain: dict[str, Any]) -> Self:
        return cls(**plain)


def before(sock: socket.socket, way: SocketWay) -> None:
    """Options set before a connection is made: the window is agreed on in its first packet."""
    if way.send_buffer:
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, way.send_buffer)
    if way.receive_buffer:
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, way.receive_buffer)


def after(sock: socket.socket, way: SocketWay) -> None:
    sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, way.nodelay)
    if way.quickack:
        acknowledge_at_once(sock)
    if way.lowat:
        sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NOTSENT_LOWAT, way.lowat)


def acknowledge_at_once(sock: socket.socket) -> None:
    sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_QUICKACK, 1)


def granted(sock: socket.socket) -> list[int]:
    """The buffers there really are; the kernel counts its own overhead and doubles what it is told.

    So half of it is what compares with what was asked for.
    """
    names = (socket.SO_SNDBUF, socket.SO_RCVBUF)
    return [sock.getsockopt(socket.SOL_SOCKET, name) // 2 for name in names]
