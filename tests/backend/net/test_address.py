"""Where to listen: situations that break others, as tables. No network is touched here.

A `Machine` is a list of interfaces and what the kernel would do with them: its own addresses are
local, then the longest matching network, then the default gateway.
"""

from __future__ import annotations

import ipaddress
import json
import zlib
from dataclasses import dataclass, field

import pytest
from hypothesis import given
from hypothesis import strategies as st

from wiiiiided.backend.net import address
from wiiiiided.backend.net.address import Candidate, choose, dump, load, targets
from wiiiiided.errors import HostError


@dataclass
class Machine:
    """`interfaces`: such as "eth0 10.0.0.5/24", with the speed in Mbit/s behind if it is known."""

    interfaces: list[str]
    gateway: str = ""  # the interface of the default route
    store: str = ""  # the Store as this machine resolves it
    hidden: list[str] = field(default_factory=list)  # what WIIIIIDE_INTERFACE has left out

    def _parsed(self, lines: list[str]) -> list[tuple[str, str, int, int]]:
        rows = []
        for line in lines:
            name, cidr, *speed = line.split()
            host, _, prefix = cidr.partition("/")
            rows.append((name, host, int(prefix), int(speed[0]) if speed else 0))
        return rows

    def route(self, to: str) -> str | None:
        wanted = ipaddress.ip_address(to)
        if wanted.is_loopback:
            return to if to in ("127.0.0.1", "::1") else "127.0.0.1"
        rows = self._parsed(self.hidden + self.interfaces)
        if any(row[1] == to for row in rows):
            return to
        near = [row for row in rows if _in_network(wanted, row[1], row[2])]
        if near:
            return max(near, key=lambda row: row[2])[1]
        outer = [row for row in rows if row[0] == self.gateway and (":" in row[1]) == (":" in to)]
        return outer[0][1] if outer else None

    def candidates(self) -> list[Candidate]:
        source = self.route(self.store) if self.store else None
        return [
            Candidate(host, name, prefix, speed, host == source)
            for name, host, prefix, speed in self._parsed(self.interfaces)
        ]


def _in_network(
    wanted: ipaddress.IPv4Address | ipaddress.IPv6Address, host: str, bits: int
) -> bool:
    network = ipaddress.ip_network(f"{host}/{bits}", strict=False)
    return wanted.version == network.version and wanted in network


def _choose(here: Machine, **others: Machine) -> address.AddressChoice:
    return choose(
        here.candidates(),
        {name: other.candidates() for name, other in others.items()},
        here.route,
        here="a",
    )


DOCKER = "docker0 172.17.0.1/16 10000"

