"""The ways that sockets.py compares, on which links, and the claims it judges: all as data.

In every chapter the first way is what the others are compared with, and it takes part twice: what
it differs from itself is noise.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Self

from lib.units import KB, MB

AGAIN = "the same again"
# A gain below this is not worth a setting, whatever the noise.
LEAST_GAIN = 0.03


@dataclass(frozen=True)
class SocketWay:
    """The options of sockets, and how calls are made; both ends get the same one. The defaults are
    what the sweep compares with: nothing set but NODELAY.
    """

    label: str
    send_buffer: int = 0  # SO_SNDBUF; 0: the kernel's own tuning
    receive_buffer: int = 0  # SO_RCVBUF
    nodelay: bool = True
    quickack: str = ""  # "once": after connecting; "always": before every receive too
    lowat: int = 0  # TCP_NOTSENT_LOWAT
    send_chunk: int = 256 * KB  # bytes given to one send
    receive_chunk: int = 256 * KB  # bytes asked of one receive
    streams: int = 1
    header: int = 0  # bytes of a header before each chunk
    gathered: bool = True  # header and chunk in one sendmsg; else in two sends
    into: bool = True  # recv_into its place; else recv, and a copy to its place

    def plain(self) -> dict[str, Any]:
        return dataclasses.asdict(self)

    @classmethod
    def of(cls, plain: dict[str, Any]) -> Self:
        return cls(**plain)


@dataclass(frozen=True)
class SocketLink:
    """`warm` bytes go first, untimed: the kernel's own tuning starts small."""

    name: str
    rate: str  # as tc has it; empty: unshaped
    warm: int
    total: int


LINKS = (
    SocketLink("unshaped", "", 64 * MB, 256 * MB),
    SocketLink("1 Gbit", "1gbit", 8 * MB, 32 * MB),
    SocketLink("100 Mbit", "100mbit", 4 * MB, 4 * MB),
)


@dataclass(frozen=True)
class SocketChapter:
    """`form`: bulk, trips or urgent; `payload`: of a trip's message."""

    title: str
    form: str
    ways: Sequence[SocketWay]
    payload: int = 0

    @property
    def turns(self) -> list[SocketWay]:
        first = self.ways[0]
        return [first, dataclasses.replace(first, label=AGAIN), *self.ways[1:]]


def size_text(count: int) -> str:
    return f"{count // MB} M" if count >= MB else f"{count // KB} K"


BUFFERS = tuple(size * KB for size in (512, 1024, 2048, 4096, 8192, 16384))
CHUNKS = tuple(size * KB for size in (64, 128, 256, 512, 1024))
STREAMS = (1, 2, 4, 8)
_HEADER = 64

