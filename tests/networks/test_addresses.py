"""Which way ranks take to each other, without a variable set: looked up in the kernel's tables."""

from __future__ import annotations

import os
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

import pytest
import torch
import torch.distributed as dist

from tests.kit.conditions import wait_until
from tests.kit.networks import WILDCARDS, Connection, Network, connections_of, new_port
from tests.kit.ranks import Outcome, Rank, note

pytestmark = pytest.mark.needs("root", "ip", "unshare", "mount")

JOINED_S = 60.0  # a bound for a join that tries addresses in vain: 5 s each, both ways


@dataclass
class Seen:
    """What a rank has open, without what belongs to torch's Store."""

    total: float
    links: list[Connection] = field(default_factory=list)
    listeners: list[Connection] = field(default_factory=list)

    @property
    def ways(self) -> set[tuple[str, str]]:
        return {(one.ours, one.theirs) for one in self.links}


def look(me: Rank) -> Seen:
    x = torch.full((100_000,), 1.0)
    dist.all_reduce(x)
    work = dist.isend(x, (me.rank + 1) % me.size)
    y = torch.empty_like(x)
    dist.recv(y, (me.rank - 1) % me.size)
    assert work is not None
    work.wait()
    assert y[-1] == x[-1]
    store = int(os.environ["MASTER_PORT"])
    mine = [one for one in connections_of(os.getpid()) if store not in one[1::2]]
    dist.barrier()
    links = [one for one in mine if one.theirs]
    return Seen(float(x[-1]), links, [one for one in mine if not one.theirs])


def check_two_hosts(seen: list[Seen], a: str, b: str) -> None:
    """One rank on each host, linked by two connections between these two addresses alone."""
    for one, way in zip(seen, ((a, b), (b, a)), strict=True):
        assert one.total == 2.0
        assert one.ways == {way}
        assert len(one.links) == 2
        assert [listener.ours for listener in one.listeners] == [way[0]]


@pytest.fixture
def two() -> Iterator[Network]:
    with Network("ab") as network:
        yield network


def test_a_docker_bridge_with_the_same_address_everywhere_is_not_taken(two: Network) -> None:
    two.bridge("docker0", "172.17.0.1/16")
    check_two_hosts(two.run(look, "ab"), "10.42.0.1", "10.42.0.2")


def test_a_host_whose_own_name_is_loopback_is_found_by_the_others(two: Network) -> None:
    """MASTER_ADDR is a name: on its own host 127.0.1.1, on the other one an address."""
    two.bridge("docker0", "172.17.0.1/16")
    check_two_hosts(two.run(look, "ab", store="host-a"), "10.42.0.1", "10.42.0.2")


def test_of_two_networks_the_one_of_the_store_is_taken(two: Network) -> None:
    two.lan("eth1", "10.43.0.{}/24")
    check_two_hosts(two.run(look, "ab", store="10.43.0.1"), "10.43.0.1", "10.43.0.2")
    check_two_hosts(two.run(look, "ab", store="10.42.0.1"), "10.42.0.1", "10.42.0.2")


def test_a_card_that_leads_to_no_process_is_not_taken(two: Network) -> None:
    """Each has a card on a network of its own, with addresses of one range; eth0 joins them."""
    two.lan("aaa0", "192.168.1.5/24", only="a")
    two.lan("bbb0", "192.168.1.6/24", only="b")
    check_two_hosts(two.run(look, "ab", store="host-a"), "10.42.0.1", "10.42.0.2")


@pytest.mark.parametrize("force", ["eth1", "10.43.0.0/24", "eth1,lo"])
def test_a_forced_interface_is_taken_though_the_store_is_elsewhere(
    two: Network, force: str
) -> None:
    two.lan("eth1", "10.43.0.{}/24")
    seen = two.run(look, "ab", env={"WIIIIIDE_INTERFACE": force})
    check_two_hosts(seen, "10.43.0.1", "10.43.0.2")


def test_hosts_behind_a_router_find_each_other() -> None:
    with Network("ab", "") as network:
        network.lan("eth0", "10.42.1.{}/24", only="a")
        network.lan("eth1", "10.42.2.{}/24", only="b")
        network.route("a", "eth0", "10.42.1.254/24")
        network.route("b", "eth1", "10.42.2.254/24")
        seen = network.run(look, "ab", store="10.42.1.1")
        check_two_hosts(seen, "10.42.1.1", "10.42.2.2")


def test_a_network_without_ipv4_works() -> None:
    with Network("ab", "fd42::{}/64") as network:
        check_two_hosts(network.run(look, "ab"), "fd42::1", "fd42::2")


