"""Attacks on a cluster's daemons: by machines without a certificate, removed members, liars.

Real daemons on loopback addresses; the attackers speak to their ports with papers that they stole
from a daemon's own directory, so what they show is what such a machine would have.
"""

from __future__ import annotations

import contextlib
import socket
import ssl
import time
from collections.abc import Iterator
from typing import Any, Self

import msgspec
import pytest

from tests.kit.conditions import wait_until
from tests.kit.daemons import (
    PrivateDaemon,
    join_cluster,
    node_states,
    private_cluster,
    private_daemon,
)
from wiiiiided.cluster.control import events as e
from wiiiiided.cluster.membership.control_port import MAX_JOINING
from wiiiiided.cluster.membership.links import restamped
from wiiiiided.cluster.peering import messages as p
from wiiiiided.cluster.peering.metrics_codec import NodeMetrics, PackedMetrics
from wiiiiided.cluster.rpc import framing
from wiiiiided.cluster.rpc import messages as m
from wiiiiided.cluster.trust.identity import Identity
from wiiiiided.cluster.trust.signing_request import new_request
from wiiiiided.cluster.trust.tls import client_context, greeting_context
from wiiiiided.domain.node import Node

WITHIN_S = 60.0
HANGS_UP_S = 5 * 2.0  # five times what a removed member's connections are left
AT_ONCE_S = 5.0  # and not because the ten seconds for its first words are over
ROOT = p.Person(0, "root", admin=True)
Cluster = list[PrivateDaemon]


@pytest.fixture(scope="module")
def cluster() -> Iterator[Cluster]:
    """For tests that leave it as it was."""
    with private_cluster(2) as daemons:
        yield daemons


@pytest.fixture
def own() -> Iterator[Cluster]:
    """For tests that spoil it."""
    with private_cluster(2) as daemons:
        yield daemons


class Visitor:
    """A connection to a daemon's port, without any of the manners of a real one."""

    def __init__(self, there: Identity, context: ssl.SSLContext) -> None:
        plain = socket.create_connection((there.address, there.port), timeout=WITHIN_S)
        self.socket = context.wrap_socket(plain)
        self._parser = framing.Parser()
        self._heard: list[bytes] = []

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.socket.close()

    def say(self, message: msgspec.Struct | bytes) -> None:
        raw = message if isinstance(message, bytes) else m.encode(message)
        self.socket.sendall(framing.frame(framing.MESSAGE, raw))

    def hear(self) -> bytes:
        """The next message; EOFError when the daemon has hung up."""
        while not self._heard:
            try:
                data = self.socket.recv(65536)
            except (ConnectionError, ssl.SSLError):
                data = b""
            if not data:
                raise EOFError
            self._heard += [payload for _, payload in self._parser.feed(data)]
        return self._heard.pop(0)

    def open(self, purpose: p.Purpose, person: p.Person | None = None) -> p.Opened | p.TurnedAway:
        self.say(p.Opening(purpose, p.PROTOCOLS, "0.1", person))
        answer: p.Opened | p.TurnedAway = p.decode_opened(self.hear())
        return answer

    def is_let_in(self, purpose: p.Purpose, person: p.Person | None = None) -> None:
        assert isinstance(self.open(purpose, person), p.Opened)

    def is_hung_up_on(self, within_s: float = HANGS_UP_S) -> bool:
        """Whatever it still says before."""
        self.socket.settimeout(within_s)
        deadline = time.monotonic() + within_s
        try:
            while time.monotonic() < deadline:
                self.hear()
        except EOFError:
            return True
        except TimeoutError:
            pass
        return False


def papers(daemon: PrivateDaemon) -> Identity:
    identity = Identity.load(daemon.paths.state)
    assert identity is not None
    return identity


def member(cluster: Cluster) -> Visitor:
    """A machine with b's key at the coordinator's port."""
    return Visitor(papers(cluster[0]), client_context(papers(cluster[1])))


def stranger(cluster: Cluster) -> Visitor:
    return Visitor(papers(cluster[0]), greeting_context())


