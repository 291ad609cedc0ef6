"""Hosts that exchange every H steps: the mathematics against a reference of a few lines."""

from __future__ import annotations

import copy
import itertools
import time
from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.distributed as dist
from torch import nn

from tests.kit.ranks import Rank, run_ranks, watch_ranks
from tests.kit.seldom import adam as _adam
from tests.kit.seldom import average as _average
from tests.kit.seldom import batch as _batch
from tests.kit.seldom import make_step as _step
from tests.kit.seldom import nesterov as _nesterov
from tests.kit.seldom import net as _net
from tests.kit.seldom import samples_of as _samples
from tests.kit.seldom import sgd as _sgd
from wiiiiided import log
from wiiiiided.backend.shm.board import CallSignature
from wiiiiided.errors import Mismatch, PeerLost, UsageError
from wiiiiided.torch import Between, Parallel, parallel
from wiiiiided.train import outer_step
from wiiiiided.train.memory import host_barrier
from wiiiiided.train.round_length import MOST, RoundTimes, next_length, outer_constants
from wiiiiided.train.script_notes import notes

STEPS = 13  # no multiple of the rounds': a run may end in the middle of one
Outer = Callable[[list[torch.Tensor]], torch.optim.Optimizer]


def _reference(hosts: str, every: int, outer: Outer | None, uneven: bool) -> list[nn.Module]:
    """What each host has after STEPS: written without anything of the package."""
    names = sorted(set(hosts))
    ranks = {name: [r for r, host in enumerate(hosts) if host == name] for name in names}
    anchor = [p.detach().clone() for p in _net().parameters()]
    slow = None if outer is None else outer(anchor)
    nets = {name: _net() for name in names}
    fast = {name: _sgd(nets[name].parameters()) for name in names}
    seen = dict.fromkeys(names, 0)
    for step in range(STEPS):
        for name in names:
            batches = [_batch(step, r, _samples(r, uneven)) for r in ranks[name]]
            x, y = (torch.cat(parts) for parts in zip(*batches, strict=True))
            nn.functional.mse_loss(nets[name](x), y).backward()
            fast[name].step()
            fast[name].zero_grad()
            seen[name] += len(x)
        if (step + 1) % every == 0:
            total = sum(seen.values())
            for i, held in enumerate(anchor):
                deltas = [
                    seen[n] / total * (held - list(nets[n].parameters())[i].detach()) for n in names
                ]
                held.grad = torch.stack(deltas).sum(0)
            if slow is None:
                for held in anchor:
                    held -= held.grad  # type: ignore[operator]
            else:
                slow.step()
            for name, (i, held) in itertools.product(names, enumerate(anchor)):
                list(nets[name].parameters())[i].data.copy_(held)
            seen = dict.fromkeys(names, 0)
    return [nets[name] for name in names]


def _train(
    run: Parallel, model: nn.Module, optimizer: torch.optim.Optimizer, me: Rank, uneven: bool
) -> None:
    for step in range(STEPS):
        _step(run, model, optimizer, step, me, uneven)


def _seldom(me: Rank, hosts: str, every: int, outer: Outer | None, uneven: bool) -> None:
    model = _net()
    if me.rank:  # rank 0's values count
        with torch.no_grad():
            for p in model.parameters():
                p.zero_()
    optimizer = _sgd(model.parameters())
    between = Between(every=every, outer=outer or _average)
    _train(parallel(model, optimizer, between=between), model, optimizer, me, uneven)
    wanted = _reference(hosts, every, outer, uneven)[sorted(set(hosts)).index(hosts[me.rank])]
    for mine, theirs in zip(model.parameters(), wanted.parameters(), strict=True):
        torch.testing.assert_close(mine, theirs, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("outer", [None, _nesterov, _adam], ids=["average", "nesterov", "adam"])
@pytest.mark.parametrize("hosts", ["ab", "aabb", "abc", "aab"])
def test_it_is_what_a_reference_computes(hosts: str, outer: Outer | None) -> None:
    run_ranks(_seldom, hosts, hosts, 4, outer, False)


def test_hosts_count_by_the_samples_they_have_seen() -> None:
    run_ranks(_seldom, "aab", "aab", 4, None, True)


def _every_step(me: Rank) -> None:
    """H = 1 with plain averaging, next to an exchange of gradients in every step."""
    seldom, often = _net(), _net()
    for model, between in ((seldom, Between(outer=_average)), (often, Between())):
        optimizer = _sgd(model.parameters())
        _train(parallel(model, optimizer, between=between), model, optimizer, me, False)
    for mine, theirs in zip(seldom.parameters(), often.parameters(), strict=True):
        torch.testing.assert_close(mine, theirs, rtol=1e-5, atol=1e-7)


def test_every_step_with_plain_averaging_equals_an_exchange_of_gradients() -> None:
    run_ranks(_every_step, "aab")


def _same_bits(me: Rank, gradients: str) -> None:
    model = nn.Sequential(_net(), nn.BatchNorm1d(3))
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.01)
    between = Between(gradients=gradients, every=4)
    run = parallel(model, optimizer, between=between)
    for step in range(8):
        _step(run, model, optimizer, step, me)
        if step % 4 != 3:
            continue
        tensors = [*model.parameters(), *(b for b in model.buffers() if b.is_floating_point())]
        flat = torch.cat([t.detach().flatten() for t in tensors])
        rows = [torch.empty_like(flat) for _ in range(me.size)]
        dist.all_gather(rows, flat)
        assert all(torch.equal(row, rows[0]) for row in rows)
    assert not torch.equal(model[1].running_mean, torch.zeros(3))


