"""The lane: how a large message crosses from one process to another, through shared memory.

    sender                     four chunks of 128 KiB                     receiver
    copy in ── CHUNK frame ──► │ 0 │ 1 │ 2 │ 3 │ ──► copy out ── TAKEN frame ──► chunk is free again

Each direction of a link has its own lane, made with the first message that needs it, carrying the
messages of all groups one after the other. The frames order memory (a syscall on each side of every
chunk), wake the reader and count the credits, so the lane needs no flags of its own.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

import numpy as np

from wiiiiided.backend.shm.segment import Segment
from wiiiiided.backend.shm.slots import Array
from wiiiiided.backend.wire.local_frame import Frame, FrameKind
from wiiiiided.errors import HostError

if TYPE_CHECKING:
    from wiiiiided.backend.engine.local_link import Link
    from wiiiiided.backend.engine.operation import Operation

CHUNK_BYTES: Final = 128 * 1024
CHUNKS: Final = 4


@dataclass
class Transfer:
    """A large message on its way out."""

    group: int
    source: int
    number: int
    data: Array  # bytes
    when_sent: Callable[[], None]
    op: Operation | None = None
    at: int = 0


class TransferQueue:
    """The large messages on their way out over one link, in the order of their calls."""

    def __init__(self) -> None:
        self._waiting: deque[Transfer] = deque()

    def withdraw(self, group: int) -> None:
        """A group is closed: drop what is left of its messages."""
        self._waiting = deque(t for t in self._waiting if t.group != group)

    def detach(self, op: Operation) -> None:
        """A send gave up in the middle: send what is left of it from a copy."""
        for transfer in self._waiting:
            if transfer.op is op:
                transfer.data = transfer.data.copy()


class Lanes(TransferQueue):
    """Both lanes of one link."""

    def __init__(self, send: Callable[[Frame, int], None]) -> None:
        super().__init__()
        self._send = send
        self._out: Array | None = None
        self._in: Array | None = None
        self._free: list[int] = []

    def carry(self, transfer: Transfer) -> None:
        """Send a message whose receiver is ready for it."""
        if self._out is None:
            segment = Segment.create("lane", CHUNKS * CHUNK_BYTES)
            segment.reserve(0, segment.nbytes)
            self._send(Frame(FrameKind.LANE, a=CHUNK_BYTES, b=CHUNKS), segment.fd)
            segment.forget_fd()
            self._out = np.frombuffer(segment.map, np.uint8)
            self._free = list(range(CHUNKS))
        self._waiting.append(transfer)
        self._pump()

    def on_frame(self, link: Link, frame: Frame) -> None:
        """LANE: the peer's chunks arrive. TAKEN: one of ours is free again."""
        if frame.kind is FrameKind.LANE:
            nbytes = CHUNKS * CHUNK_BYTES
            segment = Segment.attach(link.take_descriptor(), nbytes)
            segment.forget_fd()
            self._in = np.frombuffer(segment.map, np.uint8)
        else:
            self._free.append(frame.tag)
            self._pump()

    def take(self, frame: Frame, into: Array | None) -> None:
        """Copy out the chunk that a CHUNK frame announces (None: throw it away) and free it."""
        start = frame.tag * CHUNK_BYTES
        if self._in is None or not (0 <= frame.tag < CHUNKS and 0 <= frame.c <= CHUNK_BYTES):
            raise HostError(
                f"a peer announced chunk {frame.tag} of {frame.c} bytes, which is not there"
            )
        if into is not None and frame.c > into.size:
            raise HostError(f"a peer sent {frame.c} bytes where {into.size} of a message are left")
        if into is not None:
            into[: frame.c] = self._in[start : start + frame.c]
        self._send(Frame(FrameKind.TAKEN, tag=frame.tag), -1)

    def _pump(self) -> None:
        assert self._out is not None
        while self._waiting and self._free:
            transfer = self._waiting[0]
            chunk = self._free.pop()
            piece = transfer.data[transfer.at : transfer.at + CHUNK_BYTES]
            self._out[chunk * CHUNK_BYTES :][: piece.size] = piece
            transfer.at += piece.size
            self._send(
                Frame(
                    FrameKind.CHUNK,
                    transfer.group,
                    transfer.source,
                    transfer.number,
                    piece.size,
                    chunk,
                ),
                -1,
            )
            if transfer.at >= transfer.data.size:
                self._waiting.popleft()
                transfer.when_sent()
