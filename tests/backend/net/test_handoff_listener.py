"""An endpoint behind the daemon's port: which users may pass on what, and when to try again."""

from __future__ import annotations

import errno
import math
import os
import socket
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.backend.net.test_acceptor import ALICE, BOB, GROUP, KEY, Clock, Process
from tests.kit.conditions import wait_until
from tests.kit.leaks import open_descriptors
from wiiiiided.backend.engine.poller import EpollPoller
from wiiiiided.backend.net import handoff_listener as module
from wiiiiided.backend.net.handoff_listener import (
    READY_S,
    HandoffListener,
    HandoffReceiver,
    again_s,
    explained,
)
from wiiiiided.backend.net.pending_connection import HungUp, OutgoingConnection, Overdue, Stage
from wiiiiided.backend.wire.handshake import ConnectionClaim
from wiiiiided.backend.wire.port_auth import PortServer, Rejected, RejectReason
from wiiiiided.errors import HandshakeFailed, HostError

WITHIN_S = 20.0
ATTEMPT_KEY = bytes(range(1, 33))
CLAIM = ConnectionClaim(GROUP, 1, 0, 1, ALICE, BOB, "data")


class HandoffRig:
    """Passings with a real watch, and what has come of them."""

    def __init__(self, uids: set[int]) -> None:
        self.poller, self.clock = EpollPoller(), Clock()
        self.entered: list[tuple[socket.socket, tuple[Any, ...]]] = []
        self.complaints: list[str] = []
        self.passings = HandoffReceiver(
            uids,
            self.poller,
            lambda sock, address: self.entered.append((sock, address)),
            self.complaints.append,
            self.clock,
        )
        self.daemons: list[socket.socket] = []
        with socket.create_server(("127.0.0.1", 0)) as listener:
            self.far = socket.create_connection(listener.getsockname())
            self.near, self.address = listener.accept()

    def daemon(self) -> socket.socket:
        """A connection of the daemon's."""
        ours, theirs = socket.socketpair()
        self.daemons.append(theirs)
        self.passings.add(ours)
        return theirs

    def until(self, condition: Callable[[], bool]) -> None:
        def polled() -> bool:
            self.poller.poll(0.001)
            return condition()

        wait_until(polled, WITHIN_S, "it has happened")

    def close(self) -> None:
        self.passings.close()
        self.poller.close()
        for sock in [*self.daemons, self.far, self.near, *(sock for sock, _ in self.entered)]:
            sock.close()


@pytest.fixture
def handoff() -> Iterator[HandoffRig]:
    before = set(open_descriptors())
    handoff = HandoffRig({os.geteuid()})
    yield handoff
    handoff.close()
    assert not set(open_descriptors()) - before


def test_what_the_daemon_passes_on_comes_in_and_no_child_inherits_it(handoff: HandoffRig) -> None:
    daemon = handoff.daemon()
    assert handoff.entered == []
    socket.send_fds(daemon, [b"W"], [handoff.near.fileno()])
    handoff.until(lambda: bool(handoff.entered))
    ((sock, address),) = handoff.entered
    assert address == handoff.address
    assert not sock.get_inheritable()
    handoff.far.sendall(b"hello")
    sock.setblocking(True)
    assert sock.recv(10) == b"hello"
    assert handoff.complaints == []
    assert daemon.recv(1) == b""  # it need not wait for an answer


def test_another_user_may_pass_nothing_on() -> None:
    handoff = HandoffRig({12345})
    daemon = handoff.daemon()
    assert handoff.complaints == [
        (
            "a connection passed on by the daemon was refused: "
            f"user {os.geteuid()} may pass nothing on here"
        )
    ]
    assert daemon.recv(1) == b""
    handoff.close()


@pytest.mark.parametrize(
    ("word", "count", "complaint"),
    [
        (b"X", 1, "b'X' with 1 descriptors is no connection"),
        (b"W", 0, "b'W' with 0 descriptors"),
        (b"W", 2, "b'W' with 2 descriptors"),
        (b"W", 8, "descriptors"),
    ],
)
def test_anything_else_than_one_connection_is_refused_and_closed(
    handoff: HandoffRig, word: bytes, count: int, complaint: str
) -> None:
    socket.send_fds(handoff.daemon(), [word], [handoff.near.fileno()] * count)
    handoff.until(lambda: bool(handoff.complaints))
    assert complaint in handoff.complaints[0]
    assert handoff.entered == []


def test_a_descriptor_that_is_no_connection_is_refused_and_closed(handoff: HandoffRig) -> None:
    read, write = os.pipe()
    one, other = socket.socketpair()
    for fd in (read, one.fileno()):
        socket.send_fds(handoff.daemon(), [b"W"], [fd])
    handoff.until(lambda: len(handoff.complaints) == 2)
    assert "no TCP connection" in handoff.complaints[1]
    os.close(read)
    os.close(write)
    one.close()
    other.close()


