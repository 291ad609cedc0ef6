"""A small model, its batches and a step: for tests of hosts that exchange seldom."""

from __future__ import annotations

from typing import Any

import torch
from torch import nn

from tests.kit.ranks import Rank
from wiiiiided.torch import Parallel


def net() -> nn.Sequential:
    """403 parameters, the same each time."""
    torch.manual_seed(11)
    return nn.Sequential(nn.Linear(6, 40), nn.Tanh(), nn.Linear(40, 3))


def batch(step: int, rank: int, samples: int = 4) -> tuple[torch.Tensor, torch.Tensor]:
    """A rank's samples of a step."""
    source = torch.Generator().manual_seed(1000 * step + rank)
    x = torch.randn(samples, 6, generator=source)
    return x, x[:, :3].sin()


def sgd(parameters: Any) -> torch.optim.Optimizer:
    """The inner optimizer."""
    return torch.optim.SGD(parameters, lr=0.1, momentum=0.9)


def average(parameters: Any) -> torch.optim.Optimizer:
    """An outer one that takes the mean."""
    return torch.optim.SGD(parameters, lr=1.0)


def nesterov(parameters: Any) -> torch.optim.Optimizer:
    """An outer one with momentum."""
    return torch.optim.SGD(parameters, lr=0.7, momentum=0.9, nesterov=True)


def adam(parameters: Any) -> torch.optim.Optimizer:
    """An outer one that counts its steps."""
    return torch.optim.Adam(parameters, lr=0.05)


def samples_of(rank: int, uneven: bool) -> int:
    """Of a rank's batch."""
    return 2 + 3 * rank if uneven else 4


def make_step(
    run: Parallel,
    model: nn.Module,
    optimizer: torch.optim.Optimizer,
    step: int,
    me: Rank,
    uneven: bool = False,
) -> None:
    """A step of this rank."""
    x, y = batch(step, me.rank, samples_of(me.rank, uneven))
    if uneven:
        run.samples(len(x))
    nn.functional.mse_loss(model(x), y).backward()
    optimizer.step()
    optimizer.zero_grad()
