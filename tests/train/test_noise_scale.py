"""The gradient noise scale: the estimator, and that ranks measure what it needs."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from tests.kit.ranks import Rank, run_ranks, watch_ranks
from wiiiiided.backend.engine.process import stats_page
from wiiiiided.backend.shm import stats
from wiiiiided.torch import Batches, Between, parallel
from wiiiiided.train import layout, sync_step
from wiiiiided.train.noise_scale import BatchSizes, NoiseScale, is_measured


def test_the_estimator_finds_signal_and_noise() -> None:
    torch.manual_seed(0)
    ranks, samples, size = 4, 8, 20_000
    true, spread = torch.full((size,), 0.01), 0.1
    found = NoiseScale()
    for _ in range(60):
        noise = torch.randn(ranks, size) * spread / samples**0.5
        gradients = true + noise
        own = float(gradients.square().sum(1).mean())
        found.add(own, float(gradients.mean(0).square().sum()), BatchSizes.even(samples, ranks))
    wanted = size * spread**2 / float(true.square().sum())
    assert found.value == pytest.approx(wanted, rel=0.1)


def test_ranks_may_have_different_numbers_of_samples() -> None:
    torch.manual_seed(0)
    counts, size = torch.tensor([4.0, 8.0, 20.0]), 20_000
    true, spread = torch.full((size,), 0.01), 0.1
    sizes = BatchSizes.of(counts.tolist())
    assert sizes is not None
    found = NoiseScale()
    for _ in range(60):
        gradients = true + torch.randn(3, size) * spread / counts.sqrt()[:, None]
        average = (gradients * counts[:, None]).sum(0) / counts.sum()
        found.add(float(gradients.square().sum(1).mean()), float(average.square().sum()), sizes)
    wanted = size * spread**2 / float(true.square().sum())
    assert found.value == pytest.approx(wanted, rel=0.1)
    assert BatchSizes.of([4.0, 0.0]) is None


def test_averages_go_on_from_their_state() -> None:
    found, again = NoiseScale(), NoiseScale()
    assert found.state() == {}
    for own in (3.0, 3.4, 3.2):
        found.add(own, 2.5, BatchSizes.even(4, 2))
    again.load(found.state())
    assert again.value == found.value is not None
    for one in (found, again):
        one.add(2.0, 1.9, BatchSizes.even(4, 2))
    assert again.state() == found.state()
    again.load({})
    assert again.value is None
    found.add(float("nan"), 1.0, BatchSizes.even(4, 2))
    assert found.state() == {}


def test_without_noise_or_without_signal_there_is_no_figure() -> None:
    found = NoiseScale()
    assert found.value is None
    found.add(1.0, 1.0, BatchSizes.even(4, 2))
    assert found.value is None
    found.add(1.0, 0.1, BatchSizes.even(4, 2))  # less than two ranks' noise alone would leave
    assert NoiseScale().value is None


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
    told = stats_page().words[stats.TRAINING_AT : stats.WORDS].cast("B").cast("d").tolist()
    assert told[stats.TRAINING_METRICS.index("noise_scale")] == found
    rounds = {"round_steps": 4.0, "share": 1 / 4} if every > 1 else {}
    for name in ("round_steps", "share"):
        assert told[stats.TRAINING_METRICS.index(name)] == rounds.get(name, 0.0)
    assert (0 < told[stats.TRAINING_METRICS.index("round_compute")] < 1) == (every > 1)
    return found


def _reference(ranks: list[int], size: int) -> float:
    gradients = torch.stack(
        [
            torch.randn(30, 40, generator=torch.Generator().manual_seed(700 + rank)) + 0.5
            for rank in ranks
        ]
    )
    found = NoiseScale()
    own = float(gradients.square().sum((1, 2)).mean())
    found.add(own, float(gradients.mean(0).square().sum()), BatchSizes.even(3, size))
    assert found.value is not None
    return found.value


@pytest.mark.parametrize("small", [True, False])
@pytest.mark.parametrize("clips", [False, True])
@pytest.mark.parametrize("hosts", ["aaa", "aab"])
def test_all_ranks_know_it(hosts: str, clips: bool, small: bool) -> None:
    for found in run_ranks(_trains, hosts, 1, clips, small):
        assert found == pytest.approx(_reference([0, 1, 2], 3), rel=1e-4)


def _uneven(me: Rank) -> float | None:
    torch.manual_seed(1)
    model = nn.Linear(40, 30, bias=False)
    run = parallel(model, optimizer := torch.optim.SGD(model.parameters(), lr=0.0))
    for step in range(9):
        source = torch.Generator().manual_seed(100 * step + me.rank)
        run.samples(2 + me.rank)
        (model.weight * (torch.randn(30, 40, generator=source) + 0.5)).sum().backward()
        optimizer.step()
        optimizer.zero_grad()
    return run.noise_scale


@pytest.mark.parametrize("hosts", ["aaa", "aab"])
def test_all_ranks_know_the_same_where_their_batches_differ(hosts: str) -> None:
    draws = [
        torch.randn(30, 40, generator=torch.Generator().manual_seed(700 + r)) for r in (0, 1, 2)
    ]
    gradients, counts = torch.stack(draws) + 0.5, torch.tensor([2.0, 3.0, 4.0])
    average = (gradients * counts[:, None, None]).sum(0) / 9
    sizes = BatchSizes.of(counts.tolist())
    assert sizes is not None
    wanted = NoiseScale()
    wanted.add(float(gradients.square().sum((1, 2)).mean()), float(average.square().sum()), sizes)
    for found in run_ranks(_uneven, hosts):
        assert found == pytest.approx(wanted.value, rel=1e-4)


CODECS = ("exact", "bf16", "int8", "int4", "topk:0.01")


def _coded(me: Rank, true: float, even: bool) -> list[float | None]:
    """What each codec gives with the same gradients, whose noise scale is `true`."""
    sync_step.is_measured = lambda step: step % 4 == 0
    count, size = 32 + 16 * (not even) * me.rank, 100_000
    signal = torch.randn(size, generator=torch.Generator().manual_seed(1))
    spread = (true * float(signal.square().mean()) / count) ** 0.5
    models = [nn.Linear(size, 1, bias=False) for _ in CODECS]
    optimizers = [torch.optim.SGD(model.parameters(), lr=0.0) for model in models]
    runs = [
        parallel(model, optimizer, between=Between(gradients=name))
        for name, model, optimizer in zip(CODECS, models, optimizers, strict=True)
    ]
    source = torch.Generator().manual_seed(100 + me.rank)
    for _ in range(61):
        gradient = signal + spread * torch.randn(size, generator=source)
        for run, model, optimizer in zip(runs, models, optimizers, strict=True):
            run.samples(count)
            (model.weight * gradient).sum().backward()
            optimizer.step()
            optimizer.zero_grad()
    return [run.noise_scale for run in runs]


@pytest.mark.parametrize(
    ("hosts", "true", "even"),
    [("ab", 64, True), ("ab", 640, False), ("ab", 6400, True), ("aab", 640, True),
     ("abc", 640, True), ("abc", 6400, True)],
)  # fmt: skip
def test_coded_gradients_have_the_noise_scale_of_exact_ones(
    hosts: str, true: float, even: bool
) -> None:
    found = run_ranks(_coded, hosts, true, even)
    assert all(of_rank == found[0] for of_rank in found)
    exact, *rounded, most_left_out = found[0]
    assert exact == pytest.approx(true, rel=0.6 if true > 1000 else 0.15)
    assert rounded == pytest.approx([exact] * 3, rel=0.1)
    assert most_left_out is None


def _follows_topk(me: Rank) -> None:
    model = nn.Linear(1, 1)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    data = Batches([0.0] * 100, "auto", between=(4, 16), lr_rule="none")
    parallel(model, optimizer, data=data, between=Between(gradients="topk:0.05"))


def test_a_batch_cannot_follow_what_top_k_hides() -> None:
    for outcome in watch_ranks(_follows_topk, "ab"):
        assert outcome.error.startswith('UsageError: batch_size="auto" follows the gradient noise')
        assert 'cannot be told from gradients="topk:0.05": use another codec' in outcome.error
    run_ranks(_follows_topk, "aa")  # one host: nothing is coded


def test_with_seldom_exchange_a_host_measures_its_own() -> None:
    found = run_ranks(_trains, "aabb", 4, False, True)
    assert found[0] == found[1] == pytest.approx(_reference([0, 1], 2), rel=1e-4)
    assert found[2] == found[3] == pytest.approx(_reference([2, 3], 2), rel=1e-4)