# what it is: machine a, machine b, where a listens, where b listens
SITUATIONS: dict[str, tuple[Machine, Machine, str, str]] = {
    "one network, nothing special": (
        Machine(["eth0 10.0.0.5/24"], "eth0", "10.0.0.5"),
        Machine(["eth0 10.0.0.6/24"], "eth0", "10.0.0.5"),
        *("10.0.0.5", "10.0.0.6"),
    ),
    "the Store's machine resolves its own name to 127.0.1.1": (
        Machine([DOCKER, "eth0 10.0.0.5/24"], "eth0", "127.0.1.1"),
        Machine([DOCKER, "eth0 10.0.0.6/24"], "eth0", "10.0.0.5"),
        *("10.0.0.5", "10.0.0.6"),
    ),
    "docker0 with one address on both, and a router between them": (
        Machine([DOCKER, "eth0 10.0.0.5/24"], "eth0", "10.0.0.5"),
        Machine([DOCKER, "eth0 10.0.1.6/24"], "eth0", "10.0.0.5"),
        *("10.0.0.5", "10.0.1.6"),
    ),
    "docker0 on one only": (
        Machine([DOCKER, "eth0 10.0.0.5/24"], "eth0", "10.0.0.6"),
        Machine(["eth0 10.0.0.6/24"], "eth0", "10.0.0.6"),
        *("10.0.0.5", "10.0.0.6"),
    ),
    "docker0 in one network but with two addresses, no mark, a router between them": (
        Machine([DOCKER, "eth0 10.0.0.5/24"], "eth0"),
        Machine(["docker0 172.17.42.1/16 10000", "eth0 10.0.1.6/24"], "eth0"),
        *("10.0.0.5", "10.0.1.6"),
    ),
    "two interfaces on two networks, the Store on the second": (
        Machine(["eth0 192.168.1.5/24 1000", "eth1 10.0.0.5/24 1000"], "eth0", "10.0.0.5"),
        Machine(["eth0 192.168.1.6/24 1000", "eth1 10.0.0.6/24 1000"], "eth0", "10.0.0.5"),
        *("10.0.0.5", "10.0.0.6"),
    ),
    "two interfaces on two networks, no mark: the faster": (
        Machine(["eth0 192.168.1.5/24 1000", "eth1 10.0.0.5/24 10000"], "eth0"),
        Machine(["eth0 192.168.1.6/24 1000", "eth1 10.0.0.6/24 10000"], "eth0"),
        *("10.0.0.5", "10.0.0.6"),
    ),
    "two interfaces, only the second network in common": (
        Machine(["eth0 192.168.1.5/24", "eth1 10.0.0.5/24"]),
        Machine(["eth0 192.168.9.6/24", "eth1 10.0.0.6/24"]),
        *("10.0.0.5", "10.0.0.6"),
    ),
    "the same, and a default gateway on the first": (
        Machine(["eth0 192.168.1.5/24", "eth1 10.0.0.5/24"], "eth0"),
        Machine(["eth0 192.168.9.6/24", "eth1 10.0.0.6/24"], "eth0"),
        *("10.0.0.5", "10.0.0.6"),
    ),
    "two interfaces on one network": (
        Machine(["eth0 10.0.0.5/24", "eth1 10.0.0.55/24"], "eth0", "10.0.0.6"),
        Machine(["eth0 10.0.0.6/24"], "eth0", "10.0.0.6"),
        *("10.0.0.5", "10.0.0.6"),
    ),
    "IPv6 only": (
        Machine(["eth0 fd00::5/64"], "eth0", "fd00::5"),
        Machine(["eth0 fd00::6/64"], "eth0", "fd00::5"),
        *("fd00::5", "fd00::6"),
    ),
    "both families on one interface": (
        Machine(["eth0 fd00::5/64", "eth0 10.0.0.5/24"], "eth0"),
        Machine(["eth0 fd00::6/64", "eth0 10.0.0.6/24"], "eth0"),
        *("10.0.0.5", "10.0.0.6"),
    ),
    "both families, the Store's address is IPv6": (
        Machine(["eth0 10.0.0.5/24", "eth0 fd00::5/64"], "eth0", "fd00::5"),
        Machine(["eth0 10.0.0.6/24", "eth0 fd00::6/64"], "eth0", "fd00::5"),
        *("fd00::5", "fd00::6"),
    ),
    "one has both families, the other IPv6 only": (
        Machine(["eth0 10.0.0.5/24", "eth0 fd00::5/64"], "eth0"),
        Machine(["eth0 fd00::6/64"], "eth0"),
        *("fd00::5", "fd00::6"),
    ),
    "a cloud gives every machine a network of one": (
        Machine(["eth0 10.128.0.2/32"], "eth0", "10.128.0.2"),
        Machine([DOCKER, "eth0 10.128.0.3/32"], "eth0", "10.128.0.2"),
        *("10.128.0.2", "10.128.0.3"),
    ),
    "a tunnel joins two homes with the same network": (
        Machine(["eth0 192.168.1.5/24 1000", "wg0 10.8.0.5/24"], "eth0", "10.8.0.5"),
        Machine(["eth0 192.168.1.6/24 1000", "wg0 10.8.0.6/24"], "eth0", "10.8.0.5"),
        *("10.8.0.5", "10.8.0.6"),
    ),
    "the same, and the Store's machine resolves its own name to 127.0.1.1": (
        Machine(["eth0 192.168.1.5/24 1000", "tailscale0 100.64.0.5/10"], "eth0", "127.0.1.1"),
        Machine(["eth0 192.168.1.6/24 1000", "tailscale0 100.64.0.6/10"], "eth0", "100.64.0.5"),
        *("100.64.0.5", "100.64.0.6"),
    ),
    "a tunnel beside a wire, no mark": (
        Machine(["tailscale0 100.64.0.5/10", "eth0 192.168.1.5/24"], "eth0"),
        Machine(["tailscale0 100.64.0.6/10", "eth0 192.168.1.6/24"], "eth0"),
        *("192.168.1.5", "192.168.1.6"),
    ),
    "a Store behind a bridge, where somebody runs on purpose": (
        Machine(["virbr0 192.168.122.1/24", "eth0 10.0.0.5/24"], "eth0", "192.168.122.1"),
        Machine(["enp1s0 192.168.122.7/24"], "enp1s0", "192.168.122.1"),
        *("192.168.122.1", "192.168.122.7"),
    ),
    "the same, though a wire joins them too": (
        Machine(["virbr0 192.168.122.1/24", "eth0 10.0.0.5/24"], "eth0", "192.168.122.1"),
        Machine(["eth0 10.0.0.7/24", "enp1s0 192.168.122.7/24"], "eth0", "192.168.122.1"),
        *("192.168.122.1", "192.168.122.7"),
    ),
    "a cable between two machines that nobody configured": (
        Machine([DOCKER, "eth0 169.254.10.5/16"]),
        Machine([DOCKER, "eth0 169.254.99.6/16"]),
        *("169.254.10.5", "169.254.99.6"),
    ),
    "an address of the management controller beside a real one": (
        Machine(["usb0 169.254.3.1/24", "eth0 10.0.0.5/24"], "eth0"),
        Machine(["usb0 169.254.3.2/24", "eth0 10.0.1.6/24"], "eth0"),
        *("10.0.0.5", "10.0.1.6"),
    ),
    "forced to the second of two addresses of one network": (
        Machine(["eth0:1 10.0.0.50/24"], "eth0", "10.0.0.6", hidden=["eth0 10.0.0.5/24"]),
        Machine(["eth0 10.0.0.6/24"], "eth0", "10.0.0.6"),
        *("10.0.0.50", "10.0.0.6"),
    ),
    "forced on one side, to the network that the Store is not in": (
        Machine(["eth1 10.0.0.5/24"], "eth0", "192.168.1.5", hidden=["eth0 192.168.1.5/24"]),
        Machine(["eth0 192.168.1.6/24", "eth1 10.0.0.6/24"], "eth0", "192.168.1.5"),
        *("10.0.0.5", "10.0.0.6"),
    ),
}


