"""Kill it, start it again on another number of ranks: it goes on, and every sample counts once.

`wide.Batches` has one order of samples for any number of ranks, and `wide.parallel` saves weights,
optimizer, schedule, place in the data and random numbers together, between two steps.
"""

import argparse
import time

import torch
import torch.distributed as dist
from torch import nn
from torch.utils.data import TensorDataset

import wiiiiided.torch as wide


def draw_curve(samples: int) -> TensorDataset:
    """Points of a curve, the same on every rank."""
    x = 4 * torch.rand(samples, 2, generator=torch.Generator().manual_seed(1)) - 2
    return TensorDataset(x, torch.sin(3 * x[:, :1]) * torch.cos(2 * x[:, 1:]))


def main() -> None:
    parser = argparse.ArgumentParser(description="Learn a curve, whatever happens to the ranks.")
    parser.add_argument("--epochs", type=int, default=20)
    parser.add_argument("--pause", type=float, default=0.0, help="seconds a step, to watch it")
    options = parser.parse_args()

    dist.init_process_group("wiiiiide")
    torch.manual_seed(1)
    net = nn.Sequential(nn.Linear(2, 128), nn.Tanh(), nn.Linear(128, 128), nn.Tanh())
    net.append(nn.Linear(128, 1))
    optimizer = torch.optim.AdamW(net.parameters(), lr=2e-3)
    scheduler = torch.optim.lr_scheduler.ExponentialLR(optimizer, 0.9)
    data = wide.Batches(draw_curve(20_000), batch_size=512, seed=1)

    run = wide.parallel(
        net, optimizer, data=data, scheduler=scheduler, save="ckpt", save_every="5s"
    )
    step = run.resume()
    if dist.get_rank() == 0:
        print(f"{dist.get_world_size()} ranks go on after step {step}, in epoch {data.epoch}")
    for epoch in range(data.epoch, options.epochs):
        for x, y in data:
            loss = nn.functional.mse_loss(net(x), y)
            loss.backward()  # type: ignore[no-untyped-call]
            optimizer.step()
            optimizer.zero_grad()
            time.sleep(options.pause)
        scheduler.step()
        if dist.get_rank() == 0:
            print(f"epoch {epoch:>3}  loss {loss.item():.5f}")
    run.save()
    if dist.get_rank() == 0:
        run.export("model.safetensors")
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
