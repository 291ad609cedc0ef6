"""A rank is killed while hosts exchange: every rank on every host says who, where, and in what.

Hosts are pretended (tests.kit.ranks): ranks with different letters talk over TCP on loopback, and
the kernel ends a killed process's connections as it would on another machine.
"""

from __future__ import annotations

import contextlib
import os
import re
import signal
import socket
import time
from typing import Any

import pytest
import torch
import torch.distributed as dist

from tests.faults import test_blame as blame
from tests.faults import test_forks as forks
from tests.faults import test_kill as kill
from tests.kit.faults import Failure, FaultPlan, failure_of, make_group, reach, together
from tests.kit.leaks import Footprint, dev_shm
from tests.kit.ranks import Outcome, Rank, note, run_ranks, watch_ranks

PROMISE_S = 2.0
DEADLINE_S = 5 * PROMISE_S
HOST = socket.gethostname()
LARGE = 4 * 1024 * 1024
NAMES: dict[Any, str] = dict(kill.NAMES)


def blames(text: str, victim: Outcome) -> bool:
    return f"rank {victim.rank} (pid {victim.pid} on {HOST}) died" in text


def exchange_until_it_fails(me: Rank, step: kill.Step) -> dict[str, Any]:
    """Steps without end; the failure, the next calls' failures, how long leaving took, leaks."""
    torch.ones(1).sum()
    before = Footprint.before()
    make_group(me)
    number = 0
    failure: Failure | None = None
    while failure is None:
        number += 1
        reach(number)
        failure = failure_of(step, me, number)
    later = [failure_of(step, me, number), failure_of(dist.barrier)]
    began = time.monotonic()
    dist.destroy_process_group()
    left_s = time.monotonic() - began
    return {
        "failure": failure,
        "later": later,
        "left_s": left_s,
        "leaks": Footprint.now().leaked_since(before),
    }


def check_survivors(outcomes: list[Outcome], plan: FaultPlan, victim: int, name: str) -> None:
    """Every survivor raised in time, named everything, failed later calls, left at once, and left
    nothing."""
    assert outcomes[victim].exit_code == -9
    for outcome in outcomes:
        if outcome.rank == victim:
            continue
        assert outcome.exit_code == 0, outcome.trace or outcome.error
        failure = outcome.value["failure"]
        assert failure.kind == "PeerLost", failure
        assert blames(failure.text, outcomes[victim]), failure
        assert re.search(rf"{name} #\d+ \(\d+ bytes\)", failure.text), failure
        assert failure.at - plan.when(victim) < DEADLINE_S
        for later in outcome.value["later"]:
            assert later is not None
            assert later.kind == "PeerLost", later
            assert blames(later.text, outcomes[victim]), later
            assert later.took_s < DEADLINE_S
        assert outcome.value["left_s"] < 4.0, "it waited for those who did the same"
        assert outcome.value["leaks"] == []


# Where the ranks are, and who is killed: a host's only rank; one of two, so that its mate sees the
# death in shared memory and the others on the wire; one whose mate is not beside it in rank.
PLACES = {"ab": 1, "aab": 1, "abab": 3}


@pytest.mark.parametrize(
    ("step", "hosts"),
    [
        (step, hosts)
        for number, step in enumerate(NAMES)
        for place, hosts in enumerate(PLACES)
        if place != number % 3  # two of three for each
    ],
)
def test_every_rank_on_every_host_names_a_rank_that_is_killed_in_an_exchange(
    step: kill.Step, hosts: str
) -> None:
    victim = PLACES[hosts]
    plan = FaultPlan().kill(rank=victim, step=kill.STEP, after_s=0.002 * len(hosts))
    files = dev_shm()
    outcomes = watch_ranks(exchange_until_it_fails, hosts, step, backend=None, during=plan)
    check_survivors(outcomes, plan, victim, NAMES[step])
    kill.nothing_new_in_dev_shm(files)


def send_only(me: Rank, step: int) -> None:
    """Rank 0 sends to all and hears nothing, so it ends in the middle of a frame."""
    x = torch.ones(LARGE)
    for other in range(1, me.size):
        if me.rank == 0:
            dist.send(x, other)
        elif me.rank == other:
            dist.recv(x, 0)


@pytest.mark.parametrize("hosts", ["ab", "abb"])
@pytest.mark.parametrize("step", [kill.broadcast, send_only], ids=lambda step: step.__name__)
def test_a_rank_that_is_killed_in_the_middle_of_a_frame_is_dead_and_the_frame_is_not_blamed(
    step: kill.Step, hosts: str
) -> None:
    plan = FaultPlan().kill(rank=0, step=kill.STEP, after_s=0.005)
    outcomes = watch_ranks(exchange_until_it_fails, hosts, step, backend=None, during=plan)
    check_survivors(outcomes, plan, 0, "(broadcast|recv)")


