"""Strangers at the port of a running job: closed, one line in the log, no memory taken, and the
exchange goes on as if nothing had been.

The port is a rank's own, found in the kernel's tables as anyone on the machine could. What is said
there ranges from HTTP to a greeting with every name right. Nobody has the group's key, but for the
one whose words are recorded and said again; and, at the end, a member that has gone mad.
"""

from __future__ import annotations

import os
import random
import socket
import struct
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import psutil
import pytest
import torch
import torch.distributed as dist

from tests.faults.test_late import Lines
from tests.kit.conditions import wait_until
from tests.kit.faults import failure_of, make_group, together
from tests.kit.leaks import open_descriptors
from tests.kit.networks import connections_of
from tests.kit.ranks import Outcome, Rank, note, run_ranks, watch_ranks
from wiiiiided.backend.wire.challenge import ANSWER_BYTES, KEY_BYTES, AuthMessage
from wiiiiided.backend.wire.handshake import ConnectionClaim, Connector, RefusalReason
from wiiiiided.backend.wire.header import Header, pack
from wiiiiided.backend.wire.local_frame import FrameKind

DEADLINE_S = 10.0
PATIENCE_S = 30.0
MIB = 2**20
ROOM = 8 * MIB  # what a rank's memory may grow by meanwhile: the allocator's own ups and downs


@dataclass(frozen=True)
class Door:
    """What an attacker may know of rank 0: the Store tells every client all but the key."""

    port: int
    claim: ConnectionClaim  # of rank 1, which has its connections already
    key: bytes


def sockets() -> set[str]:
    return {d for d in open_descriptors() if "socket" in d}


def door_of(me: Rank) -> Door:
    """Where this rank listens, and for which groups."""
    face: Any = dist.group.WORLD
    group = face.engine_group
    membership, mesh = group.membership, group.process.mesh
    (listener,) = [one for one in connections_of(os.getpid()) if not one.theirs]
    peer = group.links[1 - me.rank].peer
    claim = ConnectionClaim(
        membership.nonce, membership.generation, 1 - me.rank, me.rank,
        peer.uid, group.process.card.uid, "data",
    )  # fmt: skip
    _, key = mesh.endpoint._groups[membership.nonce]
    return Door(listener.our_port, claim, key)


def exchange_until_told(me: Rank) -> dict[str, Any]:
    """Small and large all_reduces until told to end; what it cost."""
    lines, ends, count, stop = Lines(), Path(me.folder, "end"), 0, torch.zeros(1)
    for _ in range(20):
        dist.all_reduce(torch.ones(100_000))
    before, memory = sockets(), psutil.Process().memory_info().rss
    note(["door", door_of(me)])
    note(["end", str(ends)])
    while not stop[0]:
        count += 1
        x = torch.full((8 if count % 2 else 100_000,), float(count))
        dist.all_reduce(x)
        assert x[0] == x[-1] == me.size * count
        stop = torch.tensor([float(ends.exists())])
        dist.all_reduce(stop, dist.ReduceOp.MAX)
    grown = psutil.Process().memory_info().rss - memory
    left = sockets() - before
    return {"count": count, "lines": lines.said, "grown": grown, "sockets": len(left)}


def connect(port: int) -> socket.socket:
    sock = socket.create_connection(("127.0.0.1", port), timeout=PATIENCE_S)
    sock.settimeout(PATIENCE_S)
    return sock


def heard(sock: socket.socket) -> bytes:
    """What an unauthenticated peer is sent until its connection is closed."""
    data = b""
    try:
        while more := sock.recv(4096):
            data += more
    except ConnectionResetError:
        pass
    return data


def say(sock: socket.socket, words: bytes) -> None:
    try:
        sock.sendall(words)
    except (ConnectionResetError, BrokenPipeError):
        pass  # it has heard enough


Attack = Callable[[Door], list[bytes]]


def saying(*words: bytes) -> Attack:
    """Each in a connection of its own; what was answered before the end."""

    def attack(door: Door) -> list[bytes]:
        answers = []
        for word in words:
            with connect(door.port) as sock:
                say(sock, word)
                answers.append(heard(sock))
        return answers

    return attack


def hello(door: Door, key: bytes, **changes: Any) -> Connector:
    return Connector(key, ConnectionClaim(**{**door.claim.__dict__, **changes}))


def shake(sock: socket.socket, hands: Connector) -> bytes:
    """Our part of a handshake; all that we said."""
    said = b""
    while not hands.done:
        out = hands.data_to_send()
        said += out
        sock.sendall(out)
        data = sock.recv(hands.wanted)
        if not data:
            return said
        hands.receive_data(data)
    return said + hands.data_to_send()


def with_a_wrong_key(door: Door) -> list[bytes]:
    with connect(door.port) as sock:
        hands = hello(door, b"x" * KEY_BYTES)
        sock.sendall(hands.data_to_send())
        hands.receive_data(sock.recv(ANSWER_BYTES, socket.MSG_WAITALL))
        sock.sendall(hands.data_to_send())
        return [heard(sock)]