def hello(cluster: Cluster, has: tuple[int, ...] = (), **about: Any) -> p.LinkHello:
    b = papers(cluster[1])
    node = {"cores": 1, "memory": 1 << 30, "address": b.address, "port": b.port, **about}
    return p.LinkHello(Node("b", **node), has)


@contextlib.contextmanager
def silenced(cluster: Cluster) -> Iterator[None]:
    """Only the attacker speaks as b."""
    cluster[1].stop()
    wait_until(lambda: node_states(cluster[0])["b"] == "lost", WITHIN_S, "b is gone")
    yield
    cluster[1].start()
    wait_until(lambda: node_states(cluster[0])["b"] != "lost", WITHIN_S, "b is back")


def was_heard(liar: Visitor) -> None:
    """All that was said before: this is answered after it."""
    liar.say(p.RenewRequest(new_request("b")[1]))
    while b"Renewed" not in liar.hear():
        pass


# ---- a removed member


def test_a_removed_member_with_an_open_connection_does_not_come_back(own: Cluster) -> None:
    own[1].stop()
    with member(own) as foot:
        foot.is_let_in("link")
        own[0].client.remove_node("b", force=True)
        foot.say(hello(own))
        assert foot.is_hung_up_on()
    assert "b" not in node_states(own[0])


def test_a_removed_member_hears_nothing_more_on_what_it_had_asked(own: Cluster) -> None:
    own[1].stop()
    with member(own) as watching, member(own) as waiting:
        watching.is_let_in("request", ROOT)
        watching.say(m.WatchSnapshots())
        watching.hear()
        waiting.is_let_in("request", ROOT)
        own[0].client.remove_node("b", force=True)
        assert watching.is_hung_up_on()
        assert waiting.is_hung_up_on(AT_ONCE_S)
    assert own[0].answers()


def test_a_removed_member_has_no_more_places_than_a_machine_that_joins(own: Cluster) -> None:
    own[1].stop()
    own[0].client.remove_node("b", force=True)
    with contextlib.ExitStack() as stack:
        crowd = [stack.enter_context(member(own)) for _ in range(60)]
        assert all(one.is_hung_up_on(AT_ONCE_S) for one in crowd[: 60 - MAX_JOINING])
        with stranger(own) as joining:
            joining.is_let_in("greet")


def test_a_removed_machine_knows_it_when_another_has_its_name(own: Cluster) -> None:
    a, b = own
    b.stop()
    a.client.remove_node("b", force=True)
    with private_daemon() as newer:
        join_cluster(a, newer, "b", "127.0.0.4")
        b.start()
        wait_until(lambda: "was removed" in b.client.status().problem, WITHIN_S, "b knows it")
        assert node_states(a)["b"] == "idle"


# ---- strangers


def test_an_unauthenticated_peer_cannot_fill_the_log(cluster: Cluster) -> None:
    before = len(cluster[0].said())
    deep = b'{"type":"Opening","x":' + b"[" * 30_000 + b"]" * 30_000 + b"}"
    evil = b'{"type":"\\u001b[2J\\nroot logged in %d' + b"A" * 10_000 + b'"}'
    began = time.monotonic()
    for number in range(30):
        for words in (deep, evil.replace(b"%d", b"%d" % number)):
            with stranger(cluster) as one:
                one.say(words)
                assert one.is_hung_up_on()
    seconds = time.monotonic() - began
    said = cluster[0].said()[before:]
    assert "\x1b" not in said
    assert "Traceback" not in said
    assert len(said.splitlines()) <= seconds + 2
    assert len(said) < 1000 * (seconds + 2)


def test_refused_tokens_cannot_fill_the_log(cluster: Cluster) -> None:
    before = len(cluster[0].said())
    began = time.monotonic()
    for _ in range(30):
        with stranger(cluster) as one:
            one.is_let_in("join")
            one.say(p.JoinRequest("00" * 6, "00" * 16, "", Node("x", 1, 1)))
            assert b"does not know this token" in one.hear()
    lines = cluster[0].said()[before:].splitlines()
    assert 1 <= len(lines) <= time.monotonic() - began + 2


def test_an_unauthenticated_peer_cannot_send_megabytes(cluster: Cluster) -> None:
    with stranger(cluster) as one:
        one.socket.sendall(framing.MESSAGE + (1 << 20).to_bytes(4, "big"))
        assert one.is_hung_up_on(AT_ONCE_S)


