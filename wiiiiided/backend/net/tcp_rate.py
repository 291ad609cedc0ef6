"""The real rate of a TCP connection, asked of the kernel.

A program cannot time its own sends: they end when the bytes are in the kernel's buffer. The kernel
knows how many bytes the other side has acknowledged, and for how long it had something to send
(busy) or was held up by a full receiver (rwnd_limited). Bytes acknowledged, over the time that
the link alone was waited for, are the link's rate, whether there were pauses between or not:

    struct tcp_info     120  tcpi_bytes_acked    u64 bytes
    (linux/tcp.h)       168  tcpi_busy_time      u64 µs, all of it
                        176  tcpi_rwnd_limited   u64 µs, the receiver was slow
                        184  tcpi_sndbuf_limited u64 µs, the send buffer was small: counts as link

Kernels before 4.10 return a shorter structure: then the rate stays unknown, and nothing is encoded.

The times are counted in the kernel's ticks, 4 ms at 250 Hz, so a sample must span several. And a
short message is busy for a whole round trip, however little it carries: 1 KB to and fro looks like
100 MB/s on a link of 3,500. So a sample has LEAST_BYTES (and `link_monitor` looks every 2 MiB).

tcpi_delivery_rate was the alternative. It looks at one round trip, and a shaped link (`tc … tbf`)
lets a burst of that length through at many times its rate; busy time gave 12.1 MB/s at 100 Mbit/s
and 120 MB/s at 1 Gbit/s.
"""

from __future__ import annotations

import socket
import struct
from dataclasses import dataclass
from typing import Final

_ACKED: Final = struct.Struct("=Q")
_TIMES: Final = struct.Struct("=QQ")
_ACKED_AT: Final = 120
_TIMES_AT: Final = 168
_NEEDED_BYTES: Final = _TIMES_AT + _TIMES.size
_ASKED_BYTES: Final = 256

# Five ticks at 250 Hz: beginning and end are off by one tick at most, mostly by less.
LEAST_BUSY_S: Final = 0.020
# So that a slow link's first sample is not made of a window that opens and a single burst.
LEAST_BYTES: Final = 262144


@dataclass(frozen=True, slots=True)
class Sample:
    """Bytes carried, and the time that took."""

    nbytes: int
    seconds: float

    @property
    def rate(self) -> float:
        """Bytes a second."""
        return self.nbytes / self.seconds


@dataclass(frozen=True, slots=True)
class Counters:
    """The kernel's counts since the connection began."""

    acked: int = 0
    free_us: int = 0  # busy, and not held up by the receiver


def parse(info: bytes) -> Counters | None:
    """The counters in a struct tcp_info, or None where the kernel is too old to have them."""
    if len(info) < _NEEDED_BYTES:
        return None
    (acked,) = _ACKED.unpack_from(info, _ACKED_AT)
    busy_us, rwnd_limited_us = _TIMES.unpack_from(info, _TIMES_AT)
    return Counters(acked, busy_us - rwnd_limited_us)


class LinkRate:
    """The rate of one connection in the sending direction, sample by sample."""

    def __init__(self) -> None:
        self._seen = Counters()
        self._nbytes = 0
        self._free_us = 0

    def sample(self, connection: socket.socket) -> Sample | None:
        """Bytes carried since the last sample, or None while they are too few to tell.

        Call it now and then, at most some times a second, and best when a bulk of pieces has just
        been sent; what it finds too little is not lost but counts for the next call.
        """
        before, now = self._seen, _read(connection)
        if now is None:
            return None
        self._seen = now
        self._nbytes += now.acked - before.acked
        self._free_us += now.free_us - before.free_us
        if self._nbytes < LEAST_BYTES or self._free_us < LEAST_BUSY_S * 1e6:
            return None
        sample = Sample(self._nbytes, self._free_us / 1e6)
        self._nbytes = self._free_us = 0
        return sample


def _read(connection: socket.socket) -> Counters | None:
    try:
        info = connection.getsockopt(socket.IPPROTO_TCP, socket.TCP_INFO, _ASKED_BYTES)
    except OSError:  # closed meanwhile, or no TCP: the next send will say so
        return None
    return parse(info)
