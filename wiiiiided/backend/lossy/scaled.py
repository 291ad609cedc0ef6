"""Codecs "int8" and "int4": quantization of blocks of 256 elements, each with its own scale.

    coded   │ scale of block 0 │ scale 1 │ … │ codes of block 0      │ codes 1 │ …
              float32                          256 bytes, or 128 of two nibbles each

    code    round(value × levels / largest of the block), levels 127 or 7
    decoded code × scale, scale = largest of the block / levels

The last block is padded with zeros. A nibble byte has element i of its block below and element
i + 128 above: both halves are packed in one pass over contiguous memory.

An element is wrong by half a scale at most. The difference to its decoded value is exact in
float32 (they are within a factor of two of each other, or the code is 0), so a residual is exactly
what was rounded away. A block whose largest is below 2**-100 is sent as zeros: 1 / scale would
overflow.

A block with a NaN or an infinity has an infinite scale and the codes 1, -1 and 0: multiplied they
are the infinities and NaN, as decoding multiplies anyway. Its finite elements arrive as NaN.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from functools import partial
from itertools import pairwise
from typing import Any, Final

import numpy as np

from wiiiiided.backend.lossy.interface import STEP, Bytes, Floats
from wiiiiided.backend.lossy.padding import encode_padded

BLOCK: Final = 256
_HALF: Final = BLOCK // 2
_LEAST: Final = np.float32(2.0**-100)
_MOST: Final = np.float32(3.4e38)

_Codes = np.ndarray[Any, np.dtype[np.int8]]


@dataclass(frozen=True)
class _CodedBlocks:
    """Some blocks of an encoding: their numbers, scales and codes."""

    begin: int
    end: int
    scales: Floats
    codes: Bytes


class _Scaled:
    """The base of both codecs; they differ in levels and in how codes are packed."""

    name: str
    levels: float
    code_bytes: int  # of a block

    def __init__(self) -> None:
        self._work = np.empty(STEP, np.float32)
        self._inverse = np.empty(STEP // BLOCK, np.float32)
        self._last_values = np.zeros(BLOCK, np.float32)
        self._last_residual = np.zeros(BLOCK, np.float32)

    def coded_bytes(self, count: int) -> int:
        return -(-count // BLOCK) * (4 + self.code_bytes)

    def encode(self, values: Floats, residual: Floats, coded: Bytes) -> None:
        with np.errstate(all="ignore"):
            for part in self._stretches(values.size, coded):
                if part.end <= values.size:
                    here = slice(part.begin, part.end)
                    self._encode(values[here], residual[here], part)
                else:
                    encode_padded(
                        values[part.begin :],
                        residual[part.begin :],
                        into=(self._last_values, self._last_residual),
                        encode=partial(self._encode, part=part),
                    )

    def decode(self, coded: Bytes, values: Floats) -> None:
        with np.errstate(all="ignore"):
            for part in self._stretches(values.size, coded):
                if part.end <= values.size:
                    self._decode(part, values[part.begin : part.end])
                else:
                    self._decode(part, self._last_values)
                    values[part.begin :] = self._last_values[: values.size - part.begin]

    def _stretches(self, count: int, coded: Bytes) -> Iterator[_CodedBlocks]:
        """Whole blocks, as many at a time as a step has, and the one that is not whole."""
        blocks, whole = -(-count // BLOCK), count // BLOCK
        scales = coded[: 4 * blocks].view(np.float32)
        codes = coded[4 * blocks :]
        bounds = [*range(0, whole, STEP // BLOCK), whole]
        if blocks > whole:
            bounds.append(blocks)
        for first, end in pairwise(bounds):
            yield _CodedBlocks(
                first * BLOCK,
                end * BLOCK,
                scales[first:end],
                codes[first * self.code_bytes : end * self.code_bytes],
            )

    def _encode(self, values: Floats, residual: Floats, part: _CodedBlocks) -> None:
        scales, work = part.scales, self._work[: values.size]
        inverse = self._inverse[: scales.size]
        meant, rows = residual.reshape(-1, BLOCK), work.reshape(-1, BLOCK)
        np.add(values, residual, out=residual)
        np.abs(residual, out=work)
        np.max(rows, axis=1, out=scales)
        largest = np.max(scales)
        broken = None if largest < np.inf else ~np.isfinite(scales)
        np.divide(self.levels, scales, out=inverse)
        tiny = scales < _LEAST
        inverse[tiny], scales[tiny] = 0, 0
        np.divide(scales, self.levels, out=scales)
        if largest > _MOST:  # rounded up, the scale would decode the largest to infinity
            over = np.isinf(scales * np.float32(self.levels)) & np.isfinite(scales)
            scales[over] = np.nextafter(scales[over], np.float32(0))
        np.multiply(meant, inverse[:, None], out=rows)
        np.rint(work, out=work)
        np.add(work, 0, out=work)  # the sender would have -0.0 where a decoder has 0.0
        if broken is not None:
            found = meant[broken]
            rows[broken] = np.where(np.isinf(found), np.sign(found), 0)
            scales[broken] = np.inf
        self._pack(work, part.codes)
        np.multiply(rows, scales[:, None], out=values.reshape(-1, BLOCK))
        np.subtract(residual, values, out=residual)
        if broken is not None:
            meant[broken] = 0

    def _decode(self, part: _CodedBlocks, values: Floats) -> None:
        self._unpack(part.codes, values)
        rows = values.reshape(-1, BLOCK)
        np.multiply(rows, part.scales[:, None], out=rows)

    def _pack(self, numbers: Floats, codes: Bytes) -> None:
        raise NotImplementedError

    def _unpack(self, codes: Bytes, numbers: Floats) -> None:
        raise NotImplementedError


class Int8(_Scaled):
    """A byte an element, and a scale for 256: 8.1 bits."""

    name = "int8"
    levels = 127.0
    code_bytes = BLOCK

    def _pack(self, numbers: Floats, codes: Bytes) -> None:
        np.copyto(codes.view(np.int8), numbers, casting="unsafe")

    def _unpack(self, codes: Bytes, numbers: Floats) -> None:
        np.copyto(numbers, codes.view(np.int8))


class Int4(_Scaled):
    """A nibble an element, and a scale for 256: 4.1 bits."""

    name = "int4"
    levels = 7.0
    code_bytes = _HALF

    def __init__(self) -> None:
        super().__init__()
        self._codes: _Codes = np.empty(STEP, np.int8)
        self._high: _Codes = np.empty(STEP // 2, np.int8)

    def _pack(self, numbers: Floats, codes: Bytes) -> None:
        whole, out = self._codes[: numbers.size], codes.view(np.int8).reshape(-1, _HALF)
        np.copyto(whole, numbers, casting="unsafe")
        rows = whole.reshape(-1, 2, _HALF)
        high = self._high[: codes.size].reshape(-1, _HALF)
        np.left_shift(rows[:, 1], 4, out=high)
        np.bitwise_and(rows[:, 0], 15, out=out)
        np.bitwise_or(out, high, out=out)

    def _unpack(self, codes: Bytes, numbers: Floats) -> None:
        whole, packed = self._codes[: numbers.size], codes.view(np.int8).reshape(-1, _HALF)
        rows = whole.reshape(-1, 2, _HALF)
        np.right_shift(packed, 4, out=rows[:, 1])  # of signed numbers: keeps the sign
        np.left_shift(packed, 4, out=rows[:, 0])
        np.right_shift(rows[:, 0], 4, out=rows[:, 0])
        np.copyto(numbers, whole)
