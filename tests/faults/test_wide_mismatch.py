"""Ranks on different hosts that disagree: an error on every rank with both sides, never a hang."""

from __future__ import annotations

import errno
import os
from typing import Any

import pytest
import torch
import torch.distributed as dist

from tests.faults import test_mismatch as mismatch
from tests.kit.faults import failure_of
from tests.kit.ranks import Rank, watch_ranks

DEADLINE_S = 10.0
LARGE = 1024 * 1024


# Who disagrees is alone on its host, or shares one with a rank that is right.
@pytest.mark.parametrize(
    ("case", "hosts", "way"),
    [(case, "aab", "async") for case in mismatch.CASES]
    + [(case, "abc", "warm") for case in list(mismatch.CASES)[::3]],
)
def test_ranks_of_different_hosts_that_disagree_are_all_shown_both_sides(
    case: str, hosts: str, way: str
) -> None:
    odd = list(mismatch.CASES).index(case) % 3
    options = (way == "async", way == "warm")  # the second is a blocking call
    outcomes = watch_ranks(mismatch.disagree, hosts, case, odd, *options)
    _, _, one, other = mismatch.CASES[case]
    for outcome in outcomes:
        assert outcome.exit_code == 0, outcome.trace or outcome.error
        failure, later = outcome.value
        assert failure is not None, f"rank {outcome.rank} noticed nothing"
        assert failure.kind == "Mismatch", (outcome.rank, failure)
        assert one in failure.text, failure
        assert other in failure.text, failure
        assert failure.took_s < DEADLINE_S
        assert later is not None, "the group went on after a mismatch"
        assert later.kind == "Mismatch", later
        assert later.took_s < DEADLINE_S


@pytest.mark.parametrize("case", list(mismatch.MESSAGES))
def test_a_message_from_another_host_that_does_not_fit_fails_both(case: str) -> None:
    sends, takes = mismatch.MESSAGES[case]
    posted_first = list(mismatch.MESSAGES).index(case) % 3 == 0
    outcomes = watch_ranks(mismatch.send_the_wrong_thing, "ab", sends, takes, posted_first)
    for outcome in outcomes:
        assert outcome.exit_code == 0, outcome.trace or outcome.error
    (sent, sender_later), (received, receiver_later) = (o.value for o in outcomes)
    assert received.kind == "Mismatch", received
    for count, dtype in (sends, takes):
        assert f"{count * 4} bytes of" in received.text, received
        assert str(dtype).removeprefix("torch.") in received.text, received
    assert case.startswith("small") or sent is not None
    for failure in (sender_later, receiver_later, *([sent] if sent is not None else [])):
        assert failure is not None
        assert failure.kind == "Mismatch", failure
        assert failure.took_s < DEADLINE_S


def no_room(fd: int, offset: int, length: int) -> None:
    raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))


def no_memory(*args: Any, **options: Any) -> Any:
    raise MemoryError("16 MiB could not be had")


def fail_in_the_middle(me: Rank, poor: int, what: str) -> Any:
    """One rank runs out of something inside its plan."""
    from wiiiiided.engine.wide import Wide

    early = failure_of(dist.barrier)  # the poor one may be through it before the others are
    if me.rank == poor:
        if what == "shared memory":
            os.posix_fallocate = no_room
        else:
            Wide.buffer = no_memory  # type: ignore[method-assign]
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
