"""A rank is killed while hosts exchange: what is so with several hosts only."""

from __future__ import annotations

import contextlib
import os
import signal
import socket

import pytest
import torch
import torch.distributed as dist

from tests.faults import test_blame as blame
from tests.faults import test_forks as forks
from tests.faults import test_kill as kill
from tests.kit.faults import FaultPlan
from tests.kit.ranks import Outcome, Rank, watch_ranks

DEADLINE_S = kill.DEADLINE_S
HOST = socket.gethostname()
LARGE = 4 * 1024 * 1024


def blames(text: str, victim: Outcome) -> bool:
    return f"rank {victim.rank} (pid {victim.pid} on {HOST}) died" in text


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
    outcomes = watch_ranks(kill.exchange_until_it_fails, hosts, step, backend=None, during=plan)
    kill.check_survivors(outcomes, plan, 0, "(broadcast|recv)", hosts)


@pytest.mark.parametrize("step", [kill.large_all_reduce, kill.all_to_all], ids=lambda s: s.__name__)
def test_three_hosts_name_a_rank_that_is_killed_and_leave_at_once(step: kill.Step) -> None:
    plan = FaultPlan().kill(rank=1, step=kill.STEP, after_s=0.01)
    outcomes = watch_ranks(kill.exchange_until_it_fails, "abca", step, backend=None, during=plan)
    kill.check_survivors(outcomes, plan, 1, kill.NAMES[step], "abca")


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
# calls again when rank 2 is gone too: wherever they are, all of them blame rank 3.
@pytest.mark.parametrize("hosts", ["aabb", "abab", "abcd", "aaab"])
@pytest.mark.parametrize("manner", ["exception", "_exit"])
def test_a_rank_that_left_because_of_a_death_on_another_host_is_not_blamed(
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
