"""The average of the ranks' gradients, made where they lie.

    gradients of place 0   │ ······ │ AVERAGE of my part │ ······ │     on one host the average of a
    gradients of place 1   │ ······ │       read         │ ······ │     part replaces place 0's

One host: each rank reads its own part of everybody's gradients and writes the average over place
0's: nothing is staged, and no byte is moved that need not be. Several hosts: the group's all_reduce
does it over each rank's own area (inside each host through memory, between hosts only what must
cross), and every rank has the whole average in its own area.

The sum is in the order of ranks, so the bits do not depend on the order of arrival. A parameter
that had no gradient on some ranks counts as zero there; on all ranks, as without gradient.
Ranks that worked through different numbers of samples are weighted by them.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final

import numpy as np
import torch
import torch.distributed as dist

from wiiiiided.backend.shm.kernels import Combine, carrier, combiner
from wiiiiided.backend.shm.slots import Array
from wiiiiided.train.layout import ParameterPart
from wiiiiided.train.memory import HostMemory

# Sum and division of a block are done while it is in the L2 cache.
BLOCK_BYTES: Final = 256 * 1024

_MOST_KEPT: Final = 16  # sets of parameters with gradients; a program has one or two

Weights = list[float] | None  # of each rank of the group; None: all count alike


class Gradients:
    """The gradients of all ranks of this host, and how they become the average."""

    def __init__(
        self,
        memory: HostMemory,
        parameters: Sequence[torch.Tensor],
        parts: Sequence[ParameterPart],
        group: dist.ProcessGroup,
        ranks: Sequence[int],
    ) -> None:
        """`parts` are this rank's; `ranks` the group's ranks on this host, in order of places."""
        self._memory, self._parameters, self._group, self._ranks = memory, parameters, group, ranks
        self._parts = list(parts)
        self._alone = group.size() == len(ranks)  # the only host
        place = 0 if self._alone else memory.place
        self.average = [
            memory.gradient(place, i, p.numel(), p.dtype) for i, p in enumerate(parameters)
        ]
        self.mine = [
            memory.gradient(memory.place, i, p.numel(), p.dtype) for i, p in enumerate(parameters)
        ]
        self._combine: dict[torch.dtype, Combine] = {
            p.dtype: combiner("AVG", p.dtype, group.size()) for p in parameters
        }
        # By which parameters have gradients: training repeats itself, and a step of a small
        # network has no time to make views anew.
        self._kept: dict[bytes, list[tuple[torch.dtype, list[Array]]]] = {}

    def reduce(
        self, present: Sequence[np.ndarray[Any, np.dtype[np.uint8]]], weights: Weights
    ) -> None:
        """Make the average of this rank's parts (one host) or of everything (several).

        `present` tells of each rank of the host which parameters have a gradient there (one host),
        or of the whole group which have one anywhere (several hosts, one entry).
        """
        if not self._alone:
            self._reduce_between_hosts(present[0], weights)
        elif weights is None and all(np.array_equal(row, present[0]) for row in present[1:]):
            for dtype, rows in self._views_of(present[0]):
                self._average(dtype, rows, rows[0], None)
        else:
            self._reduce_by_parts(present, weights)

    def _views_of(
        self, present: np.ndarray[Any, np.dtype[np.uint8]]
    ) -> list[tuple[torch.dtype, list[Array]]]:
        """All ranks' gradients of this rank's parts, where all ranks have the same ones."""
        key = present.tobytes()
        if key not in self._kept:
            if len(self._kept) >= _MOST_KEPT:
                self._kept.clear()
            runs = self._runs([part for part in self._parts if present[part.parameter]])
            places = range(self._memory.places)
            self._kept[key] = [
                (dtype, [self._typed(dtype, place, begin, end) for place in places])
                for dtype, begin, end in runs
            ]
        return self._kept[key]

    def _reduce_by_parts(
        self, present: Sequence[np.ndarray[Any, np.dtype[np.uint8]]], weights: Weights
    ) -> None:
        for part in self._parts:
            have = [r for r, row in enumerate(present) if row[part.parameter]]
            if have:
                dtype = self._parameters[part.parameter].dtype
                begin, end = self._bounds(part)
                rows = [self._typed(dtype, place, begin, end) for place in have]
                chosen = None if weights is None else [weights[self._ranks[r]] for r in have]
                self._average(dtype, rows, self._typed(dtype, 0, begin, end), chosen)

    def _typed(self, dtype: torch.dtype, place: int, begin: int, end: int) -> Array:
        """Bytes of a rank's gradients as numbers."""
        return carrier(torch.from_numpy(self._memory.gradients(place, begin, end)).view(dtype))

    def _average(
        self, dtype: torch.dtype, rows: list[Array], out: Array, weights: list[float] | None
    ) -> None:
        """Each rank's gradients → the average, block by block."""
        combine, step = self._combine[dtype], BLOCK_BYTES // dtype.itemsize
        for at in range(0, out.size, step):
            blocks = [row[at : at + step] for row in rows]
            if weights is None:
                combine(blocks, out[at : at + step])
            else:
                _weighted(dtype, blocks, weights, out[at : at + step])

    def _reduce_between_hosts(
        self, present: np.ndarray[Any, np.dtype[np.uint8]], weights: Weights
    ) -> None:
        scale = None if weights is None else weights[self._group.rank()]
        every = [
            ParameterPart(i, 0, p.numel()) for i, p in enumerate(self._parameters) if present[i]
        ]
        for part in every:
            if scale is not None:
                self.mine[part.parameter].mul_(scale)
        op = dist.ReduceOp.AVG if scale is None else dist.ReduceOp.SUM
        for dtype, begin, end in self._runs(every):
            area = self._memory.gradients(self._memory.place, begin, end)
            dist.all_reduce(torch.from_numpy(area).view(dtype), op, self._group)

    def zero(self, parameter: int) -> None:
        """This rank has no gradient of a parameter that others have."""
        self.mine[parameter].zero_()

    def _bounds(self, part: ParameterPart) -> tuple[int, int]:
        at, size = (
            self._memory.offsets[part.parameter],
            self._parameters[part.parameter].dtype.itemsize,
        )
        return at + part.begin * size, at + part.end * size

    def _runs(self, parts: Sequence[ParameterPart]) -> list[tuple[torch.dtype, int, int]]:
        """Parts that lie one behind the other and are of one dtype, taken together.

        The padding between two parameters is summed along: it is always zero.
        """
        runs: list[tuple[torch.dtype, int, int]] = []
        last = ParameterPart(-2, 0, 0)
        for part in parts:
            dtype = self._parameters[part.parameter].dtype
            begin, end = self._bounds(part)
            follows = part.parameter == last.parameter + 1 and part.begin == 0
            if runs and runs[-1][0] is dtype and follows and self._ends(last):
                runs[-1] = (dtype, runs[-1][1], end)
            else:
                runs.append((dtype, begin, end))
            last = part
        return runs

    def _ends(self, part: ParameterPart) -> bool:
        return part.end == self._parameters[part.parameter].numel()


def _weighted(dtype: torch.dtype, blocks: list[Array], weights: list[float], out: Array) -> None:
    wide = torch.float64 if dtype is torch.float64 else torch.float32
    total: torch.Tensor | None = None
    for block, weight in zip(blocks, weights, strict=True):
        scaled = torch.from_numpy(block).view(dtype).to(wide) * weight
        total = scaled if total is None else total.add_(scaled)
    assert total is not None
    torch.from_numpy(out).view(dtype).copy_(total)
