"""A job as it does now, and the machine it does it on."""

from __future__ import annotations

import random
from collections.abc import Iterator
from typing import Any

import pytest

from tests.metrics.samples import empty_record, sample, steady
from wiiiiided.domain.metrics import Rates, TrainingMetrics
from wiiiiided.domain.node import Node
from wiiiiided.metrics.attempt_metrics import AttemptMetrics
from wiiiiided.metrics.rates import in_step
from wiiiiided.metrics.snapshot import HISTORY, Health, NodeStatus, Trend, node_now

A = Node("a", 4, 8 << 30)


def two_nodes(seconds: int = 20) -> AttemptMetrics:
    """Rank 1, on b, is late. The clock of b is far ahead."""
    course = AttemptMetrics(empty_record(nodes=("a", "b")), 0.0, 0.0)
    for second in range(seconds + 1):
        at = float(second)
        there = steady(1, at + 0.0, 0.0, step=second, total=100, loss=0.2, codec="none")
        here = steady(0, at, 0.5, step=second + 1, total=100, loss=0.4, codec="lz4", memory=5)
        course.take(at, {"a": [here], "b": [_at(there, at + 1e6)]})
    return course


def _at(found, at):  # type: ignore[no-untyped-def]
    return type(found)(**{**{f: getattr(found, f) for f in found.__struct_fields__}, "at": at})


def test_a_job_now_is_all_its_ranks_together() -> None:
    now = two_nodes().now()
    assert (now.step, now.total) == (20, 100)
    assert now.loss == pytest.approx(0.3)
    assert now.memory == 5
    assert now.eta_s == pytest.approx(80.0)
    assert now.rates.operations == pytest.approx(20.0)
    assert now.rates.steps == pytest.approx(1.0)
    assert [(rank.rank, rank.node, rank.codec) for rank in now.ranks] == [
        (0, "a", "lz4"),
        (1, "b", "none"),
    ]


def together(seconds: float, **more: Any) -> Iterator[AttemptMetrics]:
    """Three nodes whose ranks make each step together, in steps of uneven length, and are looked at
    in different moments: after each second."""
    chance = random.Random(5)
    course = AttemptMetrics(empty_record(nodes=("a", "b", "c"), workers=3), 0.0, 0.0)
    began = [0.0]
    while began[-1] < seconds:
        began.append(began[-1] + chance.choice([0.05, 0.1, 0.2]))
    for second in range(1, int(seconds)):
        for rank, node in enumerate("abc"):
            at = second + 0.3 * rank
            step = sum(begin <= at for begin in began) - 1
            said = {"step": step, "samples": (rank + 1) * 8 * step, "said_at": began[step]}
            course.take(at, {node: [sample(rank, at, operations=step, **said, **more)]})
        yield course


def test_nodes_of_one_synchronous_job_show_one_rate_of_steps() -> None:
    for second, course in enumerate(together(20.0)):
        rates = {node: course.rates(node) for node in "abc"}
        if second < 2:
            continue
        (a,), (b,), (c,) = rates["a"], rates["b"], rates["c"]
        assert a.steps == b.steps == c.steps != 0.0
        assert a.samples is not None
        assert (b.samples, c.samples) == pytest.approx((2 * a.samples, 3 * a.samples))
        assert [rank.rates.steps for rank in course.now().ranks] == [a.steps] * 3


def test_ranks_that_make_steps_of_their_own_have_rates_of_their_own() -> None:
    *_, course = together(20.0, training=TrainingMetrics(own_steps=True))
    assert len({one.steps for one in course.rates()}) > 1


@pytest.mark.parametrize("behind", [0, 1000])
def test_ranks_far_from_each_other_are_not_in_step(behind: int) -> None:
    rates = {0: Rates(steps=9.0, samples=90.0), 1: Rates(steps=11.0, samples=22.0)}
    found = in_step(rates, {0: 1000 - behind, 1: 1004})
    assert (found == rates) is bool(behind)
    assert behind or found[1] == Rates(steps=10.0, samples=20.0)


def test_the_straggler_is_found_across_nodes_with_clocks_of_their_own() -> None:
    late = two_nodes(40).now().straggler
    assert late is not None
    assert (late.rank, late.node) == (1, "b")


def test_the_node_of_the_straggler_is_slow_and_the_other_is_not() -> None:
    course = two_nodes(40)
    states = {
        name: node_now(Node(name, 4, 8 << 30), Health(), Trend(), [course], NodeStatus()).state
        for name in ("a", "b")
    }
    assert states == {"a": "ok", "b": "slow"}


def test_a_machine_with_all_ranks_is_not_slower_than_the_others() -> None:
    course = AttemptMetrics(empty_record(), 0.0, 0.0)
    for second in range(20):
        at = float(second)
        course.take(at, {"a": [steady(0, at, 0.5), steady(1, at, 0.0)]})
    assert course.now().straggler is not None
    assert node_now(A, Health(), Trend(), [course], NodeStatus()).state == "ok"


