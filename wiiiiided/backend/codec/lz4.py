"""Codec 1, "lz4": one LZ4 block a piece, without a size in front (the frame has it).

It finds repeated bytes: zeros, rows, small integers. It finds none in dense float gradients (ratio
1.002, measured), and gives up on them quickly: bench/codec.py has the rates of both.

Acceleration stays at 1. At 8, pieces of 256 KiB and 1 MiB (noise, 95 % zeros, token ids) were
encoded no more than 4 % faster, and those of 95 % zeros came out 13 % larger.

Calling the library's C functions to write straight into a buffer would save one copy of the
*encoded* bytes; it is not done, since it needs symbols that the Python package does not promise.
"""

from __future__ import annotations

from typing import Final

import lz4.block  # type: ignore[import-untyped]

from wiiiiided.backend.codec.interface import BadPayload, Buffer, PieceInfo

# Less than this part saved is not worth the receiver's decoding: `chooser` switches off there too.
_LEAST_SAVED: Final = 1 / 32


class Lz4:
    """LZ4's fast block format."""

    number = 1
    name = "lz4"

    def encode(self, source: memoryview, info: PieceInfo) -> Buffer | None:
        encoded: bytes = lz4.block.compress(source, mode="fast", acceleration=1, store_size=False)
        return encoded if len(encoded) < source.nbytes * (1 - _LEAST_SAVED) else None

    def decode(self, source: memoryview, into: memoryview, info: PieceInfo) -> None:
        size = into.nbytes
        try:
            # Makes at most `size` bytes, and fails where there would be more.
            decoded = lz4.block.decompress(source, uncompressed_size=size)
        except lz4.block.LZ4BlockError:
            raise BadPayload(
                f"an lz4 payload of {source.nbytes} bytes is damaged, or more than the {size} "
                "bytes expected: does every host run the same wiiiiided?"
            ) from None
        if len(decoded) != size:
            raise BadPayload(
                f"an lz4 payload holds {len(decoded)} bytes where {size} were expected: "
                "does every host run the same wiiiiided?"
            )
        into[:] = decoded
