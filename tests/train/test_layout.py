"""Who updates what: every element by one rank, evenly."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from wiiiiided.train.layout import ALIGN, CUT, offsets, owners, slices

COUNTS = st.lists(st.integers(0, 5000), min_size=0, max_size=20)


@given(COUNTS, st.integers(1, 9))
def test_every_element_is_updated_by_one_rank(counts: list[int], ranks: int) -> None:
    for divide in (slices, owners):
        seen = [[0] * count for count in counts]
        for part in (part for mine in divide(counts, ranks) for part in mine):
            for at in range(part.begin, part.end):
                seen[part.parameter][at] += 1
        assert all(times == 1 for row in seen for times in row)


@given(COUNTS, st.integers(1, 9))
def test_slices_are_even_up_to_a_cut_and_one_a_parameter(counts: list[int], ranks: int) -> None:
    divided = slices(counts, ranks)
    assert all(len({p.parameter for p in mine}) == len(mine) for mine in divided)
    shares = [sum(part.count for part in mine) for mine in divided]
    assert max(shares) - min(shares) <= 2 * CUT + 1


def test_owners_get_the_largest_first() -> None:
    assert [[p.parameter for p in mine] for mine in owners([10, 100, 60, 50], 2)] == [
        [0, 1],
        [2, 3],
    ]


def test_parameters_begin_at_cache_lines() -> None:
    starts, total = offsets([1, 64, 65, 0, 4])
    assert starts == [0, 64, 128, 256, 256]
    assert total == 256 + ALIGN
