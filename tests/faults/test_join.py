"""Groups that cannot come to be: every rank is told why, soon, in one sentence.

On one host and on several. Hosts are pretended (tests.kit.ranks): ranks with different letters talk
over TCP on loopback.
"""

from __future__ import annotations

import os
import signal
import threading
import time
from typing import Any

import pytest
import torch
import torch.distributed as dist

from tests.kit.faults import Failure, failure_of, make_group, together
from tests.kit.leaks import Footprint, shared_maps
from tests.kit.networks import tcp_of
from tests.kit.ranks import Outcome, Rank, note, run_ranks, watch_ranks
from wiiiiided.backend.engine import connect_hosts
from wiiiiided.backend.engine import join as joining
from wiiiiided.backend.engine import process as processes
from wiiiiided.backend.net import interfaces
from wiiiiided.config import Config
from wiiiiided.errors import UsageError

DEADLINE_S = 5.0
LARGE = 4 * 1024 * 1024  # elements
HOSTS_DEADLINE_S = 10.0  # of a group over several hosts
MISSING_S = 5.0  # a rank may come late by a second or two


def join_twice(me: Rank) -> list[tuple[str, str]]:
    store = dist.HashStore()
    told: list[tuple[str, str]] = []

    def attempt(rank: int) -> None:
        failure = failure_of(joining.join, store, rank, 2, 30.0, "twice")
        assert failure is not None
        assert failure.took_s < DEADLINE_S
        told.append((failure.kind, failure.text))

    threads = [threading.Thread(target=attempt, args=(rank,)) for rank in range(2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return told


def test_two_members_in_one_process_are_refused() -> None:
    (told,) = run_ranks(join_twice, 1, backend=None)
    assert len(told) == 2
    assert "UsageError" in [kind for kind, _ in told]
    for kind, text in told:
        assert kind in ("UsageError", "HostError")
        assert "are the same process" in text, text


def join_without_some(me: Rank) -> Failure | None:
    return failure_of(make_group, Rank(me.rank, 4, me.folder), MISSING_S)


def test_ranks_that_never_join_are_named_when_time_is_up() -> None:
    failures = run_ranks(join_without_some, 2, backend=None)
    for failure in failures:
        assert failure.kind in ("PeerLate", "HostError"), failure  # its own word, or another's
        assert "ranks [2, 3] of 4" in failure.text
        assert failure.took_s < MISSING_S + DEADLINE_S
    assert max(failure.took_s for failure in failures) > 0.9 * MISSING_S


# Where the victim dies: the function of the joining, and whether after having done it.
PLACES = {
    "before it links": (joining, "_link", False),
    "after it has linked": (joining, "_link", True),
    "before it attaches": (joining, "_base_segment", False),
    "after it has the memory": (joining, "_base_segment", True),
}
# Between hosts a rank without a connection yet is missed when time is up, or when it has not
# connected though it was asked to.
WIDE_PLACES: dict[str, tuple[Any, str, bool]] = {
    "before it tells where it listens": (joining, "_link_hosts", False),
    "before it connects": (connect_hosts.LinkBuilder, "start", False),
    "after it has linked": (joining, "_link_hosts", True),
    "after it has the memory": (joining, "_base_segment", True),
}


def die_in(where: Any, name: str, after: bool) -> None:
    """This process kills itself inside a function of the joining, before or after doing it."""
    original = getattr(where, name)

    def fatal(*args: Any) -> Any:
        if after:
            original(*args)
        time.sleep(0.1)
        os.kill(os.getpid(), signal.SIGKILL)

    setattr(where, name, fatal)


def die_while_joining(me: Rank, victim: int, place: str, smallest_uid: bool) -> Failure | None:
    if me.rank == victim:
        die_in(*PLACES[place])
    # The process with the smaller uid connects: the survivors wait for the victim, or go to it.
    token_hex = processes.secrets.token_hex
    first = ("0" if smallest_uid else "f") if me.rank == victim else "7"
    processes.secrets.token_hex = lambda n: first + token_hex(n)[1:]
    return failure_of(make_group, me, 60.0)


@pytest.mark.parametrize("smallest_uid", [True, False], ids=["connects", "is connected to"])
@pytest.mark.parametrize("place", list(PLACES))
@pytest.mark.parametrize("victim", [0, 2])
def test_a_rank_that_dies_while_a_group_is_made_fails_the_others_soon(
    victim: int, place: str, smallest_uid: bool
) -> None:
    outcomes = watch_ranks(die_while_joining, 3, victim, place, smallest_uid, backend=None)
    for failure in failures_of_survivors(outcomes, victim):
        assert failure.kind in ("PeerLost", "HostError"), failure
        assert f"rank {victim} (pid {outcomes[victim].pid}" in failure.text, failure
        assert failure.took_s < DEADLINE_S


def failures_of_survivors(outcomes: list[Outcome], victim: int) -> list[Failure]:
    assert outcomes[victim].exit_code == -9
    survivors = [outcome for outcome in outcomes if outcome.rank != victim]
    for outcome in survivors:
        assert outcome.exit_code == 0, outcome.error
        assert outcome.value is not None, outcome.trace
        assert "\n" not in outcome.value.text
    return [outcome.value for outcome in survivors]


def die_while_joining_hosts(me: Rank, victim: int, place: str) -> Failure | None:
    connect_hosts.TURN_S = 1.0  # type: ignore[misc]
    if me.rank == victim:
        die_in(*WIDE_PLACES[place])
    return failure_of(make_group, me, 5.0 if "tells" in place else 60.0)


@pytest.mark.parametrize(
    ("victim", "place"),
    [(2, place) for place in WIDE_PLACES] + [(0, place) for place in list(WIDE_PLACES)[1:]],
)
def test_a_rank_that_dies_while_a_group_over_hosts_is_made_is_named_by_the_others(
    victim: int, place: str
) -> None:
    outcomes = watch_ranks(die_while_joining_hosts, "aab", victim, place, backend=None)
    for failure in failures_of_survivors(outcomes, victim):
        assert failure.kind in ("PeerLost", "PeerLate", "HostError"), failure
        named = (f"rank {victim} ", f"ranks [{victim}] of 3")
        assert any(name in failure.text for name in named), failure
        assert failure.took_s < HOSTS_DEADLINE_S


def die_while_another_is_slow(me: Rank) -> Failure | None:
    """Rank 2 connects to both and dies while rank 0 still waits for rank 1, which is slow."""
    original = joining._link

    def link(*args: Any) -> Any:
        if me.rank == 1:
            time.sleep(0.5)
        links = original(*args)
        if me.rank == 2:
            time.sleep(0.1)
            os.kill(os.getpid(), signal.SIGKILL)
        return links

    joining._link = link
    token_hex = processes.secrets.token_hex
    processes.secrets.token_hex = lambda n: "730"[me.rank] + token_hex(n)[1:]
    return failure_of(make_group, me, 60.0)


def test_a_rank_that_links_and_dies_while_another_is_slow_fails_the_others_soon() -> None:
    outcomes = watch_ranks(die_while_another_is_slow, 3, backend=None)
    for outcome in outcomes[:2]:
        assert outcome.exit_code == 0, outcome.error
        assert outcome.value is not None, outcome.trace
        assert outcome.value.kind in ("PeerLost", "HostError"), outcome.value
        assert f"rank 2 (pid {outcomes[2].pid}" in outcome.value.text, outcome.value
        assert outcome.value.took_s < DEADLINE_S


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("WIIIIIDE_STALL_WARNING_S", "soon"),
        ("WIIIIIDE_STALL_WARNING_S", "-1"),
        ("WIIIIIDE_STALL_WARNING_S", "0"),
        ("WIIIIIDE_STALL_WARNING_S", "nan"),
        ("WIIIIIDE_STALL_WARNING_S", "inf"),
        ("WIIIIIDE_SPIN", "sometimes"),
        ("WIIIIIDE_LOG", "loud"),
    ],
)
def test_a_bad_setting_is_refused_by_its_name(name: str, value: str) -> None:
    with pytest.raises(UsageError, match=name):
        Config.read({name: value})


