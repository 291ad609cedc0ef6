"""The straggler: the rank that waits least while the others wait; its name does not flicker."""

from __future__ import annotations

import random

import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace

from tests.metrics.samples import empty_record, sample, steady
from wiiiiided.domain.metrics import RankRecord, RankSample, RunRecord, Straggler
from wiiiiided.metrics.straggler import (
    Ranks,
    StragglerFinder,
    StragglerVerdict,
    behind,
    late,
    lead,
    of_run,
    turns_of_run,
)


def on_nodes(*samples: RankSample) -> Ranks:
    return {found.rank: ("abc"[found.rank % 3], found) for found in samples}


def watch(*phases: tuple[float, tuple[float, ...]]) -> list[Straggler | None]:
    return [verdict.straggler for verdict in verdicts(*phases)]


def verdicts(
    *phases: tuple[float, tuple[float, ...]], steps: float = 5.0
) -> list[StragglerVerdict]:
    """Each phase: so many seconds in which the ranks wait these shares; what was found each
    second."""
    finder, at, waited = StragglerFinder(), 0.0, [0.0] * len(phases[0][1])
    found = []
    for seconds, shares in phases:
        for _ in range(int(seconds)):
            at += 1.0
            waited = [old + share for old, share in zip(waited, shares, strict=True)]
            ranks = [
                sample(rank, at, operations=int(at * 10), waiting_s=w, step=int(at * steps))
                for rank, w in enumerate(waited)
            ]
            found.append(finder.take(at, on_nodes(*ranks)))
    return found


def test_the_rank_that_waits_least_is_named_with_its_node_and_by_how_much() -> None:
    straggler = watch((30, (0.60, 0.05, 0.53)))[-1]
    assert straggler is not None
    assert (straggler.rank, straggler.node) == (1, "b")
    assert straggler.behind == pytest.approx(0.515 / 0.485)
    assert straggler.why == (
        "rank 1 on b costs +106 % step time: the others wait 56 % of the time, it waits 5 %"
    )


def test_what_cannot_be_told_exactly_is_not_told_exactly() -> None:
    straggler = watch((30, (1.0, 0.0, 0.999)))[-1]
    assert straggler is not None
    assert straggler.behind == pytest.approx(19.0)
    assert straggler.why.startswith("rank 1 on b costs over 20 times the step time: the others")


def test_it_takes_a_while_to_be_certain() -> None:
    found = watch((40, (0.5, 0.0)))
    first = next(second for second, late in enumerate(found, 1) if late is not None)
    assert 18 <= first <= 21


@pytest.mark.parametrize("shares", [(0.3, 0.3, 0.3), (0.30, 0.27, 0.31), (0.0, 0.0, 0.0)])
def test_ranks_that_wait_alike_have_no_straggler(shares: tuple[float, ...]) -> None:
    assert set(watch((30, shares))) == {None}


def test_a_rank_alone_waits_for_no_other() -> None:
    finder = StragglerFinder()
    for second in range(20):
        verdict = finder.take(float(second), on_nodes(steady(0, float(second), 0.5)))
    assert verdict == (None, "a rank alone waits for no other", False)


def test_ranks_that_do_nothing_together_are_not_judged() -> None:
    finder = StragglerFinder()
    for second in range(30):
        one, other = sample(0, float(second), waiting_s=second * 0.5), sample(1, float(second))
        verdict = finder.take(float(second), on_nodes(one, other))
    assert verdict.straggler is None
    assert "too few operations" in verdict.why


def test_steps_of_twenty_seconds_are_judged_too() -> None:
    finder = StragglerFinder()
    for second in range(600):
        ended = second // 20
        one = sample(0, float(second), operations=ended, waiting_s=10.0 * ended)
        other = sample(1, float(second), operations=ended)
        verdict = finder.take(float(second), on_nodes(one, other))
    assert verdict.straggler is not None
    assert verdict.straggler.rank == 1


def test_the_name_goes_when_the_others_no_longer_wait() -> None:
    found = watch((30, (0.5, 0.0)), (30, (0.01, 0.01)))
    assert found[29] is not None
    assert found[-1] is None


def test_another_takes_over_when_it_is_clearly_later() -> None:
    found = watch((30, (0.5, 0.0, 0.5)), (60, (0.0, 0.5, 0.5)))
    ranks = [late.rank for late in found if late is not None]
    assert (ranks[0], ranks[-1]) == (1, 0)
    assert ranks == sorted(ranks, reverse=True)  # one change, not several


def test_of_two_that_are_equally_late_the_name_does_not_flicker() -> None:
    phases = [(3.0, (0.5, 0.00, 0.05)), (3.0, (0.5, 0.05, 0.00))]
    ranks = [late.rank for late in watch(*phases * 20) if late is not None]
    assert len(ranks) > 60
    assert len(set(ranks)) == 1


