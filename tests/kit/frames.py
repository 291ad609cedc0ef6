"""Sent bytes as whole frames: for tests that look at a stream's bytes.

A link receives payloads straight into their place instead, and cuts nothing.
"""

from __future__ import annotations

from wiiiiided.backend.wire.header import HEADER_BYTES, Header, unpack, verify


class FrameCutter:
    """Bytes in, whole frames out."""

    def __init__(self) -> None:
        self._rest = bytearray()

    def feed(self, data: bytes | bytearray | memoryview) -> list[tuple[Header, bytes]]:
        """All frames that `data` completes. Raises BadFrame on bytes that are no frame."""
        self._rest += data
        frames, at = [], 0
        while len(self._rest) - at >= HEADER_BYTES:
            header = unpack(self._rest, at)
            end = at + HEADER_BYTES + header.length
            if len(self._rest) < end:
                break
            payload = bytes(self._rest[at + HEADER_BYTES : end])
            verify(header, payload)
            frames.append((header, payload))
            at = end
        del self._rest[:at]
        return frames
