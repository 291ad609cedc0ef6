"""The endpoint, with real sockets on loopback: members are admitted, other peers are not."""

from __future__ import annotations

import errno
import gc
import logging
import os
import random
import resource
import socket
import ssl
import struct
from collections.abc import Callable, Iterator
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from tests.kit.conditions import wait_until
from tests.kit.examples import examples
from tests.kit.leaks import open_descriptors
from wiiiiided.backend.engine.poller import EpollPoller
from wiiiiided.backend.net import acceptor, tls
from wiiiiided.backend.net.acceptor import ConnectAttempt, Endpoint
from wiiiiided.backend.net.pending_connection import HINTS, sentence
from wiiiiided.backend.net.stream import Stream
from wiiiiided.backend.wire.challenge import ANSWER_BYTES
from wiiiiided.backend.wire.handshake import HELLO_BYTES, ConnectionClaim, Connector
from wiiiiided.errors import HostError, UsageError

DEADLINE_S = 20.0
KEY, OTHER_KEY = bytes(range(32)), bytes(32)
GROUP = 0x1234
ALICE, BOB = "a" * 16, "b" * 16


class Clock:
    """Seconds that pass when a test says so."""

    def __init__(self) -> None:
        self.now = 100.0

    def __call__(self) -> float:
        return self.now


class Process:
    """A process with an endpoint, and the connections it has admitted."""

    def __init__(self, uid: str, secure: bool = False, greeting: bytes = b"") -> None:
        self.uid, self.greeting = uid, greeting
        self.clock = Clock()
        self.poller = EpollPoller()
        self.welcomed: list[tuple[Stream, ConnectionClaim]] = []
        self.endpoint = Endpoint(self.poller, uid, self._welcome, secure, self.clock)
        self.address, self.port = self.endpoint.listen("127.0.0.1")

    def _welcome(self, stream: Stream, claim: ConnectionClaim) -> None:
        self.welcomed.append((stream, claim))
        if self.greeting:
            stream.send([self.greeting])

    def poll(self) -> None:
        self.poller.poll(0.001)
        self.endpoint.tick()

    def later(self, seconds: float) -> None:
        self.clock.now += seconds
        self.endpoint.tick()

    def connect(
        self, to: Process, role: str = "data", key: bytes = KEY, **changes: Any
    ) -> ConnectAttempt:
        port = changes.pop("port", to.port)
        usual = {"group": GROUP, "generation": 1, "connector": 0, "acceptor": 1, "role": role}
        uids = {"connector_uid": self.uid, "acceptor_uid": to.uid}
        claim = ConnectionClaim(**{**usual, **uids, **changes})
        return self.endpoint.connect(to.address, port, key, claim)

    @property
    def stages(self) -> list[str]:
        """The stages of the pending connections."""
        return [pending.stage.name for pending in self.endpoint._all_pending()]

    def close(self) -> None:
        self.endpoint.close()
        for stream, _ in self.welcomed:
            stream.close()
        self.poller.close()


class Processes:
    """All houses of a test; closed at its end, and nothing is left open."""

    def __init__(self) -> None:
        self.all: list[Process] = []
        self.socks: list[socket.socket] = []

    def two(self, secure: tuple[bool, bool] = (False, False), known: bool = True) -> list[Process]:
        self.all += [Process(ALICE, secure[0]), Process(BOB, secure[1])]
        if known:
            self.all[1].endpoint.expect(GROUP, 1, KEY)
        return self.all

    def until(self, condition: Callable[[], bool], what: str) -> None:
        def polled() -> bool:
            for process in self.all:
                process.poll()
            return condition()

        wait_until(polled, DEADLINE_S, what)

    def unauthenticated(
        self, process: Process, says: bytes = b"", ends: bool = False
    ) -> socket.socket:
        sock = socket.create_connection((process.address, process.port), timeout=DEADLINE_S)
        self.socks.append(sock)
        sock.sendall(says)
        if ends:
            sock.shutdown(socket.SHUT_WR)
        sock.setblocking(False)
        return sock

    def close(self) -> None:
        for sock in self.socks:
            sock.close()
        for process in self.all:
            process.close()


@pytest.fixture
def processes() -> Iterator[Processes]:
    tls.server_context()
    before = set(open_descriptors())
    processes = Processes()
    yield processes
    processes.close()
    assert not set(open_descriptors()) - before


