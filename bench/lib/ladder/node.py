"""The program of each node process, whatever is compared: warm up, wait, train, report.

    benchmark   ◄── ready ──   ── seconds ──►   ◄── Count ──   ── leave ──►

All are alive until all have reported, so that the memory they use can be read.
"""

import time
from collections.abc import Iterator
from dataclasses import asdict
from multiprocessing.connection import Connection
from typing import Protocol

import torch
import torch.distributed as dist

from lib.ladder.channel import Costs
from lib.ladder.contenders import Contender, LadderStage
from lib.ladder.counts import READY, Count, NodeSetup
from lib.ladder.rank import LadderRank
from lib.ladder.stage_node import StageNode

_WARM_UP_STEPS = 30


class LadderTrainer(Protocol):
    """The common part of `StageNode` and `Rank`."""

    backwards: int

    def step(self) -> None: ...
    def steps(self, end: float) -> Iterator[None]: ...
    def costs(self) -> Costs: ...
    def loss(self) -> float | None: ...
    def close(self) -> None: ...


def run(contender: Contender, setup: NodeSetup, control: Connection) -> None:
    torch.set_num_threads(1)
    trainer: LadderTrainer
    if isinstance(contender, LadderStage):
        trainer = StageNode(contender, setup.port)
    else:
        trainer = LadderRank(contender, setup)
    for _ in range(_WARM_UP_STEPS):
        trainer.step()
    control.send(READY)
    control.send(_counted(trainer, control.recv()))
    control.recv()
    trainer.close()


def _counted(trainer: LadderTrainer, seconds: float) -> Count:
    before = asdict(trainer.costs())
    steps, begin = 0, time.monotonic()
    for _ in trainer.steps(begin + seconds):
        trainer.step()
        steps += 1
    took = time.monotonic() - begin
    costs = {name: value - before[name] for name, value in asdict(trainer.costs()).items()}
    if dist.is_initialized():
        dist.barrier()  # the weights are read when no rank writes them any more
    return Count(batches=steps * trainer.backwards, seconds=took, loss=trainer.loss(), **costs)
