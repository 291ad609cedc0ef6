"""Global batches that follow the gradient noise scale."""

from __future__ import annotations

import copy
import logging
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn
from torch.optim import lr_scheduler
from torch.optim.swa_utils import SWALR
from torch.utils.data import TensorDataset

from tests.kit.ranks import Rank, run_ranks
from wiiiiided import log
from wiiiiided.errors import UsageError
from wiiiiided.torch import Batches, parallel
from wiiiiided.train.data import adaptive_batch
from wiiiiided.train.data.adaptive_batch import AdaptiveBatch
from wiiiiided.train.learning_rates import check_rates, scale_rates
from wiiiiided.train.noise_scale import NoiseScale
from wiiiiided.train.training_loop import TrainingLoop


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


def test_a_batch_that_could_leave_a_whole_epoch_out_is_refused() -> None:
    samples = TensorDataset(torch.zeros(9))
    with pytest.raises(UsageError, match=r"between\[1\]=10 is more than the 9 samples"):
        Batches(samples, "auto", between=(2, 10), drop_last=True)
    Batches(samples, "auto", between=(2, 9), drop_last=True)
    Batches(samples, "auto", between=(2, 10))


def _goes_on_at_more_ranks(me: Rank) -> None:
    samples = TensorDataset(torch.zeros(90))
    data = Batches(samples, "auto", between=(2, 64))
    data.load_state_dict({**data.state_dict(), "batch_size": 30})
    with pytest.raises(UsageError, match=r"between\[0\]=2 is that of all 3 ranks together"):
        iter(data)


def test_more_ranks_than_the_smallest_batch_has_samples_are_refused_at_once() -> None:
    run_ranks(_goes_on_at_more_ranks, 3)


def test_a_state_has_the_steps_since_the_last_change_and_an_older_one_has_none() -> None:
    samples = TensorDataset(torch.zeros(900))
    data, other = (Batches(samples, "auto", between=(64, 512)) for _ in range(2))
    assert data.adaptive is not None
    assert other.adaptive is not None
    for _ in range(150):
        assert data.adaptive.follow(64, 500.0) == (64, "")
    state = data.state_dict()
    other.load_state_dict(state)
    assert _after(other.adaptive, 64, 500.0, 50)[0] == 128
    del state["steps_of_size"]
    other.load_state_dict(state)
    assert _after(other.adaptive, 64, 500.0, 200)[0] == 128
    assert "steps_of_size" not in Batches(samples, 4).state_dict()


def _measures(me: Rank, folder: str) -> list[Any]:
    samples = TensorDataset(torch.randn(64, 1, generator=torch.Generator().manual_seed(3)))
    data = Batches(samples, "auto", between=(4, 64))
    torch.manual_seed(0)
    model = nn.Linear(1, 1)
    run = parallel(model, optimizer := torch.optim.SGD(model.parameters(), 1e-3), data=data,
                   save=folder)  # fmt: skip
    step, found = run.resume(), [run.noise_scale]
    for (x,) in data:
        if step == 0:
            (model(x) - 9).square().mean().backward()  # more signal than noise
            optimizer.step()
            optimizer.zero_grad()
    run.save()
    other = run.state_dict()
    assert run.noise_scale is not None
    del other["noise_scale"]  # as a run of before would have saved it
    found.append(run.noise_scale)
    run.load_state_dict(other)
    assert run.noise_scale is None
    return [step, *found]


@pytest.mark.parametrize("hosts", ["aa", "ab"])
def test_a_resume_goes_on_with_what_was_measured(tmp_path: Path, hosts: str) -> None:
    for before, after in zip(
        *(run_ranks(_measures, hosts, str(tmp_path)) for _ in range(2)), strict=True
    ):
        assert before[:2] == [0, None]
        assert after == [16, before[2], before[2]]


# -- learning rates ----


class Warmup(lr_scheduler.LRScheduler):
    """A schedule of the script's own, made from base_lrs as torch's are."""

    def get_lr(self) -> list[Any]:
        return [rate * min(1.0, (self.last_epoch + 1) / 5) for rate in self.base_lrs]


class OwnPeak(lr_scheduler.LRScheduler):
    """A scheduler with rates that no other can know of."""

    def get_lr(self) -> list[Any]:
        return [0.1 * min(1.0, (self.last_epoch + 1) / 5) for _ in self.base_lrs]


class StepsAlone(lr_scheduler.StepLR):
    """One that sets the rate in a step of its own."""

    def step(self, epoch: int | None = None) -> None:
        self.last_epoch += 1
        for group in self.optimizer.param_groups:
            group["lr"] = 0.1 / (1 + self.last_epoch)