def for_somebody_else(door: Door) -> list[bytes]:
    """Greetings with one name wrong each: the process, the generation, an unknown group."""
    answers = []
    for change in ({"acceptor_uid": "0" * 16}, {"generation": 0}):
        with connect(door.port) as sock:
            sock.sendall(hello(door, door.key, **change).data_to_send())
            answers.append(heard(sock))
    return answers


def recorded_and_said_again(door: Door) -> list[bytes]:
    """A true handshake, in full; then the same bytes again, with frames behind them."""
    with connect(door.port) as sock:
        said = shake(sock, hello(door, door.key))
        assert heard(sock) == b"", "a second link to a rank that has one"
    with connect(door.port) as sock:
        say(sock, said + b"WI\x01\x10" + bytes(60))
        answer = heard(sock)
    return [answer[ANSWER_BYTES:]]  # the first is a challenge, which any peer may have


HELLO = b"WIIIIIDE\x01\x01\x01\x00"
QUIET: dict[str, Attack] = {
    "HTTP": saying(b"GET / HTTP/1.1\r\nHost: localhost\r\nAccept: everything, really\r\n\r\n"),
    "TLS": saying(bytes.fromhex("16030102000100") + bytes(512)),
    "noise": saying(*(b"\xaa" + random.Random(seed).randbytes(5000) for seed in range(3))),
    "much of it": saying(b"\x01" * (4 * MIB), b"WIIIIIDX" * 100_000),
    "a frame at once": saying(struct.pack("<HBB60s", 0x4957, 1, 16, b"\xff" * 60)),
    "a role there is not": saying(HELLO[:10] + b"\x07" + bytes(69)),
}


class Stranger:
    """Attacks rank 0 when it runs, and lets the ranks end."""

    def __init__(self, attack: Callable[[Door], Any]) -> None:
        self.attack = attack
        self.answers: Any = None
        self.done = False
        self.took_s = 0.0

    def __call__(self, outcomes: list[Outcome], elapsed_s: float) -> None:
        told: dict[str, Any] = dict(what for _, what in outcomes[0].notes if isinstance(what, list))
        if self.done or "end" not in told:
            return
        self.done = True
        began = time.monotonic()
        try:
            self.answers = self.attack(told["door"])
        finally:
            self.took_s = time.monotonic() - began
            Path(told["end"]).touch()

    def attack_two_hosts(self, **env: str) -> dict[str, Any]:
        """What rank 0 reports, once both have ended well."""
        outcomes = watch_ranks(exchange_until_told, "ab", during=self, timeout_s=60.0, env=env)
        for outcome in outcomes:
            assert outcome.exit_code == 0, outcome.trace or outcome.error
            assert not outcome.error, outcome.trace
        told: dict[str, Any] = outcomes[0].value
        assert told["grown"] < ROOM, told
        assert len(told["lines"]) <= 2 + self.took_s, "a line for each stranger"
        assert outcomes[1].value["lines"] == []
        return told


def check_refused(told: dict[str, Any]) -> None:
    assert told["sockets"] == 0
    assert told["lines"], "nothing in the log"
    for line in told["lines"]:
        assert "a connection from 127.0.0.1:" in line, line
        assert "was refused" in line, line


@pytest.mark.parametrize("what", list(QUIET))
def test_a_peer_of_another_protocol_is_closed_without_an_answer(what: str) -> None:
    stranger = Stranger(QUIET[what])
    check_refused(stranger.attack_two_hosts())
    for answer in stranger.answers:
        assert answer in (b"", refusal(RefusalReason.MALFORMED)), answer


def refusal(reason: RefusalReason) -> bytes:
    return struct.pack("<2sBBBB30s", b"WI", AuthMessage.REFUSAL, reason, 1, 1, bytes(30))


def test_a_greeting_that_is_right_with_a_key_that_is_not_is_refused() -> None:
    stranger = Stranger(with_a_wrong_key)
    check_refused(stranger.attack_two_hosts())
    assert stranger.answers == [refusal(RefusalReason.PROOF)]


def test_a_greeting_for_another_process_is_refused() -> None:
    stranger = Stranger(for_somebody_else)
    check_refused(stranger.attack_two_hosts())
    assert stranger.answers == [refusal(RefusalReason.UNKNOWN)] * 2


def test_a_handshake_that_was_recorded_does_not_work_again() -> None:
    stranger = Stranger(recorded_and_said_again)
    check_refused(stranger.attack_two_hosts())
    assert stranger.answers == [refusal(RefusalReason.PROOF)]


@dataclass
class Crowd:
    """So many connections at once, which are kept."""

    count: int
    word: Callable[[Door], bytes]
    socks: list[socket.socket] = field(default_factory=list)

    def __call__(self, door: Door) -> int:
        self.socks = [connect(door.port) for _ in range(self.count)]
        for sock in self.socks:
            say(sock, self.word(door))

        def few() -> bool:
            return len(rank_sockets(door.port)) <= 70

        wait_until(few, PATIENCE_S, "the oldest have gone")
        return len(rank_sockets(door.port))

    def leave(self) -> None:
        for sock in self.socks:
            sock.close()


