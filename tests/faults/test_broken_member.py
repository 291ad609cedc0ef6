"""A member of a group over hosts that sends what it must not: the group fails, and names it."""

from __future__ import annotations

import struct
from typing import Any

import pytest
import torch
import torch.distributed as dist

from tests.kit.faults import failure_of, together
from tests.kit.ranks import Rank, watch_ranks
from wiiiiided.backend.wire.header import Header, pack
from wiiiiided.backend.wire.local_frame import FrameKind

DEADLINE_S = 10.0
LARGE = 1_000_000


def send_nonsense(me: Rank, what: str) -> Any:
    """Rank 2, which the others trust, writes bytes that are no frame between its frames."""
    dist.all_reduce(torch.ones(100_000))
    failure = failure_of(dist.barrier)  # rank 2 may be through it before the others are
    if me.rank == 2:
        process_group: Any = dist.group.WORLD
        group = process_group.engine_group
        m = group.membership
        nonsense = {
            "noise": b"\xaa" * 200,
            "another generation": pack(
                Header(FrameKind.LEAVE, 0, 0, 0, m.nonce, m.generation + 1, 2, 0, 0, 0, 0, 0, 0)
            ),
            "another's name": pack(
                Header(FrameKind.LEAVE, 0, 0, 0, m.nonce, m.generation, 1, 0, 0, 0, 0, 0, 0)
            ),
            "a piece of four gigabytes": struct.pack("<HBB56sI", 0x4957, 1, 16, b"\xff" * 56, 0),
            "an operation far ahead": pack(
                Header(FrameKind.OPEN, 0, 0, 0, m.nonce, m.generation, 2, 99_999, 0, 0, 256, 256, 0)
            )
            + bytes(256),
        }[what]
        sock = group.links[0].data.stream.sock
        group.loop.call(lambda: sock.send(nonsense) and None)
    failure = failure or failure_of(dist.all_reduce, torch.ones(LARGE))
    return failure, failure_of(dist.barrier)


NONSENSE = (
    *("noise", "another generation", "another's name"),
    *("a piece of four gigabytes", "an operation far ahead"),
)


@pytest.mark.parametrize("what", NONSENSE)
def test_a_broken_frame_from_a_member_fails_the_group_with_a_sentence_on_every_host(
    what: str,
) -> None:
    outcomes = watch_ranks(send_nonsense, "aab", what)
    for outcome in outcomes:
        assert outcome.exit_code == 0, outcome.trace or outcome.error
        assert not outcome.error, outcome.trace
        failure, later = outcome.value
        assert failure is not None, f"rank {outcome.rank} noticed nothing"
        assert later is not None
        assert failure.took_s < DEADLINE_S
        assert f"the link to pid {outcomes[2].pid} on " in failure.text, failure


def flood(me: Rank) -> Any:
    """Rank 2 sends rank 0 more than it may before anything of it is received."""
    dist.barrier()
    together(me)
    if me.rank == 2:
        process_group: Any = dist.group.WORLD
        process_group.engine_group.mailbox._window[0] = 1 << 40  # it gives itself leave
        works = [dist.isend(torch.ones(4000), 0) for _ in range(80)]
        del works
    return failure_of(dist.all_reduce, torch.ones(LARGE))


def test_a_member_that_sends_more_than_it_may_is_stopped_and_named() -> None:
    for outcome in watch_ranks(flood, "aab"):
        assert outcome.exit_code == 0, outcome.trace or outcome.error
        assert outcome.value is not None, f"rank {outcome.rank} noticed nothing"
        assert "rank 2 sent" in outcome.value.text, outcome.value
        assert "were not received yet" in outcome.value.text
