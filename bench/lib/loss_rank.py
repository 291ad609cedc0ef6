"""A rank that trains the demo's language model with wide.parallel and says what it has learnt.

Started by lib/fleet.py; waits for messages from train_loss.py.
"""

import sys
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
        if message["staleness"]:
            wide.parallel(
                net, optimizer, group=group, updates="async", staleness=message["staleness"]
            )
        else:
            wide.parallel(net, optimizer, group=group)
        text = demo.corpus()
        draws = torch.Generator().manual_seed(seed * 1000 + 1 + self.rank)
        for number in range(1, steps + 1):
            for group_of in optimizer.param_groups:
                group_of["lr"] = demo.learning_rate(number, steps) * message["rate"]
            demo.train_on(demo.draw_batch(text, _BATCH, draws), net, optimizer)
        group.barrier().wait()
        return {"loss": _loss(net, text) if self.rank == 0 else 0.0}

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


def main() -> None:
    link.die_with_parent()
    rank = LossRank()
    link.serve(rank.rank, {"train": rank.train, "stop": rank.stop})


if __name__ == "__main__":
    main()
