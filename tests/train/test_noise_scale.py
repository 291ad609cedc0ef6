"""The gradient noise scale: the estimator, and that ranks measure what it needs."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from tests.kit.ranks import Rank, run_ranks
from wiiiiided.torch import Between, parallel
from wiiiiided.train import layout
from wiiiiided.train.noise_scale import NoiseScale, is_measured


def test_the_estimator_finds_signal_and_noise() -> None:
    torch.manual_seed(0)
    ranks, samples, size = 4, 8, 20_000
    true, spread = torch.full((size,), 0.01), 0.1
    found = NoiseScale(ranks)
    for _ in range(60):
        noise = torch.randn(ranks, size) * spread / samples**0.5
        gradients = true + noise
        own = float(gradients.square().sum(1).mean())
        found.add(own, float(gradients.mean(0).square().sum()), samples)
    wanted = size * spread**2 / float(true.square().sum())
    assert found.value == pytest.approx(wanted, rel=0.1)


def test_without_noise_or_without_signal_there_is_no_figure() -> None:
    found = NoiseScale(2)
    assert found.value is None
    found.add(1.0, 1.0, 4)
    assert found.value is None
    found.add(1.0, 0.1, 4)  # less than two ranks' noise alone would leave
    assert NoiseScale(2).value is None


def test_it_is_measured_seldom_and_early() -> None:
    assert [step for step in range(1, 200) if is_measured(step)] == [8, 16, 32, 64, 128, 192]


def _trains(me: Rank, every: int, clips: bool, small: bool) -> float:
    if not small:
        layout.WHOLE, layout.PRIVATE_BYTES = 1, 64  # type: ignore[misc]
    torch.manual_seed(1)
    model = nn.Linear(40, 30, bias=False)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.0)
    between = Between(every=every) if every > 1 else None
    run = parallel(model, optimizer, between=between)
    assert run.noise_scale is None
    wanted = torch.zeros(30, 40)
    for step in range(9):
        source = torch.Generator().manual_seed(100 * step + me.rank)
        wanted = torch.randn(30, 40, generator=source) + 0.5  # this rank's gradient
        run.samples(3)
        (model.weight * wanted).sum().backward()
        if clips:
            run.clip_grad_norm_(1e9)
        optimizer.step()
        optimizer.zero_grad()
    found = run.noise_scale
    assert found is not None
    return found


def _reference(ranks: list[int], size: int) -> float:
    gradients = torch.stack(
        [
            torch.randn(30, 40, generator=torch.Generator().manual_seed(700 + rank)) + 0.5
            for rank in ranks
        ]
    )
    found = NoiseScale(size)
    own = float(gradients.square().sum((1, 2)).mean())
    found.add(own, float(gradients.mean(0).square().sum()), 3)
    assert found.value is not None
    return found.value


@pytest.mark.parametrize("small", [True, False])
@pytest.mark.parametrize("clips", [False, True])
@pytest.mark.parametrize("hosts", ["aaa", "aab"])
def test_all_ranks_know_it(hosts: str, clips: bool, small: bool) -> None:
    for found in run_ranks(_trains, hosts, 1, clips, small):
        assert found == pytest.approx(_reference([0, 1, 2], 3), rel=1e-4)


def test_with_seldom_exchange_a_host_measures_its_own() -> None:
    found = run_ranks(_trains, "aabb", 4, False, True)
    assert found[0] == found[1] == pytest.approx(_reference([0, 1], 2), rel=1e-4)
    assert found[2] == found[3] == pytest.approx(_reference([2, 3], 2), rel=1e-4)
