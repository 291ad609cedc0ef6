"""What the backend is for: DDP, FSDP, DTensor, checkpoints and objects, as PyTorch ships them."""

from __future__ import annotations

import shutil
import tempfile
import warnings
from collections.abc import Iterator
from typing import Any

import pytest
import torch
import torch.distributed as dist
import torch.distributed.checkpoint as checkpoint
from torch import nn
from torch.distributed.algorithms.ddp_comm_hooks import default_hooks
from torch.distributed.checkpoint.state_dict import (
    StateDictOptions,
    get_model_state_dict,
    set_model_state_dict,
)
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import FullyShardedDataParallel, fully_shard
from torch.distributed.tensor import DTensor, Partial, Replicate, Shard, distribute_tensor
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, TensorDataset
from torch.utils.data.distributed import DistributedSampler

from tests.kit.data import assert_same, random_of, reduced
from tests.kit.ranks import Rank, run_ranks

STEPS, BATCH, WIDTH = 6, 4, 33


class Model(nn.Module):
    """Small, with a branch that may stay unused."""

    def __init__(self) -> None:
        super().__init__()
        self.first = nn.Linear(WIDTH, 64)
        self.second = nn.Linear(64, 65)
        self.side = nn.Linear(64, 65)
        self.last = nn.Linear(65, 1)

    def forward(self, x: torch.Tensor, side: bool = False) -> torch.Tensor:
        h = torch.tanh(self.first(x))
        return self.last(torch.tanh((self.side if side else self.second)(h)))


def _model() -> Model:
    torch.manual_seed(5)
    return Model()


def _batch(step: int, rank: int, size: int) -> tuple[torch.Tensor, torch.Tensor]:
    """The part of one rank of the batch of a step; rank -1: all of it."""
    x = random_of(step, (BATCH * size, WIDTH), salt=77)
    y = x.sum(1, keepdim=True).sin()
    if rank < 0:
        return x, y
    part = slice(BATCH * rank, BATCH * (rank + 1))
    return x[part], y[part]


def _train(
    model: nn.Module, parameters: Iterator[nn.Parameter], rank: int, size: int, **options: Any
) -> list[float]:
    """The losses of a few steps of plain SGD with momentum."""
    optimizer = torch.optim.SGD(parameters, lr=0.05, momentum=0.9)
    losses = []
    for step in range(STEPS):
        x, y = _batch(step, rank, size)
        loss = nn.functional.mse_loss(model(x, **options), y)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    return losses


def _alone(size: int, **options: Any) -> tuple[dict[str, torch.Tensor], list[float]]:
    """One process with the N-fold batch."""
    model = _model()
    losses = _train(model, model.parameters(), -1, size, **options)
    return {name: p.detach() for name, p in model.named_parameters()}, losses


def _assert_trained_alike(got: dict[str, torch.Tensor], size: int, **options: Any) -> None:
    want, _ = _alone(size, **options)
    assert got.keys() == want.keys()
    for name, value in got.items():
        torch.testing.assert_close(value, want[name], rtol=1e-5, atol=1e-6)


def _assert_losses_alike(losses: list[float], size: int, **options: Any) -> None:
    mean = torch.tensor(losses)
    dist.all_reduce(mean, dist.ReduceOp.AVG)
    torch.testing.assert_close(mean, torch.tensor(_alone(size, **options)[1]), rtol=1e-5, atol=1e-6)


def _weights(model: nn.Module) -> dict[str, torch.Tensor]:
    return {name: p.detach() for name, p in model.named_parameters()}


def _ddp(me: Rank) -> None:
    for bucket_mb in (25, 0.005):  # one bucket, and several
        for view in (False, True):
            model = DistributedDataParallel(
                _model(),
                bucket_cap_mb=bucket_mb,
                gradient_as_bucket_view=view,
                find_unused_parameters=True,
            )
            losses = _train(model, model.parameters(), me.rank, me.size)
            _assert_trained_alike(_weights(model.module), me.size)
            _assert_losses_alike(losses, me.size)


@pytest.mark.parametrize("size", [2, 3])
def test_ddp_equals_one_process_with_the_whole_batch(size: int) -> None:
    run_ranks(_ddp, size)