def test_a_node_has_its_own_ranks_and_its_own_codec() -> None:
    now = node_now(A, Health(0.5, 0.25, True), Trend(), [two_nodes()], NodeStatus(0.1))
    assert (now.cpu, now.memory_used, now.note, now.codec) == (0.5, 0.25, "swapping", "lz4")
    assert now.rates.operations == pytest.approx(10.0)
    assert (now.jobs, now.cores, now.memory) == ((1,), 4, 8 << 30)


def test_of_a_lost_node_nothing_is_said_to_be_of_now() -> None:
    trend = Trend()
    trend.take(Rates(samples=64.0))
    about = NodeStatus(40.0, coordinator=False, lost=True)
    now = node_now(A, Health(0.5, 0.25, True), trend, [two_nodes()], about)
    assert (now.state, now.note, now.coordinator, now.age_s) == ("lost", "", False, 40.0)
    assert (now.cpu, now.memory_used, now.codec, now.history) == (None, None, "", ())
    assert now.rates == Rates(measured=False)
    assert (now.jobs, now.cores, now.memory) == ((1,), 4, 8 << 30)


def test_a_drained_node_says_why_and_what_it_still_does() -> None:
    now = node_now(
        A, Health(0.5, 0.25, True), Trend(), [two_nodes()], NodeStatus(drained="fan broken")
    )
    assert (now.state, now.note) == ("drained", "fan broken; swapping")
    assert now.rates.operations == pytest.approx(10.0)
    assert node_now(A, Health(), Trend(), [], NodeStatus(drained="")).state == "drained"


def test_ranks_that_are_not_heard_of_any_more_have_no_rates() -> None:
    course = two_nodes()
    for second in range(21, 33):
        course.take(float(second), {"a": [steady(0, float(second), 0.5, step=second + 1)]})
        if second == 25:  # nothing of b for five seconds
            assert len(course.rates()) == 2
    now = course.now()
    assert [rank.rates.measured for rank in now.ranks] == [True, False]
    assert course.rates("b") == []
    assert now.rates.operations == pytest.approx(10.0)
    assert (now.step, now.straggler) == (33, None)
    assert course.verdict.why == "a rank alone waits for no other"


def test_a_rank_that_is_heard_of_again_counts_again() -> None:
    course = two_nodes()
    for second in range(21, 80):
        at = float(second)
        samples = {"a": [steady(0, at, 0.5, step=second + 1)]}
        if second > 40:
            samples["b"] = [_at(steady(1, at, 0.0, step=second), at + 1e6)]
        course.take(at, samples)
    now = course.now()
    assert now.rates.operations == pytest.approx(20.0)
    assert now.step == 79
    assert now.straggler is not None
    assert now.straggler.node == "b"


def test_where_no_rank_is_heard_of_the_last_step_stays_and_no_rate_does() -> None:
    course = two_nodes()
    for second in range(21, 40):
        course.take(float(second), {})
    now = course.now()
    assert (now.step, now.total) == (20, 100)
    assert now.rates == Rates(measured=False)
    assert now.eta_s is not None  # the next step is not overdue yet


def test_the_record_of_ranks_that_are_not_heard_of_is_not_thinned_by_zeros() -> None:
    course = two_nodes()
    for second in range(21, 60):
        course.take(float(second), {"a": [steady(0, float(second), 0.5)]})
    last = course.record().points[-1]
    assert last.rates.waiting == pytest.approx(0.5)
    assert [rank.node for rank in course.record().ranks] == ["a", "b"]


def test_a_node_without_a_job_is_idle() -> None:
    now = node_now(A, Health(), Trend(), [], NodeStatus())
    assert (now.state, now.rates, now.jobs) == ("idle", Rates(measured=False), ())


def test_a_rank_that_was_not_read_this_time_stays_as_it_was() -> None:
    course = AttemptMetrics(empty_record(), 0.0, 0.0)
    course.take(1.0, {"a": [sample(0, 1.0, step=5), sample(1, 1.0, step=6)]})
    course.take(2.0, {"a": [sample(1, 2.0, step=7)]})
    assert [rank.step for rank in course.now().ranks] == [5, 7]


def test_the_trend_keeps_sixty_values_of_the_best_unit() -> None:
    trend = Trend()
    for number in range(HISTORY):
        trend.take(Rates(operations=float(number)))
    assert (trend.unit, len(trend.values)) == ("op/s", HISTORY)
    trend.take(Rates(steps=2.0, operations=9.0))
    assert (trend.unit, list(trend.values)) == ("step/s", [2.0])
    for _ in range(2 * HISTORY):
        trend.take(Rates(samples=64.0, steps=2.0))
    assert (trend.unit, set(trend.values), len(trend.values)) == ("samples/s", {64.0}, HISTORY)
    trend.clear()
    assert (trend.unit, list(trend.values)) == ("op/s", [])
