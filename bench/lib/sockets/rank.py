"""One end of sockets.py's connections, in a host of its own: rank 0 receives, rank 1 sends.

Started by lib/hosts.py; waits for messages from sockets.py and lib/sockets/watch.py.
"""

from __future__ import annotations

import gc
import os
import select
import socket
import threading
import time

from lib import link
from lib.link import Message
from lib.sockets import moves
from lib.sockets.cases import SocketWay
from wiiiiided.backend.net import tuning

_FRAME = bytes(64)


class SocketRank:
    """This end's listener and connections."""

    def __init__(self) -> None:
        self.rank = int(os.environ["RANK"])
        self._receiver = os.environ["MASTER_ADDR"]
        self._listener = socket.socket()
        self._idle: list[socket.socket] = []
        self._watched: list[tuple[str, socket.socket]] = []

    # ---- a sweep

    def listen(self, message: Message) -> Message:
        """Listens for one way's streams."""
        self._listener.close()
        self._listener = socket.socket()
        moves.before(self._listener, SocketWay.of(message["way"]))
        self._listener.bind((self._receiver, 0))
        self._listener.listen(64)
        self._listener.settimeout(moves.PATIENCE_S)
        return {"port": self._listener.getsockname()[1]}

    def move(self, message: Message) -> Message:
        """Makes the streams, and moves bytes over them in the chapter's form."""
        gc.collect()
        way = SocketWay.of(message["way"])
        streams: list[socket.socket] = []
        try:
            streams.extend(self._stream(way, message) for _ in range(way.streams))
            for sock in streams:
                moves.after(sock, way)
            buffers = moves.granted(streams[0])  # before the kernel's own tuning
            done = moves.FORMS[message["form"]][self.rank](streams, way, message)
            return {"granted": buffers, **done}
        finally:
            for sock in streams:
                sock.close()

    def _stream(self, way: SocketWay, message: Message) -> socket.socket:
        if self.rank == 0:
            return moves.patient(self._listener.accept()[0])
        sock = moves.patient(socket.socket())
        moves.before(sock, way)
        sock.connect((self._receiver, message["port"]))
        return sock

    # ---- idle connections with keepalive

    def hold(self, message: Message) -> Message:
        """Drops what it had before, and accepts from another thread while this one answers."""
        for sock in (*self._idle, self._listener):
            sock.close()
        self._idle.clear()
        listener = self._listener = socket.create_server((self._receiver, 0), backlog=128)

        def accept() -> None:
            self._idle.extend(listener.accept()[0] for _ in range(message["count"]))

        threading.Thread(target=accept, daemon=True).start()
        return {"port": listener.getsockname()[1]}

    def watch(self, message: Message) -> Message:
        """Opens them, each a moment later than the one before: a cut then meets every phase."""
        for _, sock in self._watched:
            sock.close()
        self._watched.clear()
        for _ in range(message["phases"]):
            for name, values in message["sets"].items():
                sock = socket.create_connection((self._receiver, message["port"]), timeout=10)
                _tune(sock, values)
                self._watched.append((name, sock))
            time.sleep(message["spread_s"] / message["phases"])
        return {}

    def deaths(self, message: Message) -> Message:
        """Connections that end in so many seconds, by the machine's clock. `speak`: after a second,
        a frame goes into each connection."""
        until, speak_at = time.monotonic() + message["seconds"], time.monotonic() + 1.0
        poll = select.poll()
        by = {sock.fileno(): name for name, sock in self._watched}
        for fd in by:
            poll.register(fd, select.POLLIN)
        spoken = not message["speak"]
        ended: list[tuple[str, float]] = []
        while (now := time.monotonic()) < until and len(ended) < len(by):
            for fd, _ in poll.poll(50):
                ended.append((by[fd], time.monotonic()))
                poll.unregister(fd)
            if not spoken and now > speak_at:
                spoken = True
                for _, sock in self._watched:
                    sock.send(_FRAME)
        return {"ended": ended}

    def stop(self, message: Message) -> Message:
        return {}


def _tune(sock: socket.socket, values: list[int] | None) -> None:
    """Idle, interval, count; None: as the package itself does."""
    if values is None:
        tuning.tune_watch(sock)
        return
    sock.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
    names = (socket.TCP_KEEPIDLE, socket.TCP_KEEPINTVL, socket.TCP_KEEPCNT)
    for name, value in zip(names, values, strict=True):
        sock.setsockopt(socket.IPPROTO_TCP, name, value)


if __name__ == "__main__":
    link.run(SocketRank)
