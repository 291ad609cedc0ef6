"""How a large array is cut: into pieces that fit a slot, and a piece into shares, one a rank.

Pure arithmetic, the same on all ranks, so that no rank needs to be told.
"""

from __future__ import annotations

# Shares begin at multiples of this many elements: two ranks never write the same cache line, and
# the vector units get aligned data. 64 elements are a line of the smallest dtype.
ALIGN = 64


def share_bounds(count: int, ranks: int) -> list[tuple[int, int]]:
    """Which elements of a piece each rank reduces; the last shares may be empty."""
    step = -(-count // ranks)
    step = -(-step // ALIGN) * ALIGN
    return [(min(r * step, count), min((r + 1) * step, count)) for r in range(ranks)]


def pieces(count: int, most: int) -> list[tuple[int, int]]:
    """(begin, end) of consecutive pieces of at most `most` elements, nearly equal in size.

    There is always one, even of nothing: a collective is a meeting before it is a transfer.
    """
    if count == 0:
        return [(0, 0)]
    number = -(-count // most)
    step = -(-count // number)
    step = min(most, -(-step // ALIGN) * ALIGN)
    return [(begin, min(begin + step, count)) for begin in range(0, count, step)]
