"""What this machine has, and made-up machines: network namespaces with interfaces of their own.

A namespace has no name and ends with the process in it, so nothing can be left behind.
"""

from __future__ import annotations

import ipaddress
import json
import os
import socket
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import psutil
import pytest

from tests.kit.conditions import wait_until
from wiiiiided.backend.net import interfaces
from wiiiiided.backend.net.address import dump, load
from wiiiiided.errors import HostError

# Runs inside a namespace and does what it is told, one line of JSON after the other.
CHILD = """
import json, socket, subprocess, sys
from wiiiiided.errors import HostError
from wiiiiided.backend.net import address, interfaces

held = []

def ip(words):
    done = subprocess.run(["ip", *words.split()], capture_output=True, text=True)
    return done.stdout if done.returncode == 0 else {"error": done.stderr}

def candidates(force="", store=""):
    return address.dump(interfaces.candidates(force, store))

def choose(mine, theirs):
    theirs = {host: address.load(rows, host) for host, rows in theirs.items()}
    found = address.choose(address.load(mine, "me"), theirs, interfaces.route, here="me")
    return [found.listen, found.reason]

def listen(where):
    family = socket.AF_INET6 if ":" in where else socket.AF_INET
    held.append(socket.create_server((where, 0), family=family))
    return held[-1].getsockname()[1]

def connect(where, port):
    with socket.create_connection((where, port), timeout=30) as made:
        return made.getsockname()[0]

def send(where):
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as made:
        return made.sendto(b"", (where, 9))

known = dict(send=send, ip=ip, candidates=candidates, choose=choose, listen=listen, connect=connect,
             route=interfaces.route)
for line in sys.stdin:
    name, words = json.loads(line)
    try:
        answer = known[name](*words)
    except (HostError, OSError) as problem:
        answer = {"error": str(problem)}
    print(json.dumps(answer), flush=True)
"""


class Machine:
    """A process in a network namespace of its own."""

    def __init__(self) -> None:
        self._process = subprocess.Popen(
            ["unshare", "--net", sys.executable, "-c", CHILD],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )
        self.pid = self._process.pid
        self._wires = 0

    def __call__(self, name: str, *words: object) -> Any:
        """Its answer; an {"error": …} is one too."""
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._process.stdin.write(json.dumps([name, words]) + "\n")
        self._process.stdin.flush()
        return json.loads(self._process.stdout.readline())

    def ip(self, *commands: str) -> None:
        for command in commands:
            answer = self("ip", command)
            assert "error" not in answer, (command, answer)

    def wire(self, name: str, *addresses: str, other: Machine | None = None) -> None:
        """An interface; the far end of its wire has the same name on `other`, or is kept apart."""
        self._wires += 1
        far = name if other else f"far{self._wires}"
        at = f" netns {other.pid}" if other else ""
        self.ip(f"link add {name} type veth peer name {far}{at}", f"link set {name} up")
        (other or self).ip(f"link set {far} up")
        for one, end in ((self, name), (other or self, far)):
            one.comes_up(end)
        self.address(name, *addresses)

    def comes_up(self, name: str) -> None:
        """The kernel says so a moment after it was told to."""
        wait_until(lambda: "state UP" in self("ip", f"link show {name}"), 30, f"{name} is not up")

    def address(self, name: str, *addresses: str) -> None:
        for one in addresses:
            self.ip(f"addr add {one} dev {name}" + (" nodad" if ":" in one else ""))

    def shown(self, force: str = "", store: str = "") -> list[str]:
        """The candidates as words, a star at those that face the Store."""
        found = load(self("candidates", force, store), "it")
        return [f"{one}{'*' if one.towards_store else ''}" for one in found]

    def close(self) -> None:
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._process.stdin.close()
        self._process.stdout.close()
        self._process.kill()
        self._process.wait(timeout=30)


@contextmanager
def _machines(count: int) -> Iterator[list[Machine]]:
    made: list[Machine] = []
    try:
        for _ in range(count):
            made.append(Machine())
            made[-1].ip("link set lo up")
        yield made
    finally:
        for one in made:
            one.close()


@pytest.fixture
def machine() -> Iterator[Machine]:
    with _machines(1) as (one,):
        yield one


@pytest.fixture
def pair() -> Iterator[list[Machine]]:
    with _machines(2) as both:
        yield both


in_a_namespace = pytest.mark.needs("root", "unshare", "ip")


def test_candidates_of_this_machine_are_its_own_addresses_and_can_be_listened_on() -> None:
    every = {
        entry.address.partition("%")[0]
        for entries in psutil.net_if_addrs().values()
        for entry in entries
    }
    for one in interfaces.candidates():
        assert one.address in every
        parsed = ipaddress.ip_address(one.address)
        assert not parsed.is_loopback
        assert not (parsed.version == 6 and parsed.is_link_local)
        family = socket.AF_INET6 if parsed.version == 6 else socket.AF_INET
        with socket.socket(family) as listener:
            listener.bind((one.address, 0))
            listener.listen()


