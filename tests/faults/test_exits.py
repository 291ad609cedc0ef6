"""Ranks that leave or are interrupted: a rank that needs nothing more of them is not disturbed.

On one host and on several; what only several can have is in test_wide_exits."""

from __future__ import annotations

import os
import signal
import sys
import threading
import time
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed as dist

from tests.kit.cases import thinned
from tests.kit.conditions import wait_until
from tests.kit.faults import FaultPlan, failure_of, named, reach, together
from tests.kit.ranks import Rank, note, watch_ranks

DEADLINE_S = {"aa": 5.0, "aaa": 5.0, "ab": 10.0, "abb": 10.0, "aab": 10.0}
PATIENCE_S = 50.0
LARGE = 2 * 1024 * 1024

MANNERS = {"destroy": 0, "return": 0, "sys.exit": 3, "os._exit": 3, "signal": -15}


def go(manner: str) -> None:
    """Leave without waiting for other ranks. The kit destroys the group of a body that returns."""
    if manner == "destroy":
        dist.destroy_process_group()
        os._exit(0)
    if manner == "return":  # as at the end of a script: no destroy
        dist.is_initialized = lambda: False
        return
    if manner == "sys.exit":
        dist.is_initialized = lambda: False
        sys.exit(3)
    if manner == "os._exit":
        os._exit(3)
    os.kill(os.getpid(), signal.SIGTERM)


def go_after_the_last(me: Rank, manner: str, kind: str) -> Any:
    """Rank 0 goes right after its part of the last operation, while the others are behind."""
    x = torch.ones(LARGE if kind != "small" else 8)
    dist.barrier()
    if me.rank == 0:
        if kind == "message":
            for other in range(1, me.size):
                dist.send(x, other)
        else:
            dist.all_reduce(x)
        go(manner)
        return None
    if kind == "message":
        time.sleep(0.1)
        dist.recv(x, 0)
        return float(x[-1])
    dist.all_reduce(x)
    return float(x[-1])


@pytest.mark.parametrize("hosts", ["aaa", "abb"])
@pytest.mark.parametrize(("manner", "kind"), thinned(MANNERS, ["small", "large", "message"], 2))
def test_a_rank_that_goes_after_the_last_operation_disturbs_no_other(
    manner: str, kind: str, hosts: str
) -> None:
    outcomes = watch_ranks(go_after_the_last, hosts, manner, kind)
    for outcome in outcomes[1:]:
        assert outcome.exit_code == 0, outcome.trace or outcome.error
        assert not outcome.error, outcome.trace
        assert outcome.value == (1.0 if kind == "message" else 3.0)


def post_and_go(me: Rank, manner: str) -> Any:
    """60 small messages; the last of them are taken when their sender has left."""
    gone = Path(me.folder, "gone")
    dist.barrier()
    if me.rank == 0:
        for number in range(60):
            dist.send(torch.full((4096,), float(number)), 1)
        gone.touch()
        go(manner)
        return None
    x = torch.empty(4096)
    taken = []
    for number in range(60):
        if number == 50:
            wait_until(gone.exists, PATIENCE_S, "all is sent")
        dist.recv(x, 0)
        taken.append(float(x[-1]))
    return taken


@pytest.mark.parametrize("hosts", ["aa", "ab"])
@pytest.mark.parametrize("manner", ["destroy", "return", "sys.exit"])
def test_messages_whose_send_is_done_arrive_though_the_sender_has_left(
    manner: str, hosts: str
) -> None:
    outcomes = watch_ranks(post_and_go, hosts, manner)
    assert not outcomes[1].error, outcomes[1].trace
    assert outcomes[1].value == [float(number) for number in range(60)]


