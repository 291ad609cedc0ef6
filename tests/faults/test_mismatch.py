"""Ranks that disagree: an error on every rank that shows both sides, never a hang or garbage."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.distributed as dist

from tests.kit.cases import thinned
from tests.kit.faults import failure_of, together
from tests.kit.ranks import Rank, watch_ranks

DEADLINE_S = 10.0
LARGE = 1024 * 1024


def reduced(count: int = 8, dtype: torch.dtype = torch.float32, op: Any = dist.ReduceOp.SUM) -> Any:
    return dist.all_reduce(torch.ones(count, dtype=dtype), op, async_op=True)


def sent_round(count: int = 8, src: int = 0) -> Any:
    return dist.broadcast(torch.ones(count), src, async_op=True)


def met() -> Any:
    return dist.barrier(async_op=True)


def gathered(count: int = 8) -> Any:
    size = dist.get_world_size()
    return dist.all_gather([torch.empty(count)] * size, torch.ones(count), async_op=True)


def scattered(count: int = 8) -> Any:
    whole = torch.ones(count * dist.get_world_size())
    return dist.reduce_scatter_tensor(torch.empty(count), whole, async_op=True)


def exchanged(mine: int, theirs: int) -> Any:
    """all_to_all between two or three ranks, with what I send to and expect from each other."""
    size, me = dist.get_world_size(), dist.get_rank()
    sends = [1 if r == me else mine for r in range(size)]
    takes = [1 if r == me else theirs for r in range(size)]
    return dist.all_to_all_single(
        torch.empty(sum(takes)), torch.ones(sum(sends)), takes, sends, async_op=True
    )


Call = tuple[Callable[..., Any], dict[str, Any]]

# What the odd rank calls, what the others call, and what all must be told.
CASES: dict[str, tuple[Call, Call, str, str]] = {
    "size": ((reduced, {"count": 9}), (reduced, {}), "of 9 elements", "of 8 elements"),
    "large size": (
        (reduced, {"count": LARGE + 1}),
        (reduced, {"count": LARGE}),
        f"of {LARGE + 1} elements",
        f"of {LARGE} elements",
    ),
    "dtype": ((reduced, {"dtype": torch.float64}), (reduced, {}), "float64", "float32"),
    "same bytes": (
        (reduced, {"dtype": torch.int32}),
        (reduced, {"dtype": torch.float32}),
        "int32",
        "float32",
    ),
    "op": ((reduced, {"op": dist.ReduceOp.MAX}), (reduced, {}), "MAX", "SUM"),
    "root": ((sent_round, {"src": 1}), (sent_round, {}), "root 1", "root 0"),
    "large root": (
        (sent_round, {"count": LARGE, "src": 1}),
        (sent_round, {"count": LARGE}),
        "root 1",
        "root 0",
    ),
    "all_reduce and barrier": ((reduced, {}), (met, {}), "all_reduce", "barrier"),
    "broadcast and all_reduce": ((sent_round, {}), (reduced, {}), "broadcast", "all_reduce"),
    "large and small": ((reduced, {"count": LARGE}), (reduced, {}), f"{LARGE} el", "of 8 el"),
    "small and large": ((reduced, {}), (reduced, {"count": LARGE}), "of 8 el", f"{LARGE} el"),
    "large and barrier": ((reduced, {"count": LARGE}), (met, {}), "all_reduce", "barrier"),
    "gather and reduce_scatter": (
        (gathered, {"count": LARGE}),
        (scattered, {"count": LARGE}),
        "all_gather",
        "reduce_scatter",
    ),
    "all_to_all counts": (
        (exchanged, {"mine": 3, "theirs": 5}),
        (exchanged, {"mine": 4, "theirs": 4}),
        "sends",
        "expects",
    ),
}


def disagree(me: Rank, case: str, odd: int, asynchronous: bool, warm: bool) -> Any:
    """One rank calls something else; then all try again."""
    odd_call, usual_call, _, _ = CASES[case]
    action, options = odd_call if me.rank == odd else usual_call
    if warm:
        dist.all_reduce(torch.ones(LARGE))  # the large slots are there
    together(me)  # one that still joins, or is in there, would meet the mismatch in that
    if asynchronous:
        work = failure_of_start = None
        try:
            work = action(**options)
        except Exception as error:
            failure_of_start = error
        assert failure_of_start is None
        first = failure_of(work.wait)
    else:
        first = failure_of(lambda: _blocking(action, options))
    return first, failure_of(dist.barrier)


def _blocking(action: Callable[..., Any], options: dict[str, Any]) -> None:
    """The same call without async_op: torch then waits for it itself."""
    usual = {
        reduced: lambda count=8, dtype=torch.float32, op=dist.ReduceOp.SUM: dist.all_reduce(
            torch.ones(count, dtype=dtype), op
        ),
        sent_round: lambda count=8, src=0: dist.broadcast(torch.ones(count), src),
        met: dist.barrier,
    }
    if action in usual:
        usual[action](**options)  # type: ignore[operator]
    else:
        action(**options).wait()


# The rank that disagrees is alone on its host, or shares one with a rank that is right.
@pytest.mark.parametrize("hosts", ["aaa", "aab", pytest.param("abc", marks=pytest.mark.soak)])
@pytest.mark.parametrize(("case", "way"), thinned(CASES, ["blocking", "async", "warm"]))
def test_ranks_that_disagree_are_all_shown_both_sides(case: str, way: str, hosts: str) -> None:
    odd = list(CASES).index(case) % 3
    outcomes = watch_ranks(disagree, hosts, case, odd, way == "async", way == "warm")
    _, _, one, other = CASES[case]
    for outcome in outcomes:
        assert outcome.exit_code == 0, outcome.trace or outcome.error
        failure, later = outcome.value
        assert failure is not None, f"rank {outcome.rank} noticed nothing"
        assert failure.kind == "Mismatch", failure
        assert one in failure.text, failure
        assert other in failure.text, failure
        assert failure.took_s < DEADLINE_S
        assert later is not None, "the group went on after a mismatch"
        assert later.kind == "Mismatch", later
        assert later.took_s < DEADLINE_S


def send_the_wrong_thing(me: Rank, sends: Any, takes: Any, posted_first: bool) -> Any:
    """Rank 1 receives something else than rank 0 sends."""
    (count, dtype), (wanted, wanted_dtype) = sends, takes
    first = None
    if me.rank == 0:
        if posted_first:
            time.sleep(0.2)
        first = failure_of(dist.send, torch.ones(count, dtype=dtype), 1)
    else:
        if not posted_first:
            time.sleep(0.2)
        first = failure_of(dist.recv, torch.ones(wanted, dtype=wanted_dtype), 0)
    return first, failure_of(dist.all_reduce, torch.ones(8))


F32, I32 = torch.float32, torch.int32
MESSAGES = {
    "small size": ((8, F32), (9, F32)),
    "small dtype": ((8, F32), (8, I32)),
    "large size": ((LARGE, F32), (LARGE + 1, F32)),
    "large dtype": ((LARGE, F32), (LARGE, I32)),
    "large sent small taken": ((LARGE, F32), (8, F32)),
    "small sent large taken": ((8, F32), (LARGE, F32)),
}


@pytest.mark.parametrize("hosts", ["aa", "ab"])
@pytest.mark.parametrize(("case", "first"), thinned(MESSAGES, ["receive", "send"]))
def test_a_message_that_does_not_fit_fails_the_receiver_and_the_senders_next_call(
    case: str, first: str, hosts: str
) -> None:
    sends, takes = MESSAGES[case]
    outcomes = watch_ranks(send_the_wrong_thing, hosts, sends, takes, first == "receive")
    for outcome in outcomes:
        assert outcome.exit_code == 0, outcome.trace or outcome.error
    (sent, sender_later), (received, receiver_later) = (o.value for o in outcomes)
    assert received.kind == "Mismatch", received
    for count, dtype in (sends, takes):
        assert f"{count * 4} bytes of" in received.text, received
        assert str(dtype).removeprefix("torch.") in received.text, received
    if sent is not None:
        assert sent.kind == "Mismatch", sent
        assert sent.took_s < DEADLINE_S
    assert case.startswith("small") or sent is not None
    for later in (sender_later, receiver_later):
        assert later is not None
        assert later.kind == "Mismatch", later
        assert later.took_s < DEADLINE_S