@pytest.fixture
def lines(caplog: pytest.LogCaptureFixture) -> Callable[[int], list[str]]:
    """What has been logged at a level."""
    caplog.set_level(logging.INFO, "wiiiiide")
    return lambda level: [r.getMessage() for r in caplog.records if r.levelno == level]


Lines = Callable[[int], list[str]]


def is_closed(sock: socket.socket) -> bool:
    """Whether the other side has ended it, whatever it said before."""
    try:
        while sock.recv(1000):
            pass
    except BlockingIOError:
        return False
    except OSError:
        pass
    return True


def hello(to: Process, key: bytes = KEY, **changes: Any) -> Connector:
    claim = {"group": GROUP, "generation": 1, "connector": 0, "acceptor": 1, "role": "data"}
    return Connector(
        key, ConnectionClaim(**{**claim, "connector_uid": ALICE, "acceptor_uid": to.uid, **changes})
    )


def assert_a_member_gets_in(processes: Processes) -> None:
    a, b = processes.all
    before = len(b.welcomed)
    attempt = a.connect(b)
    processes.until(lambda: attempt.state != "trying" and len(b.welcomed) > before, "a member")
    assert attempt.state == "done", attempt.problem


def receive_all(processes: Processes, stream: Stream, count: int) -> bytes:
    got = bytearray()

    def whole() -> bool:
        room = bytearray(count + 1)
        put = stream.receive([room])
        got.extend(room[: max(put, 0)])
        return len(got) >= count

    processes.until(whole, f"{count} bytes")
    return bytes(got)


# -- members ----


@pytest.mark.parametrize("secure", [False, True], ids=["plain", "tls"])
def test_data_and_watch_come_in_and_the_first_bytes_behind_are_theirs(
    processes: Processes, secure: bool
) -> None:
    a, b = processes.two((secure, secure))
    a.greeting, b.greeting = b"from the connector", b"from the acceptor"
    attempts = [a.connect(b, role) for role in ("data", "watch")]
    assert [attempt.state for attempt in attempts] == ["trying", "trying"]
    processes.until(lambda: len(a.welcomed) == len(b.welcomed) == 2, "both connections")
    assert [attempt.state for attempt in attempts] == ["done", "done"]
    for process, word in ((a, b.greeting), (b, a.greeting)):
        assert {claim.role for _, claim in process.welcomed} == {"data", "watch"}
        assert {claim.connector_uid for _, claim in process.welcomed} == {ALICE}
        for stream, claim in process.welcomed:
            assert receive_all(processes, stream, len(word)) == word
            kept_alive = stream.sock.getsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE)  # type: ignore[attr-defined]
            assert bool(kept_alive) == (claim.role == "watch")
    assert a.stages == b.stages == []


def test_two_connect_to_each_other_over_ipv6(processes: Processes) -> None:
    _, b = processes.two()
    b.address, b.port = b.endpoint.listen("::1")
    assert_a_member_gets_in(processes)


def test_not_one_byte_behind_the_handshake_is_read(processes: Processes) -> None:
    _, b = processes.two()
    connector = hello(b)
    sock = processes.unauthenticated(b, connector.data_to_send())
    challenge = bytearray()

    def challenged() -> bool:
        try:
            challenge.extend(sock.recv(ANSWER_BYTES))
        except BlockingIOError:
            pass
        return len(challenge) == ANSWER_BYTES

    processes.until(challenged, "the challenge")
    connector.receive_data(bytes(challenge))
    sock.sendall(connector.data_to_send() + b"x" * 50_000)
    processes.until(lambda: bool(b.welcomed), "a welcome")
    assert receive_all(processes, b.welcomed[0][0], 50_000) == b"x" * 50_000


def test_a_member_that_comes_too_early_waits_until_its_group_is_known(
    processes: Processes,
) -> None:
    a, b = processes.two(known=False)
    attempt = a.connect(b)
    processes.until(lambda: b.stages == ["JUDGED"], "a claim to be judged")
    b.later(29)
    b.endpoint.expect(GROUP + 1, 1, OTHER_KEY)
    assert attempt.state == "trying"
    assert b.stages == ["JUDGED"]
    b.endpoint.expect(GROUP, 1, KEY)
    processes.until(lambda: bool(a.welcomed and b.welcomed), "a welcome")