def test_candidates_of_this_machine_survive_the_store() -> None:
    found = interfaces.candidates()
    assert load(json.loads(json.dumps(dump(found))), "me") == found


def test_the_route_to_an_own_address_begins_there() -> None:
    assert interfaces.route("127.0.0.1") == "127.0.0.1"
    for one in interfaces.candidates():
        assert interfaces.route(one.address) == one.address


@pytest.mark.parametrize("name", ["localhost", "127.0.1.1", "no.such.name.invalid", "x" * 70, ""])
def test_a_store_name_that_means_loopback_or_nothing_marks_nothing(name: str) -> None:
    assert not any(one.towards_store for one in interfaces.candidates(store_host=name))


def test_a_forced_name_that_matches_nothing_is_answered_with_what_there_is() -> None:
    with pytest.raises(HostError) as caught:
        interfaces.candidates(force="nosuch9, 10.0.0.0/99")
    said = str(caught.value)
    assert said.startswith("WIIIIIDE_INTERFACE='nosuch9, 10.0.0.0/99' matches nothing")
    assert "lo (loopback)" in said
    for one in interfaces.candidates():
        assert str(one) in said


def test_loopback_cannot_be_forced() -> None:
    for word in ("lo", "127.0.0.1", "::1", "127.0.0.0/8"):
        with pytest.raises(HostError, match="matches nothing that other machines could reach"):
            interfaces.candidates(force=word)


@in_a_namespace
def test_real_interfaces_come_first_then_bridges_then_unconfigured_ones(
    machine: Machine,
) -> None:
    machine.wire("usb0", "169.254.3.1/24")
    machine.wire("docker0", "172.17.0.1/16")
    machine.wire("br-0123456789ab", "172.18.0.1/16")
    machine.wire("eth0", "fd00::5/64", "10.0.0.5/24")
    machine.ip("addr add 10.255.0.1/32 dev lo")
    found = machine.shown()
    assert found[:2] == ["eth0 10.0.0.5/24", "eth0 fd00::5/64"]
    assert sorted(found[2:5]) == [
        *("br-0123456789ab 172.18.0.1/16", "docker0 172.17.0.1/16", "lo 10.255.0.1/32"),
    ]
    assert found[5:] == ["usb0 169.254.3.1/24"]


@in_a_namespace
def test_an_interface_that_is_down_is_left_out_and_named_when_it_is_asked_for(
    machine: Machine,
) -> None:
    machine.wire("eth0", "10.0.0.5/24")
    machine.wire("eth1", "10.0.1.5/24")
    machine.ip("link set eth1 down")
    assert machine.shown() == ["eth0 10.0.0.5/24"]
    assert "eth1 (down)" in machine("candidates", "eth1")["error"]


@in_a_namespace
def test_what_is_forced_may_be_a_name_an_address_or_a_network(machine: Machine) -> None:
    machine.wire("eth0", "10.0.0.5/24", "10.0.0.50/24")
    machine.wire("eth1", "10.0.1.5/24", "fd00::5/64")
    machine.ip("addr add 10.0.2.5/24 dev eth1 label eth1:1")
    eth1 = ["eth1 10.0.1.5/24", "eth1:1 10.0.2.5/24", "eth1 fd00::5/64"]
    assert machine.shown("eth1") == eth1
    assert machine.shown("eth1:1") == ["eth1:1 10.0.2.5/24"]
    assert machine.shown("10.0.0.50") == ["eth0 10.0.0.50/24"]
    assert machine.shown("10.0.1.0/24") == ["eth1 10.0.1.5/24"]
    assert machine.shown("10.0.1.77/24") == ["eth1 10.0.1.5/24"]
    assert machine.shown("fd00::/16") == ["eth1 fd00::5/64"]
    assert machine.shown("nosuch9, fd00::/16 ,10.0.0.5") == ["eth0 10.0.0.5/24", "eth1 fd00::5/64"]
    assert machine.shown(" ") == machine.shown()


@in_a_namespace
def test_temporary_and_unchecked_addresses_are_not_published(machine: Machine) -> None:
    machine.wire("eth0", "fd00::5/64")
    machine.ip("addr add fd00::6/64 dev eth0 nodad preferred_lft 0")  # deprecated
    assert machine.shown() == ["eth0 fd00::5/64"]
    assert machine("route", "fd00::9") == "fd00::5"


@in_a_namespace
def test_the_source_that_reaches_the_store_is_marked(machine: Machine) -> None:
    machine.wire("eth0", "192.168.1.5/24")
    machine.wire("eth1", "10.0.0.5/24")
    machine.ip("route add default via 192.168.1.1")
    assert machine.shown(store="10.0.0.9") == ["eth1 10.0.0.5/24*", "eth0 192.168.1.5/24"]
    assert machine.shown(store="8.8.8.8") == ["eth0 192.168.1.5/24*", "eth1 10.0.0.5/24"]
    assert machine.shown(store="10.0.0.5") == ["eth1 10.0.0.5/24*", "eth0 192.168.1.5/24"]


