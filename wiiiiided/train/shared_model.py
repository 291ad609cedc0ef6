"""A model and its optimizer on this host: parameters by name, which rank updates what, the memory.

SharedParameters   parameters in a host's memory, and the optimizer that writes to them
SharedModel        … of which each rank updates a part, from the average of all gradients:
    pieces         what this rank's optimizer updates: slices of parameters, or whole ones
    state          the optimizer's state, divided as the pieces are
    gradients      rows in shared memory, and their average
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, Final

import numpy as np
import torch
import torch.distributed as dist

from wiiiiided.backend.engine.group import Group
from wiiiiided.backend.shm.board import CallSignature
from wiiiiided.backend.shm.kernels import dtype_name
from wiiiiided.errors import UsageError
from wiiiiided.train.between import Between
from wiiiiided.train.checks import ELEMENTWISE
from wiiiiided.train.gradient_store import GradientStore, HostRows
from wiiiiided.train.layout import Divide, ParameterPart, Row, owners, pack_row, slices
from wiiiiided.train.memory import Bytes, HostMemory, host_barrier
from wiiiiided.train.optimizer import shown
from wiiiiided.train.optimizer_state import Piece, SharedState
from wiiiiided.train.small_collectives import broadcast_bytes
from wiiiiided.train.weights import SharedWeights

_START: Final = CallSignature.of("wide.parallel()")


class SharedParameters:
    """The parameters of one model, in memory that the ranks of a host share."""

    def __init__(
        self,
        model: torch.nn.Module,
        optimizer: torch.optim.Optimizer,
        process_group: dist.ProcessGroup,
        group: Group,
    ) -> None:
        self.optimizer, self.process_group, self.group = optimizer, process_group, group
        named = named_parameters(model)
        self.names, self.parameters = list(named), list(named.values())
        self._group_sizes = [len(held["params"]) for held in optimizer.param_groups]

    def lay_down(self, rows: Sequence[Row]) -> None:
        """Make the memory and move the parameters there, rank 0's values. A collective call."""
        sizes = [p.numel() * p.element_size() for p in self.parameters]
        self.memory = HostMemory(self.group, sizes, rows)
        self.weights = SharedWeights(self.memory, self.names, self.parameters)
        if self.process_group.rank() == 0:
            self.weights.fill()
        self.broadcast_weights(0)
        host_barrier(self.group, _START)
        self.weights.point()

    def broadcast_weights(self, source: int) -> None:
        """Send the weights of one rank's host to all hosts. A host's ranks write the same bytes."""
        if self.group.wide is not None and self.memory.area_bytes:
            broadcast_bytes(self.process_group, self.memory.weights(), source)

    def check_groups(self) -> None:
        """Raise if the optimizer has other parameters than it had."""
        if [len(group["params"]) for group in self.optimizer.param_groups] != self._group_sizes:
            raise UsageError(
                "the optimizer's parameters are not those it had when parallel() was called "
                "(add_param_group?): give it all of them before, frozen ones too"
            )


