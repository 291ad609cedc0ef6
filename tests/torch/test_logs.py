"""What a training says of itself: nothing at all below verbose, and never a line per step."""

from __future__ import annotations

import logging
import os
import subprocess
import sys
import time
from pathlib import Path

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


def _mixture(me: Rank) -> list[str]:
    said: list[str] = []
    handler = logging.Handler()
    handler.emit = lambda record: said.append(record.getMessage())  # type: ignore[method-assign]
    logger.addHandler(handler)
    for asked in ("cpu:wiiiiide,cuda:gloo", "cpu:gloo,cuda:wiiiiide", "wiiiiide"):
        group = dist.new_group(backend=asked)
        for count in (3, 4):
            x = torch.ones(count)
            dist.all_reduce(x, group=group)
            assert x.tolist() == [2.0] * count
    return said


def test_a_group_asked_for_with_another_backend_beside_says_once_which_serves_it() -> None:
    for said in run_ranks(_mixture, 2, env=CALM):
        assert len(said) == 2
        assert "cuda:gloo is not used, tensors of every device go through wiiiiide" in said[0]
        assert "cpu:gloo is not used" in said[1]


@pytest.mark.parametrize("hosts", ["aa", "ab"], ids=["one host", "two hosts"])
def test_a_verbose_one_says_as_much_of_few_steps_as_of_many(hosts: str) -> None:
    env = {"WIIIIIDE_LOG": "verbose", **CALM}
    few = run_ranks(train, hosts, 3, env=env)
    many = run_ranks(train, hosts, 60, env=env)
    assert [len(said) for said in few] == [len(said) for said in many]
    assert all(any("joined" in line for line in said) for said in few)


SCRIPT = """
import sys, torch.distributed as dist
if "logging" in sys.argv:
    import logging
    logging.basicConfig(format="mine %(message)s", level=logging.INFO)
dist.init_process_group("wiiiiide", init_method="file://" + sys.argv[1], rank=0, world_size=1)
dist.destroy_process_group()
"""


@pytest.mark.parametrize("how", ["plain", "logging"])
def test_verbose_is_heard_once_whether_or_not_a_script_has_set_up_logging(
    how: str, tmp_path: Path
) -> None:
    script = tmp_path / "script.py"
    script.write_text(SCRIPT)
    done = subprocess.run(
        [sys.executable, str(script), str(tmp_path / "store"), how],
        env={**os.environ, "WIIIIIDE_LOG": "verbose"}, capture_output=True, text=True, timeout=100,
    )  # fmt: skip
    joined = [line for line in done.stderr.splitlines() if "joined" in line]
    assert len(joined) == 1, done.stderr
    assert joined[0].startswith("mine ") == (how == "logging")


def late_at_every_step(me: Rank) -> list[str]:
    said: list[str] = []
    handler = logging.Handler()
    handler.emit = lambda record: said.append(record.getMessage())  # type: ignore[method-assign]
    logger.addHandler(handler)
    for _ in range(4):
        if me.rank == 1:
            time.sleep(0.5)  # what the other must be seen to wait for
        dist.all_reduce(torch.ones(10))
    return said


def test_a_rank_that_is_late_at_every_step_is_named_once() -> None:
    said, _ = run_ranks(late_at_every_step, 2, env={"WIIIIIDE_STALL_WARNING_S": "0.1"})
    assert len(said) == 1, said
    assert "rank 1" in said[0]
