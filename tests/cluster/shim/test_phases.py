"""The phases of an attempt in its shim, without a process."""

from __future__ import annotations

import pytest

from wiiiiided.cluster.shim import phases
from wiiiiided.cluster.shim.phases import (
    AttemptOver,
    Failure,
    RanksDraining,
    RanksPreparing,
    RanksRunning,
    RanksStopping,
    StopRequest,
    StoreHosting,
)

FAILED = Failure(1, "rank 0 ended with exit code 1", 5.0)
KILLED = Failure(phases.TERMINATED, "rank 0 was killed by SIGTERM", 5.0)
STOP = StopRequest("cancelled by ada")


@pytest.mark.parametrize("phase", [RanksPreparing(), RanksRunning()])
def test_the_first_cause_of_an_end_stays(phase: phases.Phase) -> None:
    failed = phases.rank_failed(phase, FAILED)
    assert failed == RanksStopping(FAILED)
    assert phases.stop_asked(failed, STOP) == failed
    stopped = phases.stop_asked(phase, STOP)
    assert stopped == RanksStopping(STOP)
    assert phases.rank_failed(stopped, FAILED) == stopped


def test_a_stop_after_all_ranks_have_ended_is_no_cause() -> None:
    draining = phases.all_ranks_ended(RanksRunning())
    assert draining == RanksDraining()
    assert phases.stop_asked(draining, STOP) == RanksStopping(None, "drained")
    assert phases.stop_asked(phases.terminated(draining), STOP) == RanksStopping(None, "termed")
    assert phases.stop_asked(StoreHosting(), STOP) == RanksStopping(None, "drained")


def test_ranks_that_end_in_their_moment_need_no_signal() -> None:
    drained = phases.all_ranks_ended(RanksStopping(FAILED))
    assert drained == RanksStopping(FAILED, "drained")
    assert phases.all_ranks_ended(drained) == drained
    termed = phases.terminated(RanksStopping(FAILED))
    assert phases.all_ranks_ended(termed) == termed == RanksStopping(FAILED, "termed")


def test_a_rank_that_died_of_the_shutdown_has_not_failed() -> None:
    assert phases.excused(RanksStopping(KILLED, "termed"), STOP) == RanksStopping(STOP, "termed")
    assert phases.excused(RanksStopping(FAILED), STOP) == RanksStopping(FAILED)


def test_nothing_changes_what_is_over() -> None:
    over = AttemptOver()
    assert phases.rank_failed(over, FAILED) is over
    assert phases.stop_asked(over, STOP) is over
    assert phases.excused(over, STOP) is over
    assert phases.all_ranks_ended(over) is over
    assert phases.terminated(over) is over
