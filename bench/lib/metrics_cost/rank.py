"""A rank of metrics_cost.py: trains in blocks, each with everything watched, unwatched or verbose.

    off       the daemon and `wiiiiide top` stand still (SIGSTOP), the script reports nothing
    on        the daemon samples, top watches it, the script reports every step
    verbose   as on, and the backend logs all it has to say

Rank 0 stops them and lets them go, between blocks and while no rank trains. All blocks run in the
same processes on the same memory, so that nothing differs but what is to be measured.
"""

from __future__ import annotations

import argparse
import json
import os
import signal
import time

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel

from wiiiiided import log
from wiiiiided.torch import progress

MODES = ("off", "on", "verbose")
WIDTH, BATCH = 512, 64
PAUSE_S = 0.3  # after a switch: a sampler that wakes up has something to catch up with


class SmallTraining:
    """A small network: many short steps, so that what is paid per step shows."""

    def __init__(self) -> None:
        torch.manual_seed(1)
        layers = [nn.Linear(256, WIDTH), nn.ReLU(), nn.Linear(WIDTH, WIDTH), nn.ReLU()]
        self.net = DistributedDataParallel(nn.Sequential(*layers, nn.Linear(WIDTH, 10)))
        self.optimizer = torch.optim.SGD(self.net.parameters(), lr=0.01)
        self.x = torch.randn(BATCH, 256)
        self.y = torch.randint(10, (BATCH,))
        self.count = 0

    def steps(self, number: int, watched: bool) -> float:
        """Seconds a step takes, in the mean."""
        begin = time.perf_counter()
        for _ in range(number):
            self.optimizer.zero_grad()
            loss = nn.functional.cross_entropy(self.net(self.x), self.y)
            loss.backward()  # type: ignore[no-untyped-call]
            self.optimizer.step()
            self.count += 1
            if watched:
                progress(self.count, total=10**9, loss=loss.item(), samples=BATCH)
            else:
                loss.item()  # the script would look at it anyway
        return (time.perf_counter() - begin) / number


def switch(mode: str, watchers: list[int]) -> None:
    """All ranks are between two blocks."""
    dist.barrier()
    log.set_tier("verbose" if mode == "verbose" else "normal")
    if dist.get_rank() == 0:
        for pid in watchers:
            os.kill(pid, signal.SIGSTOP if mode == "off" else signal.SIGCONT)
        time.sleep(PAUSE_S)
    dist.barrier()


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--rounds", type=int, required=True)
    parser.add_argument("--seconds", type=float, required=True)
    parser.add_argument("watchers", type=int, nargs="+")
    options = parser.parse_args()
    torch.set_num_threads(1)
    dist.init_process_group("wiiiiide")
    training = SmallTraining()
    training.steps(100, True)
    pace = torch.tensor(options.seconds / training.steps(200, True))
    dist.broadcast(pace, 0)
    try:
        for number in range(options.rounds):
            turn = number % len(MODES)
            for mode in MODES[turn:] + MODES[:turn]:
                switch(mode, options.watchers)
                seconds = torch.tensor(training.steps(int(pace), mode != "off"))
                dist.all_reduce(seconds, dist.ReduceOp.MAX)
                if dist.get_rank() == 0:
                    print(json.dumps({"mode": mode, "step_s": seconds.item()}), flush=True)
    finally:
        switch("on", options.watchers)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