def test_three_hosts_with_several_ranks_use_the_network_between_hosts_only() -> None:
    with Network("abc") as network:
        network.bridge("docker0", "172.17.0.1/16")
        seen = network.run(look, "aabc")
        here = {0: "a", 1: "a", 2: "b", 3: "c"}
        for rank, one in enumerate(seen):
            mine = network.address(here[rank])
            others = [network.address(at) for at in here.values() if at != here[rank]]
            assert one.total == 4.0
            assert one.ways == {(mine, other) for other in others}
            assert len(one.links) == 2 * len(others)  # mates are linked by memory


def stay_until_seen(me: Rank) -> None:
    """A group, used; then the test looks at what listens."""
    look(me)
    seen = Path(me.folder, "seen")
    note(["look now", str(seen)])
    wait_until(seen.exists, 50.0, "the test has looked")


class Listeners:
    """Notes all that listens on the hosts while the ranks have their groups."""

    def __init__(self, network: Network) -> None:
        self._network = network
        self.found: dict[str, list[tuple[str, int]]] = {}

    def __call__(self, outcomes: list[Outcome], elapsed_s: float) -> None:
        told = [what[1] for one in outcomes for _, what in one.notes if isinstance(what, list)]
        if len(told) == len(outcomes) and not self.found:
            for letter, host in self._network.hosts.items():
                self.found[letter] = host.listeners()
            Path(told[0]).touch()


def test_nothing_listens_on_a_wildcard_but_the_store_that_torch_opens(two: Network) -> None:
    listeners, port = Listeners(two), new_port()
    outcomes = two.watch(stay_until_seen, "aab", port=port, during=listeners)
    assert [outcome.error for outcome in outcomes] == ["", "", ""]
    for letter, count in (("a", 2), ("b", 1)):
        ours = [one for one in listeners.found[letter] if one[1] != port]
        assert [address for address, _ in ours] == [two.address(letter)] * count
        assert not {address for address, _ in ours} & WILDCARDS


def test_a_group_inside_one_host_listens_nowhere_on_the_network(two: Network) -> None:
    listeners, port = Listeners(two), new_port()
    outcomes = two.watch(stay_until_seen, "aa", port=port, during=listeners)
    assert [outcome.error for outcome in outcomes] == ["", ""]
    assert [one for one in listeners.found["a"] if one[1] != port] == []


def test_an_interface_that_is_not_there_is_refused_with_what_there_is(two: Network) -> None:
    outcomes = two.watch(look, "ab", env={"WIIIIIDE_INTERFACE": "eth7"})
    for outcome in outcomes:
        assert outcome.error.startswith("HostError: "), outcome
        assert "WIIIIIDE_INTERFACE='eth7'" in outcome.error
        assert "eth0 10.42.0." in outcome.error


def test_hosts_without_a_way_to_each_other_are_told_both_addresses_and_what_to_set() -> None:
    """Only the Store can be reached: each has forced a card that leads to no process."""
    with Network("ab") as network:
        network.lan("eth1", "192.168.1.{}/24", only="a")
        network.lan("eth2", "192.168.2.{}/24", only="b")
        env = {"WIIIIIDE_INTERFACE": "eth1,eth2"}
        outcomes = network.watch(look, "ab", env=env)
    for outcome in outcomes:
        assert outcome.error.startswith("HostError: "), outcome
        assert "eth1 192.168.1.1/24" in outcome.error
        assert "eth2 192.168.2.2/24" in outcome.error
        assert "Set WIIIIIDE_INTERFACE on every machine" in outcome.error


def test_a_firewall_in_one_direction_is_gone_round_by_connecting_the_other_way(
    two: Network,
) -> None:
    port = new_port()
    two.firewall("b", but_for_port=port)
    seen = two.run(look, "ab", port=port)
    check_two_hosts(seen, "10.42.0.1", "10.42.0.2")
    (listener,) = seen[0].listeners
    assert {link.our_port for link in seen[0].links} == {listener.our_port}, "b opened both"


def test_a_firewall_in_both_directions_is_a_sentence_with_both_tries(two: Network) -> None:
    port = new_port()
    for letter in "ab":
        two.firewall(letter, but_for_port=port)
    outcomes = two.watch(look, "ab", port=port, timeout_s=JOINED_S)
    for outcome in outcomes:
        assert outcome.error.startswith("HostError: "), outcome
        assert "cannot reach each other" in outcome.error
        assert "from host-a to host-b: no connection to 10.42.0.2:" in outcome.error
        assert "from host-b to host-a: no connection to 10.42.0.1:" in outcome.error
        assert "WIIIIIDE_INTERFACE" in outcome.error
        assert "firewall" in outcome.error
