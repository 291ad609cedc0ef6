"""Hosts of different speeds that exchange seldom: equal time, unequal steps, every sample once."""

from __future__ import annotations

import gc
import os
import weakref
from typing import Any

import pytest
import torch
import torch.distributed as dist
from torch import nn
from torch.utils.data import TensorDataset

from tests.kit.conditions import wait_until
from tests.kit.ranks import Rank, run_ranks, watch_ranks
from wiiiiided import log
from wiiiiided.torch import Batches, Between, parallel
from wiiiiided.train import balance, rounds
from wiiiiided.train.round_length import RoundTimes
from wiiiiided.train.rounds import DataRounds, HostReport, SchedulerPace

LENGTH, EPOCHS = 230, 3


def _uneven(me: Rank) -> None:
    """Rank 1's machine is three times slower; shares may change at every exchange."""
    balance.Balance.__init__.__defaults__ = (0.0, 0.0)
    RoundTimes.step_s = property(lambda self: 0.3 if me.rank else 0.1)  # type: ignore[assignment,method-assign]


def _made(me: Rank, schedule: bool, every: int = 4) -> tuple[Batches, nn.Module, Any, Any, Any]:
    _uneven(me)
    torch.manual_seed(3)
    x = torch.randn(LENGTH, 6)
    data = Batches(TensorDataset(x, x[:, :3].sin(), torch.arange(LENGTH)), 6, 1)
    model = nn.Sequential(nn.Linear(6, 20), nn.Tanh(), nn.Linear(20, 3))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.5)
    scheduler = torch.optim.lr_scheduler.ExponentialLR(optimizer, 0.999)
    known = scheduler if schedule else None
    between = Between(every=every)
    run = parallel(model, optimizer, data=data, scheduler=known, between=between)
    return data, model, optimizer, scheduler, run


def _trains(me: Rank, workers: int) -> tuple[Any, ...]:
    data, model, optimizer, scheduler, run = _made(me, True)
    seen, steps = [], 0
    for _ in range(1 if workers else EPOCHS):  # workers are started for each
        for x, y, ids in data if not workers else data.loader(num_workers=workers):
            seen += ids.tolist()[: data.samples_of_step()]
            nn.functional.mse_loss(model(x), y).backward()
            optimizer.step()
            optimizer.zero_grad()
            scheduler.step()
            steps += 1
        weights = torch.cat([p.detach().flatten() for p in model.parameters()]).tolist()
    rate = optimizer.param_groups[0]["lr"]
    state = run.state_dict()
    return seen, steps, weights, rate, run.shares, state["step"], state["data"]["epoch"]


@pytest.mark.parametrize("workers", [0, 1])
def test_a_slow_host_makes_fewer_steps_and_every_sample_is_trained_once(workers: int) -> None:
    found = run_ranks(_trains, "ab", workers)
    fast, slow = found
    epochs = 1 if workers else EPOCHS
    assert sorted(fast[0] + slow[0]) == sorted([*range(LENGTH)] * epochs)
    assert fast[1] > slow[1]
    assert fast[2] == slow[2]  # the same bits: the loops ended in the same round
    assert abs(fast[3] / slow[3] - 1) < 0.01  # both followed global steps
    assert fast[4] == slow[4]
    assert fast[4][0] > fast[4][1]
    assert fast[5:] == slow[5:]
    assert fast[6] == epochs


def _unknown_schedule(me: Rank) -> int:
    data, model, optimizer, scheduler, _ = _made(me, False)
    steps = 0
    for x, y, _ in data:
        nn.functional.mse_loss(model(x), y).backward()
        optimizer.step()
        optimizer.zero_grad()
        scheduler.step()
        steps += 1
    return steps


def test_hosts_stay_in_step_where_a_schedule_is_not_the_runs() -> None:
    fast, slow = run_ranks(_unknown_schedule, "ab")
    assert fast == slow


def _accumulates(me: Rank, every: int) -> tuple[list[int], int]:
    data, model, optimizer, scheduler, _ = _made(me, True, every)
    seen: list[int] = []
    steps = 0
    for taken, (x, y, ids) in enumerate(data, 1):
        seen += ids.tolist()[: data.samples_of_step()][: len(ids)]
        nn.functional.mse_loss(model(x), y).backward()
        if taken % 3 == 0 or data.is_round_over:
            optimizer.step()
            optimizer.zero_grad()
            scheduler.step()
            steps += 1
    return seen, steps


def test_steps_of_several_batches_keep_to_their_rounds() -> None:
    found = run_ranks(_accumulates, "ab", 2)
    assert sorted(found[0][0] + found[1][0]) == [*range(LENGTH)]


def _saves(me: Rank, folder: str) -> tuple[list[int], list[int]]:
    _uneven(me)
    x = torch.arange(60.0)[:, None]

    def made() -> tuple[Batches, nn.Module, Any, Any]:
        data = Batches(TensorDataset(x), 6, 1)
        model = nn.Linear(1, 1)
        optimizer = torch.optim.SGD(model.parameters(), lr=1e-4)
        between = Between(every=2)
        run = parallel(
            model, optimizer, data=data, between=between, save=f"{folder}{me.rank}", save_every="1h"
        )
        return data, model, optimizer, run

    def train(data: Batches, model: nn.Module, optimizer: Any, run: Any, at: int) -> list[int]:
        seen: list[int] = []
        for step, (batch,) in enumerate(data):
            seen += [int(v) for v in batch.flatten()[: data.samples_of_step()]]
            model(batch).mean().backward()
            optimizer.step()
            optimizer.zero_grad()
            if step == at:
                run.save()
        return seen

    data, model, optimizer, run = made()
    first = train(data, model, optimizer, run, at=1)
    wait_until(lambda: run._saver.poll() is None, 30, "the checkpoint is written")
    data, model, optimizer, run = made()
    run.resume()
    return first, train(data, model, optimizer, run, at=-1)


