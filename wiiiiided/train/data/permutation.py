"""A keyed permutation of 0 … n-1: the i-th number of a shuffled order, without the order.

A list of a permutation takes 8 bytes a sample and seconds to make (10⁸ samples: 800 MB on every
rank). Here the i-th number is computed: a Feistel network on a square of a² ≥ n cells,

    number = left · a + right            one round:   left, right = right, (left + f(right)) mod a

and a number that lies beyond n is sent through again until it does not (cycle walking). Each round
can be undone, so the whole is a permutation of the square, and the walk makes it one of 0 … n-1.
a is the root of n, rounded up: of a million numbers two thousand walk further, where a network on
bits would send up to three of four.

The orders of stored checkpoints depend on every constant here: they never change.
"""

from __future__ import annotations

import math
from typing import Any, Final

import numpy as np

Numbers = np.ndarray[Any, np.dtype[np.int64]]

_ROUNDS: Final = 8
_MASK: Final = (1 << 64) - 1
_GOLDEN: Final = 0x9E3779B97F4A7C15
# The multipliers of splitmix64's finalizer, which is what `_mixed` is.
_FIRST: Final = 0xBF58476D1CE4E5B9
_SECOND: Final = 0x94D049BB133111EB


def _mixed(word: int) -> int:
    word = (word ^ (word >> 30)) * _FIRST & _MASK
    word = (word ^ (word >> 27)) * _SECOND & _MASK
    return word ^ (word >> 31)


def round_keys(seed: int, epoch: int) -> list[int]:
    """The keys of the rounds."""
    word = _mixed(_mixed(seed & _MASK) + epoch & _MASK)
    return [_mixed(word + k * _GOLDEN & _MASK) for k in range(1, _ROUNDS + 1)]


class Permutation:
    """The numbers 0 … length-1 in an order that seed and epoch decide."""

    def __init__(self, length: int, seed: int, epoch: int) -> None:
        self._length = length
        self._side = np.uint64(math.isqrt(max(length - 1, 0)) + 1)
        self._keys = [np.uint64(key) for key in round_keys(seed, epoch)]

    def span(self, begin: int, end: int) -> Numbers:
        """The numbers at these places of the order."""
        numbers = self._walk(np.arange(begin, end, dtype=np.uint64))
        beyond = np.flatnonzero(numbers >= self._length)
        while beyond.size:
            numbers[beyond] = self._walk(numbers[beyond])
            beyond = beyond[numbers[beyond] >= self._length]
        found: Numbers = numbers.view(np.int64)
        return found

    def _walk(self, numbers: np.ndarray[Any, np.dtype[np.uint64]]) -> Any:
        side, half, first, second = self._side, np.uint64(32), np.uint64(_FIRST), np.uint64(_SECOND)
        left, right = np.divmod(numbers, side)
        for key in self._keys:
            word = right ^ key
            word *= first
            word ^= word >> half
            word *= second
            # The upper half as a fraction of 2**32, times the side: from 0 up to side-1.
            word >>= half
            word *= side
            word >>= half
            word += left
            np.minimum(word, word - side, out=word)  # below 0 is far above: mod side
            left, right = right, word
        left *= side
        left += right
        return left