@pytest.mark.parametrize("what", SITUATIONS)
def test_both_machines_listen_where_the_other_can_connect(what: str) -> None:
    a, b, listen_a, listen_b = SITUATIONS[what]
    assert _choose(a, b=b).listen == [listen_a]
    assert _choose(b, a=a).listen == [listen_b]


# With two interfaces on one network the kernel itself goes by order.
@pytest.mark.parametrize("what", sorted(SITUATIONS.keys() - {"two interfaces on one network"}))
def test_the_order_of_interfaces_decides_nothing(what: str) -> None:
    a, b, listen_a, listen_b = SITUATIONS[what]
    back_a = Machine(a.interfaces[::-1], a.gateway, a.store, a.hidden)
    back_b = Machine(b.interfaces[::-1], b.gateway, b.store, b.hidden)
    assert _choose(back_a, b=back_b).listen == [listen_a]
    assert _choose(back_b, a=back_a).listen == [listen_b]


def test_the_reason_names_interface_address_peer_and_why() -> None:
    a, b, _, _ = SITUATIONS["two interfaces on two networks, the Store on the second"]
    assert _choose(a, b=b).reason == (
        "eth1 (10.0.0.5): it routes to 10.0.0.6 of b, the network of the Store"
    )
    a, b, _, _ = SITUATIONS["docker0 with one address on both, and a router between them"]
    unmarked = Machine(a.interfaces, "eth0"), Machine(b.interfaces, "eth0")
    assert _choose(unmarked[0], b=unmarked[1]).reason == (
        "eth0 (10.0.0.5): it routes to 10.0.1.6 of b, through a router"
    )
    a, b, _, _ = SITUATIONS["a tunnel beside a wire, no mark"]
    assert _choose(a, b=b).reason.endswith("192.168.1.6 of b, the same network")