def _unused(me: Rank) -> None:
    model = DistributedDataParallel(_model(), find_unused_parameters=True)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    before = _weights(model.module)["side.weight"].clone()
    for step in range(4):  # another branch on every rank, then the side branch on none
        x, y = _batch(step, me.rank, me.size)
        optimizer.zero_grad()
        nn.functional.mse_loss(model(x, side=bool((me.rank + step) % 2)), y).backward()
        optimizer.step()
    for name, p in _weights(model.module).items():
        every = [torch.empty_like(p) for _ in range(me.size)]
        dist.all_gather(every, p)
        for other in every:
            assert_same(other, p, name)
    assert not torch.equal(before, _weights(model.module)["side.weight"])


def test_ddp_finds_unused_parameters() -> None:
    run_ranks(_unused, 2)


def _no_sync(me: Rank) -> None:
    model = DistributedDataParallel(_model(), find_unused_parameters=True)
    alone = _model()
    with model.no_sync():
        nn.functional.mse_loss(*_pair(model, 0, me)).backward()
    mine = model.module.first.weight.grad.clone()
    every = [torch.empty_like(mine) for _ in range(me.size)]
    dist.all_gather(every, mine)
    assert any(not torch.equal(other, mine) for other in every), "gradients stay at home"
    nn.functional.mse_loss(*_pair(model, 1, me)).backward()
    for step in (0, 1):
        x, y = _batch(step, -1, me.size)
        nn.functional.mse_loss(alone(x), y).backward()
    for p, q in zip(model.module.parameters(), alone.parameters(), strict=True):
        if q.grad is not None:
            torch.testing.assert_close(p.grad, q.grad, rtol=1e-5, atol=1e-6)


def _pair(model: nn.Module, step: int, me: Rank) -> tuple[torch.Tensor, torch.Tensor]:
    x, y = _batch(step, me.rank, me.size)
    return model(x), y


def test_ddp_accumulates_gradients_with_no_sync() -> None:
    run_ranks(_no_sync, 2)


def _hooks(me: Rank) -> None:
    # Without annotations: torch compares them, and here they would be strings.
    def own_hook(state, bucket):  # type: ignore[no-untyped-def]
        work = dist.all_reduce(bucket.buffer(), async_op=True)
        return work.get_future().then(lambda f: f.value()[0] / me.size)

    def gathering(state, bucket):  # type: ignore[no-untyped-def]
        flat = torch.empty(me.size, bucket.buffer().numel())
        work = dist.all_gather_into_tensor(flat, bucket.buffer(), async_op=True)
        return work.get_future().then(lambda f: f.value()[0].view(me.size, -1).mean(0))

    for hook in (own_hook, gathering, default_hooks.allreduce_hook):
        model = DistributedDataParallel(_model(), bucket_cap_mb=0.005, find_unused_parameters=True)
        model.register_comm_hook(None, hook)
        _train(model, model.parameters(), me.rank, me.size)
        _assert_trained_alike(_weights(model.module), me.size)
    model = DistributedDataParallel(_model(), find_unused_parameters=True)
    model.register_comm_hook(None, default_hooks.fp16_compress_hook)
    losses = _train(model, model.parameters(), me.rank, me.size)
    assert losses[-1] == losses[-1]


def test_ddp_communication_hooks_work() -> None:
    run_ranks(_hooks, 2)


def _sparse(me: Rank) -> None:
    torch.manual_seed(3)
    alone = nn.Sequential(nn.Embedding(50, 8, sparse=True), nn.Linear(8, 1))
    torch.manual_seed(3)
    model = nn.Sequential(nn.Embedding(50, 8, sparse=True), nn.Linear(8, 1))
    wrapped = DistributedDataParallel(model)
    words = torch.arange(4 * me.size) * 7 % 50
    for module, part in ((alone, words), (wrapped, words.chunk(me.size)[me.rank])):
        optimizer = torch.optim.SGD(module.parameters(), lr=0.1)
        for _ in range(3):
            optimizer.zero_grad()
            module(part).square().mean().backward()
            optimizer.step()
    for p, q in zip(model.parameters(), alone.parameters(), strict=True):
        torch.testing.assert_close(p, q, rtol=1e-5, atol=1e-6)


