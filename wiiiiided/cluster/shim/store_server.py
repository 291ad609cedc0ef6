"""The job's Store: the rendezvous of its ranks. The shim runs it, ranks are its clients.

It speaks the protocol of torch.distributed's TCPStore. On a machine alone it listens on 127.0.0.1,
at a port that the kernel chose; so a job does not listen on a network, and no other program can
take the port between choosing and binding. Only processes of this user (and root) are served: the
kernel's table has the user of a connection. On one of several machines it listens nowhere: clients
are handed over at the shim's endpoint (`fd_receiver`).

A client sends first, in the byte order of the machine. Numbers have eight bytes, text and values
a length before them, lists their count.

    00 validate     magic u32            ─         0a multi_get   count, keys        values
    01 set          key value            ─         0b multi_set   count, key value…  ─
    02 compare_set  key expected desired value     0c cancel_wait                    01
    03 get          key                  value     0d ping        u32                the same
    04 add          key i64              i64       0e queue_push  key value          ─
    05 check        count, keys          00 / 01   0f queue_pop   key                i64 [value]
    06 wait         count, keys          00 later  10 queue_len   key                i64
    07 num_keys                          i64       11 list_keys                      count, keys
    08 delete       key                  i64       12 barrier     key i64            00 later
    09 append       key value            ─

A remote client is one of another machine. When its connection ends by silence, not by the end of a
process, that machine is gone, and the server reports it together with whether any client waits.

Lengths are checked before anything is kept. A client that breaks the rules loses its connection and
nothing else.
"""

from __future__ import annotations

import os
import socket
import sys
import time

from wiiiiided.cluster.shim import sockets
from wiiiiided.cluster.shim.listener import LoopListener
from wiiiiided.cluster.shim.loop import READ, WRITE, ShimLoop
from wiiiiided.cluster.shim.store_keys import StoreKeys, StoreProtocolError

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable

    from wiiiiided.cluster.shim.store_tls import TlsLink

_ORDER = sys.byteorder
MAGIC = 0x3C85F7CE
READY, NOT_READY = b"\0", b"\1"
GO_ON, CANCELED = b"\0", b"\1"

# The limits of torch's own server, so that what works under torchrun works here.
KEY_BYTES = 8 << 10
VALUE_BYTES = 8 << 20
COUNT = 128 << 10

REQUEST_BYTES = 16 << 20
ANSWER_BYTES = 64 << 20
CLIENTS = 4096
READ_BYTES = 64 << 10

# While a group of the backend wiiiiide is made, its ranks check several times a second for keys
# that have this in them (engine.join), and no more afterwards. Other checks mean nothing: nccl
# checks all the job long whether something has gone wrong.
JOINING = b"wiiiiide/"
JOINING_S = 5.0


class _Unfinished(Exception):
    """The rest of the request has not arrived; the argument is how long it must be to go on."""


class _Reader:
    """Takes fields from the front of what a client has sent."""

    __slots__ = ("_data", "at")

    def __init__(self, data: bytearray) -> None:
        self._data, self.at = data, 0

    def take(self, size: int) -> bytes:
        end = self.at + size
        if end > len(self._data):
            raise _Unfinished(end)
        taken = bytes(self._data[self.at : end])
        self.at = end
        return taken

    def u32(self) -> int:
        return int.from_bytes(self.take(4), _ORDER)

    def i64(self) -> int:
        return int.from_bytes(self.take(8), _ORDER, signed=True)

    def key(self) -> bytes:
        return self.take(self._bounded(KEY_BYTES, "a key"))

    def value(self) -> bytes:
        return self.take(self._bounded(VALUE_BYTES, "a value"))

    def count(self) -> int:
        return self._bounded(COUNT, "a list")

    def many(self) -> list[bytes]:
        return [self.key() for _ in range(self.count())]

    def _bounded(self, limit: int, what: str) -> int:
        size = int.from_bytes(self.take(8), _ORDER)
        if size > limit:
            raise StoreProtocolError(f"{what} of {size} is over the limit of {limit}")
        return size


def _i64(value: int) -> bytes:
    return value.to_bytes(8, _ORDER, signed=True)


def _bits(value: bytes) -> bytes:
    return len(value).to_bytes(8, _ORDER) + value


