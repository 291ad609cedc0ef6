"""`wiiiiide doctor --peers`: what a TCP connection from here says about another machine."""

from __future__ import annotations

import socket
from collections.abc import Iterator

import msgspec
import pytest

from tests.kit.fake_daemon import FakeDaemon, machine, status
from tests.ui.cli.kit import Cli
from wiiiiided.cluster.rpc import messages as m
from wiiiiided.domain.node import Node
from wiiiiided.ui.cli.doctor import facts as doctor_facts
from wiiiiided.ui.cli.doctor import peers as doctor_peers
from wiiiiided.ui.cli.doctor.cluster import examine_peers
from wiiiiided.ui.cli.doctor.model import PeerFacts, PortProbe

OWN = msgspec.structs.replace(status(), version="1.0", role="coordinator", cluster="lab")
WELL = PeerFacts("b", "10.0.0.2:9461", "idle", "1.0", PortProbe(0.0004, mtu=1500))


@pytest.fixture
def listener() -> Iterator[socket.socket]:
    with socket.socket() as made:
        made.bind(("127.0.0.1", 0))
        made.listen()
        yield made


def on_loopback(port: int, name: str = "b") -> Node:
    return Node(name, 4, 1 << 30, address="127.0.0.1", port=port, version="1.0")


def test_a_machine_that_answers_is_well() -> None:
    (finding,) = examine_peers(OWN, [WELL])
    assert (finding.level, finding.title) == ("ok", "node b")
    assert finding.sentence == "10.0.0.2:9461 answers in 0.4 ms, MTU 1500, idle"


@pytest.mark.parametrize(
    ("changes", "level", "words", "do"),
    [
        ({"reach": PortProbe(problem="refused")}, "fail", "refuses", "systemctl status"),
        ({"reach": PortProbe(problem="silent")}, "fail", "does not answer", "let TCP port 9461 in"),
        ({"reach": PortProbe(problem="no-route")}, "fail", "no route", "ip route get 10.0.0.2"),
        ({"reach": PortProbe(problem="forbidden")}, "fail", "may not be", "TCP port 9461 out"),
        ({"reach": PortProbe(problem="other", words="odd")}, "fail", "reached: odd", "network"),
        ({"reach": None}, "warn", "not known", "there"),
        ({"reach": PortProbe(0.1, mtu=576)}, "warn", "MTU 576", "tunnel"),
        ({"state": "lost"}, "fail", "the coordinator does not hear it", "on b: wiiiiide doctor"),
        ({"version": "0.9"}, "warn", "0.9, this machine 1.0", "one version"),
    ],
)
def test_what_is_wrong_with_a_machine_is_named_with_what_to_do(
    changes: dict[str, object], level: str, words: str, do: str
) -> None:
    names = ("name", "endpoint", "state", "version", "reach")
    fields = {name: getattr(WELL, name) for name in names}
    (finding,) = examine_peers(OWN, [PeerFacts(**{**fields, **changes})])
    assert finding.level == level
    assert words in finding.sentence
    assert do in finding.do


def test_a_port_that_listens_is_reached(listener: socket.socket) -> None:
    found = doctor_peers.reach(on_loopback(listener.getsockname()[1]))
    assert found.problem == ""
    assert found.seconds is not None
    assert (found.mtu or 0) > 1280


def test_a_port_without_a_listener_refuses() -> None:
    with socket.socket() as silent:  # it has the port, so that no other process gets it
        silent.bind(("127.0.0.1", 0))
        assert doctor_peers.reach(on_loopback(silent.getsockname()[1])).problem == "refused"


def test_an_address_without_a_route_is_told() -> None:
    nowhere = Node("b", 4, 1 << 30, address="255.255.255.255", port=9461)
    assert doctor_peers.reach(nowhere).problem in ("no-route", "forbidden")


def test_the_other_machines_are_tried_and_this_one_is_not(
    cli: Cli, daemon: FakeDaemon, listener: socket.socket, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(doctor_facts, "torch_of", lambda _: ("2.13.0", ""))
    node = on_loopback(listener.getsockname()[1])
    views = (machine("a"), machine("b", node=node), machine("a-long-name-c"))
    daemon.answers(m.ListNodes, m.NodeList("lab", views))
    daemon.answers(m.GetStatus, msgspec.structs.replace(OWN, version=node.version))
    lines = cli("doctor", "--peers").out.splitlines()
    assert any(line.startswith("ok    node b       127.0.0.1:") for line in lines)
    assert "warn  node a-long-name-c its address is not known" in lines
    assert sum(line[6:11] == "node " for line in lines) == 2


def test_a_coordinator_that_is_away_is_a_finding(
    cli: Cli, daemon: FakeDaemon, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(doctor_facts, "torch_of", lambda _: ("2.13.0", ""))
    daemon.answers(m.ListNodes, m.Refusal(4, "the coordinator m0 does not answer", "look at m0"))
    result = cli("doctor", "--peers")
    assert result.code == 1
    first = "fail  nodes        not known: the coordinator m0 does not answer"
    assert result.out.splitlines()[-2:] == [first, "                   → look at m0"]
