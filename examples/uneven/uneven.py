"""Ranks of different speeds, with a plain sampler: each takes its share of every global batch.

The ranks learn what one process would learn from the whole batch, however it is split:
`run.samples` has the average of gradients count by samples. `wide.Batches` does all of this by
itself; this is for scripts with a sampler of their own.
"""

import argparse
import itertools
import time

import torch
import torch.distributed as dist
from torch import Tensor, nn

import wiiiiided.torch as wide

BATCH = 512  # of all ranks together


def draw_batch(step: int) -> tuple[Tensor, Tensor]:
    """A global batch: points of a curve, the same on every rank."""
    x = 4 * torch.rand(BATCH, 2, generator=torch.Generator().manual_seed(step)) - 2
    return x, torch.sin(3 * x[:, :1]) * torch.cos(2 * x[:, 1:])


def my_part(shares: tuple[float, ...], rank: int) -> slice:
    """This rank's part of a global batch: the parts of all ranks are the whole."""
    ends = [round(BATCH * end) for end in itertools.accumulate(shares)]
    return slice(ends[rank - 1] if rank else 0, ends[rank])


def main() -> None:
    parser = argparse.ArgumentParser(description="Learn a curve on ranks of different speeds.")
    parser.add_argument("--steps", type=int, default=6000)
    parser.add_argument("--slow", type=float, default=60e-6, help="s a sample on the last rank")
    options = parser.parse_args()

    dist.init_process_group("wiiiiide")
    rank, ranks = dist.get_rank(), dist.get_world_size()
    torch.manual_seed(1)
    net = nn.Sequential(nn.Linear(2, 128), nn.Tanh(), nn.Linear(128, 128), nn.Tanh())
    net.append(nn.Linear(128, 1))
    optimizer = torch.optim.AdamW(net.parameters(), lr=2e-3)
    run = wide.parallel(net, optimizer)
    for step in range(1, options.steps + 1):
        x, y = (part[my_part(run.shares, rank)] for part in draw_batch(step))
        if rank == ranks - 1:
            time.sleep(options.slow * len(x))  # a slow machine, made on purpose
        loss = nn.functional.mse_loss(net(x), y)
        run.samples(len(x))
        loss.backward()  # type: ignore[no-untyped-call]
        optimizer.step()
        optimizer.zero_grad()
        wide.progress(step, total=options.steps, loss=loss, samples=len(x))
        if rank == 0 and (step % 500 == 0 or step == options.steps):
            parts = " ".join(f"{100 * share:.0f} %" for share in run.shares)
            print(f"step {step:>5}/{options.steps}  loss {loss.item():.5f}  parts {parts}")
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
