"""A rank's way to the Store of another machine: nothing lost, nothing piled up, no end missed."""

from __future__ import annotations

import contextlib
import socket
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.kit.allocations import HOST, KEY
from tests.kit.conditions import wait_until
from tests.kit.daemons import free_port
from tests.kit.shims import PATIENCE_S
from wiiiiided.backend.wire.port_auth import PortServer, RejectReason
from wiiiiided.cluster.shim import store_proxy
from wiiiiided.errors import HandshakeFailed

ROOT = Path(store_proxy.__file__).parents[3]
# A shim's proxy without a shim: every connection counts as a rank's. Notes are printed.
PROGRAM = """
import socket, sys
from wiiiiided.cluster.shim import protocol, store_proxy
from wiiiiided.cluster.shim.listener import LoopListener
from wiiiiided.cluster.shim.loop import ShimLoop
store_proxy.DIAL_FOR_S, store_proxy.ENDED_S, store_proxy.QUIET_S = map(float, sys.argv[2:])
order = protocol.LaunchOrder(7, 1, "x", [], "/", {}, 2, 1, 1, "b", head=sys.argv[1])
loop = ShimLoop()
them = store_proxy.StoreProxy(loop, order, bytes(range(32)), lambda text: print(text, flush=True))
listener = socket.create_server(("127.0.0.1", 0))
listener.setblocking(False)
LoopListener(loop, listener, lambda link, _: them.take(link))
print(listener.getsockname()[1], flush=True)
loop.run()
"""


# … to which the first machine is not heard of any more, once it has said a word.
MADE_SILENT = """
import errno, socket
receive = socket.socket.recv
def fail(self, *rest):
    data = receive(self, *rest)
    if data == b"silence":
        raise OSError(errno.ETIMEDOUT, "made up")
    return data
socket.socket.recv = fail
"""


class Here:
    """The second machine's shim: proxies every connection."""

    def __init__(self, port: int, process: subprocess.Popen[str]) -> None:
        self._port, self._process = port, process

    def connect(self) -> socket.socket:
        return socket.create_connection((HOST, self._port), PATIENCE_S)

    def note(self) -> str:
        assert self._process.stdout is not None
        return self._process.stdout.readline().strip()

    def descriptors(self) -> int:
        return len(list(Path(f"/proc/{self._process.pid}/fd").iterdir()))


@contextlib.contextmanager
def passing(
    head: int,
    patience_s: float = 60.0,
    ended_s: float = 60.0,
    quiet_s: float = 60.0,
    change: str = "",
) -> Iterator[Here]:
    times = [str(patience_s), str(ended_s), str(quiet_s)]
    command = [sys.executable, "-c", change + PROGRAM, f"{HOST}:{head}", *times]
    with subprocess.Popen(command, cwd=ROOT, stdout=subprocess.PIPE, text=True) as process:
        try:
            assert process.stdout is not None
            yield Here(int(process.stdout.readline()), process)
        finally:
            process.kill()


@contextlib.contextmanager
def port() -> Iterator[socket.socket]:
    """The first machine's one port."""
    with socket.create_server((HOST, 0)) as server:
        server.settimeout(PATIENCE_S)
        yield server


def number(server: socket.socket) -> int:
    return int(server.getsockname()[1])


def let_in(
    server: socket.socket, key: bytes = KEY, reason: RejectReason | None = None
) -> socket.socket:
    """The next connection, authenticated as the daemon there does it, or refused for a reason. One
    that has ended meanwhile, because the rank has gone, does not count."""
    while True:
        link, _ = server.accept()
        link.settimeout(PATIENCE_S)
        try:
            _answer(link, key, reason)
        except ConnectionError:
            link.close()
        else:
            return link


def _answer(link: socket.socket, key: bytes, reason: RejectReason | None) -> None:
    server = PortServer()
    try:
        _hear(server, link)
        server.challenge(key)
        _hear(server, link)
        if reason is None:
            server.welcome()
        else:
            server.refuse(reason)
    except HandshakeFailed:
        pass
    link.sendall(server.data_to_send())


def _hear(server: PortServer, link: socket.socket) -> None:
    link.sendall(server.data_to_send())
    while server.wanted:
        data = link.recv(server.wanted)
        if not data:
            raise ConnectionResetError("it hung up")
        server.receive_data(data)


def exactly(link: socket.socket, size: int) -> bytes:
    found = bytearray()
    while len(found) < size and (data := link.recv(size - len(found))):
        found += data
    return bytes(found)


def has_ended(link: socket.socket) -> bool:
    try:
        return link.recv(1) == b""
    except ConnectionResetError:
        return True


def test_bytes_go_both_ways_whole_and_in_order() -> None:
    there = b"".join(n.to_bytes(4, "big") for n in range(2_000_000))  # eight times what is kept
    back = there[::-1]
    with (
        port() as server,
        passing(number(server)) as here,
        here.connect() as near,
        let_in(server) as far,
    ):
        senders = [
            threading.Thread(target=near.sendall, args=(there,)),
            threading.Thread(target=far.sendall, args=(back,)),
        ]
        for sender in senders:
            sender.start()
        assert exactly(far, len(there)) == there
        assert exactly(near, len(back)) == back
        for sender in senders:
            sender.join()


