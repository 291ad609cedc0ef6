"""Groups over hosts that cannot come to be: every rank is told why, in one sentence."""

from __future__ import annotations

import os
import signal
import time
from typing import Any

import pytest
import torch
import torch.distributed as dist

from tests.faults import test_join as near
from tests.kit.faults import Failure, failure_of, make_group
from tests.kit.leaks import Footprint
from tests.kit.networks import tcp_of
from tests.kit.ranks import Rank, run_ranks, watch_ranks
from wiiiiided.backend.engine import connect_hosts
from wiiiiided.backend.engine import join as joining

DEADLINE_S = 10.0

# Where the victim dies, and how long the others may take: a rank without a connection yet is missed
# when time is up, or when it has not connected though it was asked to.
PLACES: dict[str, tuple[Any, str, bool]] = {
    "before it tells where it listens": (joining, "_link_hosts", False),
    "before it connects": (connect_hosts.LinkBuilder, "start", False),
    "after it has linked": (joining, "_link_hosts", True),
    "after it has the memory": (joining, "_base_segment", True),
}


def die_while_joining(me: Rank, victim: int, place: str) -> Failure | None:
    """The victim kills itself inside a function of the joining, before or after doing it."""
    connect_hosts.TURN_S = 1.0  # type: ignore[misc]
    if me.rank == victim:
        where, name, after = PLACES[place]
        original = getattr(where, name)

        def fatal(*args: Any) -> Any:
            if after:
                original(*args)
            time.sleep(0.1)
            os.kill(os.getpid(), signal.SIGKILL)

        setattr(where, name, fatal)
    return failure_of(make_group, me, 5.0 if "tells" in place else 60.0)


@pytest.mark.parametrize(
    ("victim", "place"),
    [(2, place) for place in PLACES] + [(0, place) for place in list(PLACES)[1:]],
)
def test_a_rank_that_dies_while_a_group_over_hosts_is_made_is_named_by_the_others(
    victim: int, place: str
) -> None:
    outcomes = watch_ranks(die_while_joining, "aab", victim, place, backend=None)
    assert outcomes[victim].exit_code == -9
    for outcome in outcomes:
        if outcome.rank != victim:
            assert outcome.exit_code == 0, outcome.error
            failure = outcome.value
            assert failure is not None, outcome.trace
            assert failure.kind in ("PeerLost", "PeerLate", "HostError"), failure
            named = (f"rank {victim} ", f"ranks [{victim}] of 3")
            assert any(name in failure.text for name in named), failure
            assert "\n" not in failure.text
            assert failure.took_s < DEADLINE_S


def test_a_rank_with_a_bad_setting_fails_those_on_other_hosts_in_time() -> None:
    values = run_ranks(near.join_with_bad_settings, "ab", 1, backend=None)
    failure, leaks = values[1]
    assert failure.kind == "UsageError"
    assert "WIIIIIDE_SPIN='sometimes'" in failure.text
    for failure, leaks in values:
        assert failure.took_s < DEADLINE_S
        assert leaks == []


def make_another_after_a_failure(me: Rank) -> float:
    """As on one host; the barrier keeps the failure out of a slower rank's joining."""
    calls = (lambda: dist.barrier(), lambda: dist.all_reduce(torch.ones(8 + me.rank)))
    failures = [failure_of(call) for call in calls]
    assert any(failures)
    dist.destroy_process_group()
    make_group(me, 50.0, "second store")
    x = torch.ones(100_000)
    dist.all_reduce(x)
    return float(x[-1])


def test_after_a_failure_the_same_processes_can_make_a_new_group_over_hosts() -> None:
    assert run_ranks(make_another_after_a_failure, "aab") == [3.0] * 3


def join_in_vain(me: Rank) -> Any:
    """Another key on each host: what a man in the middle, or a spoilt Store, would give them."""
    read = joining._Register._read

    def spoilt(self: Any, key: str) -> Any:
        return read(self, key)._replace(key=bytes([me.rank]) * 32)

    joining._Register._read = spoilt  # type: ignore[method-assign]
    connect_hosts.TURN_S = 1.0  # type: ignore[misc]
    before = Footprint.before()
    failure = failure_of(make_group, me, 50.0)
    return failure, Footprint.now().leaked_since(before)


def test_ranks_with_different_keys_refuse_each_other_and_say_so() -> None:
    for failure, leaks in run_ranks(join_in_vain, "ab", backend=None):
        assert failure is not None
        assert failure.kind in ("HostError", "PeerLost"), failure
        assert "different keys" in failure.text, failure
        assert leaks == []


def make_groups(me: Rank) -> list[int]:
    """How many TCP connections there are after each new group."""
    counts = []
    for _ in range(4):
        group = dist.new_group(list(range(me.size)))
        x = torch.ones(8)
        dist.all_reduce(x, group=group)
        assert x[0] == me.size
        counts.append(len(tcp_of(os.getpid())))
    dist.barrier()  # a rank that leaves ends its connections
    return counts


def test_a_new_group_opens_no_connection() -> None:
    assert run_ranks(make_groups, "abb") == [[4] * 4, [2] * 4, [2] * 4]
