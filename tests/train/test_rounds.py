"""Hosts of different speeds that exchange seldom: equal time, unequal steps, every sample once."""

from __future__ import annotations

import gc
import os
import struct
import weakref
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed as dist
from torch import nn
from torch.utils.data import TensorDataset

from tests.kit.conditions import wait_until
from tests.kit.ranks import Rank, run_ranks, watch_ranks
from wiiiiided import log
from wiiiiided.backend.engine.process import stats_page
from wiiiiided.backend.shm.stats import TRAINING_AT, TRAINING_METRICS
from wiiiiided.torch import Batches, Between, parallel
from wiiiiided.train import balance, outer_step, rounds
from wiiiiided.train.round_length import RoundTimes
from wiiiiided.train.rounds import DataRounds, HostReport, SchedulerPace, StepRounds

LENGTH, EPOCHS = 230, 3


def _uneven(me: Rank) -> None:
    """Rank 1's machine is three times slower; shares may change at every exchange."""
    balance.Balance.__init__.__defaults__ = (0.0, 0.0)
    taken = property(lambda self: 0.3 if me.rank else 0.1)
    RoundTimes.step_s = RoundTimes.usual_step_s = taken  # type: ignore[assignment,method-assign]


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
        HostReport(16, 16, 0, 16.0 * 16, 0.1, 0.1, 20.0),
        HostReport(16, 16, 0, 16.0 * 8, 0.2, 0.2, 20.0),
        HostReport(16, 16, 0, 16.0 * 8, 0.05, 0.05, 20.0),
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


def _one_cycle(me: Rank, every: int, fragments: int) -> tuple[int, int, int]:
    _uneven(me)
    x = torch.randn(1200, 6, generator=torch.Generator().manual_seed(3))
    data = Batches(TensorDataset(x), 6, 1)
    model = nn.Linear(6, 1)
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-3)
    cycle = torch.optim.lr_scheduler.OneCycleLR(optimizer, 0.01, total_steps=400)
    between = Between(every=every, fragments=fragments)
    run = parallel(model, optimizer, data=data, scheduler=cycle, between=between)
    own = 0
    for _ in range(2):
        for (batch,) in data:
            model(batch).square().mean().backward()
            optimizer.step()
            optimizer.zero_grad()
            cycle.step()
            own += 1
    return cycle.last_epoch, run.state_dict()["step"], own


@pytest.mark.parametrize(("every", "fragments"), [(4, 4), (16, 4), (16, 1)])
def test_a_schedule_of_all_steps_is_kept_exactly_with_fragments(every: int, fragments: int) -> None:
    fast, slow = run_ranks(_one_cycle, "ab", every, fragments)
    assert fast[:2] == slow[:2] == (400, 400)
    assert fast[2] > 2 * slow[2]


def _scaled(me: Rank, every: int) -> tuple[int, list[int], list[float]]:
    """One host skips its second step of five; with an exchange in every step all do."""
    x = torch.arange(60.0)[:, None] / 60
    data = Batches(TensorDataset(x, torch.arange(60)), 12, 1)
    model = nn.Linear(1, 1)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    run = parallel(model, optimizer, data=data, between=Between(every=every))
    scaler = torch.amp.GradScaler("cpu", init_scale=1024.0)
    seen: list[int] = []
    for step, (batch, ids) in enumerate(data):
        seen += ids.tolist()
        loss = model(batch).square().mean()
        is_lost = step == 1 and (me.rank == 1 or every == 1)
        scaler.scale(loss * torch.inf if is_lost else loss).backward()
        scaler.unscale_(optimizer)
        if is_lost:
            assert (data.samples_of_step(), run._steps.samples) == (0, None)  # type: ignore[union-attr]
        run.clip_grad_norm_(1.0)
        assert run._steps.samples == (None if is_lost else 6)  # type: ignore[union-attr]
        scaler.step(optimizer)
        scaler.update()
        optimizer.zero_grad()
        assert (data.samples_of_step(), run._steps.samples) == (0, None)  # type: ignore[union-attr]
    assert scaler.get_scale() == (512.0 if me.rank == 1 or every == 1 else 1024.0)
    if every > 1:
        run.agree()
    weights = [p.item() for p in model.parameters()]
    return run.state_dict()["step"], seen, weights


