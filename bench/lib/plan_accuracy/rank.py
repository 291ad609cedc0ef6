"""A rank of a trial as `wiiiiide plan` makes them: a script on one machine alone, then the links.

The script has a batch of its own (lib/train_rank.py), or takes its part of one of all hosts
(lib/slow_links/uneven_rank.py), which alone is all of it.

Started by lib/hosts.py; waits for messages from plan_accuracy.py. Steps are watched by
wiiiiided.torch.step_probe and links timed by wiiiiided.torch.link_probe, the program's own parts;
what is missing of the program is the queue.
"""

import contextlib
import io
import math
import time
from collections.abc import Iterator

import torch
import torch.distributed as dist

import wiiiiided.torch as wide
from lib import groups, link, train_rank
from lib.link import Message
from lib.slow_links import uneven_rank
from wiiiiided.domain.plan import RankLine, read_line
from wiiiiided.torch import link_probe
from wiiiiided.torch.step_probe import StepProbe


class PlanRank:
    """A rank of one trial."""

    def __init__(self) -> None:
        groups.compute_alike()
        dist.init_process_group("wiiiiide")
        self.rank = dist.get_rank()

    def trial(self, message: Message) -> Message:
        """Steps of a host alone until the probe has seen enough, also of parts of one batch of all
        hosts; `lines` is what it said of them at last."""
        steps = _shared_batches(message) if message["data"] else _own_batches(message)
        lines: list[str] = []
        StepProbe(lines.append, time.monotonic).watch()
        while not lines or _measures_more(lines[-1]):
            next(steps)
        return {"lines": lines[-1:]}

    def links(self, message: Message) -> Message:
        """This rank's lines about its pairs."""
        said = io.StringIO()
        with contextlib.redirect_stderr(said):
            link_probe.run(message["bytes"], message["seconds"])
        return {"lines": said.getvalue().splitlines()}

    def stop(self, message: Message) -> Message:
        groups.leave()
        return {}


def _measures_more(line: str) -> bool:
    """Whether a line that has steps of half a batch too may follow."""
    said = read_line(line)
    return isinstance(said, RankLine) and said.more


def _shared_batches(message: Message) -> Iterator[int]:
    """Steps with data= of wide.parallel."""
    return uneven_rank.ByData({**message, "apart": True, "between": {}}).turn(math.inf)


def _own_batches(message: Message) -> Iterator[None]:
    """Steps of a run that knows nothing of its data."""
    model = train_rank.network(message["widths"])
    optimizer = train_rank.OPTIMIZERS["adamw"](model.parameters())
    wide.parallel(model, optimizer, group=groups.open_host_group("wiiiiide"))
    width, last = message["widths"][0], message["widths"][-1]
    trainer = train_rank.Trainer(
        model,
        torch.randn(train_rank.BATCH, width),
        torch.randn(train_rank.BATCH, last),
        optimizer,
    )
    while True:
        trainer.step()
        yield


if __name__ == "__main__":
    link.run(PlanRank)
