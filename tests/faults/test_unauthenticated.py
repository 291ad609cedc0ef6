"""Peers that are no member, at the sockets of a running job: refused, and the exchange goes on.

On one host that is a rank's abstract unix socket, between hosts its TCP port; both are found in the
kernel's tables, as any process of the machine could. What is said there ranges from HTTP to a
greeting with every name right. No attacker has the group's key, but for the one that repeats the
recorded bytes of a member.
"""

from __future__ import annotations

import json
import os
import random
import re
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
from tests.kit.faults import make_group
from tests.kit.leaks import open_descriptors
from tests.kit.networks import connections_of
from tests.kit.ranks import Outcome, Rank, note, run_ranks, watch_ranks
from wiiiiided.backend.engine import process as processes
from wiiiiided.backend.engine.join import join
from wiiiiided.backend.wire.challenge import ANSWER_BYTES, KEY_BYTES, AuthMessage
from wiiiiided.backend.wire.handshake import ConnectionClaim, Connector, RefusalReason
from wiiiiided.backend.wire.local_frame import Frame, FrameKind

PATIENCE_S = 30.0
MIB = 2**20
ROOM = 8 * MIB  # what a rank's memory may grow by meanwhile: the allocator's own ups and downs


# -- the rank that is attacked ----


@dataclass(frozen=True)
class UnixTarget:
    """Where rank 0 of one host listens."""

    address: str

    def connect(self) -> socket.socket:
        sock = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        sock.settimeout(PATIENCE_S)

        def accepted() -> bool:
            try:
                sock.connect("\0" + self.address)
            except BlockingIOError:
                return False  # many are waiting to be accepted
            return True

        wait_until(accepted, PATIENCE_S, "room for one more connection")
        return sock


@dataclass(frozen=True)
class TcpTarget:
    """What an attacker may know of rank 0: the Store tells every client all but the key."""

    port: int
    claim: ConnectionClaim  # of rank 1, which has its connections already
    key: bytes

    def connect(self) -> socket.socket:
        sock = socket.create_connection(("127.0.0.1", self.port), timeout=PATIENCE_S)
        sock.settimeout(PATIENCE_S)
        return sock


def unix_target(me: Rank) -> UnixTarget:
    return UnixTarget(address_of(os.getpid()))


def tcp_target(me: Rank) -> TcpTarget:
    """Where this rank listens, and for which group."""
    process_group: Any = dist.group.WORLD
    group = process_group.engine_group
    membership, mesh = group.membership, group.process.mesh
    (listener,) = [one for one in connections_of(os.getpid()) if not one.theirs]
    peer = group.links[1 - me.rank].peer
    claim = ConnectionClaim(
        membership.nonce, membership.generation, 1 - me.rank, me.rank,
        peer.uid, group.process.card.uid, "data",
    )  # fmt: skip
    _, key = mesh.endpoint._groups[membership.nonce]
    return TcpTarget(listener.our_port, claim, key)


def address_of(pid: int) -> str:
    """The abstract socket a process of ours listens on."""
    inodes = {m[1] for d in open_descriptors(pid) if (m := re.search(r"socket:\[(\d+)\]", d))}
    for line in Path("/proc/net/unix").read_text().splitlines():
        fields = line.split()
        if len(fields) == 8 and fields[7].startswith("@wiiiiide-") and fields[6] in inodes:
            return fields[7][1:]
    raise AssertionError("no listening socket")


def sockets() -> set[str]:
    return {d for d in open_descriptors() if "socket" in d}


def exchange_until_told(
    me: Rank, target: Callable[[Rank], Any], waits: bool = False
) -> dict[str, Any]:
    """Small and large all_reduces, with waits in which links are looked at, until told to end; what
    that cost, and with `waits` the processor time of a second of waiting."""
    lines, ends, count, stop = Lines(), Path(me.folder, "end"), 0, torch.zeros(1)
    for _ in range(20):
        dist.all_reduce(torch.ones(100_000))
    before, memory = sockets(), psutil.Process().memory_info().rss
    note(["target", target(me)])
    note(["end", str(ends)])
    while not stop[0]:
        count += 1
        x = torch.full((8 if count % 2 else 100_000,), float(count))
        if me.rank == 1:
            time.sleep(0.002)  # rank 0 sleeps meanwhile, and looks at its links
        dist.all_reduce(x)
        assert x[0] == x[-1] == me.size * count
        stop = torch.tensor([float(ends.exists())])
        dist.all_reduce(stop, dist.ReduceOp.MAX)
    grown = psutil.Process().memory_info().rss - memory
    cpu = time.process_time()
    if waits:
        if me.rank == 1:
            time.sleep(1.0)
        dist.barrier()
    return {
        "count": count,
        "cpu_s": time.process_time() - cpu,
        "grown": grown,
        "lines": lines.said,
        "sockets": len(sockets() - before),
    }


