"""The two ends of a sweep and their sockets, in three forms. The clock is the sender's.

    bulk     bytes one way, on one or more streams; over when the last one has been received
    trips    a message there, a message back, again and again
    urgent   bulk, and now and then a small frame that overtakes what the sender still holds

Every byte goes to and comes from its place in a region, as tensors would, and the receiver looks
at the end whether the region is what was sent.
"""

from __future__ import annotations

import random
import select
import socket
import struct
import threading
import time
from collections.abc import Callable, Sequence
from typing import Any

from lib.sockets.cases import SocketWay
from lib.units import KB, MB

REGION = 4 * MB
PATTERN = memoryview(random.Random(4).randbytes(REGION))
_TRIP_HEADER = 64
_FRAME = struct.Struct("<QQ")  # payload bytes, then when it was due (0: it is bulk)
_URGENT_BYTES, _URGENT_EVERY_S = 256, 0.01
_BULK_FRAME = 64 * KB
PATIENCE_S = 60.0


def patient(sock: socket.socket) -> socket.socket:
    """Blocking, but a send or receive that takes a minute says so instead of hanging."""
    sock.setblocking(True)
    limit = struct.pack("ll", int(PATIENCE_S), 0)
    # Not settimeout: that would poll before every call, which is not what is measured.
    sock.setsockopt(socket.SOL_SOCKET, socket.SO_RCVTIMEO, limit)
    sock.setsockopt(socket.SOL_SOCKET, socket.SO_SNDTIMEO, limit)
    return sock


# -- options ----


def before(sock: socket.socket, way: SocketWay) -> None:
    """Options set before a connection is made: the window is agreed on in its first packet."""
    if way.send_buffer:
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, way.send_buffer)
    if way.receive_buffer:
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, way.receive_buffer)


def after(sock: socket.socket, way: SocketWay) -> None:
    sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, way.nodelay)
    if way.quickack:
        acknowledge_at_once(sock)
    if way.lowat:
        sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NOTSENT_LOWAT, way.lowat)


def acknowledge_at_once(sock: socket.socket) -> None:
    sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_QUICKACK, 1)


