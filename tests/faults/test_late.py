"""A rank that is stopped, or never calls: a warning names it; then it goes on, or time is up.

On one host and on several: there a stopped rank's kernel answers all the while, so its host is not
taken for lost. Hosts are pretended (tests.kit.ranks).
"""

from __future__ import annotations

import logging
import socket
import time
from datetime import timedelta
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed as dist

from tests.kit.conditions import wait_until
from tests.kit.faults import (
    FaultPlan,
    await_fault,
    expect_fault,
    failure_of,
    reach,
    together,
)
from tests.kit.ranks import Outcome, Rank, note, run_ranks, watch_ranks

HOST = socket.gethostname()
STALL = {"WIIIIIDE_STALL_WARNING_S": "0.5"}
LARGE = 1024 * 1024
# Of a group whose timeout is to pass: ranks that are not stopped may stand still for a while too.
TIMEOUT_S = 5.0
PATIENCE_S = 50.0


def named(rank: Outcome, hosts: int | str) -> str:
    """A rank as the others' sentences name it: between hosts with its host."""
    where = f" on {HOST}" if isinstance(hosts, str) else ""
    return f"rank {rank.rank} (pid {rank.pid}{where})"


class Lines(logging.Handler):
    """What the logger "wiiiiide" said."""

    def __init__(self) -> None:
        super().__init__()
        self.said: list[str] = []
        logging.getLogger("wiiiiide").addHandler(self)

    def emit(self, record: logging.LogRecord) -> None:
        self.said.append(record.getMessage())

    def of_stalls(self) -> list[str]:
        return [line for line in self.said if "has waited" in line]


class Stalls(Lines):
    """Tells the test of a stall at once. A rank that is in a call tells nothing else meanwhile."""

    def emit(self, record: logging.LogRecord) -> None:
        super().emit(record)
        if "has waited" in self.said[-1]:
            note(["stall", self.said[-1]])


def have_warned_of(stopped: int, outcomes: list[Outcome]) -> bool:
    """All others have said that they wait for this rank."""
    return all(
        any(isinstance(what, list) and f"rank {stopped} (" in what[1] for _, what in outcome.notes)
        for outcome in outcomes
        if outcome.rank != stopped
    )


def have_ended(stopped: int, outcomes: list[Outcome]) -> bool:
    """All but this rank."""
    return all(outcome.finished_s for outcome in outcomes if outcome.rank != stopped)


def exchange(me: Rank, count: int, steps: int, stopped: int) -> dict[str, Any]:
    lines = Stalls()
    failure = None
    sums = []
    if me.rank == stopped:
        expect_fault(me)
    for step in range(1, steps + 1):
        reach(step)
        if step == steps:  # small ones take so little time
            await_fault(me, stopped)
        x = torch.full((count,), float(step))
        failure = failure_of(dist.all_reduce, x)
        if failure is not None:
            break
        sums.append((float(x[0]), float(x[-1])))
    return {"stalls": lines.of_stalls(), "failure": failure, "sums": sums}


def check_nothing_was_lost(
    outcomes: list[Outcome], hosts: int | str, steps: int, stopped: int, count: int
) -> None:
    size = len(outcomes)
    expected = [(float(size * step), float(size * step)) for step in range(1, steps + 1)]
    for outcome in outcomes:
        assert outcome.exit_code == 0, outcome.trace or outcome.error
        assert outcome.value["failure"] is None
        assert outcome.value["sums"] == expected
    for outcome in outcomes:
        if outcome.rank != stopped:
            said = outcome.value["stalls"]
            stalls = [line for line in said if named(outcomes[stopped], hosts) in line]
            assert stalls, f"rank {outcome.rank} did not name it: {said}"
            assert "all_reduce #" in stalls[0]
            assert f"({count * 4} bytes)" in stalls[0]


