"""`wide.parallel`: the ranks of a machine train one copy of the weights, in shared memory.

The loop is that of one process. Weights and optimizer state are rank 0's when `parallel` is called,
so it is enough that rank 0 has loaded the checkpoint; and they are whole, so rank 0 alone saves.
"""

import argparse
import os

import torch
import torch.distributed as dist
from torch import Tensor, nn

import wiiiiided.torch as wide

CHECKPOINT = "checkpoint.pt"


def draw_batch(step: int, rank: int, size: int = 256) -> tuple[Tensor, Tensor]:
    """Points of a curve. Drawn from step and rank, so a resumed run sees what it would have."""
    generator = torch.Generator().manual_seed(1_000_003 * step + rank)
    x = 4 * torch.rand(size, 2, generator=generator) - 2
    return x, torch.sin(3 * x[:, :1]) * torch.cos(2 * x[:, 1:])


def main() -> None:
    parser = argparse.ArgumentParser(description="Learn a curve with one copy of the weights.")
    parser.add_argument("--steps", type=int, default=1500)
    parser.add_argument("--save-every", type=int, default=100)
    options = parser.parse_args()

    dist.init_process_group("wiiiiide")
    rank = dist.get_rank()
    torch.manual_seed(1)
    net = nn.Sequential(nn.Linear(2, 128), nn.Tanh(), nn.Linear(128, 128), nn.Tanh())
    net.append(nn.Linear(128, 1))
    optimizer = torch.optim.AdamW(net.parameters(), lr=2e-3)
    done = torch.zeros((), dtype=torch.int64)
    if rank == 0 and os.path.exists(CHECKPOINT):
        state = torch.load(CHECKPOINT)
        net.load_state_dict(state["net"])
        optimizer.load_state_dict(state["optimizer"])
        done.fill_(state["step"])
        print(f"goes on after step {done}")
    dist.broadcast(done, 0)

    run = wide.parallel(net, optimizer)
    for step in range(int(done) + 1, options.steps + 1):
        x, y = draw_batch(step, rank)
        loss = nn.functional.mse_loss(net(x), y)
        loss.backward()  # type: ignore[no-untyped-call]
        run.clip_grad_norm_(1.0)
        optimizer.step()
        optimizer.zero_grad()
        wide.progress(step, total=options.steps, loss=loss, samples=len(x))  # for wiiiiide top
        if rank == 0 and (step % options.save_every == 0 or step == options.steps):
            saved = {"net": net.state_dict(), "optimizer": optimizer.state_dict(), "step": step}
            torch.save(saved, f"{CHECKPOINT}.new")
            os.replace(f"{CHECKPOINT}.new", CHECKPOINT)  # whenever it dies, one whole file is there
            print(f"step {step:>5}/{options.steps}  loss {loss.item():.5f}  saved")
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
