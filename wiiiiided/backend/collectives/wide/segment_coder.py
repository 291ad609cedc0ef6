"""The lossy part of an exchange of segments: what is coded, and where it lies meanwhile.

    out       values for other hosts      w + 1 pieces: sent in turn k, awaited in turn k + w
    results   sums, for all hosts         w + 1 pieces: sent in turn k + w, awaited in turn k + 2w
    in        sums of other hosts         2w + 1 pieces: posted in turn k, taken in turn k + 2w

Within a turn the new piece comes before the old one is awaited: hence one more than that. The
memory stays from one exchange to the next.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Final

import numpy as np

from wiiiiided.backend.collectives.wide.barrier import FLIGHT
from wiiiiided.backend.engine.remote_members import RemoteMembers
from wiiiiided.backend.lossy.interface import GradientCodec
from wiiiiided.backend.shm.slots import Array

# Elements of a share, spread over it, by which the error is told. So few cost a hundredth of coding
# a whole piece, and numpy's dot starts no threads for them.
_SAMPLE: Final = 1024


class SegmentCoder:
    """A codec, and rings for what it has coded."""

    def __init__(self, wide: RemoteMembers, codec: GradientCodec) -> None:
        self.codec, self._wide = codec, wide
        self._host, self._hosts = wide.host, len(wide.hosts)
        self._raw = self._coded = 0
        self.saved = 0  # bytes that were not sent
        self._left = self._given = 0.0  # sums of squares

    def make_buffers(self, elements: int) -> int:
        """Make buffers for shares of at most so many elements; returns the coded bytes of one."""
        row, others = self.codec.coded_bytes(elements), self._hosts
        self._out = self._ring("coded out", FLIGHT + 1, others, row)
        if self._hosts > 2:
            self._results = self._ring("coded results", FLIGHT + 1, 1, row)
            self._in = self._ring("coded in", 2 * FLIGHT + 1, others, row)
        self._sum = self._wide.buffer("sum of segments", 4 * elements).view(np.float32)
        self._decoded = self._wide.buffer("decoded segment", 4 * elements).view(np.float32)
        return row

    def _ring(self, purpose: str, length: int, rows: int, row: int) -> Array:
        row = -(-row // 64) * 64
        return self._wide.buffer(purpose, length * rows * row).reshape(length, rows, row)

    def written(self, k: int, host: int, share: Array, left: Array) -> Array:
        """A share for the host that adds it up; `share` becomes what that host decodes."""
        return self._encode(self._out[k % len(self._out), host], share, left)

    def result(self, k: int, mine: Array, left: Array) -> Array:
        """The sum for all hosts; `mine` becomes what they decode."""
        return self._encode(self._results[k % len(self._results), 0], mine, left, self._hosts - 1)

    def collected(self, k: int, host: int, count: int) -> Array:
        """Where another host's sum of its share, of so many elements, is received."""
        row: Array = self._in[k % len(self._in), host]
        return row[: self.codec.coded_bytes(count)]

    def add_up(self, mine: Array, heard: Mapping[int, Array]) -> None:
        """Add what the other hosts have sent to mine, in the order of hosts."""
        decoded = self._decoded[: mine.size]
        if self._hosts == 2:
            self.codec.decode(heard[1 - self._host], decoded)
            first, second = (mine, decoded) if self._host == 0 else (decoded, mine)
            np.add(first, second, out=mine)
            return
        total = self._sum[: mine.size]
        for host in range(self._hosts):
            if host != self._host:
                self.codec.decode(heard[host], decoded)
            values = mine if host == self._host else decoded
            if host == 0:
                total[:] = values
            else:
                np.add(total, values, out=total)
        mine[:] = total

    def _encode(self, row: Array, share: Array, left: Array, times: int = 1) -> Array:
        """`times`: to so many hosts."""
        coded = row[: self.codec.coded_bytes(share.size)]
        self.codec.encode(share, left, coded)
        # An odd stride: it comes by all places of blocks, and of rows of any usual width.
        stride = share.size // _SAMPLE | 1
        self._look(share[::stride], left[::stride])
        self._raw += share.nbytes
        self._coded += coded.size
        self.saved += times * (share.nbytes - coded.size)
        return coded

    def _look(self, given: Array, left: Array) -> None:
        with np.errstate(all="ignore"):
            self._left += float(np.dot(left, left))
            self._given += float(np.dot(given, given))

    def summary(self) -> str:
        """How gradients travelled, in a sentence for `links()`; empty: as they are."""
        if not self._coded:
            return ""
        said = f"{self.codec.name}: {self._raw / self._coded:.2f} times smaller"
        error = math.sqrt(self._left / self._given) if self._given > 0 else math.inf
        return f"{said}, {100 * error:.3g} % left for the next exchange" if error < 1e9 else said
