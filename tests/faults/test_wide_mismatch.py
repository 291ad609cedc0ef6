"""A rank that runs out of something inside an operation over hosts: every rank is told, and why."""

from __future__ import annotations

import errno
import os
from typing import Any

import pytest
import torch
import torch.distributed as dist

from tests.kit.faults import failure_of
from tests.kit.ranks import Rank, watch_ranks

DEADLINE_S = 10.0
LARGE = 1024 * 1024


def no_room(fd: int, offset: int, length: int) -> None:
    raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))


def no_memory(*args: Any, **options: Any) -> Any:
    raise MemoryError("16 MiB could not be had")


def fail_in_the_middle(me: Rank, poor: int, what: str) -> Any:
    """One rank runs out of something inside its plan."""
    from wiiiiided.backend.engine.remote_members import RemoteMembers

    early = failure_of(dist.barrier)  # the poor one may be through it before the others are
    if me.rank == poor:
        if what == "shared memory":
            os.posix_fallocate = no_room
        else:
            RemoteMembers.buffer = no_memory  # type: ignore[method-assign]
    x = torch.ones(LARGE)
    if what == "async":
        first = failure_of(dist.all_reduce(x, async_op=True).wait)
    else:
        first = failure_of(dist.all_reduce, x)
    return early or first, failure_of(dist.barrier)


@pytest.mark.parametrize("what", ["shared memory", "memory", "async"])
def test_a_rank_that_runs_out_of_memory_inside_an_operation_is_named_on_every_host(
    what: str,
) -> None:
    poor = 1
    outcomes = watch_ranks(fail_in_the_middle, "aabb", poor, what)
    for outcome in outcomes:
        assert outcome.exit_code == 0, outcome.trace or outcome.error
        first, later = outcome.value
        assert first is not None, f"rank {outcome.rank} noticed nothing"
        assert "No space left" in first.text or "could not be had" in first.text, first
        assert first.took_s < DEADLINE_S
        if outcome.rank != poor:
            assert f"rank {poor} (pid {outcomes[poor].pid} on " in first.text, first
        assert later is not None, "the group went on"
        assert later.took_s < DEADLINE_S