def go_while_needed(me: Rank, manner: str, kind: str) -> Any:
    dist.barrier()
    together(me)
    if me.rank == 0:
        time.sleep(0.1)
        go(manner)
        return None
    x = torch.ones(LARGE)
    if kind == "collective":
        return failure_of(dist.all_reduce, x)
    if kind == "async":
        return failure_of(dist.all_reduce(x, async_op=True).wait)
    if kind == "send":
        return failure_of(dist.send, x, 0)
    return failure_of(dist.recv, x, 0)


@pytest.mark.parametrize("hosts", ["aaa", "aab"])
@pytest.mark.parametrize(
    ("manner", "kind"), thinned(MANNERS, ["collective", "async", "send", "recv"], 2)
)
def test_a_rank_that_goes_while_others_need_it_is_named_by_all(
    manner: str, kind: str, hosts: str
) -> None:
    outcomes = watch_ranks(go_while_needed, hosts, manner, kind)
    died = manner in ("os._exit", "signal")
    for outcome in outcomes[1:]:
        assert outcome.exit_code == 0, outcome.trace or outcome.error
        failure = outcome.value
        assert failure is not None
        assert failure.kind == "PeerLost", failure
        how = "died" if died else "left the group while others needed it"
        assert f"{named(outcomes[0], hosts)} {how}" in failure.text, failure
        assert failure.took_s < DEADLINE_S[hosts]


def reach_when_it_waits() -> None:
    """A thread beside the call: interrupted before it, the call would never have begun."""
    process_group: Any = dist.group.WORLD
    group = process_group.engine_group
    wait_until(lambda: bool(group.queue or group.driver.messages), PATIENCE_S, "it waits")
    reach(1)


def be_interrupted(me: Rank, kind: str) -> Any:
    """Rank 0 gets Ctrl-C while it waits for rank 1, which comes when rank 0 has been told."""
    x = torch.ones(8 if kind != "large" else LARGE)
    told = Path(me.folder, "told")
    dist.barrier()
    together(me)
    if me.rank == 0:
        began = time.monotonic()
        try:
            threading.Thread(target=reach_when_it_waits, daemon=True).start()
            if kind == "recv":
                dist.recv(x, 1)
            elif kind == "work":
                dist.all_reduce(x, async_op=True).wait()
            else:
                dist.all_reduce(x)
            note("not interrupted")
        except KeyboardInterrupt:
            note(["interrupted after", time.monotonic() - began])
        told.touch()
    else:
        wait_until(told.exists, PATIENCE_S, "rank 0 is interrupted")
        if kind == "recv":
            note(["first", failure_of(dist.send, x, 0)])
        else:
            note(["first", failure_of(dist.all_reduce, x)])
    y = torch.ones(8)
    return failure_of(dist.all_reduce, y), float(y[0])


@pytest.mark.parametrize("hosts", ["aa", "ab"])
@pytest.mark.parametrize("kind", ["small", "large", "work", "recv"])
def test_ctrl_c_ends_a_wait_at_once_and_hangs_no_other_rank(kind: str, hosts: str) -> None:
    plan = FaultPlan().interrupt(rank=0, step=1, after_s=0.2)
    outcomes = watch_ranks(be_interrupted, hosts, kind, during=plan)
    for outcome in outcomes:
        assert outcome.exit_code == 0, outcome.trace or outcome.error
        assert not outcome.error, outcome.trace
    notes = [what for _, what in outcomes[0].notes if isinstance(what, list)]
    assert [what[0] for what in notes] == ["interrupted after"], outcomes[0].notes
    assert notes[0][1] < DEADLINE_S[hosts]
    (first,) = [what[1] for _, what in outcomes[1].notes if isinstance(what, list)]
    for failure in (first, outcomes[0].value[0], outcomes[1].value[0]):
        if failure is not None:  # the group was lost: then all must say why, and soon
            assert failure.took_s < DEADLINE_S[hosts]
            assert "KeyboardInterrupt" in failure.text, failure
    if kind in ("work", "recv"):  # the operation went on without the thread that waited for it
        assert first is None
        assert [outcome.value for outcome in outcomes] == [(None, 2.0)] * 2
