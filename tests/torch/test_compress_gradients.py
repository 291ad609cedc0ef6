"""Lossy gradients between hosts under stock DDP: the same bits everywhere, and nothing is lost."""

from __future__ import annotations

import io
import logging
from typing import Any

import pytest
import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel

from tests.kit.ranks import Rank, run_ranks, watch_ranks
from tests.kit.residuals import residual_sum, same_everywhere
from wiiiiided.backend.collectives.wide.coded_all_reduce import shared_stretches
from wiiiiided.errors import UsageError
from wiiiiided.log import logger
from wiiiiided.torch import compress_gradients, links

SIZES = (40_000, 37, 5_000, 1, 70_000)
CODECS = ["bf16", "int8", "int4", "topk:0.01"]


class Weights(nn.Module):
    """Parameters whose gradient is what a test says, whatever their values are."""

    def __init__(self, dtype: torch.dtype = torch.float32) -> None:
        super().__init__()
        self.parts = nn.ParameterList(nn.Parameter(torch.zeros(n, dtype=dtype)) for n in SIZES)

    def forward(self, gradients: list[torch.Tensor]) -> torch.Tensor:
        return sum((p * g).sum() for p, g in zip(self.parts, gradients, strict=True))  # type: ignore[return-value]


def _gradients(step: int, rank: int, dtype: torch.dtype = torch.float32) -> list[torch.Tensor]:
    make = torch.Generator().manual_seed(1000 * step + rank)
    return [torch.randn(size, generator=make).to(dtype) for size in SIZES]


def _wrapped(dtype: torch.dtype = torch.float32) -> tuple[Any, Any]:
    """Of five parameters some share a bucket; DDP builds the buckets anew after one step."""
    model = DistributedDataParallel(Weights(dtype), bucket_cap_mb=0.1)
    return model, torch.optim.SGD(model.parameters(), lr=1.0)


def _train(me: Rank, model: Any, optimizer: Any, steps: range) -> None:
    for step in steps:
        optimizer.zero_grad()
        dtype = next(model.parameters()).dtype
        model(_gradients(step, me.rank, dtype)).backward()
        optimizer.step()
        same_everywhere(_flat(model))


def _flat(model: Any) -> torch.Tensor:
    return torch.cat([p.detach().flatten() for p in model.parameters()])


def _nothing_is_lost(me: Rank, hosts: str) -> None:
    for name in CODECS:
        model, optimizer = _wrapped()
        run = compress_gradients(model, name)
        _train(me, model, optimizer, range(4))
        assert model._get_ddp_logging_data()["has_rebuilt_buckets"]
        given = [torch.cat(_gradients(step, r)) for step in range(4) for r in range(me.size)]
        exact = -sum(given) / me.size
        missing = residual_sum(me, run, hosts)
        assert missing.any()
        torch.testing.assert_close(_flat(model) - missing, exact, rtol=1e-5, atol=1e-5, msg=name)
        assert any(report.gradients.startswith(name) for report in links())


@pytest.mark.parametrize("hosts", ["aab", "aabb", "abc"])
def test_all_ranks_have_the_same_bits_and_the_residuals_are_all_that_isresidual_sum(
    hosts: str,
) -> None:
    run_ranks(_nothing_is_lost, hosts, hosts)


class Large(nn.Module):
    """Of a size that goes through the host's slots, and over the wire, in several pieces."""

    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.zeros(6_000_000))

    def forward(self, gradient: torch.Tensor) -> torch.Tensor:
        return (self.weight * gradient).sum()


def _large(me: Rank) -> None:
    model = DistributedDataParallel(Large())
    run = compress_gradients(model, "int8")
    gradient = torch.arange(6_000_000).fmod(1000).float()
    model(gradient * (me.rank + 1)).backward()
    got = model.module.weight.grad
    same_everywhere(got)
    missing = residual_sum(me, run, "aabbb")
    torch.testing.assert_close(got + missing, gradient * 3, rtol=1e-5, atol=1e-3)


def test_large_buckets_go_piece_by_piece() -> None:
    run_ranks(_large, "aabbb")


def _uneven_inputs(me: Rank) -> None:
    """Inside `join`, ranks that have no more batches take part with zeros."""
    model, optimizer = _wrapped()
    compress_gradients(model, "int8")
    with model.join():
        for step in range(3 - me.rank):
            optimizer.zero_grad()
            model(_gradients(step, me.rank)).backward()
            optimizer.step()
    same_everywhere(_flat(model))


def test_ranks_may_have_different_numbers_of_batches() -> None:
    run_ranks(_uneven_inputs, "ab")