# ---- a member that lies


@pytest.mark.parametrize("request_", [m.Init("x"), m.Leave(True), m.Renew()])
def test_what_a_machine_does_with_itself_is_not_asked_from_elsewhere(
    cluster: Cluster, request_: m.Request
) -> None:
    with member(cluster) as one:
        one.is_let_in("request", ROOT)
        one.say(request_)
        assert isinstance(m.decode_answer(one.hear()), m.Refusal)
    assert cluster[0].client.status().role == "coordinator"


def test_a_member_with_a_million_jobs_stops_no_other(cluster: Cluster) -> None:
    with silenced(cluster), member(cluster) as liar:
        liar.is_let_in("link")
        liar.say(hello(cluster, has=(10**30, -1, 1 << 63, *range(1, 400_000))))
        began = time.monotonic()
        assert b"Reconcile" in liar.hear()
        assert time.monotonic() - began < WITHIN_S / 4
        assert cluster[0].answers()
    assert "Traceback" not in cluster[0].said()


@pytest.mark.parametrize(
    "about",
    [
        {"address": "\x1b[2Jexample.org"},
        {"address": "0.0.0.0"},
        {"address": "fe80::1%\x1b[2J"},
        {"port": 0},
        {"cores": 10**30},
        {"memory": 1 << 63},
    ],
)
def test_a_member_that_describes_itself_as_what_cannot_be_is_not_linked(
    cluster: Cluster, about: dict[str, Any]
) -> None:
    with silenced(cluster):
        with member(cluster) as liar:
            liar.is_let_in("link")
            liar.say(hello(cluster, **about))
            assert liar.is_hung_up_on()
        assert node_states(cluster[0])["b"] == "lost"
    assert "\x1b" not in cluster[0].said()
    assert "Traceback" not in cluster[0].said()


def test_a_member_speaks_neither_for_other_nodes_nor_for_their_ranks(own: Cluster) -> None:
    a, b = own
    head = papers(a).node
    script = "import time; time.sleep(600)"
    job = a.submit(script, nodes=2, policy={"hang_timeout_s": 600.0})
    a.wait_for(job, "running")
    b.stop()
    wait_until(lambda: node_states(a)["b"] == "lost", WITHIN_S, "b is gone")
    with member(own) as liar:
        liar.is_let_in("link")
        liar.say(hello(own))
        assert b"Reconcile" in liar.hear()
        lies = (
            e.ProgressSampled(0.0, job, 1, 0, 1e9),
            e.WorkersEnded(0.0, job, 1, head, 1, "it is over"),
        )
        for lie in lies:
            liar.say(p.Report(lie))
        was_heard(liar)
        assert a.state(job) == "running"
        liar.say(p.Report(e.ProgressSampled(0.0, job, 1, 1, 1e9)))  # of itself it is believed
        a.wait_for(job, "hung", "stopping", "failed")
    b.start()
    assert a.end_of(job).state == "failed"


def test_metrics_that_would_take_seconds_to_read_are_not_read(cluster: Cluster) -> None:
    with silenced(cluster), member(cluster) as liar:
        liar.is_let_in("link")
        liar.say(hello(cluster))
        liar.say(p.MetricsUpdate(NodeMetrics(1.0, 0.25, 0.5, False)))
        many = (PackedMetrics(1, 1, "0" * 1000),) * 1000
        liar.say(p.MetricsUpdate(NodeMetrics(2.0, 0.75, 0.5, False, many)))
        was_heard(liar)
        (b,) = (node for node in cluster[0].client.snapshot().nodes if node.name == "b")
        assert b.cpu == 0.25


def test_versions_of_a_member_are_short_and_printable() -> None:
    said = e.WorkersPrepared(0.0, 1, 1, "b", "3.11\x1b[2J", "9" * 1_000_000, "0.1\nroot")
    kept = restamped(said, 5.0)
    assert (kept.at, kept.python, kept.wiiiiided) == (5.0, "3.11?[2J", "0.1?root")
    assert len(kept.torch) == 64
