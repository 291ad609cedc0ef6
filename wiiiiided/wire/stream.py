"""Frames of the daemon's unix socket, without I/O: bytes in, frames out.

    ┌──────┬───────────────┬──────────────┐
    │ kind │ length, 4 B BE │ length bytes │
    └──────┴───────────────┴──────────────┘
    kind   J  a message of wire/messages (JSON), at most 8 MiB
           B  a piece of a blob, at most 256 KiB
           E  the blob is complete, length 0

A length is checked before anything is kept for it; whatever breaks the rules is a BadFrame, and the
connection ends.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

from wiiiiided.errors import WiiiiideError

MESSAGE: Final = b"J"
BLOB: Final = b"B"
BLOB_END: Final = b"E"
LIMITS: Final = {MESSAGE: 8 << 20, BLOB: 256 << 10, BLOB_END: 0}
HEADER_BYTES: Final = 5


class BadFrame(WiiiiideError):
    """The other side does not speak this protocol."""


def frame(kind: bytes, payload: bytes = b"") -> bytes:
    """One frame, ready to be sent."""
    if len(payload) > LIMITS[kind]:
        raise BadFrame(f"a frame of {len(payload)} bytes is over the limit of {LIMITS[kind]}")
    return kind + len(payload).to_bytes(4, "big") + payload


class Parser:
    """Collects received bytes and gives back whole frames."""

    def __init__(self) -> None:
        self._buffer = bytearray()

    def feed(self, data: bytes) -> Iterator[tuple[bytes, bytes]]:
        """Take received bytes; yield (kind, payload) for each frame they complete."""
        self._buffer += data
        while len(self._buffer) >= HEADER_BYTES:
            kind = bytes(self._buffer[:1])
            length = int.from_bytes(self._buffer[1:HEADER_BYTES], "big")
            if length > LIMITS.get(kind, -1):
                raise BadFrame(f"not a frame of this protocol: kind {kind!r}, length {length}")
            end = HEADER_BYTES + length
            if len(self._buffer) < end:
                return
            payload = bytes(self._buffer[HEADER_BYTES:end])
            del self._buffer[:end]
            yield kind, payload
