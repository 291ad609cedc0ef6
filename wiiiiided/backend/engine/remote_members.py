"""A group's members on other hosts: which ranks this one sends to, and what it expects of them.

    host 0   ranks 0 1 2       rank 1's counterpart on host 1 is rank 4 (place 1), on host 2 rank 5:
    host 1   ranks 3 4         place p talks for its host to those places q of another whose
    host 2   rank  5           q mod (its own number of ranks) is p

Every operation across hosts begins with a barrier: when all ranks of a host have called it, each
of them sends OPEN to its audience; a rank with an OPEN from every other host knows that all ranks
have begun, so that from then on nothing depends on what a program does next. Only then do PIECE
frames flow, into places that were posted. A small operation's data rides on the OPEN itself.

An OPEN may come before the operation is called here: it waits in `_opens`, at most one operation
ahead (no rank ends one without my team's OPEN), so what a peer can make us keep is bounded. A PIECE
that finds no place stops its link for a moment (net.frames): the place comes, because all ranks
have begun.
"""

from __future__ import annotations

import time
from collections.abc import Collection, Sequence
from typing import TYPE_CHECKING, Any, Final, NamedTuple

import numpy as np

from wiiiiided.backend.codec.interface import PieceInfo
from wiiiiided.backend.engine.operation import Until, different_calls
from wiiiiided.backend.shm.board import CALL_BYTES, CallSignature
from wiiiiided.backend.shm.kernels import DTYPE_NAMES
from wiiiiided.backend.shm.slots import SMALL_BYTES, Array
from wiiiiided.backend.wire.header import MAX_PAYLOAD, Header
from wiiiiided.backend.wire.local_frame import FrameKind
from wiiiiided.errors import BadFrame

if TYPE_CHECKING:
    from wiiiiided.backend.engine.group import Group

WIDEST: Final = 4  # a host's sum of float8 numbers goes to the others as float32
MAX_OPEN: Final = CALL_BYTES + WIDEST * SMALL_BYTES
# How far a peer can be ahead: an operation is begun here before I arrive in my team, and a far rank
# that is done with it has heard my team, so it has announced the next one at most.
EARLY: Final = 1


class Open(NamedTuple):
    """One host's word that all its ranks have begun an operation."""

    digest: int
    ahead: int  # small operations it has queued behind this one
    text: bytes
    data: memoryview


class Ticket:
    """A piece on its way, in or out; `done` when it is there, or with the kernel."""

    __slots__ = ("done", "peer", "view")

    def __init__(self, peer: int, view: memoryview) -> None:
        self.peer, self.view, self.done = peer, view, False

    def finish(self) -> None:
        self.done = True


