"""FSDP2: a small transformer whose parameters are spread over all ranks, with checkpoints.

It learns to say a row of digits backwards. Each rank keeps a share of every weight, gradient and
optimizer state; `fully_shard` gathers a layer just before it is needed. The checkpoint is one file
with everything whole, so a later run may have more ranks or fewer. Every machine keeps one, as a
restart may be on others: the latest is given to all.
"""

import argparse
import os
from typing import Any, cast

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed.checkpoint.state_dict import (
    StateDictOptions,
    get_state_dict,
    set_state_dict,
)
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.nn import functional

from wiiiiided.torch import progress

CHECKPOINT = "checkpoint.pt"
DIGITS, LENGTH = 10, 12
WIDTH, HEADS, LAYERS = 64, 4, 2


class Net(nn.Module):
    """Digits in, for each place the scores of the digit that belongs there."""

    def __init__(self) -> None:
        super().__init__()
        self.digit = nn.Embedding(DIGITS, WIDTH)
        self.place = nn.Parameter(torch.randn(LENGTH, WIDTH))
        self.layers = nn.ModuleList(
            nn.TransformerEncoderLayer(WIDTH, HEADS, 4 * WIDTH, 0.0, batch_first=True)
            for _ in range(LAYERS)
        )
        self.head = nn.Linear(WIDTH, DIGITS)

    def forward(self, digits: Tensor) -> Tensor:
        x = self.digit(digits) + self.place
        for layer in self.layers:
            x = layer(x)
        return cast(Tensor, self.head(x)).clone()  # FSDP warns of views at a module's end


def draw_batch(step: int, rank: int, size: int = 32) -> tuple[Tensor, Tensor]:
    """Rows of digits and the same backwards. From step and rank: a resumed run sees the same."""
    generator = torch.Generator().manual_seed(1_000_003 * step + rank)
    digits = torch.randint(DIGITS, (size, LENGTH), generator=generator)
    return digits, digits.flip(1)


def save(net: nn.Module, optimizer: torch.optim.Optimizer, step: int) -> None:
    """All ranks gather the shares; one a machine writes them, beside and renamed: whole or not."""
    # Without cpu_offload: with it only rank 0 would be given the whole.
    whole = StateDictOptions(full_state_dict=True)
    weights, moments = get_state_dict(net, optimizer, options=whole)
    if os.environ["LOCAL_RANK"] == "0":
        torch.save({"net": weights, "optimizer": moments, "step": step}, f"{CHECKPOINT}.new")
        os.replace(f"{CHECKPOINT}.new", CHECKPOINT)


def load(net: nn.Module, optimizer: torch.optim.Optimizer) -> int:
    """All get the latest that any machine has, and keep their shares. The saved step, or 0."""
    own = torch.load(CHECKPOINT) if os.path.exists(CHECKPOINT) else None
    steps: list[Any] = [None] * dist.get_world_size()
    dist.all_gather_object(steps, 0 if own is None else own["step"])
    found = [own]
    dist.broadcast_object_list(found, src=steps.index(max(steps)))
    state = found[0]
    if state is None:
        return 0
    states = {"model_state_dict": state["net"], "optim_state_dict": state["optimizer"]}
    set_state_dict(net, optimizer, **states, options=StateDictOptions(full_state_dict=True))
    return int(state["step"])


def main() -> None:
    parser = argparse.ArgumentParser(description="Train a transformer with FSDP2.")
    parser.add_argument("--steps", type=int, default=200)
    parser.add_argument("--save-every", type=int, default=20)
    options = parser.parse_args()

    dist.init_process_group("wiiiiide")
    rank = dist.get_rank()
    mesh = init_device_mesh("cpu", (dist.get_world_size(),))
    torch.manual_seed(1)
    net = Net()
    for layer in net.layers:
        fully_shard(layer, mesh=mesh)
    fully_shard(net, mesh=mesh)
    optimizer = torch.optim.AdamW(net.parameters(), lr=1e-3)
    saved = load(net, optimizer)
    if saved:
        print(f"goes on after step {saved}")

    for step in range(saved + 1, options.steps + 1):
        digits, wanted = draw_batch(step, rank)
        loss = functional.cross_entropy(net(digits).flatten(0, 1), wanted.flatten())
        optimizer.zero_grad()
        loss.backward()  # type: ignore[no-untyped-call]
        optimizer.step()
        progress(step, total=options.steps, loss=loss.item(), samples=len(digits))
        if step % options.save_every == 0 or step == options.steps:
            save(net, optimizer, step)
            if rank == 0:
                print(f"step {step:>4}/{options.steps}  loss {loss.item():.4f}  saved")
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