def test_what_is_said_before_the_first_node_is_there_is_not_lost() -> None:
    head = free_port(HOST)
    with passing(head) as here, here.connect() as near:  # no process listens there yet
        near.sendall(b"early")
        with socket.create_server((HOST, head)) as server:
            server.settimeout(PATIENCE_S)
            with let_in(server) as far:
                near.sendall(b" and late")
                assert exactly(far, 14) == b"early and late"


@pytest.mark.parametrize(
    "reason", [RejectReason.UNKNOWN, RejectReason.ABSENT, RejectReason.BUSY, RejectReason.PROOF]
)
def test_a_dial_that_is_not_admitted_yet_is_repeated(reason: RejectReason) -> None:
    with port() as server, passing(number(server)) as here, here.connect() as near:
        near.sendall(b"x")
        for _ in range(3):
            with let_in(server, reason=reason) as refused:
                assert has_ended(refused)
        with let_in(server) as far:
            assert exactly(far, 1) == b"x"


def test_a_version_that_is_not_spoken_ends_it_at_once_with_a_note() -> None:
    with port() as server, passing(number(server)) as here, here.connect() as near:
        let_in(server, reason=RejectReason.VERSION).close()
        assert has_ended(near)
        assert "install the same wiiiiided" in here.note()


def test_another_key_is_said_in_the_log_and_ends_when_patience_does() -> None:
    with port() as server, passing(number(server), patience_s=1.0) as here:

        def refuse() -> None:
            with contextlib.suppress(OSError):
                while True:
                    let_in(server, key=bytes(32)).close()

        refusing = threading.Thread(target=refuse)
        refusing.start()
        with here.connect() as near:
            assert has_ended(near)
        assert "has another key for it" in here.note()
        server.shutdown(socket.SHUT_RDWR)
        refusing.join()


def test_a_key_that_was_good_before_is_not_tried_for_long() -> None:
    with port() as server, passing(number(server), ended_s=0.0) as here:
        with here.connect() as near, let_in(server) as far:
            near.sendall(b"x")
            assert exactly(far, 1) == b"x"
        with here.connect() as near:
            let_in(server, key=bytes(32)).close()
            assert has_ended(near)
        assert "has another key for it" in here.note()


def test_a_long_wait_is_said_once() -> None:
    with port() as server, passing(number(server), quiet_s=0.0) as here:
        with here.connect(), here.connect():
            for _ in range(8):
                let_in(server, reason=RejectReason.ABSENT).close()
        assert "is not there yet" in here.note()
        with here.connect():
            let_in(server, reason=RejectReason.VERSION).close()
        assert "another version" in here.note()  # not the first one once more


def test_the_end_of_a_rank_is_passed_on_after_what_it_said() -> None:
    with port() as server, passing(number(server)) as here:
        near = here.connect()
        with let_in(server) as far:
            near.sendall(b"last words")
            near.close()
            assert exactly(far, 10) == b"last words"
            assert has_ended(far)


def test_a_half_closed_connection_still_receives() -> None:
    with port() as server, passing(number(server)) as here, here.connect() as near:
        with let_in(server) as far:
            near.sendall(b"question")
            near.shutdown(socket.SHUT_WR)
            assert exactly(far, 8) == b"question"
            assert has_ended(far)
            far.sendall(b"answer")
        assert exactly(near, 6) == b"answer"
        assert has_ended(near)


def test_the_end_of_the_store_is_passed_on_after_what_it_said() -> None:
    with port() as server, passing(number(server)) as here, here.connect() as near:
        with let_in(server) as far:
            far.sendall(b"answer")
        assert exactly(near, 6) == b"answer"
        assert has_ended(near)


def test_a_rank_that_dies_while_it_waits_is_not_waited_for() -> None:
    with passing(free_port(HOST)) as here:
        before = here.descriptors()
        with here.connect() as near:
            near.sendall(b"x")
            wait_until(lambda: here.descriptors() > before, PATIENCE_S, "a passage")
        wait_until(lambda: here.descriptors() == before, PATIENCE_S, "its end")


def test_a_slow_reader_makes_the_writer_wait() -> None:
    with (
        port() as server,
        passing(number(server)) as here,
        here.connect() as near,
        let_in(server),
    ):
        near.settimeout(0.5)
        sent = 0
        with contextlib.suppress(TimeoutError):
            while sent < 1 << 30:
                sent += near.send(bytes(1 << 16))
        # What the kernels of both connections keep, and one buffer of the passage.
        assert sent < 64 << 20


def test_no_descriptor_is_left_when_all_have_gone() -> None:
    with port() as server, passing(number(server)) as here:
        before = here.descriptors()
        for _ in range(10):
            with here.connect(), let_in(server):
                pass
        for _ in range(3):
            with here.connect():
                let_in(server, reason=RejectReason.ABSENT).close()
        wait_until(lambda: here.descriptors() == before, PATIENCE_S, "all closed")


def test_a_first_machine_that_falls_silent_ends_the_passage_and_is_named() -> None:
    with (
        port() as server,
        passing(number(server), change=MADE_SILENT) as shim,
        shim.connect() as near,
        let_in(server) as far,
    ):
        far.sendall(b"silence")
        assert near.recv(1) == b""
        head = f"{HOST}:{number(server)}"
        assert shim.note() == (
            f"the job's Store on the first node ({head}) is out of reach: "
            "it has not answered for 120 s"
        )