def granted(sock: socket.socket) -> list[int]:
    """The buffers there really are; the kernel counts its own overhead and doubles what it is told.

    So half of it is what compares with what was asked for.
    """
    names = (socket.SO_SNDBUF, socket.SO_RCVBUF)
    return [sock.getsockopt(socket.SOL_SOCKET, name) // 2 for name in names]


# -- bulk ----


def send_bulk(
    streams: Sequence[socket.socket], way: SocketWay, asked: dict[str, Any]
) -> dict[str, Any]:
    """Seconds from the first byte until every stream has said that it has them all."""
    header = bytes(way.header)

    def send(sock: socket.socket, count: int) -> None:
        at = 0
        while at < count:
            begin = at % REGION
            piece = PATTERN[begin : begin + min(way.send_chunk, count - at, REGION - begin)]
            _send_piece(sock, header, piece, way.gathered)
            at += len(piece)
        sock.recv(1)

    _on_each(streams, lambda sock: send(sock, asked["warm"]))
    cpu, began = time.process_time(), time.perf_counter()
    _on_each(streams, lambda sock: send(sock, asked["total"]))
    seconds = time.perf_counter() - began
    return {"seconds": seconds, "cpu": time.process_time() - cpu}


def receive_bulk(
    streams: Sequence[socket.socket], way: SocketWay, asked: dict[str, Any]
) -> dict[str, Any]:
    regions = {sock: memoryview(bytearray(REGION)) for sock in streams}

    def receive(sock: socket.socket, count: int) -> None:
        region, at = regions[sock], 0
        header = memoryview(bytearray(way.header))
        while at < count:
            frame = min(count - at, REGION - at % REGION)
            if header:
                frame = min(frame, way.send_chunk)
                _fill(sock, header, way)
            _fill(sock, region[at % REGION : at % REGION + frame], way)
            at += frame
        sock.send(b"k")

    _on_each(streams, lambda sock: receive(sock, asked["warm"]))
    cpu = time.process_time()
    _on_each(streams, lambda sock: receive(sock, asked["total"]))
    used = time.process_time() - cpu
    whole = min(asked["total"], REGION)
    right = all(region[:whole] == PATTERN[:whole] for region in regions.values())
    return {"cpu": used, "right": right}


def _send_piece(sock: socket.socket, header: bytes, piece: memoryview, gathered: bool) -> None:
    if not header:
        sock.sendall(piece)
    elif gathered:
        sent = sock.sendmsg([header, piece]) - len(header)
        if sent < len(piece):
            sock.sendall(piece[sent:])
    else:
        sock.sendall(header)
        sock.sendall(piece)


def _fill(sock: socket.socket, into: memoryview, way: SocketWay) -> None:
    """All of `into`, by calls of at most one receive chunk."""
    at, size = 0, len(into)
    while at < size:
        if way.quickack == "always":
            acknowledge_at_once(sock)
        want = min(way.receive_chunk, size - at)
        if way.into:
            got = sock.recv_into(into[at : at + want])
        else:
            data = sock.recv(want)
            got = len(data)
            into[at : at + got] = data
        if got == 0:
            raise OSError("the other end closed the stream too early")
        at += got


def _on_each(streams: Sequence[socket.socket], act: Callable[[socket.socket], None]) -> None:
    """On all streams at once; one stream needs no thread."""
    if len(streams) == 1:
        act(streams[0])
        return
    failed: list[BaseException] = []

    def run(sock: socket.socket) -> None:
        try:
            act(sock)
        except BaseException as problem:
            failed.append(problem)

    threads = [threading.Thread(target=run, args=(sock,)) for sock in streams]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    if failed:
        raise failed[0]


# -- trips ----


def make_trips(
    streams: Sequence[socket.socket], way: SocketWay, asked: dict[str, Any]
) -> dict[str, Any]:
    sock, payload = streams[0], asked["payload"]
    header, piece = bytes(_TRIP_HEADER), PATTERN[:payload]
    into = memoryview(bytearray(_TRIP_HEADER + payload))
    taken: list[float] = []
    until = time.perf_counter() + asked["seconds"]
    while (now := time.perf_counter()) < until or len(taken) < 5:
        _send_piece(sock, header, piece, way.gathered)
        _fill(sock, into, way)
        taken.append(time.perf_counter() - now)
    sock.shutdown(socket.SHUT_WR)
    return {"trips": taken, "right": into[_TRIP_HEADER:] == piece}


def answer_trips(
    streams: Sequence[socket.socket], way: SocketWay, asked: dict[str, Any]
) -> dict[str, Any]:
    sock, header = streams[0], bytes(_TRIP_HEADER)
    into = memoryview(bytearray(_TRIP_HEADER + asked["payload"]))
    while sock.recv(1, socket.MSG_PEEK):
        _fill(sock, into, way)
        _send_piece(sock, header, into[_TRIP_HEADER:], way.gathered)
    return {"right": True}


# -- urgent ----


def send_urgent(
    streams: Sequence[socket.socket], way: SocketWay, asked: dict[str, Any]
) -> dict[str, Any]:
    """Bulk frames as fast as they are taken, and every 10 ms a small one that may go first."""
    sock = streams[0]
    sock.setblocking(False)
    poll = select.poll()
    poll.register(sock, select.POLLOUT)
    began = time.monotonic()
    until, due = began + asked["seconds"], began + _URGENT_EVERY_S
    left: list[memoryview] = []
    bulk = [memoryview(_FRAME.pack(_BULK_FRAME, 0)), memoryview(PATTERN)[:_BULK_FRAME]]
    while (now := time.monotonic()) < until or left:
        if not left:
            if now >= due:
                urgent = _FRAME.pack(_URGENT_BYTES, int(due * 1e9))
                left = [memoryview(urgent), PATTERN[:_URGENT_BYTES]]
                due += _URGENT_EVERY_S
            else:
                left = [*bulk]
        try:
            took = sock.sendmsg(left)
        except BlockingIOError:
            poll.poll(PATIENCE_S * 1000)
            continue
        left = _rest(left, took)
    sock.shutdown(socket.SHUT_WR)
    return {}


def _rest(parts: list[memoryview], took: int) -> list[memoryview]:
    rest = []
    for part in parts:
        if took < len(part):
            rest.append(part[took:])
        took = max(0, took - len(part))
    return rest


def receive_urgent(
    streams: Sequence[socket.socket], way: SocketWay, asked: dict[str, Any]
) -> dict[str, Any]:
    sock = streams[0]
    header, into = memoryview(bytearray(_FRAME.size)), memoryview(bytearray(_BULK_FRAME))
    delays: list[float] = []
    began, count = time.monotonic(), 0
    while sock.recv(1, socket.MSG_PEEK):
        _fill(sock, header, way)
        size, due = _FRAME.unpack(header)
        _fill(sock, into[:size], way)
        count += size
        if due:  # one machine, one clock
            delays.append(time.monotonic() - due / 1e9)
    rate = count / (time.monotonic() - began)
    return {"delays": delays, "rate": rate, "right": into == PATTERN[:_BULK_FRAME]}


# The work of rank 0, and that of rank 1 meanwhile.
FORMS = {
    "bulk": (receive_bulk, send_bulk),
    "trips": (answer_trips, make_trips),
    "urgent": (receive_urgent, send_urgent),
}
