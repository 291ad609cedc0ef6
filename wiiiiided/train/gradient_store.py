"""A rank's gradients between backward and step, and how those of all ranks become the average.

    backward    what another rank updates is copied to this rank's row there; what this rank
                updates stays where the backward left it, if it is large (`layout` draws rows)
    step        each rank adds up its part of all ranks' gradients: of its own rows, in the
                order of ranks, and divides by the number of ranks
    several     the sums of its part go to the rank of each other host that updates the same part
    hosts       (collectives.wide.segment_exchange), and come back as the average of all

The order of ranks is the order of the sum, so the bits do not depend on the order of arrival. A
parameter that had no gradient on some ranks counts as zero there; on all ranks, as without
gradient. Ranks that worked through different numbers of samples are weighted by them.

Half precision is summed in float32 and rounded once, at the end.
"""

from __future__ import annotations

import weakref
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Final

import numpy as np
import torch
import torch.distributed as dist

from wiiiiided.backend.collectives.wide.segment_exchange import (
    HostSegment,
    count_pieces,
    exchange_segments,
)
from wiiiiided.backend.engine.group import Group
from wiiiiided.backend.shm.board import CallSignature
from wiiiiided.backend.shm.kernels import Combine, carrier, combiner, dtype_name
from wiiiiided.backend.shm.slots import Array
from wiiiiided.errors import UsageError
from wiiiiided.train.between import Between
from wiiiiided.train.layout import PlacedPart, Row, segments
from wiiiiided.train.memory import HostMemory, run_plan
from wiiiiided.train.residuals import Residuals, elements_before
from wiiiiided.train.unaveraged_gradient import (
    ScatteredGradient,
    StagedGradient,
    UnaveragedGradient,
)

# Sum and division of a block are done while it is in the L2 cache.
BLOCK_BYTES: Final = 256 * 1024
_MOST_KEPT: Final = 16  # sets of parameters with gradients; a program has one or two
_EXCHANGE: Final = "the exchange of gradients in optimizer.step()"

Presence = np.ndarray[Any, np.dtype[np.uint8]]  # of each parameter, whether it has a gradient
Weights = list[float] | None  # of each rank of the group; None: all count alike


@dataclass(frozen=True)
class HostRows:
    """How gradients lie on every host of the group."""

    rows: Sequence[Sequence[Row]]  # by host and place
    ranks: Sequence[Sequence[int]]  # by host and place: the group's rank
    host: int
    place: int

    @property
    def mine(self) -> Row:
        """The parts that this rank updates."""
        return self.rows[self.host][self.place]

    @property
    def here(self) -> Sequence[Row]:
        """The rows of this host, by place."""
        return self.rows[self.host]

    @property
    def alone(self) -> bool:
        """Whether there is one host."""
        return len(self.rows) == 1


@dataclass(frozen=True)
class _SlotCopy:
    """Where a stretch of a parameter's gradient is copied to."""

    begin: int
    end: int
    slot: torch.Tensor


@dataclass(frozen=True)
class _StagedRun:
    """Staged parts of one dtype, one behind the other: added up in one call."""

    dtype: torch.dtype
    rows: list[Array]  # by place
    out: Array