# -- attacks ----

Attack = Callable[[Any], Any]


def say(sock: socket.socket, words: bytes) -> None:
    try:
        sock.sendall(words)
    except (ConnectionResetError, BrokenPipeError):
        pass  # it has been closed already


def heard(sock: socket.socket) -> bytes:
    """What an unauthenticated peer is sent until its connection is closed."""
    data = b""
    try:
        while more := sock.recv(4096):
            data += more
    except ConnectionResetError:
        pass
    return data


def saying(*words: bytes) -> Attack:
    """Each in a connection of its own; what was answered before the end."""

    def attack(target: UnixTarget | TcpTarget) -> list[bytes]:
        answers = []
        for word in words:
            with target.connect() as sock:
                say(sock, word)
                answers.append(heard(sock))
        return answers

    return attack


@dataclass
class KeptConnections:
    """A connection for each word, all at once: it says it and keeps silent, or hangs up."""

    words: list[bytes]
    hangs_up: bool = False
    most: int = 0  # wait until the rank has no more TCP connections than this
    socks: list[socket.socket] = field(default_factory=list)

    def __call__(self, target: UnixTarget | TcpTarget) -> None:
        for word in self.words:
            self.socks.append(target.connect())
            say(self.socks[-1], word)
            if self.hangs_up:
                self.socks[-1].close()
        if self.most and isinstance(target, TcpTarget):
            port = target.port

            def few() -> bool:
                return len(rank_sockets(port)) <= self.most

            wait_until(few, PATIENCE_S, "the oldest have gone")

    def close(self) -> None:
        for sock in self.socks:
            sock.close()


def rank_sockets(port: int) -> list[Any]:
    """The connections to a port that its owner has not closed."""
    return [
        one
        for one in psutil.net_connections("tcp4")
        if one.laddr and one.laddr[1] == port and one.status == psutil.CONN_ESTABLISHED
    ]


class Attacker:
    """Attacks rank 0 as soon as it runs, and lets the ranks end."""

    def __init__(self, attack: Attack) -> None:
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
            self.answers = self.attack(told["target"])
        finally:
            self.took_s = time.monotonic() - began
            Path(told["end"]).touch()

    def one_host(self, waits: bool = False) -> dict[str, Any]:
        """What rank 0 of two ranks on one host reports, once both have ended well."""
        return self._run(2, unix_target, waits)[0].value

    def two_hosts(self, **env: str) -> dict[str, Any]:
        """The same between two hosts: one line a second in the log at most, and no memory."""
        outcomes = self._run("ab", tcp_target, False, timeout_s=60.0, env=env)
        told: dict[str, Any] = outcomes[0].value
        assert told["grown"] < ROOM, told
        assert len(told["lines"]) <= 2 + self.took_s, "a line for each connection"
        assert outcomes[1].value["lines"] == []
        return told

    def _run(self, hosts: int | str, *args: Any, **options: Any) -> list[Outcome]:
        try:
            outcomes = watch_ranks(exchange_until_told, hosts, *args, during=self, **options)
        finally:
            if isinstance(self.attack, KeptConnections):
                self.attack.close()
        for outcome in outcomes:
            assert outcome.exit_code == 0, outcome.trace or outcome.error
            assert not outcome.error, outcome.trace
        return outcomes


# -- on one host ----


def card(**changes: Any) -> bytes:
    usual = {"uid": "0" * 16, "token": "f" * 32, "pid": 1, "host": "x", "boot": "x", "network": "x"}
    return json.dumps({**usual, **changes}).encode()


def unix_hello(payload: bytes) -> bytes:
    return Frame(FrameKind.HELLO, payload=payload).header() + payload