def test_a_machine_between_two_networks_listens_on_both() -> None:
    a = Machine(["eth0 10.0.0.5/24", "eth1 10.0.1.5/24"], store="10.0.0.5")
    others = {
        "b": Machine(["eth0 10.0.0.6/24"], store="10.0.0.5"),
        "c": Machine(["eth0 10.0.1.7/24"], store="10.0.0.5"),
        "d": Machine(["eth0 10.0.1.8/24"], store="10.0.0.5"),
    }
    choice = _choose(a, **others)
    assert choice.listen == ["10.0.1.5", "10.0.0.5"]  # first the one for most
    assert choice.targets == {"b": "10.0.0.6", "c": "10.0.1.7", "d": "10.0.1.8"}
    assert choice.reason == (
        "eth1 (10.0.1.5): it routes to 10.0.1.7 of c and 10.0.1.8 of d, the same network; "
        "eth0 (10.0.0.5): it routes to 10.0.0.6 of b, the network of the Store"
    )


def test_the_reason_stays_a_sentence_with_many_hosts() -> None:
    a = Machine(["eth0 10.0.0.1/24"])
    others = {f"h{n}": Machine([f"eth0 10.0.0.{n}/24"]) for n in range(2, 22)}
    choice = _choose(a, **others)
    assert choice.reason == (
        "eth0 (10.0.0.1): it routes to 10.0.0.2 of h2, 10.0.0.3 of h3, 10.0.0.4 of h4"
        " and 17 more, the same network"
    )
    assert len(choice.targets) == 20


def test_without_another_machine_there_is_nothing_to_listen_on() -> None:
    assert _choose(Machine(["eth0 10.0.0.5/24"])) == address.AddressChoice(
        [], "there is no other machine", {}
    )


def test_nothing_in_common_names_both_machines_addresses_and_the_way_out() -> None:
    a = Machine([DOCKER, "eth0 10.0.0.5/24"])
    b = Machine([DOCKER, "eth0 192.168.1.6/24"])
    with pytest.raises(HostError) as caught:
        _choose(a, b=b)
    assert str(caught.value) == (
        "no address of b can be reached from a: a has docker0 172.17.0.1/16 and eth0 10.0.0.5/24;"
        " b has docker0 172.17.0.1/16 (also an address of this machine) and eth0 192.168.1.6/24"
        " (no route to it). Set WIIIIIDE_INTERFACE on every machine to the interface, address or"
        " network (such as eth1, 10.0.0.5 or 10.0.0.0/24) over which they reach each other"
    )


def test_a_forced_interface_that_does_not_lead_there_is_said() -> None:
    a = Machine(["eth1 10.0.0.5/24"], "eth0", hidden=["eth0 192.168.1.5/24"])
    with pytest.raises(HostError, match=r"begins at 192\.168\.1\.5, which is not to be used"):
        _choose(a, b=Machine(["eth0 192.168.1.6/24"]))


def test_an_own_address_is_known_even_if_it_was_left_out_by_force() -> None:
    a = Machine(["eth1 10.0.0.5/24"], hidden=[DOCKER])
    with pytest.raises(HostError, match="also an address of this machine"):
        _choose(a, b=Machine([DOCKER]))


def test_a_machine_without_addresses_is_said() -> None:
    with pytest.raises(HostError, match="a has no network address; b has eth0"):
        _choose(Machine([]), b=Machine(["eth0 10.0.0.6/24"]))
    with pytest.raises(HostError, match="b has no network address"):
        _choose(Machine(["eth0 10.0.0.5/24"]), b=Machine([]))


