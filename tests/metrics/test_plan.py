"""What plan predicts from a trial, and which way it recommends."""

from __future__ import annotations

import itertools
from collections.abc import Sequence

import pytest
from msgspec.structs import replace

from wiiiiided.domain.plan import (
    MachineProbe,
    PairLine,
    PairProbe,
    PlanRow,
    ScriptFacts,
    TrialMeasures,
    read_line,
    spell,
)
from wiiiiided.metrics.plan import (
    exchange_of,
    plan_rows,
    predict,
    steps_between,
)

MB = 1_000_000
GIGABIT, FAST, SLOW = 8 / 941e6, 8 / 94e6, 8 / 9.4e6  # seconds a byte


def machine(name: str, step_s: float = 0.084, samples: float = 16.0) -> MachineProbe:
    return MachineProbe(name, 1, step_s, samples, 1 << 30)


def pair(a: str, b: str, byte_s: float, fixed_s: float = 0.001) -> PairProbe:
    coded = {"exact": byte_s, "int8": byte_s / 4, "int4": byte_s / 8}
    return PairProbe(a, b, fixed_s, coded, 8 / byte_s)


def trial(
    machines: Sequence[MachineProbe], byte_s: float, gradient_bytes: int = 26 * MB, **script: object
) -> TrialMeasures:
    names = [one.name for one in machines]
    pairs = tuple(pair(a, b, byte_s) for a, b in itertools.combinations(names, 2))
    return TrialMeasures(tuple(machines), pairs, ScriptFacts(gradient_bytes, **script))  # type: ignore[arg-type]


TWO = (machine("a"), machine("b"))


def chosen(probe: TrialMeasures) -> PlanRow:
    (row,) = (row for row in plan_rows(probe) if row.recommended)
    return row


def test_two_machines_exchange_as_a_pair_was_timed() -> None:
    found = exchange_of(trial(TWO, GIGABIT), ("a", "b"), "exact")
    assert found.seconds == pytest.approx(0.001 + 26e6 * GIGABIT)
    assert found.limit == "the link between a and b"


def test_of_four_machines_a_card_carries_three_half_parts() -> None:
    found = exchange_of(trial([machine(name) for name in "abcd"], GIGABIT), "abcd", "int8")
    assert found.seconds == pytest.approx(0.001 + 3 * 26e6 / 2 * GIGABIT / 4)
    assert found.limit == "the network"


def test_a_slow_pair_between_fast_cards_limits_by_itself() -> None:
    probe = trial([machine(name) for name in "abc"], GIGABIT)
    pairs = (pair("a", "b", GIGABIT), pair("a", "c", GIGABIT), pair("b", "c", SLOW))
    found = exchange_of(TrialMeasures(probe.machines, pairs, probe.script), "abc", "exact")
    assert found.seconds == pytest.approx(0.001 + 26e6 * 2 / 3 * SLOW)
    assert found.limit == "the link between b and c"


def test_every_step_adds_the_exchange_to_the_slowest_step() -> None:
    probe = trial((machine("a"), machine("b", 0.1)), GIGABIT)
    expected = 32 / (0.1 + 0.001 + 26e6 * GIGABIT)
    assert predict(probe, "ab", 1, "exact").samples_per_s == pytest.approx(expected)


def test_shares_let_each_machine_take_samples_by_its_speed() -> None:
    slow = (machine("a", 0.1), machine("b", 0.3))
    even = predict(trial(slow, GIGABIT, 4), "ab", 1, "exact")
    shared = predict(trial(slow, GIGABIT, 4, shares=True), "ab", 1, "exact")
    assert even.samples_per_s == pytest.approx(32 / 0.301, rel=1e-3)
    assert even.why == "machine b takes 300 ms a step, the next 100 ms: the others wait for it"
    assert shared.samples_per_s == pytest.approx(32 / (32 / (160 + 160 / 3) + 0.001), rel=1e-3)


def test_a_batch_of_all_machines_is_divided_by_their_speeds_and_counts_once() -> None:
    uneven = (machine("a", 0.1, 256), machine("b", 0.3, 256))
    probe = trial(uneven, GIGABIT, shares=True, data=True, global_batch=True)
    together_s = 256 / (256 / 0.1 + 256 / 0.3)
    exchange_s = exchange_of(probe, "ab", "exact").seconds
    every_step = predict(probe, "ab", 1, "exact").samples_per_s
    assert every_step == pytest.approx(256 / (together_s + exchange_s))
    seldom = predict(probe, "ab", 16, "exact").samples_per_s
    assert seldom == pytest.approx(16 * 256 / (16 * together_s + exchange_s))


