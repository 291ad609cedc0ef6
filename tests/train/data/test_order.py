"""The order of samples: a permutation that seed and epoch decide, cut into batches and parts."""

from __future__ import annotations

import itertools
import math
from typing import Any, NamedTuple

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.kit.examples import examples
from wiiiiided.errors import UsageError
from wiiiiided.train.data.cursor import Cursor, EpochPlace
from wiiiiided.train.data.order import EpochOrder, batch_spans, split
from wiiiiided.train.data.permutation import Permutation

SEEDS = st.integers(0, 2**64 - 1)


# -- the permutation ----


@given(length=st.integers(1, 3000), seed=SEEDS, epoch=st.integers(0, 10**9))
@settings(max_examples=examples(200))
def test_every_number_comes_once(length: int, seed: int, epoch: int) -> None:
    found = Permutation(length, seed, epoch).span(0, length)
    assert np.array_equal(np.sort(found), np.arange(length))


@given(st.integers(1, 10**15), st.integers(0, 10**15), SEEDS)
def test_a_place_has_the_same_sample_however_it_is_asked_for(n: int, at: int, seed: int) -> None:
    at %= n
    order = Permutation(n, seed, 0)
    some = order.span(at, min(at + 50, n))
    assert len(set(some.tolist())) == len(some)
    assert all(0 <= number < n for number in some.tolist())
    assert order.span(at, at + 1)[0] == some[0]
    window = EpochOrder(n, seed, 0, shuffle=True)
    assert window.samples(max(0, at - 3), at + 1)[-1] == some[0]
    assert window.samples(at, at + len(some)).tolist() == some.tolist()


def test_the_order_is_what_it_was() -> None:
    """A stored checkpoint goes on in it: these numbers never change."""
    assert Permutation(10, 0, 0).span(0, 10).tolist() == [4, 7, 1, 8, 3, 6, 9, 0, 5, 2]
    last = Permutation(10**9, 2**63, 7).span(10**9 - 4, 10**9)
    assert last.tolist() == [595276975, 850201417, 771606564, 325619081]


def _chi_square(counts: Any) -> float:
    """How far counts lie from being equal, in its standard deviations."""
    expected = counts.mean()
    freedom = counts.size - 1
    return float((((counts - expected) ** 2 / expected).sum() - freedom) / math.sqrt(2 * freedom))


def test_every_sample_comes_as_often_at_every_place() -> None:
    length, orders = 100, 3000
    found = np.array([Permutation(length, seed, 1).span(0, length) for seed in range(orders)])
    counts = np.zeros((length, length))
    np.add.at(counts, (np.arange(length)[None].repeat(orders, 0), found), 1)
    assert abs(_chi_square(counts)) < 4
    # nor does a sample's neighbour, in this epoch or at its place in the next, say anything
    steps = (found[:, 1:] - found[:, :-1]) % length
    assert abs(_chi_square(np.bincount(steps.ravel(), minlength=length)[1:])) < 4
    following = np.array([Permutation(length, seed, 2).span(0, length) for seed in range(orders)])
    apart = np.bincount(((following - found) % length).ravel(), minlength=length)
    assert abs(_chi_square(apart)) < 4


# -- batches and parts ----


@given(st.integers(0, 500), st.integers(1, 40), st.booleans(), st.integers(0, 500))
def test_batches_cover_what_is_left_of_an_epoch(
    length: int, size: int, drop_last: bool, place: int
) -> None:
    place = min(place, length)
    spans = list(batch_spans(place, length, size, drop_last))
    covered = [number for span in spans for number in range(span.begin, span.end)]
    left = (length - place) % size if drop_last else 0
    assert covered == [*range(place, length - left)]
    assert [span.last for span in spans] == [False] * (len(spans) - 1) + [True] * bool(spans)
    assert all(span.end - span.begin == size for span in spans[:-1])


@given(st.integers(0, 10_000), st.integers(1, 300))
def test_even_parts_differ_by_one_at_most_and_the_first_is_never_the_empty_one(
    count: int, ranks: int
) -> None:
    cuts = split(count, ranks)
    sizes = np.diff(cuts)
    assert (cuts[0], cuts[-1], len(cuts)) == (0, count, ranks + 1)
    assert sizes.max() - sizes.min() <= 1
    assert sizes[0] == sizes.max()