def test_a_checkpoint_between_exchanges_goes_on_with_what_was_left(tmp_path: Any) -> None:
    found = run_ranks(_saves, "ab", f"{tmp_path}/")
    first = [n for seen, _ in found for n in seen]
    again = [n for _, seen in found for n in seen]
    assert sorted(first) == [*range(60)]
    assert set(again) < set(first)
    assert len(set(again)) == len(again)


def _asks(me: Rank, folder: str, is_left: bool) -> tuple[int, list[str], list[str]]:
    """The last step, files when the loop has ended, and what was said when the run had."""
    _uneven(me)
    said: list[str] = []
    log.warn = lambda who, text: said.append(text)
    data = Batches(TensorDataset(torch.arange(60.0)[:, None]), 6, 1)
    model = nn.Linear(1, 1)
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-4)
    run = parallel(
        model, optimizer, data=data, between=Between(every=2), save=folder, save_every="1h"
    )
    for step, (batch,) in enumerate(data):
        model(batch).mean().backward()
        optimizer.step()
        optimizer.zero_grad()
        if not is_left:
            run.save()
        elif step == 1:  # hosts have met, and make different numbers of steps from now on
            run.save()
            break
    found, last = os.listdir(folder) if os.path.isdir(folder) else [], run.state_dict()["step"]
    dist.barrier()
    saver = weakref.ref(run._saver)
    del run, model, optimizer, data
    gc.collect()
    assert saver() is None
    return last, found, said


def test_what_was_asked_for_in_a_loop_is_saved_when_it_ends_at_the_latest(tmp_path: Any) -> None:
    for last, found, said in run_ranks(_asks, "ab", str(tmp_path / "s"), False):
        for host in (0, 1):
            assert any(name.startswith(f"step-{last:010}.host-{host}.") for name in found), found
        assert not said


def test_what_was_asked_for_and_never_saved_is_said(tmp_path: Any) -> None:
    (_, *first), (_, *second) = run_ranks(_asks, "ab", str(tmp_path / "s"), True)
    assert (first[0], second) == ([], [[], []])
    assert "run.save() after step 2 has saved nothing" in first[1][0]


def _differs(me: Rank) -> None:
    data, model, optimizer, scheduler, _ = _made(me, False)
    for step, (x, y, _) in enumerate(data):
        nn.functional.mse_loss(model(x), y).backward()
        optimizer.step()
        optimizer.zero_grad()
        if step > 20:
            scheduler.step()


def test_a_schedule_that_begins_later_is_told_of() -> None:
    for outcome in watch_ranks(_differs, "ab"):
        assert "hosts make different numbers of steps: give the scheduler" in outcome.error


def test_a_round_of_hosts_at_three_speeds_takes_the_same_time() -> None:
    balance.Balance.__init__.__defaults__ = (60.0, 15.0)
    data = Batches(TensorDataset(torch.zeros(10_000)), 32, 1)
    data.attach()
    found = DataRounds(data, None, [[0, 1], [2], [3]], 0, 16)
    told = [
        HostReport(16, 16, 16.0 * 16, 0.1, 20.0),
        HostReport(16, 16, 16.0 * 8, 0.2, 20.0),
        HostReport(16, 16, 16.0 * 8, 0.05, 20.0),
    ]
    assert found.round_s(told) == pytest.approx(0.2)
    said = found.end(16, told, True)
    assert "host 2 takes 44.4 % instead of 25 %" in said
    counts = found._sizes.counts
    assert [round(c * t, 1) for c, t in zip(counts, (0.1, 0.2, 0.05), strict=True)] == [
        1.4,
        1.4,
        1.4,
    ]
    assert found.round_s(told) == pytest.approx(1.4 / 16, rel=0.1)


def test_a_scheduler_follows_global_steps() -> None:
    data = Batches(TensorDataset(torch.zeros(8)), 1)
    optimizer = torch.optim.SGD([torch.zeros(1, requires_grad=True)], lr=1.0)
    scheduler = torch.optim.lr_scheduler.StepLR(optimizer, 1, gamma=0.5)
    optimizer.step()
    pace = SchedulerPace(scheduler, data)
    before = scheduler.state_dict()
    data.is_in_loop = True
    pace.begin_round(4, 8)  # the round before ends with the first call
    for _ in range(8):
        scheduler.step()
    assert (pace.made, optimizer.param_groups[0]["lr"]) == (4, 0.5**4)
    pace.begin_round(4, 2)
    scheduler.step()
    scheduler.step()
    assert pace.made == 8
    pace.begin_round(4, 1)
    scheduler.step()
    pace.catch_up(12)
    assert pace.made == 12
    data.is_in_loop = False
    scheduler.step()  # once an epoch: as ever
    assert scheduler.last_epoch == 13
    assert scheduler.state_dict().keys() == before.keys()
    assert rounds.StepRounds(2).global_steps(1) is None
