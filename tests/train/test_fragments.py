"""Weights that travel in fragments while hosts compute: the mathematics, agreement, going on."""

from __future__ import annotations

import copy
import gc
import os
from collections.abc import Callable
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed as dist
from torch import nn
from torch.nn.utils import parameters_to_vector, vector_to_parameters
from torch.utils.data import TensorDataset

from tests.kit.ranks import Rank, run_ranks, watch_ranks
from tests.kit.seldom import adam, average, batch, make_step, nesterov, net, samples_of, sgd
from wiiiiided.errors import Mismatch, UsageError
from wiiiiided.torch import Batches, Between, Parallel, parallel
from wiiiiided.train.round_length import next_length

STEPS, EVERY = 17, 5  # neither ends with a round, nor has a round legs of the same length
CUTS = {2: (0, 256, 403), 3: (0, 192, 384, 403)}  # of the model's elements
Outer = Callable[[Any], torch.optim.Optimizer]


def _reference(hosts: str, fragments: int, outer: Outer) -> dict[str, torch.Tensor]:
    """The weights of each host after STEPS: written without anything of the package."""
    nets = {host: net() for host in hosts}
    fast = {host: sgd(nets[host].parameters()) for host in nets}
    anchor = parameters_to_vector(net().parameters()).detach()
    parts = [anchor[begin:end] for begin, end in pairwise(CUTS[fragments])]
    slow = [outer([part]) for part in parts]
    unsent = {host: [0] * fragments for host in nets}
    flying: tuple[int, torch.Tensor, dict[str, torch.Tensor]] | None = None
    for step in range(STEPS):
        for host, model in nets.items():
            ranks = [rank for rank, name in enumerate(hosts) if name == host]
            batches = [batch(step, rank, samples_of(rank, True)) for rank in ranks]
            x, y = (torch.cat(several) for several in zip(*batches, strict=True))
            nn.functional.mse_loss(model(x), y).backward()
            fast[host].step()
            fast[host].zero_grad()
            unsent[host] = [count + len(x) for count in unsent[host]]
        ends = [(k + 1) * EVERY // fragments for k in range(fragments)]
        if step % EVERY + 1 not in ends:
            continue
        flat = {host: parameters_to_vector(m.parameters()).detach() for host, m in nets.items()}
        if flying is not None:
            k, mean, sent = flying
            parts[k].grad = mean
            slow[k].step()
            for host in nets:
                here = flat[host][slice(*CUTS[fragments][k : k + 2])]
                here += parts[k] - sent[host]
                vector_to_parameters(flat[host], nets[host].parameters())
        k = ends.index(step % EVERY + 1)
        total = sum(counts[k] for counts in unsent.values())
        sent = {h: flat[h][slice(*CUTS[fragments][k : k + 2])].clone() for h in nets}
        mean = sum(unsent[h][k] / total * (parts[k] - sent[h]) for h in nets)  # type: ignore[assignment]
        flying = k, mean, sent
        for counts in unsent.values():
            counts[k] = 0
    return {host: parameters_to_vector(m.parameters()).detach() for host, m in nets.items()}


def _made(between: Between) -> tuple[nn.Sequential, torch.optim.Optimizer, Parallel]:
    model = net()
    optimizer = sgd(model.parameters())
    return model, optimizer, parallel(model, optimizer, between=between)


def _flat(model: nn.Module) -> torch.Tensor:
    return parameters_to_vector(model.parameters()).detach()


def _is_common(flat: torch.Tensor, me: Rank) -> bool:
    rows = [torch.empty_like(flat) for _ in range(me.size)]
    dist.all_gather(rows, flat)
    return all(row.numpy().tobytes() == rows[0].numpy().tobytes() for row in rows)


def _golden(me: Rank, hosts: str) -> None:
    for fragments, outer in ((2, average), (2, adam), (3, nesterov)):
        model, optimizer, run = _made(Between(every=EVERY, outer=outer, fragments=fragments))
        for step in range(STEPS):
            make_step(run, model, optimizer, step, me, uneven=True)
        wanted = _reference(hosts, fragments, outer)[hosts[me.rank]]
        torch.testing.assert_close(_flat(model), wanted, rtol=1e-4, atol=1e-5)
        assert _is_common(run.state_dict()["outer"]["anchor"], me)


@pytest.mark.parametrize("hosts", ["aab", "abc"])
def test_it_is_what_a_reference_computes(hosts: str) -> None:
    run_ranks(_golden, hosts, hosts)


def _coded(me: Rank, hosts: str) -> None:
    between = Between(every=EVERY, outer=average, fragments=3, gradients="int8")
    model, optimizer, run = _made(between)
    for step in range(STEPS):
        make_step(run, model, optimizer, step, me, uneven=True)
    exact = _reference(hosts, 3, average)[hosts[me.rank]]
    learnt = _flat(net()) - exact
    error = float((_flat(model) - exact).norm() / learnt.norm())
    assert 0 < error < 0.02
    assert _is_common(run.state_dict()["outer"]["anchor"], me)
    assert any(bool(left.any()) for left in run.state_dict()["residuals"].values())
    run.agree()
    assert _is_common(_flat(model), me)


def test_fragments_travel_coded() -> None:
    run_ranks(_coded, "abc", "abc")


def _goes_on(me: Rank, outer: Outer) -> None:
    """Saved while a fragment is under way, loaded into new objects, and trained on."""
    between = Between(gradients="int8", every=EVERY, outer=outer, fragments=3)
    model, optimizer, run = _made(between)
    saved: list[Any] = []
    for step in range(STEPS):
        if step == 7:
            states = model.state_dict(), optimizer.state_dict(), run.state_dict()
            saved += copy.deepcopy(states)
            dist.barrier()
        make_step(run, model, optimizer, step, me)
    under_way = saved[2]["outer"]["fragments"]["under_way"]
    assert under_way["fragment"] == 0
    assert _is_common(under_way["mean"], me)  # whole, on every rank of a host
    again, optimizer, run = _made(between)
    again.load_state_dict(saved[0])
    optimizer.load_state_dict(saved[1])
    run.load_state_dict(saved[2])
    for step in range(7, STEPS):
        make_step(run, again, optimizer, step, me)
    assert torch.equal(_flat(again), _flat(model))


@pytest.mark.parametrize("outer", [nesterov, adam])
def test_a_run_goes_on_with_what_is_under_way(outer: Outer) -> None:
    run_ranks(_goes_on, "aab", outer)


def _cut_anew(me: Rank) -> None:
    """What was saved in three fragments, loaded where there are two, or one."""
    model, optimizer, run = _made(Between(every=EVERY, outer=adam, fragments=3))
    for step in range(7):
        make_step(run, model, optimizer, step, me)
    saved = run.state_dict()
    moment = saved["outer"]["optimizer"]["state"][0]["exp_avg"]
    for between in (
        Between(every=EVERY, outer=adam, fragments=2),
        Between(every=EVERY, outer=adam),
    ):
        other, optimizer, run = _made(between)
        other.load_state_dict(model.state_dict())
        run.load_state_dict(saved)
        found = run.state_dict()["outer"]
        assert found["steps"] == 0  # the round begins anew, from the anchor
        assert torch.equal(_flat(other), saved["outer"]["anchor"])
        assert torch.equal(found["optimizer"]["state"][0]["exp_avg"], moment)
        for step in range(7):
            make_step(run, other, optimizer, step, me)
    run.agree()
    assert _is_common(_flat(other), me)


def test_a_state_is_loaded_into_another_number_of_fragments() -> None:
    run_ranks(_cut_anew, "aab")


def _agrees(me: Rank) -> None:
    model = nn.Sequential(net(), nn.BatchNorm1d(3))
    optimizer = sgd(model.parameters())
    run = parallel(model, optimizer, between=Between(every=4, fragments=2))
    for step in range(6):
        make_step(run, model, optimizer, step, me)
    assert not _is_common(_flat(model), me)
    run.agree()
    state = run.state_dict()["outer"]
    assert torch.equal(_flat(model), state["anchor"])
    assert (state["steps"], state["fragments"]["under_way"]) == (0, None)
    tensors = [*model.parameters(), *(b for b in model.buffers() if b.is_floating_point())]
    assert _is_common(torch.cat([t.detach().flatten() for t in tensors]), me)
    run.agree()  # nothing is left to exchange
    assert torch.equal(_flat(model), state["anchor"])


def test_after_an_agreement_all_hosts_have_the_anchors_weights() -> None:
    run_ranks(_agrees, "aab")


def _saves(me: Rank, folder: str) -> None:
    def made() -> tuple[nn.Sequential, torch.optim.Optimizer, Parallel]:
        model = net()
        optimizer = sgd(model.parameters())
        between = Between(every=4, fragments=2)
        where = Path(folder) / "ab"[me.rank == 2]
        run = parallel(model, optimizer, between=between, save=where, save_every=6)
        return model, optimizer, run

    model, optimizer, run = made()
    for step in range(9):
        make_step(run, model, optimizer, step, me)
        assert run._steps.is_round_over is (step == 7)  # type: ignore[union-attr]
    run.save()
    again, _, run = made()
    assert run.resume() == 9
    assert torch.equal(_flat(again), _flat(model))
    dist.barrier()
    for path in Path(folder).glob("*/step-*9.host-*"):
        path.unlink(missing_ok=True)
    dist.barrier()
    again, _, run = made()
    assert run.resume() == 8  # the end of the round in which the sixth step was


def test_a_round_in_which_it_is_time_to_save_ends_with_an_agreement(tmp_path: Path) -> None:
    run_ranks(_saves, "aab", str(tmp_path))


def _half(me: Rank) -> None:
    """Half precision, a parameter that is frozen, and in the end a NaN on one host."""
    torch.manual_seed(3)
    model = nn.Sequential(nn.Linear(16, 24), nn.Linear(24, 8)).bfloat16()
    model[1].requires_grad_(False)
    frozen = copy.deepcopy(model[1].state_dict())
    optimizer = sgd(model.parameters())
    between = Between(every=4, fragments=2, outer=_decaying)
    run = parallel(model, optimizer, between=between)
    for step in range(10):
        x, _ = batch(step, me.rank, 16)
        loss = model(x.repeat(1, 3)[:, :16].bfloat16()).square().mean()
        (loss * torch.nan if step == 9 and me.rank == 2 else loss).backward()
        optimizer.step()
        optimizer.zero_grad()
        assert bool(_flat(model).isfinite().all()) == (step < 9 or me.rank != 2)
        if step < 9:
            assert all(torch.equal(v, frozen[k]) for k, v in model[1].state_dict().items())
    run.agree()
    assert bool(model[0].weight.isnan().all())
    anchor = run.state_dict()["outer"]["anchor"]
    assert torch.equal(anchor[-24 * 8 - 8 :].bfloat16(), _flat(model[1]))
    assert _is_common(anchor, me)


def _decaying(parameters: Any) -> torch.optim.Optimizer:
    return torch.optim.AdamW(parameters, lr=0.1, weight_decay=0.1)


def test_half_precision_frozen_weights_and_nan() -> None:
    run_ranks(_half, "aab")


def _loads(me: Rank, loaders: set[int]) -> None:
    """A model is loaded while a fragment is under way: the round begins anew, without that."""
    model, optimizer, run = _made(Between(every=4, fragments=2, outer=average))
    for step in range(5):
        make_step(run, model, optimizer, step, me)
    dist.barrier()
    if me.rank in loaders:
        ones = {name: torch.full_like(v, 0.1) for name, v in model.state_dict().items()}
        model.load_state_dict(ones)
    make_step(run, model, optimizer, 5, me)
    state = run.state_dict()["outer"]
    assert torch.equal(state["anchor"], torch.full((403,), 0.1))
    assert (state["steps"], state["fragments"]["under_way"]) == (1, None)
    for step in range(6, 10):
        make_step(run, model, optimizer, step, me)
    assert _is_common(run.state_dict()["outer"]["anchor"], me)


def test_a_model_may_be_loaded_while_a_fragment_is_under_way() -> None:
    run_ranks(_loads, "aab", {0, 2})


def _looks_meanwhile(me: Rank) -> None:
    """Rank 1 looks for writes from outside while rank 0 has loaded a part of the model."""
    model = net()

    def pause(*_: object) -> None:
        dist.barrier()
        dist.barrier()

    if me.rank == 0:  # before any hook of ours
        model[0].register_load_state_dict_post_hook(pause)
    optimizer = sgd(model.parameters())
    run = parallel(model, optimizer)
    make_step(run, model, optimizer, 0, me)
    if me.rank == 0:
        model.load_state_dict({name: v + 1 for name, v in model.state_dict().items()})
    else:
        dist.barrier()
        run._shared.weights.check()
        dist.barrier()
    make_step(run, model, optimizer, 1, me)


def test_a_rank_that_loads_is_not_taken_for_a_write_from_outside() -> None:
    run_ranks(_looks_meanwhile, 2)


def _ends(me: Rank) -> None:
    model, optimizer, run = _made(Between(every=4, fragments=2))
    for step in range(9):
        if step == 3 and me.rank == 2:
            os._exit(3)  # with a fragment under way
        make_step(run, model, optimizer, step, me)


def test_a_rank_that_dies_meanwhile_is_named() -> None:
    for outcome in watch_ranks(_ends, "aab")[:2]:
        assert outcome.error.startswith("PeerLost")
        assert "rank 2" in outcome.error


def _by_data(me: Rank) -> None:
    """Epochs of three and a half rounds: the last one of each ends before its legs."""
    x, _ = batch(0, 0, 14 * 12)
    data = Batches(TensorDataset(x, x[:, :3].sin()), 12, 1)
    model = net()
    optimizer = sgd(model.parameters())
    run = parallel(model, optimizer, between=Between(every=4, fragments=3), data=data)
    for _ in range(2):
        for mine, wanted in data:
            nn.functional.mse_loss(model(mine), wanted).backward()
            optimizer.step()
            optimizer.zero_grad()
    assert not _is_common(_flat(model), me)
    run.agree()
    assert _is_common(_flat(model), me)


def test_an_epoch_ends_on_all_hosts_in_the_same_leg() -> None:
    run_ranks(_by_data, "aab")


def _auto(me: Rank) -> None:
    """A step of this model takes less than its exchange: rounds grow until there is room."""
    model, optimizer, run = _made(Between(every="auto", fragments=4))
    legs = set()
    for step in range(80):
        make_step(run, model, optimizer, step, me)
        legs.add(run.state_dict()["outer"]["fragments"]["slot"])
    length = torch.tensor([float(run.state_dict()["outer"]["every"])])
    assert _is_common(length, me)
    assert length >= 4
    assert legs == {0, 1, 2, 3}
    run.agree()
    assert _is_common(_flat(model), me)


def test_auto_begins_with_agreements_and_goes_over_to_fragments() -> None:
    run_ranks(_auto, "aab")


def test_what_travels_meanwhile_takes_shorter_rounds() -> None:
    assert next_length(64, 0.1, 0.0, 1.0, 1)[0] == 113
    length, said = next_length(64, 0.1, 0.0, 1.0, 4)
    assert length == 32  # 13 are wanted: enough for the link
    assert "every 32 steps instead of every 64" in said
    assert "1e+03 ms beside them, so they compute 100 % of the time" in said
    assert next_length(13, 0.1, 0.0, 1.0, 4) == (13, "")
    assert next_length(13, 0.1, 0.05, 1.0, 4) == (13, "")
    assert next_length(13, 0.1, 0.5, 1.0, 4)[0] == 26  # 57: ranks themselves are held up
    assert next_length(7, 1.0, 0.0, 1.0, 8)[0] == 8  # a little longer, and nothing is waited for
    assert next_length(8, 1.0, 0.0, 1.0, 8) == (8, "")
    assert next_length(2, 1.0, 0.0, 0.1, 8) == (2, "")  # shorter than with fragments


def _again(me: Rank) -> None:
    """Runs one after the other, and two at a time."""

    def groups() -> int:
        return len(dist.distributed_c10d._world.pg_names)

    for _ in range(2):
        model, optimizer, run = _made(Between(every=4, fragments=2))
        for step in range(3):
            make_step(run, model, optimizer, step, me)
        del model, optimizer, run
        gc.collect()
    assert groups() == 3  # all ranks, the host's, and what fragments travel in
    kept = _made(Between(every=4, fragments=2))
    _made(Between(every=4))
    assert groups() == 4
    make_step(kept[2], kept[0], kept[1], 0, me)


def test_a_run_takes_over_the_groups_of_one_that_is_gone() -> None:
    run_ranks(_again, "aab")


def _refused(me: Rank) -> None:
    with pytest.raises(Mismatch, match=r"fragments=2\).*fragments=3|fragments=3\).*fragments=2"):
        _made(Between(every=4, fragments=2 + me.rank))


def test_hosts_that_disagree_on_fragments_are_told() -> None:
    run_ranks(_refused, "ab")


@pytest.mark.parametrize("fragments", [0, 1.5, True, "two"])
def test_fragments_are_a_number(fragments: Any) -> None:
    with pytest.raises(UsageError, match="is not a whole number from 1 on"):
        Between(every=4, fragments=fragments)


def test_a_round_has_a_step_for_each_fragment() -> None:
    with pytest.raises(UsageError, match="fragments=5 is more than every=4: a fragment travels"):
        Between(every=4, fragments=5)
    assert str(Between(every="auto", fragments=5)) == "Between(every='auto', fragments=5)"
