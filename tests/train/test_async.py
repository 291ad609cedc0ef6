"""`wide.parallel(updates="async")`: each rank at its own pace, within a bound, and never silently
wrong."""

from __future__ import annotations

import os
import signal
import time
from typing import Any

import pytest
import torch
import torch.distributed as dist
from torch import nn

from tests.kit.conditions import wait_until
from tests.kit.ranks import Outcome, Rank, note, run_ranks, watch_ranks
from wiiiiided import log
from wiiiiided.errors import GroupFailed, Mismatch, UsageError
from wiiiiided.torch import parallel


def _net() -> nn.Module:
    torch.manual_seed(1)
    return nn.Sequential(nn.Linear(8, 16), nn.Tanh(), nn.Linear(16, 1))


def _learns(me: Rank) -> tuple[float, float]:
    """Accumulation, clipping, evaluation; all ranks see one set of weights and one state."""
    model = _net()
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
    run = parallel(model, optimizer, updates="async", staleness=4)
    draw = torch.Generator().manual_seed(me.rank)
    losses = []
    for _ in range(150):
        for _ in range(2):
            x = torch.randn(16, 8, generator=draw)
            loss = (model(x) - x.sum(1, keepdim=True)).pow(2).mean()
            loss.backward()
        assert type(model[0].weight.grad) is torch.Tensor  # type: ignore[index,union-attr]
        assert float(run.clip_grad_norm_(10.0)) > 0
        optimizer.step()
        optimizer.zero_grad()
        losses.append(loss.item())
    dist.barrier()
    for tensor in [*model.parameters(), *_tensors(model, optimizer)]:
        first = tensor.detach().clone()
        dist.broadcast(first, 0)
        assert torch.equal(tensor, first)
    steps = {float(state["step"]) for state in optimizer.state.values()}
    assert me.size == 1 or max(steps) > 150, "one state, of which all ranks count the steps"
    saved = model.state_dict(), optimizer.state_dict()
    alone = _net()
    alone.load_state_dict(saved[0])
    torch.optim.AdamW(alone.parameters()).load_state_dict(saved[1])
    dist.barrier()
    return sum(losses[:10]) / 10, sum(losses[-10:]) / 10


def _tensors(model: nn.Module, optimizer: torch.optim.Optimizer) -> list[torch.Tensor]:
    states = [optimizer.state[p] for p in model.parameters()]
    return [state[key] for state in states for key in sorted(state)]


@pytest.mark.parametrize("size", [1, 3])
def test_all_ranks_train_one_model(size: int) -> None:
    for first, last in run_ranks(_learns, size):
        assert last < 0.5 * first


def _slow_and_fast(me: Rank, end: str) -> int:
    """Rank 0 makes five slow steps and then does something else; the others make forty."""
    model = _net()
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-3)
    run = parallel(model, optimizer, updates="async", staleness=3)
    ahead = 0
    for _ in range(40 if me.rank else 5):
        if me.rank == 0:
            time.sleep(0.02)  # what makes it the slow one: the bound is what is tested
        model(torch.ones(2, 8)).sum().backward()
        optimizer.step()
        optimizer.zero_grad()
        if not run._group.gone and not run._group.team.board.is_ahead(0):
            ahead = max(ahead, run._steps.number - int(run._memory.completed[0]))
    if end == "leaves":
        dist.destroy_process_group()
    else:
        dist.barrier()
    return ahead


@pytest.mark.parametrize("end", ["leaves", "waits in a collective"])
def test_no_rank_is_further_ahead_than_allowed_until_the_slow_one_is_done(end: str) -> None:
    # One more: a rank that was allowed to begin has ended its step when it looks.
    assert max(run_ranks(_slow_and_fast, 3, end)) <= 3 + 1


def _dies(me: Rank, where: str) -> str:
    model = _net()
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-3)
    parallel(model, optimizer, updates="async", staleness=1000)
    try:
        for step in range(1_000_000):
            model(torch.ones(2, 8)).sum().backward()
            if me.rank == 1 and step == 20:
                if where == "between":
                    os.kill(os.getpid(), signal.SIGKILL)
                optimizer.register_step_pre_hook(lambda *_: None)
                optimizer.__dict__["_wiiiiide_parallel"].own = _kill
            optimizer.step()
            optimizer.zero_grad()
    except GroupFailed as error:
        try:
            model.state_dict()
        except UsageError as torn:
            return f"{error}; {torn}"
        return f"{error}; whole"
    return "trained for ever"


def _kill(*_: Any) -> None:
    os.kill(os.getpid(), signal.SIGKILL)


