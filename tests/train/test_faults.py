"""What `wide.parallel` leaves when something goes wrong in the middle, and in forked children."""

from __future__ import annotations

import gc
import os
import signal
from typing import Any

import pytest
import torch
import torch.distributed as dist
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

from tests.kit.ranks import Rank, run_ranks, watch_ranks
from wiiiiided.errors import GroupFailed, Mismatch, UsageError
from wiiiiided.torch import parallel
from wiiiiided.train import layout


class Faulty(torch.optim.Optimizer):
    """Does to rank 1, in its third step, what the test wants."""

    def __init__(self, params: Any, me: Rank, fault: str) -> None:
        super().__init__(params, {"lr": 0.1})
        self._me, self._fault, self._count = me, fault, 0

    @torch.no_grad()
    def step(self, closure: Any = None) -> Any:
        self._count += 1
        if self._count == 3 and self._me.rank == 1:
            if self._fault == "kill":
                os.kill(os.getpid(), signal.SIGKILL)
            raise KeyboardInterrupt
        for p in (p for group in self.param_groups for p in group["params"] if p.grad is not None):
            p.sub_(p.grad, alpha=0.1)


def _interrupted(me: Rank, fault: str) -> str:
    model = nn.Sequential(nn.Linear(4, 4), nn.Linear(4, 4))
    optimizer = Faulty(model.parameters(), me, fault)
    parallel(model, optimizer)
    try:
        for _ in range(5):
            model(torch.ones(2, 4)).sum().backward()
            optimizer.step()
            optimizer.zero_grad()
            model.state_dict()
            optimizer.state_dict()
    except (GroupFailed, KeyboardInterrupt) as error:
        for save in (model.state_dict, optimizer.state_dict, model[0].state_dict):
            # The first rank that had not written yet: rank 1, or at this moment one before it.
            with pytest.raises(UsageError, match=r"step 3 was interrupted before rank [01]"):
                save()
        return type(error).__name__
    raise AssertionError("the third step went through")


@pytest.mark.parametrize("fault", ["kill", "interrupt"])
def test_half_a_step_is_never_given_out(fault: str) -> None:
    outcomes = watch_ranks(_interrupted, 3, fault)
    assert [o.value for o in outcomes if o.rank != 1] == ["PeerLost", "PeerLost"], outcomes
    if fault == "interrupt":
        assert outcomes[1].value == "KeyboardInterrupt", outcomes[1].trace


def _dies_before(me: Rank, where: str) -> str:
    """Rank 1 goes before the step, in its meeting, or when the others begin to write."""
    layout.WHOLE = 1  # type: ignore[misc]  # every rank updates a part
    model = nn.Sequential(nn.Linear(40, 40), nn.Linear(40, 40))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    run = parallel(model, optimizer)
    model(torch.ones(2, 40)).sum().backward()
    if me.rank == 1:
        if where == "before":
            os.kill(os.getpid(), signal.SIGKILL)

        def fail(*_: Any) -> None:
            raise KeyboardInterrupt

        run._gradients.average = fail  # type: ignore[method-assign]
    before = [p.detach().clone() for p in model.parameters()]
    try:
        optimizer.step()
    except (GroupFailed, KeyboardInterrupt):
        try:
            saved = model.state_dict().values()
        except UsageError as error:
            return str(error)
        return "whole" if all(map(torch.equal, saved, before)) else "torn"
    return "stepped"


def test_weights_are_given_out_when_no_rank_can_have_written() -> None:
    outcomes = watch_ranks(_dies_before, 3, "before")
    assert [o.value for o in outcomes if o.rank != 1] == ["whole", "whole"], outcomes


def test_weights_are_refused_when_others_may_be_writing() -> None:
    outcomes = watch_ranks(_dies_before, 3, "reduce")
    assert "step 1 was interrupted" in outcomes[1].value, outcomes
    assert all("step 1 was interrupted" in o.value for o in outcomes), outcomes


def _skips(me: Rank) -> None:
    model = nn.Linear(4, 4)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    parallel(model, optimizer)
    for _ in range(3 if me.rank else 2):
        model(torch.ones(2, 4)).sum().backward()
        optimizer.step()
        optimizer.zero_grad()
    dist.barrier()


@pytest.mark.parametrize("world", [2, "ab"])
def test_a_rank_that_makes_fewer_steps_is_named_with_both_calls(world: int | str) -> None:
    for outcome in watch_ranks(_skips, world):
        assert outcome.error.startswith(Mismatch.__name__), outcome
        assert "optimizer.step() of wide.parallel" in outcome.error or "ab" in str(world)


def _children(me: Rank) -> None:
    model = nn.Linear(300, 300)
    optimizer = torch.optim.AdamW(model.parameters())
    parallel(model, optimizer)
    data = DataLoader(TensorDataset(torch.randn(8, 300)), batch_size=4, num_workers=2)
    for _ in range(2):
        for (x,) in data:  # its workers are forked from a process with shared weights
            model(x).sum().backward()
            optimizer.step()
            optimizer.zero_grad()
    dist.barrier()
    before = model.weight.detach().clone()
    child = os.fork()
    if not child:
        with torch.no_grad():
            model.weight.zero_()
            optimizer.state[model.weight]["exp_avg"].fill_(777)
            os._exit(0 if not model.weight.any() and model.bias.any() else 1)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
    assert torch.equal(model.weight, before)
    assert float(optimizer.state[model.weight]["exp_avg"].max()) < 700
    dist.barrier()


def test_what_a_forked_child_writes_is_its_own() -> None:
    run_ranks(_children, 2)


def _ours() -> list[str]:
    with open("/proc/self/maps") as file:
        return [line for line in file if "memfd:wiiiiide" in line]


def _gone(me: Rank) -> None:
    before = len(_ours())
    for _ in range(3):
        model = nn.Linear(300, 300)
        optimizer = torch.optim.AdamW(model.parameters())
        run = parallel(model, optimizer)
        model(torch.ones(2, 300)).sum().backward()
        optimizer.step()
        assert len(_ours()) >= before + 2
        del model, optimizer, run
        gc.collect()
        assert len(_ours()) == before
    dist.barrier()


def test_the_memory_goes_with_the_model() -> None:
    run_ranks(_gone, 2)