def join_with_bad_settings(me: Rank, wrong: int) -> Any:
    before = Footprint.before()
    if me.rank == wrong:
        os.environ["WIIIIIDE_SPIN"] = "sometimes"
    failure = failure_of(make_group, me, 3.0)
    return failure, Footprint.now().leaked_since(before)


@pytest.mark.parametrize(
    ("hosts", "within_s"), [(2, DEADLINE_S), ("ab", HOSTS_DEADLINE_S)], ids=["one host", "two"]
)
def test_a_rank_with_a_bad_setting_says_so_and_the_others_fail_in_time(
    hosts: int | str, within_s: float
) -> None:
    values = run_ranks(join_with_bad_settings, hosts, 1, backend=None)
    failure, _ = values[1]
    assert failure.kind == "UsageError"
    assert "WIIIIIDE_SPIN='sometimes'" in failure.text
    for failure, leaks in values:
        assert failure.took_s < within_s
        assert leaks == []


def join_from_elsewhere(me: Rank, other: int) -> Any:
    before = Footprint.before()
    if me.rank == other:
        processes._boot_id = lambda: "another-boot"
    failure = failure_of(make_group, me, 30.0)
    return failure, Footprint.now().leaked_since(before)


@pytest.mark.parametrize("other", [0, 2])
def test_a_machine_that_cannot_be_reached_is_an_error_on_all_with_what_to_set(
    other: int,
) -> None:
    """Another boot id is another machine; this one has the very addresses of the first."""
    addresses = [str(one) for one in interfaces.candidates()]
    for failure, leaks in run_ranks(join_from_elsewhere, 3, other, backend=None):
        assert failure.kind == "HostError"
        assert "can be reached from" in failure.text
        for address in addresses:
            assert f"{address} (also an address of this machine)" in failure.text, failure
        assert "WIIIIIDE_INTERFACE" in failure.text
        assert "\n" not in failure.text
        assert failure.took_s < DEADLINE_S
        assert leaks == []


