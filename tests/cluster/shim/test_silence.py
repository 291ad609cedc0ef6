"""A machine that falls silent: the ranks that wait for it in the Store do not wait for long."""

from __future__ import annotations

import contextlib
import errno
import socket
import struct
import sys
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.cluster.shim.test_end import start_changed
from tests.cluster.shim.test_fd_receiver import HELLO, PONG, UNUSED, connection, hand_over
from tests.kit.allocations import HOST, KEY, Machine
from tests.kit.conditions import wait_until
from tests.kit.networks import Network, _set_namespace
from tests.kit.shims import PATIENCE_S, Attempt, Listener
from wiiiiided.cluster.shim import protocol

WORD = b"silence"  # the client that says it, last, is not heard of any more
# A shim to which that happens, and which looks often whether a rank waits. Its log has the looks.
MADE_SILENT = """
import socket
from wiiiiided.cluster.shim import store_route, store_server
receive = socket.socket.recv
def fail(self, *rest):
    data = receive(self, *rest)
    if data.endswith(b"silence"):
        raise OSError({number}, "made up")
    return data
socket.socket.recv = fail
look = store_route.StoreRoute._look
def noted(self, waited_for):
    self._note("a look")
    look(self, waited_for)
store_route.StoreRoute._look = noted
store_route.LOOK_S = 0.2
store_server.JOINING_S = 1.0
"""
QUIET = f"the machine at {HOST} has not answered for 120 s"
SENTENCE = f"{QUIET} while the ranks were finding each other"


def request(number: int, *keys: bytes) -> bytes:
    """One with a list of keys."""
    lengths = [struct.pack("=Q", len(key)) + key for key in keys]
    return struct.pack("=BQ", number, len(keys)) + b"".join(lengths)


def wait_for(key: bytes) -> bytes:
    return request(6, key)


def check(key: bytes) -> bytes:
    return request(5, key)


@contextlib.contextmanager
def allocation(
    folder: Path, number: int = errno.ETIMEDOUT, grace_s: float = 30.0
) -> Iterator[tuple[Attempt, Listener]]:
    """The first node's allocation of a job over several machines."""
    fields = {"door": UNUSED, "head": UNUSED, "nodes": 2, "world_size": 2, "grace_s": grace_s}
    with Attempt(folder, ["sleep", "1000"], **fields) as attempt:
        (attempt.path / protocol.KEY).write_bytes(KEY)
        start_changed(attempt, MADE_SILENT.format(number=number))
        listener = attempt.listen()
        listener.phase("running")
        yield attempt, listener


@contextlib.contextmanager
def remote_client(attempt: Attempt, says: bytes = b"") -> Iterator[socket.socket]:
    """A client of another machine, which has said this and was understood."""
    with connection() as (client, link):
        assert hand_over(attempt, b"R", link) == b"+"
        link.close()
        say(client, HELLO)
        client.sendall(says)
        yield client


def say(client: socket.socket, what: bytes) -> None:
    """Something that ends with a ping."""
    client.sendall(what)
    assert client.recv(4) == PONG


def looks(attempt: Attempt) -> int:
    return attempt.texts(stream="note").count("a look")


def goes_on(attempt: Attempt, listener: Listener) -> None:
    """Through several looks, and until it is stopped."""
    seen = looks(attempt)
    wait_until(lambda: looks(attempt) > seen + 2, PATIENCE_S, "more looks")
    listener.send(do="stop", grace_s=0, reason="seen enough")
    assert attempt.end().stopped == "seen enough"


def fails(attempt: Attempt) -> None:
    end = attempt.end()
    assert (end.code, end.reason, end.codes) == (1, SENTENCE, {"0": 143})
    assert (end.failed_rank, end.stopped, end.lost) == (None, "", False)


@pytest.mark.parametrize("number", [errno.ETIMEDOUT, errno.EHOSTUNREACH, errno.ENETUNREACH])
def test_a_rank_that_waits_in_the_store_does_not_wait_for_a_silent_machine(
    tmp_path: Path, number: int
) -> None:
    with (
        allocation(tmp_path, number) as (attempt, _),
        remote_client(attempt, wait_for(b"never")),
        remote_client(attempt) as silent,
    ):
        silent.sendall(WORD)
        fails(attempt)
        assert QUIET in attempt.texts(stream="note")


def test_a_machine_that_was_itself_waiting_ends_the_wait(tmp_path: Path) -> None:
    with (
        allocation(tmp_path) as (attempt, _),
        remote_client(attempt, wait_for(b"never")) as silent,
    ):
        silent.sendall(WORD)
        fails(attempt)


def test_ranks_that_come_to_wait_later_do_not_wait_either(tmp_path: Path) -> None:
    with (
        allocation(tmp_path) as (attempt, _),
        remote_client(attempt) as late,
        remote_client(attempt) as silent,
    ):
        silent.sendall(WORD)
        attempt.wait_for(QUIET, stream="note")
        wait_until(lambda: looks(attempt) > 2, PATIENCE_S, "looks")
        late.sendall(wait_for(b"never"))
        fails(attempt)


def test_while_no_rank_waits_a_silent_machine_is_a_line_in_the_log(tmp_path: Path) -> None:
    with (
        allocation(tmp_path) as (attempt, listener),
        remote_client(attempt, check(b"is something wrong?")),  # as nccl asks, all the job long
        remote_client(attempt) as silent,
        remote_client(attempt) as another,
    ):
        silent.sendall(WORD)
        attempt.wait_for(QUIET, stream="note")
        another.sendall(WORD)
        goes_on(attempt, listener)
        assert attempt.texts(stream="note").count(QUIET) == 1


