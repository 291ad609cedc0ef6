"""The link between two processes of one machine: a unix stream socket.

It wakes a sleeping peer (any frame does), carries the mailbox's frames (small messages, offers and
credits) and descriptors, and tells of a peer's death: when the peer's process ends, in
whatever way, its kernel closes the socket, and the pidfd says so even if a forked child still holds
it. One link per pair of processes carries all their groups.

Sending never blocks: what the socket does not take is kept and goes out when it is writable again.
Bytes that the socket has taken arrive even if we end: the kernel keeps them for the peer.
"""

from __future__ import annotations

import array
import json
import os
import select
import socket
import struct
import time
from collections import deque
from collections.abc import Callable
from dataclasses import asdict, dataclass
from typing import Final

from wiiiiided.backend.engine.lane import Lanes
from wiiiiided.backend.wire.local_frame import Frame, FrameKind, FrameReader
from wiiiiided.errors import HostError

READ_BYTES: Final = 256 * 1024
_BELL: Final = Frame(FrameKind.BELL).header()


@dataclass(frozen=True)
class Card:
    """How a process introduces itself, in the Store and in HELLO."""

    uid: str  # random, for this process's lifetime
    token: str  # a peer that knows it may connect
    pid: int
    host: str
    boot: str  # the kernel's boot id: other processes with the same one are on this machine
    network: str  # the network namespace, within which abstract socket names are found
    cores: list[int]  # the CPUs it may run on
    identity: str = ""  # a forced host identity, for tests: ranks with different ones are apart

    def dump(self) -> bytes:
        return json.dumps(asdict(self)).encode()

    @classmethod
    def load(cls, raw: bytes) -> Card:
        try:
            card = cls(**json.loads(raw))
            texts = (card.uid, card.token, card.host, card.boot, card.network, card.identity)
            if not all(isinstance(text, str) and text.isascii() for text in texts):
                raise ValueError("a field is not plain text")
            if not isinstance(card.pid, int) or not all(isinstance(c, int) for c in card.cores):
                raise ValueError("a field is not a number")
            return card
        except (ValueError, TypeError, RecursionError) as problem:
            raise HostError(
                "a rank introduced itself in a way this version does not know; "
                "all ranks must run the same version of wiiiiided"
            ) from problem

    @property
    def host_key(self) -> tuple[str, str, str]:
        """Equal for processes that find each other's sockets and can share memory."""
        return self.boot, self.network, self.identity

    @property
    def address(self) -> str:
        """Its listening socket, in the abstract namespace: no file, nothing to remove."""
        return f"\0wiiiiide-{self.uid}"


Then = Callable[[], None]
SendFrame = Callable[["Link", Frame, int], None]  # with the descriptor to send along, or -1


@dataclass
class _Outgoing:
    data: memoryview
    descriptor: int = -1
    then: Then | None = None

    def drop_descriptor(self) -> None:
        if self.descriptor >= 0:
            os.close(self.descriptor)
            self.descriptor = -1


