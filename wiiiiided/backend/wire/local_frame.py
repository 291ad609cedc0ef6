"""Frames on the link between two processes of one machine (sans-IO: no socket in here).

    offset  0      1      2       4       8        16     24     32        40
            kind   dtype  length  tag     group    a      b      c         payload …
            u8     u8     u16     i32     u64      i64    i64    i64       length bytes

    kind       a              b                c          tag      payload / descriptor
    HELLO      0              0                0          -        the sender's card (JSON)
    BELL       0              0                0          -        -
    SEGMENT    segment id     bytes            0          -        - / the memory
    LEAVE      0              0                0          -        -
    FAULT      0              0                0          -        -
    EAGER      source rank    message number   bytes      the tag  the message itself
    OFFER      source rank    message number   bytes      the tag  -
    WANT       source rank    message number   0          -        -
    LANE       chunk bytes    chunks           0          -        - / the memory
    CHUNK      source rank    message number   bytes      chunk    -
    TAKEN      0              0                0          chunk    -
    CREDIT     source rank    0                bytes      -        -
    BYE        0              0                0          -        -
    WITHDRAWN  source rank    message number   0          -        -
    OPEN, PIECE, ENTER_BARRIER   on links between hosts only (wire/header); refused here

`dtype` is the code of a message's dtype in EAGER and OFFER, else 0.
A frame is at most 40 + 65,535 bytes, so a reader's buffer is bounded by construction. `group` is
the nonce of a group's incarnation: a frame for a group that is gone is dropped, never misread.
"""

from __future__ import annotations

import enum
import struct
from dataclasses import dataclass
from typing import Final

from wiiiiided.errors import HostError

HEADER: Final = struct.Struct("<BBHiQqqq")
HEADER_BYTES: Final = HEADER.size


class FrameKind(enum.IntEnum):
    """Kinds of frames; the module's table has the fields of each."""

    HELLO = 1
    BELL = 2
    SEGMENT = 3
    LEAVE = 4
    FAULT = 5
    EAGER = 6
    OFFER = 7
    WANT = 8
    LANE = 9
    CHUNK = 10
    TAKEN = 11
    CREDIT = 12
    BYE = 13
    WITHDRAWN = 14
    OPEN = 15
    PIECE = 16
    ENTER_BARRIER = 17


BETWEEN_HOSTS: Final = frozenset({FrameKind.OPEN, FrameKind.PIECE, FrameKind.ENTER_BARRIER})
_KINDS: Final = {int(kind): kind for kind in FrameKind if kind not in BETWEEN_HOSTS}


@dataclass(frozen=True, slots=True)
class Frame:
    """One message between two processes."""

    kind: FrameKind
    group: int = 0
    a: int = 0
    b: int = 0
    c: int = 0
    tag: int = 0
    payload: bytes = b""
    dtype: int = 0

    def header(self) -> bytes:
        """The 40 bytes that go before the payload."""
        return HEADER.pack(
            self.kind, self.dtype, len(self.payload), self.tag, self.group, self.a, self.b, self.c
        )


class FrameReader:
    """Feed it what the socket gave; it yields whole frames and keeps the rest."""

    def __init__(self) -> None:
        self._rest = bytearray()

    def feed(self, data: bytes | memoryview) -> list[Frame]:
        """All frames that `data` completes. Raises HostError on bytes that are no frame."""
        self._rest += data
        frames: list[Frame] = []
        at = 0
        while len(self._rest) - at >= HEADER_BYTES:
            number, dtype, length, tag, group, a, b, c = HEADER.unpack_from(self._rest, at)
            kind = _KINDS.get(number)
            if kind is None:
                raise HostError(
                    f"a frame of unknown kind {number}: does every rank run the same wiiiiided?"
                )
            end = at + HEADER_BYTES + length
            if len(self._rest) < end:
                break
            payload = bytes(self._rest[at + HEADER_BYTES : end])
            at = end
            frames.append(Frame(kind, group, a, b, c, tag, payload, dtype))
        del self._rest[:at]
        return frames