def test_a_machine_that_is_back_is_not_silent(tmp_path: Path) -> None:
    with allocation(tmp_path) as (attempt, listener):
        with remote_client(attempt) as silent:
            silent.sendall(WORD)
            attempt.wait_for(QUIET, stream="note")
        seen = looks(attempt)
        with remote_client(attempt, wait_for(b"never")) as back:
            wait_until(lambda: looks(attempt) > seen, PATIENCE_S, "another look")
            listener.send(do="stop", grace_s=0, reason="seen enough")
            assert back.recv(1) == b""
            assert attempt.end().stopped == "seen enough"


@pytest.mark.parametrize("number", [errno.ECONNRESET, errno.EPIPE])
def test_a_process_that_ended_is_no_silent_machine(tmp_path: Path, number: int) -> None:
    with (
        allocation(tmp_path, number) as (attempt, listener),
        remote_client(attempt, wait_for(b"never")),
        remote_client(attempt) as reset,
    ):
        reset.sendall(WORD)
        assert reset.recv(1) == b""
        with remote_client(attempt, wait_for(b"never")):
            pass  # an orderly end
        listener.send(do="stop", grace_s=0, reason="seen enough")
        assert attempt.end().stopped == "seen enough"
        assert not looks(attempt)


# Ranks that look for one more than there is, or, with a world of two, find each other.
JOIN = """
import sys, time
import torch.distributed as dist
print("begun", flush=True)
dist.init_process_group(sys.argv[1])
time.sleep(2)
print("met", flush=True)
time.sleep(1000)
"""


@contextlib.contextmanager
def joining(folder: Path, backend: str, world_size: int) -> Iterator[tuple[Attempt, Listener]]:
    argv = [sys.executable, "-c", JOIN, backend]
    fields = {"workers": 2, "world_size": world_size, "nodes": 2, "grace_s": 30.0}
    with (
        Machine(folder) as machine,
        machine.allocation(argv, head=machine.endpoint, **fields) as attempt,
    ):
        start_changed(attempt, MADE_SILENT.format(number=errno.ETIMEDOUT))
        listener = attempt.listen()
        listener.phase("running")
        yield attempt, listener


@pytest.mark.parametrize("backend", ["gloo", "wiiiiide"])
def test_ranks_that_look_for_each_other_wait_in_the_store(tmp_path: Path, backend: str) -> None:
    with joining(tmp_path, backend, 3) as (attempt, _), remote_client(attempt) as silent:
        attempt.wait_for("begun")
        silent.sendall(WORD)
        end = attempt.end()
        assert (end.code, end.reason) == (1, SENTENCE), attempt.lines()


@pytest.mark.parametrize("backend", ["gloo", "wiiiiide"])
def test_ranks_that_have_met_do_not(tmp_path: Path, backend: str) -> None:
    with joining(tmp_path, backend, 2) as (attempt, listener), remote_client(attempt) as silent:
        attempt.wait_for("met")
        attempt.wait_for("met", 1)
        silent.sendall(WORD)
        attempt.wait_for(QUIET, stream="note")
        goes_on(attempt, listener)


# ---- with a cable


SHORT = """
import socket
from wiiiiided.cluster.shim import sockets
sockets.SILENT_S = 2
sockets.KEEPALIVE = ((socket.TCP_KEEPIDLE, {idle}), (socket.TCP_KEEPINTVL, 1))
"""


def connected(network: Network) -> tuple[socket.socket, socket.socket]:
    """(b's end, a's): sockets stay where they were made."""
    found: list[socket.socket] = []

    def connect() -> None:  # in a thread of its own: only that one moves
        _set_namespace(f"/proc/{network.hosts['a'].pid}/ns/net")
        with socket.create_server((network.address("a"), 0)) as server:
            _set_namespace(f"/proc/{network.hosts['b'].pid}/ns/net")
            client = socket.create_connection(server.getsockname(), PATIENCE_S)
            found.extend((client, server.accept()[0]))

    thread = threading.Thread(target=connect)
    thread.start()
    thread.join()
    client, link = found
    return client, link


@pytest.mark.needs("root", "ip", "unshare", "mount")
@pytest.mark.parametrize(("idle", "answer"), [(1, False), (1000, True)])
def test_a_machine_whose_cable_is_out_falls_silent(tmp_path: Path, idle: int, answer: bool) -> None:
    """Also one that has not acknowledged an answer: keepalive does not ask it."""
    fields = {"door": UNUSED, "head": UNUSED, "nodes": 2, "world_size": 2}
    with Network("ab") as network, Attempt(tmp_path, ["sleep", "1000"], **fields) as attempt:
        (attempt.path / protocol.KEY).write_bytes(KEY)
        start_changed(attempt, SHORT.format(idle=idle))
        attempt.listen().phase("running")
        client, link = connected(network)
        with client, remote_client(attempt, wait_for(b"never")) as other:
            with link:
                assert hand_over(attempt, b"R", link) == b"+"
            say(client, HELLO)
            client.sendall(wait_for(b"key"))
            network.silence("b")
            if answer:
                key, value = (struct.pack("=Q", 3) + word for word in (b"key", b"yes"))
                other.sendall(b"\x01" + key + value)
            end = attempt.end()
            assert end.reason == (
                f"the machine at {network.address('b')} has not answered for 2 s while the ranks "
                "were finding each other"
            )