def test_ddp_trains_a_sparse_embedding() -> None:
    run_ranks(_sparse, 2)


def _data_loader(me: Rank) -> int:
    x = random_of(0, (48, WIDTH))
    data = TensorDataset(x, x.sum(1, keepdim=True))
    sampler = DistributedSampler(data, me.size, me.rank)
    loader = DataLoader(data, BATCH, sampler=sampler, num_workers=2)
    model = DistributedDataParallel(_model(), find_unused_parameters=True)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    steps = 0
    for epoch in range(2):  # workers are forked while the group is alive, twice
        sampler.set_epoch(epoch)
        for inputs, targets in loader:
            optimizer.zero_grad()
            nn.functional.mse_loss(model(inputs), targets).backward()
            optimizer.step()
            steps += 1
    weight = model.module.first.weight.detach()
    every = [torch.empty_like(weight) for _ in range(me.size)]
    dist.all_gather(every, weight)
    for other in every:
        assert_same(other, weight, "the weights")
    return steps


def test_ddp_trains_with_a_data_loader_that_forks_workers() -> None:
    assert run_ranks(_data_loader, 2) == [12, 12]


def _fsdp2(me: Rank, folder: str) -> None:
    model = _model()
    for part in (model.first, model.second, model.side, model.last):
        fully_shard(part)
    fully_shard(model)
    losses = _train(model, model.parameters(), me.rank, me.size)
    _assert_losses_alike(losses, me.size)
    full = {name: p.full_tensor().detach() for name, p in model.named_parameters()}
    _assert_trained_alike(full, me.size)
    checkpoint.save(get_model_state_dict(model), checkpoint_id=folder)


def _fsdp2_load(me: Rank, folder: str, trained_on: int) -> None:
    model = _model()
    for p in model.parameters():
        nn.init.zeros_(p)
    for part in (model.first, model.second, model.side, model.last):
        fully_shard(part)
    fully_shard(model)
    state = get_model_state_dict(model)
    checkpoint.load(state, checkpoint_id=folder)
    set_model_state_dict(model, state)
    full = {name: p.full_tensor().detach() for name, p in model.named_parameters()}
    _assert_trained_alike(full, trained_on)


def _saves_beside_training(me: Rank, folder: str) -> None:
    torch.manual_seed(0)
    model = Model()
    fully_shard(model, mesh=init_device_mesh("cpu", (me.size,)))
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # torch's own, on its interface
        checkpoint.async_save(get_model_state_dict(model), checkpoint_id=folder).result()
        full = {name: p.full_tensor() for name, p in model.named_parameters()}
        options = StateDictOptions(full_state_dict=True, broadcast_from_rank0=True)
        given = {name: p.clone() + 1 for name, p in full.items()} if me.rank == 0 else {}
        set_model_state_dict(model, given, options=options)
    for name, p in model.named_parameters():
        assert torch.equal(p.full_tensor(), full[name] + 1)


def test_checkpoints_are_written_beside_the_training_and_spread_from_rank_0() -> None:
    folder = tempfile.mkdtemp(prefix="wiiiiide-checkpoint-")
    try:
        run_ranks(_saves_beside_training, 2, folder)
    finally:
        shutil.rmtree(folder)


def test_fsdp2_trains_and_its_checkpoint_of_three_ranks_loads_on_two() -> None:
    folder = tempfile.mkdtemp(prefix="wiiiiide-checkpoint-")
    try:
        run_ranks(_fsdp2, 3, folder)
        run_ranks(_fsdp2_load, 2, folder, 3)
    finally:
        shutil.rmtree(folder)


def _fsdp1(me: Rank) -> None:
    model = FullyShardedDataParallel(_model(), device_id=torch.device("cpu"), use_orig_params=True)
    losses = _train(model, model.parameters(), me.rank, me.size)
    _assert_losses_alike(losses, me.size)
    with FullyShardedDataParallel.summon_full_params(model):
        full = {
            name.removeprefix("_fsdp_wrapped_module."): p.detach().clone()
            for name, p in model.named_parameters()
        }
    _assert_trained_alike(full, me.size)


def test_fsdp1_equals_one_process_with_the_whole_batch() -> None:
    run_ranks(_fsdp1, 2)


