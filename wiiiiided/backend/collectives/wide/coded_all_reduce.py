"""all_reduce whose sums travel between hosts in a lossy codec: for gradients, where a user asks.

    inside a host    rank r adds up share r of all ranks' arrays, exactly
    between hosts    share r goes coded to the ranks of the other hosts that have it, or parts of it
                     (segment_exchange, which also says why all hosts have the same bits)
    inside a host    every rank takes the others' shares

Hosts with different numbers of ranks cut the array differently; where the cuts of all hosts are
laid over each other, a stretch between two of them belongs to one rank of each host:

    host 0, two ranks     │      rank 0      │      rank 1      │
    host 1, three ranks   │   rank 2   │   rank 3  │   rank 4   │
    segments              │    0-2     │ 0-3 │ 1-3 │    1-4     │

One phase after the other, not piece by piece through all of them as an exact all_reduce is: on a
link that is slow enough for a lossy codec the wire is what takes the time.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import pairwise, repeat
from typing import NamedTuple, Protocol

import numpy as np

from wiiiiided.backend.collectives.local.relay import relay, room
from wiiiiided.backend.collectives.pieces import pieces, share_bounds
from wiiiiided.backend.collectives.wide.barrier import remote_members
from wiiiiided.backend.collectives.wide.segment_exchange import (
    HostSegment,
    count_pieces,
    exchange_segments,
)
from wiiiiided.backend.engine.group import Group
from wiiiiided.backend.engine.host_team import Team
from wiiiiided.backend.engine.operation import Plan
from wiiiiided.backend.engine.shared_tensors import PRIVATE
from wiiiiided.backend.lossy.interface import Floats, GradientCodec
from wiiiiided.backend.shm.board import CallSignature
from wiiiiided.backend.shm.kernels import Combine
from wiiiiided.backend.shm.slots import Array


class HostResiduals(Protocol):
    """The residuals of an array's elements, kept for the host: another rank may come next."""

    def load(self, begin: int, out: Floats) -> None:
        """Copy the residuals of the elements from `begin` on."""

    def store(self, begin: int, values: Floats) -> None:
        """Keep them."""


class SharedStretch(NamedTuple):
    """Elements that one rank of each host has."""

    begin: int
    end: int
    members: tuple[int, ...]  # by host


def coded_all_reduce(
    group: Group,
    call: CallSignature,
    x: Floats,
    combine: Combine,
    codec: GradientCodec,
    residuals: HostResiduals,
) -> Plan:
    """The plan. `combine` makes of a host's arrays what is added up over the hosts."""
    team, wide = group.team, remote_members(group)
    yield from _reduce_share(team, call, x, combine)
    begin, end = share_bounds(x.size, team.size)[team.rank]
    left = wide.buffer("residuals of a share", 4 * (end - begin)).view(np.float32)
    residuals.load(begin, left)
    segments = list(_segments(x, wide.hosts, wide.host, group.rank, begin, left))
    yield from exchange_segments(group, call, segments, codec)
    residuals.store(begin, left)
    yield from _gather_shares(team, call, x)


def _reduce_share(team: Team, call: CallSignature, x: Array, combine: Combine) -> Plan:
    """My share of x becomes what `combine` makes of all ranks' arrays there."""
    me, size = team.rank, team.size
    if size == 1:
        combine([x], x)
        return
    shares = share_bounds(x.size, size)
    longest = shares[0][1]
    large, elements = room(team, x, size * longest * x.itemsize)
    most = elements // size  # a slot holds a part for each rank
    cuts = pieces(longest, most)

    def put(k: int, slots: list[Array]) -> None:
        for r in range(size):
            if r != me:
                theirs = _cut_out(x, shares[r], cuts[k])
                slots[me][r * most : r * most + theirs.size] = theirs

    def take(k: int, slots: list[Array]) -> None:
        mine = _cut_out(x, shares[me], cuts[k])
        here = slice(me * most, me * most + mine.size)
        # Into my slot, where none has put anything: an operand must not change before it is read.
        combine([mine if r == me else slots[r][here] for r in range(size)], slots[me][here])
        mine[:] = slots[me][here]

    yield from relay(team, call, x, PRIVATE, large, len(cuts), put, take)


def _cut_out(x: Array, share: tuple[int, int], cut: tuple[int, int]) -> Array:
    """A piece of a share; `cut`: within the longest share, of which this one may be shorter."""
    (low, high), (begin, end) = share, cut
    return x[min(low + begin, high) : min(low + end, high)]


def _gather_shares(team: Team, call: CallSignature, x: Array) -> Plan:
    """All ranks' shares of x."""
    if team.size == 1:
        return
    me, shares = team.rank, share_bounds(x.size, team.size)
    longest = shares[0][1]
    large, most = room(team, x, longest * x.itemsize)
    cuts = pieces(longest, most)

    def put(k: int, slots: list[Array]) -> None:
        mine = _cut_out(x, shares[me], cuts[k])
        slots[me][: mine.size] = mine

    def take(k: int, slots: list[Array]) -> None:
        for r in range(team.size):
            if r != me:
                theirs = _cut_out(x, shares[r], cuts[k])
                theirs[:] = slots[r][: theirs.size]

    yield from relay(team, call, x, PRIVATE, large, len(cuts), put, take)


def _segments(
    x: Array, hosts: Sequence[Sequence[int]], host: int, rank: int, begin: int, left: Floats
) -> Iterator[HostSegment]:
    first = 0
    for stretch in shared_stretches(x.size, hosts):
        if stretch.members[host] == rank:
            here = slice(stretch.begin - begin, stretch.end - begin)
            values = x[stretch.begin : stretch.end]
            yield HostSegment(values, stretch.members, first, left[here])
        first += count_pieces(stretch.end - stretch.begin, x.itemsize)


def shared_stretches(count: int, hosts: Sequence[Sequence[int]]) -> list[SharedStretch]:
    """How the shares of the hosts' ranks meet, in one order on all ranks."""
    shares = [share_bounds(count, len(ranks)) for ranks in hosts]
    cuts = sorted({bound for bounds in shares for span in bounds for bound in span})
    return [
        SharedStretch(begin, end, tuple(map(_holder, hosts, shares, repeat(begin))))
        for begin, end in pairwise(cuts)
    ]


def _holder(ranks: Sequence[int], shares: Sequence[tuple[int, int]], at: int) -> int:
    """The rank of a host in whose share an element lies."""
    return next(r for r, (low, high) in zip(ranks, shares, strict=True) if low <= at < high)
