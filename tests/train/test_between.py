"""Lossy gradients between hosts: the same bits everywhere, and nothing lost for ever."""

from __future__ import annotations

import io
import logging
from typing import Any

import pytest
import torch
import torch.distributed as dist
from torch import nn

from tests.kit.ranks import Rank, run_ranks, watch_ranks
from tests.kit.residuals import residual_sum, same_everywhere
from wiiiiided.errors import UsageError
from wiiiiided.log import logger
from wiiiiided.torch import Between, links, parallel
from wiiiiided.train import layout
from wiiiiided.train.parallel import Parallel

CODECS = ["bf16", "int8", "int4", "topk:0.01"]
LR = 0.5
HUGE = 2_600_000  # elements: more pieces than any ring of an exchange has places


class Weights(nn.Module):
    """Parameters whose gradient is what a test says, whatever their values are."""

    def __init__(self, *sizes: int) -> None:
        super().__init__()
        self.parts = nn.ParameterList(nn.Parameter(torch.zeros(size)) for size in sizes)

    def forward(self, gradients: list[torch.Tensor]) -> torch.Tensor:
        return sum((p * g).sum() for p, g in zip(self.parts, gradients, strict=True))  # type: ignore[return-value]


def _gradients(model: Weights, step: int, rank: int) -> list[torch.Tensor]:
    make = torch.Generator().manual_seed(1000 * step + rank)
    return [torch.randn(p.shape, generator=make) for p in model.parts]


def _trained(between: Between | None, *sizes: int) -> tuple[Weights, Parallel, Any]:
    model = Weights(*sizes)
    optimizer = torch.optim.SGD(model.parameters(), lr=LR)
    return model, parallel(model, optimizer, between=between), optimizer


def _step(model: Weights, optimizer: Any, gradients: list[torch.Tensor]) -> None:
    optimizer.zero_grad()
    model(gradients).backward()
    optimizer.step()


def _flat(model: Weights) -> torch.Tensor:
    return torch.cat([p.detach().flatten() for p in model.parts])


def _nothing_is_lost(me: Rank, hosts: str) -> None:
    layout.WHOLE = 64  # every rank updates a slice
    for name in CODECS:
        model, run, optimizer = _trained(Between(gradients=name), 5000, 37, 20000, 1)
        exact = torch.zeros(25038, dtype=torch.float64)
        for step in range(5):
            _step(model, optimizer, _gradients(model, step, me.rank))
            same_everywhere(_flat(model))
            given = [torch.cat(_gradients(model, step, r)).double() for r in range(me.size)]
            exact -= LR * sum(given) / me.size  # type: ignore[assignment]
        missing = residual_sum(me, run, hosts)
        assert missing.any()
        torch.testing.assert_close(
            (_flat(model) - LR * missing).double(), exact, rtol=1e-5, atol=1e-5, msg=name
        )
        assert {report.gradients.partition(":")[0] for report in links() if report.gradients} == {
            name.partition(":")[0]
        }


@pytest.mark.parametrize("hosts", ["ab", "aabb", "aabbc", "abc"])
def test_all_ranks_have_the_same_bits_and_the_residuals_are_all_that_is_missing(
    hosts: str,
) -> None:
    run_ranks(_nothing_is_lost, hosts, hosts)


