"""The shim's endpoint: what may be handed over, by which user, and that nothing stays behind."""

from __future__ import annotations

import contextlib
import os
import socket
import struct
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import psutil
import pytest

from tests.kit.allocations import HOST, KEY
from tests.kit.conditions import wait_until
from tests.kit.shims import PATIENCE_S, Attempt
from wiiiiided.cluster.shim import fd_receiver, protocol, store_server

HELLO = struct.pack("=BIBI", 0, store_server.MAGIC, 13, 7)  # the magic number and a ping
PONG = struct.pack("=I", 7)
UNUSED = f"{HOST}:9"  # there is no daemon in these tests


@contextlib.contextmanager
def allocation(folder: Path, **fields: object) -> Iterator[Attempt]:
    """An allocation that runs, with an endpoint."""
    with Attempt(folder, ["sleep", "1000"], door=UNUSED, head=UNUSED, **fields) as attempt:
        (attempt.path / protocol.KEY).write_bytes(KEY)
        attempt.start()
        listener = attempt.listen()
        listener.phase("running")
        yield attempt
        listener.send(do="stop", grace_s=0, reason="seen enough")
        assert attempt.end().stopped == "seen enough"


def connect(attempt: Attempt) -> socket.socket:
    daemon = socket.socket(socket.AF_UNIX)
    daemon.settimeout(PATIENCE_S)
    directory = os.open(attempt.path, os.O_RDONLY)
    try:
        daemon.connect(f"/proc/self/fd/{directory}/{protocol.ENDPOINT}")
    finally:
        os.close(directory)
    return daemon


def hand_over(attempt: Attempt, kind: bytes, *links: socket.socket) -> bytes:
    with connect(attempt) as daemon:
        socket.send_fds(daemon, [kind], [link.fileno() for link in links])
        return daemon.recv(10)


@contextlib.contextmanager
def connection() -> Iterator[tuple[socket.socket, socket.socket]]:
    """(a client's end, the daemon's)."""
    with (
        socket.create_server((HOST, 0)) as server,
        socket.create_connection(server.getsockname(), PATIENCE_S) as client,
        server.accept()[0] as accepted,
    ):
        yield client, accepted


def test_another_nodes_connection_is_served(tmp_path: Path) -> None:
    with allocation(tmp_path) as attempt, connection() as (client, link):
        client.sendall(HELLO)
        assert hand_over(attempt, b"R", link) == b"+"
        link.close()
        assert client.recv(4) == PONG


def test_a_connection_that_is_no_ranks_is_not_taken_and_left_as_it_was(tmp_path: Path) -> None:
    with allocation(tmp_path) as attempt, connection() as (client, link):
        client.sendall(HELLO)
        assert hand_over(attempt, b"L", link) == b"-"
        assert link.recv(100) == HELLO


def test_a_connection_offered_twice_is_served_once(tmp_path: Path) -> None:
    with allocation(tmp_path) as attempt, connection() as (client, link):
        shim = psutil.Process(attempt.shims[0].pid)
        before = shim.num_fds()
        for _ in range(2):
            assert hand_over(attempt, b"R", link) == b"+"
        wait_until(lambda: shim.num_fds() == before + 1, PATIENCE_S, "one copy of it")
        link.close()
        client.sendall(HELLO)
        assert client.recv(4) == PONG


def test_offers_that_a_shim_finds_late_are_one_connection_and_none_is_lost(tmp_path: Path) -> None:
    """As when the shim was held up for longer than the daemon waits for its answer."""
    with allocation(tmp_path) as attempt, connection() as (client, link):
        shim = psutil.Process(attempt.shims[0].pid)
        before = shim.num_fds()
        shim.suspend()
        for _ in range(3):
            with connect(attempt) as daemon:
                socket.send_fds(daemon, [b"R"], [link.fileno()])
        link.close()
        client.sendall(HELLO)
        shim.resume()
        assert client.recv(4) == PONG
        wait_until(lambda: shim.num_fds() == before + 1, PATIENCE_S, "one copy of it")
        client.sendall(HELLO[-5:])
        assert client.recv(4) == PONG


def test_only_the_first_node_takes_connections_of_others(tmp_path: Path) -> None:
    fields = {"node_index": 1, "nodes": 2, "first_rank": 1, "world_size": 2}
    with allocation(tmp_path, **fields) as attempt, connection() as (_, link):
        assert hand_over(attempt, b"R", link) == b"-"


def test_what_is_no_connection_is_not_taken(tmp_path: Path) -> None:
    with allocation(tmp_path) as attempt, connection() as (client, link):
        for kind in (b"X", b"W", b"\0"):
            assert hand_over(attempt, kind, link) == b"-"
        one, other = socket.socketpair()
        with one, other, socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as datagrams:
            assert hand_over(attempt, b"R", one) == b"-"
            assert hand_over(attempt, b"R", datagrams) == b"-"
        with open(os.devnull) as file, connect(attempt) as daemon:
            socket.send_fds(daemon, [b"R"], [file.fileno()])
            assert daemon.recv(10) == b"-"
        assert hand_over(attempt, b"R") == b""
        client.sendall(HELLO)
        assert hand_over(attempt, b"R", link) == b"+"
        assert client.recv(4) == PONG


def test_nothing_that_was_handed_over_stays_open(tmp_path: Path) -> None:
    with allocation(tmp_path) as attempt:
        shim = psutil.Process(attempt.shims[0].pid)
        before = shim.num_fds()
        for kind in (b"R", b"L", b"X"):
            for _ in range(20):
                with connection() as (_, link):
                    hand_over(attempt, kind, link, link, link)
                with open(os.devnull) as file, connect(attempt) as daemon:
                    socket.send_fds(daemon, [kind], [file.fileno()])
                    daemon.recv(1)
        wait_until(lambda: shim.num_fds() == before, PATIENCE_S, "all descriptors closed")


def test_more_connections_than_there_is_room_for_are_closed(tmp_path: Path) -> None:
    with allocation(tmp_path) as attempt, contextlib.ExitStack() as stack:
        for _ in range(fd_receiver.MAX_CONNECTIONS):
            stack.enter_context(connect(attempt))
        with connect(attempt) as late:
            assert late.recv(1) == b""
        stack.close()

        def served() -> bool:
            with connection() as (_, link), contextlib.suppress(OSError):
                return hand_over(attempt, b"R", link) == b"+"
            return False

        wait_until(served, PATIENCE_S, "room again")


@pytest.mark.needs("root")
def test_only_the_daemon_root_and_the_own_user_may_hand_over(tmp_path: Path) -> None:
    tmp_path.chmod(0o755)
    for parent in tmp_path.parents[:-2]:
        parent.chmod(0o755)
    answers = {}
    with allocation(tmp_path, listener_uid=12345, file_mode=0o666) as attempt:
        attempt.path.chmod(0o755)
        for uid in (0, 12345, 12346):
            program = (
                "import array, os, socket; s = socket.socket(socket.AF_UNIX)\n"
                "t = socket.create_server(('127.0.0.1', 0))\n"
                "u = socket.create_connection(t.getsockname())\n"
                f"os.setuid({uid})\n"
                f"s.connect({str(attempt.path / protocol.ENDPOINT)!r})\n"
                "try:\n"
                "    socket.send_fds(s, [b'R'], [u.fileno()])\n"
                "    print(s.recv(1).decode())\n"
                "except ConnectionError:\n"
                "    print()\n"
            )
            command = [sys.executable, "-c", program]
            answer = subprocess.run(command, capture_output=True, text=True, check=True)
            answers[uid] = answer.stdout.strip()
    assert answers == {0: "+", 12345: "+", 12346: ""}
