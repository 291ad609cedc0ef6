"""The ladder's contenders, as data: six stages as their documents describe them, and today's ways.

A stage is a parameter server with nodes over TCP. The stages differ in three things only:

    sockets      buffers, TCP options, how a frame is sent, how large a piece is received
    pickle       of which protocol, with tensors inside or with tensors as bytes
    codecs       of messages with gradients, from which size on; of all other messages

Where the documents leave something open, the choice is this. The early system's sends and receives
are those that stage 2 says it replaced: header and payload apart, pieces joined. The timeline puts
direct tensors on top of the LZ4 of stage 5, the listing of stage 6 shows the zlib of stage 3 again:
taken is LZ4, the faster one (docs/lab-log.md), with the buffers and pieces of the listing.
"""

import socket
import zlib
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial

import lz4.block  # type: ignore[import-untyped]

KB, MB = 1024, 1024 * 1024
_LZ4_MOST_ACCELERATION = 65537  # LZ4_ACCELERATION_MAX: larger values mean the same


@dataclass(frozen=True)
class StageCodec:
    """`number` tells the receiver which one it was."""

    number: int
    compress: Callable[[bytes], bytes]
    decompress: Callable[[bytes], bytes]


PLAIN = StageCodec(0, bytes, bytes)
ZLIB_1 = StageCodec(1, partial(zlib.compress, level=1), zlib.decompress)
ZLIB_9 = StageCodec(2, partial(zlib.compress, level=9), zlib.decompress)
LZ4 = StageCodec(
    3,
    partial(lz4.block.compress, mode="fast", acceleration=_LZ4_MOST_ACCELERATION),
    lz4.block.decompress,
)
CODECS = {codec.number: codec for codec in (PLAIN, ZLIB_1, ZLIB_9, LZ4)}

_NODELAY = (socket.IPPROTO_TCP, socket.TCP_NODELAY)
_QUICKACK = (socket.IPPROTO_TCP, socket.TCP_QUICKACK)
_KEEPALIVE = (socket.SOL_SOCKET, socket.SO_KEEPALIVE)


@dataclass(frozen=True)
class LadderStage:
    """One stage of the first WIIIIIDE; `then` is the batches a second its documents report."""

    number: int
    what: str
    then: int
    buffer_bytes: int
    options: tuple[tuple[int, int], ...] = ()
    one_send: bool = True  # header and payload in one call
    in_place: bool = True  # received into one buffer, not joined from pieces
    piece_bytes: int | None = None  # received at most in one call; None: all that is left
    pickle_protocol: int = 5
    direct_tensors: bool = False
    gradients: StageCodec = PLAIN
    gradients_above: int = 0  # the size from which on gradients go through their codec
    others: StageCodec = PLAIN

    @property
    def title(self) -> str:
        return f"{self.number} {self.what}"

    def codec_for(self, has_gradients: bool, nbytes: int) -> StageCodec:
        if not has_gradients:
            return self.others
        return self.gradients if nbytes > self.gradients_above else PLAIN


STAGES = (
    LadderStage(
        *(1, "early", 91),
        buffer_bytes=512 * KB,
        one_send=False,
        in_place=False,
        pickle_protocol=4,  # Python's default
    ),
    LadderStage(
        *(2, "standard", 459),
        buffer_bytes=1 * MB,
        options=(_NODELAY, _KEEPALIVE),
        gradients=ZLIB_1,
        others=ZLIB_9,
    ),
    LadderStage(
        *(3, "adaptive", 572),
        buffer_bytes=8 * MB,
        options=(_NODELAY, _QUICKACK),
        piece_bytes=256 * KB,
        gradients=ZLIB_1,
        gradients_above=1 * MB,
        others=ZLIB_9,
    ),
    LadderStage(
        *(4, "enhanced", 575),
        buffer_bytes=16 * MB,
        options=(_NODELAY, _QUICKACK),
        piece_bytes=1 * MB,
        gradients=ZLIB_1,
        gradients_above=512 * KB,
        others=ZLIB_9,
    ),
    LadderStage(
        *(5, "LZ4 block", 577),
        buffer_bytes=16 * MB,
        options=(_NODELAY, _QUICKACK),
        piece_bytes=1 * MB,
        gradients=LZ4,
        gradients_above=512 * KB,
        others=LZ4,
    ),
    LadderStage(
        *(6, "direct tensor", 812),
        buffer_bytes=8 * MB,
        options=(_NODELAY, _QUICKACK),
        piece_bytes=256 * KB,
        direct_tensors=True,
        gradients=LZ4,
        gradients_above=1 * MB,
        others=LZ4,
    ),
)


@dataclass(frozen=True)
class Ranks:
    """One of today's ways: ranks that train without a server; `backend` None: each for itself."""

    title: str
    backend: str | None
    ddp: bool = False
    backwards: int = 1  # before each step of the optimizer
    staleness: int | None = None  # None: synchronous updates

    @property
    def together(self) -> bool:
        """All ranks make the same number of steps."""
        return self.backend is not None and self.staleness is None


GLOO = Ranks("gloo, DDP", "gloo", ddp=True)
DDP = Ranks("wiiiiide, DDP", "wiiiiide", ddp=True)
SYNC = Ranks("wide.parallel", "wiiiiide")
FOUR = Ranks("wide.parallel, 4 backwards", "wiiiiide", backwards=4)
ASYNC = Ranks("wide.parallel, async", "wiiiiide", staleness=64)
BOUND = Ranks("without any exchange", None)

Contender = LadderStage | Ranks
CONTENDERS: tuple[Contender, ...] = (*STAGES, GLOO, DDP, SYNC, FOUR, ASYNC, BOUND)
