"""Rates: between two samples, over several ranks, and over waits that end all at once."""

from __future__ import annotations

import pytest

from tests.metrics.samples import sample
from wiiiiided.domain.metrics import Rates
from wiiiiided.metrics.rates import RateMeter, between, blank, fell, moved, one_word, together


def test_a_rate_is_what_was_counted_by_the_time_it_took() -> None:
    old = sample(at=10.0, operations=5, wire_out=100, exchange_s=1.0, waiting_s=0.5, step=3)
    new = sample(
        *(0, 12.0),
        operations=9,
        wire_out=300,
        exchange_s=2.0,
        waiting_s=1.0,
        step=7,
    )
    rates = between(old, new)
    assert (rates.operations, rates.wire_out, rates.steps) == (2.0, 100.0, 2.0)
    assert (rates.exchange, rates.waiting) == (0.5, 0.25)
    assert rates.samples is None


def test_a_share_of_the_time_is_never_above_one() -> None:
    rates = between(sample(at=0.0), sample(at=1.0, exchange_s=10.0, waiting_s=9.0, encode_s=2.0))
    assert (rates.exchange, rates.waiting, rates.encode) == (1.0, 1.0, 1.0)


def test_waiting_is_part_of_the_exchange_also_before_that_is_counted() -> None:
    rates = between(sample(at=0.0), sample(at=1.0, waiting_s=0.4))
    assert rates.exchange == rates.waiting == 0.4


def test_steps_that_begin_at_0_again_are_not_known() -> None:
    assert between(sample(at=0.0, step=99), sample(at=1.0, step=2)).steps is None
    assert between(sample(at=0.0), sample(at=1.0, step=2)).steps is None


def test_the_first_samples_count_from_nothing() -> None:
    assert between(sample(at=0.0), sample(at=2.0, samples=64)).samples == 32.0


def test_two_processes_have_no_rate_between_them() -> None:
    assert between(sample(at=0.0), sample(at=1.0, pid=7, operations=5)) == Rates()
    assert between(sample(at=1.0), sample(at=1.0, operations=5)) == Rates()


def test_over_ranks_bytes_are_summed_and_shares_are_means() -> None:
    one = Rates(steps=2.0, samples=10.0, shm=5.0, exchange=0.2, operations=1.0)
    other = Rates(steps=4.0, samples=30.0, shm=7.0, exchange=0.6, operations=2.0)
    found = together([one, other])
    assert (found.steps, found.samples, found.shm, found.operations) == (3.0, 40.0, 12.0, 3.0)
    assert found.exchange == pytest.approx(0.4)
    assert together([one, Rates()]).samples == 10.0
    assert together([one, Rates()]).steps == 2.0
    assert together([]) == Rates(measured=False)


def test_ranks_that_cannot_be_measured_are_no_part_of_a_mean() -> None:
    found = together([Rates(exchange=0.5), Rates(measured=False, samples=3.0)])
    assert (found.exchange, found.samples, found.measured) == (0.5, 3.0, True)
    assert not together([Rates(measured=False)] * 2).measured


def test_steps_are_counted_over_the_time_they_took_whenever_they_were_sampled() -> None:
    old = sample(at=10.0, step=8, samples=80, said_at=9.99)
    new = sample(at=11.0, step=17, samples=170, said_at=10.99)
    assert between(old, new).steps == pytest.approx(9.0)
    late = sample(at=11.0, step=16, samples=160, said_at=9.99 + 8 / 9)
    assert between(old, late).steps == pytest.approx(9.0)
    assert between(old, late).samples == pytest.approx(90.0)
    assert between(late, sample(at=12.0, step=16, samples=160, said_at=late.said_at)).steps == 0.0


def test_a_counter_that_fell_is_noticed_unless_the_process_is_another() -> None:
    old = sample(operations=5, samples=3)
    assert fell(old, sample(operations=4, samples=3))
    assert fell(old, sample(operations=5, samples=2))
    assert fell(old, sample(operations=5))
    assert not fell(old, sample(operations=5, samples=3))
    assert not fell(old, sample(operations=4, samples=3, pid=7))


def test_a_step_may_fall() -> None:
    assert not fell(sample(step=99), sample(step=0))
    assert moved(sample(step=99), sample(step=0))


def test_a_blank_has_counted_nothing() -> None:
    first = sample(3, 5.0, operations=9, shm_bytes=7, step=4)
    found = blank(first, 4.0)
    assert (found.rank, found.at, found.pid, found.operations, found.step) == (3, 4.0, 103, 0, None)
    assert between(found, first).operations == 9.0


def test_a_meter_needs_two_samples() -> None:
    meter = RateMeter()
    meter.take(sample(at=0.0))
    assert meter.rates is None
    meter.take(sample(at=1.0, operations=4))
    assert meter.rates is not None
    assert meter.rates.operations == 4.0


