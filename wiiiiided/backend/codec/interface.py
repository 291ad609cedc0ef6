"""Every codec is one file, one small class, this interface.

A codec turns the bytes of one piece into fewer bytes and back. It knows nothing of links, frames
or clocks; whether it is used at all is decided in `chooser`. The bytes come back as they were, bit
by bit: lossy codecs of gradients are not of this kind, `backend.lossy.interface` says why.

Rules of the interface:

- A codec object belongs to one direction of one link (`registry` makes a new one each time), so
  it may keep state between calls. It bounds that state itself.
- `encode` may answer None: "it does not pay, or this data is not for me; send it as it is".
  State is then as if it had not been asked.
- `decode` is given bytes that are not verified. Its target has exactly the size that the
  receiver expects, taken from its own operation; bytes that decode to anything else are refused.
  Its allocations are bounded by that target, never by a number that stands in the bytes.
- Buffers are flat and contiguous views of bytes (format "B").
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final, Protocol

from wiiiiided.errors import HostError

# The dtype code of bytes that are no tensor's, or of several.
UNKNOWN_DTYPE: Final = 0xFFFF

Buffer = bytes | bytearray | memoryview


class BadPayload(HostError):
    """A payload that its codec cannot have made: damaged, truncated or lying about its size."""


@dataclass(frozen=True, slots=True)
class PieceInfo:
    """The kind of a piece's bytes, as far as a codec may care."""

    dtype: int = UNKNOWN_DTYPE  # an index of shm.kernels.DTYPE_NAMES
    itemsize: int = 1


class Codec(Protocol):
    """One way to write a payload. `number` is what stands in a frame, `name` what a user says."""

    number: int
    name: str

    def encode(self, source: memoryview, info: PieceInfo) -> Buffer | None:
        """The encoded piece, or None where it should travel as it is.

        The answer has memory of its own, or is `source`, which is not changed, and not kept.
        """

    def decode(self, source: memoryview, into: memoryview, info: PieceInfo) -> None:
        """Fill `into`, all of it, from an encoded piece. Raises BadPayload, and then what `into`
        holds means nothing."""
