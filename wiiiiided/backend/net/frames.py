"""Frames on one stream: gathered sends out of where the data lies, receives straight into place.

    out   │ header │ payload of the caller's memory │ header │ …    one sendmsg takes many of them
    in    4 KiB of scratch find the header; what of the payload came along is copied (at most that
          much); the rest goes from the kernel into its place, and with the same call the next
          header into scratch

The receiver decides where a frame goes (`Sink.place`) before its payload is read. Where there is no
place yet, reading stops (`paused`) and the kernel holds the sender back (backpressure); `resume`
goes on. Nothing is ever allocated by what a header claims beyond what the sink grants.
"""

from __future__ import annotations

import errno
import ssl
from collections import deque
from collections.abc import Callable, Iterator
from itertools import islice
from typing import Final, Protocol

from wiiiiided.backend.net.stream import Stream
from wiiiiided.backend.wire.header import HEADER_BYTES, Header, unpack, verify
from wiiiiided.errors import BadFrame

SCRATCH_BYTES: Final = 4096
GATHERED: Final = 32  # buffers in one send: half of them headers
GATHERED_BYTES: Final = 1 << 20
TURN_BYTES: Final = 4 << 20  # read from one stream before the others have their turn

Then = Callable[[], None]


class Sink(Protocol):
    """The receiver of a stream's frames."""

    def place(self, header: Header) -> memoryview | None:
        """Memory for the payload as it travels (`header.length` bytes); None: not yet."""

    def arrived(self, header: Header, payload: memoryview) -> None:
        """A whole frame is there, its payload checked."""


class _Out:
    """A buffer on its way out, and whose it is."""

    __slots__ = ("borrowed", "group", "head", "then", "view")

    def __init__(
        self, view: memoryview, group: int, then: Then | None, head: bool, borrowed: bool
    ) -> None:
        self.view, self.group, self.then = view, group, then
        self.head, self.borrowed = head, borrowed


