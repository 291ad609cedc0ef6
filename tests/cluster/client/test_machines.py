"""The client's questions about machines, and its patience with a daemon that changes its role."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import msgspec
import pytest

from tests.kit.fake_daemon import FakeConnection, FakeDaemon, machine, status
from wiiiiided.cluster.client import Client, DaemonRefused, NotSettled, machines
from wiiiiided.cluster.rpc import messages as m


@pytest.fixture
def daemon() -> Iterator[FakeDaemon]:
    with FakeDaemon() as fake:
        yield fake


@pytest.fixture
def client(daemon: FakeDaemon) -> Client:
    return Client(daemon.paths)


def being(**changes: Any) -> m.DaemonStatus:
    return msgspec.structs.replace(status(), **changes)


def says(daemon: FakeDaemon, *statuses: m.DaemonStatus) -> None:
    """One after the other; the last for ever."""
    left = list(statuses)
    daemon.does(
        m.GetStatus, lambda _, client: client.say(left.pop(0) if len(left) > 1 else left[0])
    )


def test_each_question_has_its_answer(daemon: FakeDaemon, client: Client) -> None:
    view = m.ClusterView("lab", "member", "b")
    token = m.TokenCreated("wiiiiide1.x", "a:1", 1.0, 1)
    nodes = m.NodeList("lab", (machine("b"),))
    for kind in (m.Init, m.Join, m.Leave, m.Renew):
        daemon.answers(kind, view)
    for kind in (m.RemoveNode, m.DeclareLost, m.Drain, m.Resume):
        daemon.answers(kind, nodes.nodes[0])
    daemon.answers(m.CreateToken, token)
    daemon.answers(m.ListNodes, nodes)
    join = m.Join("a", 9461, "wiiiiide1.x")
    assert [
        client.init("lab", "10.0.0.1", 1),
        client.join(join),
        client.leave(True),
        client.renew(),
    ] == ([view] * 4)
    assert (client.create_token(60.0, 2), client.nodes()) == (token, nodes)
    about = [
        client.remove_node("b", True),
        client.declare_lost("b"),
        client.drain("b", "fan"),
    ]
    assert [*about, client.resume("b")] == [nodes.nodes[0]] * 4
    assert daemon.requests == [
        *(m.Init("lab", "10.0.0.1", 1), join, m.Leave(True), m.Renew()),
        *(m.CreateToken(60.0, 2), m.ListNodes(), m.RemoveNode("b", True)),
        *(m.DeclareLost("b"), m.Drain("b", "fan"), m.Resume("b")),
    ]


def test_a_role_is_waited_for_through_the_old_one(daemon: FakeDaemon, client: Client) -> None:
    says(daemon, being(), being(), being(role="coordinator"))
    assert machines.settle(client.status, "coordinator").role == "coordinator"


def test_a_member_has_settled_when_it_is_heard(
    daemon: FakeDaemon, client: Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    unheard = being(role="member", linked=False, problem="a does not answer")
    says(daemon, unheard, unheard, being(role="member", cluster="lab"))
    monkeypatch.setattr(machines, "PROBLEM_S", 0.0)  # that of another machine is no reason to stop
    assert machines.settle(client.status, "member").cluster == "lab"


def test_a_daemon_that_is_away_for_a_moment_is_waited_for(
    daemon: FakeDaemon, client: Client
) -> None:
    daemon.answers(m.GetStatus, being(role="member"))
    daemon.restart()
    assert machines.settle(client.status, "member").role == "member"


def test_a_connection_that_ends_in_the_middle_is_tried_again(
    daemon: FakeDaemon, client: Client
) -> None:
    heard: list[m.GetStatus] = []

    def once(request: m.GetStatus, client: FakeConnection) -> None:
        heard.append(request)
        if len(heard) > 1:
            client.say(being(role="coordinator"))

    daemon.does(m.GetStatus, once)
    assert machines.settle(client.status, "coordinator").role == "coordinator"


def test_a_problem_that_goes_by_itself_is_none(daemon: FakeDaemon, client: Client) -> None:
    says(
        daemon,
        being(role="coordinator", problem="cannot listen on 10.0.0.1:9461"),
        being(role="coordinator"),
    )
    assert machines.settle(client.status, "coordinator").problem == ""


def test_a_problem_that_stays_is_told_before_all_patience_is_used(
    daemon: FakeDaemon, client: Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(machines, "PROBLEM_S", 0.05)
    says(daemon, being(role="coordinator", problem="cannot listen on 10.0.0.1:9461"))
    with pytest.raises(NotSettled, match="coordinator yet: the daemon says: cannot listen") as told:
        machines.settle(client.status, "coordinator", within_s=3600.0)
    assert told.value.code == 1


@pytest.mark.parametrize(
    ("last", "why"),
    [
        (being(), "the daemon is still that of a machine alone"),
        (being(role="member", linked=False, coordinator="a"), "the coordinator a does not hear it"),
    ],
)
def test_when_the_time_is_up_it_says_what_is_missing(
    daemon: FakeDaemon, client: Client, last: m.DaemonStatus, why: str
) -> None:
    daemon.answers(m.GetStatus, last)
    with pytest.raises(NotSettled, match=f"as a member yet: {why}"):
        machines.settle(client.status, "member", within_s=0.0)


def test_a_daemon_that_does_not_come_back_is_told(daemon: FakeDaemon, client: Client) -> None:
    daemon.stop()
    with pytest.raises(NotSettled, match="no daemon answers"):
        machines.settle(client.status, "alone", within_s=0.0)


def test_a_refusal_ends_the_waiting(daemon: FakeDaemon, client: Client) -> None:
    daemon.answers(m.GetStatus, m.Refusal(1, "no"))
    with pytest.raises(DaemonRefused):
        machines.settle(client.status, "alone")
