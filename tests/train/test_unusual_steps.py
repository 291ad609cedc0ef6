"""Steps as some scripts make them: other orders of memory, gradients thrown away, ranks without
samples, a scaler that leaves the skipping to the optimizer."""

from __future__ import annotations

import copy
from typing import Any

import pytest
import torch
import torch.distributed as dist
from torch import nn
from torch.utils.data import TensorDataset

from tests.kit.ranks import Rank, run_ranks
from wiiiiided.errors import UsageError
from wiiiiided.torch import Batches, Between, Parallel, parallel


class OwnAdamW(torch.optim.AdamW):
    """No class of torch's own: it is given whole parameters, and not slices of them."""


def _images(step: int) -> torch.Tensor:
    make = torch.Generator().manual_seed(step)
    return torch.randn(2, 3, 9, 9, generator=make).to(memory_format=torch.channels_last)


def _convolutions() -> nn.Module:
    torch.manual_seed(0)
    layers = nn.Sequential(nn.Conv2d(3, 8, 3), nn.Conv2d(8, 4, 3))
    return layers.to(memory_format=torch.channels_last)  # type: ignore[call-overload,no-any-return]


def _train(model: nn.Module, optimizer: torch.optim.Optimizer, steps: range) -> None:
    for step in steps:
        model(_images(step)).square().mean().backward()
        optimizer.step()
        optimizer.zero_grad()


def _keeps_the_order_of_memory(me: Rank, kind: type[torch.optim.Optimizer], folder: str) -> None:
    reference, model = _convolutions(), _convolutions()
    plain, divided = (kind(m.parameters(), lr=0.01) for m in (reference, model))
    run = parallel(model, divided, save=folder)
    for made, optimizer in ((reference, plain), (model, divided)):
        _train(made, optimizer, range(3))
    found, meant = divided.state_dict()["state"], plain.state_dict()["state"]
    for number, entries in meant.items():
        for name, value in entries.items():
            torch.testing.assert_close(found[number][name], value)
    run.save()
    if me.rank == 0:  # from its own copy: the others take it over
        divided.load_state_dict(copy.deepcopy(divided.state_dict()))
    resumed = _convolutions()
    other = kind(resumed.parameters(), lr=0.01)
    _train(reference, plain, range(3, 6))
    _train(model, divided, range(3, 6))
    again = parallel(resumed, other, save=folder)
    assert again.resume() == 3
    _train(resumed, other, range(3, 6))
    for mine in (model, resumed):
        for one, meant_one in zip(mine.parameters(), reference.parameters(), strict=True):
            torch.testing.assert_close(one, meant_one)


@pytest.mark.parametrize("kind", [torch.optim.AdamW, OwnAdamW])
def test_state_of_weights_in_another_order_of_memory_is_whole_and_resumes(
    tmp_path: Any, kind: type[torch.optim.Optimizer]
) -> None:
    run_ranks(_keeps_the_order_of_memory, 2, kind, str(tmp_path))


def _sees_moments(me: Rank) -> list[float]:
    model = _convolutions()
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.001)
    parallel(model, optimizer, updates="async")
    for turn in range(4):  # in turn: no rank writes while another does
        if turn in (0, 2 + me.rank):
            _train(model, optimizer, range(turn, turn + 1))
        dist.barrier()
    moments: torch.Tensor = optimizer.state[next(model.parameters())]["exp_avg"]
    return moments.flatten().tolist()


def test_asynchronous_ranks_read_moments_of_one_order_of_memory() -> None:
    first, second = run_ranks(_sees_moments, 2)
    assert first == second


# -- samples ----


def _line(**options: Any) -> tuple[nn.Linear, torch.optim.Optimizer, Parallel]:
    model = nn.Linear(1, 1, bias=False)
    nn.init.zeros_(model.weight)
    optimizer = torch.optim.SGD(model.parameters(), lr=1.0)
    return model, optimizer, parallel(model, optimizer, **options)


def _backward(model: nn.Module, factor: float, size: int = 1) -> None:
    (model(torch.ones(size, 1)).mean() * factor).backward()


def _says_samples(me: Rank) -> list[float]:
    model, optimizer, run = _line()
    factor, count = ((1.0, 9), (-1.0, 1))[me.rank]
    found = []
    for is_early in (True, False):
        _backward(model, factor)
        if is_early:
            run.samples(count)
        run.clip_grad_norm_(1e9)
        run.samples(count) if is_early else _is_refused(run, count)
        before = model.weight.item()
        optimizer.step()
        optimizer.zero_grad()
        found.append(before - model.weight.item())
    _backward(model, factor)
    run.clip_grad_norm_(1e9)
    optimizer.zero_grad()  # thrown away: what is said now is of the next gradients
    run.samples(count)
    _backward(model, factor)
    before = model.weight.item()
    optimizer.step()
    return [*found, before - model.weight.item()]


def _is_refused(run: Parallel, count: int) -> None:
    with pytest.raises(UsageError, match=r"call run.samples\(\) before it"):
        run.samples(count)


