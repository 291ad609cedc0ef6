"""A rank that trains one network several ways: alone, under DDP and FSDP2, with wide.parallel.

Started by lib/fleet.py or lib/hosts.py; waits for messages from train_step.py, slow_links.py
and train_memory.py.
"""

import gc
import hashlib
import itertools
import os
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

import psutil
import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.fsdp import fully_shard
from torch.distributed.tensor import DTensor
from torch.nn.parallel import DistributedDataParallel

import wiiiiided.torch as wide
from lib import groups, link
from lib.link import Message

_WIDTHS = (1024, 2048, 2048, 2048, 1024)
BATCH = 16
_PROOF_STEPS = 3
OPTIMIZERS: dict[str, Callable[[Iterator[nn.Parameter]], torch.optim.Optimizer]] = {
    "sgd": lambda parameters: torch.optim.SGD(parameters, lr=0.05),
    "adamw": lambda parameters: torch.optim.AdamW(parameters, lr=1e-3, fused=True),
}


def network(widths: Sequence[int]) -> nn.Sequential:
    """The same on every rank; by default 12.6 million parameters."""
    torch.manual_seed(7)
    layers: list[nn.Module] = []
    for width, following in itertools.pairwise(widths):
        layers += [nn.Linear(width, following), nn.ReLU()]
    return nn.Sequential(*layers[:-1])


def _shard(model: nn.Module, group: dist.ProcessGroup | None) -> None:
    """FSDP2, its buffers from the group where the group gives any."""
    assert group is not None
    mesh = DeviceMesh.from_group(group, "cpu")
    parts = [module for module in model if isinstance(module, nn.Linear)]  # type: ignore[attr-defined]
    for module in (*parts, model):
        fully_shard(module, mesh=mesh)
        if hasattr(group, "supports_tensor_alloc"):
            module.set_allocate_memory_from_process_group_for_comm(True)  # type: ignore[operator]


def _exchange_nothing(_, bucket):  # type: ignore[no-untyped-def]
    done: torch.futures.Future[torch.Tensor] = torch.futures.Future()
    done.set_result(bucket.buffer())
    return done


@dataclass
class Trainer:
    """A network with its data, which differ by rank, and its optimizer."""

    model: nn.Module
    batch: torch.Tensor
    wanted: torch.Tensor
    optimizer: torch.optim.Optimizer
    run: wide.Parallel | None = None

    def step(self) -> None:
        self.optimizer.zero_grad()
        loss = nn.functional.mse_loss(self.model(self.batch), self.wanted)
        loss.backward()  # type: ignore[no-untyped-call]
        self.optimizer.step()

    def every(self) -> int:
        """The steps of the round that begins."""
        outer = self.run.state_dict().get("outer") if self.run is not None else None
        return int(outer["every"]) if outer is not None else 1

    def digest(self) -> str:
        whole = hashlib.sha256()
        for parameter in self.parameters():
            whole.update(parameter.numpy().tobytes())
        return whole.hexdigest()

    def parameters(self) -> Iterator[torch.Tensor]:
        """Whole, also those of which a rank holds only a part."""
        for parameter in self.model.parameters():
            whole = parameter.full_tensor() if isinstance(parameter, DTensor) else parameter
            yield whole.detach()


class TrainingRank:
    """This rank's trainers, by contender; without a backend nothing is exchanged."""

    def __init__(self) -> None:
        self.rank = groups.join()
        self._trainers: dict[str, Trainer] = {}

    def open(self, message: Message) -> Message:
        """Makes a trainer and returns what its parameters are after a few steps."""
        widths = message.get("widths", _WIDTHS)
        model: nn.Module = network(widths)
        parameters = sum(parameter.numel() for parameter in model.parameters())
        group = None if message["backend"] is None else groups.open_group(message["backend"])
        way = message["way"]
        if way == "fsdp":
            _shard(model, group)
        elif way in ("ddp", "ddp without exchange"):
            ddp = DistributedDataParallel(
                model, process_group=group, gradient_as_bucket_view=message["views"]
            )
            if way == "ddp without exchange":
                ddp.register_comm_hook(None, _exchange_nothing)
            model = ddp
        optimizer = OPTIMIZERS[message["optimizer"]](model.parameters())
        run = None
        if way == "parallel":
            between = wide.Between(**message.get("between", {}))
            run = wide.parallel(model, optimizer, group=group, between=between)
        elif way == "host apart" or (
            way == "host alone" and int(os.environ["LOCAL_WORLD_SIZE"]) > 1
        ):
            wide.parallel(model, optimizer, group=groups.open_host_group("wiiiiide"))
        source = torch.Generator().manual_seed(100 + self.rank)
        trainer = Trainer(
            model,
            torch.randn(BATCH, widths[0], generator=source),
            torch.randn(BATCH, widths[-1], generator=source),
            optimizer,
            run,
        )
        for _ in range(message.get("steps", _PROOF_STEPS)):
            trainer.step()
        if run is not None:
            run.agree()  # fragments that are still under way
        self._trainers[message["contender"]] = trainer
        if not message.get("proof", True):
            return {"parameters": parameters}
        total = sum(p.double().abs().sum().item() for p in trainer.parameters())
        return {"digest": trainer.digest(), "sum": total, "parameters": parameters}

    def measure(self, message: Message) -> Message:
        trainer = self._trainers[message["contender"]]
        for _ in range(message["warmup"]):
            trainer.step()
        taken = []
        for _ in range(message["iterations"]):
            begin = time.perf_counter_ns()
            trainer.step()
            taken.append(time.perf_counter_ns() - begin)
        return {"ns": taken, "every": trainer.every()}

    def memory(self, message: Message) -> Message:
        """The bytes of this process: of a page that several map, its part."""
        gc.collect()
        return {"pss": psutil.Process().memory_full_info().pss}

    def stop(self, message: Message) -> Message:
        self._trainers.clear()
        groups.leave()
        return {}


if __name__ == "__main__":
    link.run(TrainingRank)
