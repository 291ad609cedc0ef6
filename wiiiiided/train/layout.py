"""Where parameters lie in a host's memory, and which of its ranks updates which part. Pure.

    weights     │ p0 ······ │ p1 ··· │ p2 ·············· │      each at a multiple of 64 bytes
    slices      └── rank 0 ────┘└── rank 1 ──────────────┘      elementwise optimizers: even shares
    owners      └─ 0 ──────┘└─ 1 ────┘└─ 0 ──────────────┘      any other: whole parameters

Slices balance whatever the sizes are, but cut parameters in two: right for an optimizer that looks
at each element by itself. An optimizer that looks at a whole matrix gets whole parameters.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

ALIGN: Final = 64  # bytes: a cache line, and every vector width of today's CPUs
CUT: Final = 64  # elements: slices are cut at multiples of it, so that vectors stay aligned


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


def offsets(sizes: Sequence[int]) -> tuple[list[int], int]:
    """Where stretches of so many bytes begin, one after the other, and what they take in all."""
    found, at = [], 0
    for size in sizes:
        found.append(at)
        at += -(-size // ALIGN) * ALIGN
    return found, at


def slices(counts: Sequence[int], ranks: int) -> list[list[ParameterPart]]:
    """Even shares of all elements, in order: rank r's parts."""
    total = sum(counts)
    bounds = [total * r // ranks for r in range(ranks + 1)]
    parts: list[list[ParameterPart]] = [[] for _ in range(ranks)]
    first = 0  # the number, among all elements, of this parameter's first
    for parameter, count in enumerate(counts):
        cuts = [_cut(bound - first, count) for bound in bounds]
        for rank in range(ranks):
            if cuts[rank] < cuts[rank + 1]:
                parts[rank].append(ParameterPart(parameter, cuts[rank], cuts[rank + 1]))
        first += count
    return parts


def _cut(at: int, count: int) -> int:
    """Where a bound cuts a parameter: at a multiple of CUT, or at one of its ends."""
    if at <= 0 or at >= count:
        return min(max(at, 0), count)
    return min(round(at / CUT) * CUT, count)


def owners(counts: Sequence[int], ranks: int) -> list[list[ParameterPart]]:
    """Whole parameters, the largest first to the rank that has least: rank r's parts."""
    load, parts = [0] * ranks, [list[ParameterPart]() for _ in range(ranks)]
    for parameter in sorted(range(len(counts)), key=lambda i: (-counts[i], i)):
        rank = min(range(ranks), key=lambda r: (load[r], r))
        load[rank] += counts[parameter]
        parts[rank].append(ParameterPart(parameter, 0, counts[parameter]))
    return [sorted(mine, key=lambda part: part.parameter) for mine in parts]
