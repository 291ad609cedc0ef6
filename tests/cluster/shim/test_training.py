"""Programs made for torchrun, unchanged, under a shim."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from tests.cluster.shim.test_end import start_changed
from tests.kit.shims import Attempt

# As in PyTorch's own tutorial: nothing of WIIIIIDE in it.
DDP = """
import os, sys
import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel

dist.init_process_group(sys.argv[1])
rank, size = dist.get_rank(), dist.get_world_size()
assert rank == int(os.environ["RANK"]) and size == int(os.environ["WORLD_SIZE"])
torch.manual_seed(0)
model = DistributedDataParallel(torch.nn.Linear(8, 1))
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
torch.manual_seed(rank)
for _ in range(5):
    optimizer.zero_grad()
    model(torch.randn(4, 8)).square().mean().backward()
    optimizer.step()
pair = dist.new_group([0, 1])
total = torch.tensor([float(rank)])
if rank < 2:
    dist.all_reduce(total, group=pair)
    assert total.item() == 1.0
dist.barrier()
weights = [torch.zeros(1, 8) for _ in range(size)]
dist.all_gather(weights, model.module.weight.data)
assert all(torch.equal(weights[0], other) for other in weights)
dist.destroy_process_group()
print(f"trained {rank} of {size}", flush=True)  # in one piece
if sys.argv[1] == "gloo":  # its threads may abort the process while the interpreter ends
    os._exit(0)
"""


@pytest.mark.parametrize("backend", ["gloo", "wiiiiide"])
def test_a_script_made_for_torchrun_trains(tmp_path: Path, backend: str) -> None:
    with Attempt(tmp_path, [sys.executable, "-c", DDP, backend], workers=3) as attempt:
        end = attempt.run()
        assert end.code == 0, end
        for rank in range(3):
            assert attempt.texts(rank) == [f"trained {rank} of 3"]


def test_a_group_can_be_made_again_and_again(tmp_path: Path) -> None:
    program = """
import torch, torch.distributed as dist
for time in range(3):
    dist.init_process_group("wiiiiide")
    objects = [None, None]
    dist.all_gather_object(objects, ("from", dist.get_rank()))
    assert objects == [("from", 0), ("from", 1)]
    dist.destroy_process_group()
print("three times", flush=True)
"""
    with Attempt(tmp_path, [sys.executable, "-c", program], workers=2) as attempt:
        assert attempt.run().code == 0
        assert attempt.texts(0) == attempt.texts(1) == ["three times"]


def test_the_address_can_be_given_by_hand(tmp_path: Path) -> None:
    program = """
import os, torch.distributed as dist
where = f"tcp://{os.environ['MASTER_ADDR']}:{os.environ['MASTER_PORT']}"
dist.init_process_group("gloo", where, rank=int(os.environ["RANK"]), world_size=2)
dist.monitored_barrier()
print("met", flush=True)
"""
    with Attempt(tmp_path, [sys.executable, "-c", program], workers=2) as attempt:
        assert attempt.run().code == 0
        assert attempt.texts(0) == attempt.texts(1) == ["met"]


def test_a_rank_that_dies_in_training_is_the_one_that_is_named(tmp_path: Path) -> None:
    program = """
import os, signal, torch, torch.distributed as dist
dist.init_process_group("wiiiiide")
for step in range(1000):
    if step == 5 and dist.get_rank() == 1:
        os.kill(os.getpid(), signal.SIGKILL)
    dist.all_reduce(torch.ones(10))
"""
    with Attempt(tmp_path, [sys.executable, "-c", program], workers=3) as attempt:
        start_changed(attempt, "supervisor.MOMENT_S = 60.0")
        end = attempt.end()
        assert (end.failed_rank, end.code) == (1, 137)
        assert end.codes["0"] == end.codes["2"] == 1  # each ended by itself, with its own word
        for rank in (0, 2):
            assert any("PeerLost" in text for text in attempt.texts(rank, "err"))


def test_the_statistics_of_a_rank_are_in_the_attempt(tmp_path: Path) -> None:
    program = """
import torch, torch.distributed as dist
dist.init_process_group("wiiiiide")
dist.all_reduce(torch.ones(10))
dist.destroy_process_group()
"""
    with Attempt(tmp_path, [sys.executable, "-c", program], workers=2) as attempt:
        assert attempt.run().code == 0
        for rank in range(2):
            page = memoryview((attempt.path / f"stats-{rank}").read_bytes()).cast("q")
            assert (page[4], page[5]) == (rank, 2)
            assert page[6] >= 1