@pytest.mark.parametrize("every", [1, 2])
def test_a_step_that_a_scaler_leaves_out_takes_its_samples_with_it(every: int) -> None:
    found = run_ranks(_scaled, "ab", every)
    assert [steps for steps, _, _ in found] == [5 if every > 1 else 4] * 2
    assert sorted(found[0][1] + found[1][1]) == [*range(60)]
    assert found[0][2] == found[1][2]


def _saves_scaled(me: Rank, folder: str) -> list[str]:
    """The step in which a save is due, and hosts exchange, is one that a host skips."""
    model = nn.Linear(1, 1)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    where = Path(folder) / str(me.rank)
    run = parallel(model, optimizer, between=Between(every=2), save=where, save_every=2)
    scaler = torch.amp.GradScaler("cpu", init_scale=1024.0)
    for step in range(3):
        run.samples(3)
        loss = model(torch.ones(3, 1)).square().mean()
        scaler.scale(loss * torch.inf if step == me.rank == 1 else loss).backward()
        scaler.step(optimizer)
        scaler.update()
        optimizer.zero_grad()
        assert run._steps.samples is None  # type: ignore[union-attr]
    wait_until(lambda: run._saver.poll() is None, 30, "the checkpoint is written")  # type: ignore[union-attr]
    return [path.name[:15] for path in where.glob("step-*.wide")]


def test_a_save_that_is_due_in_a_step_that_one_host_leaves_out_is_made(tmp_path: Path) -> None:
    assert run_ranks(_saves_scaled, "ab", str(tmp_path)) == [["step-0000000002"]] * 2


def _odd(me: Rank, every: int, uneven: bool, fragments: int) -> tuple[list[int], list[float]]:
    """Steps of two batches, epochs of 15: the last one is not stepped in its epoch."""
    if uneven:
        _uneven(me)
    torch.manual_seed(3)
    x = torch.randn(90, 6)
    data = Batches(TensorDataset(x, torch.arange(90)), 6, 1)
    model = nn.Linear(6, 1)
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-3)
    run = parallel(model, optimizer, data=data, between=Between(every=every, fragments=fragments))
    seen: list[int] = []
    for epoch in range(3):
        for taken, (batch, ids) in enumerate(data, 1):
            before = data.samples_of_step() - len(ids)
            if epoch and taken == 1 and not uneven:
                assert before == 3  # what was not stepped counts with this step
            seen += ids.tolist()[: data.samples_of_step() - max(0, before)]
            model(batch).square().mean().backward()
            if taken % 2 == 0:
                optimizer.step()
                optimizer.zero_grad()
        assert run.state_dict()["outer"]["steps"] == 0  # the round has ended with its epoch
    left = run.state_dict()["data"].get("left", [])
    run.agree()
    assert run.state_dict()["data"].get("left", []) == left  # comes again after a restart
    return seen, [n for p in model.parameters() for n in p.flatten().tolist()]


@pytest.mark.parametrize(("every", "fragments"), [(4, 1), (4, 2), (32, 1)])
@pytest.mark.parametrize("uneven", [False, True])
def test_batches_that_are_not_stepped_in_their_epoch_count_with_the_next_step(
    every: int, uneven: bool, fragments: int
) -> None:
    fast, slow = run_ranks(_odd, "ab", every, uneven, fragments)
    assert sorted(fast[0] + slow[0]) == sorted([*range(90)] * 3)
    assert fast[1] == slow[1]


