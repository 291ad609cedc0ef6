"""What a run measures of itself, as people read it."""

from __future__ import annotations

from typing import Any

import pytest

from wiiiiided.domain.metrics import TrainingMetrics
from wiiiiided.metrics.training_words import (
    LISTED,
    RankTraining,
    batch_words,
    rounds_words,
    shares_words,
    training_facts,
)


def ranks(nodes: str, shares: tuple[float, ...] = (), **told: Any) -> list[RankTraining]:
    """One rank for each letter."""
    return [
        RankTraining(rank, node, TrainingMetrics(**told, share=shares[rank] if shares else None))
        for rank, node in enumerate(nodes)
    ]


def test_nothing_is_said_of_what_is_not_known() -> None:
    assert list(training_facts([])) == []
    assert list(training_facts(ranks("ab"), 64.0)) == []


@pytest.mark.parametrize(
    ("scale", "shown"), [(1949.0, "1,900"), (0.044, "0.044"), (9.96, "10"), (3.2, "3.2")]
)
def test_the_batch_that_is_wanted_has_two_digits(scale: float, shown: str) -> None:
    told = f"about {shown} samples a step are worth it (gradient noise scale)"
    assert batch_words(ranks("ab", noise_scale=scale)) == told
    assert batch_words(ranks("ab", noise_scale=scale), 256.0) == f"{told}; it has 256"


def test_where_samples_are_not_counted_it_is_in_batches() -> None:
    text = batch_words(ranks("ab", noise_batches=7.4), 256.0)
    assert text == "about 7.4 batches of a rank are worth a step (gradient noise scale)"


def test_shares_are_those_of_hosts_and_on_one_host_of_ranks() -> None:
    assert shares_words(ranks("aab", (0.3, 0.3, 0.4))) == "a 60 %, b 40 % of the samples"
    assert shares_words(ranks("aa", (0.7, 0.3))) == "rank 0 70 %, rank 1 30 % of the samples"
    assert shares_words(ranks("aabb", (0.25,) * 4)) == "even parts of the samples"
    assert shares_words(ranks("a", (1.0,))) == ""


def test_of_many_the_least_and_the_most_are_said() -> None:
    many = "abcdefgh"[: LISTED + 1]
    parts = tuple(rank + 1.0 for rank in range(len(many)))
    text = shares_words(ranks(many, tuple(part / sum(parts) for part in parts)))
    assert text == "3.6 % to 25 % of the samples"


def test_parts_that_the_script_does_not_take_are_said() -> None:
    even = ranks("ab", (0.5, 0.5), speed_spread=3.0, balance_gain=1.0)
    wanted = [
        one._replace(told=TrainingMetrics(share=0.5, speed_spread=3.0, wanted_share=part))
        for one, part in zip(even, (0.75, 0.25), strict=True)
    ]
    assert shares_words(wanted) == (
        "even parts of the samples; speeds 3 times apart; run.share says a 75 %, b 25 %"
    )


def test_rounds_of_hosts_that_make_unequal_steps_are_listed() -> None:
    assert rounds_words(ranks("aab", round_steps=16.0, round_compute=0.93)) == (
        "hosts exchange every 16 steps and compute 93 % of the time"
    )
    uneven = [
        RankTraining(at, node, TrainingMetrics(round_steps=steps, round_compute=0.9))
        for at, (node, steps) in enumerate((("a", 1600.0), ("b", 5.0)))
    ]
    assert rounds_words(uneven) == (
        "hosts exchange every 1,600 steps on a, 5 steps on b and compute 90 % of the time"
    )
