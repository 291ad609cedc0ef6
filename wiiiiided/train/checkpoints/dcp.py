"""torch's distributed checkpoint (DCP): it reads ours, and a run starts from one of its.

    CheckpointReader   a StorageReader: `dcp.load(state, storage_reader=wide.CheckpointReader(…))`
    read_dcp           a folder that `dcp.save` wrote, as the model and the optimizer of a run

DCP names a value by its path, joined by dots: {"model": {"fc.weight": …}} is "model.fc.weight". An
optimizer's state is known by the parameters' numbers, as `optimizer.state_dict()` has it, and by
their names, as torch.distributed.checkpoint.state_dict has it:

    optimizer.state.0.exp_avg              optimizer.state.fc.weight.exp_avg
    optimizer.param_groups.0.params        [0, 1] or names, whichever the caller's state goes by

Of ours nothing is unpickled: DCP takes values that are no tensors as pickles, which are made here
of what was read. DCP's own files are pickles.
"""

from __future__ import annotations

import io
import os
import warnings
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, NamedTuple

import torch
from torch.distributed.checkpoint.api import CheckpointException
from torch.distributed.checkpoint.filesystem import FileSystemReader
from torch.distributed.checkpoint.metadata import (
    BytesStorageMetadata,
    ChunkStorageMetadata,
    Metadata,
    TensorProperties,
    TensorStorageMetadata,
)
from torch.distributed.checkpoint.planner import LoadItemType, LoadPlan, LoadPlanner
from torch.distributed.checkpoint.state_dict_loader import load as load_dcp
from torch.distributed.checkpoint.storage import StorageReader
from torch.futures import Future

from wiiiiided.errors import HostError, UsageError
from wiiiiided.train.checkpoints.file import check, load, optimizer_names
from wiiiiided.train.checkpoints.writer import NAME

_STATE, _GROUPS = "state.", "param_groups."


class CheckpointReader(StorageReader):
    """Reads a file of ours, or the newest good one of a folder, for `dcp.load`."""

    def __init__(self, path: str | os.PathLike[str]) -> None:
        """Every rank reads its own host's copy; all must be of the same step."""
        self._path = Path(path)
        self._flat: dict[str, Any] = {}
        self._names: set[str] = set()  # of the optimizer's state, where it goes by names
        self._by_name: dict[str, Any] = {}  # entries that differ where optimizer state goes by name
        self._said = ""

    def reset(self, checkpoint_id: str | os.PathLike[str] | None = None) -> None:
        if checkpoint_id:
            self._path = Path(checkpoint_id)

    def read_metadata(self, *args: Any, **kwargs: Any) -> Metadata:
        path = _newest(self._path)
        head = check(path, None)
        self._said = f"step {head.step} of model {head.model}"
        self._said += f", of attempt {head.token}" if head.token else ""
        value = load(path)
        self._flat, self._by_name, self._names = dict(_leaves((), value)), {}, set()
        if names := value.get("optimizer_names"):
            self._add_names(value["optimizer"], names)
        return Metadata({key: _described(leaf) for key, leaf in self._flat.items()})

    def _add_names(self, saved: Mapping[str, Any], names: Sequence[str]) -> None:
        by_name = {"state": {names[number]: kept for number, kept in saved["state"].items()}}
        named = dict(_leaves(("optimizer",), by_name))
        self._names = named.keys() - self._flat.keys()
        self._flat |= named
        for i, held in enumerate(saved["param_groups"]):
            key = f"optimizer.{_GROUPS}{i}.params"
            self._by_name[key] = [names[number] for number in held["params"]]

    def set_up_storage_reader(
        self, metadata: Metadata, is_coordinator: bool, *args: Any, **kwargs: Any
    ) -> None:
        """All is known from `read_metadata`."""

    def prepare_local_plan(self, plan: LoadPlan) -> LoadPlan:
        return replace(plan, storage_data=self._said)

    def prepare_global_plan(self, plans: list[LoadPlan]) -> list[LoadPlan]:
        for rank, plan in enumerate(plans):
            if plan.storage_data != self._said:
                raise UsageError(
                    f"rank {rank}'s host has {plan.storage_data} as its newest checkpoint, this "
                    f"one {self._said}: name a file that all hosts have"
                )
        return plans

    def read_data(self, plan: LoadPlan, planner: LoadPlanner) -> Future[None]:
        asked = {item.storage_index.fqn for item in plan.items}
        values = {**self._flat, **(self._by_name if asked & self._names else {})}
        for item in plan.items:
            leaf = values[item.storage_index.fqn]
            if item.type == LoadItemType.BYTE_IO:
                pickled = io.BytesIO()
                torch.save(leaf, pickled)
                pickled.seek(0)
                planner.load_bytes(item, pickled)
                continue
            for axis, (at, count) in enumerate(
                zip(item.storage_offsets, item.lengths, strict=True)
            ):
                leaf = leaf.narrow(axis, at, count)
            target = planner.resolve_tensor(item).detach()
            target.copy_(leaf)
            planner.commit_tensor(item, target)
        done: Future[None] = Future()
        done.set_result(None)
        return done

    @classmethod
    def validate_checkpoint_id(cls, checkpoint_id: str | os.PathLike[str]) -> bool:
        return Path(checkpoint_id).exists()


