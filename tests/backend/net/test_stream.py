"""TCP and TLS behind one interface, on loopback: every promise of net.stream holds for both."""

from __future__ import annotations

import errno
import random
import select
import socket
import ssl
import struct
from collections.abc import Callable, Iterator
from typing import Any, cast

import pytest

from tests.kit.conditions import wait_until
from tests.kit.leaks import open_descriptors
from wiiiiided.backend.net import tls
from wiiiiided.backend.net.stream import MAX_BUFFERS, Stream, TcpStream

DEADLINE_S = 20.0
Ends = tuple[Any, Any]


def tcp_sockets() -> tuple[socket.socket, socket.socket]:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        a = socket.create_connection(listener.getsockname())
        b, _ = listener.accept()
    return a, b


def shake(a: tls.TlsStream, b: tls.TlsStream, between: Callable[[], None] = lambda: None) -> None:
    def done() -> bool:
        first, second = a.shake_hands(), b.shake_hands()
        between()
        return first and second

    wait_until(done, DEADLINE_S, "TLS's handshake")


def make(kind: str) -> Ends:
    a, b = tcp_sockets()
    if kind == "tcp":
        return TcpStream(a), TcpStream(b)
    client, server = tls.wrap(a, server_side=False), tls.wrap(b, server_side=True)
    shake(client, server)
    return client, server


@pytest.fixture(params=["tcp", "tls"])
def ends(request: pytest.FixtureRequest) -> Iterator[Ends]:
    yield from closed_after(make(request.param))


@pytest.fixture
def secure() -> Iterator[Ends]:
    yield from closed_after(make("tls"))


def closed_after(ends: Ends) -> Iterator[Ends]:
    yield ends
    for end in ends:
        end.close()


class Transfer:
    """One direction: all of `data` out of buffers of odd sizes, into buffers of odd sizes."""

    def __init__(self, source: Stream, target: Stream, data: bytes, seed: int) -> None:
        self.source, self.target, self.data = source, target, memoryview(data)
        self.random = random.Random(seed)
        self.sent = 0
        self.got = bytearray()
        self.partial = 0

    def step(self) -> bool:
        buffers = list(self._some_of(self.data[self.sent : self.sent + 800_000]))
        offered = sum(map(len, buffers))
        taken = self.source.send(buffers)
        self.partial += 0 < taken < offered
        self.sent += taken
        while True:
            room = [bytearray(self.random.choice((0, 1, 64, 5000, 70_000))) for _ in range(4)]
            room.append(bytearray(1))
            count = self.target.receive(room)
            assert count != 0
            if count < 0:
                break
            self.got += b"".join(room)[:count]
        return len(self.got) == len(self.data) and not self.source.wants_write()

    def _some_of(self, view: memoryview) -> Iterator[memoryview]:
        at = 0
        while at < len(view):
            size = self.random.choice((0, 1, 64, 4096, 16_384, 100_000))
            yield view[at : at + size]
            at += size


def test_megabytes_arrive_whole_both_ways_at_once(ends: Ends) -> None:
    a, b = ends
    for end in ends:
        for option in (socket.SO_SNDBUF, socket.SO_RCVBUF):  # far less than is offered at once
            end.sock.setsockopt(socket.SOL_SOCKET, option, 30_000)
    there = Transfer(a, b, random.Random(1).randbytes(3_000_000), 1)
    back = Transfer(b, a, random.Random(2).randbytes(3_000_000), 2)
    wait_until(lambda: there.step() & back.step(), DEADLINE_S, "all bytes")
    assert there.got == there.data
    assert back.got == back.data
    assert there.partial > 0


def fill(stream: Stream, data: bytes) -> int:
    """Send until it takes nothing more; how much it took."""
    total = 0
    while taken := stream.send([data]):
        total += taken
    return total


def drain(stream: Stream) -> bytes:
    got = bytearray()
    room = bytearray(1 << 20)
    while (count := stream.receive([room])) > 0:
        got += room[:count]
    return bytes(got)