SHARES = st.lists(st.one_of(st.just(0.0), st.floats(1e-6, 1e6)), min_size=1, max_size=40)


@given(st.integers(0, 10_000), SHARES.filter(any))
@settings(max_examples=examples(300))
def test_uneven_parts_lie_within_one_of_their_shares(count: int, shares: list[float]) -> None:
    cuts = split(count, len(shares), shares)
    sizes = np.diff(cuts)
    assert (cuts[0], cuts[-1], len(cuts)) == (0, count, len(shares) + 1)
    assert (sizes >= 0).all()
    for size, share in zip(sizes, shares, strict=True):
        assert abs(size - count * share / sum(shares)) < 1 + 1e-6
        assert share > 0 or size == 0


@pytest.mark.parametrize("shares", [[1.0], [1.0, -1.0], [1.0, math.nan], [0.0, 0.0]])
def test_shares_that_are_none(shares: list[float]) -> None:
    with pytest.raises(UsageError, match="shares"):
        split(10, 2, shares)


# -- a whole training, with the cursor ----

# Ranks, shares or None, the batch size, batches before it is killed, batches a step, and by how
# many steps the checkpoint it leaves is older than its last one.
PHASES = st.lists(
    st.tuples(
        st.integers(1, 5),
        st.one_of(st.none(), st.lists(st.floats(0.1, 10), min_size=5, max_size=5)),
        *(st.integers(5, 40), st.integers(0, 20), st.integers(1, 3), st.integers(0, 3)),
    ),
    max_size=6,
)


@given(length=st.integers(1, 200), seed=SEEDS, phases=PHASES, epochs=st.integers(1, 3))
@settings(max_examples=examples(300))
def test_every_sample_is_trained_once_an_epoch_whatever_happens(
    length: int, seed: int, phases: list[Any], epochs: int
) -> None:
    """Ranks come and go, shares and batch sizes change, runs are killed at any batch of a step."""
    steps = Steps([], [EpochPlace(0, 0)])
    phases = [*phases, (2, None, 8, 10**9, 1, 0)]  # the last one runs to the end
    for *how, late in phases:
        _train(steps, length, seed, epochs, *how)
        steps.lose(late)
    trained = [sample for step in steps.trained for sample in step]
    for epoch in range(epochs):
        assert sorted(number for of, number in trained if of == epoch) == [*range(length)]


class Steps(NamedTuple):
    """All that were committed: what each trained, and the place before the first and after each."""

    trained: list[list[tuple[int, int]]]  # numbers of an epoch
    places: list[EpochPlace]

    def lose(self, count: int) -> None:
        """The checkpoint is older than these."""
        kept = max(0, len(self.trained) - count)
        del self.trained[kept:], self.places[kept + 1 :]


def _train(
    steps: Steps, length: int, seed: int, epochs: int,
    ranks: int, shares: Any, size: int, batches: int, accumulate: int,
) -> None:  # fmt: skip
    """One run, which is killed when its loop has got so many batches."""
    cursor, step = Cursor(steps.places[-1], 0), []
    while cursor.head.epoch < epochs:
        epoch, place, _ = cursor.begin()
        order = EpochOrder(length, seed, epoch, shuffle=True)
        for span in batch_spans(place, length, size, drop_last=False):
            cuts = split(span.end - span.begin, ranks, shares and shares[:ranks])
            for begin, end in itertools.pairwise(cuts):
                numbers = order.samples(span.begin + begin, span.begin + end).tolist()
                step += [(epoch, number) for number in numbers]
            cursor.hand_out(span, 1)
            batches -= 1
            if batches < 0:
                assert cursor.committed == steps.places[-1]
                return
            if cursor.samples == accumulate:
                _commit(cursor, step, steps)
        cursor.run_out()
    _commit(cursor, step, steps)


def _commit(cursor: Cursor, step: list[tuple[int, int]], steps: Steps) -> None:
    steps.trained.append(step.copy())
    step.clear()
    cursor.commit()
    steps.places.append(cursor.committed)
