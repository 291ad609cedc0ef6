"""`wide.parallel(…, data=…)`: steps weigh and commit samples, and report how far they are."""

from __future__ import annotations

import random
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn
from torch.utils.data import TensorDataset

from tests.kit.ranks import Rank, run_ranks, watch_ranks
from wiiiiided.backend.engine.process import stats_page
from wiiiiided.backend.shm.stats import SAMPLES, STEP, TOTAL
from wiiiiided.errors import UsageError
from wiiiiided.torch import Batches, parallel, progress
from wiiiiided.train.rng import rng_state, set_rng_state
from wiiiiided.train.training_loop import TrainingLoop

LENGTH = 22  # the last of three batches has six samples


def _data(**options: Any) -> Batches:
    source = torch.Generator().manual_seed(3)
    x = torch.randn(LENGTH, 6, generator=source)
    return Batches(TensorDataset(x, x[:, :3].sin(), torch.arange(LENGTH)), 8, 1, **options)


def _made(data: Batches | None) -> tuple[nn.Module, torch.optim.Optimizer, Any, Any]:
    torch.manual_seed(11)
    model = nn.Sequential(nn.Linear(6, 40), nn.Tanh(), nn.Linear(40, 3))
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.01)
    scheduler = torch.optim.lr_scheduler.MultiStepLR(optimizer, [2, 4], gamma=0.5)
    return model, optimizer, scheduler, parallel(model, optimizer, data=data, scheduler=scheduler)


def _weights(model: nn.Module) -> list[float]:
    return torch.cat([p.detach().flatten() for p in model.parameters()]).tolist()


def _two_epochs(me: Rank, clips: bool) -> tuple[list[float], list[int]]:
    data = _data(epochs=2)
    model, optimizer, scheduler, run = _made(data)
    seen: list[int] = []
    for _ in range(2):
        for x, y, ids in data:
            seen += ids.tolist()[: data.samples_of_step()]
            nn.functional.mse_loss(model(x), y).backward()
            if clips:
                run.clip_grad_norm_(0.1)
            optimizer.step()
            optimizer.zero_grad()
            scheduler.step()
    assert data.state_dict()["epoch"] == 2
    page = stats_page()
    assert (page.words[STEP], page.words[TOTAL]) == (6 + 1, 6 + 1)
    assert page.words[SAMPLES] == len(seen)
    assert run.state_dict()["step"] == 6
    return _weights(model), seen


@pytest.mark.parametrize("clips", [False, True])
@pytest.mark.parametrize("world", [3, "aab"])
def test_any_number_of_ranks_trains_what_one_does(world: int | str, clips: bool) -> None:
    (alone, _), *_ = run_ranks(_two_epochs, 1, clips)
    together = run_ranks(_two_epochs, world, clips)
    for weights, _ in together:
        assert weights == pytest.approx(alone, rel=1e-4, abs=1e-6)
    assert sorted(n for _, seen in together for n in seen) == sorted([*range(LENGTH)] * 2)


def _failed_step(me: Rank) -> None:
    data = _data()
    model, optimizer, _, run = _made(data)
    for count, (x, y, _) in enumerate(data):
        nn.functional.mse_loss(model(x), y).backward()
        if count == 1:
            next(model.parameters()).data = torch.zeros(40, 6)
            with pytest.raises(UsageError, match="was replaced"):
                optimizer.step()
            break
        optimizer.step()
        optimizer.zero_grad()
    assert run.state_dict()["data"]["position"] == 8


def test_a_step_that_raised_is_not_committed() -> None:
    run_ranks(_failed_step, 1)


def _different(me: Rank) -> None:
    _made(_data(drop_last=bool(me.rank)))


def test_ranks_with_different_data_are_refused() -> None:
    for outcome in watch_ranks(_different, 2):
        assert "rank 0 gave parallel() AdamW of 1 groups, data=Batches of 8" in outcome.error
        assert "without a short last one" in outcome.error