def halved(name: str, step_s: float, half_s: float, samples: float = 32.0) -> MachineProbe:
    """A machine that was timed with half of its batch, too."""
    return MachineProbe(name, 1, step_s, samples, 1 << 30, half_s, samples / 2)


BY_SPEEDS = {"shares": True, "data": True, "global_batch": True}
EVEN = {"way": "ddp", "coded": False, "global_batch": True}
WAYS_TO_DIVIDE = pytest.mark.parametrize("script", [BY_SPEEDS, EVEN])


@WAYS_TO_DIVIDE
def test_one_machine_is_recommended_where_half_a_batch_takes_as_long_as_all_of_it(
    script: dict[str, object],
) -> None:
    fixed = (halved("a", 0.079, 0.078), halved("b", 0.079, 0.078))
    probe = trial(fixed, GIGABIT / 1000, **script)
    assert chosen(probe).nodes == ("a",)
    found = predict(probe, "ab", 1, "exact")
    assert 32 / 0.081 < found.samples_per_s <= 32 / 0.078
    assert found.why == (
        "the batch is too small: 77 ms of a step stay however small a machine's part is"
    )
    assert chosen(
        trial((machine("a", 0.079, 32), machine("b", 0.079, 32)), GIGABIT / 1000, **script)
    ).nodes == ("a", "b")


@WAYS_TO_DIVIDE
@pytest.mark.parametrize("every", [1, 16])
def test_where_half_a_batch_takes_half_the_time_nothing_else_is_predicted(
    script: dict[str, object], every: int
) -> None:
    with_halves = trial((halved("a", 0.1, 0.05), halved("b", 0.3, 0.15)), GIGABIT, **script)
    without = trial((machine("a", 0.1, 32), machine("b", 0.3, 32)), GIGABIT, **script)
    found, before = (predict(probe, "ab", every, "exact") for probe in (with_halves, without))
    assert found.samples_per_s == pytest.approx(before.samples_per_s)
    assert found.why == before.why


def test_machines_that_take_parts_by_speeds_end_their_steps_together() -> None:
    machines = (halved("a", 0.1, 0.06), halved("b", 0.2, 0.12))  # 20 + 2.5 v, 40 + 5 v ms
    probe = trial(machines, GIGABIT, 4, **BY_SPEEDS)
    step_s = 32 / predict(probe, "ab", 1, "exact").samples_per_s - 0.001
    parts = ((step_s - 0.02) / 0.0025, (step_s - 0.04) / 0.005)
    assert parts == pytest.approx((24, 8), rel=1e-4)


def test_a_machine_with_a_high_fixed_cost_decides_with_its_one_sample() -> None:
    machines = (halved("a", 0.1, 0.06), halved("b", 0.34, 0.33))
    probe = trial(machines, GIGABIT, 4, **BY_SPEEDS)
    step_s = 32 / predict(probe, "ab", 1, "exact").samples_per_s - 0.001
    assert step_s == pytest.approx(0.32 + 0.02 / 32, rel=1e-4)
    assert chosen(probe).nodes == ("a",)


def test_even_parts_have_their_fixed_cost_each() -> None:
    machines = (halved("a", 0.1, 0.06), halved("b", 0.3, 0.2))
    probe = trial(machines, GIGABIT, 4, **EVEN)
    assert predict(probe, "ab", 1, "exact").samples_per_s == pytest.approx(32 / 0.2)


def test_with_seldom_exchanges_each_machine_makes_steps_of_its_even_part() -> None:
    machines = (halved("a", 0.1, 0.06), halved("b", 0.3, 0.2))
    probe = trial(machines, GIGABIT, 4, **BY_SPEEDS)
    speed = 16 / 0.06 + 16 / 0.2
    share = 1024 * 32 / speed / (1024 * 32 / speed + 0.001)
    found = predict(probe, "ab", 1024, "exact").samples_per_s
    assert found == pytest.approx(speed * share)


