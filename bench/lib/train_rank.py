"""A rank that trains one network several ways: alone, under DDP over each backend, in parallel.

Started by lib/fleet.py; waits for messages from train_step.py.
"""

import hashlib
import itertools
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass

import torch
from torch import nn
from torch.nn.parallel import DistributedDataParallel

import wiiiiided.torch as wide
from lib import groups, link
from lib.link import Message

_WIDTHS = (1024, 2048, 2048, 2048, 1024)
_BATCH = 16
_PROOF_STEPS = 3
_OPTIMIZERS: dict[str, Callable[[Iterator[nn.Parameter]], torch.optim.Optimizer]] = {
    "sgd": lambda parameters: torch.optim.SGD(parameters, lr=0.05),
    "adamw": lambda parameters: torch.optim.AdamW(parameters, lr=1e-3, fused=True),
}


def _network() -> nn.Sequential:
    """12.6 million parameters, the same on every rank."""
    torch.manual_seed(7)
    layers: list[nn.Module] = []
    for width, following in itertools.pairwise(_WIDTHS):
        layers += [nn.Linear(width, following), nn.ReLU()]
    return nn.Sequential(*layers[:-1])


@dataclass
class Trainer:
    """A network with its data, which differ by rank, and its optimizer."""

    model: nn.Module
    batch: torch.Tensor
    wanted: torch.Tensor
    optimizer: torch.optim.Optimizer

    def step(self) -> None:
        self.optimizer.zero_grad()
        loss = nn.functional.mse_loss(self.model(self.batch), self.wanted)
        loss.backward()  # type: ignore[no-untyped-call]
        self.optimizer.step()

    def digest(self) -> str:
        whole = hashlib.sha256()
        for parameter in self.model.parameters():
            whole.update(parameter.detach().numpy().tobytes())
        return whole.hexdigest()


class TrainingRank:
    """This rank's trainers, by contender; without a backend nothing is exchanged."""

    def __init__(self) -> None:
        self.rank = groups.join()
        self._trainers: dict[str, Trainer] = {}

    def open(self, message: Message) -> Message:
        """Makes a trainer and returns what its parameters are after a few steps."""
        model: nn.Module = _network()
        parameters = sum(parameter.numel() for parameter in model.parameters())
        group = None if message["backend"] is None else groups.open_group(message["backend"])
        if message["ddp"]:
            model = DistributedDataParallel(
                model, process_group=group, gradient_as_bucket_view=message["views"]
            )
        optimizer = _OPTIMIZERS[message["optimizer"]](model.parameters())
        if group is not None and not message["ddp"]:
            wide.parallel(model, optimizer, group=group)
        source = torch.Generator().manual_seed(100 + self.rank)
        trainer = Trainer(
            model,
            torch.randn(_BATCH, _WIDTHS[0], generator=source),
            torch.randn(_BATCH, _WIDTHS[-1], generator=source),
            optimizer,
        )
        for _ in range(_PROOF_STEPS):
            trainer.step()
        self._trainers[message["contender"]] = trainer
        total = sum(p.detach().double().abs().sum().item() for p in model.parameters())
        return {"digest": trainer.digest(), "sum": total, "parameters": parameters}

    def measure(self, message: Message) -> Message:
        trainer = self._trainers[message["contender"]]
        for _ in range(message["warmup"]):
            trainer.step()
        taken = []
        for _ in range(message["iterations"]):
            begin = time.perf_counter_ns()
            trainer.step()
            taken.append(time.perf_counter_ns() - begin)
        return {"ns": taken}

    def stop(self, message: Message) -> Message:
        self._trainers.clear()
        groups.leave()
        return {}


def main() -> None:
    link.die_with_parent()
    rank = TrainingRank()
    link.serve(rank.rank, {"open": rank.open, "measure": rank.measure, "stop": rank.stop})


if __name__ == "__main__":
    main()