class SharedModel(SharedParameters):
    """A model of which each rank updates a part."""

    def __init__(
        self,
        model: torch.nn.Module,
        optimizer: torch.optim.Optimizer,
        process_group: dist.ProcessGroup,
        group: Group,
        between: Between,
        on_skipped_step: Callable[[], None],
    ) -> None:
        """`on_skipped_step`: called before GradScaler skips a step. A collective call."""
        super().__init__(model, optimizer, process_group, group)
        self.divided = type(optimizer) in ELEMENTWISE
        self.layout = self._lay_out()
        self.lay_down(self.layout.here)
        self.gradients = GradientStore(
            self.memory,
            process_group,
            group,
            parameters=self.parameters,
            names=self.names,
            layout=self.layout,
            between=between,
            on_skipped_step=on_skipped_step,
        )
        self._divide()

    @property
    def alone(self) -> bool:
        """Whether there is one host."""
        return self.layout.alone

    def _lay_out(self) -> HostRows:
        """Where every host's gradients lie: the same on all ranks."""
        counts = [p.numel() for p in self.parameters]
        dtypes = [dtype_name(p.dtype) for p in self.parameters]
        sizes = [p.element_size() for p in self.parameters]
        wide, team = self.group.wide, self.group.team
        hosts = [team.ranks] if wide is None else wide.hosts
        divide: Divide = slices if self.divided else owners
        rows = [
            [
                pack_row(parts, dtypes, sizes, len(hosts) == 1)
                for parts in divide(counts, len(ranks))
            ]
            for ranks in hosts
        ]
        return HostRows(rows, hosts, 0 if wide is None else wide.host, team.rank)

    def _divide(self) -> None:
        """Which pieces this rank's optimizer updates."""
        before = {
            placed.part.parameter
            for row in self.layout.here[: self.layout.place]
            for placed in row.placed
        }
        parts = [placed.part for placed in self.layout.mine.placed]
        self.pieces = [
            Piece(part, self._piece_tensor(part), part.parameter not in before) for part in parts
        ]
        self.state = SharedState(
            self.group,
            self.process_group,
            self.optimizer,
            self.parameters,
            self.pieces,
            self.divided,
        )
        numbers = {id(p): i for i, p in enumerate(self.parameters)}
        places = {piece.part.parameter: k for k, piece in enumerate(self.pieces)}
        self._by_group = [
            [places[n] for p in group["params"] if (n := numbers[id(p)]) in places]
            for group in self.optimizer.param_groups
        ]

    def _piece_tensor(self, part: ParameterPart) -> torch.Tensor:
        """The tensor that the optimizer is shown: a flat slice, or the parameter itself."""
        parameter = self.parameters[part.parameter]
        if not self.divided:
            return parameter
        piece = self.weights.flat[part.parameter][part.begin : part.end]
        return piece if parameter.dim() else piece.view(())  # its state is one number too

    # -- the optimizer's own step ----

    def update(self, inner: Callable[[], Any], present: Bytes) -> None:
        """Run the optimizer's own step on the averages of what this rank updates."""
        if self.divided:
            self._update_slices(inner, present)
        else:
            self._update_owned(inner, present)

    def _update_slices(self, inner: Callable[[], Any], present: Bytes) -> None:
        chosen: list[list[torch.Tensor]] = []
        for held in self._by_group:
            chosen.append([])
            for k in held:
                piece = self.pieces[k]
                if present[piece.part.parameter]:
                    tensor, average = piece.tensor, self.gradients.average_of(k)
                    tensor.grad = average if tensor.dim() else average.view(())
                    chosen[-1].append(tensor)
        with shown(self.optimizer, self.state.working, chosen):
            inner()

    def _update_owned(self, inner: Callable[[], Any], present: Bytes) -> None:
        kept = [parameter.grad for parameter in self.parameters]
        try:
            for parameter in self.parameters:
                parameter.grad = None
            for k, piece in enumerate(self.pieces):
                if present[piece.part.parameter]:
                    like, average = piece.tensor, self.gradients.average_of(k)
                    like.grad = average.as_strided(
                        like.shape, like.stride(), average.storage_offset()
                    )
            inner()
        finally:
            for parameter, gradient in zip(self.parameters, kept, strict=True):
                parameter.grad = gradient

    def scale_average(self, present: Bytes, factor: torch.Tensor) -> None:
        """Multiply this rank's part of the average."""
        for k, piece in enumerate(self.pieces):
            if present[piece.part.parameter]:
                self.gradients.average_of(k).mul_(factor)

    def norms(self, present: Bytes, kind: float) -> torch.Tensor:
        """The norms of this rank's parts of the average."""
        parts = [
            torch.linalg.vector_norm(self.gradients.average_of(k), kind, dtype=torch.float64)
            for k, piece in enumerate(self.pieces)
            if present[piece.part.parameter]
        ]
        return torch.stack(parts) if parts else torch.zeros(1, dtype=torch.float64)


def named_parameters(model: torch.nn.Module) -> dict[str, torch.nn.Parameter]:
    """The parameters to share, by name: those that are trained, then the frozen ones."""
    named = dict(model.named_parameters())
    return {
        **{name: p for name, p in named.items() if p.requires_grad},
        **{name: p for name, p in named.items() if not p.requires_grad},
    }


def no_gradients(count: int) -> Bytes:
    """The presence of gradients where none of so many parameters has one."""
    return np.zeros(count, np.uint8)
