"""A rank of today's ways: DDP, wide.parallel, or training by itself, without a server."""

import itertools
import os
import time
from collections.abc import Iterator

import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel

import wiiiiided.torch as wide
from lib.ladder import work
from lib.ladder.channel import Costs
from lib.ladder.contenders import Ranks
from lib.ladder.counts import NEVER, NodeSetup


class LadderRank:
    """One rank with its model, its optimizer and its own order of the batches."""

    def __init__(self, way: Ranks, setup: NodeSetup) -> None:
        self.backwards = way.backwards
        self._way, self._setup = way, setup
        if way.backend is not None:
            _join(way.backend, setup)
        self._network = work.network()
        self._optimizer = work.optimizer(self._network)
        self._model: nn.Module = self._network
        if way.ddp:
            self._model = DistributedDataParallel(self._network)
        elif way.staleness is not None:
            wide.parallel(self._network, self._optimizer, updates="async", staleness=way.staleness)
        elif way.backend is not None:
            wide.parallel(self._network, self._optimizer)
        mine = work.batches()
        first = setup.number * len(mine) // setup.nodes
        self._batches = itertools.cycle(mine[first:] + mine[:first])
        self._step, self._backward_s = 0, 0.0

    def step(self) -> None:
        for _ in range(self.backwards):
            begin = time.perf_counter()
            work.backward(self._model, *next(self._batches))
            self._backward_s += time.perf_counter() - begin
        self._optimizer.step()
        self._optimizer.zero_grad()
        self._step += 1

    def steps(self, end: float) -> Iterator[None]:
        """Until the time is over; of ranks that go together, so many on all of them."""
        if not self._way.together:
            while time.monotonic() < end:
                yield
            return
        last, leads = self._setup.last_step, self._setup.number == 0
        while self._step < last.value:
            # No rank ends a step without the leader, so none has gone on to the next one yet.
            if leads and last.value == NEVER and time.monotonic() >= end:
                last.value = self._step + 1
            yield

    def costs(self) -> Costs:
        """Asynchronous updates hand no gradients over: each rank applies its own."""
        sent = self._step * work.GRADIENT_BYTES if self._way.together else 0
        return Costs(wire_bytes=sent, plain_bytes=sent, network_s=self._exchange_s())

    def loss(self) -> float:
        return work.loss(self._network)

    def close(self) -> None:
        if self._way.backend is not None:
            dist.destroy_process_group()

    def _exchange_s(self) -> float:
        """Counted exchange time; gloo has none, and DDP exchanges in the backward: all of it."""
        return self._backward_s if self._way.backend == "gloo" else wide.stats().exchange_s


def _join(backend: str, setup: NodeSetup) -> None:
    os.environ.update(
        RANK=str(setup.number),
        LOCAL_RANK=str(setup.number),
        WORLD_SIZE=str(setup.nodes),
        MASTER_ADDR="127.0.0.1",
        MASTER_PORT=str(setup.port),
        GLOO_SOCKET_IFNAME="lo",
    )
    dist.init_process_group(backend)
