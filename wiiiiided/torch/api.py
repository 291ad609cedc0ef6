"""The backend's offers beyond torch.distributed's own functions."""

from __future__ import annotations

import math
import operator
import os
from collections.abc import Callable, Mapping, Sequence
from datetime import timedelta
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel

from wiiiiided.backend.engine.mesh import LinkReport
from wiiiiided.backend.engine.operation import Operation
from wiiiiided.backend.engine.process import links as engine_links
from wiiiiided.backend.engine.process import set_interface as set_engine_interface
from wiiiiided.backend.engine.process import stats_page
from wiiiiided.backend.shm.board import CallSignature
from wiiiiided.backend.shm.kernels import dtype_name
from wiiiiided.backend.shm.slots import Array
from wiiiiided.backend.shm.stats import Stats, StatsPage
from wiiiiided.errors import UsageError
from wiiiiided.torch.compress import CompressedGradients
from wiiiiided.torch.process_group import WiiiiideProcessGroup
from wiiiiided.train.between import Between
from wiiiiided.train.checkpoints.exchange import FileExchange
from wiiiiided.train.checkpoints.one_file import OneFile
from wiiiiided.train.checkpoints.policy import SavePolicy
from wiiiiided.train.data.batches import Batches
from wiiiiided.train.data.shared import SharedDataset, build_alone, build_together
from wiiiiided.train.parallel import Parallel
from wiiiiided.train.script_notes import notes
from wiiiiided.train.training_loop import TrainingLoop
from wiiiiided.train.updates import Updates


def shared_empty(
    shape: int | Sequence[int],
    dtype: torch.dtype | None = None,
    group: dist.ProcessGroup | None = None,
) -> torch.Tensor:
    """A tensor in memory that all ranks of the group map; collectives work on it in place.

    A collective call: all ranks of the group make it, with the same shape and dtype, and each gets
    a tensor of its own. When all of them pass it (or the same kind of contiguous part of it) to
    all_reduce, reduce_scatter_tensor, all_gather_into_tensor or broadcast, nothing is copied into
    or out of staging. The memory is freed when the last tensor that uses it is.
    After an operation on such tensors has failed, a peer that was only stopped may still write to
    them when it goes on: make new ones.
    """
    process_group = _ours(group, "shared_empty")
    dtype = torch.get_default_dtype() if dtype is None else dtype
    sizes = [shape] if isinstance(shape, int) else list(shape)
    if any(size < 0 for size in sizes):
        raise UsageError(f"a tensor cannot have the shape {sizes}")
    nbytes = math.prod(sizes) * dtype.itemsize
    call = CallSignature.of(f"shared_empty of {sizes} elements of {dtype_name(dtype)}")
    made: list[Array] = []
    inner = process_group.engine_group
    op = Operation(inner, "shared_empty", nbytes, inner.team.shared.make(call, nbytes, made))
    problem = inner.problem()
    if problem is not None:
        raise inner.error_for(op, problem)
    inner.loop.run(op)
    if op.error is not None:
        raise op.error
    with torch.inference_mode(False):
        return torch.from_numpy(made[0]).view(dtype).view(sizes)


