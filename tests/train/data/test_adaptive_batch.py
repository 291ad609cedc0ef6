"""Global batches that follow the gradient noise scale."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import nn
from torch.utils.data import TensorDataset

from tests.kit.ranks import Rank, run_ranks
from wiiiiided.errors import UsageError
from wiiiiided.torch import Batches, parallel
from wiiiiided.train.data import adaptive_batch
from wiiiiided.train.data.adaptive_batch import AdaptiveBatch, scale_rates
from wiiiiided.train.noise_scale import NoiseScale


def _after(batch: AdaptiveBatch, size: int, scale: float, steps: int = 200) -> tuple[int, str]:
    for _ in range(steps - 1):
        assert batch.follow(size, scale) == (size, "")
    return batch.follow(size, scale)


def test_a_batch_follows_by_factors_of_two_and_says_why() -> None:
    batch = AdaptiveBatch((64, 1024), "sqrt")
    size, why = _after(batch, 64, 5000.0)
    assert size == 128
    assert why == (
        "the global batch has 128 samples instead of 64: the gradient noise scale is 5e+03 "
        "samples, learning rates are multiplied by 1.41"
    )
    assert _after(batch, 900, 5000.0)[0] == 1024
    assert _after(batch, 200, 10.0)[0] == 100
    assert _after(batch, 70, 10.0)[0] == 64


def test_a_batch_stays_where_little_would_change_or_nothing_is_known() -> None:
    batch = AdaptiveBatch((64, 1024), "none")
    assert _after(batch, 256, 300.0) == (256, "")
    assert batch.follow(256, None) == (256, "")
    assert _after(batch, 64, 3.0) == (64, "")
    assert batch.lr_factor(64, 1024) == 1.0
    assert AdaptiveBatch((1, 2), "linear").lr_factor(64, 128) == 2.0


@pytest.mark.parametrize("bounds", [None, (64,), (64, 64), (0, 4), (1.0, 2), "64"])
def test_bounds_that_are_none_are_refused(bounds: Any) -> None:
    with pytest.raises(UsageError, match="needs two bounds"):
        Batches(TensorDataset(torch.zeros(9)), "auto", between=bounds)
    with pytest.raises(UsageError, match="lr_rule='no' is not"):
        Batches(TensorDataset(torch.zeros(9)), "auto", between=(1, 2), lr_rule="no")


def test_a_schedule_goes_on_from_the_scaled_rate() -> None:
    optimizer = torch.optim.SGD([torch.zeros(1, requires_grad=True)], lr=1.0)
    scheduler = torch.optim.lr_scheduler.LambdaLR(optimizer, lambda step: 1 / (1 + step))
    optimizer.step()
    scale_rates(optimizer, scheduler, 3.0)
    assert optimizer.param_groups[0]["lr"] == 3.0
    scheduler.step()
    assert optimizer.param_groups[0]["lr"] == 1.5


def _trains(me: Rank) -> tuple[Any, ...]:
    adaptive_batch._LEAST_STEPS = 3  # type: ignore[misc]
    NoiseScale.value = property(lambda self: 30.0)  # type: ignore[assignment,method-assign]
    data = Batches(TensorDataset(torch.arange(100.0)[:, None]), "auto", between=(4, 64))
    model = nn.Linear(1, 1)
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-5)
    run = parallel(model, optimizer, data=data)
    seen: list[float] = []
    for (x,) in data:
        seen += x.flatten().tolist()[: data.samples_of_step()]
        model(x).mean().backward()
        optimizer.step()
        optimizer.zero_grad()
    state = run.state_dict()["data"]
    other = Batches(TensorDataset(torch.arange(100.0)[:, None]), "auto", between=(4, 64))
    other.load_state_dict(state)
    assert other.batch_size == data.batch_size
    return seen, data.batch_size, optimizer.param_groups[0]["lr"]


@pytest.mark.parametrize("hosts", ["aa", "ab"])
def test_all_ranks_change_the_batch_at_the_same_step(hosts: str) -> None:
    first, second = run_ranks(_trains, hosts)
    assert sorted(first[0] + second[0]) == [*range(100)]
    assert first[1:] == second[1:] == (30, pytest.approx(1e-5 * (30 / 4) ** 0.5))