def _many_pieces(me: Rank, hosts: str) -> None:
    model, run, optimizer = _trained(Between(gradients="int8"), HUGE)
    for step in range(2):
        _step(model, optimizer, _gradients(model, step, me.rank))
    same_everywhere(_flat(model))
    exact = (
        -LR
        * sum(_gradients(model, step, r)[0] for step in range(2) for r in range(me.size))
        / me.size
    )
    missing = residual_sum(me, run, hosts)
    torch.testing.assert_close(_flat(model) - LR * missing, exact, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("hosts", ["ab", "abc"])
def test_large_gradients_go_piece_by_piece(hosts: str) -> None:
    run_ranks(_many_pieces, hosts, hosts)


def _half_and_double(me: Rank, hosts: str) -> None:
    """bfloat16 is summed in float32 and may be coded; float64 stays exact."""
    model = nn.ParameterDict(
        {
            "b16": nn.Parameter(torch.zeros(700, dtype=torch.bfloat16)),
            "f64": nn.Parameter(torch.zeros(300, dtype=torch.float64)),
            "f32": nn.Parameter(torch.zeros(500)),
        }
    )
    optimizer = torch.optim.SGD(model.parameters(), lr=1.0)
    run = parallel(model, optimizer, between=Between(gradients="int8"))
    gradients = {
        name: torch.randn(p.shape, generator=torch.Generator().manual_seed(7), dtype=torch.float64)
        for name, p in model.items()
    }
    sum((p * gradients[name].to(p.dtype)).sum() for name, p in model.items()).backward()  # type: ignore[union-attr]
    optimizer.step()
    torch.testing.assert_close(-model["f64"].detach(), gradients["f64"], rtol=1e-12, atol=1e-12)
    residuals = run.state_dict()["residuals"]
    assert residuals["b16"].any()
    assert residuals["f32"].any()
    assert not residuals["f64"].any()
    close = {"b16": 0.03, "f32": 0.02}
    for name, error in close.items():
        got = -model[name].detach().double()
        assert (got - gradients[name]).abs().max() < error
        same_everywhere(got.float())


def test_half_precision_is_coded_and_double_stays_exact() -> None:
    run_ranks(_half_and_double, "aab", "aab")


def _saved_and_loaded(me: Rank, hosts: str) -> None:
    between = Between(gradients="int4")
    sizes = (3000, 500)
    whole, _, optimizer = _trained(between, *sizes)
    for step in range(6):
        _step(whole, optimizer, _gradients(whole, step, me.rank))

    first, run, optimizer = _trained(between, *sizes)
    for step in range(3):
        _step(first, optimizer, _gradients(first, step, me.rank))
    file = io.BytesIO()
    torch.save({"model": first.state_dict(), "run": run.state_dict()}, file)
    file.seek(0)
    saved = torch.load(file)
    assert set(saved["run"]["residuals"]) == {"parts.0", "parts.1"}
    assert saved["run"]["residuals"]["parts.0"].shape == (3000,)

    second, run, optimizer = _trained(between, *sizes)
    second.load_state_dict(saved["model"])
    if hosts.index(hosts[me.rank]) == me.rank:  # one rank of a host is enough
        run.load_state_dict(saved["run"])
    for step in range(3, 6):
        _step(second, optimizer, _gradients(second, step, me.rank))
    assert torch.equal(_flat(second), _flat(whole))

    dist.barrier()
    run.load_state_dict({**saved["run"], "hosts": 9})  # the group has changed
    assert not any(r.any() for r in run.state_dict()["residuals"].values())
    dist.barrier()
    run.load_state_dict({**saved["run"], "residuals": {"parts.1": torch.full((500,), 0.25)}})
    residuals = run.state_dict()["residuals"]
    assert not residuals["parts.0"].any()
    assert (residuals["parts.1"] == 0.25).all()
    with pytest.raises(UsageError, match="no residuals"):
        run.load_state_dict({"model": {}})


@pytest.mark.parametrize("hosts", ["aab", "abc"])
def test_a_run_goes_on_from_its_saved_residuals_bit_by_bit(hosts: str) -> None:
    run_ranks(_saved_and_loaded, hosts, hosts)


def _not_finite(me: Rank, hosts: str) -> None:
    for name in ["exact", *CODECS]:
        model, run, optimizer = _trained(Between(gradients=name), 6000)
        gradients = _gradients(model, 0, me.rank)
        if me.rank == me.size - 1:
            gradients[0][[1000, 5000]] = torch.tensor([torch.inf, -torch.inf])
            gradients[0][3000] = torch.nan
        _step(model, optimizer, gradients)
        got = _flat(model)
        same_everywhere(got)
        assert got[[1000, 5000]].tolist() == [-torch.inf, torch.inf], name
        assert got[3000].isnan(), name
        assert all(r.isfinite().all() for r in run.state_dict()["residuals"].values())
        assert got[:512].isfinite().all()  # another block


@pytest.mark.parametrize("hosts", ["ab", "abc"])
def test_nan_and_infinities_reach_every_rank_and_no_residual(hosts: str) -> None:
    run_ranks(_not_finite, hosts, hosts)


def _warmed_up(me: Rank) -> None:
    exact, _, exact_optimizer = _trained(None, 5000)
    coded, run, optimizer = _trained(Between(gradients="int4", warmup_steps=2), 5000)
    for step in range(3):
        assert torch.equal(_flat(exact), _flat(coded))
        assert not run.state_dict()["residuals"]["parts.0"].any()
        for model, updates in ((exact, exact_optimizer), (coded, optimizer)):
            _step(model, updates, _gradients(model, step, me.rank))
    assert not torch.equal(_flat(exact), _flat(coded))
    assert run.state_dict()["residuals"]["parts.0"].any()


def test_the_first_steps_are_exact_if_asked_for() -> None:
    run_ranks(_warmed_up, "ab")


def _disagreeing(me: Rank) -> None:
    _trained(Between(gradients="int8" if me.rank else "int4"), 5)


def test_hosts_that_disagree_are_told_before_the_first_step() -> None:
    for outcome in watch_ranks(_disagreeing, "ab"):
        assert "gradients='int4'" in outcome.error
        assert "rank 1 SGD" in outcome.error
        assert "gradients='int8'" in outcome.error


def _alone(me: Rank) -> str:
    said = io.StringIO()
    logger.addHandler(logging.StreamHandler(said))
    model, run, optimizer = _trained(Between(gradients="int8"), 50)
    for step in range(2):
        _step(model, optimizer, _gradients(model, step, me.rank))
    assert run.state_dict() == {"host": 0, "hosts": 1, "residuals": {}}
    run.load_state_dict(run.state_dict())
    with pytest.raises(UsageError, match=r"wide\.Between\(gradients="):
        parallel(model, optimizer, between="int8")  # type: ignore[arg-type]
    return said.getvalue()


def test_on_one_host_it_does_nothing_and_says_so_once() -> None:
    first, second = run_ranks(_alone, 2)
    assert first.count("does nothing: all ranks are on one host") == 1
    assert not second


@pytest.mark.parametrize(
    ("given", "problem"),
    [
        ({"gradients": "int7"}, "no gradient codec 'int7'"),
        ({"gradients": "topk:2"}, "topk:0.01"),
        ({"gradients": ""}, "no gradient codec ''"),
        ({"every": ""}, "every='' is neither"),
        ({"warmup_steps": -1}, "warmup_steps=-1"),
        ({"warmup_steps": 0.5}, "warmup_steps=0.5"),
    ],
)
def test_bad_settings_are_refused_in_a_sentence(given: dict[str, Any], problem: str) -> None:
    with pytest.raises(UsageError, match=problem):
        Between(**given)