def test_samples_that_are_said_too_late_are_refused_and_not_left_out() -> None:
    for found in run_ranks(_says_samples, 2):
        assert found == pytest.approx([0.8, 0.0, 0.8])


def _has_no_number(me: Rank) -> float:
    model, optimizer, run = _line()
    mask = torch.ones(2) if me.rank == 0 else torch.zeros(2)
    loss = (model(torch.ones(2, 1)).squeeze(1) * mask).sum() / mask.sum()  # 0/0
    loss.backward()
    run.samples(float(mask.sum()))
    optimizer.step()
    return model.weight.item()


@pytest.mark.parametrize("world", [2, "aab"])
def test_the_gradient_of_a_rank_without_samples_may_be_no_number(world: int | str) -> None:
    assert set(run_ranks(_has_no_number, world)) == {-1.0}


def _has_an_empty_batch(me: Rank) -> tuple[list[int], float]:
    data = Batches(TensorDataset(torch.arange(9.0)), 4, shuffle=False)
    model, optimizer, _ = _line(data=data, between=Between(every=8))
    counts = []
    for (x,) in data:
        counts.append(data.samples_of_step())
        _backward(model, 1.0, len(x))  # a rank without a sample gets one that does not count
        optimizer.step()
        optimizer.zero_grad()
    return counts, -model.weight.item()


def test_a_batch_in_which_a_host_has_no_sample_changes_nothing() -> None:
    (a, moved), (b, also) = run_ranks(_has_an_empty_batch, "ab")
    assert (a, b) == ([2, 2, 1], [2, 2, 0])
    # Hosts count by their samples: one has made three steps with five, the other two with four.
    assert (moved, also) == pytest.approx([(5 * 3 + 4 * 2) / 9] * 2)


def _gives_a_batch_up(me: Rank, gives_up: bool) -> tuple[int, float]:
    # Batches of 4 and 4 samples, then of 1 and of none.
    data = Batches(TensorDataset(torch.arange(9.0)), 8, shuffle=False)
    model, optimizer, run = _line(data=data)
    before = 0.0
    for number, (x,) in enumerate(data):
        _backward(model, (1.0, -1.0)[me.rank], len(x))
        run.clip_grad_norm_(float("inf"))
        if number == 0 and gives_up:  # as for a norm that is not finite
            optimizer.zero_grad()
            continue
        before = model.weight.item()
        optimizer.step()
        optimizer.zero_grad()
    return data.samples_of_step(), model.weight.item() - before


@pytest.mark.parametrize("gives_up", [False, True])
def test_a_batch_that_is_given_up_after_clipping_counts_for_no_step(gives_up: bool) -> None:
    assert run_ranks(_gives_a_batch_up, 2, gives_up) == [(0, pytest.approx(-1.0))] * 2


# -- between clipping and the step ----


class Experts(nn.Module):
    """Each rank may use another layer, large enough for a gradient of its own memory."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(2)
        self.layers = nn.ModuleList(nn.Linear(200, 200, bias=False) for _ in range(2))

    def forward(self, x: torch.Tensor, number: int) -> torch.Tensor:
        found: torch.Tensor = self.layers[number](x).square().mean()
        return found


def _looks_between(me: Rank, looks: bool) -> list[float]:
    model = Experts()
    optimizer = torch.optim.SGD(model.parameters(), lr=1.0)
    run = parallel(model, optimizer)
    model(torch.ones(2, 200), 1 - me.rank).backward()
    run.clip_grad_norm_(1.0)
    if looks:
        model(torch.ones(2, 200), me.rank)  # the training loss, for the log
    optimizer.step()
    return [p.double().sum().item() for p in model.parameters()]


def test_a_forward_between_clipping_and_the_step_changes_nothing() -> None:
    assert run_ranks(_looks_between, 2, True) == run_ranks(_looks_between, 2, False)


# -- GradScaler ----


def _is_scaled(me: Rank, fused: bool) -> tuple[list[int], int, float]:
    torch.manual_seed(0)
    model = nn.Linear(3, 1)
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.01, fused=fused)
    run = parallel(model, optimizer, between=Between(every=4))
    scaler, steps = torch.amp.GradScaler("cpu", init_scale=1024.0), []
    for step in range(8):
        loss = model(torch.ones(3, 3)).square().mean()
        is_broken = step == 1 and me.rank == 1
        scaler.scale(loss * float("inf") if is_broken else loss).backward()
        scaler.step(optimizer)
        scaler.update()
        optimizer.zero_grad()
        steps.append(run.state_dict()["outer"]["steps"])
    return steps, run._steps.number, model.weight.double().sum().item()


def test_a_step_that_a_fused_optimizer_skips_itself_counts_once() -> None:
    plain, fused = (run_ranks(_is_scaled, "ab", fused) for fused in (False, True))
    for (steps, number, weight), (meant, meant_number, meant_weight) in zip(
        fused, plain, strict=True
    ):
        assert (steps, number) == (meant, meant_number) == ([1, 2, 3, 0] * 2, 8)
        assert weight == pytest.approx(meant_weight, rel=1e-5)
