"""A stage's messages over a socket, and what they cost.

    length  4 bytes, big-endian │ codec  1 byte │ payload

The documents show the length alone. A receiver of messages that are compressed by their size has
to be told, so a byte more says which codec it was.
"""

import socket
import struct
import time
from dataclasses import dataclass
from typing import NoReturn

from lib.ladder.contenders import LadderStage
from lib.ladder.messages import Message, pack, unpack

_HEADER = struct.Struct(">IB")


@dataclass
class Costs:
    """`network_s` is in socket calls, waiting for the peer included; `packing_s` is from tensors
    to bytes and back, codec included: what the documents call compression time.
    """

    wire_bytes: int = 0
    plain_bytes: int = 0
    network_s: float = 0.0
    packing_s: float = 0.0


class Channel:
    """One end of a connection between server and node."""

    def __init__(self, line: socket.socket, stage: LadderStage) -> None:
        self._line, self._stage = line, stage
        # The kernel silently takes at most net.core.rmem_max and wmem_max.
        line.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, stage.buffer_bytes)
        line.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, stage.buffer_bytes)
        for level, option in stage.options:
            line.setsockopt(level, option, 1)
        self.costs = Costs()

    def send(self, message: Message) -> None:
        begin = time.perf_counter()
        codec, payload, plain_bytes = pack(self._stage, message)
        packed = time.perf_counter()
        header = _HEADER.pack(len(payload), codec)
        if self._stage.one_send:
            self._line.sendall(header + payload)
        else:
            self._line.sendall(header)
            self._line.sendall(payload)
        self._count(len(payload), plain_bytes, packed - begin, time.perf_counter() - packed)

    def receive(self) -> Message:
        """Raises ConnectionError when the peer has closed the connection."""
        begin = time.perf_counter()
        length, codec = _HEADER.unpack(self._take(_HEADER.size))
        payload = self._take(length)
        taken = time.perf_counter()
        message, plain_bytes = unpack(codec, payload)
        self._count(length, plain_bytes, time.perf_counter() - taken, taken - begin)
        return message

    def close(self) -> None:
        self._line.close()

    def _count(self, payload: int, plain_bytes: int, packing_s: float, network_s: float) -> None:
        costs = self.costs
        costs.wire_bytes += _HEADER.size + payload
        costs.plain_bytes += _HEADER.size + plain_bytes
        costs.packing_s += packing_s
        costs.network_s += network_s

    def _take(self, nbytes: int) -> bytes:
        return self._in_place(nbytes) if self._stage.in_place else self._joined(nbytes)

    def _joined(self, nbytes: int) -> bytes:
        data = b""
        while len(data) < nbytes:
            piece = self._line.recv(nbytes - len(data))
            data += piece or _closed()
        return data

    def _in_place(self, nbytes: int) -> bytes:
        data = bytearray(nbytes)
        view, most = memoryview(data), self._stage.piece_bytes or nbytes
        at = 0
        while at < nbytes:
            at += self._line.recv_into(view[at : at + most]) or _closed()
        return bytes(data)


def _closed() -> NoReturn:
    raise ConnectionError("the peer has closed the connection")