UNIX_REFUSED: dict[str, Attack] = {
    "garbage": saying(b"GET / HTTP/1.1\r\nHost: localhost\r\nAccept: everything, really\r\n\r\n"),
    "noise": saying(*(b"\xaa" + random.Random(seed).randbytes(5000) for seed in range(3))),
    "a wrong token": saying(unix_hello(card())),
    "a token of non-ASCII letters": saying(unix_hello(card(token="ü" * 32))),
    "a token that is a number": saying(unix_hello(card(token=5))),
    "a card that is no card": saying(
        unix_hello(b"[]"), unix_hello(b"{}"), unix_hello(b"\xff\xfe"), unix_hello(b"5")
    ),
    "a card of brackets": saying(unix_hello(b"[" * 60_000)),
    "another frame first": saying(
        *(Frame(kind).header() for kind in FrameKind if kind is not FrameKind.HELLO)
    ),
    "the beginning of another frame": saying(Frame(FrameKind.EAGER, payload=b"x" * 9).header()),
    "a long word": saying(b"\x01" * 300_000),
}


@pytest.mark.parametrize("what", list(UNIX_REFUSED))
def test_an_unauthenticated_peer_is_closed_and_the_exchange_goes_on(what: str) -> None:
    attacker = Attacker(UNIX_REFUSED[what])
    assert attacker.one_host()["sockets"] == 0
    assert set(attacker.answers) == {b""}


HALF = unix_hello(card())[:60]


def test_half_a_greeting_and_silence_harm_no_rank() -> None:
    told = Attacker(KeptConnections([HALF, HALF[:10], b""])).one_host(waits=True)
    # Rank 0 waited a second for rank 1 with half a frame unread: asleep, not spinning.
    assert told["cpu_s"] < 0.2


def test_a_peer_that_hangs_up_in_the_middle_of_a_greeting_is_forgotten() -> None:
    attack = KeptConnections([HALF, HALF[:10], b""], hangs_up=True)
    told = Attacker(attack).one_host(waits=True)
    assert told["sockets"] == 0
    assert told["cpu_s"] < 0.2


def test_two_hundred_unauthenticated_peers_harm_no_rank() -> None:
    assert Attacker(KeptConnections([b"x"] * 200)).one_host(waits=True)["sockets"] <= 100


def join_past_silent_connections(me: Rank) -> int:
    """Ranks 0 and 1 run; silent connections fill their queues; rank 2 joins them in a new group."""
    flooded = Path(me.folder, "flooded")
    token_hex = processes.secrets.token_hex  # the smallest uid connects: rank 2
    processes.secrets.token_hex = lambda n: "780"[me.rank] + token_hex(n)[1:]
    socks: list[socket.socket] = []
    if me.rank < 2:
        make_group(Rank(me.rank, 2, me.folder), PATIENCE_S, "store of two")
        names: list[Any] = [None, None]
        dist.all_gather_object(names, address_of(os.getpid()))
        for other in (0, 1):  # a rank that waits for the other accepts connections meanwhile
            if me.rank == other:
                socks += [UnixTarget(names[1 - other]).connect() for _ in range(100)]
                time.sleep(0.1)
            dist.barrier()
        flooded.touch()
    wait_until(flooded.exists, PATIENCE_S, "both queues are full")
    group = join(dist.FileStore(f"{me.folder}/store of three", 3), me.rank, 3, PATIENCE_S, "three")
    size = group.size
    group.loop.call(group.close)
    processes.leave(group.process)
    for sock in socks:
        sock.close()
    return size


def test_silent_connections_do_not_keep_a_member_out() -> None:
    assert run_ranks(join_past_silent_connections, 3, backend=None, timeout_s=100.0) == [3, 3, 3]


# -- between hosts ----


def hello(target: TcpTarget, key: bytes, **changes: Any) -> Connector:
    return Connector(key, ConnectionClaim(**{**target.claim.__dict__, **changes}))


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


def with_a_wrong_key(target: TcpTarget) -> list[bytes]:
    with target.connect() as sock:
        hands = hello(target, b"x" * KEY_BYTES)
        sock.sendall(hands.data_to_send())
        hands.receive_data(sock.recv(ANSWER_BYTES, socket.MSG_WAITALL))
        sock.sendall(hands.data_to_send())
        return [heard(sock)]


