"""The straggler: who waits least while the others wait, and a name that does not flicker."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.figures.samples import sample, steady
from wiiiiided.domain.figures import RankSample, Straggler
from wiiiiided.figures.straggler import Finder, Ranks, behind, slowest


def on_nodes(*samples: RankSample) -> Ranks:
    return {found.rank: ("abc"[found.rank % 3], found) for found in samples}


def watch(*phases: tuple[float, tuple[float, ...]]) -> list[Straggler | None]:
    """Each phase: so many seconds in which the ranks wait these shares; what was found each
    second."""
    finder, at, waited = Finder(), 0.0, [0.0] * len(phases[0][1])
    found = []
    for seconds, shares in phases:
        for _ in range(int(seconds)):
            at += 1.0
            waited = [old + share for old, share in zip(waited, shares, strict=True)]
            ranks = [
                sample(rank, at, operations=int(at * 10), waiting_s=w)
                for rank, w in enumerate(waited)
            ]
            found.append(finder.take(at, on_nodes(*ranks)).straggler)
    return found


def test_who_waits_least_is_named_with_its_node_and_by_how_much() -> None:
    straggler = watch((20, (0.60, 0.05, 0.53)))[-1]
    assert straggler is not None
    assert (straggler.rank, straggler.node) == (1, "b")
    assert straggler.behind == pytest.approx(0.515 / 0.485)
    assert straggler.why == (
        "rank 1 on b costs +106 % step time: the others wait 56 % of the time, it waits 5 %"
    )


def test_what_cannot_be_told_exactly_is_not_told_exactly() -> None:
    straggler = watch((20, (1.0, 0.0, 0.999)))[-1]
    assert straggler is not None
    assert straggler.behind == pytest.approx(19.0)
    assert straggler.why.startswith("rank 1 on b costs over 20 times the step time: the others")


def test_it_takes_a_while_to_be_certain() -> None:
    found = watch((20, (0.5, 0.0)))
    first = next(second for second, late in enumerate(found, 1) if late is not None)
    assert 6 <= first <= 10


@pytest.mark.parametrize("shares", [(0.3, 0.3, 0.3), (0.30, 0.27, 0.31), (0.0, 0.0, 0.0)])
def test_ranks_that_wait_alike_have_no_straggler(shares: tuple[float, ...]) -> None:
    assert set(watch((30, shares))) == {None}


def test_a_rank_alone_waits_for_nobody() -> None:
    finder = Finder()
    for second in range(20):
        verdict = finder.take(float(second), on_nodes(steady(0, float(second), 0.5)))
    assert verdict == (None, "a rank alone waits for nobody")


def test_ranks_that_do_nothing_together_are_not_judged() -> None:
    finder = Finder()
    for second in range(30):
        one, other = sample(0, float(second), waiting_s=second * 0.5), sample(1, float(second))
        verdict = finder.take(float(second), on_nodes(one, other))
    assert verdict.straggler is None
    assert "too few operations" in verdict.why


def test_steps_of_twenty_seconds_are_judged_too() -> None:
    finder = Finder()
    for second in range(101):
        ended = second // 20
        one = sample(0, float(second), operations=ended, waiting_s=10.0 * ended)
        other = sample(1, float(second), operations=ended)
        verdict = finder.take(float(second), on_nodes(one, other))
    assert verdict.straggler is not None
    assert verdict.straggler.rank == 1


def test_the_name_goes_when_the_others_no_longer_wait() -> None:
    found = watch((20, (0.5, 0.0)), (20, (0.1, 0.1)))
    assert found[19] is not None
    assert found[-1] is None


def test_another_takes_over_when_it_is_clearly_later() -> None:
    found = watch((20, (0.5, 0.0, 0.5)), (20, (0.0, 0.5, 0.5)))
    ranks = [late.rank for late in found if late is not None]
    assert (ranks[0], ranks[-1]) == (1, 0)
    assert ranks == sorted(ranks, reverse=True)  # one change, not several


def test_of_two_that_are_equally_late_the_name_does_not_flicker() -> None:
    phases = [(1.0, (0.5, 0.000, 0.015)), (1.0, (0.5, 0.015, 0.000))]
    ranks = [late.rank for late in watch(*phases * 30) if late is not None]
    assert len(set(ranks)) == 1


def test_a_moment_of_lateness_long_ago_does_not_count() -> None:
    finder, waited, found = Finder(), [0.0, 0.0], []
    for second in range(60):
        # Twice a second in which one waits: enough to be late within 5 s, not for long enough.
        waited[0] += 0.26 if second in (20, 45) else 0.0
        ranks = [
            sample(rank, float(second), operations=second * 10, waiting_s=w)
            for rank, w in enumerate(waited)
        ]
        if second not in (22, 23, 24, 25, 47, 48, 49, 50):  # nobody looked meanwhile
            found.append(finder.take(float(second), on_nodes(*ranks)).straggler)
    assert set(found) == {None}


def test_just_below_the_mark_it_stays_who_it_was() -> None:
    found = watch((20, (0.06, 0.0)), (20, (0.04, 0.0)))
    assert found[-1] is not None
    assert watch((40, (0.04, 0.0)))[-1] is None


def test_a_rank_that_comes_or_is_another_process_begins_a_new_window() -> None:
    finder = Finder()
    for second in range(20):
        at = float(second)
        finder.take(at, on_nodes(steady(0, at, 0.5), steady(1, at, 0.0)))
    assert finder.verdict.straggler is not None
    for second in range(20, 24):
        at = float(second)
        finder.take(at, on_nodes(steady(0, at, 0.5), steady(1, at, 0.0, pid=7)))
    assert finder.verdict.straggler is None
    assert "too few" in finder.verdict.why


def test_what_it_costs_is_the_step_with_it_over_the_step_without() -> None:
    # Steps of 1 s: the others compute 0.5 s and wait 0.5 s, the late one computes all of it.
    assert behind(0.5) == pytest.approx(1.0 / 0.5 - 1.0)
    assert behind(0.0) == 0.0
    assert behind(1.0) < 101  # never a division by nothing


@given(st.dictionaries(st.integers(0, 50), st.floats(0, 1), min_size=2, max_size=50))
def test_the_slowest_never_waits_longer_than_the_others_in_the_mean(
    waits: dict[int, float],
) -> None:
    rank, lead = slowest(waits)
    assert waits[rank] == min(waits.values())
    assert -1e-9 <= lead <= 1.0