class RemoteMembers:
    """The members on other hosts, as one rank of the group sees them: frames to and from them."""

    def __init__(self, group: Group, hosts: Sequence[Sequence[int]]) -> None:
        self._group = group
        self.hosts = [list(ranks) for ranks in hosts]
        self.host = next(h for h, ranks in enumerate(hosts) if group.rank in ranks)
        self.place = self.hosts[self.host].index(group.rank)
        mine = len(self.hosts[self.host])
        others = [h for h in range(len(hosts)) if h != self.host]
        self.others = others
        # By host, the rank that sends me its OPEN; and the ranks that I send my host's OPEN to.
        self.counterparts = {h: self.hosts[h][self.place % len(self.hosts[h])] for h in others}
        self.audience = [
            rank
            for h in others
            for place, rank in enumerate(self.hosts[h])
            if place % mine == self.place
        ]
        self.sequence = 0
        self.agreed = 0  # small operations at the head of every rank's queue: to be run as one
        self.met_ns = 0  # when the hosts last met
        self.barriers_entered = dict.fromkeys((r for h in others for r in self.hosts[h]), 0)
        self.scratch: dict[str, Array] = {}  # buffers of the large collectives, by purpose
        self._speakers = frozenset(self.counterparts.values())
        self._opens: dict[tuple[int, int], Open] = {}
        self._places: dict[tuple[int, int, int, int], Ticket] = {}

    # -- the meeting ----

    def begin(self) -> int:
        """The number of the next operation, the same on all ranks."""
        self.sequence += 1
        return self.sequence

    def open(
        self, sequence: int, call: CallSignature, data: Array | None = None, ahead: int = 0
    ) -> None:
        """Tell my audience that all ranks of my host have begun."""
        payload = call.raw if data is None else call.raw + data.tobytes()
        header = self._group.header(FrameKind.OPEN, sequence)
        header.extra, header.piece = call.digest, ahead
        for rank in self.audience:
            self._group.send_far(rank, header, payload)

    def opened(self, sequence: int) -> Until:
        """Make the wait for every other host's OPEN."""
        keys = [(sequence, rank) for rank in self.counterparts.values()]
        opens = self._opens

        def ready() -> bool:
            for key in keys:  # noqa: SIM110 - a generator costs more, and this is polled
                if key not in opens:
                    return False
            return True

        def missing() -> list[int]:
            return [rank for _, rank in keys if (sequence, rank) not in opens]

        return Until(ready, missing, "the other hosts")

    def hear(self, sequence: int) -> dict[int, Open]:
        """Take the other hosts' calls, by host."""
        self.met_ns = time.monotonic_ns()
        return {h: self._opens.pop((sequence, rank)) for h, rank in self.counterparts.items()}

    def take_opens(self, sequence: int, call: CallSignature) -> dict[int, Open]:
        """Take the other hosts' calls, by host; raises Mismatch unless they are this one."""
        said = self.hear(sequence)
        for h, there in said.items():
            if there.digest != call.digest:
                text = there.text.rstrip(b"\0").decode(errors="replace")
                name, me = self._group.membership.name, self._group.rank
                raise different_calls(name, me, call.text, self.counterparts[h], text)
        return said

    def with_mates(self, ranks: list[int]) -> list[int]:
        """These ranks, and all ranks of the other hosts that one of them is on."""
        others = [self.hosts[h] for h in self.others]
        mates = {mate for host in others if not set(host).isdisjoint(ranks) for mate in host}
        return sorted(mates.union(ranks))

    def enter_monitored_barrier(self, number: int) -> None:
        """Tell every rank of the other hosts that this one has entered a monitored barrier."""
        header = self._group.header(FrameKind.ENTER_BARRIER, number)
        for rank in self.barriers_entered:
            self._group.send_far(rank, header)

    # -- pieces ----

    def post(self, peer: int, sequence: int, lane: int, piece: int, into: Array) -> Ticket:
        """Post where a piece from a rank goes when it comes; `into` is contiguous."""
        ticket = Ticket(peer, _bytes(into))
        self._places[peer, sequence, lane, piece] = ticket
        self._group.process.place_posted(self._group.links[peer])
        return ticket

    def send(self, peer: int, sequence: int, lane: int, piece: int, data: Array) -> Ticket:
        """Send a piece; the ticket is done when `data` may be changed again."""
        view = _bytes(data)
        ticket = Ticket(peer, view)
        header = self._group.header(FrameKind.PIECE, sequence)
        header.lane, header.piece = lane, piece
        self._group.send_piece(peer, header, view, _info(data), ticket.finish)
        return ticket

    def tickets(self, tickets: Sequence[Ticket], what: str) -> Until:
        """Make the wait for these pieces, in or out."""
        return Until(
            lambda: all(t.done for t in tickets),
            lambda: sorted({t.peer for t in tickets if not t.done}),
            what,
        )

    def tell_coding(self, peers: Collection[int], summary: str) -> None:
        """Note how gradients travelled to these ranks, for `links()`; empty: as they are."""
        for peer in peers:
            self._group.tell_coding(peer, summary)

    # -- frames ----

    def place_for(self, header: Header) -> memoryview | None:
        """Where an OPEN or PIECE of this group goes; None: not yet. BadFrame: nowhere, ever."""
        if header.kind == FrameKind.PIECE:
            ticket = self._places.get((header.source, header.sequence, header.lane, header.piece))
            if ticket is None:
                return None
            if len(ticket.view) != header.raw:
                raise BadFrame(
                    f"rank {header.source} sent a piece of {header.raw} bytes where "
                    f"{len(ticket.view)} belong"
                )
            return ticket.view
        early = header.sequence - self.sequence
        known = header.source in self._speakers and 0 <= early <= EARLY
        if not known or not CALL_BYTES <= header.raw <= MAX_OPEN:
            raise BadFrame(
                f"rank {header.source} announced operation {header.sequence} with {header.raw} "
                f"bytes; rank {self._group.rank} is at operation {self.sequence}"
            )
        return memoryview(bytearray(header.raw))

    def on_frame(self, header: Header, payload: memoryview) -> None:
        """Handle an OPEN, PIECE or ENTER_BARRIER frame of this group."""
        if header.kind == FrameKind.PIECE:
            key = (header.source, header.sequence, header.lane, header.piece)
            ticket = self._places.pop(key, None)
            if ticket is not None:
                ticket.done = True
        elif header.kind == FrameKind.OPEN:
            self._opens[header.sequence, header.source] = Open(
                header.extra, header.piece, bytes(payload[:CALL_BYTES]), payload[CALL_BYTES:]
            )
        else:
            self.barriers_entered[header.source] = header.sequence

    def release(self) -> None:
        """Expect nothing any more: the group is over."""
        self._opens.clear()
        self._places.clear()
        self.scratch.clear()

    def buffer(self, purpose: str, nbytes: int) -> Array:
        """Memory that stays from one operation to the next; it only grows."""
        buffer = self.scratch.get(purpose)
        if buffer is None or buffer.size < nbytes:
            buffer = self.scratch[purpose] = np.empty(nbytes, np.uint8)
        return buffer[:nbytes]


def _bytes(x: Array) -> memoryview:
    return x.view(np.uint8).data


_INFOS: dict[np.dtype[Any], PieceInfo] = {}


def _info(x: Array) -> PieceInfo:
    info = _INFOS.get(x.dtype)
    if info is None:
        name = str(x.dtype)
        code = DTYPE_NAMES.index(name) if name in DTYPE_NAMES else 0xFFFF
        info = _INFOS[x.dtype] = PieceInfo(dtype=code, itemsize=x.itemsize)
    return info


assert MAX_OPEN <= MAX_PAYLOAD
