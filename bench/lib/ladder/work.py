"""The work of the ladder: a network of 64-20-10 on 1,000 samples, in batches of 32.

The documents name neither network nor data; their batches by epoch (32) make 1,000 samples, their
loss (2.33, where guessing among ten classes has 2.30) labels that the inputs say nothing about.
"""

import itertools

import torch
from torch import nn

WIDTHS = (64, 20, 10)
BATCH = 32
LEARNING_RATE = 0.01
_SAMPLES = 1000
GRADIENT_BYTES = 4 * sum((a + 1) * b for a, b in itertools.pairwise(WIDTHS))

Batch = tuple[torch.Tensor, torch.Tensor]


def network(widths: tuple[int, ...] = WIDTHS) -> nn.Sequential:
    """The same weights in every process."""
    torch.manual_seed(0)
    first, hidden, last = widths
    return nn.Sequential(nn.Linear(first, hidden), nn.ReLU(), nn.Linear(hidden, last))


def optimizer(model: nn.Module) -> torch.optim.Optimizer:
    return torch.optim.SGD(model.parameters(), lr=LEARNING_RATE)


def batches() -> list[Batch]:
    """One epoch. Each has memory of its own: a pickled slice would carry its whole storage."""
    source = torch.Generator().manual_seed(1)
    inputs = torch.randn(_SAMPLES, WIDTHS[0], generator=source)
    labels = torch.randint(WIDTHS[-1], (_SAMPLES,), generator=source)
    cut = zip(torch.split(inputs, BATCH), torch.split(labels, BATCH), strict=True)
    return [(few.clone(), wanted.clone()) for few, wanted in cut]


def backward(model: nn.Module, inputs: torch.Tensor, labels: torch.Tensor) -> None:
    nn.functional.cross_entropy(model(inputs), labels).backward()  # type: ignore[no-untyped-call]


@torch.no_grad()
def loss(model: nn.Module) -> float:
    """Over all samples."""
    found = [(nn.functional.cross_entropy(model(x), y), len(y)) for x, y in batches()]
    return sum(float(each) * count for each, count in found) / _SAMPLES