def parallel(
    model: torch.nn.Module,
    optimizer: torch.optim.Optimizer,
    *,
    group: dist.ProcessGroup | None = None,
    updates: str = "sync",
    staleness: int = 16,
    between: Between | None = None,
    data: Batches | None = None,
    scheduler: Any = None,
    save: str | os.PathLike[str] | None = None,
    save_every: str | int = "60s",
    keep: int = 3,
) -> Parallel:
    """Train one copy of the weights with all ranks of a host; changes both arguments in place.

    A collective call. Parameters move into shared memory (rank 0's values), `optimizer.step()`
    averages the ranks' gradients and divides its work over the ranks of each host; the training
    loop stays as it is for one process. With updates="async" each rank applies its own gradient
    without waiting, at most `staleness` steps ahead of the slowest. `between` says how hosts
    exchange gradients: docs/slow-links.md. With `data` each rank's gradient counts by its
    samples, and a step commits them; `scheduler` goes into `run.state_dict()`. With `save`, a
    folder, each host writes its whole state there, by time or every so many steps, and the `keep`
    newest stay; `run.resume()` goes on from them: docs/data.md. docs/training.md has the rest.
    """
    process_group = _ours(group, "parallel")
    if not isinstance(between, Between | None):
        raise UsageError(
            f'between={between!r} is no wide.Between: write between=wide.Between(gradients="int8")'
        )
    between = between or Between()
    notes.fixed = between.said
    if between.fragments == 1:  # what travels meanwhile is not in plan's formula
        notes.gradients, notes.every = between.gradients, between.every
    if process_group.engine_group.wide is not None:  # else a job file has nothing to say
        config = process_group.engine_group.driver.config
        between = between.filled(config.gradients, config.every)
    policy = None if save is None else SavePolicy(save, save_every, keep)
    loop = TrainingLoop(data, scheduler, policy)
    how = Updates(updates, staleness)
    return Parallel(model, optimizer, process_group, process_group.engine_group, how, between, loop)


def compress_gradients(
    model: DistributedDataParallel, gradients: str | None = None
) -> CompressedGradients:
    """Have DistributedDataParallel's gradients travel between hosts in a lossy codec.

    "bf16", "int8", "int4" or "topk:0.01", with error feedback: docs/slow-links.md; by default what
    the job file's network.gradients says. A collective call, once a model; inside a host all stays
    exact. The result has the residuals, for checkpoints: state_dict() and load_state_dict().
    """
    notes.compresses, notes.fixed, notes.gradients = True, gradients or "", gradients
    return CompressedGradients(model, gradients)


def shared_dataset(
    make: Callable[..., Any], group: dist.ProcessGroup | None = None
) -> SharedDataset:
    """The value of `make()`, in memory once a host: one rank of each host calls it, all map it.

    A `make(empty)` with one parameter can fill tensors that `empty(shape, dtype)` puts there.

    A collective call of the group; before init_process_group the data set is this process's own.
    Tensors, numpy arrays, lists of strings and numbers, in dicts, tuples and lists: `data[3]`,
    `data[[3, 1, 2]]` and a DataLoader take samples, one row of each; `data["train"]` is a part of a
    dict, `data.value` all of it. An error of `make` is raised on every rank.
    """
    if not callable(make):
        raise UsageError(
            f"shared_dataset takes a function that makes the data set, which one rank of a host "
            f"calls, and not a {type(make).__name__}: write shared_dataset(lambda: load(…))"
        )
    if group is None and not dist.is_initialized():
        return build_alone(make)
    process_group = _ours(group, "shared_dataset")
    return build_together(make, process_group, process_group.engine_group)


def save(
    path: str | os.PathLike[str],
    *,
    model: torch.nn.Module | None = None,
    optimizer: torch.optim.Optimizer | None = None,
    extra: Mapping[str, Any] | None = None,
    group: dist.ProcessGroup | None = None,
) -> None:
    """Save a model (also one in DDP), its optimizer, and a dict of values, on all ranks.

    A collective call of the group; without a group this process saves alone. One rank of each host
    writes its own file there, whole or not at all, and what was there before stays until then.
    Returns when all hosts have written it, and raises on all ranks if one could not. docs/data.md.
    """
    if model is None and optimizer is None and extra is None:
        raise UsageError("wide.save has nothing to save: give model=, optimizer= or extra=")
    _one_file(path, group, "save").save(model, optimizer, extra)


def load(
    path: str | os.PathLike[str],
    *,
    model: torch.nn.Module | None = None,
    optimizer: torch.optim.Optimizer | None = None,
    group: dist.ProcessGroup | None = None,
) -> dict[str, Any] | None:
    """Take back what `save` wrote, on all ranks; returns `extra`, or None if no host has a file.

    Hosts that have no file, an older or a damaged one are sent that of a host that has it.
    """
    return _one_file(path, group, "load").load(model, optimizer)