@pytest.mark.parametrize("gradients", ["exact", "int8", "int4", "topk:0.1"])
@pytest.mark.parametrize("hosts", ["aab", "abc"])
def test_all_hosts_have_the_same_bits_after_an_exchange(hosts: str, gradients: str) -> None:
    run_ranks(_same_bits, hosts, gradients)


class _Masked(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.net = _net()
        self.register_buffer("mask", torch.full((3, 3), -torch.inf).triu(1))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.net(x)  # type: ignore[no-any-return]


def _keeps_infinities(me: Rank) -> None:
    model = _Masked()
    before = model.mask.clone()
    optimizer = _sgd(model.parameters())
    run = parallel(model, optimizer, between=Between(every=2))
    for step in range(2):
        _step(run, model, optimizer, step, me)
    assert torch.equal(model.mask, before)


def test_a_buffer_with_infinities_stays_what_it_is() -> None:
    run_ranks(_keeps_infinities, "aab")


def _decaying(parameters: Any) -> torch.optim.Optimizer:
    return torch.optim.AdamW(parameters, lr=0.1, weight_decay=0.1)


def _freezes(me: Rank) -> None:
    model = _net()
    for parameter in model[0].parameters():
        parameter.requires_grad_(False)
    before = copy.deepcopy(model.state_dict())
    optimizer = _sgd(model.parameters())
    run = parallel(model, optimizer, between=Between(every=2, outer=_decaying))
    for step in range(4):
        _step(run, model, optimizer, step, me)
    after = model.state_dict()
    same = [name for name in before if torch.equal(before[name], after[name])]
    assert same == ["0.weight", "0.bias"]
    assert torch.equal(
        torch.cat([p.detach().flatten() for p in (*model[2].parameters(), *model[0].parameters())]),
        run.state_dict()["outer"]["anchor"],
    )


def test_the_outer_optimizer_leaves_frozen_weights_alone() -> None:
    run_ranks(_freezes, "aab")


def _goes_on(me: Rank, outer: Outer) -> None:
    """Saved in the middle of a round, loaded into new objects, and trained on."""
    between = Between(gradients="int8", every=4, outer=outer)
    model = _net()
    optimizer = _sgd(model.parameters())
    run = parallel(model, optimizer, between=between)
    saved: tuple[Any, Any, Any] | None = None
    for step in range(STEPS):
        if step == 6:
            states = model.state_dict(), optimizer.state_dict(), run.state_dict()
            saved = copy.deepcopy(states)
            dist.barrier()
        _step(run, model, optimizer, step, me)
    assert saved is not None
    again = _net()
    optimizer = _sgd(again.parameters())
    run = parallel(again, optimizer, between=between)
    again.load_state_dict(saved[0])
    optimizer.load_state_dict(saved[1])
    run.load_state_dict(saved[2])
    for step in range(6, STEPS):
        _step(run, again, optimizer, step, me)
    for mine, theirs in zip(again.parameters(), model.parameters(), strict=True):
        assert torch.equal(mine, theirs)


@pytest.mark.parametrize("outer", [_nesterov, _adam])
def test_a_run_goes_on_from_the_middle_of_a_round(outer: Outer) -> None:
    run_ranks(_goes_on, "aab", outer)


def _saves(me: Rank) -> Any:
    model = _net()
    optimizer = _sgd(model.parameters())
    run = parallel(model, optimizer, between=Between(every=4, outer=_nesterov))
    for step in range(6):
        _step(run, model, optimizer, step, me)
    saved = run.state_dict()
    anchor: list[float] = saved["outer"]["anchor"].tolist()
    momentum = saved["outer"]["optimizer"]["state"][0]["momentum_buffer"].tolist()
    return anchor, momentum


def _loads(me: Rank, anchor: list[float], momentum: list[float]) -> None:
    model = _net()
    optimizer = _sgd(model.parameters())
    run = parallel(model, optimizer, between=Between(every=4, outer=_nesterov))
    saved = run.state_dict()
    outer = saved["outer"]
    outer["anchor"] = torch.tensor(anchor)
    outer["optimizer"]["state"] = {0: {"momentum_buffer": torch.tensor(momentum)}}
    outer["steps"] = 2
    run.load_state_dict({**saved, "host": 0, "hosts": 2, "outer": outer})
    flat = torch.cat([p.detach().flatten() for p in model.parameters()])
    assert torch.equal(flat, torch.tensor(anchor))  # the round begins anew, from there
    found = run.state_dict()["outer"]
    assert found["steps"] == 0
    assert found["optimizer"]["state"][0]["momentum_buffer"].tolist() == momentum
    for step in range(5):
        _step(run, model, optimizer, step, me)


def test_another_number_of_hosts_begins_a_round_from_the_anchor() -> None:
    ranks = run_ranks(_saves, "aab")
    assert ranks[0] == ranks[1] == ranks[2]
    run_ranks(_loads, "abc", *ranks[0])


def _loads_alone(me: Rank, loaders: set[int], values: list[float]) -> None:
    """A model is loaded in the middle of a round, by some ranks."""
    model = _net()
    optimizer = _sgd(model.parameters())
    run = parallel(model, optimizer, between=Between(every=4, outer=_average))
    for step in range(6):
        _step(run, model, optimizer, step, me)
    dist.barrier()
    if me.rank in loaders:
        model.load_state_dict(
            {k: torch.full_like(v, values[me.rank]) for k, v in model.state_dict().items()}
        )
    for step in range(6, 10):
        _step(run, model, optimizer, step, me)
    assert run.state_dict()["outer"]["steps"] == 0
    flat = torch.cat([p.detach().flatten() for p in model.parameters()])
    rows = [torch.empty_like(flat) for _ in range(me.size)]
    dist.all_gather(rows, flat)
    assert all(torch.equal(row, rows[0]) for row in rows)


def test_one_rank_of_each_host_loads_a_model() -> None:
    run_ranks(_loads_alone, "aab", {0, 2}, [0.1] * 3)


@pytest.mark.parametrize(
    ("loaders", "values"), [({0, 1}, [0.1, 0.1, 0.1]), ({0, 1, 2}, [0.1, 0.1, 0.2])]
)
def test_hosts_that_load_different_weights_are_told(loaders: set[int], values: list[float]) -> None:
    for outcome in watch_ranks(_loads_alone, "aab", loaders, values):
        assert "UsageError: rank 2's host and rank 0's have loaded different" in outcome.error


def _loads_one_file(me: Rank) -> None:
    """All hosts load what one has saved in the middle of a round: all begin it anew."""
    model = _net()
    optimizer = _sgd(model.parameters())
    run = parallel(model, optimizer, between=Between(every=4))
    for step in range(6):
        _step(run, model, optimizer, step, me)
    model.load_state_dict(copy.deepcopy(model.state_dict()))
    run.load_state_dict({**run.state_dict(), "host": 0})
    assert run.state_dict()["outer"]["steps"] == 0
    flat = torch.cat([p.detach().flatten() for p in model.parameters()])
    assert torch.equal(flat, run.state_dict()["outer"]["anchor"])
    dist.barrier()
    for step in range(4):
        _step(run, model, optimizer, step, me)
    assert run.state_dict()["outer"]["steps"] == 0


def test_hosts_that_load_the_state_of_one_stay_in_step() -> None:
    run_ranks(_loads_one_file, "aab")


def _leaves(me: Rank) -> None:
    """Rank 0 leaves the meeting before weights are written, when all have come to it."""
    model = _net()
    optimizer = _sgd(model.parameters())
    run = parallel(model, optimizer, between=Between(every=2))
    memory, before = run._shared.memory, []

    def interrupted(group: Any, call: CallSignature) -> None:
        host_barrier(group, call)
        if call is outer_step._EXCHANGED and me.rank == 0:
            raise KeyboardInterrupt
        if call is outer_step._EXCHANGED and me.rank == 1:
            before.extend(p.detach().clone() for p in model.parameters())
            deadline = time.monotonic() + 20
            while memory.left[0] != 3:
                assert time.monotonic() < deadline, "rank 0 did not say that it leaves"

    outer_step.host_barrier = interrupted  # type: ignore[attr-defined]
    try:
        for step in range(2):
            _step(run, model, optimizer, step, me)
        assert me.rank == 2, "the exchange went through"
    except (KeyboardInterrupt, PeerLost):
        pass
    assert all(map(torch.equal, before, model.parameters()))


def test_no_weight_is_written_after_a_rank_has_left_the_exchange() -> None:
    run_ranks(_leaves, "aab")


def _auto(me: Rank) -> None:
    model = _net()
    optimizer = _sgd(model.parameters())
    run = parallel(model, optimizer, between=Between(every="auto"))
    for step in range(40):
        _step(run, model, optimizer, step, me)
    lengths = [torch.zeros(1) for _ in range(me.size)]
    dist.all_gather(lengths, torch.tensor([float(run.state_dict()["outer"]["every"])]))
    assert len({int(length) for length in lengths}) == 1
    assert int(lengths[0]) > 1  # a step of this model takes less than its exchange


def test_auto_chooses_the_same_on_all_ranks() -> None:
    run_ranks(_auto, "aab")


def test_the_length_of_a_round_follows_what_is_measured() -> None:
    length, said = next_length(1, 0.1, 1.0)
    assert length == 2  # 90 are needed, but by a factor of two at most
    assert "every 2 steps instead of every 1" in said
    assert "100 ms" in said
    for _ in range(10):
        length, said = next_length(length, 0.1, 1.0)
    assert (length, said) == (113, "")
    assert next_length(113, 0.1, 1.2) == (113, "")  # 135: less than a quarter
    assert next_length(91, 0.1, 1.0) == (91, "")  # and 90 are enough
    assert next_length(89, 0.1, 1.0)[0] == 113
    assert next_length(90, 0.1, 0.1)[0] == 45
    assert next_length(1, 1.0, 0.001) == (1, "")
    assert next_length(MOST, 1e-6, 10.0) == (MOST, "")
    assert next_length(7, 0.0, 0.0) == (7, "")


def test_a_round_gets_long_enough_for_a_slow_link_and_short_steps() -> None:
    """26 MB of gradients as int8, which is 5 s at 10 Mbit/s, and steps of 5 ms."""
    length = 1024
    for _ in range(10):
        length, said = next_length(length, 0.005, 0.2, 5.2)
    assert (length, said) == (12150, "")
    length, said = next_length(8192, 0.001, 0.2, 5.2)
    assert length == MOST
    assert said.endswith("; 16,384 steps are the most, and 60,750 would be wanted")
    assert "are the most" not in next_length(4096, 0.001, 0.2, 5.2)[1]


def test_a_pause_between_steps_and_one_slow_exchange_do_not_count() -> None:
    times = RoundTimes()
    assert (times.step_s, times.busy_s, times.link_s) == (0.0, 0.0, 0.0)
    for _ in range(2):
        times.add_step(60.0)  # an evaluation
        for _ in range(3):
            times.add_step(0.1)
            times.add_exchange(0.25, 0.75)
        times.add_exchange(2.25, 6.75)
    assert (times.step_s, times.busy_s, times.link_s) == (0.1, 0.25, 0.75)


def test_times_follow_a_link_that_became_slow() -> None:
    times = RoundTimes()
    for seconds in (1.0, 1.0, 1.0, 9.0, 9.0):
        times.add_exchange(seconds)
    assert times.busy_s == 9.0


def test_the_outer_optimizer_suits_the_length_of_a_round() -> None:
    assert outer_constants(4) == outer_constants(64) == (1.0, 0.0)
    assert outer_constants(500) == (0.7, 0.9)


def _refused(me: Rank) -> None:
    model = _net()
    optimizer = _sgd(model.parameters())
    with pytest.raises(UsageError, match=r"every=0 is neither a whole number"):
        Between(every=0)
    with pytest.raises(UsageError, match=r"outer=3 makes no optimizer"):
        Between(outer=3)  # type: ignore[arg-type]
    double = _net().double()
    with pytest.raises(UsageError, match="float64"):
        parallel(double, _sgd(double.parameters()), between=Between(every=2))
    other = _net()
    loaded = _sgd(other.parameters())
    if me.rank == 0:
        other(torch.ones(2, 6)).sum().backward()
        loaded.step()
    with pytest.raises(UsageError, match=r"rank 0's optimizer has a state and rank 1's has none"):
        parallel(other, loaded, between=Between(every=2))
    between = Between(every=2 + me.rank)
    with pytest.raises(Mismatch, match=r"every=2.*every=3|every=3.*every=2"):
        parallel(model, optimizer, between=between)


def _differs(me: Rank, what: str) -> None:
    """Only the second host does something, which the ranks of the first cannot see."""
    model = _net()
    optimizer = _sgd(model.parameters())
    run = parallel(model, optimizer, between=Between(every=2))
    if what == "lr" and me.rank == 2:
        optimizer.param_groups[0]["lr"] = 0.5
    for step in range(2):
        if what == "samples" and me.rank == 2:
            run.samples(32)
        _step(run, model, optimizer, step, me)


@pytest.mark.parametrize(
    ("what", "said"),
    [
        ("lr", "Mismatch: the optimizer has lr=0.1 on rank 0 and lr=0.5 on rank 2"),
        (
            "samples",
            "Mismatch: rank 2 called run.samples() before 2 of 2 steps of this round and rank",
        ),
    ],
)
def test_what_differs_between_hosts_is_told(what: str, said: str) -> None:
    for outcome in watch_ranks(_differs, "aab", what):
        assert said in outcome.error


def _no_samples(me: Rank) -> None:
    model = nn.Sequential(_net(), nn.BatchNorm1d(3))
    optimizer = _sgd(model.parameters())
    run = parallel(model, optimizer, between=Between(every=2))
    before = copy.deepcopy(model.state_dict())
    for step in range(2):
        run.samples(0)
        _step(run, model, optimizer, step, me)
    assert bool(model[1].running_var.all())  # type: ignore[union-attr,operator]
    assert not torch.equal(model.state_dict()["0.0.weight"], before["0.0.weight"])


def test_where_none_has_samples_all_count_alike() -> None:
    run_ranks(_no_samples, "aab")


def _overflows(me: Rank) -> None:
    """One host skips a step, the last one of a round."""
    model = _net()
    optimizer = _sgd(model.parameters())
    run = parallel(model, optimizer, between=Between(every=2))
    scaler = torch.amp.GradScaler("cpu", init_scale=1024.0)
    for step in range(6):
        x, y = _batch(step, me.rank)
        loss = nn.functional.mse_loss(model(x), y)
        if step == 3 and me.rank == 2:
            loss = loss * torch.inf
        scaler.scale(loss).backward()
        scaler.step(optimizer)
        scaler.update()
        optimizer.zero_grad()
        assert run.state_dict()["outer"]["steps"] == (step + 1) % 2
    assert scaler.get_scale() == (512.0 if me.rank == 2 else 1024.0)
    assert all(bool(p.isfinite().all()) for p in model.parameters())


def test_a_step_that_one_host_leaves_out_counts_in_its_round() -> None:
    run_ranks(_overflows, "aab")


def _waits(me: Rank) -> float:
    model = _net()
    run = parallel(model, _sgd(model.parameters()), between=Between(every=2))
    return run._group.timeout_s


def test_ranks_of_a_host_wait_for_each_other_as_long_as_the_group_says() -> None:
    assert run_ranks(_waits, "aab", group_timeout_s=47.0) == [47.0] * 3


def test_what_cannot_work_is_refused() -> None:
    run_ranks(_refused, "ab")


def _two_groups(parameters: Any) -> torch.optim.Optimizer:
    more = nn.Parameter(torch.ones(3))
    return torch.optim.SGD([{"params": parameters}, {"params": [more]}], lr=1.0)


def _of_ranks(parameters: Any) -> torch.optim.Optimizer:
    return torch.optim.SGD(parameters, lr=1.0 + dist.get_rank())


def _refused_outer(me: Rank) -> None:
    for outer, problem in (
        (_two_groups, r"outer makes an optimizer of more than the parameters"),
        (_of_ranks, r"the optimizer has lr=1.0 on rank 0 and lr=2.0 on rank 1"),
    ):
        model = _net()
        with pytest.raises((UsageError, Mismatch), match=problem):
            parallel(model, _sgd(model.parameters()), between=Between(every=2, outer=outer))
    runs = []
    for outer in (_nesterov, _adam):
        model = _net()
        optimizer = _sgd(model.parameters())
        runs.append(parallel(model, optimizer, between=Between(every=2, outer=outer)))
    with pytest.raises(UsageError, match="saved with SGD as the outer optimizer, which is Adam"):
        runs[1].load_state_dict(runs[0].state_dict())


def test_an_outer_optimizer_that_cannot_work_is_refused() -> None:
    run_ranks(_refused_outer, "ab")


def _no_modify(me: Rank) -> None:
    model = _net()
    run = parallel(model, _sgd(model.parameters()), between=Between(every=2))
    with pytest.raises(UsageError, match=r"between\.every"), run.modify():
        pass
    state = run.state_dict()
    del state["outer"]
    with pytest.raises(UsageError, match="no anchor"):
        run.load_state_dict(state)


def test_weights_are_not_changed_between_exchanges() -> None:
    run_ranks(_no_modify, "ab")


def _by_job_file(me: Rank) -> None:
    model = _net()
    run = parallel(model, _sgd(model.parameters()))
    assert run.state_dict()["outer"]["every"] == 7
    assert notes.fixed == ""
    for between, every, is_coded, fixed in (
        (Between(), 7, True, ""),
        (Between(every=2), 2, True, "Between(every=2)"),
        (Between(gradients="exact"), 7, False, "Between(gradients='exact')"),
        (Between(fragments=3), 7, True, "Between(fragments=3)"),
        (Between(every=1), None, True, "Between(every=1)"),
        (Between("exact", every=1), None, False, "Between(gradients='exact', every=1)"),
    ):
        model = _net()
        optimizer = _sgd(model.parameters())
        run = parallel(model, optimizer, between=between)
        for step in range(every or 1):
            _step(run, model, optimizer, step, me)
        saved = run.state_dict()
        assert saved.get("outer", {"every": None})["every"] == every
        assert any(left.any() for left in saved["residuals"].values()) is is_coded
        assert notes.fixed == fixed
    with pytest.raises(UsageError, match=r"WIIIIIDE_EVERY: every='often' is neither"):
        Between().filled("", "often")
    with pytest.raises(UsageError, match="fragments=8 is more than every=7"):
        parallel(_net(), optimizer, between=Between(fragments=8))


def test_a_job_file_says_what_the_script_does_not() -> None:
    run_ranks(_by_job_file, "ab", env={"WIIIIIDE_EVERY": "7", "WIIIIIDE_GRADIENTS": "int8"})


def _one_host(me: Rank) -> None:
    said: list[str] = []
    log.warn = lambda _, text: said.append(text)  # type: ignore[assignment]
    for between in (None, Between(), Between(warmup_steps=3), Between(fragments=2)):
        model = _net()
        run = parallel(model, _sgd(model.parameters()), between=between)
        assert run.state_dict() == {"host": 0, "hosts": 1, "residuals": {}}
    wanted = ["Between(warmup_steps=3) does nothing", "Between(fragments=2) does nothing"]
    assert [text.partition(":")[0] for text in said] == (wanted if me.rank == 0 else [])


def test_a_job_file_says_nothing_to_one_host() -> None:
    run_ranks(_one_host, 2, env={"WIIIIIDE_EVERY": "7", "WIIIIIDE_GRADIENTS": "int8"})


def _differ(me: Rank) -> None:
    model = _net()
    parallel(model, _sgd(model.parameters()), between=Between(every=2 + 5 * me.rank))


def test_hosts_compare_what_counts_and_not_what_the_script_says() -> None:
    for outcome in watch_ranks(_differ, "ab", env={"WIIIIIDE_GRADIENTS": "int8"}):
        assert "between=Between(gradients='int8', every=2)" in outcome.error
        assert "between=Between(gradients='int8', every=7)" in outcome.error
