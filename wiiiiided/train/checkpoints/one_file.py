"""`wide.save` and `wide.load`: a checkpoint at one path of each host, for any script.

    save   all ranks agree on a number, one above that of any host's file, and on a token
           the first rank of each host writes its own file: temporary name, fsync, rename
    load   the file with the highest number that is whole, brought to the hosts that lack it

The number tells which file is newer where a kill came after one host had written and before
another had: `FileHead.step` has it. The token is that of one save: two files with one number, of
hosts that have gone on apart from each other, are not the same. Where hosts see one path, the first
of them writes. The format is that of `file`: nothing is unpickled.
"""

from __future__ import annotations

import contextlib
import copy
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from torch.nn.parallel import DistributedDataParallel

from wiiiiided import log
from wiiiiided.errors import HostError, UsageError, WiiiiideError
from wiiiiided.train.checkpoints.exchange import CANNOT_SAVE, FileExchange
from wiiiiided.train.checkpoints.file import (
    FileHead,
    FileImage,
    NewestFile,
    check,
    load,
    model_digest,
    optimizer_names,
    read_head,
)
from wiiiiided.train.checkpoints.writer import make_folder, remove_left, write

_ANY = "0" * 16  # the digest where no model is saved


class OneFile:
    """A checkpoint at one path."""

    def __init__(self, path: Path, exchange: FileExchange) -> None:
        self._path, self._exchange = path.absolute(), exchange

    def save(
        self,
        model: torch.nn.Module | None,
        optimizer: torch.optim.Optimizer | None,
        extra: Mapping[str, Any] | None,
    ) -> None:
        """Save on all ranks; raises on all of them if a host could not write it. A trial of
        `wiiiiide plan` writes nothing."""
        problem, value, image = "", {}, None
        digest = _ANY if model is None else model_digest(_plain_model(model), None)
        try:
            value = _value(model, optimizer, extra)
            image = self._image(0, digest, "", value)
        except WiiiiideError as error:
            problem = str(error)
        mine = f"{self._number()} {os.urandom(8).hex()} {problem}"
        told = [said.split(" ", 2) for said in self._exchange.tell(mine)]
        for *_, why in told:
            if why:
                raise UsageError(f"{self._path} is not saved: {why}")
        number, token = 1 + max(int(theirs) for theirs, *_ in told), told[0][1]
        if self._exchange.is_trial:
            return
        if self._exchange.writes(self._path, token):
            image = self._image(number, digest, token, value)
            problem = self._write(image)
        self._exchange.raise_any_problem(problem, CANNOT_SAVE)

    def _image(self, number: int, digest: str, token: str, value: dict[str, Any]) -> FileImage:
        exchange = self._exchange
        head = FileHead(number, *exchange.number, exchange.ranks, digest, token)
        return FileImage.of(head, value)

    def _number(self) -> int:
        """The number of the file that is there; 0: there is none that says it."""
        with contextlib.suppress(WiiiiideError):
            if self._exchange.is_first:
                return read_head(self._path).step
        return 0

    def _write(self, image: FileImage) -> str:
        try:
            make_folder(self._path.parent)
            host = self._exchange.number.host
            write(str(self._path), image.chunks(), host, None)
            remove_left(self._path, host, lambda name: name == self._path.name)
        except OSError as problem:
            return f"{self._path}: {problem.strerror or problem}"
        return ""

    def load(
        self, model: torch.nn.Module | None, optimizer: torch.optim.Optimizer | None
    ) -> dict[str, Any] | None:
        """Load on all ranks; returns what was saved as `extra`. None: no host has a file."""
        mine, problem = NewestFile(), ""
        if self._exchange.is_first and self._path.exists():
            try:
                head = check(self._path, None)
                mine = NewestFile(self._path, head.step, head.token)
            except WiiiiideError as error:
                problem = str(error)
                log.warn(self._exchange.who, f"{problem}: it is not used")
        exchange, path = self._exchange, self._path
        found = exchange.bring(mine, path.parent, path.name, None)
        if found is None:
            for rank, why in enumerate(exchange.tell(problem)):
                if why:
                    raise HostError(f"{why} (rank {rank}), and no host has a good one")
            return None
        value = load(found)
        _take(found, value, model, optimizer)
        return copy.deepcopy(value["extra"])  # type: ignore[no-any-return]


def _plain_model(model: torch.nn.Module) -> torch.nn.Module:
    return model.module if isinstance(model, DistributedDataParallel) else model


def _value(
    model: torch.nn.Module | None,
    optimizer: torch.optim.Optimizer | None,
    extra: Mapping[str, Any] | None,
) -> dict[str, Any]:
    if not isinstance(extra, Mapping | None):
        raise UsageError(f"extra is a {type(extra).__name__}: give a dict")
    value: dict[str, Any] = {"extra": dict(extra or {})}
    if model is not None:
        value["model"] = _plain_model(model).state_dict()
        for name, tensor in value["model"].items():
            if hasattr(tensor, "device_mesh"):  # a DTensor, whose module takes long to import
                raise UsageError(
                    f"{name} is divided over ranks (FSDP2): save with torch.distributed.checkpoint"
                )
    if optimizer is not None:
        value["optimizer"] = optimizer.state_dict()
    if model is not None and optimizer is not None:
        value["optimizer_names"] = optimizer_names(_plain_model(model), optimizer)
    return value


def _take(
    path: Path,
    value: Mapping[str, Any],
    model: torch.nn.Module | None,
    optimizer: torch.optim.Optimizer | None,
) -> None:
    """Load what was saved; all is compared before anything is changed."""
    for name, wanted in (("model", model), ("optimizer", optimizer)):
        if wanted is not None and name not in value:
            raise UsageError(f"{path} has no {name}: it was saved without one")
    if model is not None:
        _compare(path, value["model"], _plain_model(model).state_dict())
    if optimizer is not None:
        theirs = [len(held["params"]) for held in value["optimizer"]["param_groups"]]
        mine = [len(held["params"]) for held in optimizer.param_groups]
        if theirs != mine:
            raise UsageError(
                f"{path} is of an optimizer with groups of {theirs} parameters, and not {mine}"
            )
        # Copied: torch would keep the tensors as they are, which lie in the file.
        optimizer.load_state_dict(copy.deepcopy(value["optimizer"]))
    if model is not None:
        _plain_model(model).load_state_dict(value["model"])


def _compare(path: Path, saved: Mapping[str, Any], mine: Mapping[str, Any]) -> None:
    for name in (*mine, *saved):
        kinds = [_kind(values.get(name)) for values in (saved, mine)]
        if kinds[0] != kinds[1]:
            raise UsageError(f"{path} is of another model: {name} is {kinds[0]}, not {kinds[1]}")


def _kind(value: Any) -> str:
    if value is None:
        return "not there"
    return f"of shape {list(value.shape)}" if isinstance(value, torch.Tensor) else "no tensor"
