"""What a training says of itself: nothing at all below verbose, and never a line per step."""

from __future__ import annotations

import logging

import pytest
import torch
import torch.distributed as dist

from tests.kit.ranks import Rank, run_ranks
from wiiiiided.log import logger
from wiiiiided.torch import progress

# A busy machine may stall, and what is automatic may change its mind: both are news.
CALM = {
    "WIIIIIDE_STALL_WARNING_S": "600",
    "WIIIIIDE_CODEC": "none",
    "WIIIIIDE_CHECKSUM": "off",
}


def train(me: Rank, steps: int) -> list[str]:
    """Everything the package logged, at whatever level its tier lets through."""
    said: list[str] = []
    handler = logging.Handler()
    handler.emit = lambda record: said.append(record.getMessage())  # type: ignore[method-assign]
    logger.addHandler(handler)
    group = dist.new_group()
    gradients = torch.ones(100_000)
    for step in range(steps):
        dist.all_reduce(gradients, group=group)
        progress(step, total=steps, loss=1.0 / (step + 1), samples=32)
    dist.destroy_process_group(group)
    return said


@pytest.mark.parametrize("hosts", ["aa", "ab"], ids=["one host", "two hosts"])
@pytest.mark.parametrize("tier", ["normal", "silent"])
def test_a_training_that_goes_well_says_nothing(tier: str, hosts: str) -> None:
    env = {"WIIIIIDE_LOG": tier, **CALM}
    assert run_ranks(train, hosts, 50, env=env) == [[], []]


@pytest.mark.parametrize("hosts", ["aa", "ab"], ids=["one host", "two hosts"])
def test_a_verbose_one_says_as_much_of_few_steps_as_of_many(hosts: str) -> None:
    env = {"WIIIIIDE_LOG": "verbose", **CALM}
    few = run_ranks(train, hosts, 3, env=env)
    many = run_ranks(train, hosts, 60, env=env)
    assert [len(said) for said in few] == [len(said) for said in many]
    assert all(any("joined" in line for line in said) for said in few)
