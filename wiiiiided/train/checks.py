"""Which models, optimizers and ranks cannot be trained with one copy of the weights, and why.

Each refusal is one sentence that says what to do instead. Facts that only this process knows
are checked before any rank waits for another; what the ranks must agree on is compared in words, so
that the rank and the parameter that differ are named everywhere.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Final

import torch
import torch.distributed as dist

from wiiiiided.backend.engine.group import Group
from wiiiiided.backend.shm.kernels import dtype_name
from wiiiiided.errors import Mismatch, UsageError
from wiiiiided.train.between import Between
from wiiiiided.train.small_collectives import all_gather_text
from wiiiiided.train.training_loop import TrainingLoop
from wiiiiided.train.updates import Updates

# Optimizers of torch that treat each element by itself.
ELEMENTWISE: Final = frozenset(
    {
        *(torch.optim.SGD, torch.optim.Adam, torch.optim.AdamW, torch.optim.NAdam),
        *(torch.optim.RAdam, torch.optim.Adamax, torch.optim.Adagrad, torch.optim.Adadelta),
        *(torch.optim.RMSprop, torch.optim.Rprop, torch.optim.ASGD),
    }
)
MARK = "_wiiiiide_parallel"  # on a model and an optimizer that have been given to parallel()


def refuse(
    model: torch.nn.Module, optimizer: torch.optim.Optimizer, updates: Updates, group: Group
) -> None:
    """Raise what is wrong with these arguments, if anything is."""
    _refuse_types(model, optimizer)
    if not updates.sync:
        _refuse_async(optimizer, group)
    names = {id(p): name for name, p in model.named_parameters(remove_duplicate=False)}
    held = {id(p) for group in optimizer.param_groups for p in group["params"]}
    strangers = held - names.keys()
    if strangers:
        raise UsageError(
            f"{len(strangers)} of the optimizer's {len(held)} parameters are not the model's: make "
            "the optimizer from model.parameters() of this very model, after .to() and the like"
        )
    forgotten = [n for n, p in model.named_parameters() if p.requires_grad and id(p) not in held]
    if forgotten:
        raise UsageError(
            f"the optimizer does not have {forgotten[0]} ({len(forgotten)} parameters in all), "
            "which wants a gradient: give it to the optimizer, or freeze it (requires_grad_(False))"
        )
    for name, parameter in model.named_parameters():
        _refuse_parameter(name, parameter)
    for name, module in model.named_modules():
        if getattr(module, "max_norm", None) is not None:
            raise UsageError(
                f"{name or 'the model'} has max_norm={module.max_norm}: it changes its weight in "
                "every forward, on every rank. Leave max_norm out, or use DistributedDataParallel"
            )


def _refuse_types(model: torch.nn.Module, optimizer: torch.optim.Optimizer) -> None:
    if not isinstance(model, torch.nn.Module) or not isinstance(optimizer, torch.optim.Optimizer):
        raise UsageError(
            f"parallel() takes a torch.nn.Module and a torch.optim.Optimizer, not "
            f"{type(model).__name__} and {type(optimizer).__name__}"
        )
    wrapper = type(model).__name__
    if wrapper in ("DistributedDataParallel", "FullyShardedDataParallel"):
        raise UsageError(f"the model is wrapped in {wrapper}: give parallel() the model inside it")
    mark = model.__dict__.get(MARK)
    if (mark is not None and mark.in_use) or MARK in optimizer.__dict__:
        raise UsageError(
            "parallel() was called with this model or optimizer before: once is enough"
        )
    if isinstance(optimizer, torch.optim.LBFGS | torch.optim.SparseAdam):
        raise UsageError(
            f"{type(optimizer).__name__} cannot be divided over ranks: use another optimizer, or "
            "DistributedDataParallel over this backend"
        )
    step = optimizer.__dict__.get("step")
    if step is not None and not hasattr(step, "_wrapped_by_lr_sched"):
        raise UsageError(
            "optimizer.step has been replaced by another library: call parallel() before it"
        )


def _refuse_async(optimizer: torch.optim.Optimizer, group: Group) -> None:
    if group.wide is not None:
        raise UsageError(
            f'updates="async" is for the ranks of one host, and this group has '
            f"{len(group.wide.hosts)}: between hosts exchange every so many steps instead, "
            "between=wide.Between(every=16)"
        )
    if type(optimizer) not in ELEMENTWISE:
        raise UsageError(
            f"{type(optimizer).__name__} looks at more than one element at a time, and with "
            'updates="async" others change the rest meanwhile: use an optimizer such as SGD or '
            'AdamW, or updates="sync"'
        )


def _refuse_parameter(name: str, parameter: torch.Tensor) -> None:
    what = None
    if parameter.device.type != "cpu":
        what = f"lies on {parameter.device}: only CPU parameters can share memory"
    elif type(parameter.data) is not torch.Tensor:
        what = f"is a {type(parameter.data).__name__}: give parallel() a model that is not sharded"
    elif parameter.layout is not torch.strided:
        what = f"has the layout {parameter.layout}: use dense parameters"
    elif not parameter.dtype.is_floating_point:
        what = f"is of {parameter.dtype}: only floating-point parameters can be averaged"
    if what is not None:
        raise UsageError(f"the parameter {name} {what}")


def agree(
    group: dist.ProcessGroup,
    parameters: Mapping[str, torch.Tensor],
    optimizer: torch.optim.Optimizer,
    updates: Updates,
    between: Between,
    loop: TrainingLoop,
) -> None:
    """Raise unless all ranks have the same model, optimizer and settings. A collective call."""
    found = optimizer.param_groups
    how = "" if updates.sync else f', updates="async", staleness={updates.staleness}'
    how += "" if between.is_plain else f", between={between}"
    how += str(loop)
    rest = f"{type(optimizer).__name__} of {len(found)} groups{how}"
    groups = {id(p): number for number, held in enumerate(found) for p in held["params"]}
    mine = [f"{name} {_kind(p)} in group {groups.get(id(p))}" for name, p in parameters.items()]
    texts = all_gather_text(group, "\n".join([rest, *mine]))
    first = texts[0].split("\n")
    for rank, text in enumerate(texts):
        lines = text.split("\n")
        for line, other in zip(first, lines, strict=False):
            if line != other:
                raise Mismatch(f"rank 0 gave parallel() {line}; rank {rank} {other}")
        if len(lines) != len(first):
            raise Mismatch(
                f"rank 0 gave parallel() {len(first) - 1} parameters, rank {rank} {len(lines) - 1}"
            )


def _kind(parameter: torch.Tensor) -> str:
    kind = f"{dtype_name(parameter.dtype)}{list(parameter.shape)}"
    order = "" if parameter.is_contiguous() else f" with strides {list(parameter.stride())}"
    return f"{kind}{order}{'' if parameter.requires_grad else ', frozen'}"


def check_floats(parameters: Mapping[str, torch.Tensor]) -> None:
    """Raise if a parameter cannot be averaged in float32, as hosts average weights."""
    for name, parameter in parameters.items():
        if parameter.dtype is torch.float64 or not parameter.is_floating_point():
            raise UsageError(
                f"{name} is {dtype_name(parameter.dtype)}: with `every` hosts "
                "average weights in float32; use float32 or half precision"
            )


def check_states(told: Sequence[str], group: Group) -> None:
    """Raise if some hosts' optimizers have a state and some have none: first ranks' count."""
    assert group.wide is not None
    firsts = [ranks[0] for ranks in group.wide.hosts]
    without = [rank for rank in firsts if told[rank] == "0"]
    if without and "1" in told:
        raise UsageError(
            f"rank {told.index('1')}'s optimizer has a state and rank {without[0]}'s has none: "
            "with `every` a host's state is its own, so load it before wide.parallel() on every "
            "rank, or on the first of each host"
        )