class _StoreClient:
    """The connection of one client."""

    def __init__(
        self, server: StoreServer, link: socket.socket | TlsLink, inode: int, machine: str = ""
    ) -> None:
        self._server, self._link = server, link
        self.inode = inode
        self.machine = machine  # a remote client's address; empty: this machine
        self._in, self._out = bytearray(), bytearray()
        self._known = False  # has sent the magic number
        self._needed = 1  # bytes of a request before it is worth another look
        link.setblocking(False)
        server.loop.watch(link.fileno(), READ, self._ready)

    def answer(self, data: bytes) -> None:
        if len(self._out) + len(data) > ANSWER_BYTES:
            raise StoreProtocolError("an answer is too long")
        self._out += data
        self._server.unsent.add(self)

    def go_on(self) -> None:
        """Tell the client that the keys it waited for are there."""
        try:
            self.answer(GO_ON)
        except StoreProtocolError:
            self.close()

    def joins(self) -> None:
        """Note that it asked for a rank that is not there yet."""
        self._server.joining_at = time.monotonic()

    def close(self) -> None:
        if self._link.fileno() >= 0:
            self._server.loop.forget(self._link.fileno())
            self._link.close()
            self._server.gone(self)

    def break_off(self, problem: Exception) -> None:
        """Close a connection that broke, or whose client broke the rules."""
        silent = isinstance(problem, OSError) and problem.errno in sockets.SILENCE
        waited_for = self._server.waited_for  # by this client too
        self.close()
        if silent and self.machine:
            self._server.on_silence(self.machine, waited_for)

    def _ready(self) -> None:
        try:
            if self._out and self._link.fileno() >= 0:
                self.send()
            while not self._out and self._link.fileno() >= 0:
                if not self._heard() or isinstance(self._link, socket.socket):
                    return  # other clients have their turn
                if not self._link.pending:
                    return
        except BlockingIOError:
            pass
        except (OSError, StoreProtocolError) as problem:
            self.break_off(problem)
            self._server.deliver()

    def _heard(self) -> bool:
        """Receive and answer; whether anything came: else the connection has ended."""
        data = self._link.recv(READ_BYTES)
        if not data:
            self.close()
            return False
        self._in += data
        self._obey()
        self._server.deliver()
        return True

    def send(self) -> None:
        """Send what can be sent. While an answer waits, nothing more is read from this client."""
        try:
            while self._out:
                del self._out[: self._link.send(self._out)]
        except BlockingIOError:
            pass
        self._server.loop.watch(self._link.fileno(), WRITE if self._out else READ, self._ready)
        if not self._out and not isinstance(self._link, socket.socket) and self._link.pending:
            self._server.loop.after(0, self._ready)  # no event comes for what TLS holds

    def _obey(self) -> None:
        while len(self._in) >= self._needed:
            reader = _Reader(self._in)
            try:
                self._request(reader)
            except _Unfinished as unfinished:
                self._needed = unfinished.args[0]
                if self._needed > REQUEST_BYTES:
                    raise StoreProtocolError("a request is too long") from None
            else:
                del self._in[: reader.at]
                self._needed = 1

    def _request(self, reader: _Reader) -> None:
        number = reader.take(1)[0]
        if not self._known:
            if number != 0 or reader.u32() != MAGIC:
                raise StoreProtocolError("not a client of this protocol")
            self._known = True
        elif number < len(_REQUESTS):
            answer = _REQUESTS[number](self._server.keys, self, reader)
            if answer:
                self.answer(answer)
        else:
            raise StoreProtocolError(f"request {number} is unknown")


def _validate(keys: StoreKeys, client: _StoreClient, reader: _Reader) -> bytes:
    raise StoreProtocolError("validate was sent twice")


def _ping(keys: StoreKeys, client: _StoreClient, reader: _Reader) -> bytes:
    return reader.take(4)


def _set(keys: StoreKeys, client: _StoreClient, reader: _Reader) -> bytes:
    keys.set(reader.key(), reader.value())
    return b""


def _compare_set(keys: StoreKeys, client: _StoreClient, reader: _Reader) -> bytes:
    return _bits(keys.compare_set(reader.key(), reader.value(), reader.value()))


def _get(keys: StoreKeys, client: _StoreClient, reader: _Reader) -> bytes:
    return _bits(keys.get(reader.key()))


def _add(keys: StoreKeys, client: _StoreClient, reader: _Reader) -> bytes:
    return _i64(keys.add(reader.key(), reader.i64()))


def _check(keys: StoreKeys, client: _StoreClient, reader: _Reader) -> bytes:
    asked = reader.many()
    if keys.has(asked):
        return READY
    if JOINING in asked[0]:
        client.joins()
    return NOT_READY


def _wait(keys: StoreKeys, client: _StoreClient, reader: _Reader) -> bytes:
    return GO_ON if keys.wait(reader.many(), client) else b""


def _num_keys(keys: StoreKeys, client: _StoreClient, reader: _Reader) -> bytes:
    return _i64(len(keys))


def _delete(keys: StoreKeys, client: _StoreClient, reader: _Reader) -> bytes:
    return _i64(keys.delete(reader.key()))


def _append(keys: StoreKeys, client: _StoreClient, reader: _Reader) -> bytes:
    keys.append(reader.key(), reader.value())
    return b""


def _multi_get(keys: StoreKeys, client: _StoreClient, reader: _Reader) -> bytes:
    values = [keys.get(key) for key in reader.many()]
    if sum(map(len, values)) > ANSWER_BYTES:
        raise StoreProtocolError("an answer is too long")
    return b"".join(map(_bits, values))


def _multi_set(keys: StoreKeys, client: _StoreClient, reader: _Reader) -> bytes:
    for key, value in [(reader.key(), reader.value()) for _ in range(reader.count())]:
        keys.set(key, value)
    return b""


