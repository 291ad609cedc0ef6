"""Connections from processes that are no member: refused, and the exchange goes on unharmed."""

from __future__ import annotations

import json
import os
import random
import re
import socket
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed as dist

from tests.kit.conditions import wait_until
from tests.kit.faults import make_group
from tests.kit.leaks import open_descriptors
from tests.kit.ranks import Outcome, Rank, note, run_ranks, watch_ranks
from wiiiiided.backend.engine import process as processes
from wiiiiided.backend.engine.join import join
from wiiiiided.backend.wire.local_frame import Frame, FrameKind

PATIENCE_S = 30.0
Attack = Callable[[str], list[socket.socket]]


def card(**changes: Any) -> bytes:
    usual = {"uid": "0" * 16, "token": "f" * 32, "pid": 1, "host": "x", "boot": "x", "network": "x"}
    return json.dumps({**usual, **changes}).encode()


def connect(address: str) -> socket.socket:
    sock = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    sock.settimeout(PATIENCE_S)

    def accepted() -> bool:
        try:
            sock.connect("\0" + address)
        except BlockingIOError:
            return False  # many are waiting to be let in
        return True

    wait_until(accepted, PATIENCE_S, "room for one more connection")
    return sock


def say(*words: bytes, ends: bool = False) -> Attack:
    """Connect once for each, say it, and keep silent (or hang up)."""

    def attack(address: str) -> list[socket.socket]:
        socks = []
        for word in words:
            sock = connect(address)
            try:
                sock.sendall(word)
            except OSError:
                pass  # it has seen enough of it already
            if ends:
                sock.close()
            else:
                socks.append(sock)
        return socks

    return attack


def hello(payload: bytes) -> bytes:
    return Frame(FrameKind.HELLO, payload=payload).header() + payload


REFUSED: dict[str, Attack] = {
    "garbage": say(b"GET / HTTP/1.1\r\nHost: localhost\r\nAccept: everything, really\r\n\r\n"),
    "noise": say(*(b"\xaa" + random.Random(seed).randbytes(5000) for seed in range(3))),
    "a wrong token": say(hello(card())),
    "a token of non-ASCII letters": say(hello(card(token="ü" * 32))),
    "a token that is a number": say(hello(card(token=5))),
    "a card that is no card": say(hello(b"[]"), hello(b"{}"), hello(b"\xff\xfe"), hello(b"5")),
    "a card of brackets": say(hello(b"[" * 60_000)),
    "another frame first": say(
        *(Frame(kind).header() for kind in FrameKind if kind is not FrameKind.HELLO)
    ),
    "the beginning of another frame": say(Frame(FrameKind.EAGER, payload=b"x" * 9).header()),
    "a long word": say(b"\x01" * 300_000),
}


def sockets() -> set[str]:
    return {d for d in open_descriptors() if "socket" in d}


def exchange_until_told(me: Rank) -> Any:
    """Small and large all_reduces, with waits in which links are looked at, until told to end."""
    note(["address", address_of(os.getpid())])
    before = sockets()
    ends, count, stop = Path(me.folder, "end"), 0, torch.zeros(1)
    note(["folder", me.folder])
    while not stop[0]:
        count += 1
        x = torch.full((8 if count % 2 else 100_000,), 1.0)
        if me.rank == 1:
            time.sleep(0.002)  # rank 0 sleeps meanwhile, and looks at its links
        dist.all_reduce(x)
        assert x[-1] == me.size
        stop = torch.tensor([float(ends.exists())])
        dist.all_reduce(stop, dist.ReduceOp.MAX)
    cpu = time.process_time()
    if me.rank == 1:
        time.sleep(1.0)
    dist.barrier()
    return {
        "count": count,
        "cpu_s": time.process_time() - cpu,
        "sockets": len(sockets() - before),
    }


def address_of(pid: int) -> str:
    """The abstract socket a process of ours listens on."""
    inodes = {m[1] for d in open_descriptors(pid) if (m := re.search(r"socket:\[(\d+)\]", d))}
    for line in Path("/proc/net/unix").read_text().splitlines():
        fields = line.split()
        if len(fields) == 8 and fields[7].startswith("@wiiiiide-") and fields[6] in inodes:
            return fields[7][1:]
    raise AssertionError("no listening socket")


class Stranger:
    """Attacks rank 0 as soon as it runs, checks, and lets the ranks end."""

    def __init__(self, attack: Attack, closes: bool) -> None:
        self.attack, self.closes = attack, closes
        self.done = False
        self.closed = False
        self.socks: list[socket.socket] = []

    def __call__(self, outcomes: list[Outcome], elapsed_s: float) -> None:
        told = dict(what for _, what in outcomes[0].notes if isinstance(what, list))
        if self.done or "folder" not in told:
            return
        self.done = True
        try:
            self.socks = self.attack(told["address"])
            self.closed = self.closes
            for sock in self.socks if self.closes else ():
                self._wait_for_the_end(sock)
        finally:
            Path(told["folder"], "end").touch()

    def _wait_for_the_end(self, sock: socket.socket) -> None:
        try:
            assert sock.recv(100) == b"", "an answer to a stranger"
        except ConnectionResetError:
            pass
        except TimeoutError:
            self.closed = False

    def attack_two_ranks(self) -> list[Outcome]:
        """What became of the ranks: none has failed."""
        try:
            outcomes = watch_ranks(exchange_until_told, 2, during=self)
        finally:
            for sock in self.socks:
                sock.close()
        for outcome in outcomes:
            assert outcome.exit_code == 0, outcome.trace or outcome.error
            assert not outcome.error, outcome.trace
        return outcomes


@pytest.mark.parametrize("what", list(REFUSED))
def test_an_unauthenticated_peer_is_closed_and_the_exchange_goes_on(what: str) -> None:
    stranger = Stranger(REFUSED[what], closes=True)
    outcomes = stranger.attack_two_ranks()
    assert stranger.closed
    assert outcomes[0].value["sockets"] == 0


HALF = hello(card())[:60]


def test_half_a_greeting_and_silence_harm_no_rank() -> None:
    stranger = Stranger(say(HALF, HALF[:10], b""), closes=False)
    outcomes = stranger.attack_two_ranks()
    # Rank 0 waited a second for rank 1 with half a frame unread: asleep, not spinning.
    assert outcomes[0].value["cpu_s"] < 0.2


def test_a_peer_that_hangs_up_in_the_middle_of_a_greeting_is_forgotten() -> None:
    stranger = Stranger(say(HALF, HALF[:10], b"", ends=True), closes=False)
    outcomes = stranger.attack_two_ranks()
    assert outcomes[0].value["sockets"] == 0
    assert outcomes[0].value["cpu_s"] < 0.2


def test_two_hundred_unauthenticated_peers_harm_no_rank() -> None:
    stranger = Stranger(say(*[b"x"] * 200), closes=False)
    outcomes = stranger.attack_two_ranks()
    assert outcomes[0].value["sockets"] <= 100


def join_past_strangers(me: Rank) -> int:
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
                socks += say(*[b""] * 100)(names[1 - other])
                time.sleep(0.1)
            dist.barrier()
        flooded.touch()
    wait_until(flooded.exists, PATIENCE_S, "the doors are full")
    group = join(dist.FileStore(f"{me.folder}/store of three", 3), me.rank, 3, PATIENCE_S, "three")
    size = group.size
    group.loop.call(group.close)
    processes.leave(group.process)
    for sock in socks:
        sock.close()
    return size


def test_silent_connections_do_not_keep_a_member_out() -> None:
    assert run_ranks(join_past_strangers, 3, backend=None, timeout_s=100.0) == [3, 3, 3]
