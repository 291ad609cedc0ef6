"""The link between two processes on different hosts: two TCP connections, made once for all groups.

    data    frames of all groups, both ways. It may be full for seconds: that is its work
    watch   no data ever. The kernels keep it alive (net.tuning), so its end by time-out means a
            silent host, however much data waits on the other connection; and FAULT frames take
            it, because the news of a death must not stand in line behind what the dead will
            never read

Each is opened by one side (engine.connect_hosts says which) and authenticated for itself
(wire.handshake). A process that ends closes both; only the data connection's end counts, since
what was sent before it still lies there to be read.
"""

from __future__ import annotations

import errno
import fcntl
import struct
import termios
from typing import Final, Protocol

from wiiiiided.backend.codec.encoder import Decoder, Encoder
from wiiiiided.backend.codec.interface import PieceInfo
from wiiiiided.backend.net.frames import Frames, Then
from wiiiiided.backend.net.stream import Stream
from wiiiiided.backend.wire.header import SUMMED, Header, pack, payload_sum
from wiiiiided.backend.wire.local_frame import FrameKind
from wiiiiided.errors import BadFrame

# The kernel's errors for a connection whose other end no longer answers.
SILENT: Final = frozenset({errno.ETIMEDOUT, errno.EHOSTUNREACH, errno.ENETUNREACH, errno.EHOSTDOWN})
MAX_FAULT: Final = 4096
_FAULT: Final = int(FrameKind.FAULT)  # looking it up in the class would take longer


class LinkPeer(Protocol):
    """The other end of a link, as the link knows it."""

    @property
    def uid(self) -> str: ...
    @property
    def pid(self) -> int: ...
    @property
    def host(self) -> str: ...


class FrameHandler(Protocol):
    """The receiver of a link's frames, decoded."""

    def place(self, link: WideLink, header: Header) -> memoryview | None:
        """Memory for `header.raw` bytes; None: there is none yet, stop reading."""

    def arrived(self, link: WideLink, header: Header, payload: memoryview) -> None:
        """A whole frame is there."""


class WideLink:
    """One end. Only the driver of the loop touches it."""

    def __init__(
        self,
        data: Stream,
        watch: Stream,
        peer: LinkPeer,
        upper: FrameHandler,
        encoder: Encoder,
        summed: bool = True,
    ) -> None:
        self.peer = peer
        self.pid = peer.pid
        self.gone = ""  # how it ended: "died", "left" or "silent"; empty while it lives
        self.said_bye = False
        self.encoder = encoder
        self.decoder = Decoder(encoder)
        self._decoding = _Decoding(self, upper)
        self.data = Frames(data, self._decoding)
        self.watch = Frames(watch, _FaultsOnly(self, upper))
        self._encoded_ns = self._decoded_ns = 0
        self.gradients = ""  # how gradients were last coded for it, in a sentence
        self.summed = summed  # whether payloads carry a sum (net.integrity)

    # -- out ----

    def send(
        self, header: Header, payload: bytes | memoryview = b"", then: Then | None = None
    ) -> None:
        """Send a frame as it is, without a codec."""
        if self.gone:
            return
        view = memoryview(payload)
        header.codec, header.flags, header.sum = 0, 0, 0
        header.length = header.raw = len(view)
        if self.summed and header.length:
            header.flags, header.sum = SUMMED, payload_sum(view)
        frames = self.watch if header.kind == _FAULT else self.data
        frames.put(pack(header), view, header.group, then)

    def send_data(
        self, header: Header, data: memoryview, info: PieceInfo, then: Then | None = None
    ) -> None:
        """Send a piece of a caller's array, encoded if that pays. `then`: its memory is free."""
        if self.gone:
            return
        header.codec, coded = self.encoder.encode(data, info)
        view = memoryview(coded)
        header.dtype, header.length, header.raw = info.dtype, len(view), len(data)
        header.flags, header.sum = (SUMMED, payload_sum(view)) if self.summed else (0, 0)
        self.data.put(pack(header), view, header.group, then, borrowed=True)

    def encoding_ns(self) -> int:
        """Time spent encoding since this was last asked."""
        total = self.encoder.encode_ns + self.encoder.probe_ns
        spent, self._encoded_ns = total - self._encoded_ns, total
        return spent

    def decoding_ns(self) -> int:
        """Time spent decoding since this was last asked."""
        total = self.decoder.decode_ns
        spent, self._decoded_ns = total - self._decoded_ns, total
        return spent

    @property
    def wants_to_write(self) -> bool:
        return self.data.wants_to_write

    def let_go_of_message(self, group: int, source: int, number: int) -> None:
        """Receive to nowhere what is half here of a message whose receive gave up."""
        header = self.data.receiving
        if (
            header is not None
            and header.kind == FrameKind.CHUNK
            and (header.group, header.source, header.sequence) == (group, source, number)
        ):
            self._decoding.divert()
            self.data.let_go()

    def divert(self, group: int) -> None:
        """Neither read nor write the memory of a group that is over."""
        header = self.data.receiving
        if header is not None and header.group == group:
            self._decoding.divert()
        self.data.divert(group)

    def unacknowledged(self) -> int:
        """How many bytes, before the end, the peer's kernel has not got; 0: none, or it is gone.

        Bytes unread when we close would have our kernel reset the connection, and throw
        away what is still on its way to the peer: so they are read and dropped. The watch
        connection counts too: a peer that sees us end must find there why.
        """
        nowhere, left = bytearray(1 << 16), 0
        try:
            for frames in (self.data, self.watch):
                frames.flush()
                fd = frames.stream.fileno()
                left += len(frames) + frames.wants_to_write + outstanding(fd)
            while (count := self.data.stream.receive([nowhere])) > 0:
                pass
            return left if count else 0  # the peer has closed: it reads no more
        except OSError:
            return 0

    def close(self) -> None:
        """Close both connections; harmless when repeated."""
        self.data.stream.close()
        self.watch.stream.close()


