"""`wide.compress_gradients`: lossy gradients between hosts for stock DistributedDataParallel.

A comm hook: DDP hands over each bucket when its gradients are there, and goes on with the backward
while the bucket is averaged (`collectives.wide.coded_all_reduce`). Residuals are kept by parameter
and not by bucket, in memory that the ranks of a host share: DDP builds its buckets anew after the
first step, and another rank of the host then has the share in which a parameter lies.

    bucket      │ p7 ······ │ p6 ·· │ p5 ········ │
    my share                  └──── r ────┘
    residuals   │ … │ p5 ········ │ p6 ·· │ p7 ······ │ …        in the order of the model

When the model gets another group (`_update_process_group`) they begin at zero.
"""

from __future__ import annotations

import weakref
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, NamedTuple

import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel

from wiiiiided import log
from wiiiiided.backend.collectives.wide.coded_all_reduce import coded_all_reduce
from wiiiiided.backend.lossy.interface import Floats
from wiiiiided.backend.lossy.registry import EXACT, by_name
from wiiiiided.backend.shm.board import CallSignature
from wiiiiided.backend.shm.kernels import carrier, combiner
from wiiiiided.errors import Mismatch, UsageError
from wiiiiided.torch.process_group import WiiiiideProcessGroup
from wiiiiided.train.layout import ParameterPart
from wiiiiided.train.residuals import HostNumber, Residuals, read_state
from wiiiiided.train.small_collectives import all_gather_text


class CompressedGradients:
    """The lossy gradients of one DDP model. Made by `wide.compress_gradients`."""

    def __init__(self, model: DistributedDataParallel, gradients: str | None) -> None:
        """None: what the job file says."""
        process_group = _process_group(model)
        if gradients is None:
            gradients = process_group.engine_group.driver.config.gradients or EXACT
        self._codec = by_name(gradients)
        if model._comm_hooks:
            raise UsageError(
                "this model has a comm hook already, and DistributedDataParallel takes one: call "
                "compress_gradients once a model, and in place of other hooks"
            )
        # Weakly: the model's reducer, in C++, keeps this.
        self._model = weakref.ref(model)
        named = [(n, p) for n, p in model.module.named_parameters() if p.requires_grad]
        self._names = [name for name, _ in named]
        self._numbers = {id(p): i for i, (_, p) in enumerate(named)}
        _agree(process_group, gradients)
        self._enter(process_group)
        if self._residuals is None and self._codec is not None and process_group.rank() == 0:
            log.warn(
                process_group.engine_group.who,
                f'compress_gradients(model, "{gradients}") does nothing: all ranks are on one host',
            )
        if self._residuals is not None:
            # No annotations: DDP would want the classes themselves, and ours are strings.
            model.register_comm_hook(self, lambda state, bucket: state.average(bucket))

    def _enter(self, process_group: WiiiiideProcessGroup) -> None:
        """Enter a group, whose residuals begin at zero. A collective call."""
        self._process_group, group = process_group, process_group.engine_group
        self._residuals: Residuals | None = None
        self._combine = combiner("AVG", torch.float32, group.size)
        model = self._model()
        if self._codec is not None and group.wide is not None and model is not None:
            parameters = [p for p in model.module.parameters() if id(p) in self._numbers]
            parts = [ParameterPart(i, 0, p.numel()) for i, p in enumerate(parameters)]
            self._residuals = Residuals(group, parts, parameters, self._names)

    # -- the hook ----

    def average(self, bucket: Any) -> Any:
        """A future of the bucket's average over all ranks."""
        model = self._model()
        if model is not None and model.process_group is not self._process_group:
            self._enter(_process_group(model))
        buffer = bucket.buffer()
        if self._residuals is None or self._codec is None or buffer.dtype is torch.float64:
            work = dist.all_reduce(buffer, dist.ReduceOp.AVG, self._process_group, async_op=True)
            return work.get_future().then(_only)
        # Half precision is rounded once, at the end.
        single = buffer.float()
        stretches = _stretches(bucket.parameters(), self._numbers, self._residuals)
        text = f"compressed gradients of {single.numel()} elements, {self._codec.name}"
        plan = coded_all_reduce(
            self._process_group.engine_group,
            CallSignature.of(text),
            carrier(single),
            self._combine,
            self._codec,
            BucketResiduals(self._residuals, stretches),
        )
        copy_backs = [] if single is buffer else [lambda: buffer.copy_(single)]
        nbytes = single.numel() * 4
        return (
            self._process_group.begin("all_reduce", nbytes, plan, [buffer], copy_backs)
            .get_future()
            .then(_only)
        )

    # -- saving and loading ----

    def state_dict(self) -> dict[str, Any]:
        """This host's residuals, by parameter. Any rank gives out all of its host."""
        if self._residuals is None:
            return HostNumber.of(self._process_group.engine_group).state({})
        return self._residuals.state_dict()

    def load_state_dict(self, saved: Mapping[str, Any]) -> None:
        """Take back what `state_dict` gave, on one rank of each host or on all."""
        read_state(saved)
        if self._residuals is not None:
            self._residuals.load_state_dict(saved)


class _ResidualStretch(NamedTuple):
    """Where the residuals of a stretch of a bucket lie."""

    begin: int  # in the bucket
    end: int
    at: int  # among all residuals


class BucketResiduals:
    """The residuals of a bucket's elements, in the bucket's order."""

    def __init__(self, residuals: Residuals, stretches: Sequence[_ResidualStretch]) -> None:
        self._residuals, self._stretches = residuals, stretches

    def load(self, begin: int, out: Floats) -> None:
        """Copy the residuals of the elements from `begin` on."""
        for here, kept in self._overlaps(begin, out):
            here[:] = kept

    def store(self, begin: int, values: Floats) -> None:
        """Keep them."""
        for here, kept in self._overlaps(begin, values):
            kept[:] = here

    def _overlaps(self, begin: int, values: Floats) -> Iterator[tuple[Floats, Floats]]:
        for stretch in self._stretches:
            low, high = max(stretch.begin, begin), min(stretch.end, begin + values.size)
            if low < high:
                kept = self._residuals.stretch(stretch.at + low - stretch.begin, high - low)
                yield values[low - begin : high - begin], kept


def _stretches(
    parameters: Sequence[torch.Tensor], numbers: Mapping[int, int], residuals: Residuals
) -> list[_ResidualStretch]:
    found, at = [], 0
    for parameter in parameters:
        count = parameter.numel()
        found.append(_ResidualStretch(at, at + count, residuals.begins[numbers[id(parameter)]]))
        at += count
    return found


def _only(future: Any) -> torch.Tensor:
    tensor: torch.Tensor = future.value()[0]
    return tensor


def _process_group(model: DistributedDataParallel) -> WiiiiideProcessGroup:
    if not isinstance(model, DistributedDataParallel):
        raise UsageError(
            f"compress_gradients takes a model in DistributedDataParallel, not a "
            f"{type(model).__name__}; wide.parallel takes between=wide.Between(gradients=…)"
        )
    if not isinstance(model.process_group, WiiiiideProcessGroup):
        raise UsageError(
            'compress_gradients needs DistributedDataParallel over the backend "wiiiiide"; this '
            f"one is over {dist.get_backend(model.process_group)}"
        )
    return model.process_group


def _agree(process_group: WiiiiideProcessGroup, gradients: str) -> None:
    said = all_gather_text(process_group, gradients)
    for rank, theirs in enumerate(said):
        if theirs != said[0]:
            raise Mismatch(
                f'rank 0 called compress_gradients(model, "{said[0]}"), rank {rank} with "{theirs}"'
            )