def test_a_connection_that_has_gone_meanwhile_is_no_news(handoff: HandoffRig) -> None:
    with socket.socket() as never:
        socket.send_fds(handoff.daemon(), [b"W"], [never.fileno()])
        daemon = handoff.daemon()
        daemon.close()
        handoff.until(lambda: not handoff.passings._open)
    assert handoff.complaints == handoff.entered == []


def test_a_connection_that_passes_nothing_on_is_closed_in_time(handoff: HandoffRig) -> None:
    daemon = handoff.daemon()
    handoff.clock.now += module.SILENT_S - 0.1
    handoff.passings.tick()
    assert handoff.complaints == []
    handoff.clock.now += 0.2
    handoff.passings.tick()
    assert "nothing was passed on within 10 s" in handoff.complaints[0]
    assert daemon.recv(1) == b""


def test_of_too_many_connections_that_pass_nothing_on_the_oldest_goes(handoff: HandoffRig) -> None:
    daemons = [handoff.daemon() for _ in range(module.MAX_OPEN + 1)]
    assert daemons[0].recv(1) == b""
    assert len(handoff.passings._open) == module.MAX_OPEN


def test_a_forked_child_closes_its_copies(handoff: HandoffRig) -> None:
    handoff.daemon()
    handoff.passings.abandon()
    assert not handoff.passings._open


# -- the endpoint itself ----


@pytest.fixture
def attempt(tmp_path: Path) -> Path:
    (tmp_path / "key").write_bytes(ATTEMPT_KEY)
    return tmp_path


def test_an_endpoint_is_a_socket_that_goes_when_it_is_closed(attempt: Path) -> None:
    endpoint = HandoffListener(str(attempt), BOB, {12345}, 7, 1)
    path = attempt / f"door-{BOB}"
    assert path.is_socket()
    assert path.stat().st_mode & 0o777 == 0o660
    assert endpoint.uids == {0, os.geteuid(), 12345}
    endpoint.listener.close()
    endpoint.close()
    assert not path.exists()


def test_a_path_longer_than_a_sockets_may_be_is_no_problem(attempt: Path) -> None:
    deep = attempt / ("d" * 100) / ("e" * 100)
    deep.mkdir(parents=True)
    (deep / "key").write_bytes(ATTEMPT_KEY)
    endpoint = HandoffListener(str(deep), BOB, set(), 7, 1)
    assert (deep / f"door-{BOB}").is_socket()
    endpoint.listener.close()


@pytest.mark.parametrize(
    ("content", "words"), [(None, "cannot read .*key.*No such file"), (b"short", "submit it again")]
)
def test_without_its_key_there_is_no_endpoint(
    attempt: Path, content: bytes | None, words: str
) -> None:
    (attempt / "key").unlink()
    if content is not None:
        (attempt / "key").write_bytes(content)
    with pytest.raises(HostError, match=words) as caught:
        HandoffListener(str(attempt), BOB, set(), 7, 1)
    assert "short" not in str(caught.value)
    assert not (attempt / f"door-{BOB}").exists()


def test_an_endpoint_that_cannot_be_made_is_said(attempt: Path) -> None:
    HandoffListener(str(attempt), BOB, set(), 7, 1).listener.close()
    with pytest.raises(HostError, match=r"cannot open a socket in .*Address already in use"):
        HandoffListener(str(attempt), BOB, set(), 7, 1)


# -- port authentication ----


class PortRig:
    """A process that authenticates, and a port at which the test plays the daemon."""

    def __init__(self, attempt: Path) -> None:
        self.process = Process(ALICE)
        self.behind = HandoffListener(str(attempt), ALICE, set(), 7, 1)
        self.process.endpoint.listen_behind(self.behind)
        self.port = socket.create_server(("127.0.0.1", 0))
        self.port.settimeout(WITHIN_S)
        self.links: list[socket.socket] = []

    def begin(self) -> tuple[Any, socket.socket]:
        """An attempt, and its connection as the port has it."""
        tried = self.process.endpoint.connect(*self.port.getsockname(), KEY, CLAIM)
        link, _ = self.port.accept()
        link.setblocking(False)
        self.links.append(link)
        return tried, link

    def heard(self, link: socket.socket, size: int) -> bytes:
        got = bytearray()

        def polled() -> bool:
            self.process.poll()
            try:
                got.extend(link.recv(size - len(got)))
            except BlockingIOError:
                pass
            return len(got) == size

        wait_until(polled, WITHIN_S, f"{size} bytes have come")
        return bytes(got)

    def until_failed(self, tried: Any) -> None:
        def polled() -> bool:
            self.process.poll()
            return bool(tried.state == "failed")

        wait_until(polled, WITHIN_S, "it has failed")

    def proved(self, link: socket.socket) -> PortServer:
        server = PortServer()
        server.receive_data(self.heard(link, server.wanted))
        server.challenge(ATTEMPT_KEY)
        link.sendall(server.data_to_send())
        server.receive_data(self.heard(link, server.wanted))
        return server

    def close(self) -> None:
        self.process.close()
        for sock in (self.port, *self.links):
            sock.close()


