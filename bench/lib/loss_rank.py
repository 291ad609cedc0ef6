"""A rank that trains the demo's language model with wide.parallel and says what it has learnt.

Started by lib/fleet.py; waits for messages from async_loss.py and slow_links.py.
"""

import statistics
import sys
import time
from pathlib import Path

import torch
from torch.nn import functional

import wiiiiided.torch as wide
from lib import groups, link
from lib.link import Message

sys.path.append(str(Path(__file__).parents[2] / "examples" / "language-model"))
import train as demo

_BATCH = 4
_TEST_BATCHES, _TEST_SIZE = 25, 16
_CURVE_STEPS = 16  # of which a point of the curve is the mean


class LossRank:
    """This rank's part of one training after the other."""

    def __init__(self) -> None:
        self.rank = groups.join()

    def train(self, message: Message) -> Message:
        """A whole training; the loss on windows of the text that are the same for all of them."""
        steps, seed = message["steps"], message["seed"]
        torch.manual_seed(seed)
        net = demo.LanguageModel()
        optimizer = demo.adamw(net)
        group = groups.open_group("wiiiiide")
        if message.get("staleness"):
            wide.parallel(
                net, optimizer, group=group, updates="async", staleness=message["staleness"]
            )
        else:
            between = wide.Between(**message.get("between", {}))
            wide.parallel(net, optimizer, group=group, between=between)
        text = demo.corpus()
        draws = torch.Generator().manual_seed(seed * 1000 + 1 + self.rank)
        taken, losses = [], []
        for number in range(1, steps + 1):
            begin = time.perf_counter()
            for group_of in optimizer.param_groups:
                group_of["lr"] = demo.learning_rate(number, steps) * message.get("rate", 1.0)
            loss = demo.train_on(demo.draw_batch(text, _BATCH, draws), net, optimizer)
            losses.append(loss.item())
            taken.append(time.perf_counter() - begin)
        group.barrier().wait()
        return {
            "loss": _loss(net, text) if self.rank == 0 else 0.0,
            "curve": [
                statistics.fmean(losses[at : at + _CURVE_STEPS])
                for at in range(0, steps, _CURVE_STEPS)
            ],
            "step_s": statistics.median(taken),
            "parameters": sum(parameter.numel() for parameter in net.parameters()),
        }

    def stop(self, message: Message) -> Message:
        groups.leave()
        return {}


@torch.no_grad()
def _loss(net: torch.nn.Module, text: torch.Tensor) -> float:
    draws = torch.Generator().manual_seed(999)
    total = 0.0
    for _ in range(_TEST_BATCHES):
        inputs, targets = demo.draw_batch(text, _TEST_SIZE, draws)
        scores = net(inputs).view(-1, demo.VOCABULARY)
        total += functional.cross_entropy(scores, targets.reshape(-1)).item()
    return total / _TEST_BATCHES


if __name__ == "__main__":
    link.run(LossRank)
