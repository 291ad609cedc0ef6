"""Where parameters and gradients lie in a host's memory, and which rank updates which part. Pure.

    weights     │ p0 ······ │ p1 ··· │ p2 ·············· │      each at a multiple of 64 bytes
    slices      └── rank 0 ────┘└── rank 1 ──────────────┘      elementwise optimizers: even shares
    owners      └─ 0 ──────┘└─ 1 ────┘└─ 0 ──────────────┘      any other: whole parameters

Slices balance whatever the sizes are, but cut parameters in two: right for an optimizer that looks
at each element by itself. An optimizer that looks at a whole matrix gets whole parameters.

A *row* is one rank's gradients of the parts that one rank updates, packed one behind the other:

    row of place 1's parts   │ staged: small parts, by dtype │ private: large parts │
        from place 0         │ ····························· │ ···················· │
        from place 1         │ ····························· │    (where its backward left them)
        from place 2         │ ····························· │ ···················· │

So what a rank adds up lies packed in every row, and its own large gradients are not copied at all.

Between hosts, parts of unequal hosts overlap. A *segment* is a stretch that one rank of each host
updates; it is exchanged among those ranks. With equal hosts a rank's row is one segment.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import pairwise
from typing import Final, NamedTuple

ALIGN: Final = 64  # bytes: a cache line, and every vector width of today's CPUs
CUT: Final = 64  # elements: slices are cut at multiples of it, so that vectors stay aligned
# Elements: a parameter below it is not cut, and a rank that updates any updates so many. Ten ranks
# that train 1,510 parameters would call ten optimizers for what one does in 9 µs.
WHOLE: Final = 16 * 1024
# Bytes from which a rank's own gradient stays where it is. To copy less is cheaper than to look it
# up anew in every step, and packed small parts are added up in one call.
PRIVATE_BYTES: Final = 64 * 1024


@dataclass(frozen=True)
class ParameterPart:
    """The elements [begin, end) of one parameter, counted in the order of its memory."""

    parameter: int
    begin: int
    end: int

    @property
    def count(self) -> int:
        """How many elements."""
        return self.end - self.begin


Divide = Callable[[Sequence[int], int], list[list[ParameterPart]]]


def offsets(sizes: Sequence[int]) -> tuple[list[int], int]:
    """Where stretches of so many bytes begin, one after the other, and what they take in all."""
    found, at = [], 0
    for size in sizes:
        found.append(at)
        at += aligned(size)
    return found, at


def aligned(nbytes: int) -> int:
    """The next multiple of a cache line."""
    return -(-nbytes // ALIGN) * ALIGN


def slices(counts: Sequence[int], ranks: int) -> list[list[ParameterPart]]:
    """Even shares of all elements: rank r's parts. Of a small model the last ranks have none."""
    total = sum(counts)
    working = min(ranks, max(1, total // WHOLE))
    bounds = [total * min(r, working) // working for r in range(ranks + 1)]
    parts: list[list[ParameterPart]] = [[] for _ in range(ranks)]
    first = 0  # the number, among all elements, of this parameter's first
    for parameter in _folded(len(counts)):
        count = counts[parameter]
        cuts = [_cut(bound - first, count) for bound in bounds]
        for rank in range(ranks):
            if cuts[rank] < cuts[rank + 1]:
                parts[rank].append(ParameterPart(parameter, cuts[rank], cuts[rank + 1]))
        first += count
    return [sorted(mine, key=lambda part: part.parameter) for mine in parts]


def _folded(count: int) -> list[int]:
    """0, n-1, 1, n-2, …: each rank gets as many late gradients of a backward as early ones.

    The late ones are still in the cache at the step. With consecutive shares the rank that has the
    first layers was 0.9 ms of 26 faster than the other, which all then waited for.
    """
    return [i // 2 if i % 2 == 0 else count - 1 - i // 2 for i in range(count)]


def _cut(at: int, count: int) -> int:
    """Where a bound cuts a parameter: at a multiple of CUT, or at one of its ends."""
    if at <= 0 or at >= count:
        return min(max(at, 0), count)
    if count < WHOLE:
        return count if 2 * at > count else 0
    return min(round(at / CUT) * CUT, count)


def owners(counts: Sequence[int], ranks: int) -> list[list[ParameterPart]]:
    """Whole parameters, the largest first to the rank that has least: rank r's parts."""
    load, parts = [0] * ranks, [list[ParameterPart]() for _ in range(ranks)]
    for parameter in sorted(range(len(counts)), key=lambda i: (-counts[i], i)):
        rank = min(range(ranks), key=lambda r: (load[r], r))
        load[rank] += counts[parameter]
        parts[rank].append(ParameterPart(parameter, 0, counts[parameter]))
    return [sorted(mine, key=lambda part: part.parameter) for mine in parts]


class PlacedPart(NamedTuple):
    """A part, and where it lies in its owner's rows."""

    part: ParameterPart
    at: int  # bytes from the beginning of a row
    private: bool  # the owner's own gradient of it is not staged


@dataclass(frozen=True)
class Row:
    """How the parts of one rank are packed."""

    placed: tuple[PlacedPart, ...]
    staged_bytes: int  # of the rank that updates them
    nbytes: int  # of the other ranks

    @cached_property
    def by_parameter(self) -> dict[int, list[PlacedPart]]:
        """The parts of each parameter that has any here."""
        found: dict[int, list[PlacedPart]] = {}
        for placed in self.placed:
            found.setdefault(placed.part.parameter, []).append(placed)
        return found


def pack_row(
    parts: Sequence[ParameterPart], dtypes: Sequence[str], sizes: Sequence[int], alone: bool
) -> Row:
    """Pack parts whose parameters have these dtypes and element sizes.

    `alone`: there is one host, and large parts may stay private; else all are staged, so that what
    is exchanged with other hosts is packed.
    """

    def is_private(part: ParameterPart) -> bool:
        return alone and part.count * sizes[part.parameter] >= PRIVATE_BYTES

    order = sorted(parts, key=lambda p: (is_private(p), dtypes[p.parameter], p.parameter, p.begin))
    placed: list[PlacedPart] = []
    at = staged = 0
    previous: tuple[bool, str] | None = None
    for part in order:
        private = is_private(part)
        if previous != (private, dtypes[part.parameter]):
            previous, at = (private, dtypes[part.parameter]), aligned(at)
        placed.append(PlacedPart(part, at, private))
        at += part.count * sizes[part.parameter]
        staged = staged if private else at
    return Row(tuple(placed), aligned(staged), aligned(at))


class RowSegment(NamedTuple):
    """A stretch of one dtype that one rank of each host updates."""

    dtype: str
    members: tuple[int, ...]  # by host: the place there
    begins: tuple[int, ...]  # by host: where it begins in that rank's row, in bytes
    nbytes: int


def segments(
    rows: Sequence[Sequence[Row]],
    parameters: Sequence[int],
    dtypes: Sequence[str],
    sizes: Sequence[int],
) -> list[RowSegment]:
    """How the rows of the hosts' ranks meet (`rows[host][place]`), in one order on all ranks."""
    found: list[RowSegment] = []
    for parameter in sorted(parameters, key=lambda i: (dtypes[i], i)):
        here = [_parts_of(parameter, host) for host in rows]
        ends = {end for host in here for _, p in host for end in (p.part.begin, p.part.end)}
        for begin, end in pairwise(sorted(ends)):
            inside = [
                next((place, p) for place, p in host if p.part.begin <= begin < p.part.end)
                for host in here
            ]
            size = sizes[parameter]
            new = RowSegment(
                dtypes[parameter],
                tuple(place for place, _ in inside),
                tuple(p.at + (begin - p.part.begin) * size for _, p in inside),
                (end - begin) * size,
            )
            if found and _goes_on(found[-1], new):
                found[-1] = found[-1]._replace(nbytes=found[-1].nbytes + new.nbytes)
            else:
                found.append(new)
    return found


def _parts_of(parameter: int, host: Sequence[Row]) -> list[tuple[int, PlacedPart]]:
    return [
        (place, p) for place, row in enumerate(host) for p in row.by_parameter.get(parameter, ())
    ]


def _goes_on(last: RowSegment, new: RowSegment) -> bool:
    """Whether a segment begins where another ends, on every host."""
    ends = tuple(begin + last.nbytes for begin in last.begins)
    return (last.dtype, last.members, ends) == (new.dtype, new.members, new.begins)
