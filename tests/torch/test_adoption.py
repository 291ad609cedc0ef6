"""Buffers of stock DDP and FSDP2 come to lie in shared memory: same results, nothing lost."""

from __future__ import annotations

import gc
import hashlib
import os
import sys
from collections.abc import Iterable
from typing import Any

import numpy as np
import pytest
import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.fsdp import fully_shard
from torch.nn.parallel import DistributedDataParallel

from tests.kit.conditions import wait_until
from tests.kit.ranks import Rank, run_ranks
from wiiiiided.backend.engine.shared_tensors import PRIVATE, Offer
from wiiiiided.backend.shm.segment import Segment
from wiiiiided.backend.shm.stats import StatsPage
from wiiiiided.errors import HostError
from wiiiiided.torch import stats
from wiiiiided.torch.adoption import LEAST_BYTES, Adoption
from wiiiiided.torch.work import let_go

WIDTH, STEPS = 300, 6  # a layer's gradient is 361 kB: large enough to be adopted

Trained = tuple[bytes, int, int]  # a digest of the weights; how many buffers were adopted, bytes


def _model() -> nn.Sequential:
    torch.manual_seed(3)
    return nn.Sequential(nn.Linear(WIDTH, WIDTH), nn.Tanh(), nn.Linear(WIDTH, WIDTH))


def _train(model: nn.Module, me: Rank, steps: int = STEPS) -> None:
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    torch.manual_seed(100 + me.rank)
    for _ in range(steps):
        model(torch.randn(4, WIDTH)).square().mean().backward()
        optimizer.step()
        optimizer.zero_grad()


def _trained(weights: Iterable[torch.Tensor]) -> Trained:
    digest = hashlib.sha256()
    for weight in weights:
        digest.update(weight.detach().contiguous().view(torch.uint8).numpy())
    return digest.digest(), stats().adopted, stats().adopted_bytes


def _ddp(me: Rank, views: bool, dtype: torch.dtype = torch.float32, cap_mb: float = 0.2) -> Trained:
    model = _model().to(dtype)
    ddp = DistributedDataParallel(model, gradient_as_bucket_view=views, bucket_cap_mb=cap_mb)
    if dtype == torch.float32:
        _train(ddp, me)
    else:
        for step in range(STEPS):
            ddp(torch.full((2, WIDTH), me.rank + step / 8, dtype=dtype)).sum().backward()
            with torch.no_grad():
                for p in model.parameters():
                    p -= 1e-3 * p.grad  # type: ignore[operator]
                    p.grad = None
    return _trained(model.parameters())


def _assert_equal(ranks: list[Trained]) -> None:
    assert len({digest for digest, *_ in ranks}) == 1


@pytest.mark.parametrize("views", [False, True])
@pytest.mark.parametrize("size", [2, 3])
def test_buckets_of_ddp_move_and_train_to_the_same_bits(size: int, views: bool) -> None:
    moved = run_ranks(_ddp, size, views)
    stayed = run_ranks(_ddp, size, views, env={"WIIIIIDE_ADOPT": "off"})
    layer = (WIDTH + 1) * WIDTH * 4
    assert [trained[1:] for trained in moved] == [(2, 2 * layer)] * size
    assert [trained[1:] for trained in stayed] == [(0, 0)] * size
    _assert_equal(moved + stayed)


def _clips_by_numpy(me: Rank) -> tuple[list[float], int]:
    """Clip a gradient through a numpy view that was taken once."""
    model = nn.Linear(WIDTH, WIDTH, bias=False)
    nn.init.zeros_(model.weight)
    ddp = DistributedDataParallel(model, gradient_as_bucket_view=True)
    view: Any = None
    seen = []
    for step in range(5):
        model.zero_grad(set_to_none=False)
        (ddp(torch.ones(1, WIDTH)).sum() * (step + 1)).backward()
        assert model.weight.grad is not None
        if step == 1:  # buckets are made anew after the first
            view = model.weight.grad.numpy()
        if step:
            np.clip(view, -0.5, 0.5, out=view)
        seen.append(float(model.weight.grad.max()))
    return seen, stats().adopted


def test_a_bucket_whose_memory_numpy_has_stays_where_it_is() -> None:
    assert run_ranks(_clips_by_numpy, 2) == [([1.0, *[0.5] * 4], 0)] * 2


def test_buckets_in_half_precision_move_too() -> None:
    moved = run_ranks(_ddp, 2, True, torch.bfloat16)
    assert all(trained[1] for trained in moved)
    _assert_equal(moved + run_ranks(_ddp, 2, True, torch.bfloat16, env={"WIIIIIDE_ADOPT": "off"}))


def _ddp_unless_refused(me: Rank, how: str) -> Trained:
    if me.rank == 1 and how == "has no memory":
        reserve = Segment.reserve

        def refuse(segment: Segment, offset: int, nbytes: int) -> None:
            if nbytes < 1 << 20:  # staging is larger
                raise HostError("no memory")
            reserve(segment, offset, nbytes)

        Segment.reserve = refuse  # type: ignore[method-assign]
    return _ddp(me, True)


def test_a_rank_without_memory_keeps_all_where_they_are() -> None:
    ranks = run_ranks(_ddp_unless_refused, 2, "has no memory")
    assert [trained[1] for trained in ranks] == [0, 0]
    _assert_equal(ranks + run_ranks(_ddp, 2, True))