@in_a_namespace
def test_no_more_than_32_are_published_and_the_best_are_among_them(machine: Machine) -> None:
    machine.wire("docker0", *(f"172.{net}.0.1/16" for net in range(1, 41)))
    machine.wire("eth0", "10.0.0.5/24")
    found = machine.shown()
    assert len(found) == 32
    assert found[0] == "eth0 10.0.0.5/24"


@in_a_namespace
def test_looking_a_route_up_sends_nothing(machine: Machine) -> None:
    machine.wire("eth0", "10.0.0.5/24", "fd00::5/64")
    for _ in range(20):
        assert machine("route", "10.0.0.6") == "10.0.0.5"
        assert machine("route", "fd00::6") == "fd00::5"
        assert machine("route", "192.168.7.7") is None
    # Whatever is sent to a neighbour makes an entry for it first, as this shows.
    neighbours = machine("ip", "neigh show")
    assert "10.0.0.6" not in neighbours
    assert "fd00::6" not in neighbours
    machine("send", "10.0.0.6")
    assert "10.0.0.6" in machine("ip", "neigh show")


@in_a_namespace
def test_without_a_network_there_is_no_candidate_and_no_route(machine: Machine) -> None:
    assert machine.shown() == []
    assert machine("route", "10.0.0.6") is None
    assert machine("route", "fd00::6") is None


def _meet(pair: list[Machine], store: str = "") -> list[str]:
    """Each chooses, listens, and is connected to by the other; where they listened."""
    published = {name: one("candidates", "", store) for name, one in zip("ab", pair, strict=True)}
    where = []
    for me, (mine, other) in enumerate((("a", "b"), ("b", "a"))):
        answer = pair[me]("choose", published[mine], {other: published[other]})
        assert "error" not in answer, answer
        (listen,), _ = answer
        port = pair[me]("listen", listen)
        came_from = pair[1 - me]("connect", listen, port)
        assert "error" not in came_from, came_from
        where.append(listen)
    return where


@in_a_namespace
def test_two_machines_with_the_same_docker0_meet_on_the_wire(pair: list[Machine]) -> None:
    a, b = pair
    for one in pair:
        one.wire("docker0", "172.17.0.1/16")
    a.wire("eth0", "10.0.0.5/24", other=b)
    b.address("eth0", "10.0.0.6/24")
    assert _meet(pair) == ["10.0.0.5", "10.0.0.6"]
    assert _meet(pair, store="127.0.1.1") == ["10.0.0.5", "10.0.0.6"]


@in_a_namespace
def test_two_machines_with_two_wires_meet_on_the_one_with_the_store(pair: list[Machine]) -> None:
    a, b = pair
    a.wire("eth0", "192.168.1.5/24", other=b)
    b.address("eth0", "192.168.1.6/24")
    a.wire("eth1", "10.0.0.5/24", other=b)
    b.address("eth1", "10.0.0.6/24")
    assert _meet(pair, store="10.0.0.5") == ["10.0.0.5", "10.0.0.6"]
    assert _meet(pair, store="192.168.1.6") == ["192.168.1.5", "192.168.1.6"]


@in_a_namespace
def test_two_machines_that_share_only_their_second_network_meet_there(pair: list[Machine]) -> None:
    a, b = pair
    a.wire("eth0", "192.168.1.5/24")
    a.ip("route add default via 192.168.1.1")
    b.wire("eth0", "192.168.9.6/24")
    b.ip("route add default via 192.168.9.1")
    a.wire("eth1", "10.0.0.5/24", other=b)
    b.address("eth1", "10.0.0.6/24")
    assert _meet(pair) == ["10.0.0.5", "10.0.0.6"]


@in_a_namespace
def test_two_machines_with_ipv6_only_meet(pair: list[Machine]) -> None:
    a, b = pair
    a.wire("eth0", "fd00::5/64", other=b)
    b.address("eth0", "fd00::6/64")
    assert _meet(pair) == ["fd00::5", "fd00::6"]


@in_a_namespace
def test_two_machines_without_a_common_network_are_told_what_to_set(pair: list[Machine]) -> None:
    a, b = pair
    for one in pair:
        one.wire("docker0", "172.17.0.1/16")
    a.wire("eth0", "192.168.1.5/24")
    b.wire("eth0", "192.168.9.6/24")
    answer = a("choose", a("candidates"), {"b": b("candidates")})
    assert "eth0 192.168.1.5/24" in answer["error"]
    assert "eth0 192.168.9.6/24 (no route to it)" in answer["error"]
    assert "Set WIIIIIDE_INTERFACE" in answer["error"]


def test_nothing_is_left_open() -> None:
    before = len(os.listdir("/proc/self/fd"))
    for _ in range(50):
        interfaces.route("10.0.0.6")
        interfaces.candidates(store_host="10.0.0.6")
    assert len(os.listdir("/proc/self/fd")) <= before
