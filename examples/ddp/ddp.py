"""Plain DistributedDataParallel: a small net learns a curve, and survives a crash.

All that WIIIIIDE adds to an ordinary script is the backend's name and `progress`. The working
directory outlives a restart, so a checkpoint in it is enough to resume. On several machines each
has its own, and a restart may be on others: all save, and the latest is given to all.
"""

import argparse
import os
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel

from wiiiiided.torch import progress

CHECKPOINT = "checkpoint.pt"


def draw_batch(step: int, rank: int, size: int = 256) -> tuple[Tensor, Tensor]:
    """Points of a curve. Drawn from step and rank, so a resumed run sees what it would have."""
    generator = torch.Generator().manual_seed(1_000_003 * step + rank)
    x = 4 * torch.rand(size, 2, generator=generator) - 2
    return x, torch.sin(3 * x[:, :1]) * torch.cos(2 * x[:, 1:])


def save(state: dict[str, Any]) -> None:
    """Written beside and renamed: whenever the process dies, one whole checkpoint is there."""
    torch.save(state, f"{CHECKPOINT}.new")
    os.replace(f"{CHECKPOINT}.new", CHECKPOINT)


def load() -> Any:
    """The latest checkpoint that any machine has, or None."""
    own = torch.load(CHECKPOINT) if os.path.exists(CHECKPOINT) else None
    steps: list[Any] = [None] * dist.get_world_size()
    dist.all_gather_object(steps, 0 if own is None else own["step"])
    found = [own]
    dist.broadcast_object_list(found, src=steps.index(max(steps)))
    return found[0]


def main() -> None:
    parser = argparse.ArgumentParser(description="Learn a curve with DDP.")
    parser.add_argument("--steps", type=int, default=1500)
    parser.add_argument("--save-every", type=int, default=100)
    options = parser.parse_args()

    dist.init_process_group("wiiiiide")
    rank, saves = dist.get_rank(), os.environ["LOCAL_RANK"] == "0"
    torch.manual_seed(1)
    net = nn.Sequential(nn.Linear(2, 128), nn.Tanh(), nn.Linear(128, 128), nn.Tanh())
    net.append(nn.Linear(128, 1))
    model = DistributedDataParallel(net)
    optimizer = torch.optim.AdamW(net.parameters(), lr=2e-3)
    first = 1
    if (state := load()) is not None:
        net.load_state_dict(state["net"])
        optimizer.load_state_dict(state["optimizer"])
        first = state["step"] + 1
        print(f"goes on after step {state['step']}")

    for step in range(first, options.steps + 1):
        x, y = draw_batch(step, rank)
        loss = nn.functional.mse_loss(model(x), y)
        optimizer.zero_grad()
        loss.backward()  # type: ignore[no-untyped-call]
        optimizer.step()
        progress(step, total=options.steps, loss=loss.item(), samples=len(x))  # for wiiiiide top
        if step % options.save_every and step != options.steps:
            continue
        if saves:
            save({"net": net.state_dict(), "optimizer": optimizer.state_dict(), "step": step})
        if rank == 0:
            print(f"step {step:>5}/{options.steps}  loss {loss.item():.5f}  saved")
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