@pytest.mark.parametrize(
    ("half_s", "fixed_s", "sample_s"),
    [(0.06, 0.02, 0.0025), (0.04, 0.0, 0.1 / 32), (0.12, 0.1, 0.0)],
)
def test_neither_the_fixed_cost_nor_that_of_a_sample_is_below_nothing(
    half_s: float, fixed_s: float, sample_s: float
) -> None:
    one = halved("a", 0.1, half_s)
    assert (one.fixed_s, one.sample_s) == pytest.approx((fixed_s, sample_s))
    assert one.seconds(32) == pytest.approx(0.1)
    probe = trial((one, halved("b", 0.1, half_s)), GIGABIT, 4, **BY_SPEEDS)
    assert predict(probe, "ab", 1, "exact").samples_per_s > 0


def test_steps_that_had_as_many_samples_say_nothing_of_a_part() -> None:
    said = (replace(machine(name, 0.1, 32), part_s=0.1, part_samples=32) for name in "ab")
    found = predict(trial(tuple(said), GIGABIT, 4, **EVEN), "ab", 1, "exact")
    assert found.samples_per_s == pytest.approx(32 / 0.05)


def test_machines_that_divide_a_batch_need_more_steps_between_exchanges() -> None:
    def length(**script: bool) -> int:
        rows = plan_rows(trial(TWO, FAST, **script))
        return next(row.every for row in rows if row.every > 1 and row.gradients == "exact")

    assert length(shares=True, data=True, global_batch=True) == 2 * length(shares=True, data=True)


def test_one_machine_is_recommended_where_parts_of_a_batch_are_not_worth_an_exchange() -> None:
    facts = {"way": "ddp", "coded": False}
    assert chosen(trial(TWO, GIGABIT / 2, **facts)).nodes == ("a", "b")
    divided = trial(TWO, GIGABIT / 2, **facts, global_batch=True)
    assert chosen(divided).nodes == ("a",)  # half a batch and an exchange take 125 ms, it 84 ms


def test_even_parts_of_a_batch_go_by_ranks_and_the_slowest_machine_decides() -> None:
    fast, slow = MachineProbe("a", 3, 0.1, 256), machine("b", 0.2, 256)
    probe = trial((fast, slow), GIGABIT, 4, way="ddp", global_batch=True)
    found = predict(probe, "ab", 1, "exact")
    assert found.samples_per_s == pytest.approx(256 / 0.075)  # three quarters, one quarter
    assert found.why == "machine a takes 75 ms a step, the next 50 ms: the others wait for it"


def test_ddp_exchanges_beside_its_backward() -> None:
    short = trial(TWO, GIGABIT, 4 * MB, way="ddp")
    assert predict(short, "ab", 1, "exact").samples_per_s == pytest.approx(32 / 0.084)
    long = trial(TWO, GIGABIT, way="ddp")
    expected = 32 / (0.084 / 3 + 0.001 + 26e6 * GIGABIT)
    assert predict(long, "ab", 1, "exact").samples_per_s == pytest.approx(expected)


def test_with_seldom_exchanges_speeds_add_up() -> None:
    uneven = (machine("a", 0.1), machine("b", 0.3))
    probe = trial(uneven, FAST, shares=True, data=True)
    exchange_s = exchange_of(probe, "ab", "int8").seconds
    share = 16 * 0.15 / (16 * 0.15 + exchange_s)
    found = predict(probe, "ab", 16, "int8")
    assert found.samples_per_s == pytest.approx((160 + 160 / 3) * share)
    share = 16 * 0.3 / (16 * 0.3 + exchange_s)
    for script in ({}, {"shares": True}):  # of a loop whose data it does not know
        waits = predict(trial(uneven, FAST, **script), "ab", 16, "int8")
        assert waits.samples_per_s == pytest.approx(2 * 160 / 3 * share)
        assert waits.why == f"computes {100 * share:.0f} % of the time"


@pytest.mark.parametrize(
    ("step_s", "exchange_s", "steps"),
    [
        (1.0, 0.1, 1),
        (1.0, 0.12, 2),
        (0.1, 1.0, 128),
        (0.084, 0.55, 64),
        (0.001, 1.1, 16384),
        (0.001, 9.0, 16384),
    ],
)
def test_machines_compute_nine_tenths_of_the_time_with_the_least_power_of_two(
    step_s: float, exchange_s: float, steps: int
) -> None:
    assert steps_between(step_s, exchange_s) == steps


def test_a_row_whose_exchange_wants_more_steps_than_there_may_be_says_so() -> None:
    rows = plan_rows(trial((machine("a", 0.001), machine("b", 0.001)), SLOW))
    row = next(row for row in rows if row.every > 1 and row.gradients == "exact")
    assert (row.every, row.why) == (
        16_384,
        "computes 43 % of the time: 16,384 steps between two exchanges are the most",
    )
    assert all("the most" not in row.why for row in plan_rows(trial(TWO, SLOW)))


