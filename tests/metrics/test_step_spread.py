"""Ranks that train apart are named; ranks that only look so are not."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from tests.metrics.samples import sample
from wiiiiided.domain.metrics import TrainingMetrics
from wiiiiided.metrics.step_spread import ADVICE, StepsFinder, sentence

NODES = {0: "a", 1: "b", 2: "b"}
AHEAD = {"a": 0.0, "b": 5000.0}  # of a node's monotonic clock


def run(
    seconds: int,
    step: Callable[[int, float], float | None],
    every: Callable[[int], int] = lambda rank: 1,
    **more: Any,
) -> StepsFinder:
    """Ranks of which `step(rank, t)` is the step at a time; each says one of so many."""
    finder = StepsFinder()
    said: dict[int, tuple[int, float]] = {}
    for tick in range(seconds * 50):
        now = tick / 50
        for rank in NODES:
            at = step(rank, now)
            word = None if at is None else int(at) // every(rank) * every(rank)
            if word is not None and said.get(rank, (-1, 0.0))[0] != word:
                said[rank] = (word, now)
        if tick % 50 == 0:
            ranks = {}
            for rank, node in NODES.items():
                clock, (word, then) = AHEAD[node], said.get(rank, (0, 0.0))
                has = {"step": word, "said_at": clock + then} if rank in said else {}
                ranks[rank] = (node, sample(rank, clock + now, **has, **more))
            finder.take(now, ranks)
    return finder


def test_ranks_that_go_on_from_other_checkpoints_are_named() -> None:
    found = run(60, lambda rank, t: 10 * t + (0 if rank == 1 else 1450))
    assert found.why == (f"rank 1 on b is 1,450 steps behind, compared with rank 0 on a: {ADVICE}")


def test_nothing_is_said_before_it_has_lasted() -> None:
    assert run(15, lambda rank, t: 10 * t + 1450 * (rank == 1)).why is None


@pytest.mark.parametrize("pace", [0.2, 3.0, 200.0])
def test_ranks_in_step_are_not_apart(pace: float) -> None:
    assert run(120, lambda rank, t: pace * t).why == ""
    # A step or two, and what samples of two machines are apart.
    assert run(120, lambda rank, t: pace * (t + rank) + rank).why == ""


def test_a_rank_that_reports_seldom_is_where_the_others_are() -> None:
    assert run(120, lambda rank, t: 20 * t, every=lambda rank: 300 if rank else 1).why == ""
    assert run(120, lambda rank, t: 20 * t, every=lambda rank: 1 if rank else 300).why == ""


def test_a_difference_that_passes_is_none() -> None:
    assert run(60, lambda rank, t: 10 * t + (500 if rank == 1 and 20 < t < 35 else 0)).why == ""


def test_ranks_that_are_not_in_step_at_all_are_not_compared() -> None:
    assert run(60, lambda rank, t: (10 + 8 * rank) * t).why == ""


def test_hosts_that_make_unequal_steps_by_design_are_not_compared() -> None:
    def steps(rank: int, t: float) -> float:
        return (10 + (rank == 0)) * t + 100 * rank  # so alike that it could be one pace

    assert run(120, steps).why
    assert run(120, steps, training=TrainingMetrics(own_steps=True)).why is None


def test_of_a_rank_that_says_no_step_or_one_for_ever_nothing_can_be_told() -> None:
    assert run(60, lambda rank, t: 10 * t if rank == 0 else None).why is None
    assert run(60, lambda rank, t: 10 * t if rank == 0 else 7).why is None


def test_many_are_counted() -> None:
    ranks = {rank: ("a", sample(rank, step=rank)) for rank in range(9)}
    text = sentence(dict.fromkeys(range(1, 9), 70), ranks)
    assert "rank 4 on a is 70 steps ahead and 4 more, compared with rank 0 on a" in text
