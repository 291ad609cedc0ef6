"""The ends of idle connections with keepalive: one side holds them, one sees them die.

b  {"do": "keep", "count": n}                     accepts n connections and leaves them alone
a  {"do": "watch", "port": …, "sets": […], …}     opens them, each a moment later than the one
                                                  before: a cut then meets every phase
a  {"do": "deaths", "seconds": …, "speak": …}     tells which of them ended, when and how
"""

from __future__ import annotations

import os
import select
import socket
import threading
import time
from collections.abc import Callable
from typing import Any

from lib.namespaces import ADDRESSES
from wiiiiided.backend.net import tuning

_FRAME = bytes(64)
_kept: list[socket.socket] = []
_watched: list[tuple[str, socket.socket]] = []
_doors: list[socket.socket] = []


def keep(asked: dict[str, Any]) -> dict[str, Any]:
    """Drops what it had before, and accepts from another thread while this one answers."""
    for sock in _kept + _doors:
        sock.close()
    _kept.clear()
    _doors[:] = [socket.create_server((ADDRESSES[1], 0), backlog=128)]
    door = _doors[0]

    def accept() -> None:
        _kept.extend(door.accept()[0] for _ in range(asked["count"]))

    threading.Thread(target=accept, daemon=True).start()
    return {"port": door.getsockname()[1]}


def watch(asked: dict[str, Any]) -> dict[str, Any]:
    for _, sock in _watched:
        sock.close()
    _watched.clear()
    for _ in range(asked["phases"]):
        for name, values in asked["sets"].items():
            sock = socket.create_connection((ADDRESSES[1], asked["port"]), timeout=10)
            _tune(sock, values)
            _watched.append((name, sock))
        time.sleep(asked["spread_s"] / asked["phases"])
    return {"open": len(_watched)}


def _tune(sock: socket.socket, values: list[int] | None) -> None:
    """Idle, interval, count; None: as the package itself does."""
    if values is None:
        tuning.tune_watch(sock)
        return
    sock.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
    names = (socket.TCP_KEEPIDLE, socket.TCP_KEEPINTVL, socket.TCP_KEEPCNT)
    for name, value in zip(names, values, strict=True):
        sock.setsockopt(socket.IPPROTO_TCP, name, value)


def deaths(asked: dict[str, Any]) -> dict[str, Any]:
    """Connections that end in so many seconds, by the machine's clock. `speak`: after a second, a
    frame goes into each connection."""
    until, speak_at = time.monotonic() + asked["seconds"], time.monotonic() + 1.0
    poll = select.poll()
    by = {sock.fileno(): (name, sock) for name, sock in _watched}
    for fd in by:
        poll.register(fd, select.POLLIN)
    spoken = not asked["speak"]
    ended: list[tuple[str, float, str]] = []
    while (now := time.monotonic()) < until and len(ended) < len(by):
        for fd, _ in poll.poll(50):
            name, sock = by[fd]
            error = sock.getsockopt(socket.SOL_SOCKET, socket.SO_ERROR)
            ended.append((name, time.monotonic(), os.strerror(error)))
            poll.unregister(fd)
        if not spoken and now > speak_at:
            spoken = True
            for _, sock in _watched:
                sock.send(_FRAME)
    return {"ended": ended, "spoke_at": speak_at}


KNOWN: dict[str, Callable[[dict[str, Any]], dict[str, Any]]] = {
    "keep": keep,
    "watch": watch,
    "deaths": deaths,
}