def rank_sockets(port: int) -> list[Any]:
    """The connections to a port that its owner has not closed."""
    return [
        one
        for one in psutil.net_connections("tcp4")
        if one.laddr and one.laddr[1] == port and one.status == psutil.CONN_ESTABLISHED
    ]


@pytest.mark.parametrize(
    "word", [lambda _: b"", lambda _: HELLO], ids=["silent", "half a greeting"]
)
def test_two_hundred_connections_at_once_harm_no_rank(word: Callable[[Door], bytes]) -> None:
    crowd = Crowd(200, word)
    stranger = Stranger(crowd)
    try:
        told = stranger.attack_two_hosts()
    finally:
        crowd.leave()
    assert told["sockets"] <= 64
    assert told["lines"]


def test_claims_that_wait_for_a_group_that_never_comes_are_bounded() -> None:
    """Greetings that name this very process, and a group it will never be in."""

    def crowd(door: Door) -> int:
        socks = []
        for number in range(700):
            socks.append(connect(door.port))
            socks[-1].sendall(hello(door, door.key, group=number).data_to_send())
        wait_until(lambda: len(rank_sockets(door.port)) <= 520, PATIENCE_S, "the oldest have gone")
        for sock in socks:
            sock.close()
        return len(socks)

    told = Stranger(crowd).attack_two_hosts()
    assert "too many wait to be let in" in " ".join(told["lines"])


@pytest.mark.parametrize("what", ["HTTP", "noise", "a frame at once"])
def test_unauthenticated_peers_are_closed_with_tls_as_well(what: str) -> None:
    stranger = Stranger(QUIET[what])
    told = stranger.attack_two_hosts(WIIIIIDE_TLS="on")
    assert told["sockets"] == 0
    assert told["lines"]


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
        assert failure.took_s < 5 * DEADLINE_S


def speak_nonsense(me: Rank, what: str) -> Any:
    """Rank 2, which the others trust, writes bytes that are no frame between its frames."""
    dist.all_reduce(torch.ones(100_000))
    failure = failure_of(dist.barrier)  # rank 2 may be through it before the others are
    if me.rank == 2:
        face: Any = dist.group.WORLD
        group = face.engine_group
        m = group.membership
        nonsense = {
            "noise": b"\xaa" * 200,
            "another generation": pack(
                Header(FrameKind.LEAVE, 0, 0, 0, m.nonce, m.generation + 1, 2, 0, 0, 0, 0, 0, 0)
            ),
            "another's name": pack(
                Header(FrameKind.LEAVE, 0, 0, 0, m.nonce, m.generation, 1, 0, 0, 0, 0, 0, 0)
            ),
            "a piece of four gigabytes": struct.pack("<HBB56sI", 0x4957, 1, 16, b"\xff" * 56, 0),
            "an operation far ahead": pack(
                Header(FrameKind.OPEN, 0, 0, 0, m.nonce, m.generation, 2, 99_999, 0, 0, 256, 256, 0)
            )
            + bytes(256),
        }[what]
        sock = group.links[0].data.stream.sock
        group.loop.call(lambda: sock.send(nonsense) and None)
    failure = failure or failure_of(dist.all_reduce, torch.ones(LARGE))
    return failure, failure_of(dist.barrier)


LARGE = 1_000_000
NONSENSE = (
    *("noise", "another generation", "another's name"),
    *("a piece of four gigabytes", "an operation far ahead"),
)


@pytest.mark.parametrize("what", NONSENSE)
def test_a_broken_frame_from_a_member_fails_the_group_with_a_sentence_on_every_host(
    what: str,
) -> None:
    outcomes = watch_ranks(speak_nonsense, "aab", what)
    for outcome in outcomes:
        assert outcome.exit_code == 0, outcome.trace or outcome.error
        assert not outcome.error, outcome.trace
        failure, later = outcome.value
        assert failure is not None, f"rank {outcome.rank} noticed nothing"
        assert later is not None
        assert failure.took_s < DEADLINE_S
        assert f"the link to pid {outcomes[2].pid} on " in failure.text, failure


def flood(me: Rank) -> Any:
    """Rank 2 sends rank 0 more than it may before anything of it is received."""
    dist.barrier()
    together(me)
    if me.rank == 2:
        face: Any = dist.group.WORLD
        face.engine_group.mailbox._window[0] = 1 << 40  # it gives itself leave
        works = [dist.isend(torch.ones(4000), 0) for _ in range(80)]
        del works
    return failure_of(dist.all_reduce, torch.ones(LARGE))


def test_a_member_that_sends_more_than_it_may_is_stopped_and_named() -> None:
    for outcome in watch_ranks(flood, "aab"):
        assert outcome.exit_code == 0, outcome.trace or outcome.error
        assert outcome.value is not None, f"rank {outcome.rank} noticed nothing"
        assert "rank 2 sent" in outcome.value.text, outcome.value
        assert "were not received yet" in outcome.value.text