class Link:
    """One end of a connected link. Frames of its lanes go through `send`: the loop's business."""

    def __init__(self, sock: socket.socket, peer: Card, send: SendFrame) -> None:
        sock.setblocking(False)
        self.sock = sock
        self.fd = sock.fileno()
        self.peer = peer
        self.pid = _peer_pid(sock) or peer.pid
        self.pidfd = _open_pidfd(sock)
        self.gone = ""  # how it ended: "died" or "left"; empty while it lives
        self.said_bye = False
        self.lanes = Lanes(lambda frame, descriptor: send(self, frame, descriptor))
        self._reader = FrameReader()
        self._descriptors: deque[int] = deque()
        self._out: deque[_Outgoing] = deque()

    # -- out ----

    def send(self, frame: Frame, descriptor: int = -1, then: Then | None = None) -> None:
        """Send, now or as soon as the socket takes it; in order. The descriptor is duplicated.

        `then` is called when all of it is with the kernel; never, if the peer is gone.
        """
        if self.gone:
            return
        data = memoryview(frame.header() + frame.payload)
        copy = os.dup(descriptor) if descriptor >= 0 else -1
        self._out.append(_Outgoing(data, copy, then))
        if len(self._out) == 1:
            self.flush()

    def ring(self) -> None:
        """Wake the peer if it sleeps; anything that arrives does."""
        if self._out:
            self.flush()  # either some of it goes, or the socket is full: both wake the peer
        elif not self.gone:
            try:
                self.sock.send(_BELL)  # all of it or nothing: it is one small buffer
            except OSError:
                pass  # full, or the peer is gone: the loop will read that from the socket

    def flush(self) -> None:
        """Send what waits, as far as the socket takes it."""
        while self._out:
            first = self._out[0]
            rights = (
                [(socket.SOL_SOCKET, socket.SCM_RIGHTS, struct.pack("i", first.descriptor))]
                if first.descriptor >= 0
                else []
            )
            try:
                sent = self.sock.sendmsg([first.data], rights)
            except BlockingIOError:
                return
            except (BrokenPipeError, ConnectionError):
                self._drop_unsent()  # the peer is gone: reading will say so
                return
            except OSError:
                return  # the kernel is short of something: again when the socket is writable
            first.drop_descriptor()
            first.data = first.data[sent:]
            if not first.data:
                self._out.popleft()
                if first.then is not None:
                    first.then()

    def drain(self, timeout_s: float) -> None:
        """Give the peer a moment, before the end, to take what is left."""
        deadline = time.monotonic() + timeout_s
        writable = select.poll()
        writable.register(self.fd, select.POLLOUT)
        while self._out and (left := deadline - time.monotonic()) > 0:
            writable.poll(left * 1000)
            self.flush()

    @property
    def wants_to_write(self) -> bool:
        return bool(self._out)

    # -- in ----

    def receive(self) -> tuple[list[Frame], bool]:
        """The frames that have come, and whether the peer has closed its end."""
        frames: list[Frame] = []
        room = socket.CMSG_SPACE(4 * 8)
        while True:
            try:
                data, ancillary, _, _ = self.sock.recvmsg(READ_BYTES, room, socket.MSG_CMSG_CLOEXEC)
            except BlockingIOError:
                return frames, False
            except OSError:
                return frames, True
            for level, kind, raw in ancillary:
                if level == socket.SOL_SOCKET and kind == socket.SCM_RIGHTS:
                    fds = array.array("i")
                    fds.frombytes(raw[: len(raw) // 4 * 4])
                    self._descriptors.extend(fds)
            if not data:
                return frames, True
            frames += self._reader.feed(data)
            if len(data) < READ_BYTES and not ancillary:
                return frames, False

    def take_descriptor(self) -> int:
        """The descriptor that came with a SEGMENT or LANE frame."""
        if not self._descriptors:
            raise HostError(
                f"no descriptor came with shared memory from pid {self.pid}: "
                "is this process at its limit of open files (ulimit -n)?"
            )
        return self._descriptors.popleft()

    # -- end ----

    def close(self) -> None:
        """Close everything; harmless when repeated."""
        self._drop_unsent()
        while self._descriptors:
            os.close(self._descriptors.popleft())
        self.sock.close()
        if self.pidfd >= 0:
            os.close(self.pidfd)
            self.pidfd = -1

    def _drop_unsent(self) -> None:
        for left in self._out:
            left.drop_descriptor()
        self._out.clear()


def _credentials(sock: socket.socket) -> tuple[int, int, int]:
    raw = sock.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, struct.calcsize("3i"))
    pid, uid, gid = struct.unpack("3i", raw)
    return pid, uid, gid


def peer_uid(sock: socket.socket) -> int:
    """The user the other end runs as, by the kernel's word."""
    return _credentials(sock)[1]


def _peer_pid(sock: socket.socket) -> int:
    return _credentials(sock)[0]  # 0 when it lives in a pid namespace we cannot see


def _open_pidfd(sock: socket.socket) -> int:
    """A descriptor that becomes readable when the peer dies, or -1 where that cannot be had."""
    pid = _peer_pid(sock)
    try:
        return os.pidfd_open(pid) if pid > 0 else -1
    except OSError:
        return -1