def test_bytes_of_a_connection_that_waits_for_its_group_cause_no_wakeup(
    processes: Processes,
) -> None:
    _, b = processes.two(known=False)
    greeting = hello(b).data_to_send()
    sock = processes.unauthenticated(b, greeting[:10])
    processes.until(lambda: b.stages == ["TALKING"], "it is watched")
    sock.sendall(greeting[10:] + b"and so on" * 100)
    processes.until(lambda: b.stages == ["JUDGED"], "a claim to be judged")
    called: list[int] = []
    b.endpoint._advance = called.append  # type: ignore[method-assign, assignment]
    for _ in range(3):
        b.poller.poll(0.001)
    assert not called


def test_a_group_that_never_comes_to_be_is_refused_after_its_time(
    processes: Processes, lines: Lines
) -> None:
    a, b = processes.two(known=False)
    attempt = a.connect(b)
    processes.until(lambda: b.stages == ["JUDGED"], "a claim to be judged")
    b.later(31)
    assert b.stages == []
    processes.until(lambda: attempt.state == "failed", "it is told")
    assert "no member of that group" in attempt.problem
    assert f"127.0.0.1:{b.port}" in attempt.problem
    (line,) = lines(logging.WARNING)
    assert "no such group here" in line
    assert "within 30 s" in line


def test_a_peer_that_waited_for_its_group_and_hung_up_is_forgotten(
    processes: Processes, lines: Lines
) -> None:
    _, b = processes.two(known=False)
    sock = processes.unauthenticated(b, hello(b).data_to_send())
    processes.until(lambda: b.stages == ["JUDGED"], "a claim to be judged")
    sock.close()
    processes.until(lambda: b.stages == [], "it is forgotten")
    assert lines(logging.WARNING) == []
    assert len(lines(logging.INFO)) == 1


def test_an_older_generation_is_refused_and_a_newer_one_waits(processes: Processes) -> None:
    a, b = processes.two()
    b.endpoint.expect(GROUP, 5, KEY)
    old, new = a.connect(b, generation=4), a.connect(b, generation=6)
    processes.until(lambda: old.state == "failed" and b.stages == ["JUDGED"], "a refusal")
    assert "not of this generation" in old.problem
    b.endpoint.expect(GROUP, 6, KEY)
    processes.until(lambda: new.state == "done", "the newer one")


def test_a_claim_for_another_process_is_refused(processes: Processes, lines: Lines) -> None:
    a, b = processes.two()
    attempt = a.connect(b, acceptor_uid="c" * 16)
    processes.until(lambda: attempt.state == "failed", "a refusal")
    assert f"looks for process {'c' * 16}, this is {BOB}" in lines(logging.WARNING)[0]
    assert not b.welcomed


@pytest.mark.parametrize("secure", [False, True], ids=["plain", "tls"])
def test_a_peer_with_a_wrong_key_is_refused(
    processes: Processes, lines: Lines, secure: bool
) -> None:
    a, b = processes.two((secure, secure))
    attempt = a.connect(b, key=OTHER_KEY)
    processes.until(lambda: attempt.state == "failed", "a refusal")
    assert "different keys" in attempt.problem
    (line,) = lines(logging.WARNING)
    assert "a connection from 127.0.0.1:" in line
    assert "another key" in line
    assert not a.welcomed
    assert not b.welcomed


def test_an_acceptor_that_does_not_know_the_key_is_not_believed(processes: Processes) -> None:
    a, b = processes.two()
    b.endpoint.expect(GROUP, 1, OTHER_KEY)
    attempt = a.connect(b)
    processes.until(lambda: attempt.state == "failed", "a failure")
    assert not a.welcomed


def test_a_forgotten_group_has_no_pending_connection_any_more(processes: Processes) -> None:
    a, b = processes.two(known=False)
    attempt = a.connect(b)
    processes.until(lambda: b.stages == ["JUDGED"], "a claim to be judged")
    b.endpoint.forget(GROUP)
    assert b.stages == []
    processes.until(lambda: attempt.state == "failed", "it is told")
    again = a.connect(b)
    a.endpoint.forget(GROUP)
    assert again.state == "failed"
    assert "closed here" in again.problem


# -- strangers ----

HTTP = b"GET / HTTP/1.1\r\nHost: localhost\r\nAccept: everything, really\r\n\r\n"
CLIENT_HELLO = b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03" + random.Random(0).randbytes(200)