def test_a_route_over_loopback_is_never_taken() -> None:
    b = Candidate("10.0.0.6", "eth0", 24, 0, True)
    mine = [Candidate("10.0.0.5", "eth0", 24, 0, True)]
    with pytest.raises(HostError, match=r"the route to it begins at 127\.0\.0\.1"):
        choose(mine, {"b": [b]}, lambda to: "127.0.0.1")


def test_loopback_is_used_when_all_ranks_share_the_machine_and_only_then() -> None:
    a = Machine(["eth0 10.0.0.5/24"])
    theirs = {"b": a.candidates()}
    choice = choose(a.candidates(), theirs, a.route, loopback=True)
    assert choice.listen == ["127.0.0.1"]
    assert choice.targets == {"b": "127.0.0.1"}
    only_six = choose([], theirs, lambda to: "::1" if to == "::1" else None, loopback=True)
    assert only_six.listen == ["::1"]
    with pytest.raises(HostError, match="ip link set lo up"):
        choose([], theirs, lambda to: None, loopback=True)
    with pytest.raises(HostError, match="also an address of this machine"):
        choose(a.candidates(), theirs, a.route)


def test_a_host_that_only_goes_by_another_name_is_served_like_the_others() -> None:
    a = Machine(["eth0 192.168.1.5/24", "eth1 10.0.0.5/24"])
    theirs = {"twin": a.candidates(), "b": Machine(["eth0 10.0.0.6/24"]).candidates()}
    choice = choose(a.candidates(), theirs, a.route, same=["twin"])
    assert choice.listen == ["10.0.0.5"]
    assert choice.targets == {"twin": "10.0.0.5", "b": "10.0.0.6"}
    alone = choose(a.candidates(), {"twin": a.candidates()}, a.route, same=["twin"])
    assert alone.listen == ["127.0.0.1"]


def test_a_connector_gets_the_addresses_as_they_were_written() -> None:
    a = Machine(["eth0 fd00::5/64"])
    assert targets(["FD00:0::6"], a.candidates(), a.route, "b") == ["FD00:0::6"]


def test_a_connector_tries_the_nearest_address_first_and_the_hopeless_last() -> None:
    a = Machine(["eth0 192.168.1.5/24", "eth1 10.0.0.5/24", "eth1 fd00::5/64"], "eth0")
    mine = a.candidates()
    published = ["127.0.0.1", "2001:db8::9", "172.17.0.1", "fd00::6", "10.0.0.6"]
    assert targets(published, mine, a.route, "b") == [
        *("10.0.0.6", "fd00::6", "172.17.0.1"),
        *("127.0.0.1", "2001:db8::9"),
    ]
    assert targets(["127.0.0.1"], mine, a.route, "b") == ["127.0.0.1"]


def test_a_connector_prefers_the_way_to_the_store_among_equals() -> None:
    a = Machine(["eth0 192.168.1.5/24", "eth1 10.0.0.5/24"], store="10.0.0.9")
    published = ["192.168.1.6", "10.0.0.6"]
    assert targets(published, a.candidates(), a.route, "b") == published[::-1]


BAD_ADDRESSES = [
    *("", "localhost", "10.0.0", "10.0.0.5/24", "0.0.0.0", "::", "224.0.0.1", "ff02::1"),
    *("fe80::1", "fe80::1%eth0", "::ffff:10.0.0.5", "10.0.0.5\n", "x" * 10_000),
]


@pytest.mark.parametrize("text", BAD_ADDRESSES)
def test_an_address_that_cannot_be_listened_on_is_refused(text: str) -> None:
    with pytest.raises(HostError, match=r"^b published ") as caught:
        load([[text, "eth0", 24, 0, False]], "b")
    assert len(str(caught.value)) < 300
    with pytest.raises(HostError, match=r"^b published "):
        targets([text], [], lambda to: None, "b")


