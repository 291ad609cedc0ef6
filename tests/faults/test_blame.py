"""A rank that left because of a fault is never blamed for it: all report the first cause."""

from __future__ import annotations

import os
import sys
import time
from pathlib import Path

import pytest
import torch
import torch.distributed as dist

from tests.kit.conditions import wait_until
from tests.kit.faults import Failure, FaultPlan, failure_of, reach, together
from tests.kit.ranks import Outcome, Rank, note, watch_ranks

DEADLINE_S = 5.0
PATIENCE_S = 50.0
VICTIM = 3


def tell_pid(me: Rank) -> None:
    part = Path(me.folder, f"pid-{me.rank}.part")
    part.write_text(str(os.getpid()))
    part.rename(Path(me.folder, f"pid-{me.rank}"))


def wait_for_the_end_of(me: Rank, rank: int) -> None:
    file = Path(me.folder, f"pid-{rank}")
    wait_until(file.exists, PATIENCE_S, f"the pid of rank {rank}")
    pid = file.read_text()
    wait_until(lambda: not Path(f"/proc/{pid}").exists(), PATIENCE_S, f"the end of rank {rank}")


def leave(manner: str) -> None:
    if manner == "exception":
        raise RuntimeError("I give up")
    if manner == "exit":
        sys.exit(3)
    if manner == "_exit":
        os._exit(3)


def go_at_different_speeds(me: Rank, manner: str) -> None:
    tell_pid(me)
    dist.barrier()
    together(me)
    reach(1)
    if me.rank == VICTIM:
        time.sleep(PATIENCE_S)  # killed in here
    if me.rank == 2:  # it computes until rank 0 has met the fault and is gone
        wait_for_the_end_of(me, 0)
    note(failure_of(dist.all_reduce, torch.ones(8)))
    if me.rank == 0:
        leave(manner)
    if me.rank == 1:
        wait_for_the_end_of(me, 2)
        note(failure_of(dist.barrier))


def failures_of(outcome: Outcome) -> list[Failure | None]:
    return [what for _, what in outcome.notes if what is None or isinstance(what, Failure)]


def check_all_blame(outcomes: list[Outcome], victim: int) -> None:
    pid = outcomes[victim].pid
    for outcome in outcomes:
        if outcome.rank == victim:
            continue
        failures = failures_of(outcome)
        assert failures, outcome
        for failure in failures:
            assert failure is not None
            assert failure.kind == "PeerLost", failure
            assert f"rank {victim} (pid {pid}) died" in failure.text, failure
            assert failure.took_s < DEADLINE_S


@pytest.mark.parametrize("manner", ["exception", "exit", "_exit"])
def test_all_blame_the_rank_that_was_killed_however_the_others_leave(manner: str) -> None:
    plan = FaultPlan().kill(rank=VICTIM, step=1, after_s=0.1)
    outcomes = watch_ranks(go_at_different_speeds, 4, manner, during=plan)
    check_all_blame(outcomes, VICTIM)


def meet_the_fault_in_a_subgroup(me: Rank, waits: bool) -> None:
    """Ranks 0, 1 and 3 exchange in a group of their own, rank 2 waits for all, or comes later."""
    tell_pid(me)
    small = dist.new_group([0, 1, 3])
    dist.barrier()
    together(me)
    reach(1)
    if me.rank == 2:
        if not waits:
            wait_for_the_end_of(me, 0)
            wait_for_the_end_of(me, 1)
        note(failure_of(dist.all_reduce, torch.ones(8)))
        return
    if me.rank == VICTIM:
        time.sleep(PATIENCE_S)  # killed in here
    failure = failure_of(dist.all_reduce, torch.ones(8), dist.ReduceOp.SUM, small)
    note(["in the subgroup", failure])
    if me.rank == 0:
        os._exit(3)
    note(failure_of(dist.barrier))
    raise RuntimeError("I give up")


@pytest.mark.parametrize("waits", [True, False], ids=["who waits", "who comes later"])
def test_a_death_noticed_in_a_subgroup_is_the_cause_in_the_world_too(waits: bool) -> None:
    plan = FaultPlan().kill(rank=VICTIM, step=1, after_s=0.1)
    outcomes = watch_ranks(meet_the_fault_in_a_subgroup, 4, waits, during=plan)
    pid = outcomes[VICTIM].pid
    for rank in (0, 1):
        inside = [what[1] for _, what in outcomes[rank].notes if isinstance(what, list)]
        assert len(inside) == 1
        assert inside[0].kind == "PeerLost", inside
        assert f"pid {pid}) died" in inside[0].text, inside
    for rank in (1, 2):
        (failure,) = failures_of(outcomes[rank])
        assert failure is not None
        assert failure.kind == "PeerLost", failure
        assert f"rank {VICTIM} (pid {pid}) died" in failure.text, failure


def die_in_a_chain_of_groups(me: Rank) -> None:
    """Rank 0 learns of the death in {0, 3}; rank 2 shares only {0, 1, 2} with ranks that know."""
    tell_pid(me)
    pair = dist.new_group([0, 3])
    three = dist.new_group([0, 1, 2])
    dist.barrier()
    together(me)
    reach(1)
    if me.rank == VICTIM:
        time.sleep(PATIENCE_S)  # killed in here
    if me.rank == 0:
        note(failure_of(dist.barrier, pair))
        os._exit(3)
    if me.rank == 1:
        wait_for_the_end_of(me, 0)
    note(failure_of(dist.barrier, three))


def test_a_group_without_the_dead_rank_blames_the_member_it_lost() -> None:
    plan = FaultPlan().kill(rank=VICTIM, step=1, after_s=0.1)
    outcomes = watch_ranks(die_in_a_chain_of_groups, 4, during=plan)
    for rank in (1, 2):
        (failure,) = failures_of(outcomes[rank])
        assert failure is not None
        assert failure.kind == "PeerLost", failure
        assert f"rank 0 (pid {outcomes[0].pid}) died" in failure.text, failure
