"""Sums of segments over hosts: each rank exchanges what it has with its counterparts alone.

An all_reduce gives every rank all of the result. Where the ranks of a host share memory, each
needs only the part that it works on: its host's sum of that part goes to the rank of each other
host that works on the same part, and nothing is gathered inside a host.

    a segment     one rank of each host has it:  rank 0 ── rank 2 ── rank 5
    a piece       up to 1 MiB of a segment, numbered over all segments, the same on all ranks

    two hosts     each sends the other its values, both add them in the order of hosts: one trip
    more hosts    host h adds up share h of a piece and sends the sum back: two trips, and
                  2(H-1)/H of the piece in each direction, the least there is

In turn i a rank sends piece i of those it takes part in, adds up piece i-w and, with more than two
hosts, has the sums of piece i-2w. Ranks go through their pieces in the order of numbers, so the
least piece that is not done finds all its ranks ready for it: nothing waits in a circle.

Places. Where all segments of a rank have the same counterparts, none of them sends more than w
pieces ahead, and places are posted WINDOW ahead. Where hosts have different numbers of ranks, one
counterpart may be far ahead with another: then all places are posted before the first is sent.

Every element is added up in the order of hosts, by one rank of each host or by one in all: the bits
are the same everywhere.

Lossy. A segment with a residual travels coded (`backend.lossy`) where the caller gives a codec; the
turns are the same, and a piece is encoded while those before it are on the wire:

    two hosts     each encodes its values and has what the other decodes: both add the two
    more hosts    values are encoded for the host that adds them up, which adds its own as they are;
                  the sum is encoded once more, and the host that made it has what the others decode

So an element is rounded twice at most, and a host makes one of the two roundings: one residual an
element is enough. The sums so far lack the sum of the hosts' residuals.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Final

import numpy as np

from wiiiiided.backend.collectives.pieces import pieces, share_bounds
from wiiiiided.backend.collectives.wide.barrier import (
    FLIGHT,
    WINDOW,
    open_collective,
    remote_members,
)
from wiiiiided.backend.collectives.wide.segment_coder import SegmentCoder
from wiiiiided.backend.engine.group import Group
from wiiiiided.backend.engine.operation import Plan, Wait
from wiiiiided.backend.engine.remote_members import Ticket
from wiiiiided.backend.lossy.interface import GradientCodec
from wiiiiided.backend.shm import stats
from wiiiiided.backend.shm.board import CallSignature
from wiiiiided.backend.shm.slots import Array

PIECE_BYTES: Final = 1 << 20  # as the pieces of an all_reduce (bench/two_hosts.py)
_EMPTY: Final = np.empty(0, np.uint8)
_SUMS, _RESULTS = 0, 1  # lanes


@dataclass(frozen=True)
class HostSegment:
    """A segment of which this rank has its host's values; they become the sum over all hosts."""

    values: Array  # flat
    members: tuple[int, ...]  # by host: the rank that has this segment there
    first: int  # the number of its first piece
    residual: Array | None = None  # float32 as the values are: they may travel coded


@dataclass(frozen=True)
class _SegmentPiece:
    number: int
    values: Array
    members: tuple[int, ...]
    residual: Array | None  # None: it travels as it is