def _newest(path: Path) -> Path:
    """The path if it is a file, else the newest good file of the folder."""
    if not path.is_dir():
        return path
    found = [(NAME.fullmatch(one.name), one) for one in path.glob("*.wide")]
    ours = sorted((-int(m[1]), int(m[2]), m[3], one) for m, one in found if m)
    series = {of for _, _, of, _ in ours}
    if len(series) > 1:
        raise UsageError(f"{path} has checkpoints of {len(series)} models or jobs: name a file")
    why = ""
    for *_, one in ours:
        try:
            check(one, None)
        except HostError as problem:
            why = f": {problem}"
        else:
            return one
    raise UsageError(f"{path} has no checkpoint{why}")


def _leaves(path: tuple[str, ...], value: Any) -> Iterator[tuple[str, Any]]:
    """Yield leaves by paths joined with dots, as DCP has them: it opens dicts, and lists with dicts
    or tensors somewhere in them."""
    if isinstance(value, Mapping):
        for key, item in value.items():
            yield from _leaves((*path, str(key)), item)
    elif isinstance(value, list) and _is_opened(value):
        for i, item in enumerate(value):
            yield from _leaves((*path, str(i)), item)
    else:
        yield ".".join(path), value


def _is_opened(value: Any) -> bool:
    if isinstance(value, list):
        return any(_is_opened(item) for item in value)
    return isinstance(value, Mapping | torch.Tensor)


def _described(leaf: Any) -> TensorStorageMetadata | BytesStorageMetadata:
    if not isinstance(leaf, torch.Tensor):
        return BytesStorageMetadata()
    whole = ChunkStorageMetadata(torch.Size([0] * leaf.dim()), leaf.shape)
    return TensorStorageMetadata(TensorProperties(dtype=leaf.dtype), leaf.shape, [whole])


# -- from torch's to ours ----


class _Keys(NamedTuple):
    """Keys of a DCP checkpoint, by model name, optimizer entry and group setting."""

    model: dict[str, str]  # by the name in the model
    state: dict[tuple[int, str], str]  # by the parameter's number and the entry
    groups: dict[tuple[int, str], str]  # by the group's number and the setting


def read_dcp(
    path: Path, model: torch.nn.Module, optimizer: torch.optim.Optimizer
) -> dict[str, Any]:
    """The model and the optimizer that `dcp.save` wrote there; UsageError if it is of another."""
    reader = FileSystemReader(path)
    try:
        entries = reader.read_metadata().state_dict_metadata
    except Exception as problem:  # the metadata is a pickle, and may raise any exception
        raise UsageError(f"{path} is no checkpoint of torch.distributed: {problem}") from None
    wanted, held = model.state_dict(), optimizer.state_dict()["param_groups"]
    keys = _find(path, entries, wanted, optimizer_names(model, optimizer), held)
    flat = {
        key: torch.empty(about.size, dtype=about.properties.dtype)
        if isinstance(about := entries[key], TensorStorageMetadata)
        else None
        for kind in keys
        for key in kind.values()
    }
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # that one process alone reads: so it is meant
        try:
            load_dcp(flat, storage_reader=reader, no_dist=True)
        except (Exception, CheckpointException) as problem:  # torch's own is no Exception
            raise UsageError(f"{path} cannot be read: {_first_of(problem)}") from None
    state: dict[int, dict[str, Any]] = {}
    for (number, entry), key in keys.state.items():
        state.setdefault(number, {})[entry] = flat[key]
    for (group, setting), key in keys.groups.items():
        held[group][setting] = flat[key]
    found = {name: flat[key] for name, key in keys.model.items()}
    return {"model": found, "optimizer": {"state": state, "param_groups": held}}


def _first_of(problem: BaseException) -> str:
    """The first failure; torch's own text has a traceback in it."""
    failures = getattr(problem, "failures", None)
    return str(next(iter(failures.values()))[0] if failures else problem)


def _find(
    path: Path,
    entries: Mapping[str, Any],
    wanted: Mapping[str, Any],
    names: Sequence[str],
    held: Sequence[Mapping[str, Any]],
) -> _Keys:
    first = next(iter(wanted))
    heads = [key.removesuffix(first) for key in entries if f".{key}".endswith(f".{first}")]
    head = next((h for h in heads if all(h + name in entries for name in wanted)), None)
    if head is None:
        has = {name for name in wanted if any(f".{key}".endswith(f".{name}") for key in entries)}
        lacking = next((name for name in wanted if name not in has), first)
        raise UsageError(f"{path} is of another model: it has no {lacking}")
    for name, mine in wanted.items():
        about = entries[head + name]
        size = list(getattr(about, "size", ()))
        if isinstance(mine, torch.Tensor) and size != list(mine.shape):
            raise UsageError(f"{path} is of another model: {name} is {size}, not {[*mine.shape]}")
    numbers = {name: i for i, name in enumerate(names)} | {str(i): i for i in range(len(names))}
    state: dict[tuple[int, str], str] = {}
    groups: dict[tuple[int, str], str] = {}
    for key in entries:
        owner, _, entry = key.rpartition(".")
        _, found, name = f".{owner}".partition(f".{_STATE}")
        if found and name in numbers:
            state[numbers[name], entry] = key
        _, found, name = f".{owner}".partition(f".{_GROUPS}")
        if found and name.isdecimal() and int(name) < len(held) and entry in held[int(name)]:
            groups[int(name), entry] = key
    groups = {at: key for at, key in groups.items() if at[1] != "params"}
    return _Keys({name: head + name for name in wanted}, state, groups)
