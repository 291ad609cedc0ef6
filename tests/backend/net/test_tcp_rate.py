"""The rate of a connection, from the kernel's own counters."""

from __future__ import annotations

import contextlib
import select
import socket
import struct
import time
from collections.abc import Iterator

import pytest

from wiiiiided.backend.net import tcp_rate
from wiiiiided.backend.net.tcp_rate import LEAST_BUSY_S, LEAST_BYTES, Counters, LinkRate, Sample

CHUNK = bytes(1 << 20)


@pytest.fixture
def ends() -> Iterator[tuple[socket.socket, socket.socket]]:
    with contextlib.ExitStack() as stack:
        server = stack.enter_context(socket.create_server(("127.0.0.1", 0)))
        near = stack.enter_context(socket.create_connection(server.getsockname()))
        far = stack.enter_context(server.accept()[0])
        near.setblocking(False)
        far.setblocking(False)
        yield near, far


def _exchange(near: socket.socket, far: socket.socket) -> int:
    """Sends what fits and reads it all: both ends never wait for long."""
    sent = got = 0
    with contextlib.suppress(BlockingIOError):
        sent = near.send(CHUNK)
    while got < sent:
        assert select.select([far], [], [], 30)[0], "what was sent does not arrive"
        got += len(far.recv(1 << 20))
    return sent


def _info(acked: int, busy_us: int, rwnd_us: int, size: int = 232) -> bytes:
    info = bytearray(b"\xee" * size)
    struct.pack_into("=Q", info, 120, acked)
    struct.pack_into("=QQ", info, 168, busy_us, rwnd_us)
    return bytes(info)


class Told:
    """A socket whose kernel says what the test wants."""

    def __init__(self) -> None:
        self.info: bytes | OSError = _info(0, 0, 0)

    def getsockopt(self, level: int, option: int, size: int) -> bytes:
        assert (level, option) == (socket.IPPROTO_TCP, socket.TCP_INFO)
        assert size >= 232
        if isinstance(self.info, OSError):
            raise self.info
        return self.info


def _sample(link: LinkRate, told: Told, info: bytes | OSError) -> Sample | None:
    told.info = info
    return link.sample(told)  # type: ignore[arg-type]


def test_a_busy_connection_has_a_rate(ends: tuple[socket.socket, socket.socket]) -> None:
    link, sent, sample = LinkRate(), 0, None
    deadline = time.monotonic() + 30
    while sample is None and time.monotonic() < deadline:
        sent += _exchange(*ends)
        sample = link.sample(ends[0])
    assert sample is not None
    assert sample.rate > 0
    assert sample.seconds >= LEAST_BUSY_S
    # One byte more than was sent: the kernel counts the SYN.
    assert LEAST_BYTES <= sample.nbytes <= sent + 1


def test_an_idle_connection_has_none(ends: tuple[socket.socket, socket.socket]) -> None:
    link = LinkRate()
    assert [link.sample(ends[0]) for _ in range(100)] == [None] * 100


def test_the_kernel_counts_what_was_acknowledged_where_we_look(
    ends: tuple[socket.socket, socket.socket],
) -> None:
    sent = sum(_exchange(*ends) for _ in range(10))

    def acked() -> int:
        counters = tcp_rate._read(ends[0])
        assert counters is not None
        return counters.acked

    deadline = time.monotonic() + 30
    while acked() < sent and time.monotonic() < deadline:
        pass
    assert acked() in (sent, sent + 1)


def test_a_closed_socket_or_no_tcp_at_all_has_no_rate() -> None:
    closed = socket.socket()
    closed.close()
    a, b = socket.socketpair()
    with a, b:
        for sock in (closed, a):
            link = LinkRate()
            assert link.sample(sock) is None


def test_time_that_the_receiver_took_does_not_count() -> None:
    assert tcp_rate.parse(_info(1000, 500, 200)) == Counters(1000, 300)


@pytest.mark.parametrize("size", [0, 104, 160, 183])
def test_an_older_kernel_has_no_rate(size: int) -> None:
    whole = _info(LEAST_BYTES, 10**6, 0)
    assert tcp_rate.parse(whole[:size]) is None
    link, told = LinkRate(), Told()
    assert _sample(link, told, whole[:size]) is None
    assert _sample(link, told, whole[:184]) == Sample(LEAST_BYTES, 1.0)


def test_what_is_too_little_for_a_sample_counts_for_the_next() -> None:
    link, told = LinkRate(), Told()
    assert _sample(link, told, _info(LEAST_BYTES, 19_000, 0)) is None  # too short
    assert _sample(link, told, _info(LEAST_BYTES, 60_000, 10_000)) == Sample(LEAST_BYTES, 0.05)
    assert _sample(link, told, _info(LEAST_BYTES + 1000, 10**6, 0)) is None  # too few bytes
    assert _sample(link, told, _info(2 * LEAST_BYTES, 2_050_000, 0)) == Sample(LEAST_BYTES, 2.0)
    assert _sample(link, told, _info(2 * LEAST_BYTES, 2_050_000, 0)) is None


def test_a_socket_that_fails_for_a_moment_loses_nothing() -> None:
    link, told = LinkRate(), Told()
    assert _sample(link, told, _info(LEAST_BYTES, 10_000, 0)) is None
    assert _sample(link, told, OSError("gone")) is None
    assert _sample(link, told, _info(LEAST_BYTES, 20_000, 0)) == Sample(LEAST_BYTES, 0.02)