@pytest.fixture
def rig(attempt: Path) -> Iterator[PortRig]:
    before = set(open_descriptors())
    rig = PortRig(attempt)
    yield rig
    rig.close()
    assert not set(open_descriptors()) - before
    assert not list(attempt.glob("door-*"))


def test_a_port_request_names_the_process_and_the_ranks_of_the_claim(rig: PortRig) -> None:
    _, link = rig.begin()
    server = rig.proved(link)
    assert server.request is not None
    request = server.request
    assert (request.job, request.attempt, request.role, request.uid) == (7, 1, "data", BOB)
    assert (request.connector, request.acceptor) == (CLAIM.connector, CLAIM.acceptor)
    server.welcome()
    link.sendall(server.data_to_send())
    assert rig.heard(link, 8) == b"WIIIIIDE"  # the handshake of the group begins


@pytest.mark.parametrize(
    ("reason", "worth_s"),
    [
        (RejectReason.BUSY, math.inf),
        (RejectReason.ABSENT, READY_S),
        (RejectReason.PROOF, READY_S),
        (RejectReason.UNKNOWN, READY_S),
        (RejectReason.VERSION, 0.0),
        (RejectReason.MALFORMED, 0.0),
    ],
)
def test_a_refusal_is_told_and_whether_it_is_worth_another_try(
    rig: PortRig, reason: RejectReason, worth_s: float
) -> None:
    tried, link = rig.begin()
    server = rig.proved(link)
    server.refuse(reason)
    link.sendall(server.data_to_send())
    rig.until_failed(tried)
    port = rig.port.getsockname()[1]
    assert f"no connection by the daemon at 127.0.0.1:{port}: the daemon refuses" in tried.problem
    assert tried.again_s == worth_s


def test_a_daemon_that_goes_in_the_middle_is_worth_another_try(rig: PortRig) -> None:
    tried, link = rig.begin()
    rig.heard(link, 72)
    link.close()
    rig.until_failed(tried)
    assert tried.again_s == math.inf


def test_a_daemon_that_goes_while_passing_on_is_worth_another_try(rig: PortRig) -> None:
    tried, link = rig.begin()
    server = rig.proved(link)
    server.welcome()
    link.sendall(server.data_to_send())
    rig.heard(link, 80)
    link.close()
    rig.until_failed(tried)
    assert tried.again_s == READY_S


def test_a_daemon_that_does_not_answer_is_worth_another_try(rig: PortRig) -> None:
    tried, link = rig.begin()
    rig.heard(link, 72)
    rig.process.later(5.1)
    assert "the daemon's answer has not come within 5 s" in tried.problem
    assert tried.again_s == math.inf


def test_something_else_at_that_port_is_not_tried_again(rig: PortRig) -> None:
    tried, link = rig.begin()
    link.sendall(b"SSH-2.0")
    rig.until_failed(tried)
    assert "something else than wiiiiided" in tried.problem
    assert tried.again_s == 0.0


def test_a_refused_connection_is_tried_again_and_a_missing_route_is_not(
    rig: PortRig,
) -> None:
    rig.port.close()
    tried = rig.process.endpoint.connect("127.0.0.1", 1, KEY, CLAIM)
    rig.until_failed(tried)
    assert "Connection refused: no daemon listens there" in tried.problem
    assert tried.again_s == math.inf
    for number in (errno.EHOSTUNREACH, errno.ENETUNREACH, errno.ETIMEDOUT):
        assert again_s(None, OSError(number, os.strerror(number))) == 0.0


def test_what_is_over_before_the_connection_stands_is_not_tried_again() -> None:
    with socket.socket() as sock:
        pending = OutgoingConnection(sock, "there", False, KEY, CLAIM)
        assert again_s(pending, Overdue("no connection")) == 0.0
        pending.stage = Stage.TALKING
        assert again_s(pending, Overdue("no word")) == 0.0
        assert again_s(pending, HungUp("it hung up")) == READY_S
        assert again_s(pending, HandshakeFailed("wrong")) == 0.0


def test_other_problems_are_explained_as_ever() -> None:
    assert "firewall" in explained(OSError(errno.EHOSTUNREACH, "No route to host"))
    assert explained(Rejected("no", RejectReason.PROOF)) == "no"
