"""A rank on a host that may be slower than the others; says how many samples it trained, how long.

Started by lib/hosts.py; waits for messages from slow_links.py (lib/slow_links/uneven.py).
"""

import itertools
import time
from collections.abc import Iterator

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.utils.data import TensorDataset

import wiiiiided.torch as wide
from lib import groups, link
from lib.link import Message
from lib.train_rank import network


class Learner:
    """A network that learns random pairs, of which there are a few: data cost nothing."""

    def __init__(self, message: Message) -> None:
        widths, self.batch = message["widths"], message["batch"]
        self.model = network(widths)
        self.optimizer = torch.optim.AdamW(self.model.parameters(), lr=1e-4, fused=True)
        source = torch.Generator().manual_seed(1)
        self._x = torch.randn(2 * self.batch, widths[0], generator=source)
        self._y = torch.randn(2 * self.batch, widths[-1], generator=source)

    def learn(self, numbers: Tensor) -> None:
        """A step with these samples."""
        chosen = numbers % len(self._x)
        self.optimizer.zero_grad()
        loss = nn.functional.mse_loss(self.model(self._x[chosen]), self._y[chosen])
        loss.backward()  # type: ignore[no-untyped-call]
        self.optimizer.step()


class StepsAlone:
    """Steps of one host that knows of no other: `amount` seconds of them."""

    def __init__(self, message: Message) -> None:
        self._learner = Learner(message)

    def turn(self, amount: float) -> Iterator[int]:
        numbers = torch.arange(self._learner.batch)
        begun = time.perf_counter()
        while time.perf_counter() < begun + amount:
            self._learner.learn(numbers)
            yield len(numbers)


class ByShares:
    """`amount` steps of all hosts; of each global batch a rank takes its share, or its even part"""

    def __init__(self, message: Message) -> None:
        self._learner = Learner(message)
        self._balanced = message["way"] == "shares"
        self._batch = message["batch"] * dist.get_world_size()
        self._run = wide.parallel(
            self._learner.model,
            self._learner.optimizer,
            group=groups.open_group("wiiiiide"),
            between=wide.Between(**message["between"]),
        )

    def turn(self, amount: float) -> Iterator[int]:
        for _ in range(int(amount)):
            numbers = self._part()
            self._run.samples(len(numbers))
            self._learner.learn(numbers)
            yield len(numbers)

    def _part(self) -> Tensor:
        rank, ranks = dist.get_rank(), dist.get_world_size()
        shares = self._run.shares if self._balanced else (1 / ranks,) * ranks
        ends = [0, *(round(self._batch * end) for end in itertools.accumulate(shares))]
        return torch.arange(ends[rank], ends[rank + 1])


class ByData:
    """`amount` epochs of wide.Batches, which gives each host what it can take."""

    def __init__(self, message: Message) -> None:
        self._learner = Learner(message)
        open_group = groups.open_host_group if message.get("apart") else groups.open_group
        group = open_group("wiiiiide")
        size = message["batch"] * dist.get_world_size()  # also of a host that trains apart
        numbers = TensorDataset(torch.arange(message["samples"]))
        self._data = wide.Batches(numbers, size, seed=1, group=group)
        wide.parallel(
            self._learner.model,
            self._learner.optimizer,
            group=group,
            data=self._data,
            between=wide.Between(**message["between"]),
        )

    def turn(self, amount: float) -> Iterator[int]:
        for _ in itertools.takewhile(lambda number: number < amount, itertools.count()):
            for (numbers,) in self._data:
                self._learner.learn(numbers)
                yield len(numbers)


_WAYS: dict[str, type[StepsAlone] | type[ByShares] | type[ByData]] = {
    "alone": StepsAlone,
    "even": ByShares,
    "shares": ByShares,
    "data": ByData,
}


class UnevenRank:
    """This rank's part of all contenders."""

    def __init__(self) -> None:
        self.rank = groups.join()
        self._contenders: dict[str, StepsAlone | ByShares | ByData] = {}

    def open(self, message: Message) -> Message:
        self._contenders[message["contender"]] = _WAYS[message["way"]](message)
        return {}

    def measure(self, message: Message) -> Message:
        begun = time.perf_counter()
        parts = list(self._contenders[message["contender"]].turn(message["amount"]))
        seconds = time.perf_counter() - begun
        return {"seconds": seconds, "samples": sum(parts), "steps": len(parts)}

    def stop(self, message: Message) -> Message:
        self._contenders.clear()
        groups.leave()
        return {}


if __name__ == "__main__":
    link.run(UnevenRank)