def _dtensor(me: Rank) -> None:
    mesh = init_device_mesh("cpu", (me.size,))
    for shape in ((7, 5), (me.size * 40, 300)):
        whole = random_of(0, shape)
        for start in (Shard(0), Shard(1), Replicate()):
            x = distribute_tensor(whole, mesh, [start])
            for end in (Replicate(), Shard(1), Shard(0)):
                y = x.redistribute(mesh, [end])
                assert_same(y.full_tensor(), whole, f"{shape}: {start} to {end}")
        mine = [random_of(r, shape, salt=1) for r in range(me.size)]
        partial = DTensor.from_local(mine[me.rank], mesh, [Partial()])
        assert_same(partial.full_tensor(), reduced("SUM", mine), "partial to whole")
        split = partial.redistribute(mesh, [Shard(0)])
        assert_same(split.full_tensor(), reduced("SUM", mine), "partial to split")
        product = distribute_tensor(whole, mesh, [Shard(0)]) @ distribute_tensor(
            whole.t().contiguous(), mesh, [Replicate()]
        )
        torch.testing.assert_close(product.full_tensor(), whole @ whole.t())


@pytest.mark.parametrize("size", [2, 3])
def test_dtensors_are_redistributed(size: int) -> None:
    run_ranks(_dtensor, size)


def _mesh(me: Rank) -> None:
    mesh = init_device_mesh("cpu", (2, 2), mesh_dim_names=("data", "model"))
    x = torch.full((3,), float(me.rank))
    dist.all_reduce(x, group=mesh.get_group("model"))
    assert x.tolist() == [1.0 if me.rank < 2 else 5.0] * 3
    y = torch.full((3,), float(me.rank))
    dist.all_reduce(y, group=mesh["data"].get_group())
    assert y.tolist() == [2.0 if me.rank % 2 == 0 else 4.0] * 3
    whole = random_of(0, (6, 8))
    z = distribute_tensor(whole, mesh, [Shard(0), Shard(1)])
    assert_same(z.full_tensor(), whole, "split both ways")


def test_a_mesh_of_two_dimensions_has_groups_of_its_own() -> None:
    run_ranks(_mesh, 4)


def _objects(me: Rank) -> None:
    for mine in ({"rank": me.rank, "text": "ä" * (me.rank + 1)}, ["x" * 100_000 * me.rank]):
        every: list[Any] = [None] * me.size
        dist.all_gather_object(every, mine)
        assert every[me.rank] == mine
        assert len({repr(item) for item in every}) == me.size
        items: list[Any] = [mine, 2, None] if me.rank == 1 else [None] * 3
        dist.broadcast_object_list(items, 1)
        assert items == [every[1], 2, None]
        gathered: list[Any] | None = [None] * me.size if me.rank == 0 else None
        dist.gather_object(mine, gathered, 0)
        assert gathered is None or gathered == every
        got: list[Any] = [None]
        dist.scatter_object_list(got, every if me.rank == 2 else None, 2)
        assert got == [mine]
    if me.rank == 0:
        dist.send_object_list(["hello", 7], 1)
    elif me.rank == 1:
        received: list[Any] = [None, None]
        dist.recv_object_list(received, 0)
        assert received == ["hello", 7]


def test_objects_are_exchanged() -> None:
    run_ranks(_objects, 3)


def _by_hand(me: Rank) -> None:
    # A program that averages its own gradients, without DDP.
    model = _model()
    x, y = _batch(0, me.rank, me.size)
    nn.functional.mse_loss(model(x), y).backward()
    works = [
        dist.all_reduce(p.grad, dist.ReduceOp.AVG, async_op=True)
        for p in model.parameters()
        if p.grad is not None
    ]
    for work in works:
        work.wait()
    alone = _model()
    x, y = _batch(0, -1, me.size)
    nn.functional.mse_loss(alone(x), y).backward()
    norm = nn.utils.clip_grad_norm_(model.parameters(), 1.0)
    torch.testing.assert_close(norm, nn.utils.clip_grad_norm_(alone.parameters(), 1.0))


def test_gradients_averaged_by_hand_are_those_of_the_whole_batch() -> None:
    run_ranks(_by_hand, 3)