def _steps_afterwards(me: Rank) -> None:
    """Only one host steps with what it has after the loop: all agree on it when one asks."""
    data = Batches(TensorDataset(torch.ones(10, 1)), 2, 1)
    model = nn.Linear(1, 1)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    run = parallel(model, optimizer, data=data, between=Between(every=2))
    for taken, (batch,) in enumerate(data, 1):
        model(batch).square().mean().backward()
        if taken % 2 == 0:
            optimizer.step()
            optimizer.zero_grad()
    assert sum(end - begin for begin, end in data.state_dict()["left"]) == 2
    if me.rank:
        optimizer.step()
    run.agree()
    gathered = [torch.zeros(1) for _ in range(2)]
    dist.all_gather(gathered, model.bias.detach())
    assert torch.equal(*gathered)


def test_a_step_after_the_loop_belongs_to_the_next_round() -> None:
    run_ranks(_steps_afterwards, "ab")


def _leaves_by_count(me: Rank, then: str) -> None:
    data, model, optimizer, _, run = _made(me, True)
    steps = 0
    for _ in range(EPOCHS):
        for x, y, _ in data:
            nn.functional.mse_loss(model(x), y).backward()
            optimizer.step()
            optimizer.zero_grad()
            steps += 1
            if me.rank == 0 and steps == 40:
                break
        if me.rank == 0 and steps == 40:
            break
    if then == "barrier":
        dist.barrier()
    else:
        run.agree()


@pytest.mark.parametrize(
    ("then", "said"),
    [
        ("barrier", "the exchange at a round's end (hosts must leave a loop at the same exchange:"),
        ("agree", "rank 0 called run.agree() or run.save() after"),
    ],
)
def test_a_host_that_leaves_its_loop_by_its_own_count_is_told_of_on_all(
    then: str, said: str
) -> None:
    for outcome in watch_ranks(_leaves_by_count, "ab", then):
        assert outcome.error.startswith("Mismatch")
        assert said in outcome.error


def _leaves_together(me: Rank) -> tuple[int, float, list[float]]:
    data, model, optimizer, _, run = _made(me, True)
    steps, is_enough = 0, False
    while not is_enough:
        for x, y, _ in data:
            nn.functional.mse_loss(model(x), y).backward()
            exchanges = data.is_round_over
            optimizer.step()
            optimizer.zero_grad()
            steps += 1
            if is_enough := exchanges and data.epochs_done >= 1.3:
                break
    dist.barrier()
    run.agree()
    weights = [n for p in model.parameters() for n in p.flatten().tolist()]
    return steps, data.epochs_done, weights


def test_hosts_leave_a_loop_together_at_an_exchange() -> None:
    fast, slow = run_ranks(_leaves_together, "ab")
    assert fast[0] > slow[0]
    assert fast[1:] == slow[1:]


def _loads_length(me: Rank, with_data: bool) -> int:
    """A state of rounds of 16 steps, saved after five of one, in a run that begins with 1."""

    def made(length: int) -> tuple[Any, nn.Module, Any, Any]:
        outer_step.first_length = lambda *_: length  # type: ignore[assignment]
        x = torch.ones(200, 1)
        data = Batches(TensorDataset(x), 2, 1) if with_data else None
        model = nn.Linear(1, 1)
        optimizer = torch.optim.SGD(model.parameters(), lr=1e-3)
        run = parallel(model, optimizer, data=data, between=Between(every="auto"))
        return data or [(x[:1],)] * 100, model, optimizer, run

    def train(data: Any, model: nn.Module, optimizer: Any, run: Any, most: int) -> int:
        for step, (batch,) in enumerate(data, 1):
            model(batch).mean().backward()
            optimizer.step()
            optimizer.zero_grad()
            if step == most or not run.state_dict()["outer"]["steps"]:
                return step
        raise AssertionError("no exchange")

    before = made(16)
    assert train(*before, most=5) == 5
    again = made(1)
    again[1].load_state_dict(before[1].state_dict())
    again[3].load_state_dict(before[3].state_dict())
    return train(*again, most=0)