def _one_is_off(me: Rank) -> Trained:
    group: Any = dist.group.WORLD
    group._adoption.allowed = me.rank != 1
    return _ddp(me, False)


def test_a_rank_that_does_not_offer_keeps_all_where_they_are() -> None:
    ranks = run_ranks(_one_is_off, 3)
    assert [trained[1] for trained in ranks] == [0, 0, 0]
    _assert_equal(ranks + run_ranks(_ddp, 3, False))


def _uneven(me: Rank) -> Trained:
    """Rank 0 has fewer batches: inside `join` it takes part with tensors of its own."""
    ddp = DistributedDataParallel(_model(), bucket_cap_mb=0.2)
    with ddp.join():
        _train(ddp, me, 3 + 2 * me.rank)
    return _trained(ddp.module.parameters())


def test_ranks_that_join_late_batches_with_other_tensors() -> None:
    ranks = run_ranks(_uneven, 2)
    _assert_equal(ranks)
    assert all(trained[1] for trained in ranks)


def _own_tensor(me: Rank) -> None:
    tensor = torch.ones(WIDTH * WIDTH)
    for _ in range(4):
        dist.all_reduce(tensor)
    assert tensor[0] == 2**4
    tensor.resize_(2 * WIDTH * WIDTH)  # a moved one could not be
    assert stats().adopted == 0


def test_a_tensor_of_the_program_itself_is_not_moved() -> None:
    run_ranks(_own_tensor, 2)


def _segments() -> set[str]:
    with open("/proc/self/maps") as maps:
        return {line.split()[-2] for line in maps if "wiiiiide" in line}


def _gives_back(me: Rank) -> None:
    ddp = DistributedDataParallel(_model(), bucket_cap_mb=0.2)
    before = _segments()
    _train(ddp, me)
    assert len(_segments() - before) >= 2
    shared = dist.group.WORLD.engine_group.team.shared  # type: ignore[union-attr]
    assert not shared.empty
    dist.barrier()
    del ddp

    def is_gone() -> bool:
        gc.collect()
        let_go()  # as the next operation does: of Works that the model's reducer had
        return shared.empty

    wait_until(is_gone, 30, "the buckets' memory is given back")


def test_memory_goes_with_the_model() -> None:
    run_ranks(_gives_back, 2)


def _fsdp2(me: Rank, pool: bool) -> Trained:
    model = _model()
    for part in model:
        if isinstance(part, nn.Linear):
            fully_shard(part)
            if pool:
                part.set_allocate_memory_from_process_group_for_comm(True)  # type: ignore[operator]
    fully_shard(model)
    _train(model, me)
    return _trained(p.full_tensor() for p in model.parameters())  # type: ignore[attr-defined]


@pytest.mark.parametrize("size", [2, 3])
def test_buffers_of_fsdp2_come_from_the_group(size: int) -> None:
    pooled, own = run_ranks(_fsdp2, size, True), run_ranks(_fsdp2, size, False)
    _assert_equal(pooled + own)
    assert all(0 < trained[1] <= 4 for trained in pooled)
    assert all(trained[1] == 0 for trained in own)


def _pool(me: Rank) -> None:
    group: Any = dist.group.WORLD
    device = torch.device("cpu")
    assert group.supports_tensor_alloc(device)
    output = torch.empty(me.size * WIDTH * WIDTH)
    addresses = set()
    for step in range(12):
        whole = group.allocate_tensor(me.size * WIDTH * WIDTH, dtype=torch.float32, device=device)
        mine = whole[me.rank * WIDTH * WIDTH :][: WIDTH * WIDTH].fill_(me.rank + step)
        dist.all_gather_into_tensor(output, mine)
        for rank in range(me.size):
            assert (output[rank * WIDTH * WIDTH :][: WIDTH * WIDTH] == rank + step).all()
        addresses.add(whole.data_ptr())
        del whole, mine
    # The first was private and brought the pool one, which all others were.
    assert stats().adopted == 1
    assert len(addresses) == 2


def test_a_pool_of_one_serves_a_loop() -> None:
    run_ranks(_pool, 2)


def _off(me: Rank) -> None:
    group: Any = dist.group.WORLD
    assert os.environ["WIIIIIDE_ADOPT"] == "off"
    assert not group.supports_tensor_alloc(torch.device("cpu"))


def test_buffers_come_back_while_another_is_taken() -> None:
    count, adoption = LEAST_BYTES // 4, Adoption(True, StatsPage())
    offers = [adoption.buffer(adoption.allocate(count, torch.float32)) for _ in range(32)]
    for offer in offers:
        assert isinstance(offer, Offer)
        offer.take(np.zeros(LEAST_BYTES, np.uint8))
    lent = [adoption.allocate(count, torch.float32) for _ in range(24)]

    def give_back(*event: Any) -> None:  # where another thread could come in
        if lent:
            lent.pop()

    sys.setprofile(give_back)
    try:
        adoption.allocate(count, torch.float32)
    finally:
        sys.setprofile(None)
    lent.clear()
    taken = [adoption.allocate(count, torch.float32) for _ in range(32)]
    assert len({tensor.data_ptr() for tensor in taken}) == 32
    assert all(adoption.buffer(tensor) == PRIVATE for tensor in taken)  # all are the pool's


def test_off_means_no_allocator() -> None:
    run_ranks(_off, 2, env={"WIIIIIDE_ADOPT": "off"})