def _cancel_wait(keys: StoreKeys, client: _StoreClient, reader: _Reader) -> bytes:
    keys.forget(client)
    return CANCELED


def _queue_push(keys: StoreKeys, client: _StoreClient, reader: _Reader) -> bytes:
    keys.push(reader.key(), reader.value())
    return b""


def _queue_pop(keys: StoreKeys, client: _StoreClient, reader: _Reader) -> bytes:
    length, value = keys.pop(reader.key())
    return _i64(length) + _bits(value) if length else _i64(0)


def _queue_len(keys: StoreKeys, client: _StoreClient, reader: _Reader) -> bytes:
    return _i64(keys.length(reader.key()))


def _list_keys(keys: StoreKeys, client: _StoreClient, reader: _Reader) -> bytes:
    return _i64(len(keys)) + b"".join(map(_bits, keys.names()))


def _barrier(keys: StoreKeys, client: _StoreClient, reader: _Reader) -> bytes:
    return GO_ON if keys.barrier(reader.key(), reader.i64(), client) else b""


# In the order of their numbers.
_REQUESTS: tuple[Callable[[StoreKeys, _StoreClient, _Reader], bytes], ...] = (
    *(_validate, _set, _compare_set, _get, _add, _check, _wait, _num_keys, _delete, _append),
    *(_multi_get, _multi_set, _cancel_wait, _ping, _queue_push, _queue_pop, _queue_len),
    *(_list_keys, _barrier),
)


class StoreServer:
    """The server. `port` is what ranks of a machine alone get as MASTER_PORT."""

    def __init__(
        self,
        loop: ShimLoop,
        on_last_remote: Callable[[], None],
        on_silence: Callable[[str, bool], None],
        encrypted: Callable[[socket.socket], TlsLink] | None = None,
    ) -> None:
        """`on_silence(address, waited_for)`: that machine is gone, and whether a rank waits in the
        Store. `encrypted` puts a remote client's connection into TLS."""
        self.loop = loop
        self.on_silence = on_silence
        self.joining_at = -JOINING_S  # when a rank was last looked for
        self.keys = StoreKeys()
        self.unsent: set[_StoreClient] = set()
        self.port = 0
        self._clients: dict[int, _StoreClient] = {}  # by the socket's inode
        self._remote_clients: set[_StoreClient] = set()  # of other nodes
        self._on_last_remote = on_last_remote
        self._listener: LoopListener | None = None
        self._encrypted = encrypted

    def listen(self) -> None:
        """Listen on loopback for processes of this machine."""
        listener = socket.create_server(("127.0.0.1", 0), backlog=1024)
        listener.setblocking(False)
        self.port = listener.getsockname()[1]
        self._listener = LoopListener(self.loop, listener, self._welcome)

    @property
    def remote_clients(self) -> int:
        return len(self._remote_clients)

    @property
    def waited_for(self) -> bool:
        """Whether ranks wait here for each other."""
        return self.keys.waited_for or time.monotonic() - self.joining_at < JOINING_S

    def take(self, link: socket.socket, remote: bool = False) -> bool:
        """Serve a client that is already admitted; False when there is no room. The same connection
        may come twice: a daemon that waited too long for an answer offers it again."""
        inode = sockets.inode(link)
        if inode in self._clients:
            link.close()
            return True
        if len(self._clients) >= CLIENTS:
            return False
        sockets.tune(link, far=remote)
        machine = str(link.getpeername()[0]) if remote else ""  # now: one that broke has none
        wrapped = self._encrypted(link) if remote and self._encrypted is not None else link
        client = self._clients[inode] = _StoreClient(self, wrapped, inode, machine)
        if remote:
            self._remote_clients.add(client)
        return True

    def close(self) -> None:
        for client in list(self._clients.values()):
            client.close()
        if self._listener is not None:
            self._listener.close()

    def gone(self, client: _StoreClient) -> None:
        self._clients.pop(client.inode, None)
        self.unsent.discard(client)
        self.keys.forget(client)
        if client in self._remote_clients:
            self._remote_clients.discard(client)
            if not self._remote_clients:
                self.loop.after(0, self._on_last_remote)

    def deliver(self) -> None:
        """Send the answers that a request made ready, to all clients."""
        while self.keys.waken:
            waiter = self.keys.waken.pop()
            if isinstance(waiter, _StoreClient):
                waiter.go_on()
        while self.unsent:
            client = self.unsent.pop()
            try:
                client.send()
            except OSError as problem:
                client.break_off(problem)

    def _welcome(self, link: socket.socket, address: tuple[str, int]) -> None:
        if not _is_ours(link, address) or not self.take(link):
            link.close()


def _is_ours(link: socket.socket, address: tuple[str, int]) -> bool:
    """Whether the other end of a connection is this user's, or root's."""
    try:
        end = sockets.other_end(link.getsockname(), address)
    except OSError:
        return True  # a kernel without that table
    return end is not None and end.uid in (os.geteuid(), 0)