CHAPTERS = (
    SocketChapter(
        "Buffers: SO_SNDBUF and SO_RCVBUF",
        "bulk",
        (
            SocketWay("autotuning"),
            *(SocketWay(size_text(s), send_buffer=s, receive_buffer=s) for s in BUFFERS),
        ),
    ),
    SocketChapter(
        "Receive chunks: bytes asked of one recv_into",
        "bulk",
        [SocketWay(size_text(size), receive_chunk=size) for size in CHUNKS],
    ),
    SocketChapter(
        "Send chunks: bytes given to one send",
        "bulk",
        [SocketWay(size_text(size), send_chunk=size) for size in CHUNKS],
    ),
    SocketChapter("Streams", "bulk", [SocketWay(f"{n}", streams=n) for n in STREAMS]),
    SocketChapter(
        "recv and recv_into, 256 K each",
        "bulk",
        (SocketWay("recv, then a copy to its place", into=False), SocketWay("recv_into its place")),
    ),
    SocketChapter(
        "Header and payload, frames of 64 B + 16 K",
        "bulk",
        (
            SocketWay("two sends", header=_HEADER, send_chunk=16 * KB, gathered=False),
            SocketWay("one sendmsg", header=_HEADER, send_chunk=16 * KB),
        ),
    ),
    SocketChapter(
        "Header and payload, frames of 64 B + 256 K",
        "bulk",
        (
            SocketWay("two sends", header=_HEADER, gathered=False),
            SocketWay("one sendmsg", header=_HEADER),
        ),
    ),
    SocketChapter(
        "NODELAY, bulk",
        "bulk",
        (SocketWay("off", nodelay=False), SocketWay("on")),
    ),
    SocketChapter(
        "QUICKACK, bulk",
        "bulk",
        (
            SocketWay("off"),
            SocketWay("once", quickack="once"),
            SocketWay("before every receive", quickack="always"),
        ),
    ),
    SocketChapter(
        "Small messages: 64 B + 1 K there and back, header and payload in two sends",
        "trips",
        (
            SocketWay("nothing set", nodelay=False, gathered=False),
            SocketWay("NODELAY", gathered=False),
            SocketWay("QUICKACK once", nodelay=False, gathered=False, quickack="once"),
            SocketWay("QUICKACK always", nodelay=False, gathered=False, quickack="always"),
        ),
        payload=KB,
    ),
    SocketChapter(
        "Small messages: 64 B + 1 K there and back, in one sendmsg",
        "trips",
        (
            SocketWay("nothing set", nodelay=False),
            SocketWay("NODELAY"),
            SocketWay("NODELAY, QUICKACK once", quickack="once"),
            SocketWay("NODELAY, QUICKACK always", quickack="always"),
        ),
        payload=KB,
    ),
    SocketChapter(
        "Small messages: 64 B + 1 K there and back, NODELAY",
        "trips",
        (SocketWay("two sends", gathered=False), SocketWay("one sendmsg")),
        payload=KB,
    ),
    SocketChapter(
        "A small frame in a full stream: how late it comes, with TCP_NOTSENT_LOWAT",
        "urgent",
        (
            SocketWay("not set"),
            *(SocketWay(size_text(s), lowat=s) for s in (16 * KB, 128 * KB, 512 * KB)),
        ),
    ),
)


@dataclass(frozen=True)
class Claim:
    """One of the first WIIIIIDE's: `better` was to be faster than `worse`, in a chapter."""

    text: str
    chapter: str
    better: str
    worse: str


def _claims(text: str, title: str, *labels: str) -> list[Claim]:
    """Each label was to be faster than the one before it."""
    (chapter,) = (one.title for one in CHAPTERS if one.title.startswith(title))
    steps = zip(labels[1:], labels[:-1], strict=True)
    return [Claim(f"{text}: {b} over {w}", chapter, b, w) for b, w in steps]


_TWO_SENDS = "Small messages: 64 B + 1 K there and back, header"
_ONE_SEND = "Small messages: 64 B + 1 K there and back, in one"
_GATHERED = ("two sends", "one sendmsg")
CLAIMS = (
    *_claims("NODELAY, messages in two sends", _TWO_SENDS, "nothing set", "NODELAY"),
    *_claims("NODELAY, messages in one send", _ONE_SEND, "nothing set", "NODELAY"),
    *_claims("NODELAY, bulk", "NODELAY, bulk", "off", "on"),
    *_claims("bigger buffers", "Buffers", "512 K", "1 M", "8 M", "16 M"),
    *_claims("buffers of 16 M", "Buffers", "autotuning", "16 M"),
    *_claims("QUICKACK, messages", _ONE_SEND, "NODELAY", "NODELAY, QUICKACK once"),
    *_claims("QUICKACK, messages", _ONE_SEND, "NODELAY", "NODELAY, QUICKACK always"),
    *_claims("QUICKACK, bulk", "QUICKACK, bulk", "off", "once"),
    *_claims("larger receive chunks", "Receive chunks", "64 K", "256 K", "1 M"),
    *_claims(
        "one gathered send, messages",
        "Small messages: 64 B + 1 K there and back, NODELAY",
        *_GATHERED,
    ),
    *_claims("one gathered send, 16 K", "Header and payload, frames of 64 B + 16 K", *_GATHERED),
    *_claims("one gathered send, 256 K", "Header and payload, frames of 64 B + 256 K", *_GATHERED),
    *_claims(
        "received in place",
        "recv and recv_into",
        *("recv, then a copy to its place", "recv_into its place"),
    ),
)