def count_pieces(elements: int, itemsize: int) -> int:
    """How many numbers a segment takes."""
    return len(pieces(elements, PIECE_BYTES // itemsize))


def exchange_segments(
    group: Group,
    call: CallSignature,
    segments: Sequence[HostSegment],
    codec: GradientCodec | None = None,
) -> Plan:
    """The plan. All ranks of the group call it, also those that have no segment."""
    return _SegmentExchange(group, call, segments, codec).plan()


class _SegmentExchange:
    """One exchange under way."""

    def __init__(
        self,
        group: Group,
        call: CallSignature,
        segments: Sequence[HostSegment],
        codec: GradientCodec | None,
    ) -> None:
        self._group, self._wide, self._call = group, remote_members(group), call
        self._host, self._hosts = self._wide.host, len(self._wide.hosts)
        self._split = self._hosts > 2
        self._pieces = [piece for segment in segments for piece in _cut(segment, codec)]
        even = len({segment.members for segment in segments}) <= 1
        count = len(self._pieces)
        self._window = min(WINDOW, count) if even else count
        self._incoming: dict[int, list[Ticket]] = {}
        self._outgoing: dict[int, list[Ticket]] = {}
        self._collected: dict[int, list[Ticket]] = {}
        self._sequence = 0
        self._coder = None if codec is None else SegmentCoder(self._wide, codec)

    def _make_buffers(self) -> None:
        """Make the ring for the other hosts' parts of what this rank adds up."""
        self._ring = min(self._window + FLIGHT + 1, max(len(self._pieces), 1))
        share_bytes = PIECE_BYTES // (self._hosts if self._split else 1)
        self._row = share_bytes + 64 * 8
        if self._coder is not None:
            self._row = max(self._row, self._coder.make_buffers(share_bytes // 4 + 64))
        self._row = -(-self._row // 64) * 64
        others = self._hosts - 1
        raw = self._wide.buffer("segments", self._ring * others * self._row)
        self._heard = raw.reshape(self._ring, others, self._row)

    def plan(self) -> Plan:
        self._make_buffers()  # here: a rank without memory for it fails the group, not only itself
        yield from open_collective(self._group, self._call, _EMPTY, False, post=self._post_first)
        count, w = len(self._pieces), FLIGHT
        v = w if self._split else 0
        for turn in range(count + w + v if count else 0):
            if turn + self._window < count:
                self._post(turn + self._window)
            if turn < count:
                self._post_results(turn)
                self._send(turn)
            if 0 <= (k := turn - w) < count:
                yield from self._await(self._incoming.pop(k), "gradients of other hosts")
                yield from self._await(self._outgoing.pop(k), "the network to take gradients")
                self._combine(k)
            if v and 0 <= (k := turn - w - v) < count:
                yield from self._await(self._collected.pop(k), "sums of other hosts")
                yield from self._await(self._outgoing.pop(k, []), "the network to take sums")
                self._take_results(k)
        if self._coder is not None:
            peers = {rank for k in range(count) for _, rank, _ in self._others(k)}
            self._wide.tell_coding(peers, self._coder.summary())
            # Of every share that is sent coded one is received: the counters are of the payload.
            words = self._group.driver.page.words
            words[stats.WIRE_OUT_RAW] += self._coder.saved
            words[stats.WIRE_IN_RAW] += self._coder.saved

    def _await(self, tickets: list[Ticket], what: str) -> Iterator[Wait]:
        if not all(ticket.done for ticket in tickets):
            yield self._wide.tickets(tickets, what)

    # -- the phases ----

    def _post_first(self, sequence: int) -> None:
        self._sequence = sequence
        for k in range(self._window):
            self._post(k)

    def _post(self, k: int) -> None:
        """Where the other hosts' values of what I add up go."""
        self._incoming[k] = [
            self._wide.post(rank, self._sequence, _SUMS, number, self._heard_of(k, host))
            for host, rank, number in self._others(k)
            if self._share(k, self._host).size
        ]

    def _post_results(self, k: int) -> None:
        """Where the other hosts' sums go. They need my values, which I have not sent yet."""
        if self._split:
            self._collected[k] = [
                self._wide.post(rank, self._sequence, _RESULTS, number, self._result_of(k, host))
                for host, rank, number in self._others(k)
                if self._share(k, host).size
            ]

    def _send(self, k: int) -> None:
        self._outgoing[k] = [
            self._wide.send(rank, self._sequence, _SUMS, number, self._written(k, host))
            for host, rank, number in self._others(k)
            if self._share(k, host).size
        ]

    def _others(self, k: int) -> Iterator[tuple[int, int, int]]:
        """The other hosts with their ranks, and the number of the piece."""
        piece = self._pieces[k]
        for host, rank in enumerate(piece.members):
            if host != self._host:
                yield host, rank, piece.number

    def _combine(self, k: int) -> None:
        """Sum the hosts' values, in the order of hosts."""
        mine = self._share(k, self._host)
        if not mine.size:
            return
        coder = self._coder_of(k)
        if coder is not None:
            coder.add_up(mine, {h: self._heard_of(k, h) for h in self._wide.others})
        else:
            self._add_up(k, mine)
        if self._split:
            result = mine if coder is None else coder.result(k, mine, self._left(k, self._host))
            self._outgoing[k] = [
                self._wide.send(rank, self._sequence, _RESULTS, number, result)
                for _, rank, number in self._others(k)
            ]

    def _add_up(self, k: int, mine: Array) -> None:
        values = [mine if h == self._host else self._heard_of(k, h) for h in range(self._hosts)]
        total = mine if self._hosts == 2 else values[0]
        np.add(values[0], values[1], out=total)
        for more in values[2:]:
            np.add(total, more, out=total)
        if total is not mine:
            mine[:] = total

    def _take_results(self, k: int) -> None:
        """Decode other hosts' sums that came coded."""
        coder = self._coder_of(k)
        if coder is not None:
            for host, _, _ in self._others(k):
                coder.codec.decode(self._result_of(k, host), self._share(k, host))

    # -- where pieces lie ----

    def _coder_of(self, k: int) -> SegmentCoder | None:
        return None if self._pieces[k].residual is None else self._coder

    def _span(self, k: int, host: int) -> tuple[int, int]:
        """The part of a piece that a host adds up: with two hosts, each all of it."""
        count = self._pieces[k].values.size
        return share_bounds(count, self._hosts)[host] if self._split else (0, count)

    def _share(self, k: int, host: int) -> Array:
        begin, end = self._span(k, host)
        return self._pieces[k].values[begin:end]

    def _left(self, k: int, host: int) -> Array:
        """The residual of a host's share of a piece."""
        residual, (begin, end) = self._pieces[k].residual, self._span(k, host)
        assert residual is not None
        return residual[begin:end]

    def _written(self, k: int, host: int) -> Array:
        """The data for another host: its share as it is, or coded; with two hosts, all of it."""
        share, coder = self._share(k, host), self._coder_of(k)
        return share if coder is None else coder.written(k, host, share, self._left(k, host))

    def _heard_of(self, k: int, host: int) -> Array:
        """Where another host's values of my share of a piece are received."""
        mine, coder = self._share(k, self._host), self._coder_of(k)
        row: Array = self._heard[k % self._ring, host if host < self._host else host - 1]
        if coder is not None:
            return row[: coder.codec.coded_bytes(mine.size)]
        return row[: mine.nbytes].view(mine.dtype)

    def _result_of(self, k: int, host: int) -> Array:
        """Where another host's sum of its share is received."""
        share, coder = self._share(k, host), self._coder_of(k)
        return share if coder is None else coder.collected(k, host, share.size)


def _cut(segment: HostSegment, codec: GradientCodec | None) -> Iterator[_SegmentPiece]:
    cuts = pieces(segment.values.size, PIECE_BYTES // segment.values.itemsize)
    residual = None if codec is None else segment.residual
    for nth, (begin, end) in enumerate(cuts):
        yield _SegmentPiece(
            segment.first + nth,
            segment.values[begin:end],
            segment.members,
            None if residual is None else residual[begin:end],
        )