@pytest.mark.parametrize("count", [8, LARGE], ids=["small", "large"])
def test_a_stopped_rank_is_named_in_a_warning_and_nothing_is_lost(count: int) -> None:
    steps = 400 if count == 8 else 60
    plan = FaultPlan().stop(2, step=steps // 4, for_s=1.2, until=partial(have_warned_of, 2))
    outcomes = watch_ranks(exchange, 3, count, steps, 2, during=plan, env=STALL)
    check_nothing_was_lost(outcomes, 3, steps, 2, count)


def test_a_rank_of_another_host_stopped_for_six_seconds_is_named_and_nothing_is_lost() -> None:
    """With the warning's own five seconds; three silent ones more and a machine would be lost."""
    plan = FaultPlan().stop(2, step=10, for_s=6.0, until=partial(have_warned_of, 2))
    outcomes = watch_ranks(exchange, "aab", LARGE, 40, 2, during=plan)
    check_nothing_was_lost(outcomes, "aab", 40, 2, LARGE)


@pytest.mark.parametrize("stopped", [0, 2])
def test_small_operations_between_hosts_go_on_when_a_stopped_rank_comes_back(stopped: int) -> None:
    """Rank 1 may wait for rank 2, which waits for rank 0, the one that is stopped: it names that.
    A waiting rank tells those of its host about once a second."""
    plan = FaultPlan().stop(stopped, step=100, for_s=2.2, until=partial(have_warned_of, stopped))
    env = {"WIIIIIDE_STALL_WARNING_S": "4"}
    outcomes = watch_ranks(exchange, "abb", 8, 400, stopped, during=plan, env=env)
    check_nothing_was_lost(outcomes, "abb", 400, stopped, 8)


def check_late(outcome: Outcome, late: Outcome, hosts: int | str) -> None:
    failure = outcome.value["failure"]
    assert failure is not None
    assert failure.kind == "PeerLate", failure
    assert named(late, hosts) in failure.text, failure
    assert f"timeout of {TIMEOUT_S:g} s" in failure.text, failure
    assert "all_reduce #" in failure.text, failure
    # Its own time is up, or another's was before.
    assert 0.5 * TIMEOUT_S < failure.took_s < TIMEOUT_S + 5.0


@pytest.mark.parametrize("count", [8, LARGE], ids=["small", "large"])
@pytest.mark.parametrize("hosts", [3, "abb"], ids=["one host", "two hosts"])
def test_a_rank_stopped_beyond_the_timeout_is_named_by_all_that_wait(
    hosts: int | str, count: int
) -> None:
    plan = FaultPlan().stop(1, step=5, for_s=TIMEOUT_S, until=partial(have_ended, 1))
    outcomes = watch_ranks(
        exchange, hosts, count, 1000, 1, during=plan, env=STALL, group_timeout_s=TIMEOUT_S
    )
    for rank in (0, 2):
        check_late(outcomes[rank], outcomes[1], hosts)
    woken = outcomes[1].value["failure"]  # it comes back to a group that has gone on without it
    assert woken is not None
    assert woken.kind in ("PeerLate", "PeerLost"), woken


def miss_a_call(me: Rank, asynchronous: bool) -> dict[str, Any]:
    lines = Lines()
    dist.barrier()
    failure = None
    if me.rank == 1:
        together(me, "late")  # a rank that leaves sooner is lost, not late
    else:
        x = torch.ones(8)
        if asynchronous:
            failure = failure_of(dist.all_reduce(x, async_op=True).wait)
        else:
            failure = failure_of(dist.all_reduce, x)
        together(me, "late")
    return {"failure": failure, "stalls": lines.of_stalls()}


# The ranks that wait for rank 1 alone: a rank of another host waits for either rank of the first.
@pytest.mark.parametrize("asynchronous", [False, True], ids=["blocking", "async"])
@pytest.mark.parametrize(
    ("hosts", "naming"), [(3, (0, 2)), ("aab", (0,))], ids=["one host", "two hosts"]
)
def test_a_missing_call_is_a_warning_and_then_an_error(
    hosts: int | str, naming: tuple[int, ...], asynchronous: bool
) -> None:
    outcomes = watch_ranks(miss_a_call, hosts, asynchronous, env=STALL, group_timeout_s=TIMEOUT_S)
    for rank in (0, 2):
        assert outcomes[rank].exit_code == 0, outcomes[rank].trace
        check_late(outcomes[rank], outcomes[1], hosts)
        stalls = outcomes[rank].value["stalls"]
        assert stalls, f"rank {rank} gave no warning"
        if rank in naming:
            assert any(named(outcomes[1], hosts) in line for line in stalls), stalls


def receive_what_is_never_sent(me: Rank) -> Any:
    given_up, failure = Path(me.folder, "given up"), None
    if me.rank == 0:
        failure = failure_of(dist.recv, torch.ones(8), 1)
        given_up.touch()
    else:
        wait_until(given_up.exists, PATIENCE_S, "rank 0 gives up")
    dist.barrier()  # a message that was given up leaves the group whole
    return failure


@pytest.mark.parametrize("hosts", [2, "ab"], ids=["one host", "two hosts"])
def test_a_message_that_never_comes_is_given_up_and_the_group_stays_usable(
    hosts: int | str,
) -> None:
    outcomes = watch_ranks(receive_what_is_never_sent, hosts, group_timeout_s=TIMEOUT_S)
    assert outcomes[0].exit_code == 0, outcomes[0].trace
    assert outcomes[0].value.kind == "PeerLate"
    assert named(outcomes[1], hosts) in outcomes[0].value.text


def wait_a_little(me: Rank) -> Any:
    x, impatient = torch.ones(8), Path(me.folder, "impatient")
    failure = None
    if me.rank == 0:
        work = dist.all_reduce(x, async_op=True)
        failure = failure_of(work.wait, timedelta(seconds=0.2))
        impatient.touch()
        work.wait()
    else:
        wait_until(impatient.exists, PATIENCE_S, "rank 0 has no patience")
        dist.all_reduce(x)
    return failure, float(x[0])


def test_a_wait_that_gives_up_does_not_break_the_operation() -> None:
    (failure, mine), (_, theirs) = run_ranks(wait_a_little, 2)
    assert failure is not None
    assert "all_reduce #" in failure.text
    assert failure.took_s < 5.0
    assert mine == theirs == 2.0


def miss_a_monitored_barrier(me: Rank) -> dict[str, Any]:
    from wiiiiided.torch import monitored_barrier

    monitored_barrier()
    failure = None
    if me.rank not in (1, 3):
        failure = failure_of(monitored_barrier, None, timedelta(seconds=TIMEOUT_S))
    dist.barrier()
    if me.rank in (1, 3):
        monitored_barrier(
            timeout=timedelta(seconds=PATIENCE_S)
        )  # theirs, late: no rank waits for it
    x = torch.ones(LARGE)
    dist.all_reduce(x)
    monitored_barrier(timeout=timedelta(seconds=PATIENCE_S))
    return {"failure": failure, "sum": float(x[-1])}


@pytest.mark.parametrize("hosts", [4, "aabb"], ids=["one host", "two hosts"])
def test_a_monitored_barrier_names_all_missing_ranks_and_the_group_goes_on(
    hosts: int | str,
) -> None:
    outcomes = watch_ranks(miss_a_monitored_barrier, hosts)
    for outcome in outcomes:
        assert outcome.exit_code == 0, outcome.trace
        assert outcome.value["sum"] == 4.0
    for rank in (0, 2):
        failure = outcomes[rank].value["failure"]
        assert failure.kind == "PeerLate"
        for missing in (1, 3):
            assert named(outcomes[missing], hosts) in failure.text, failure
        assert f"(pid {outcomes[2 - rank].pid}" not in failure.text
        assert failure.took_s < TIMEOUT_S + 5.0


def die_in_a_monitored_barrier(me: Rank) -> Any:
    from wiiiiided.torch import monitored_barrier

    dist.barrier()
    together(me)
    reach(1)
    if me.rank == 1:
        time.sleep(PATIENCE_S)  # killed in here
    return failure_of(monitored_barrier)


@pytest.mark.parametrize(
    ("hosts", "within_s"), [(3, 5.0), ("abb", 10.0)], ids=["one host", "two hosts"]
)
def test_a_death_during_a_monitored_barrier_is_noticed_at_once(
    hosts: int | str, within_s: float
) -> None:
    plan = FaultPlan().kill(rank=1, step=1, after_s=0.1)
    outcomes = watch_ranks(die_in_a_monitored_barrier, hosts, during=plan)
    for rank in (0, 2):
        failure = outcomes[rank].value
        assert failure.kind == "PeerLost", failure
        assert f"{named(outcomes[1], hosts)} died" in failure.text
        assert failure.at - plan.when(1) < within_s


def wait_quietly(me: Rank) -> list[str]:
    lines = Lines()
    if me.rank == 1:
        time.sleep(0.8)
    dist.barrier()
    return lines.said


def test_a_silent_worker_says_nothing_of_a_stall() -> None:
    assert run_ranks(wait_quietly, 2, env={**STALL, "WIIIIIDE_LOG": "silent"}) == [[], []]