def test_ranks_that_are_late_by_turns_have_no_straggler_and_are_said_to_take_turns() -> None:
    phases = [(6.0, (0.5, 0.0, 0.5)), (6.0, (0.5, 0.5, 0.0)), (6.0, (0.0, 0.5, 0.5))]
    found = verdicts(*phases * 10)
    assert {verdict.straggler for verdict in found} == {None}
    assert found[-1].turns
    assert found[-1].why == (
        "ranks take turns: they wait 33 % of the time in the mean, for no one rank"
    )
    told = [verdict.turns for verdict in found]
    assert told == sorted(told)  # once it is said it stays


@pytest.mark.parametrize("seed", range(20))
@pytest.mark.parametrize("size", [2, 4, 8])
def test_ranks_that_are_late_by_chance_are_named_seldom(seed: int, size: int) -> None:
    chance = random.Random(seed)
    steps = []
    for _ in range(300):  # steps of 2 s: the rank that took longest, by chance, is waited for
        took = [chance.uniform(1.0, 2.0) for _ in range(size)]
        steps.append((2.0, tuple((max(took) - one) / 2.0 for one in took)))
    found = verdicts(*steps, steps=0.5)
    named = [verdict for verdict in found if verdict.straggler is not None]
    assert len(named) <= 0.05 * len(found)


def test_a_rank_that_saves_now_and_then_is_no_straggler() -> None:
    found = watch(*[(40.0, (0.02, 0.02)), (5.0, (1.0, 0.0))] * 6)
    assert set(found) == {None}


def test_before_a_name_is_certain_no_ranks_are_said_to_take_turns() -> None:
    found = verdicts((60, (0.01, 0.01)), (60, (0.5, 0.0)))
    assert not any(verdict.turns for verdict in found)
    assert found[-1].straggler is not None


def test_where_no_rank_waits_nothing_is_said() -> None:
    assert verdicts((60, (0.02, 0.01, 0.0)))[-1] == (
        *(None, "no rank waits notably for the others"),
        False,
    )


def test_just_below_the_mark_the_straggler_stays_the_same() -> None:
    found = watch((30, (0.06, 0.0)), (30, (0.04, 0.0)))
    assert found[-1] is not None
    assert watch((60, (0.04, 0.0)))[-1] is None


def ran(*straggled: float, waiting_s: float = 0.0) -> RunRecord:
    ranks = [
        RankRecord(rank, "a", sample(rank, 100.0, waiting_s=waiting_s), straggled_s=late_s)
        for rank, late_s in enumerate(straggled)
    ]
    return empty_record(observed_s=100.0, ranks=tuple(ranks))


def test_the_straggler_of_a_run_was_it_for_long_and_clearly_longer_than_any_other() -> None:
    assert of_run(ran(0.0, 40.0, 5.0)) == 1
    assert of_run(ran(0.0, 9.0, 0.0)) is None  # a tenth of the run at least
    assert of_run(ran(30.0, 40.0, 0.0)) is None  # two of them: neither
    assert of_run(ran(0.0, 0.0)) is None
    assert of_run(ran()) is None


def test_a_run_without_one_in_which_ranks_waited_says_that_they_took_turns() -> None:
    told = "ranks took turns: they waited 25 % of the time in the mean, for no one rank"
    assert turns_of_run(ran(12.0, 10.0, waiting_s=25.0), 100.0) == told
    assert turns_of_run(ran(0.0, 40.0, waiting_s=25.0), 100.0) == ""
    assert turns_of_run(ran(0.0, 0.0, waiting_s=2.0), 100.0) == ""
    short = ran(0.0, 0.0, waiting_s=25.0)  # one rank is late, and was not seen for long enough
    ranks = (short.ranks[0], RankRecord(1, "a", sample(1, 100.0, waiting_s=5.0)))
    assert turns_of_run(replace(short, ranks=ranks), 100.0) == ""


def test_a_rank_that_comes_or_is_another_process_begins_a_new_window() -> None:
    finder = StragglerFinder()
    for second in range(30):
        at = float(second)
        finder.take(at, on_nodes(steady(0, at, 0.5), steady(1, at, 0.0)))
    assert finder.verdict.straggler is not None
    for second in range(30, 34):
        at = float(second)
        finder.take(at, on_nodes(steady(0, at, 0.5), steady(1, at, 0.0, pid=7)))
    assert finder.verdict.straggler is None
    assert "not certain" in finder.verdict.why


def test_what_it_costs_is_the_step_with_it_over_the_step_without() -> None:
    # Steps of 1 s: the others compute 0.5 s and wait 0.5 s, the late one computes all of it.
    assert behind(0.5) == pytest.approx(1.0 / 0.5 - 1.0)
    assert behind(0.0) == 0.0
    assert behind(1.0) < 101  # never a division by nothing


@given(st.dictionaries(st.integers(0, 50), st.floats(0, 1), min_size=2, max_size=50))
def test_a_rank_that_is_late_waits_no_longer_than_one_that_is_not(waits: dict[int, float]) -> None:
    found = late(waits)
    others = [share for rank, share in waits.items() if rank not in found]
    assert all(waits[rank] <= share for rank in found for share in others)
    assert all(-1.0 <= lead(waits, rank) <= 1.0 for rank in waits)