@pytest.mark.parametrize("step", [kill.large_all_reduce, kill.all_to_all], ids=lambda s: s.__name__)
def test_three_hosts_name_a_rank_that_is_killed_and_leave_at_once(step: kill.Step) -> None:
    plan = FaultPlan().kill(rank=1, step=kill.STEP, after_s=0.01)
    outcomes = watch_ranks(exchange_until_it_fails, "abca", step, backend=None, during=plan)
    check_survivors(outcomes, plan, 1, NAMES[step])


def test_a_killed_rank_is_noticed_on_other_hosts_though_its_data_loader_workers_live_on() -> None:
    plan = FaultPlan().kill(rank=1, step=5)
    workers: list[int] = []

    def kill_and_keep_workers(outcomes: list[Outcome], elapsed_s: float) -> None:
        """Left alone, they end when they see that their rank is no more: in seconds."""
        plan(outcomes, elapsed_s)
        if plan.fired and not workers:
            told = next(what[1] for _, what in outcomes[1].notes if isinstance(what, list))
            workers.extend(told)
            for pid in workers:
                with contextlib.suppress(ProcessLookupError):
                    os.kill(pid, signal.SIGSTOP)

    outcomes = watch_ranks(forks.train_with_workers, "abb", during=kill_and_keep_workers)
    assert len(workers) == 4
    try:
        for rank in (0, 2):
            failure = outcomes[rank].value
            assert failure is not None, outcomes[rank].trace
            assert failure.kind == "PeerLost", failure
            assert blames(failure.text, outcomes[1]), failure
            assert failure.at - plan.when(1) < DEADLINE_S
        assert all(map(forks._alive, workers)), "they did not outlive their rank"
    finally:
        for pid in workers:
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)


def test_a_forked_child_that_lives_on_holds_no_connection_of_its_killed_rank() -> None:
    plan = FaultPlan().kill(rank=1, step=1, after_s=0.05)
    outcomes = watch_ranks(forks.outlived_by_a_child, "ab", during=plan)
    child = next(what[1] for _, what in outcomes[1].notes if isinstance(what, list))
    try:
        assert outcomes[0].value.kind == "PeerLost", outcomes[0].value
        assert blames(outcomes[0].value.text, outcomes[1])
        assert outcomes[0].value.at - plan.when(1) < DEADLINE_S
        assert forks._alive(child)
    finally:
        os.kill(child, signal.SIGKILL)


# Rank 3 is killed. Rank 0 meets that first and leaves, rank 2 calls when rank 0 is gone, rank 1
# calls again when rank 2 is gone too: whoever is where, all of them blame rank 3.
@pytest.mark.parametrize("hosts", ["aabb", "abab", "abcd", "aaab"])
@pytest.mark.parametrize("manner", ["exception", "_exit"])
def test_nobody_is_blamed_who_left_because_of_a_death_on_another_host(
    manner: str, hosts: str
) -> None:
    plan = FaultPlan().kill(rank=blame.VICTIM, step=1, after_s=0.1)
    outcomes = watch_ranks(blame.go_at_different_speeds, hosts, manner, during=plan)
    for outcome in outcomes[: blame.VICTIM]:
        failures = blame.failures_of(outcome)
        assert failures, outcome
        for failure in failures:
            assert failure is not None
            assert failure.kind == "PeerLost", failure
            assert blames(failure.text, outcomes[blame.VICTIM]), (outcome.rank, failure)
            assert failure.took_s < DEADLINE_S


def test_every_thread_of_a_survivor_on_another_host_is_told() -> None:
    plan = FaultPlan().kill(rank=2, step=1, after_s=0.2)
    outcomes = watch_ranks(kill.exchange_in_two_threads, "aab", during=plan)
    for outcome in outcomes[:2]:
        assert outcome.exit_code == 0, outcome.error
        assert not outcome.error, outcome.trace
        assert len(outcome.value) == 3 - outcome.rank
        for failure in outcome.value:
            assert failure is not None
            assert failure.kind == "PeerLost", failure
            assert blames(failure.text, outcomes[2]), failure
            assert failure.at - plan.when(2) < DEADLINE_S


def survive_and_go_on(me: Rank) -> Any:
    """Rank 2 dies in the world; ranks 0 and 1 make a group of two over the link they have."""
    dist.all_reduce(torch.ones(LARGE // 4))
    note(["up"])
    together(me)
    if me.rank == 2:
        os.kill(os.getpid(), signal.SIGKILL)
    assert failure_of(dist.all_reduce, torch.ones(LARGE)) is not None
    dist.destroy_process_group()
    make_group(Rank(me.rank, 2, me.folder), 50.0, "store of the survivors")
    x = torch.ones(LARGE // 4)
    dist.all_reduce(x)
    return float(x[-1])


def test_the_survivors_of_a_death_on_another_host_can_go_on_in_a_group_of_their_own() -> None:
    outcomes = watch_ranks(survive_and_go_on, "aba")
    assert [outcome.value for outcome in outcomes[:2]] == [2.0, 2.0], outcomes


def test_a_group_over_hosts_that_is_destroyed_leaves_nothing_behind() -> None:
    files = dev_shm()
    assert run_ranks(kill.leave_nothing_behind, "aba", backend=None) == [[], [], []]
    kill.nothing_new_in_dev_shm(files)