class GradientStore:
    """This rank's gradients, the rows of what it updates, and their average."""

    def __init__(
        self,
        memory: HostMemory,
        process_group: dist.ProcessGroup,
        group: Group,
        parameters: Sequence[torch.Tensor],
        names: Sequence[str],
        layout: HostRows,
        between: Between,
        on_skipped_step: Callable[[], None],
    ) -> None:
        """`on_skipped_step`: called on every rank before GradScaler skips a step."""
        self._memory, self._process_group, self._group = memory, process_group, group
        self.on_skipped_step = on_skipped_step
        self._parameters, self._names, self._layout = parameters, names, layout
        me, places = memory.place, range(memory.places)
        self._rows = [memory.row(me, sender) for sender in places]
        # Where averages go: an operand that numpy may write to while it reads the others.
        self._out_place = me if me == 0 or memory.places == 2 else 0
        outgoing = {owner: memory.row(owner, me) for owner in places}
        self._copies = [self._copies_of(i, outgoing) for i in range(len(parameters))]
        mine = layout.mine.by_parameter.items()
        found = {i: [placed for placed in parts if placed.private] for i, parts in mine}
        self._private = {i: parts for i, parts in found.items() if parts}
        self._held: list[torch.Tensor | None] = [None] * len(parameters)
        self.holds_average = False  # made by `average`, and not yet used in a step
        dtypes = {p.dtype for p in parameters}
        self._combine: dict[torch.dtype, Combine] = {
            dtype: combiner("AVG", dtype, process_group.size()) for dtype in dtypes
        }
        # By which parameters have gradients: training repeats itself, and a step of a small
        # network has no time to make views anew.
        self._runs: dict[bytes, list[_StagedRun]] = {}
        self._exchanges: dict[bytes, list[HostSegment]] = {}
        self._codec = None if layout.alone else between.codec()
        self._exact_left = between.warmup_steps  # exchanges that are still exact
        self._calls = {
            codec: CallSignature.of(_EXCHANGE if codec is None else f"{_EXCHANGE}, {codec.name}")
            for codec in (None, self._codec)
        }
        self.residuals = None if self._codec is None else self._make_residuals()
        # Squared norms of a step that is measured (noise_scale): of the gradients that this rank
        # adds up, and of their average.
        self.own_norm = self.mean_norm = 0.0
        self.tells_noise = layout.alone or not between.hides_noise
        self._is_measured = False
        self._can_measure = dtypes == {torch.float32}
        self._wide: dict[str, Array] = {}  # by dtype: float32 sums of half precision
        self._averages = [self._lasting_average(placed) for placed in layout.mine.placed]
        # The tensors in a parameter's `grad` between backward and step.
        self._staged = [self._staged_slot(i) for i in range(len(parameters))]
        self.pending: list[UnaveragedGradient] = [
            ScatteredGradient(self, i, parameters[i], process_group)
            if slot is None
            else StagedGradient(self, i, slot, process_group)
            for i, slot in enumerate(self._staged)
        ]

    def _staged_slot(self, i: int) -> torch.Tensor | None:
        """The one place of a parameter's gradient, in its shape; None if it lies in parts."""
        parameter, copies = self._parameters[i], self._copies[i]
        if len(copies) != 1 or i in self._private:
            return None
        slot = copies[0].slot
        return slot.as_strided(parameter.shape, parameter.stride(), slot.storage_offset())

    def _copies_of(self, i: int, outgoing: dict[int, torch.Tensor]) -> list[_SlotCopy]:
        found = []
        for owner, row in enumerate(self._layout.here):
            for part, at, private in row.by_parameter.get(i, ()):
                if not (private and owner == self._memory.place):
                    slot = _stretch(outgoing[owner], at, part.count, self._parameters[i].dtype)
                    found.append(_SlotCopy(part.begin, part.end, slot))
        return found

    # -- from backward to step ----

    def label(self, i: int) -> str:
        """The parameter's name."""
        return self._names[i]

    def keep(self, i: int, gradient: torch.Tensor, theirs: bool = False) -> None:
        """Store a parameter's gradient. `theirs`: a program put it there and may look at it."""
        pending = self.pending[i]
        _check_dense(gradient, pending)
        flat = self._flat(i, gradient)
        for copy in self._copies[i]:
            copy.slot.copy_(flat[copy.begin : copy.end])
        if self._private.get(i):
            shared = theirs and flat.data_ptr() == gradient.data_ptr()
            self._held[i] = flat.clone() if shared else flat
        pending.reduced = False
        self._parameters[i].grad = pending

    def add(self, i: int, gradient: torch.Tensor, alpha: float = 1) -> None:
        """Another backward has come to a parameter."""
        flat = self._flat(i, gradient)
        for copy in self._copies[i]:
            copy.slot.add_(flat[copy.begin : copy.end], alpha=alpha)
        for held, part in self._held_parts(i):
            held.add_(flat[part.begin : part.end], alpha=alpha)

    def gradient_hook(self, i: int) -> Callable[[torch.Tensor], None]:
        """The hook on a parameter: a backward has come to it."""
        slot = self._staged[i]
        return (
            _GradientHook(self, i) if slot is None else _StagedGradientHook(self.pending[i], slot)
        )

    def parts(self, i: int) -> list[torch.Tensor]:
        """Where this rank's gradient of a parameter lies, flat, in parts."""
        held = [part for part, _ in self._held_parts(i)]
        return [*(copy.slot for copy in self._copies[i]), *held]

    def _held_parts(self, i: int) -> Iterator[tuple[torch.Tensor, Any]]:
        for part, _, _ in self._private.get(i, ()):
            held = self._held[i]
            if held is None:
                held = self._held[i] = torch.zeros(
                    self._parameters[i].numel(), dtype=self._parameters[i].dtype
                )
            yield held[part.begin : part.end], part

    def let_go(self) -> None:
        """Free, before a backward, the memory of gradients that were discarded. Where this rank has
        no gradient, the average of what others have may lie there until the step."""
        for i in () if self.holds_average else self._private:
            if self._parameters[i].grad is None:
                self._held[i] = None

    def _flat(self, i: int, gradient: torch.Tensor) -> torch.Tensor:
        """A gradient in the order of its parameter's memory."""
        parameter = self._parameters[i]
        if gradient.stride() != parameter.stride() or gradient.dtype is not parameter.dtype:
            ordered = torch.empty_strided(
                parameter.shape, parameter.stride(), dtype=parameter.dtype
            )
            gradient = ordered.copy_(gradient)
        return gradient.detach().as_strided((parameter.numel(),), (1,), gradient.storage_offset())

    # -- the average ----

    def average(
        self, here: Sequence[Presence], anywhere: Presence, weights: Weights, measure: bool = False
    ) -> None:
        """Make the average of what this rank updates.

        `here`: of each rank of this host, in order of places, what has a gradient, or nothing if
        that is the same on all ranks; `anywhere`: of all ranks of the group together. `measure`:
        leave the squared norms; those that hosts leave of the average add up to it.
        """
        self.own_norm = self.mean_norm = 0.0
        self.holds_average = True
        if self._process_group.size() == 1:
            return  # the average of one rank's gradients is those, where its backward left them
        same = all(np.array_equal(presence, anywhere) for presence in here)
        self._is_measured = measure and same and self._can_measure
        if same and weights is None:
            self._add_up_runs(anywhere)
        else:
            self._add_up_parts(here, anywhere, weights)
        placed = enumerate(self._layout.mine.placed if self._is_measured else ())
        measured = [k for k, p in placed if anywhere[p.part.parameter]]
        if measured and self._codec is not None and not self._exact_left:
            self.mean_norm = self._exchange_measured(anywhere, measured)
            return
        if not self._layout.alone:
            self._exchange(anywhere)
        if self._layout.host == 0:  # other hosts have the same
            parts = map(self.average_of, measured)
            self.mean_norm = sum(_product(part, part) for part in parts)

    def average_of(self, k: int) -> torch.Tensor:
        """The average of the k-th part that this rank updates, flat."""
        average = self._averages[k]
        if average is None:
            part = self._layout.mine.placed[k].part
            held = self._held[part.parameter]
            assert held is not None
            average = held[part.begin : part.end]
        return average

    def _lasting_average(self, placed: PlacedPart) -> torch.Tensor | None:
        """Where a part's average lies in every step; None: where the backward left it."""
        part, at, private = placed
        if private and self._out_place == self._memory.place:
            return None
        row = self._rows[self._out_place]
        return _stretch(row, at, part.count, self._parameters[part.parameter].dtype)

    def _add_up_runs(self, present: Presence) -> None:
        """Add up the gradients where all ranks have the same ones, and count alike."""
        key = present.tobytes()
        if key not in self._runs:
            if len(self._runs) >= _MOST_KEPT:
                self._runs.clear()
            self._runs[key] = list(self._staged_runs(present))
        for run in self._runs[key]:
            self._add_up(run.dtype, run.rows, run.out)
        for k, (part, at, private) in enumerate(self._layout.mine.placed):
            if private and present[part.parameter]:
                dtype = self._parameters[part.parameter].dtype
                rows = [carrier(row) for row in self._rows_of(part, at)]
                self._add_up(dtype, rows, carrier(self.average_of(k)))

    def _add_up(self, dtype: torch.dtype, rows: list[Array], out: Array) -> None:
        combine, step = self._combine[dtype], BLOCK_BYTES // dtype.itemsize
        for at in range(0, out.size, step):
            blocks = [row[at : at + step] for row in rows]
            if self._is_measured:  # while they are in the cache
                self.own_norm += sum(map(_squared, blocks))
            combine(blocks, out[at : at + step])

    def _rows_of(self, part: Any, at: int) -> list[torch.Tensor]:
        """Every rank's gradients of a private part, in order of places."""
        dtype = self._parameters[part.parameter].dtype
        rows = [
            _stretch(row, at, part.count, dtype) if place != self._memory.place else torch.empty(0)
            for place, row in enumerate(self._rows)
        ]
        (mine,) = (held for held, other in self._held_parts(part.parameter) if other is part)
        rows[self._memory.place] = mine
        return rows

    def _staged_runs(self, present: Presence) -> Iterator[_StagedRun]:
        begin = end = 0
        dtype: torch.dtype | None = None
        for part, at, private in self._layout.mine.placed:
            if private or not present[part.parameter]:
                continue
            mine = self._parameters[part.parameter].dtype
            if dtype is not None and (mine is not dtype or at != end):
                yield self._run(dtype, begin, end)
                dtype = None
            if dtype is None:
                dtype, begin = mine, at
            end = at + part.count * mine.itemsize
        if dtype is not None:
            yield self._run(dtype, begin, end)

    def _run(self, dtype: torch.dtype, begin: int, end: int) -> _StagedRun:
        rows = [carrier(row[begin:end].view(dtype)) for row in self._rows]
        return _StagedRun(dtype, rows, self._sums(dtype, begin, end))

    def _sums(self, dtype: torch.dtype, begin: int, end: int) -> Array:
        """Where this host's sums go: what is rounded at the end only, to float32 of its own."""
        if self._layout.alone or dtype.itemsize >= 4:
            return carrier(self._rows[self._out_place][begin:end].view(dtype))
        name = dtype_name(dtype)
        if name not in self._wide:
            nbytes = self._layout.mine.nbytes // dtype.itemsize * 4
            self._wide[name] = np.zeros(nbytes // 4, np.float32)
        return self._wide[name][begin // dtype.itemsize : end // dtype.itemsize]

    def _add_up_parts(self, here: Sequence[Presence], anywhere: Presence, weights: Weights) -> None:
        """Add up the gradients where ranks differ in which they have, or in what they count for."""
        ranks = self._layout.ranks[self._layout.host]
        for k, (part, at, private) in enumerate(self._layout.mine.placed):
            if not anywhere[part.parameter]:
                continue
            dtype = self._parameters[part.parameter].dtype
            nbytes = part.count * dtype.itemsize
            out = (
                self.average_of(k)
                if private and self._held_for(part.parameter)
                else torch.from_numpy(self._sums(dtype, at, at + nbytes))
            )
            rows = (
                self._rows_of(part, at)
                if private
                else [_stretch(row, at, part.count, dtype) for row in self._rows]
            )
            chosen = [
                (row, 1 / self._process_group.size() if weights is None else weights[rank])
                for row, rank, presence in zip(rows, ranks, here, strict=True)
                # A rank that counts nothing is left out: its gradient may be no number at all.
                if presence[part.parameter] and (weights is None or weights[rank])
            ]
            if self._is_measured:
                self.own_norm += sum(float(row.dot(row)) for row, _ in chosen)
            _weighted_sum(chosen, out if out.dtype.is_floating_point else out.view(dtype))

    def _held_for(self, i: int) -> bool:
        """Have memory for a private average, also where this rank had no gradient."""
        for _ in self._held_parts(i):
            pass
        return True

    # -- between hosts ----

    def _exchange(self, present: Presence) -> None:
        key = present.tobytes()
        if key not in self._exchanges:
            if len(self._exchanges) >= _MOST_KEPT:
                self._exchanges.clear()
            self._exchanges[key] = self._host_segments(present)
        found = self._exchanges[key]
        codec = None if self._exact_left else self._codec
        self._exact_left = max(0, self._exact_left - 1)
        plan = exchange_segments(self._group, self._calls[codec], found, codec)
        nbytes = sum(segment.values.nbytes for segment in found)
        run_plan(self._group, "the exchange of gradients", plan, nbytes)
        self._round()

    def _exchange_measured(self, present: Presence, numbers: Sequence[int]) -> float:
        """Exchange coded, and return this host's part of the squared norm of the exact average.

        The average less what this host's coding has added to it, times this host's sum. The
        errors of other hosts' coding do not depend on that, and cancel in the mean.
        """
        sums = [self.average_of(k).clone() for k in numbers]
        left = [self._left_of(k) for k in numbers]
        before = sum(map(_product, left, sums))
        self._exchange(present)
        averages = map(self.average_of, numbers)
        return sum(map(_product, averages, sums)) + sum(map(_product, left, sums)) - before

    def _left_of(self, k: int) -> torch.Tensor:
        """The residual of the k-th part that this rank updates."""
        placed = self._layout.mine.placed[k]
        residual = self._residual(placed.at, placed.part.count)
        assert residual is not None
        return torch.from_numpy(residual)

    def _host_segments(self, present: Presence) -> list[HostSegment]:
        layout = self._layout
        dtypes = [dtype_name(p.dtype) for p in self._parameters]
        sizes = [p.element_size() for p in self._parameters]
        chosen = [int(i) for i in np.flatnonzero(present)]
        found, first = [], 0
        for segment in segments(layout.rows, chosen, dtypes, sizes):
            dtype: torch.dtype = getattr(torch, segment.dtype)
            count = segment.nbytes // dtype.itemsize
            if segment.members[layout.host] == layout.place:
                begin = segment.begins[layout.host]
                values = self._sums(dtype, begin, begin + segment.nbytes)
                members = tuple(
                    ranks[place] for ranks, place in zip(layout.ranks, segment.members, strict=True)
                )
                residual = self._residual(begin, count) if values.dtype == np.float32 else None
                found.append(HostSegment(values, members, first, residual))
            first += count_pieces(count, max(dtype.itemsize, 4))
        return found

    def _make_residuals(self) -> Residuals:
        """Make the residuals of all parts of this host, in the order of places and rows."""
        parts = [placed.part for row in self._layout.here for placed in row.placed]
        return Residuals(self._group, parts, self._parameters, self._names)

    def _residual(self, begin: int, count: int) -> Array | None:
        """The residual of so many elements, from this byte of this rank's row on."""
        if self.residuals is None:
            return None
        sizes = [p.element_size() for p in self._parameters]
        before = sum(len(row.placed) for row in self._layout.here[: self._layout.place])
        first = self.residuals.begins[before]
        return self.residuals.stretch(
            first + elements_before(self._layout.mine, begin, sizes), count
        )

    def _round(self) -> None:
        """Round sums of half precision over all hosts to what the optimizer takes."""
        for name, sums in self._wide.items():
            dtype: torch.dtype = getattr(torch, name)
            for part, at, _ in self._layout.mine.placed:
                if self._parameters[part.parameter].dtype is dtype:
                    begin = at // dtype.itemsize
                    rounded = _stretch(self._rows[self._out_place], at, part.count, dtype)
                    rounded.copy_(torch.from_numpy(sums[begin : begin + part.count]))


class _GradientHook:
    """Takes the gradient of a parameter whose gradients lie in parts."""

    def __init__(self, store: GradientStore, number: int) -> None:
        # Weakly: a parameter lives as long as the store that holds it.
        self._store, self._number = weakref.ref(store), number

    def __call__(self, parameter: torch.Tensor) -> None:
        store, gradient = self._store(), parameter.grad
        if store is None or gradient is None or gradient is store.pending[self._number]:
            return
        store.keep(self._number, gradient)


class _StagedGradientHook:
    """Takes the gradient of a parameter whose gradients lie in one place. Made for speed."""

    def __init__(self, pending: UnaveragedGradient, slot: torch.Tensor) -> None:
        self._pending, self._slot = pending, slot

    def __call__(self, parameter: torch.Tensor) -> None:
        gradient, pending = parameter.grad, self._pending
        if gradient is pending:  # autograd has added to it
            pending.check_new()
        elif gradient is not None:
            _check_dense(gradient, pending)
            self._slot.copy_(gradient)
            pending.reduced = False
            parameter.grad = pending


def _check_dense(gradient: torch.Tensor, pending: UnaveragedGradient) -> None:
    if gradient.layout is not torch.strided:
        raise UsageError(
            f"the gradient of {pending.label} is sparse: use dense gradients "
            "(Embedding(sparse=False)), or DistributedDataParallel over this backend"
        )


def _stretch(row: torch.Tensor, at: int, count: int, dtype: torch.dtype) -> torch.Tensor:
    """A part of a row, as numbers."""
    return row[at : at + count * dtype.itemsize].view(dtype)


def _squared(block: Array) -> float:
    return float(np.einsum("i,i->", block, block))  # numpy's dot would start threads


def _product(one: torch.Tensor, other: torch.Tensor) -> float:
    return float(one.dot(other))


def _weighted_sum(rows: Sequence[tuple[torch.Tensor, float]], out: torch.Tensor) -> None:
    """Sum rows by their weights, block by block in float32 or wider; nothing: zeros."""
    wide = torch.float64 if out.dtype is torch.float64 else torch.float32
    step = BLOCK_BYTES // wide.itemsize
    for at in range(0, out.numel(), step):
        total = torch.zeros(min(step, out.numel() - at), dtype=wide)
        for row, weight in rows:
            total.add_(row[at : at + step].to(wide), alpha=weight)
        out[at : at + step].copy_(total)
