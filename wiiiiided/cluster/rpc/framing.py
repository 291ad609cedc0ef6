"""Frames of the daemon's unix socket, without I/O: bytes in, frames out.

    ┌──────┬───────────────┬──────────────┐
    │ kind │ length, 4 B BE │ length bytes │
    └──────┴───────────────┴──────────────┘
    kind   J  a message of rpc/messages (JSON), at most 64 MiB; a daemon takes 4 MiB
           B  a piece of a blob, at most 256 KiB
           E  the blob is complete, length 0

A length is checked before anything is kept for it; bytes that break the rules are a StreamError,
and the connection ends.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

from wiiiiided.errors import WiiiiideError
from wiiiiided.text import format_size

MESSAGE: Final = b"J"
BLOB: Final = b"B"
BLOB_END: Final = b"E"
LIMITS: Final = {MESSAGE: 64 << 20, BLOB: 256 << 10, BLOB_END: 0}
REQUEST_BYTES: Final = 4 << 20  # of a message that a client sends; 256 of them may do so at once
HEADER_BYTES: Final = 5


class StreamError(WiiiiideError):
    """The other side does not speak this protocol."""


class FrameTooLarge(StreamError):
    """A message of ours is larger than the protocol allows: it is not sent, and the other side can
    be told so."""


def frame(kind: bytes, payload: bytes = b"") -> bytes:
    """Pack one frame, ready to be sent."""
    if len(payload) > LIMITS[kind]:
        sizes = f"{format_size(len(payload))}, and {format_size(LIMITS[kind])} can be sent"
        raise FrameTooLarge(f"this would be a message of {sizes}")
    return kind + len(payload).to_bytes(4, "big") + payload


class Parser:
    """Collects received bytes and gives back whole frames."""

    def __init__(self, message_bytes: int = LIMITS[MESSAGE]) -> None:
        self._buffer = bytearray()
        self._limits = {**LIMITS, MESSAGE: message_bytes}

    def feed(self, data: bytes) -> Iterator[tuple[bytes, bytes]]:
        """Take received bytes; yield (kind, payload) for each frame they complete."""
        self._buffer += data
        while len(self._buffer) >= HEADER_BYTES:
            kind = bytes(self._buffer[:1])
            length = int.from_bytes(self._buffer[1:HEADER_BYTES], "big")
            if length > self._limits.get(kind, -1):
                raise StreamError(f"not a frame of this protocol: kind {kind!r}, length {length}")
            end = HEADER_BYTES + length
            if len(self._buffer) < end:
                return
            payload = bytes(self._buffer[HEADER_BYTES:end])
            del self._buffer[:end]
            yield kind, payload