def _resumed(me: Rank) -> None:
    data = _data()
    model, optimizer, scheduler, run = _made(data)
    losses: list[float] = []
    saved: Any = None
    for _ in range(2):
        for x, y, _ in data:
            loss = nn.functional.mse_loss(nn.functional.dropout(model(x), 0.3), y)
            loss.backward()
            optimizer.step()
            optimizer.zero_grad()
            scheduler.step()
            losses.append(loss.item())
            if len(losses) == 4:
                saved = run.state_dict(), {k: v.clone() for k, v in model.state_dict().items()}
                kept = optimizer.state_dict()
                kept["state"] = {
                    i: {k: v.clone() for k, v in held.items()} for i, held in kept["state"].items()
                }
    other = _data()
    model, optimizer, scheduler, run = _made(other)
    model.load_state_dict(saved[1])
    optimizer.load_state_dict(kept)
    run.load_state_dict(saved[0])
    again = []
    for x, y, _ in other:
        loss = nn.functional.mse_loss(nn.functional.dropout(model(x), 0.3), y)
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        scheduler.step()
        again.append(loss.item())
    assert again == losses[4:]
    assert run.state_dict()["step"] == 6


def test_the_state_of_a_run_goes_on_bit_by_bit() -> None:
    run_ranks(_resumed, 2)


def _own_progress(me: Rank) -> None:
    data = _data()
    model, optimizer, _, _ = _made(data)
    for step, (x, y, _) in enumerate(data):
        nn.functional.mse_loss(model(x), y).backward()
        optimizer.step()
        optimizer.zero_grad()
        progress(100 + step, samples=5, metrics={f"m{i}": 1.0 for i in range(8)})
    assert stats_page().words[STEP] == 103
    assert stats_page().words[SAMPLES] == 15


def test_a_script_that_reports_progress_is_not_talked_over() -> None:
    run_ranks(_own_progress, 1)


def test_what_cannot_be_the_data_or_scheduler_of_a_run_is_refused() -> None:
    with pytest.raises(UsageError, match=r"data=list is no wide\.Batches"):
        TrainingLoop([1, 2])  # type: ignore[arg-type]
    with pytest.raises(UsageError, match="scheduler=int has no state_dict"):
        TrainingLoop(None, 3)
    with pytest.raises(UsageError, match="all ranks make together"):
        TrainingLoop(_data()).refuse_async()


def test_schedulers_inside_another_get_their_state_back_as_it_was() -> None:
    """The milestones of MultiStepLR are a Counter, which travels as a plain dict."""

    def made() -> tuple[Any, TrainingLoop]:
        optimizer = torch.optim.SGD([torch.zeros(1, requires_grad=True)], lr=1.0)
        first = torch.optim.lr_scheduler.LinearLR(optimizer, 0.5, total_iters=3)
        second = torch.optim.lr_scheduler.MultiStepLR(optimizer, [2, 4], gamma=0.5)
        both = torch.optim.lr_scheduler.SequentialLR(optimizer, [first, second], [3])
        return optimizer, TrainingLoop(scheduler=both)

    def rates(optimizer: Any, loop: TrainingLoop, steps: int) -> list[float]:
        found = []
        for _ in range(steps):
            optimizer.step()
            loop.scheduler.step()
            found.append(optimizer.param_groups[0]["lr"])
        return found

    optimizer, loop = made()
    rates(optimizer, loop, 2)
    other, resumed = made()
    other.load_state_dict(optimizer.state_dict())
    resumed.load(loop.state())
    assert rates(other, resumed, 8) == rates(optimizer, loop, 8)


def test_random_generators_go_on_from_their_states() -> None:
    np.random.standard_normal()
    saved = rng_state()
    drawn = [(torch.rand(3).tolist(), np.random.standard_normal(3).tolist(), random.gauss(0, 1))]
    set_rng_state(saved)
    again = [(torch.rand(3).tolist(), np.random.standard_normal(3).tolist(), random.gauss(0, 1))]
    assert drawn == again
