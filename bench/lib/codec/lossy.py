"""Lossy gradient codecs on one core: rates, bits an element, and the error of an encoding."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from statistics import median

import numpy as np

from wiiiiided.backend.lossy.interface import Floats
from wiiiiided.backend.lossy.registry import EXACT, NAMES, by_name

ENCODE_TARGET = {"int8": 2e9}  # bytes of float32 a second and core


@dataclass(frozen=True)
class LossyRow:
    """One codec on one size of pieces."""

    codec: str
    piece_bytes: int
    bits: float
    error: float  # of one encoding without a residual: norm of what is left against that of all
    encode: float  # bytes of float32 a second
    decode: float

    @property
    def met(self) -> bool | None:
        """Whether encoding is as fast as it should be; None: it may be as fast as it likes."""
        target = ENCODE_TARGET.get(self.codec)
        return None if target is None else self.encode >= target


def measure(data: memoryview, piece_bytes: int, rounds: int) -> list[LossyRow]:
    """Every codec, on pieces of these float32 numbers."""
    return [_measure(name, data, piece_bytes, rounds) for name in NAMES if name != EXACT]


def _measure(name: str, data: memoryview, piece_bytes: int, rounds: int) -> LossyRow:
    codec = by_name(name)
    assert codec is not None
    numbers = np.frombuffer(data, np.float32)
    count = piece_bytes // 4
    whole = numbers[: numbers.size // count * count]
    values = [piece.copy() for piece in whole.reshape(-1, count)]
    left = [np.zeros(count, np.float32) for _ in values]
    coded = np.zeros((len(values), codec.coded_bytes(count)), np.uint8)

    def encode() -> None:
        for piece, residual, out in zip(values, left, coded, strict=True):
            codec.encode(piece, residual, out)

    def decode() -> None:
        for piece, bits in zip(values, coded, strict=True):
            codec.decode(bits, piece)

    encode()
    error = _norm(left) / _norm([whole])
    encode_s = _median_seconds(encode, values, whole, rounds)
    decode_s = _median_seconds(decode, values, whole, rounds)
    rates = [whole.nbytes / seconds for seconds in (encode_s, decode_s)]
    return LossyRow(name, piece_bytes, 8 * coded.shape[1] / count, error, *rates)


def _norm(arrays: Sequence[Floats]) -> float:
    return float(sum(np.square(a, dtype=np.float64).sum() for a in arrays) ** 0.5)


def _median_seconds(
    work: Callable[[], None], values: Sequence[Floats], whole: Floats, rounds: int
) -> float:
    taken = []
    for _ in range(rounds):
        for piece, fresh in zip(values, whole.reshape(len(values), -1), strict=True):
            piece[:] = fresh  # what was encoded is rounded
        begin = time.perf_counter()
        work()
        taken.append(time.perf_counter() - begin)
    return median(taken)
