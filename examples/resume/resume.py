"""Kill it, start it again on another number of ranks: it goes on, and every sample counts once.

`wide.Batches` has one order of samples for any number of ranks, and `wide.parallel` saves weights,
optimizer, schedule, place in the data and random numbers together, between two steps.
"""

import argparse
import json
import os
import time

import torch
import torch.distributed as dist
from torch import nn
from torch.utils.data import TensorDataset

import wiiiiided.torch as wide


def draw_curve(samples: int) -> TensorDataset:
    """Points of a curve and their numbers, the same on every rank."""
    x = 4 * torch.rand(samples, 2, generator=torch.Generator().manual_seed(1)) - 2
    y = torch.sin(3 * x[:, :1]) * torch.cos(2 * x[:, 1:])
    return TensorDataset(x, y, torch.arange(samples))


def parse_arguments() -> argparse.Namespace:
    """Options; a job can set their defaults: wiiiiide submit … --set run.env.EPOCHS=3"""
    given = os.environ.get
    parser = argparse.ArgumentParser(description="Learn a curve, whatever happens to the ranks.")
    parser.add_argument("--epochs", type=int, default=given("EPOCHS", "20"))
    pause = "seconds after a step, to watch it"
    parser.add_argument("--pause", type=float, default=given("PAUSE", "0"), help=pause)
    every = 'steps ("10") or time ("5s")'
    parser.add_argument("--save-every", default=given("SAVE_EVERY", "5s"), help=every)
    trace = {"action": "store_true", "default": given("TRACE") == "json"}
    parser.add_argument("--trace", help="a JSON object for each step of each rank", **trace)  # type: ignore[arg-type]
    return parser.parse_args()


def main() -> None:
    options = parse_arguments()
    every = int(options.save_every) if options.save_every.isdigit() else options.save_every
    dist.init_process_group("wiiiiide")
    is_first = dist.get_rank() == 0
    torch.manual_seed(1)
    net = nn.Sequential(nn.Linear(2, 128), nn.Tanh(), nn.Linear(128, 128), nn.Tanh())
    net.append(nn.Linear(128, 1))
    optimizer = torch.optim.AdamW(net.parameters(), lr=2e-3)
    scheduler = torch.optim.lr_scheduler.ExponentialLR(optimizer, 0.9)
    data = wide.Batches(draw_curve(20_000), batch_size=512, seed=1, epochs=options.epochs)

    run = wide.parallel(
        net, optimizer, data=data, scheduler=scheduler, save="ckpt", save_every=every
    )
    step = run.resume()
    if is_first and not options.trace:
        print(f"{dist.get_world_size()} ranks go on after step {step}, in epoch {data.epoch}")
    if options.trace:
        print(json.dumps({"event": "start", "after": step}), flush=True)
    for epoch in range(data.epoch, options.epochs):
        for x, y, numbers in data:
            loss = nn.functional.mse_loss(net(x), y)
            loss.backward()  # type: ignore[no-untyped-call]
            optimizer.step()
            optimizer.zero_grad()
            step += 1
            if options.trace:
                said = {"step": step, "loss": loss.item(), "samples": numbers.tolist()}
                print(json.dumps({"event": "step", **said}), flush=True)
            time.sleep(options.pause)
        scheduler.step()
        if is_first and not options.trace:
            print(f"epoch {epoch:>3}  loss {loss.item():.5f}")
    run.save()
    if is_first:
        run.export("model.safetensors")
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