def changed(data: bytes, at: int, value: int) -> bytes:
    return data[:at] + bytes([value]) + data[at + 1 :]


REFUSED: dict[str, Callable[[Process], bytes]] = {
    "HTTP": lambda _: HTTP,
    "noise": lambda _: b"\xaa" + random.Random(1).randbytes(5000),
    "zeros": lambda _: bytes(HELLO_BYTES),
    "TLS where it is off": lambda _: CLIENT_HELLO,
    "a version of the future": lambda b: changed(changed(hello(b).data_to_send(), 8, 200), 9, 201),
    "an unknown role": lambda b: changed(hello(b).data_to_send(), 10, 77),
    "a proof of nothing": lambda b: hello(b).data_to_send() + b"WI\x03\0" + bytes(32),
    "an answer in place of a proof": lambda b: hello(b).data_to_send() + b"WI\x04\0" + bytes(32),
    "two greetings": lambda b: 2 * hello(b).data_to_send(),
    "a megabyte": lambda b: hello(b).data_to_send() + b"WI\x03\0" + bytes(1_000_000),
}


@pytest.mark.parametrize("what", REFUSED)
def test_an_unauthenticated_peer_is_closed_with_one_line_and_a_member_is_admitted(
    processes: Processes, lines: Lines, what: str
) -> None:
    _, b = processes.two()
    sock = processes.unauthenticated(b)
    sock.setblocking(True)
    if what == "a megabyte":
        sock.settimeout(0.2)  # it is not read
    try:
        sock.sendall(REFUSED[what](b))
    except TimeoutError:
        pass
    sock.setblocking(False)
    processes.until(lambda: is_closed(sock), "it is closed")
    (line,) = lines(logging.WARNING)
    assert f"127.0.0.1:{sock.getsockname()[1]} was refused: " in line
    if what == "TLS where it is off":
        assert "speaks TLS" in line
    assert not b.welcomed
    assert_a_member_gets_in(processes)


def test_half_a_greeting_and_the_end_is_news_and_no_warning(
    processes: Processes, lines: Lines
) -> None:
    _, b = processes.two()
    for says in (b"", b"WIII", hello(b).data_to_send()[:-1]):
        sock = processes.unauthenticated(b, says, ends=True)
        processes.until(lambda sock=sock: is_closed(sock), "it is closed")  # type: ignore[misc]
    assert lines(logging.WARNING) == []
    assert len(lines(logging.INFO)) == 3
    assert b.stages == []
    assert_a_member_gets_in(processes)


def test_a_reset_in_the_middle_is_closed(processes: Processes) -> None:
    _, b = processes.two()
    sock = processes.unauthenticated(b, b"WIII")
    processes.until(lambda: b.stages == ["TALKING"], "a pending connection")
    sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
    sock.close()
    processes.until(lambda: b.stages == [], "it is closed")
    assert_a_member_gets_in(processes)


@pytest.mark.parametrize("secure", [False, True], ids=["plain", "tls"])
def test_a_peer_that_sends_a_byte_now_and_then_has_ten_seconds(
    processes: Processes, lines: Lines, secure: bool
) -> None:
    _, b = processes.two((secure, secure))
    sock = processes.unauthenticated(b)
    drip = iter(CLIENT_HELLO if secure else hello(b).data_to_send())
    for _ in range(9):
        sock.send(bytes([next(drip)]))
        processes.until(lambda: b.stages in (["TLS"], ["TALKING"]), "a pending connection")
        b.later(1)
        assert b.stages
    b.later(1)
    assert b.stages == []
    processes.until(lambda: is_closed(sock), "it is closed")
    assert "within 10 s" in lines(logging.WARNING)[0]


def test_a_peer_that_greets_and_then_falls_silent_has_thirty_seconds(processes: Processes) -> None:
    _, b = processes.two()
    sock = processes.unauthenticated(b, hello(b).data_to_send())
    processes.until(lambda: b.stages == ["TALKING"], "a pending connection")
    b.later(29)
    assert b.stages == ["TALKING"]
    b.later(1)
    assert b.stages == []
    processes.until(lambda: is_closed(sock), "it is closed")