class _Decoding:
    """Payloads that come encoded are received beside their place and decoded into it."""

    def __init__(self, link: WideLink, upper: FrameHandler) -> None:
        self._link, self._upper = link, upper
        self._coded = bytearray(0)
        self._target = memoryview(b"")

    def place(self, header: Header) -> memoryview | None:
        target = self._upper.place(self._link, header)
        if target is None or not header.codec:
            return target
        self._target = target
        if len(self._coded) < header.length:  # bounded: unpack has refused more than MAX_PAYLOAD
            self._coded = bytearray(header.length)
        return memoryview(self._coded)[: header.length]

    def divert(self) -> None:
        """Decode the payload being received to nowhere."""
        self._target = memoryview(bytearray(len(self._target)))

    def arrived(self, header: Header, payload: memoryview) -> None:
        if header.codec:
            target, self._target = self._target, memoryview(b"")
            info = PieceInfo(dtype=header.dtype)
            self._link.decoder.decode(header.codec, payload, target, info)
            payload = target
        self._upper.arrived(self._link, header, payload)


class _FaultsOnly:
    """The watch connection: small frames of one kind."""

    def __init__(self, link: WideLink, upper: FrameHandler) -> None:
        self._link, self._upper = link, upper

    def place(self, header: Header) -> memoryview | None:
        if header.kind != FrameKind.FAULT or header.length > MAX_FAULT or header.codec:
            raise BadFrame(
                f"a frame of kind {header.kind} on a connection that carries faults only"
            )
        return memoryview(bytearray(header.length))

    def arrived(self, header: Header, payload: memoryview) -> None:
        self._upper.arrived(self._link, header, payload)


def outstanding(fd: int) -> int:
    """Bytes that the kernel has taken and the peer's has not acknowledged (SIOCOUTQ)."""
    (count,) = struct.unpack("i", fcntl.ioctl(fd, termios.TIOCOUTQ, bytes(4)))
    return int(count)


def is_silence(problem: OSError) -> bool:
    """Whether a connection broke because its other end no longer answers."""
    return problem.errno in SILENT