def _sequential(optimizer: Any) -> Any:
    first = lr_scheduler.LinearLR(optimizer, 0.3, total_iters=3)
    last = lr_scheduler.CosineAnnealingLR(optimizer, 9, eta_min=0.05)
    return lr_scheduler.SequentialLR(optimizer, [first, Warmup(optimizer), last], [4, 9])


def _chained(optimizer: Any) -> Any:
    exponential = lr_scheduler.ExponentialLR(optimizer, 0.9)
    return lr_scheduler.ChainedScheduler([_sequential(optimizer), exponential])


SCHEDULES: dict[str, Callable[[Any], Any]] = {
    "none": lambda _: None,
    "lambda": lambda o: lr_scheduler.LambdaLR(o, lambda step: 1 / (1 + step)),
    "multiplicative": lambda o: lr_scheduler.MultiplicativeLR(o, lambda step: 0.9),
    "step": lambda o: lr_scheduler.StepLR(o, 3, 0.5),
    "multi step": lambda o: lr_scheduler.MultiStepLR(o, [4, 9], 0.5),
    "constant": lambda o: lr_scheduler.ConstantLR(o, 0.3, 7),
    "linear": lambda o: lr_scheduler.LinearLR(o, 0.3, total_iters=8),
    "exponential": lambda o: lr_scheduler.ExponentialLR(o, 0.9),
    "polynomial": lambda o: lr_scheduler.PolynomialLR(o, 12, 2.0),
    "cosine": lambda o: lr_scheduler.CosineAnnealingLR(o, 9, eta_min=0.05),
    "restarts": lambda o: lr_scheduler.CosineAnnealingWarmRestarts(o, 4, eta_min=0.05),
    "one cycle": lambda o: lr_scheduler.OneCycleLR(o, 2.0, total_steps=20),
    "cyclic": lambda o: lr_scheduler.CyclicLR(o, 0.1, 1.0, 4, mode="triangular2"),
    "plateau": lambda o: lr_scheduler.ReduceLROnPlateau(o, factor=0.5, patience=1, min_lr=0.1),
    "averaged weights": lambda o: SWALR(o, 0.05, 6),
    "sequential": _sequential,
    "sequential in chained": _chained,
    "of the script": Warmup,
}


def _rates(name: str, scaled_after: int) -> tuple[list[float], Any]:
    """The learning rates of 16 steps, multiplied by 2 after one of them, and the scheduler."""
    weights = [torch.zeros(1, requires_grad=True) for _ in range(2)]
    groups = [{"params": [weights[0]]}, {"params": [weights[1]], "lr": 0.5}]
    optimizer = torch.optim.SGD(groups, lr=1.0, momentum=0.9)
    scheduler = SCHEDULES[name](optimizer)
    check_rates(scheduler)
    found: list[float] = []
    for step in range(16):
        optimizer.step()
        if step == scaled_after:
            scale_rates(optimizer, scheduler, 2.0)
        if scheduler is not None and name == "plateau":
            scheduler.step(1.0)
        elif scheduler is not None:
            scheduler.step()
        found += [group["lr"] for group in optimizer.param_groups]
        if scheduler is not None:
            assert scheduler.get_last_lr() == found[-2:]
    return found, scheduler


@pytest.mark.parametrize("name", SCHEDULES)
@pytest.mark.parametrize("after", [0, 4, 10])
def test_a_schedule_goes_on_as_if_it_had_begun_with_scaled_rates(name: str, after: int) -> None:
    plain, _ = _rates(name, 99)
    scaled, _ = _rates(name, after)
    assert scaled[: 2 * after] == plain[: 2 * after]
    assert scaled[2 * after :] == pytest.approx([2 * rate for rate in plain[2 * after :]])


@pytest.mark.parametrize("name", SCHEDULES)
def test_to_look_whether_a_schedule_can_be_scaled_changes_nothing(name: str) -> None:
    _, scheduler = _rates(name, 99)
    if scheduler is None:
        return
    before = copy.deepcopy(scheduler.state_dict())
    rates = [dict(group) for group in scheduler.optimizer.param_groups]
    check_rates(scheduler)
    assert repr(scheduler.state_dict()) == repr(before)
    assert scheduler.optimizer.param_groups == rates


def test_what_get_last_lr_says_is_scaled_too() -> None:
    _, scheduler = _rates("sequential", 99)
    before = scheduler.get_last_lr()
    scale_rates(scheduler.optimizer, scheduler, 2.0)
    assert scheduler.get_last_lr() == [2 * rate for rate in before]
    assert scheduler.get_last_lr() == [group["lr"] for group in scheduler.optimizer.param_groups]


class Foreign:
    """No scheduler of torch at all."""

    def __init__(self, optimizer: Any) -> None:
        self.optimizer = optimizer

    def state_dict(self) -> dict[str, Any]:
        return {}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        pass