@pytest.mark.parametrize(("with_data", "steps"), [(False, 11), (True, 16)])
def test_a_round_that_was_loaded_has_the_length_that_auto_had_found(
    with_data: bool, steps: int
) -> None:
    assert run_ranks(_loads_length, "ab", with_data) == [steps] * 2


def _finds_another(me: Rank) -> int:
    outer_step.first_length = lambda *_: 2 + 2 * me.rank  # type: ignore[assignment]
    model = nn.Linear(1, 1)
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-3)
    run = parallel(model, optimizer, between=Between(every="auto"))
    length: int = run.state_dict()["outer"]["every"]
    for _ in range(4):
        model(torch.ones(1, 1)).mean().backward()
        optimizer.step()
        optimizer.zero_grad()
    return length


def test_rank_0_says_with_what_auto_begins() -> None:
    assert run_ranks(_finds_another, "ab") == [2, 2]


def _told(me: Rank, with_data: bool) -> dict[str, float]:
    _uneven(me)
    x = torch.ones(120, 1)
    data = Batches(TensorDataset(x), 4, 1)
    model = nn.Linear(1, 1)
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-3)
    parallel(model, optimizer, data=data if with_data else None, between=Between(every=4))
    for (batch,) in data if with_data else [(x[:2],)] * 8:
        model(batch).mean().backward()
        optimizer.step()
        optimizer.zero_grad()
    page = stats_page()
    raw = page.words[TRAINING_AT : TRAINING_AT + len(TRAINING_METRICS)].tobytes()
    return dict(zip(TRAINING_METRICS, struct.unpack(f"{len(TRAINING_METRICS)}d", raw), strict=True))


def test_what_balancing_gains_is_told_where_hosts_exchange_seldom() -> None:
    for with_data in (False, True):
        for told in run_ranks(_told, "ab", with_data):
            assert told["own_steps"] == 1
            assert told["speed_spread"] == pytest.approx(3 if with_data else 0)
            assert (told["balance_gain"] > 1.3) is with_data


def test_a_host_that_waits_for_another_is_named_once() -> None:
    def told(slow_s: float, measured_s: float = 60.0, steps: int = 16) -> list[HostReport]:
        return [
            HostReport(steps, 0, 0, 16.0, 0.1, taken_s, measured_s)
            for taken_s in (0.12, 0.1, slow_s)
        ]

    found = StepRounds(16)
    for quiet in (told(0.3, 59.0), told(0.124), told(0.0), told(0.3, steps=0)):
        assert not found.end(16, quiet, True)
    said = found.end(16, told(0.3), True)
    assert said.startswith(
        "host 1 waits for host 2 at the end of each round, for 3.2 s of 16 steps"
    )
    assert "its steps take 100 ms and those of host 2 300 ms" in said
    assert "data=wide.Batches(…)" in said
    assert not found.end(16, told(0.3), True)


def _waits(me: Rank, with_data: bool) -> list[str]:
    _uneven(me)
    rounds.LEAST_S = 0.0  # type: ignore[misc]
    said: list[str] = []
    log.tell = lambda _, text: said.append(text)
    data = Batches(TensorDataset(torch.ones(120, 1)), 4, 1)
    model = nn.Linear(1, 1)
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-3)
    parallel(model, optimizer, data=data if with_data else None, between=Between(every=4))
    for (batch,) in data if with_data else [(torch.ones(2, 1),)] * 12:
        model(batch).mean().backward()
        optimizer.step()
        optimizer.zero_grad()
    return [text for text in said if " waits for " in text]


@pytest.mark.parametrize("with_data", [False, True])
def test_waiting_is_said_by_rank_0_where_the_run_has_no_data(with_data: bool) -> None:
    first, second = run_ranks(_waits, "ab", with_data)
    assert not second
    assert len(first) == (not with_data)
    assert all(text.startswith("host 0 waits for host 1") for text in first)