def test_a_full_stream_takes_nothing_and_goes_on_when_the_other_reads(ends: Ends) -> None:
    a, b = ends
    total = 0
    while taken := fill(a, b"x" * 100_000):  # the kernel may find more room a moment later
        total += taken
    got = 0

    def read_all() -> bool:
        nonlocal got
        got += len(drain(b))
        a.send(())  # what it has taken and not yet written
        return got == total

    wait_until(read_all, DEADLINE_S, "what was taken has come")
    wait_until(lambda: a.send([b"more"]) == 4, DEADLINE_S, "there is room again")


def problem_of(stream: Stream) -> OSError:
    """What it raises, at the latest when all has come."""
    found: list[OSError] = []

    def broken() -> bool:
        try:
            assert stream.receive([bytearray(100)]) == -1
        except OSError as problem:
            found.append(problem)
        return bool(found)

    wait_until(broken, DEADLINE_S, "it breaks")
    return found[0]


def test_many_small_buffers_arrive_in_order(ends: Ends) -> None:
    a, b = ends
    chance = random.Random(3)
    parts = [chance.randbytes(chance.choice((0, 1, 7, 64, 500))) for _ in range(MAX_BUFFERS)]
    assert a.send([*parts, b"the 65th is for the next call"]) == len(b"".join(parts))
    got = bytearray()

    def whole() -> bool:
        nonlocal got
        got += drain(b)
        return len(got) == len(b"".join(parts))

    wait_until(whole, DEADLINE_S, "all of them")
    assert got == b"".join(parts)


def test_bytes_are_put_into_several_buffers_one_after_the_other(ends: Ends) -> None:
    a, b = ends
    a.send([b"abc", b"defgh"])
    rooms = [bytearray(2), bytearray(0), bytearray(3), memoryview(bytearray(8)).cast("i")]
    wait_until(lambda: select.select([b.fileno()], [], [], 0)[0] != [], DEADLINE_S, "bytes")
    assert b.receive(rooms) == 8
    assert [bytes(room) for room in rooms] == [b"ab", b"", b"cde", b"fgh\0\0\0\0\0"]


def test_nothing_now_is_not_the_end(ends: Ends) -> None:
    a, b = ends
    assert b.receive([bytearray(10)]) == -1
    assert not b.wants_write()
    assert not b.pending()
    assert not a.wants_write()


def test_the_end_comes_behind_what_was_sent_and_stays(ends: Ends) -> None:
    a, b = ends
    a.send([b"last words"])
    a.close()
    a.close()
    assert a.fileno() == -1
    got = bytearray()

    def ended() -> bool:
        room = bytearray(4)
        count = b.receive([room])
        got.extend(room[: max(count, 0)])
        return bool(count == 0)

    wait_until(ended, DEADLINE_S, "the end")
    assert got == b"last words"
    assert b.receive([bytearray(4)]) == 0


def test_a_reset_is_an_error_and_stays_one(ends: Ends) -> None:
    a, b = ends
    a.sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
    a.close()
    assert isinstance(problem_of(b), ConnectionResetError)
    with pytest.raises(OSError):
        b.send([b"x"])


def test_no_room_is_a_mistake_and_not_the_end(ends: Ends) -> None:
    a, b = ends
    a.send([b"x"])
    for nothing in ([], [bytearray(0)], [bytearray(0)] * MAX_BUFFERS + [bytearray(1)]):
        with pytest.raises(ValueError, match="no room"):
            b.receive(nothing)


# -- what is TLS's alone ----


def test_decrypted_bytes_that_epoll_cannot_see_are_pending(secure: Ends) -> None:
    a, b = secure
    a.send([b"x" * 1000])
    wait_until(lambda: select.select([b.fileno()], [], [], 0)[0] != [], DEADLINE_S, "a record")
    assert b.receive([bytearray(10)]) == 10
    assert select.select([b.fileno()], [], [], 0)[0] == []
    assert b.pending()
    assert len(drain(b)) == 990
    assert not b.pending()


def test_a_record_that_did_not_fit_counts_as_taken_and_is_written_later(secure: Ends) -> None:
    a, b = secure
    chance = random.Random(4)
    sent = bytearray()
    while not a.wants_write():
        data = chance.randbytes(50_000)
        sent += data[: a.send([data])]
    got = bytearray()

    def written() -> bool:
        got.extend(drain(b))
        assert a.send(()) == 0
        return not a.wants_write()

    wait_until(written, DEADLINE_S, "it is written")

    def come() -> bool:
        got.extend(drain(b))
        return got == sent

    wait_until(come, DEADLINE_S, "it has come")