@pytest.mark.parametrize("says", [b"", b"WIIII"], ids=["silent", "half a greeting"])
def test_two_hundred_unauthenticated_peers_do_not_keep_a_member_out(
    processes: Processes, says: bytes
) -> None:
    a, b = processes.two()
    socks = [processes.unauthenticated(b, says) for _ in range(200)]
    attempt = a.connect(b)
    processes.until(lambda: attempt.state != "trying" and bool(b.welcomed), "a member")
    assert attempt.state == "done", attempt.problem
    processes.until(lambda: len(b.stages) <= acceptor.MAX_SILENT, "most are closed")
    processes.until(
        lambda: sum(map(is_closed, socks)) >= 200 - acceptor.MAX_SILENT, "they see that they are"
    )


def test_connections_with_a_greeting_are_bounded_too(
    processes: Processes, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(acceptor, "MAX_CLAIMANTS", 3)
    _, b = processes.two(known=False)
    socks = [processes.unauthenticated(b, hello(b).data_to_send()) for _ in range(10)]
    processes.until(lambda: sum(map(is_closed, socks)) == 7, "seven are closed")
    assert b.stages == ["JUDGED"] * 3
    assert not any(map(is_closed, socks[-3:]))


def test_many_unauthenticated_peers_do_not_flood_the_log(
    processes: Processes, lines: Lines
) -> None:
    _, b = processes.two()
    socks = [processes.unauthenticated(b, HTTP) for _ in range(50)]
    processes.until(lambda: all(map(is_closed, socks)), "all are closed")
    assert len(lines(logging.WARNING)) == 1
    b.later(1.1)
    first, second = lines(logging.WARNING)
    assert "more such lines" not in first
    assert "and 48 more such lines" in second


def test_without_descriptors_the_listener_rests_until_the_next_tick(
    processes: Processes, lines: Lines
) -> None:
    a, b = processes.two()
    attempt = a.connect(b)

    def without_ticks() -> bool:
        a.poller.poll(0.001)
        b.poller.poll(0.001)
        return bool(lines(logging.WARNING))

    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    gc.collect()  # what earlier tests left would make room when it goes
    free = os.dup(0)
    os.close(free)
    resource.setrlimit(resource.RLIMIT_NOFILE, (free, hard))
    try:
        wait_until(without_ticks, DEADLINE_S, "a line in the log")
        called: list[socket.socket] = []
        accept, b.endpoint._accept = b.endpoint._accept, called.append  # type: ignore[method-assign, assignment]
        for _ in range(3):
            b.poller.poll(0.001)
        assert not called, "it spins"
        b.endpoint._accept = accept  # type: ignore[method-assign]
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
    assert "too many files open" in lines(logging.WARNING)[0]
    processes.until(lambda: attempt.state == "done", "it is let in after all")


# -- TLS ----


@pytest.mark.parametrize("secure", [(True, False), (False, True)], ids=["connector", "acceptor"])
def test_tls_on_one_side_only_is_said_on_both(
    processes: Processes, lines: Lines, secure: tuple[bool, bool]
) -> None:
    a, b = processes.two(secure)
    attempt = a.connect(b)
    processes.until(lambda: attempt.state == "failed", "a failure")
    processes.until(lambda: b.stages == [], "the end of it")
    (line,) = lines(logging.WARNING)
    assert "TLS" in line
    if secure == (True, False):
        assert "Is TLS on" in attempt.problem or "is TLS on" in attempt.problem
    assert not a.welcomed
    assert not b.welcomed


@pytest.mark.parametrize("word", [HTTP, b"\x16\x03\x01\x00\x05abcde", CLIENT_HELLO[:100]])
def test_unauthenticated_peers_of_a_tls_endpoint_are_closed(
    processes: Processes, word: bytes
) -> None:
    _, b = processes.two((True, True))
    sock = processes.unauthenticated(b, word, ends=True)
    processes.until(lambda: is_closed(sock), "it is closed")
    assert_a_member_gets_in(processes)


def test_a_man_in_the_middle_of_tls_gets_no_further_than_the_proof(processes: Processes) -> None:
    a, b = processes.two((True, True))
    with socket.create_server(("127.0.0.1", 0)) as trap:
        attempt = a.connect(b, port=trap.getsockname()[1])
        processes.until(lambda: a.stages == ["TLS"], "it is in the trap")
        near, _ = trap.accept()
    far = socket.create_connection((b.address, b.port))
    own: ssl.SSLContext = tls.server_context.__wrapped__()
    ends = tls.TlsStream(near, own, server_side=True), tls.wrap(far, server_side=False)
    processes.until(lambda: bool(ends[0].shake_hands() & ends[1].shake_hands()), "both ends")

    def forwarded() -> bool:
        for source, target in (ends, ends[::-1]):
            room = bytearray(1000)
            try:
                count = source.receive([room])
                target.send([room[: max(count, 0)]])
            except OSError:
                pass
        return attempt.state != "trying"

    processes.until(forwarded, "the end of it")
    assert "proof is wrong" in attempt.problem
    assert not a.welcomed
    assert not b.welcomed
    for end in ends:
        end.close()


# -- connecting ----


def test_where_nothing_listens_the_attempt_says_so(processes: Processes) -> None:
    a, b = processes.two()
    with socket.socket() as deaf:  # it keeps the port, so that no other process gets it
        deaf.bind(("127.0.0.1", 0))
        port = deaf.getsockname()[1]
        attempt = a.connect(b, port=port)
        processes.until(lambda: attempt.state == "failed", "a failure")
    assert attempt.problem == (
        f"no connection to 127.0.0.1:{port}: Connection refused: "
        "nothing listens there. Has that process ended?"
    )


@pytest.mark.parametrize(
    ("address", "port", "problem"),
    [
        ("255.255.255.255", 80, "no route there"),
        ("fe80::1", 80, "[fe80::1]:80: Invalid argument"),
        ("localhost", 80, "in numbers"),
        ("0.0.0.0", 80, "no single interface"),
        ("127.0.0.1", 70_000, "0-65535"),
    ],
)
def test_where_no_way_leads_the_attempt_fails_at_once(
    processes: Processes, address: str, port: int, problem: str
) -> None:
    a, b = processes.two()
    attempt = a.endpoint.connect(address, port, KEY, hello(b).claim)
    assert attempt.state == "failed"
    assert problem in attempt.problem


def test_each_known_problem_has_a_hint() -> None:
    for number, hint in HINTS.items():
        assert sentence(OSError(number, os.strerror(number))) == f"{os.strerror(number)}: {hint}"
    assert sentence(OSError(errno.EPIPE, "Broken pipe")) == "Broken pipe"


def test_an_attempt_without_an_answer_ends_at_its_time(processes: Processes) -> None:
    a, b = processes.two()
    with socket.create_server(("127.0.0.1", 0), backlog=0) as deaf:
        port = deaf.getsockname()[1]
        talking = a.connect(b, port=port)  # the kernel takes it, and no process answers
        processes.until(lambda: a.stages == ["TALKING"], "it stands")
        connecting: list[ConnectAttempt] = []
        while "CONNECTING" not in a.stages or len(connecting) < 8:
            connecting.append(a.connect(b, port=port))  # the kernel takes no more
            for _ in range(3):
                a.poll()
        a.later(4.9)
        assert talking.state == connecting[-1].state == "trying"
        a.later(0.2)
    assert "the next message of the handshake has not come within 5 s" in talking.problem
    assert "the connection has not come within 5 s: nothing answers" in connecting[-1].problem
    assert a.stages == []


def test_a_claim_that_cannot_be_said_fails_the_attempt(processes: Processes) -> None:
    a, b = processes.two()
    attempt = a.connect(b, connector_uid="not hexadecimal")
    processes.until(lambda: attempt.state == "failed", "a failure")
    assert "cannot be said" in attempt.problem


# -- listening and the end ----


@pytest.mark.parametrize(
    "address", ["", "0.0.0.0", "::", "::ffff:0.0.0.0", "localhost", "224.0.0.1"]
)
def test_only_one_specific_address_is_listened_on(processes: Processes, address: str) -> None:
    a, _ = processes.two()
    with pytest.raises(UsageError, match="address"):
        a.endpoint.listen(address)


def test_an_address_of_another_machine_is_refused_in_a_sentence(processes: Processes) -> None:
    a, _ = processes.two()
    with pytest.raises(HostError, match=r"cannot listen on 192\.0\.2\.1: .*this machine"):
        a.endpoint.listen("192.0.2.1")


def test_a_closed_endpoint_leaves_nothing_open_and_no_attempt_waiting(
    processes: Processes,
) -> None:
    a, b = processes.two(known=False)
    attempt = a.connect(b)
    sock = processes.unauthenticated(b, b"WIII")
    processes.until(lambda: sorted(b.stages) == ["JUDGED", "TALKING"], "two guests")
    a.endpoint.close()
    assert "closes its endpoint" in attempt.problem
    b.endpoint.close()
    wait_until(lambda: is_closed(sock), DEADLINE_S, "it sees the end")
    with pytest.raises(ConnectionRefusedError):
        processes.unauthenticated(b)


def test_a_forked_child_closes_its_copies_and_the_parent_goes_on(processes: Processes) -> None:
    a, b = processes.two((True, True), known=False)
    attempt = a.connect(b)
    processes.until(lambda: b.stages == ["JUDGED"], "a claim to be judged")
    pid = os.fork()
    if pid == 0:
        gc.disable()  # what earlier tests left is not to go in between
        before = len(open_descriptors())
        a.endpoint.abandon()
        b.endpoint.abandon()
        # Two listening sockets, and both ends of one connection.
        os._exit(before - len(open_descriptors()))
    assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 4
    b.endpoint.expect(GROUP, 1, KEY)
    processes.until(lambda: attempt.state != "trying", "the end of the handshake")
    assert attempt.state == "done"


def test_a_welcome_may_close_the_endpoint(processes: Processes) -> None:
    a, b = processes.two(known=False)
    attempts = [a.connect(b) for _ in range(5)]
    processes.until(lambda: b.stages == ["JUDGED"] * 5, "claims to be judged")

    def welcome(stream: Stream, _: ConnectionClaim) -> None:
        stream.close()
        b.endpoint.close()

    b.endpoint._welcome = welcome
    b.endpoint.expect(GROUP, 1, KEY)
    processes.until(lambda: all(one.state != "trying" for one in attempts), "an end for all")
    assert b.stages == []


# -- anything at all ----

WORDS = st.one_of(
    st.binary(max_size=200),
    st.sampled_from([HTTP, CLIENT_HELLO, b"WIIIIIDE", b"WI\x03\0" + bytes(32)]),
    st.tuples(st.integers(0, HELLO_BYTES - 1), st.integers(0, 255)),  # HELLO with a byte changed
    st.integers(0, HELLO_BYTES),  # the beginning of HELLO
)


def spoken(word: Any, to: Process) -> bytes:
    greeting = hello(to).data_to_send()
    match word:
        case bytes():
            return word
        case (int(at), int(value)):
            return changed(greeting, at, value)
        case _:
            return greeting[:word]


@pytest.mark.parametrize("secure", [False, True], ids=["plain", "tls"])
@settings(
    max_examples=examples(30),
    deadline=None,
    suppress_health_check=[HealthCheck.function_scoped_fixture],
)
@given(words=st.lists(st.lists(WORDS, max_size=3), min_size=1, max_size=4), ends=st.booleans())
def test_whatever_unauthenticated_peers_send_only_members_are_admitted(
    processes: Processes, secure: bool, words: list[list[Any]], ends: bool
) -> None:
    if not processes.all:
        processes.two((secure, secure))
    b = processes.all[1]
    came_in = len(b.welcomed)
    for speech in words:
        processes.unauthenticated(b, b"".join(spoken(word, b) for word in speech), ends)
    processes.until(lambda: all(stage == "JUDGED" or not ends for stage in b.stages), "they ended")
    assert len(b.welcomed) == came_in
    assert_a_member_gets_in(processes)
    while processes.socks:
        processes.socks.pop().close()
    for process in processes.all:
        process.later(31)
        while process.welcomed:
            process.welcomed.pop()[0].close()


@settings(
    max_examples=examples(30),
    deadline=None,
    suppress_health_check=[HealthCheck.function_scoped_fixture],
)
@given(says=st.one_of(st.binary(max_size=100), st.binary(max_size=80).map(b"WI\x02\x01".__add__)))
def test_whatever_a_false_acceptor_answers_it_is_not_believed(
    processes: Processes, says: bytes
) -> None:
    if not processes.all:
        processes.two()
    a, b = processes.all
    with socket.create_server(("127.0.0.1", 0)) as false:
        attempt = a.connect(b, port=false.getsockname()[1])
        sock, _ = false.accept()
        sock.sendall(says)
        sock.shutdown(socket.SHUT_WR)
        processes.until(lambda: attempt.state != "trying", "the end of it")
        sock.close()
    assert attempt.state == "failed"
    assert attempt.problem
    assert not a.welcomed
