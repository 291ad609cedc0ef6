"""Codec "topk:0.01", sparsification: of 4,096 elements the largest hundredth; the rest waits.

    coded   │ values of chunk 0 │ values of chunk 1 │ … │ their numbers in chunk 0 │ in chunk 1 │ …
              k float32                                   k uint16

Chosen chunk by chunk and not over all: it needs no second look at the data, and the numbers fit two
bytes. The last chunk is padded with zeros. With error feedback alone an element that is never among
the largest grows in the residual until it is.

NaN and the infinities count as the largest, and their neighbours are as ever. A chunk that has k of
them or more may have no place for all: its first number is then 0xffff, and all of it arrives as
NaN.
"""

from __future__ import annotations

from functools import partial
from typing import Any, Final

import numpy as np

from wiiiiided.backend.codec.interface import BadPayload
from wiiiiided.backend.lossy.interface import Bytes, Floats
from wiiiiided.backend.lossy.padding import encode_padded

CHUNK: Final = 4096
MOST: Final = 0.5  # above two thirds the coded bytes would be more than the numbers themselves
_FLOODED: Final = 0xFFFF
# Chunks at a time: numpy's argpartition makes its answer anew each time, of 8 bytes an element.
_ROWS: Final = 4

_Numbers = np.ndarray[Any, np.dtype[np.uint16]]


class TopK:
    """48 bits for each element that is sent."""

    def __init__(self, name: str, part: float) -> None:
        self.name = name
        self.sent = max(1, round(part * CHUNK))  # elements of a chunk
        self._values = np.zeros(_ROWS * CHUNK, np.float32)
        self._residual = np.zeros(_ROWS * CHUNK, np.float32)
        self._work = np.empty((_ROWS, CHUNK), np.float32)

    def coded_bytes(self, count: int) -> int:
        return -(-count // CHUNK) * self.sent * 6

    def encode(self, values: Floats, residual: Floats, coded: Bytes) -> None:
        chosen, numbers = self._parts(values.size, coded)
        with np.errstate(all="ignore"):
            for row in range(0, len(chosen), _ROWS):
                rows, here = slice(row, row + _ROWS), slice(row * CHUNK, (row + _ROWS) * CHUNK)
                self._encode_rows(values[here], residual[here], chosen[rows], numbers[rows])

    def decode(self, coded: Bytes, values: Floats) -> None:
        chosen, numbers = self._parts(values.size, coded)
        values.fill(0)
        if not numbers.size:
            return
        flooded = numbers[:, 0] == _FLOODED
        if flooded.any():
            for row in np.flatnonzero(flooded):
                values[row * CHUNK : (row + 1) * CHUNK] = np.nan
            chosen, numbers = chosen[~flooded], numbers[~flooded]
        at = np.flatnonzero(~flooded)[:, None] * CHUNK + numbers
        if at.size and (int(numbers.max()) >= CHUNK or int(at.max()) >= values.size):
            at, chosen = self._without_padding(at, numbers, chosen, values.size)
        values[at] = chosen

    def _without_padding(self, at: Any, numbers: _Numbers, chosen: Floats, count: int) -> Any:
        """The last chunk may have chosen zeros behind its end; no other may."""
        if int(numbers.max()) >= CHUNK or chosen[at >= count].any():
            raise BadPayload(
                "top-k gradients for elements that are not there: "
                "does every host run the same wiiiiided?"
            )
        return at[at < count], chosen[at < count]

    def _parts(self, count: int, coded: Bytes) -> tuple[Floats, _Numbers]:
        chunks = -(-count // CHUNK)
        middle = chunks * self.sent * 4
        chosen = coded[:middle].view(np.float32).reshape(chunks, self.sent)
        numbers = coded[middle : middle + chunks * self.sent * 2].view(np.uint16)
        return chosen, numbers.reshape(chunks, self.sent)

    def _encode_rows(
        self, values: Floats, residual: Floats, chosen: Floats, numbers: _Numbers
    ) -> None:
        encode, whole = partial(self._encode, chosen=chosen, numbers=numbers), len(chosen) * CHUNK
        if values.size == whole:
            encode(values, residual)
        else:
            into = self._values[:whole], self._residual[:whole]
            encode_padded(values, residual, into, encode)

    def _encode(self, values: Floats, residual: Floats, chosen: Floats, numbers: _Numbers) -> None:
        np.add(values, residual, out=residual)
        rows, meant = len(chosen), residual.reshape(-1, CHUNK)
        size = self._work[:rows]
        np.abs(meant, out=size)  # NaN is sorted behind the infinities
        at = np.argpartition(size, CHUNK - self.sent, axis=1)[:, CHUNK - self.sent :]
        chosen[:] = np.take_along_axis(meant, at, axis=1)
        numbers[:] = at
        out = values.reshape(-1, CHUNK)
        out.fill(0)
        np.put_along_axis(out, at, chosen, axis=1)
        np.put_along_axis(meant, at, 0, axis=1)
        flooded = ~np.isfinite(chosen).any(axis=1)
        if flooded.any():
            numbers[flooded, 0] = _FLOODED
            out[flooded] = np.nan
            meant[flooded] = 0