def test_a_published_loopback_is_refused_as_a_candidate() -> None:
    for text in ("127.0.0.1", "127.0.1.1", "::1"):
        with pytest.raises(HostError, match="no other machine can connect to"):
            load([[text, "lo", 8, 0, False]], "b")


BAD_ROWS: list[object] = [
    *(None, 7, "10.0.0.5", [], {}, ["10.0.0.5"], ["10.0.0.5", "eth0", 24, 0]),
    *(["10.0.0.5", "eth0", 24, 0, 1], ["10.0.0.5", "eth0", 24, 0, False, 1]),
    *(["10.0.0.5", "eth0", True, 0, False], ["10.0.0.5", "eth0", 24, False, False]),
    *(["10.0.0.5", "eth0", 33, 0, False], ["10.0.0.5", "eth0", -1, 0, False]),
    *(["10.0.0.5", "", 24, 0, False], ["10.0.0.5", "e\nth", 24, 0, False]),
    *(["10.0.0.5", "e" * 33, 24, 0, False], ["10.0.0.5", "eth0", 24, -1, False]),
    *(["10.0.0.5", "eth0", 24, 1 << 40, False], ["10.0.0.5", "eth0", 24.0, 0, False]),
    *([5, "eth0", 24, 0, False], ["10.0.0.5", 5, 24, 0, False]),
]


@pytest.mark.parametrize("row", BAD_ROWS)
def test_a_row_that_is_no_candidate_is_refused(row: object) -> None:
    with pytest.raises(HostError, match=r"^b published "):
        load([row], "b")


def test_the_number_of_candidates_is_bounded() -> None:
    row = ["10.0.0.5", "eth0", 24, 0, False]
    assert len(load([row] * 32, "b")) == 32
    with pytest.raises(HostError, match="at most 32"):
        load([row] * 33, "b")
    with pytest.raises(HostError, match="b listens on 33 addresses"):
        targets(["10.0.0.5"] * 33, [], lambda to: None, "b")


_ADDRESSES = st.one_of(
    st.ip_addresses(v=4, network="10.0.0.0/8"), st.ip_addresses(v=6, network="fd00::/16")
).map(str)
_CANDIDATES = st.lists(
    st.builds(
        Candidate,
        _ADDRESSES,
        st.sampled_from(["eth0", "eth1", "docker0", "wg0", "br-0123456789ab"]),
        st.integers(0, 32),
        st.integers(0, 100_000),
        st.booleans(),
    ),
    max_size=8,
)
_JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text(),
    lambda inner: st.lists(inner) | st.dictionaries(st.text(), inner),
)


@given(_CANDIDATES)
def test_candidates_survive_the_store(made: list[Candidate]) -> None:
    assert load(json.loads(json.dumps(dump(made))), "b") == made


@given(_JSON)
def test_whatever_a_peer_publishes_is_a_list_or_one_sentence(value: object) -> None:
    said = ""
    try:
        assert all(isinstance(one, Candidate) for one in load(value, "b"))
    except HostError as refused:
        said = str(refused)
    assert "\n" not in said
    assert len(said) < 400


@given(
    _CANDIDATES,
    st.dictionaries(st.sampled_from("bcd"), _CANDIDATES, max_size=3),
    st.dictionaries(_ADDRESSES, _ADDRESSES),
)
def test_a_choice_is_of_own_addresses_and_serves_every_host(
    mine: list[Candidate], theirs: dict[str, list[Candidate]], table: dict[str, str]
) -> None:
    sources: list[str | None] = [None, "127.0.0.1", *(one.address for one in mine)]

    def route(to: str) -> str | None:
        return table.get(to) or sources[zlib.crc32(to.encode()) % len(sources)]

    said, choice = "WIIIIIDE_INTERFACE", None
    try:
        choice = choose(mine, theirs, route)
    except HostError as refused:
        said = str(refused)
    assert "WIIIIIDE_INTERFACE" in said
    if choice is not None:
        own = {one.address for one in mine}
        assert set(choice.listen) <= own
        assert bool(choice.listen) == bool(theirs)
        assert set(choice.targets) == set(theirs)
        assert not set(choice.targets.values()) & own
