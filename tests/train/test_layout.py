"""The division of updates: every element by one rank, evenly."""

from __future__ import annotations

from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from wiiiiided.train.layout import (
    ALIGN,
    CUT,
    PRIVATE_BYTES,
    WHOLE,
    Row,
    offsets,
    owners,
    pack_row,
    segments,
    slices,
)

COUNTS = st.lists(st.integers(0, 5000) | st.integers(15000, 60000), min_size=0, max_size=20)
KINDS = {"float32": 4, "bfloat16": 2, "float64": 8}
MODELS = st.lists(
    st.tuples(st.integers(0, 40000), st.sampled_from(sorted(KINDS))), min_size=0, max_size=12
)


@given(COUNTS, st.integers(1, 9))
def test_every_element_is_updated_by_one_rank(counts: list[int], ranks: int) -> None:
    for divide in (slices, owners):
        ends: list[list[tuple[int, int]]] = [[] for _ in counts]
        for part in (part for mine in divide(counts, ranks) for part in mine):
            ends[part.parameter].append((part.begin, part.end))
        for count, found in zip(counts, ends, strict=True):
            bounds = [0, *(end for _, end in sorted(found))]
            assert [begin for begin, _ in sorted(found)] == bounds[:-1]
            assert bounds[-1] == count


@given(COUNTS, st.integers(1, 9))
def test_slices_are_even_up_to_a_cut_and_one_a_parameter(counts: list[int], ranks: int) -> None:
    divided = slices(counts, ranks)
    assert all(len({p.parameter for p in mine}) == len(mine) for mine in divided)
    shares = [sum(part.count for part in mine) for mine in divided]
    working = min(ranks, max(1, sum(counts) // WHOLE))
    assert not any(shares[working:])
    even = all(count >= WHOLE for count in counts)
    assert max(shares[:working]) - min(shares[:working]) <= (2 * CUT + 1 if even else 2 * WHOLE)
    assert all(
        part.count == counts[part.parameter]
        for mine in divided
        for part in mine
        if counts[part.parameter] < WHOLE
    )


def test_owners_get_the_largest_first() -> None:
    assert [[p.parameter for p in mine] for mine in owners([10, 100, 60, 50], 2)] == [
        [0, 1],
        [2, 3],
    ]


def test_parameters_begin_at_cache_lines() -> None:
    starts, total = offsets([1, 64, 65, 0, 4])
    assert starts == [0, 64, 128, 256, 256]
    assert total == 256 + ALIGN


Model = list[tuple[int, str]]


def _rows(model: Model, ranks: int, divide: Any, alone: bool) -> list[Row]:
    counts, dtypes = [count for count, _ in model], [dtype for _, dtype in model]
    sizes = [KINDS[dtype] for dtype in dtypes]
    return [pack_row(parts, dtypes, sizes, alone) for parts in divide(counts, ranks)]


@given(MODELS, st.integers(1, 5), st.sampled_from([slices, owners]), st.booleans())
def test_parts_of_a_row_are_packed_by_dtype(
    model: Model, ranks: int, divide: Any, alone: bool
) -> None:
    for row in _rows(model, ranks, divide, alone):
        end, before = 0, ("", False)
        for part, at, private in row.placed:
            dtype = model[part.parameter][1]
            nbytes = part.count * KINDS[dtype]
            assert private == (alone and nbytes >= PRIVATE_BYTES)
            assert at == end if (dtype, private) == before else at == -(-end // ALIGN) * ALIGN
            end, before = at + nbytes, (dtype, private)
            assert end <= (row.nbytes if private else row.staged_bytes)


@given(MODELS, st.lists(st.integers(1, 4), min_size=2, max_size=4), st.data())
def test_segments_meet_at_the_same_elements_on_every_host(
    model: Model, hosts: list[int], data: st.DataObject
) -> None:
    divide = data.draw(st.sampled_from([slices, owners]))
    present = data.draw(st.sets(st.sampled_from(range(len(model)))) if model else st.just(set()))
    rows = [_rows(model, ranks, divide, False) for ranks in hosts]
    dtypes, sizes = [dtype for _, dtype in model], [KINDS[dtype] for _, dtype in model]
    covered = [set() for _ in hosts]
    for segment in segments(rows, sorted(present), dtypes, sizes):
        meets = [
            _elements(rows[host][place], begin, segment.nbytes, sizes)
            for host, (place, begin) in enumerate(zip(segment.members, segment.begins, strict=True))
        ]
        assert all(elements == meets[0] for elements in meets)
        assert {dtypes[i] for i, _ in meets[0]} == {segment.dtype}
        for seen, elements in zip(covered, meets, strict=True):
            assert not seen & set(elements)
            seen.update(elements)
    wanted = {(i, n) for i in present for n in range(0, model[i][0], STRIDE)}
    assert all({e for e in seen if e[1] % STRIDE == 0} == wanted for seen in covered)


STRIDE = 1000  # elements that are looked at


def _elements(row: Row, begin: int, nbytes: int, sizes: list[int]) -> list[tuple[int, int]]:
    """(parameter, element) of a stretch of a row: its ends, and every thousandth."""
    found = []
    for part, at, _ in row.placed:
        size = sizes[part.parameter]
        low = max(begin, at)
        high = min(begin + nbytes, at + part.count * size)
        if low < high:
            first, last = part.begin + (low - at) // size, part.begin + (high - at) // size - 1
            chosen = {first, last, *range(-(-first // STRIDE) * STRIDE, last + 1, STRIDE)}
            found += [(part.parameter, n) for n in sorted(chosen)]
    return found