def look_at_links(me: Rank) -> Any:
    """The sum over all; TCP connections; the sizes of what is shared with others."""
    x = torch.ones(100_000)
    dist.all_reduce(x)
    found = float(x[-1]), sorted(tcp_of(os.getpid())), len(shared_maps())
    dist.barrier()  # a rank that leaves ends its connections
    return found


def test_ranks_of_two_hosts_are_linked_by_two_connections_a_pair_and_those_of_one_by_memory() -> (
    None
):
    (one, first, _), (two, second, _), (three, third, maps) = run_ranks(look_at_links, "aab")
    assert one == two == three == 3.0
    for connections in (first, second, third):
        assert {ours for ours, _ in connections} == {"127.0.0.1"}
        assert {theirs for _, theirs in connections} == {"127.0.0.1"}
    assert [len(first), len(second), len(third)] == [2, 2, 4]
    assert maps == 1, "a host's only rank needs no slots to share"
    (one, first, _), (two, second, _) = run_ranks(look_at_links, "aa")
    assert one == two == 2.0
    assert first == second == []


def make_another_after_a_failure(me: Rank) -> float:
    """A group that failed is destroyed, and the same processes make a new one. The barrier keeps
    the failure out of a slower rank's joining."""
    calls = (lambda: dist.barrier(), lambda: dist.all_reduce(torch.ones(8 + me.rank)))
    failures = [failure_of(call) for call in calls]
    assert any(failures)
    dist.destroy_process_group()
    make_group(me, 50.0, "second store")
    x = torch.ones(100_000)
    dist.all_reduce(x)
    return float(x[-1])


@pytest.mark.parametrize("hosts", [3, "aab"], ids=["one host", "two hosts"])
def test_after_a_failure_the_same_processes_can_make_a_new_group(hosts: int | str) -> None:
    assert run_ranks(make_another_after_a_failure, hosts) == [3.0] * 3


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


@pytest.mark.parametrize("hosts", [3, "aba"], ids=["one host", "two hosts"])
def test_the_survivors_of_a_death_can_go_on_in_a_group_of_their_own(hosts: int | str) -> None:
    outcomes = watch_ranks(survive_and_go_on, hosts)
    assert [outcome.value for outcome in outcomes[:2]] == [2.0, 2.0], outcomes


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


def reduce_over_tls(me: Rank) -> float:
    x = torch.ones(1_000_000)
    dist.all_reduce(x)
    return float(x[-1])


def test_with_tls_on_at_both_ends_all_is_as_before() -> None:
    assert run_ranks(reduce_over_tls, "aab", env={"WIIIIIDE_TLS": "on"}) == [3.0] * 3


def tls_at_one_end(me: Rank) -> Any:
    os.environ["WIIIIIDE_TLS"] = "on" if me.rank else "off"
    return failure_of(make_group, me, 30.0)


def test_tls_at_one_end_only_is_a_sentence_on_both() -> None:
    for failure in run_ranks(tls_at_one_end, "ab", backend=None, timeout_s=50.0):
        assert failure is not None
        assert failure.kind == "HostError", failure
        assert "TLS" in failure.text, failure
        assert failure.took_s < 5 * HOSTS_DEADLINE_S
