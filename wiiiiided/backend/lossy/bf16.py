"""Codec "bf16": the upper half of a float32, rounded to the nearest, half-way to even.

    float32   │ sign │ exponent, 8 │ fraction, 7 │ fraction, 16 │
    coded     │ sign │ exponent, 8 │ fraction, 7 │                  two bytes an element

Adding 0x7fff and the lowest bit that stays carries into it exactly when it must be rounded up; the
infinities stay what they are. A NaN could be carried over into another number, so NaNs are written
for themselves. Neighbours of either are not touched. A number above 3.39e38 becomes infinite.
"""

from __future__ import annotations

from typing import Any, Final

import numpy as np

from wiiiiided.backend.lossy.interface import STEP, Bytes, Floats

_NAN: Final = 0x7FC0

_Words = np.ndarray[Any, np.dtype[np.uint32]]


class Bf16:
    """Half the bytes; the cheapest to make."""

    name = "bf16"

    def __init__(self) -> None:
        self._work: _Words = np.empty(STEP, np.uint32)

    def coded_bytes(self, count: int) -> int:
        return 2 * count

    def encode(self, values: Floats, residual: Floats, coded: Bytes) -> None:
        codes = coded[: 2 * values.size].view(np.uint16)
        with np.errstate(all="ignore"):
            for at in range(0, values.size, STEP):
                here = slice(at, at + STEP)
                self._encode(values[here], residual[here], codes[here])

    def _encode(self, values: Floats, residual: Floats, codes: Any) -> None:
        np.add(values, residual, out=residual)
        finite = bool(np.isfinite(residual.sum()))  # an overflow of the sum only costs time
        bits, work = residual.view(np.uint32), self._work[: values.size]
        np.right_shift(bits, 16, out=work)
        np.bitwise_and(work, 1, out=work)
        np.add(work, 0x7FFF, out=work)
        np.add(work, bits, out=work)
        np.right_shift(work, 16, out=work)
        if not finite:
            work[np.isnan(residual)] = _NAN
        np.copyto(codes, work, casting="unsafe")
        np.left_shift(work, 16, out=values.view(np.uint32))
        np.subtract(residual, values, out=residual)
        if not finite:
            residual[~np.isfinite(residual)] = 0

    def decode(self, coded: Bytes, values: Floats) -> None:
        codes, words = coded[: 2 * values.size].view(np.uint16), values.view(np.uint32)
        for at in range(0, values.size, STEP):
            here = slice(at, at + STEP)
            np.copyto(words[here], codes[here])
            np.left_shift(words[here], 16, out=words[here])