def test_small_buffers_are_joined_and_large_ones_are_not_copied() -> None:
    size = tls.RECORD_BYTES
    large = bytes(3 * size + 5)
    cut = list(tls.records([large]))
    assert [len(record) for record in cut] == [size, size, size, 5]
    assert all(record.obj is large for record in cut[:3] if isinstance(record, memoryview))
    assert sum(isinstance(record, memoryview) for record in cut) == 3
    framed = list(tls.records([b"h" * 64, large, b"", b"h" * 64]))
    assert [len(record) for record in framed] == [size, size, size, 64 + 5 + 64]
    assert b"".join(framed) == b"h" * 64 + large + b"h" * 64


def test_both_sides_see_the_same_certificate() -> None:
    a, b = make("tls")
    assert tls.binding(a) == tls.binding(b)
    assert len(tls.binding(a)) == 32
    assert a.tls.version() == "TLSv1.3"
    a.close()
    b.close()
    plain, other = make("tcp")
    assert tls.binding(plain) == b""
    plain.close()
    other.close()


def test_each_process_has_a_certificate_of_its_own_and_its_key_is_in_no_file() -> None:
    before = set(open_descriptors())
    first, second = (cast(Any, tls.server_context.__wrapped__()) for _ in range(2))
    assert first.digest != second.digest
    assert tls.server_context() is tls.server_context()
    assert not set(open_descriptors()) - before


def test_an_older_tls_is_refused() -> None:
    a, b = tcp_sockets()
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.check_hostname = False
    context.verify_mode = ssl.CERT_NONE
    context.maximum_version = ssl.TLSVersion.TLSv1_2
    old = tls.TlsStream(a, context, server_side=False)
    new = tls.wrap(b, server_side=True)
    with pytest.raises(ssl.SSLError, match=r"(?i)version|protocol"):
        shake(old, new)
    old.close()
    new.close()


class Middle:
    """Two sockets and a man in the middle that sees, and may change, every byte."""

    def __init__(self) -> None:
        a, self.a = tcp_sockets()
        self.b, b = tcp_sockets()
        self.a.setblocking(False)
        self.b.setblocking(False)
        self.client, self.server = tls.wrap(a, server_side=False), tls.wrap(b, server_side=True)

    def forward(self) -> None:
        for source, target in ((self.a, self.b), (self.b, self.a)):
            try:
                target.sendall(source.recv(1 << 20))
            except BlockingIOError:
                pass

    def take(self, count: int) -> bytes:
        self.a.settimeout(DEADLINE_S)
        got = b""
        while len(got) < count and (more := self.a.recv(count - len(got))):
            got += more
        return got

    def close(self) -> None:
        for what in (self.a, self.b, self.client, self.server):
            what.close()


def test_a_byte_changed_on_the_way_breaks_the_stream_behind_what_was_good() -> None:
    middle = Middle()
    shake(middle.client, middle.server, middle.forward)
    for word in (b"good", b"evil"):
        middle.client.send([word])
    flow = bytearray(middle.take(2 * (4 + 22)))
    flow[-1] ^= 1
    middle.b.sendall(flow)
    room = bytearray(100)
    wait_until(lambda: middle.server.receive([room]) == 4, DEADLINE_S, "what was good")
    assert room[:4] == b"good"
    assert isinstance(problem_of(middle.server), ssl.SSLError)
    with pytest.raises(ssl.SSLError):
        middle.server.receive([room])
    middle.close()


class Unanswered:
    """In place of a socket whose kernel has given up on the other host."""

    def __init__(self, sock: socket.socket) -> None:
        self.sock = sock

    def recv(self, _: int) -> bytes:
        raise OSError(errno.ETIMEDOUT, "Connection timed out")

    def close(self) -> None:
        self.sock.close()


def test_a_silent_host_is_an_error_with_its_number_and_not_an_end(secure: Ends) -> None:
    a, _ = secure
    a._sock = Unanswered(a.sock)
    for _ in range(2):
        with pytest.raises(TimeoutError) as caught:
            a.receive([bytearray(1)])
        assert caught.value.errno == errno.ETIMEDOUT
