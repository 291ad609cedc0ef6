"""A rank that holds a data set, shared or its own, and takes batches out of it.

Started by lib/fleet.py; waits for messages from shared_dataset.py.
"""

import time
from collections.abc import Iterator
from typing import Any

import psutil
import torch
import torch.distributed as dist
from torch.utils.data import DataLoader, DistributedSampler, TensorDataset

import wiiiiided.torch as wide
from lib import groups, link
from lib.link import Message

_WIDTH = 784
_BATCH = 32  # samples of a rank


class _Numbers:
    """A data set of any length that takes no memory."""

    def __init__(self, length: int) -> None:
        self._length = length

    def __len__(self) -> int:
        return self._length

    def __getitem__(self, number: int) -> int:
        return number


def _make(megabytes: int) -> tuple[torch.Tensor, torch.Tensor]:
    """Rows of float32 that say which number they have, and the numbers."""
    rows = megabytes * 1_000_000 // (_WIDTH * 4)
    numbers = torch.arange(rows)
    return numbers.float()[:, None].repeat(1, _WIDTH), numbers


class DataRank:
    """This rank's data sets, by contender."""

    def __init__(self) -> None:
        self.rank = groups.join()
        self._group = groups.open_group("wiiiiide")
        self._sources: dict[str, Any] = {}
        self._loops: dict[str, Iterator[Any]] = {}

    def share(self, message: Message) -> Message:
        """Makes the shared data set, and reads all of it once."""
        data = wide.shared_dataset(lambda: _make(message["megabytes"]), self._group)
        total = 0.0
        for begin in range(0, len(data), _BATCH):
            total += float(data[begin : begin + _BATCH][0].sum())
        self._sources["shared"] = wide.Batches(data, _BATCH * dist.get_world_size())
        return {"samples": len(data), "sum": total}

    def copy(self, message: Message) -> Message:
        """Makes this rank's own data set, for a Batches and for a DataLoader."""
        data = TensorDataset(*_make(message["megabytes"]))
        self._sources["own"] = wide.Batches(data, _BATCH * dist.get_world_size())
        self._sources["loader"] = DataLoader(data, _BATCH, sampler=DistributedSampler(data))
        return {}

    def memory(self, message: Message) -> Message:
        return {"pss": psutil.Process().memory_full_info().pss}

    def take(self, message: Message) -> Message:
        """The time of so many batches; the first ones, with an epoch's start, are not timed."""
        name = message["contender"]
        self._check(self._next(name))
        begin = time.perf_counter_ns()
        for _ in range(message["batches"]):
            self._next(name)
        return {"ns": time.perf_counter_ns() - begin}

    def epoch_start(self, message: Message) -> Message:
        """From a new epoch to its first batch, by a keyed permutation and by a list."""
        data = wide.Batches(_Numbers(message["samples"]), 256, group=self._group)
        begin = time.perf_counter_ns()
        data.set_epoch(message["epoch"])
        next(iter(data))
        keyed = time.perf_counter_ns() - begin
        begin = time.perf_counter_ns()
        torch.randperm(message["samples"])[:256].tolist()
        return {"keyed_ns": keyed, "list_ns": time.perf_counter_ns() - begin}

    def stop(self, message: Message) -> Message:
        self._loops.clear()
        self._sources.clear()
        groups.leave()
        return {}

    def _next(self, name: str) -> Any:
        batch = next(self._loops.get(name, iter(())), None)
        if batch is None:  # the next epoch
            self._loops[name] = iter(self._sources[name])
            batch = next(self._loops[name])
        return batch

    def _check(self, batch: Any) -> None:
        x, y = batch
        if len(x) != _BATCH or not bool((x == y[:, None]).all()):
            raise RuntimeError("a batch has other rows than it says")


if __name__ == "__main__":
    link.run(DataRank)