def test_a_meter_names_the_peer_that_was_waited_for_longest() -> None:
    meter = RateMeter()
    meter.take(sample(at=0.0, waited_for={1: 9.0}))
    assert meter.waits_for is None
    meter.take(sample(at=2.0, operations=4, waited_for={1: 9.1, 2: 0.5}))
    assert meter.waits_for == 2
    meter.take(sample(at=4.0, operations=8, waited_for={1: 9.11, 2: 0.51}))
    assert meter.waits_for == 2  # over several steps: one may be an exception
    for at in range(6, 24, 2):
        meter.take(sample(at=at, operations=2 * at, waited_for={1: 9.11, 2: 0.51}))
    assert meter.waits_for is None  # less than 5 % of the time


def test_a_wait_of_ten_seconds_is_spread_over_the_ten_seconds() -> None:
    meter = RateMeter()
    seen = []
    for second in range(41):
        ended = second // 10  # an operation every ten seconds; nine of them spent waiting
        meter.take(sample(at=float(second), operations=ended, waiting_s=9.0 * ended))
        seen.append(meter.rates.waiting if meter.rates is not None else None)
    assert seen[20:] == pytest.approx([0.9] * 21)


def test_when_nothing_moves_any_more_the_rates_go_to_nothing() -> None:
    meter = RateMeter()
    for second in range(5):
        meter.take(sample(at=float(second), operations=second))
    assert meter.rates is not None
    assert meter.rates.operations == 1.0
    meter.take(sample(at=6.9, operations=4))
    assert meter.rates.operations == 1.0  # it may only be late
    meter.take(sample(at=7.1, operations=4))
    assert meter.rates.operations == 0.0


def test_four_samples_a_second_do_not_make_the_rate_jump() -> None:
    meter = RateMeter()
    seen = []
    for quarter in range(40):
        at = quarter / 4
        meter.take(sample(at=at, operations=int(at / 0.3)))  # one every 0.3 s
        seen.append(meter.rates.operations if meter.rates is not None else 0.0)
    assert max(seen[8:]) - min(seen[8:]) < 1.5  # between single samples it is 0 or 4


@pytest.mark.parametrize("steps_a_second", [0.5, 0.3, 3.0])
def test_nodes_of_one_job_show_the_same_steps_whenever_they_are_looked_at(
    steps_a_second: float,
) -> None:
    seen: dict[float, list[float | None]] = {}
    for phase in (0.0, 0.3, 0.9):
        meter = RateMeter()
        for second in range(60):
            at = second + phase
            step = int(at * steps_a_second)
            said_at = step / steps_a_second
            meter.take(
                sample(at=at, operations=int(at * 8), step=step, samples=32 * step, said_at=said_at)
            )
            if meter.rates is not None and second > 10:
                seen.setdefault(phase, []).append(meter.rates.steps)
                assert meter.rates.samples == pytest.approx(32 * steps_a_second)
    for found in seen.values():
        assert found == pytest.approx([steps_a_second] * 49)


def test_a_step_that_is_overdue_by_far_is_none_and_the_pause_is_not_counted() -> None:
    meter = RateMeter()

    def rate(at: float, step: int, said_at: float) -> float | None:
        meter.take(sample(at=at, operations=int(at * 8), step=step, said_at=said_at))
        return meter.rates.steps if meter.rates is not None else None

    for second in range(0, 20, 2):
        rate(float(second), second // 2, float(second))
    assert rate(23.9, 9, 18.0) == pytest.approx(0.5)
    assert rate(24.1, 9, 18.0) == 0.0
    assert rate(25.1, 9, 18.0) == 0.0
    assert rate(60.0, 10, 60.0) == 0.0
    assert rate(62.0, 11, 62.0) == pytest.approx(0.5)


def test_an_epoch_that_counts_from_0_again_leaves_the_rate_as_it_was() -> None:
    meter = RateMeter()
    for second in range(10):
        meter.take(sample(at=float(second), operations=second, step=second))
    meter.take(sample(at=10.0, operations=10, step=0))
    assert meter.rates is not None
    assert meter.rates.steps == pytest.approx(1.0)


def test_another_process_begins_anew() -> None:
    meter = RateMeter()
    meter.take(sample(at=0.0, operations=9))
    meter.take(sample(at=1.0, operations=19))
    meter.take(sample(at=2.0, operations=1, pid=7))
    assert meter.rates is None


@pytest.mark.parametrize(
    ("words", "said"),
    [([], ""), (["", ""], ""), (["lz4", "", "lz4"], "lz4"), (["lz4", "none"], "mixed")],
)
def test_one_word_for_several(words: list[str], said: str) -> None:
    assert one_word(words) == said
