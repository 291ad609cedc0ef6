"""Codec 0, "none": the bytes as they are.

A link that receives raw pieces puts them straight into place and never comes here; this is what
keeps everything else free of a special case.
"""

from __future__ import annotations

from wiiiiided.backend.codec.interface import BadPayload, Buffer, PieceInfo


class Raw:
    """The codec that leaves bytes as they are."""

    number = 0
    name = "none"

    def encode(self, source: memoryview, info: PieceInfo) -> Buffer | None:
        return source

    def decode(self, source: memoryview, into: memoryview, info: PieceInfo) -> None:
        if source.nbytes != into.nbytes:
            raise BadPayload(
                f"a raw payload of {source.nbytes} bytes where {into.nbytes} were expected: "
                "does every host run the same wiiiiided?"
            )
        into[:] = source
