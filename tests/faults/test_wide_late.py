"""A rank on another host that is stopped, or never calls: a warning names it; then all go on, or
time is up. Its kernel answers all the while, so its host is not taken for lost."""

from __future__ import annotations

import socket
from functools import partial

import pytest

from tests.faults import test_late as late
from tests.kit.faults import FaultPlan
from tests.kit.ranks import Outcome, watch_ranks

HOST = socket.gethostname()
STALL = {"WIIIIIDE_STALL_WARNING_S": "0.5"}
LARGE = 1024 * 1024


def named(rank: Outcome) -> str:
    return f"rank {rank.rank} (pid {rank.pid} on {HOST})"


def check_nothing_was_lost(outcomes: list[Outcome], steps: int, stopped: int) -> None:
    size = len(outcomes)
    expected = [(float(size * step), float(size * step)) for step in range(1, steps + 1)]
    for outcome in outcomes:
        assert outcome.exit_code == 0, outcome.trace or outcome.error
        assert outcome.value["failure"] is None
        assert outcome.value["sums"] == expected
    for outcome in outcomes:
        if outcome.rank != stopped:
            said = outcome.value["stalls"]
            stalls = [line for line in said if named(outcomes[stopped]) in line]
            assert stalls, f"rank {outcome.rank} did not name it: {said}"
            assert "all_reduce #" in stalls[0]


def test_a_rank_stopped_for_six_seconds_is_named_in_a_warning_and_nothing_is_lost() -> None:
    """With the warning's own five seconds; three silent ones more and a machine would be lost."""
    plan = FaultPlan().stop(2, step=10, for_s=6.0, until=partial(late.have_warned_of, 2))
    outcomes = watch_ranks(late.exchange, "aab", LARGE, 40, 2, during=plan)
    check_nothing_was_lost(outcomes, 40, 2)


@pytest.mark.parametrize("stopped", [0, 2])
def test_small_operations_go_on_as_well_when_a_stopped_rank_comes_back(stopped: int) -> None:
    """Rank 1 may wait for rank 2, which waits for rank 0, the one that is stopped: it names that.
    A waiting rank tells those of its host about once a second."""
    plan = FaultPlan().stop(
        stopped, step=100, for_s=2.2, until=partial(late.have_warned_of, stopped)
    )
    env = {"WIIIIIDE_STALL_WARNING_S": "4"}
    outcomes = watch_ranks(late.exchange, "abb", 8, 400, stopped, during=plan, env=env)
    check_nothing_was_lost(outcomes, 400, stopped)


@pytest.mark.parametrize("count", [8, LARGE], ids=["small", "large"])
def test_a_rank_stopped_beyond_the_timeout_is_named_by_all_hosts(count: int) -> None:
    plan = FaultPlan().stop(1, step=5, for_s=late.TIMEOUT_S, until=partial(late.have_ended, 1))
    outcomes = watch_ranks(
        late.exchange, "abb", count, 1000, 1,
        during=plan, env=STALL, group_timeout_s=late.TIMEOUT_S,
    )  # fmt: skip
    for rank in (0, 2):
        failure = outcomes[rank].value["failure"]
        assert failure is not None
        assert failure.kind == "PeerLate", failure
        assert named(outcomes[1]) in failure.text, failure
        assert f"timeout of {late.TIMEOUT_S:g} s" in failure.text, failure
        assert "all_reduce #" in failure.text, failure
        # Its own time is up, or another's was before.
        assert 0.5 * late.TIMEOUT_S < failure.took_s < late.TIMEOUT_S + 5.0
    woken = outcomes[1].value["failure"]  # it comes back to a group that has gone on without it
    assert woken is not None
    assert woken.kind in ("PeerLate", "PeerLost"), woken


@pytest.mark.parametrize("asynchronous", [False, True], ids=["blocking", "async"])
def test_a_call_missing_on_one_host_is_a_warning_and_then_an_error(asynchronous: bool) -> None:
    outcomes = watch_ranks(
        late.miss_a_call, "aab", asynchronous, env=STALL, group_timeout_s=late.TIMEOUT_S
    )
    for rank in (0, 2):
        assert outcomes[rank].exit_code == 0, outcomes[rank].trace
        failure = outcomes[rank].value["failure"]
        assert failure.kind == "PeerLate", failure
        assert named(outcomes[1]) in failure.text, failure
        assert f"timeout of {late.TIMEOUT_S:g} s" in failure.text, failure
        assert outcomes[rank].value["stalls"], f"rank {rank} gave no warning"
    # Its mate waits for it in memory, the other host for either of them: whom it speaks to.
    assert any(named(outcomes[1]) in line for line in outcomes[0].value["stalls"])


def test_a_message_from_another_host_that_never_comes_is_given_up_and_the_group_stays() -> None:
    outcomes = watch_ranks(late.receive_what_is_never_sent, "ab", group_timeout_s=late.TIMEOUT_S)
    assert outcomes[0].exit_code == 0, outcomes[0].trace
    assert outcomes[0].value.kind == "PeerLate"
    assert named(outcomes[1]) in outcomes[0].value.text


def test_a_monitored_barrier_names_all_missing_ranks_on_every_host() -> None:
    outcomes = watch_ranks(late.muster, "aabb")
    for outcome in outcomes:
        assert outcome.exit_code == 0, outcome.trace
        assert outcome.value["sum"] == 4.0
    for rank in (0, 2):
        failure = outcomes[rank].value["failure"]
        assert failure.kind == "PeerLate"
        for missing in (1, 3):
            assert named(outcomes[missing]) in failure.text, failure
        assert named(outcomes[2 - rank]) not in failure.text


def test_a_death_on_another_host_during_a_monitored_barrier_is_noticed_at_once() -> None:
    plan = FaultPlan().kill(rank=1, step=1, after_s=0.1)
    outcomes = watch_ranks(late.die_in_a_monitored_barrier, "abb", during=plan)
    for rank in (0, 2):
        failure = outcomes[rank].value
        assert failure.kind == "PeerLost", failure
        assert f"{named(outcomes[1])} died" in failure.text
        assert failure.at - plan.when(1) < 10.0