def _saved_and_loaded(me: Rank) -> None:
    whole, optimizer = _wrapped()
    compress_gradients(whole, "int4")
    _train(me, whole, optimizer, range(6))

    first, optimizer = _wrapped()
    run = compress_gradients(first, "int4")
    _train(me, first, optimizer, range(3))
    file = io.BytesIO()
    torch.save((first.state_dict(), run.state_dict()), file)
    file.seek(0)
    model_state, run_state = torch.load(file)
    assert set(run_state["residuals"]) == {f"parts.{i}" for i in range(5)}

    second, optimizer = _wrapped()
    second.load_state_dict(model_state)
    run = compress_gradients(second, "int4")
    run.load_state_dict(run_state)
    _train(me, second, optimizer, range(3, 6))
    # Another bucket cuts blocks elsewhere: not the same bits, and as little missing.
    torch.testing.assert_close(_flat(second), _flat(whole), rtol=0, atol=1.0)
    missing = residual_sum(me, run, "aab")
    given = [torch.cat(_gradients(step, r)) for step in range(6) for r in range(me.size)]
    exact = -sum(given) / me.size
    torch.testing.assert_close(_flat(second) - missing, exact, rtol=1e-5, atol=1e-5)


def test_residuals_are_saved_by_name_and_taken_back() -> None:
    run_ranks(_saved_and_loaded, "aab")


def _other_dtypes(me: Rank) -> None:
    half, optimizer = _wrapped(torch.bfloat16)
    run = compress_gradients(half, "int8")
    _train(me, half, optimizer, range(1))
    sent = [torch.cat(_gradients(0, r, torch.bfloat16)).float() for r in range(me.size)]
    torch.testing.assert_close(-_flat(half).float(), sum(sent) / me.size, rtol=0, atol=0.05)
    assert residual_sum(me, run, "ab").any()

    double, optimizer = _wrapped(torch.float64)
    run = compress_gradients(double, "int8")
    _train(me, double, optimizer, range(1))
    sent = [torch.cat(_gradients(0, r, torch.float64)) for r in range(me.size)]
    torch.testing.assert_close(-_flat(double), sum(sent) / me.size, rtol=1e-12, atol=1e-12)
    assert not residual_sum(me, run, "ab").any()


def test_half_precision_is_coded_and_double_stays_exact() -> None:
    run_ranks(_other_dtypes, "ab")


def _another_group(me: Rank) -> None:
    model, optimizer = _wrapped()
    run = compress_gradients(model, "int8")
    _train(me, model, optimizer, range(2))
    assert residual_sum(me, run, "abc").any()
    everyone, two = dist.group.WORLD, dist.new_group([0, 1])
    if me.rank < 2:
        model._update_process_group(two)
        dist.broadcast(before := _flat(model), 0, two)
        optimizer.zero_grad()
        model(_gradients(9, me.rank)).backward()
        optimizer.step()
        assert run.state_dict()["hosts"] == 2
        residuals = torch.cat([r.flatten() for r in run.state_dict()["residuals"].values()])
        dist.all_reduce(residuals, group=two)
        given = sum(torch.cat(_gradients(9, r)) for r in range(2)) / 2
        after = _flat(model) - residuals
        torch.testing.assert_close(after, before - given, rtol=1e-5, atol=1e-5)
    dist.barrier(everyone)


def test_residuals_begin_at_zero_when_the_model_gets_another_group() -> None:
    run_ranks(_another_group, "abc")


def _alone(me: Rank) -> str:
    said = io.StringIO()
    logger.addHandler(logging.StreamHandler(said))
    model, optimizer = _wrapped()
    run = compress_gradients(model, "int8")
    _train(me, model, optimizer, range(2))
    assert run.state_dict() == {"host": 0, "hosts": 1, "residuals": {}}
    with pytest.raises(UsageError, match="no gradient codec 'int7'"):
        compress_gradients(model, "int7")
    with pytest.raises(UsageError, match="takes a model in DistributedDataParallel, not a Weights"):
        compress_gradients(Weights(), "int8")  # type: ignore[arg-type]
    return said.getvalue()


def test_on_one_host_it_does_nothing_and_says_so_once() -> None:
    first, second = run_ranks(_alone, 2)
    assert first.count("does nothing: all ranks are on one host") == 1
    assert not second


def _once_more(me: Rank) -> None:
    model = _wrapped()[0]
    compress_gradients(model, "int8")
    with pytest.raises(UsageError, match="has a comm hook already"):
        compress_gradients(model, "int8")


def test_a_second_hook_is_refused() -> None:
    run_ranks(_once_more, "ab")


def _disagreeing(me: Rank) -> None:
    compress_gradients(_wrapped()[0], "int8" if me.rank else "int4")


def test_ranks_that_disagree_are_told_before_the_first_step() -> None:
    for outcome in watch_ranks(_disagreeing, "ab"):
        assert '"int4"), rank 1 with "int8"' in outcome.error


def test_shares_of_unequal_hosts_meet_in_stretches_that_one_rank_of_each_host_has() -> None:
    assert shared_stretches(600, [[0, 1], [2, 3, 4]]) == [
        (0, 256, (0, 2)),
        (256, 320, (0, 3)),
        (320, 512, (1, 3)),
        (512, 600, (1, 4)),
    ]
    assert shared_stretches(1, [[0, 1], [2]]) == [(0, 1, (0, 2))]