def _one_file(path: Any, group: dist.ProcessGroup | None, name: str) -> OneFile:
    if not isinstance(path, str | os.PathLike):
        raise UsageError(f"wide.{name}({path!r}): the first argument is a path")
    if group is None and not dist.is_initialized():
        return OneFile(Path(path), FileExchange(None, None))
    process_group = _ours(group, name)
    return OneFile(Path(path), FileExchange(process_group, process_group.engine_group))


def monitored_barrier(
    group: dist.ProcessGroup | None = None, timeout: timedelta | None = None
) -> None:
    """A barrier that names every missing rank when time is up, and leaves the group usable.

    The timeout is the group's own unless given.
    """
    _ours(group, "monitored_barrier").monitored_barrier(timeout)


def set_interface(interface: str) -> None:
    """Reach other hosts by this interface, address or network: "eth1", "10.0.0.5", "10.0.0.0/24".

    Before the first process group is made; it counts more than WIIIIIDE_INTERFACE. Without either
    the address is found by the routes to the other hosts.
    """
    set_engine_interface(interface)


def links() -> list[LinkReport]:
    """The links to processes on other hosts: bytes, and which codec and checksum are used, and why.

    Empty where all groups stay on one host.
    """
    return engine_links()


def stats() -> Stats:
    """The counters of this process: operations, bytes, time in exchange and waiting."""
    return stats_page().read()


def progress(
    step: int,
    *,
    total: int | None = None,
    loss: float | torch.Tensor | None = None,
    samples: int | None = None,
    metrics: Mapping[str, float | torch.Tensor] | None = None,
) -> None:
    """Report how far this process is, for `wiiiiide top` and the report.

    `total` is how many steps there will be, `samples` how many this rank has worked through since
    the last call, `loss` anything float() takes. `metrics` are up to eight numbers more, by name:
    {"accuracy": 0.91, "lr": 1e-3}; one that is left out stays what it was. Only `step` is needed;
    it also makes hang_timeout count anew. Works under every backend, and without a group; costs
    microseconds.
    """
    page = stats_page()
    page.leave_to_script()
    page.say(
        _count("step", step),
        None if total is None else _count("total", total),
        None if loss is None else _number("loss", loss),
        None if samples is None else _count("samples", samples),
        None if metrics is None else _metrics(page, metrics),
    )


def _count(name: str, value: int) -> int:
    try:
        found = operator.index(value)
    except TypeError:
        raise UsageError(f"{name}={value!r} is not a whole number") from None
    if not 0 <= found < 1 << 53:
        raise UsageError(f"{name}={found} is not from 0 to 2**53")
    return found


def _number(name: str, value: float | torch.Tensor) -> float:
    try:
        return float(value.detach() if isinstance(value, torch.Tensor) else value)
    except (TypeError, ValueError, RuntimeError):
        kind = f"shape {tuple(value.shape)}" if isinstance(value, torch.Tensor) else repr(value)
        raise UsageError(f"{name} is not a number: {kind}") from None


def _metrics(page: StatsPage, given: Mapping[str, Any]) -> Mapping[str, float]:
    if not isinstance(given, Mapping):
        raise UsageError(f"metrics is not a dict of names and numbers: {type(given).__name__}")
    for name, value in given.items():
        if isinstance(value, str | bytes):  # float() would take "0.5"
            raise UsageError(f"metrics[{name!r}] is not a number: {value!r:.100}")
    found = {name: _number(f"metrics[{name!r}]", value) for name, value in given.items()}
    if not page.metrics.keys() >= found.keys():
        try:
            page.admit(found)
        except ValueError as problem:
            raise UsageError(f"metrics: {problem}") from None
    return found


def _ours(group: dist.ProcessGroup | None, name: str) -> WiiiiideProcessGroup:
    found = dist.group.WORLD if group is None else group
    if not isinstance(found, WiiiiideProcessGroup):
        raise UsageError(
            f'{name} needs a group of the backend "wiiiiide"; this one is '
            f"{found.name() if found is not None else 'not initialised'}"
        )
    return found