def for_another_process(target: TcpTarget) -> list[bytes]:
    """Greetings with one name wrong each: the process, the generation, an unknown group."""
    answers = []
    for change in ({"acceptor_uid": "0" * 16}, {"generation": 0}):
        with target.connect() as sock:
            sock.sendall(hello(target, target.key, **change).data_to_send())
            answers.append(heard(sock))
    return answers


def recorded_and_said_again(target: TcpTarget) -> list[bytes]:
    """A true handshake, in full; then the same bytes again, with frames behind them."""
    with target.connect() as sock:
        said = shake(sock, hello(target, target.key))
        assert heard(sock) == b"", "a second link to a rank that has one"
    with target.connect() as sock:
        say(sock, said + b"WI\x01\x10" + bytes(60))
        answer = heard(sock)
    return [answer[ANSWER_BYTES:]]  # the first is a challenge, which any peer may have


HELLO = b"WIIIIIDE\x01\x01\x01\x00"
TCP_REFUSED: dict[str, Attack] = {
    "HTTP": saying(b"GET / HTTP/1.1\r\nHost: localhost\r\nAccept: everything, really\r\n\r\n"),
    "TLS": saying(bytes.fromhex("16030102000100") + bytes(512)),
    "noise": saying(*(b"\xaa" + random.Random(seed).randbytes(5000) for seed in range(3))),
    "much of it": saying(b"\x01" * (4 * MIB), b"WIIIIIDX" * 100_000),
    "a frame at once": saying(struct.pack("<HBB60s", 0x4957, 1, 16, b"\xff" * 60)),
    "a role there is not": saying(HELLO[:10] + b"\x07" + bytes(69)),
}


def check_refused(told: dict[str, Any]) -> None:
    assert told["sockets"] == 0
    assert told["lines"], "nothing in the log"
    for line in told["lines"]:
        assert "a connection from 127.0.0.1:" in line, line
        assert "was refused" in line, line


@pytest.mark.parametrize("what", list(TCP_REFUSED))
def test_a_peer_of_another_protocol_is_closed_without_an_answer(what: str) -> None:
    attacker = Attacker(TCP_REFUSED[what])
    check_refused(attacker.two_hosts())
    for answer in attacker.answers:
        assert answer in (b"", refusal(RefusalReason.MALFORMED)), answer


def refusal(reason: RefusalReason) -> bytes:
    return struct.pack("<2sBBBB30s", b"WI", AuthMessage.REFUSAL, reason, 1, 1, bytes(30))


def test_a_greeting_that_is_right_with_a_key_that_is_not_is_refused() -> None:
    attacker = Attacker(with_a_wrong_key)
    check_refused(attacker.two_hosts())
    assert attacker.answers == [refusal(RefusalReason.PROOF)]


def test_a_greeting_for_another_process_is_refused() -> None:
    attacker = Attacker(for_another_process)
    check_refused(attacker.two_hosts())
    assert attacker.answers == [refusal(RefusalReason.UNKNOWN)] * 2


def test_a_handshake_that_was_recorded_does_not_work_again() -> None:
    attacker = Attacker(recorded_and_said_again)
    check_refused(attacker.two_hosts())
    assert attacker.answers == [refusal(RefusalReason.PROOF)]


@pytest.mark.parametrize("word", [b"", HELLO], ids=["silent", "half a greeting"])
def test_two_hundred_connections_at_once_harm_no_rank(word: bytes) -> None:
    told = Attacker(KeptConnections([word] * 200, most=70)).two_hosts()
    assert told["sockets"] <= 64
    assert told["lines"]


def test_claims_that_wait_for_a_group_that_never_comes_are_bounded() -> None:
    """Greetings that name this very process, and a group it will never be in."""

    def crowd(target: TcpTarget) -> None:
        words = [hello(target, target.key, group=number).data_to_send() for number in range(700)]
        kept = KeptConnections(words, most=520)
        kept(target)
        kept.close()

    told = Attacker(crowd).two_hosts()
    assert "too many wait to be let in" in " ".join(told["lines"])


@pytest.mark.parametrize("what", ["HTTP", "noise", "a frame at once"])
def test_unauthenticated_peers_are_closed_with_tls_as_well(what: str) -> None:
    told = Attacker(TCP_REFUSED[what]).two_hosts(WIIIIIDE_TLS="on")
    assert told["sockets"] == 0
    assert told["lines"]
