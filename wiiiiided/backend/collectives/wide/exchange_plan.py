"""Which rank sends what to which, to exchange a piece between hosts. Arithmetic, same on all.

A *region* (a piece, or one host's share of it) is split evenly over the ranks of each host. Two
hosts with different numbers of ranks split it differently, and a rank exchanges with those of the
other host whose part overlaps its own:

    host 0, two ranks     │      rank 0      │      rank 1      │
    host 1, three ranks   │   rank 2   │   rank 3  │   rank 4   │
    exchanged             │    0-2     │ 0-3 │ 1-3 │    1-4     │

With equal numbers that is place i with place i. Every element crosses once between two hosts,
whatever their ranks, and every rank of a host carries its part over a connection of its own.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache

from wiiiiided.backend.collectives.pieces import share_bounds

Hosts = tuple[tuple[int, ...], ...]  # the ranks of each host
Span = tuple[int, int]


@dataclass(frozen=True)
class PartTransfer:
    """A stretch of a piece that goes to a rank, or comes from it."""

    rank: int
    host: int
    begin: int
    end: int


@dataclass(frozen=True)
class PieceExchange:
    """One rank's part in the exchange of a piece.

    whole       two hosts: each sends the other its local sum of the whole piece, both add: one trip
    split       host h adds up share h of the piece for all and sends the result back: two trips,
                2(H-1)/H of the piece in each direction, the least there is. Always with more than
                two hosts; with two where sums are twice as large as results: 3/4 of `whole`
    """

    mine: tuple[Span, ...]  # what this rank reduces inside its host
    own: Span  # what it reduces over the hosts
    sends: tuple[PartTransfer, ...]  # local sums, out
    receives: tuple[PartTransfer, ...]  # local sums of others of `own`, in
    returns: tuple[PartTransfer, ...]  # the result of `own`, out
    results: tuple[PartTransfer, ...]  # results of the others' shares, in


@lru_cache(maxsize=256)
def exchange(count: int, hosts: Hosts, host: int, place: int, split: bool) -> PieceExchange:
    """The exchange of a piece of `count` elements, for one rank."""
    shares: list[Span] = share_bounds(count, len(hosts)) if split else [(0, count), (0, count)]
    local = [_split(share, len(hosts[host]))[place] for share in shares]
    own = local[host]
    others = [h for h in range(len(hosts)) if h != host]
    sends = [part for h in others for part in _transfers(local[h], shares[h], hosts, h)]
    receives = [part for h in others for part in _transfers(own, shares[host], hosts, h)]
    if not split:
        return PieceExchange((own,), own, tuple(sends), tuple(receives), (), ())
    return PieceExchange(
        tuple(local), own, tuple(sends), tuple(receives), tuple(receives), tuple(sends)
    )


def _split(span: Span, parts: int) -> list[Span]:
    begin, end = span
    return [(begin + low, begin + high) for low, high in share_bounds(end - begin, parts)]


def _transfers(mine: Span, region: Span, hosts: Hosts, other: int) -> list[PartTransfer]:
    """How my part of a region meets the parts of another host's ranks."""
    transfers = []
    for rank, (low, high) in zip(hosts[other], _split(region, len(hosts[other])), strict=True):
        begin, end = max(mine[0], low), min(mine[1], high)
        if begin < end:
            transfers.append(PartTransfer(rank, other, begin, end))
    return transfers


def carriers(hosts: Hosts) -> dict[int, dict[int, int]]:
    """carriers(hosts)[rank][host]: the rank of `host` that takes in what `rank` has for it."""
    return {
        rank: {h: ranks[place % len(ranks)] for h, ranks in enumerate(hosts) if rank not in ranks}
        for home in hosts
        for place, rank in enumerate(home)
    }


def as_hosts(hosts: Sequence[Sequence[int]]) -> Hosts:
    return tuple(tuple(ranks) for ranks in hosts)
