"""torch.compile round the backend: compiled code calls it, and Dynamo stays out of it."""

from __future__ import annotations

import subprocess
import sys

import pytest
import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.fsdp import FullyShardedDataParallel
from torch.nn.parallel import DistributedDataParallel

from tests.kit.data import random_of
from tests.kit.ranks import Rank, run_ranks
from wiiiiided.backend.engine.process import stats_page
from wiiiiided.backend.shm.stats import STEP
from wiiiiided.torch import monitored_barrier, progress


def _model() -> nn.Module:
    torch.manual_seed(5)
    return nn.Sequential(nn.Linear(8, 16), nn.Tanh(), nn.Linear(16, 4))


def _gradients(me: Rank, model: nn.Module, run: nn.Module) -> list[torch.Tensor]:
    for step in range(2):  # the second one has DDP's rebuilt buckets
        model.zero_grad()
        run(random_of(me.rank, (5, 8), salt=step)).square().sum().backward()
    return [p.grad.clone() for p in model.parameters() if p.grad is not None]


def _compiled_trainers(me: Rank) -> None:
    plain = DistributedDataParallel(_model())
    want = _gradients(me, plain, plain)
    wrapped = DistributedDataParallel(_model())
    torch.testing.assert_close(
        _gradients(me, wrapped, torch.compile(wrapped, backend="eager")), want
    )
    torch._dynamo.reset()
    itself = DistributedDataParallel(_model())
    itself.compile(backend="eager")
    torch.testing.assert_close(_gradients(me, itself, itself), want)
    torch._dynamo.reset()
    sharded = FullyShardedDataParallel(
        _model(), device_id=torch.device("cpu"), use_orig_params=True
    )
    _gradients(me, sharded, torch.compile(sharded, backend="eager"))


@pytest.mark.filterwarnings("ignore")
def test_compiled_ddp_and_fsdp_train_as_uncompiled_ones() -> None:
    run_ranks(_compiled_trainers, 2, timeout_s=200)


def _plain_calls(me: Rank) -> None:
    def step(x: torch.Tensor) -> list[torch.Tensor]:
        total, first, sent = x + 1, x + 2, x * 3
        work = dist.all_reduce(total, async_op=True)
        work.wait()
        dist.broadcast(first, 0)
        dist.reduce(x, 1)
        dist.barrier()
        if me.rank == 0:
            dist.send(sent, 1)
        else:
            dist.recv(sent, 0)
        monitored_barrier()
        progress(7, loss=total.sum())
        return [total * 2, first * 2, sent * 2]

    found = torch.compile(step, backend="eager")(torch.full((3,), float(me.rank)))
    assert [t.tolist() for t in found] == [[6.0] * 3, [4.0] * 3, [0.0] * 3]
    assert stats_page().words[STEP] == 7 + 1


def test_plain_calls_in_compiled_code_do_what_they_do_outside() -> None:
    run_ranks(_plain_calls, 2, timeout_s=200)


def test_the_backend_does_not_import_dynamo() -> None:
    program = "import sys, wiiiiided.torch; print('torch._dynamo' in sys.modules)"
    ran = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, timeout=100, check=True
    )
    assert ran.stdout.strip() == "False"