@pytest.mark.parametrize(
    ("where", "left"), [("between", "whole"), ("writing", "step 21 of rank 1 was interrupted")]
)
def test_a_killed_rank_is_named_by_all_and_half_a_step_is_not_given_out(
    where: str, left: str
) -> None:
    outcomes = watch_ranks(_dies, 3, where)
    for outcome in (outcomes[0], outcomes[2]):
        assert "rank 1" in outcome.value.partition(";")[0], outcome
        assert left in outcome.value, outcome


def _copies(me: Rank) -> None:
    """Rank 1 adds one to every weight again and again: a copy of rank 0 has equal weights."""
    model = nn.Linear(2000, 500, bias=False)
    with torch.no_grad():
        model.weight.zero_()
    optimizer = torch.optim.SGD(model.parameters(), lr=1.0)
    parallel(model, optimizer, updates="async", staleness=1_000_000)
    model.weight.grad = torch.zeros_like(model.weight)
    optimizer.step()
    seen: set[float] = set()
    if me.rank:
        note("writing")
        while not dist.distributed_c10d._get_default_store().check(["enough"]):
            model.weight.grad = -torch.ones_like(model.weight)
            optimizer.step()
    else:

        def copied() -> bool:
            weight = model.state_dict()["weight"]
            assert float(weight.min()) == float(weight.max())
            seen.add(float(weight.min()))
            return len(seen) >= 10

        wait_until(copied, 30, "ten different copies")
        dist.distributed_c10d._get_default_store().set("enough", "1")
    dist.barrier()


def test_a_copy_is_made_while_no_rank_writes() -> None:
    run_ranks(_copies, 2)


def _refused(me: Rank) -> None:
    model = _net()
    for optimizer, options, words in (
        (torch.optim.Adafactor(model.parameters()), {}, "Adafactor looks at more than one"),
        (torch.optim.SGD(model.parameters()), {"staleness": 0}, "staleness=0"),
        (torch.optim.SGD(model.parameters()), {"staleness": 2.5}, "staleness=2.5"),
    ):
        with pytest.raises(UsageError, match=words):
            parallel(model, optimizer, updates="async", **options)  # type: ignore[arg-type]
    with pytest.raises(Mismatch, match=r"staleness=3; rank 1 SGD of 1 groups.*staleness=4"):
        parallel(model, torch.optim.SGD(model.parameters()), updates="async", staleness=3 + me.rank)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    run = parallel(model, optimizer, updates="async")
    with pytest.raises(UsageError, match="load the optimizer before"):
        optimizer.load_state_dict(optimizer.state_dict())
    with pytest.raises(UsageError, match="there is none"):
        run.samples(3)
    model[0].weight.data = model[0].weight.data.clone()  # type: ignore[index,union-attr,operator]
    with pytest.raises(UsageError, match=r"memory of 0.weight was replaced"):
        optimizer.step()


def test_what_cannot_work_is_refused() -> None:
    run_ranks(_refused, 2)


def _late_state(me: Rank) -> None:
    model = _net()
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    parallel(model, optimizer, updates="async")
    model[0](torch.ones(2, 8)).sum().backward()
    optimizer.step()
    optimizer.zero_grad()
    model(torch.ones(2, 8)).sum().backward()
    with pytest.raises(UsageError, match=r"2.weight had no gradient in rank 0's first step"):
        optimizer.step()


def test_state_that_would_be_of_one_rank_alone_is_refused() -> None:
    run_ranks(_late_state, 2)


def _on_two_hosts(me: Rank) -> None:
    model = _net()
    with pytest.raises(UsageError, match=r"one host, and this group has 2.*every"):
        parallel(model, torch.optim.SGD(model.parameters()), updates="async")


def test_several_hosts_are_refused_with_what_to_do() -> None:
    run_ranks(_on_two_hosts, "ab")


def _stalls(me: Rank) -> None:
    log.warn = lambda who, text: note(text)
    model = _net()
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-3)
    parallel(model, optimizer, updates="async", staleness=2)
    for step in range(10):
        if me.rank == 0 and step == 3:
            note("stopping")
            os.kill(os.getpid(), signal.SIGSTOP)
        model(torch.ones(2, 8)).sum().backward()
        optimizer.step()
        optimizer.zero_grad()
    dist.barrier()


def test_a_stopped_rank_is_named_and_nothing_is_lost() -> None:
    woken: list[int] = []  # once: its pid is gone soon after

    def wake(outcomes: list[Outcome], elapsed_s: float) -> None:
        if outcomes[1].notes and not woken:
            woken.append(outcomes[0].pid)
            os.kill(outcomes[0].pid, signal.SIGCONT)

    env = {"WIIIIIDE_STALL_WARNING_S": "0.5"}
    outcomes = watch_ranks(_stalls, 2, env=env, during=wake)
    assert all(o.exit_code == 0 for o in outcomes), outcomes
    assert "for rank 0" in outcomes[1].notes[0][1]
