"""The arithmetic of pieces and shares, for every size."""

from __future__ import annotations

from hypothesis import example, given
from hypothesis import strategies as st

from wiiiiided.backend.collectives.pieces import ALIGN, pieces, share_bounds

counts = st.integers(0, 3_000_000)
most = st.integers(1, 600_000)


def _consecutive(cuts: list[tuple[int, int]], count: int) -> bool:
    ends = [0, *(end for _, end in cuts)]
    return [begin for begin, _ in cuts] == ends[:-1] and ends[-1] == count


@given(counts, most.filter(lambda n: n >= 500))
@example(0, 500)
@example(16_385, 16_384)
def test_pieces_cover_everything_once_and_none_is_too_large(count: int, most: int) -> None:
    cuts = pieces(count, most)
    assert _consecutive(cuts, count)
    assert all(end - begin <= most for begin, end in cuts)
    assert all(end > begin for begin, end in cuts) or cuts == [(0, 0)]


@given(st.integers(0, 2_000), st.integers(1, 130))
def test_tiny_pieces_cover_everything_too(count: int, most: int) -> None:
    cuts = pieces(count, most)
    assert _consecutive(cuts, count)
    assert all(end - begin <= most for begin, end in cuts)


@given(counts, st.integers(8, 9_000).map(lambda n: n * ALIGN))
def test_pieces_begin_aligned_and_are_no_more_than_needed(count: int, most: int) -> None:
    cuts = pieces(count, most)
    assert all(begin % ALIGN == 0 for begin, _ in cuts)
    assert len(cuts) <= max(1, -(-count // most))


@given(counts, st.integers(1, 70))
@example(0, 3)
@example(65, 64)
def test_shares_cover_a_piece_once_aligned_and_nearly_equal(count: int, ranks: int) -> None:
    shares = share_bounds(count, ranks)
    assert len(shares) == ranks
    assert _consecutive(shares, count)
    assert all(low <= high for low, high in shares)
    assert all(low % ALIGN == 0 or low == count for low, _ in shares)
    assert all(high - low < count / ranks + ALIGN for low, high in shares)