def test_a_fast_link_needs_no_change() -> None:
    row = chosen(trial(TWO, GIGABIT / 100))
    assert (row.nodes, row.every, row.gradients) == (("a", "b"), 1, "exact")
    assert row.why.startswith("computes ")


def test_a_slow_link_is_used_seldom() -> None:
    probe = trial(TWO, FAST)
    row = chosen(probe)
    assert row.every > 1
    rows = plan_rows(probe)
    assert row.samples_per_s >= 0.9 * max(one.samples_per_s for one in rows)
    exact = next(
        one for one in rows if (one.every, one.gradients, len(one.nodes)) == (1, "exact", 2)
    )
    assert exact.samples_per_s < rows[0].samples_per_s  # slower than one machine,
    assert exact.why == "the link between a and b carries 26 MB a step in 2.21 s"  # and why


def test_the_link_of_one_machine_is_named() -> None:
    probe = trial([machine(name) for name in "abc"], GIGABIT)
    pairs = (pair("a", "b", GIGABIT), pair("a", "c", FAST), pair("b", "c", FAST))
    probe = TrialMeasures(probe.machines, pairs, probe.script)
    found = predict(probe, "abc", 1, "exact")
    assert found.why.startswith("the link to c carries 26 MB a step in ")


def test_a_machine_whose_link_costs_more_than_it_gives_is_left_out() -> None:
    probe = trial([machine(name) for name in "abc"], GIGABIT / 50, way="ddp", coded=False)
    pairs = (pair("a", "b", GIGABIT / 50), pair("a", "c", SLOW), pair("b", "c", SLOW))
    row = chosen(TrialMeasures(probe.machines, pairs, probe.script))
    assert row.nodes == ("a", "b")


def test_one_machine_is_recommended_where_others_add_nothing() -> None:
    row = chosen(trial(TWO, SLOW, way="ddp", coded=False))
    assert row.nodes == ("a",)
    assert row.why.startswith("use one machine: the best of several gives 0.")
    assert "the link between a and b carries 26 MB" in row.why


def test_one_machine_is_all_there_is() -> None:
    (row,) = plan_rows(trial(TWO[:1], SLOW))
    assert (row.recommended, row.why) == (True, "use one machine: there is no other")


def test_the_fastest_machine_is_the_one_that_others_are_compared_with() -> None:
    assert plan_rows(trial((machine("a"), machine("b", 0.02)), FAST))[0].nodes == ("b",)


def test_a_small_batch_is_named_as_what_limits() -> None:
    small = TrialMeasures(
        (machine("a", 0.002), machine("b", 0.002)),
        (pair("a", "b", GIGABIT, 0.01),),
        ScriptFacts(1000, way="ddp", coded=False),
    )
    found = predict(small, "ab", 1, "exact")
    assert found.why == ("the batch is too small: a step computes 2 ms, and meeting takes 10 ms")


def test_ddp_gets_the_rows_that_apply_to_it() -> None:
    def ways(probe: TrialMeasures) -> set[tuple[int, str]]:
        return {(row.every, row.gradients) for row in plan_rows(probe)}

    assert ways(trial(TWO, FAST, way="ddp", coded=False)) == {(1, "exact")}
    assert ways(trial(TWO, FAST, way="ddp")) == {(1, "exact"), (1, "int8"), (1, "int4")}
    assert {gradients for every, gradients in ways(trial(TWO, FAST)) if every > 1} == {
        "exact",
        "int8",
    }


@pytest.mark.parametrize(
    "text",
    [
        "epoch 1",
        "wiiiiide-probe {",
        'wiiiiide-probe {"kind": "rank"}',
        spell(PairLine(0, 1, -1.0, pair("a", "b", 1.0).byte_s, 8.0)),
        spell(PairLine(0, 1, 1.0, {"exact": 1.0}, 8.0)),
    ],
)
def test_a_line_without_sense_is_passed_over(text: str) -> None:
    assert read_line(text) is None


def test_what_a_rank_says_is_read_as_it_was_meant() -> None:
    line = PairLine(0, 1, 0.001, pair("a", "b", GIGABIT).byte_s, 941e6)
    assert read_line(spell(line)) == line