def _inside(optimizer: Any) -> Any:
    both = [lr_scheduler.ConstantLR(optimizer), OwnPeak(optimizer)]
    return lr_scheduler.SequentialLR(optimizer, both, [3])


@pytest.mark.parametrize(
    ("make", "name"),
    [
        *((OwnPeak, "OwnPeak"), (_inside, "OwnPeak"), (Foreign, "Foreign")),
        (lambda o: StepsAlone(o, 3), "StepsAlone"),
    ],
)
def test_a_schedule_that_cannot_be_scaled_is_refused(make: Any, name: str) -> None:
    optimizer = torch.optim.SGD([torch.zeros(1, requires_grad=True)], lr=1.0)
    scheduler, samples = make(optimizer), TensorDataset(torch.zeros(9))
    with pytest.raises(UsageError, match=f"scheduler={name} does not make its learning rates"):
        TrainingLoop(Batches(samples, "auto", between=(1, 2)), scheduler)
    for data in (Batches(samples, "auto", between=(1, 2), lr_rule="none"), Batches(samples, 2)):
        TrainingLoop(data, scheduler)


# -- ranks ----


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


class Adaptive:
    """A run whose batch follows a noise scale of 30 samples, and what its log says of that."""

    def __init__(self, folder: str, name: str) -> None:
        adaptive_batch._LEAST_STEPS = 3  # type: ignore[misc]
        NoiseScale.value = property(lambda self: 30.0)  # type: ignore[assignment,method-assign]
        self.said: list[str] = []
        told = logging.Handler()
        told.emit = lambda record: self.said.append(record.getMessage())  # type: ignore[method-assign]
        log.logger.addHandler(told)
        samples = TensorDataset(torch.arange(100.0)[:, None])
        self.data = Batches(samples, "auto", between=(4, 64))
        self.model = nn.Linear(1, 1)
        self.optimizer = torch.optim.SGD(self.model.parameters(), lr=1e-5, momentum=0.9)
        self.scheduler = SCHEDULES[name](self.optimizer)
        self.run = parallel(
            self.model,
            self.optimizer,
            data=self.data,
            scheduler=self.scheduler,
            save=folder,
        )
        self.step = self.run.resume()

    def train(self, steps: int) -> list[float]:
        """So many steps of this epoch at most; returns the samples of this rank."""
        seen: list[float] = []
        for (x,) in self.data:
            seen += x.flatten().tolist()[: self.data.samples_of_step()]
            self.model(x).mean().backward()
            self.optimizer.step()
            self.optimizer.zero_grad()
            self.scheduler.step()
            steps -= 1
            if not steps:
                break
        return seen

    def rates(self) -> list[Any]:
        """The size of the batch, and all that learning rates are made from."""
        groups = [{k: v for k, v in g.items() if "lr" in k} for g in self.optimizer.param_groups]
        return [self.data.batch_size, groups, self.scheduler.state_dict()]


def _until_saved(me: Rank, base: str, name: str) -> tuple[list[float], list[Any], list[str]]:
    trained = Adaptive(base, name)
    seen = trained.train(7)
    trained.run.save()
    return seen, trained.rates(), trained.said


def _resumed(me: Rank, base: str, name: str) -> tuple[list[float], list[Any], int]:
    trained = Adaptive(base, name)
    assert trained.step == 7
    rates = trained.rates()
    first = trained.train(1)
    return first + trained.train(99), rates, len(first)


@pytest.mark.parametrize("name", ["one cycle", "cyclic", "sequential"])
def test_size_and_rates_go_on_from_a_checkpoint_and_rank_0_says_each_change(
    tmp_path: Path, name: str
) -> None:
    log_all = {"WIIIIIDE_LOG": "verbose"}
    before = run_ranks(_until_saved, "aa", str(tmp_path), name, env=log_all)
    said = [[line for line in lines if "the global batch has" in line] for *_, lines in before]
    reason = "the gradient noise scale is 30 samples, learning rates are multiplied by 1.41"
    assert [line.partition("] ")[2] for line in said[0]] == [
        f"the global batch has 8 samples instead of 4: {reason}",
        f"the global batch has 16 samples instead of 8: {reason}",
    ]
    assert said[1] == []
    size, groups, schedule = before[0][1]
    assert size == 16
    if name == "one cycle":
        assert groups[0]["max_lr"] == pytest.approx(2.0 * 2)
    else:
        inner = schedule["_schedulers"][-1] if name == "sequential" else schedule
        assert inner["base_lrs"] == pytest.approx([2 * (0.1 if name == "cyclic" else 1e-5)])
    after = run_ranks(_resumed, "aab", str(tmp_path), name)
    assert [repr(rates) for _, rates, _ in after] == [repr(before[0][1])] * 3
    assert sum(first for *_, first in after) == 16
    seen = [number for values, *_ in (*before, *after) for number in values]
    assert sorted(seen) == [*range(100)]