class Frames:
    """One stream's frames, both ways. Never blocks."""

    def __init__(self, stream: Stream, sink: Sink) -> None:
        self.stream = stream
        self.paused: Header | None = None  # a frame that has no place yet
        self.sent_bytes = self.received_bytes = 0
        self._sink = sink
        self._out: deque[_Out] = deque()
        self._sent: deque[Then] = deque()  # of frames that the kernel has, not told yet
        self._scratch = bytearray(SCRATCH_BYTES)
        self._view = memoryview(self._scratch)
        self._begin = self._end = 0  # what of the scratch is not used yet
        self._header: Header | None = None  # of the payload that is being received
        self._place = memoryview(b"")
        self._filled = 0
        self._asked = 0  # how much the last read had room for

    # -- out ----

    def put(
        self,
        header: bytes,
        payload: memoryview | None,
        group: int = 0,
        then: Then | None = None,
        borrowed: bool = False,
    ) -> None:
        """Queue a frame; `then` is called when the kernel has all of it.

        `borrowed`: the payload is a caller's array: left alone when the group is over.
        """
        if payload is None or not len(payload):
            self._out.append(_Out(memoryview(header), group, then, True, borrowed))
            return
        self._out.append(_Out(memoryview(header), group, None, True, borrowed))
        self._out.append(_Out(payload, group, then, False, borrowed))

    def __len__(self) -> int:
        """Bytes that wait for the kernel."""
        return sum(len(out.view) for out in self._out)

    @property
    def wants_to_write(self) -> bool:
        return bool(self._out) or self.stream.wants_write()

    def flush(self) -> None:
        """Send what waits, as far as the kernel takes it. OSError: the stream is broken.

        A `then` may put and flush again: it is called when nothing is left of what was sent.
        """
        while self._out:
            sent = self.stream.send(list(self._next()))
            if not sent:
                return
            self.sent_bytes += sent
            self._taken(sent)
            while self._sent:
                self._sent.popleft()()
        if self.stream.wants_write():
            self.stream.send(())  # TLS: what it took may still have to be written

    def _next(self) -> Iterator[memoryview]:
        total = 0
        for out in islice(self._out, GATHERED):
            yield out.view
            total += len(out.view)
            if total >= GATHERED_BYTES:
                return

    def _taken(self, count: int) -> None:
        while count:
            first = self._out[0]
            size = len(first.view)
            if count < size:
                first.view = first.view[count:]
                return
            count -= size
            self._out.popleft()
            if first.then is not None:
                self._sent.append(first.then)

    # -- in ----

    def receive(self) -> bool:
        """Read what has come, up to a turn's worth; whether the stream has ended.

        BadFrame: what came is no frame. OSError: the stream is broken, or its sender ended in the
        middle of a frame.
        """
        turn = 0
        # The scratch is used up before a turn ends: of what lies there no event would tell.
        while self._use_scratch() and turn < TURN_BYTES:
            count = self._read()
            if count < 0:
                return False
            if 0 < count < self._asked and not self.stream.pending():
                self._use_scratch()
                return False  # that was all: a look for more would be for nothing
            if count == 0:
                if self._header is not None or self._end > self._begin:
                    # Its process was killed while it sent: a death, not a damaged frame.
                    raise ConnectionAbortedError(
                        errno.ECONNABORTED, "the stream ended in the middle of a frame"
                    )
                return True
            turn += count
        return False

    def resume(self) -> None:
        """Forget that we paused: there may be a place now for the frame that had none."""
        self.paused = None

    @property
    def receiving(self) -> Header | None:
        """The frame whose payload is half here."""
        return self._header

    def let_go(self) -> None:
        """Receive the rest of the present payload into memory that nothing reads."""
        self._place = memoryview(bytearray(self._place))  # with what has come: it is summed

    def detach(self, group: int) -> None:
        """Send a group's arrays that wait out of copies."""
        for out in self._out:
            if out.group == group and out.borrowed:
                out.view = memoryview(bytes(out.view))

    def divert(self, group: int) -> None:
        """Receive nothing into the memory of a group that is over, and send nothing out of it.

        Frames that own their bytes stay: a good-bye must be said, and an operation that is done
        here may not be done where its last word is still to arrive.
        """
        if self._header is not None and self._header.group == group:
            self.let_go()
        kept: deque[_Out] = deque()
        begun = True  # the first frame may be half sent: its rest must follow, from a copy
        for at, out in enumerate(self._out):
            begun = begun and (at == 0 or not out.head)
            if out.group == group:
                if out.borrowed and not begun:
                    continue
                out.view, out.then = memoryview(bytes(out.view)), None
            kept.append(out)
        self._out = kept

    def _receive(self, into: list[memoryview]) -> int:
        try:
            return self.stream.receive(into)
        except (
            ssl.SSLError
        ) as problem:  # an OSError, but no end: the bytes were changed on their way
            raise BadFrame(f"TLS refuses the bytes: {problem.strerror or problem}") from problem

    def _read(self) -> int:
        """One read: the rest of a payload and the scratch behind it."""
        self._begin, self._end = self._compact()
        if self._header is None:
            self._asked = SCRATCH_BYTES - self._end
            count = self._receive([self._view[self._end :]])
            if count > 0:
                self._end += count
                self.received_bytes += count
            return count
        rest = self._place[self._filled :]
        self._asked = len(rest) + SCRATCH_BYTES
        count = self._receive([rest, self._view])
        if count > 0:
            self.received_bytes += count
            into = min(count, len(rest))
            self._filled += into
            self._begin, self._end = 0, count - into
            if self._filled == len(self._place):
                self._finish()
        return count

    def _compact(self) -> tuple[int, int]:
        left = self._end - self._begin
        if self._begin and left:
            self._scratch[:left] = self._scratch[self._begin : self._end]
        return 0, left

    def _use_scratch(self) -> bool:
        """Frames that lie in the scratch; False when one of them has no place yet."""
        while self._header is None and self._end - self._begin >= HEADER_BYTES:
            header = self.paused or unpack(self._scratch, self._begin)
            place = self._sink.place(header)
            if place is None:
                self.paused = header
                return False
            self.paused = None
            self._begin += HEADER_BYTES
            here = min(header.length, self._end - self._begin)
            self._header, self._place, self._filled = header, place, here
            place[:here] = self._view[self._begin : self._begin + here]
            self._begin += here
            if here == header.length:
                self._finish()
        return True

    def _finish(self) -> None:
        header, place = self._header, self._place
        assert header is not None
        self._header, self._place = None, memoryview(b"")
        verify(header, place)
        self._sink.arrived(header, place)
