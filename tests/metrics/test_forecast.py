"""What a job may need, from earlier runs of the same name."""

from __future__ import annotations

from tests.metrics.samples import empty_record, sample
from wiiiiided.domain.metrics import Point, RankRecord, Rates, RunRecord
from wiiiiided.metrics.forecast import forecast, speeds

MIB = 1 << 20


def done(seconds: float, memory: int | None, sent: int, **fields: object) -> RunRecord:
    ranks = tuple(
        RankRecord(rank, "a", sample(rank, wire_out=sent), memory_peak=memory) for rank in (0, 1)
    )
    known = {"ended_at": 1000.0 + seconds, "state": "done", "code": 0, "ranks": ranks}
    return empty_record(**{**known, **fields})


def test_without_history_it_says_so() -> None:
    found = forecast("digits", [])
    assert (found.runs, found.memory, found.time_s, found.wire_bytes) == (0, None, None, None)
    assert found.text == 'no earlier run named "digits" is done: its needs are not known'


def test_the_most_memory_the_range_of_times_and_the_most_bytes() -> None:
    runs = [done(100, 200 * MIB, 3 * MIB), done(130, 300 * MIB, 2 * MIB)]
    found = forecast("digits", runs)
    assert (found.runs, found.memory, found.time_s) == (2, 300 * MIB, (100.0, 130.0))
    assert found.wire_bytes == 6 * MIB
    assert found.text == (
        "the last 2 runs of this name (2 workers) took 1m40s to 2m10s, up to 300 MiB of memory a "
        "rank, up to 6 MiB sent to other hosts"
    )


def test_runs_that_failed_or_have_another_name_say_nothing() -> None:
    runs = [done(1, MIB, 0, state="failed"), done(1, MIB, 0, name="other"), done(9, MIB, 0)]
    found = forecast("digits", runs)
    assert (found.runs, found.time_s) == (1, (9.0, 9.0))
    assert found.text.startswith("the last run of this name (2 workers) took 9s, ")
    assert found.text.endswith("nothing sent to other hosts")


def test_runs_without_figures_still_have_a_time() -> None:
    found = forecast("digits", [done(61, None, 0, ranks=()), done(7200, None, 0, ranks=())])
    assert (found.memory, found.wire_bytes) == (None, None)
    assert found.text == "the last 2 runs of this name (2 workers) took 1m01s to 2h00m"


def test_a_clock_that_was_set_back_gives_no_time_below_nothing() -> None:
    assert forecast("digits", [done(-50, None, 0)]).time_s == (0.0, 0.0)


def test_runs_of_other_sizes_are_told_apart() -> None:
    found = forecast("digits", [done(5, None, 0), done(5, None, 0, workers=8)])
    assert "(2 to 8 workers)" in found.text


def test_the_speed_of_runs_is_told_by_their_number_of_machines() -> None:
    def points(*rates: float | None) -> tuple[Point, ...]:
        return tuple(Point(i, 2.0 * (i + 1), Rates(samples=r)) for i, r in enumerate(rates))

    runs = [
        done(9, MIB, 0, nodes=("a", "b"), points=points(30.0, 60.0, None)),
        done(9, MIB, 0, nodes=("a", "b"), points=points(1.0)),  # an earlier one
        done(9, MIB, 0, nodes=("a",), points=points(100.0)),
        done(9, MIB, 0, nodes=("a", "b", "c"), points=points(None)),
        done(9, MIB, 0, nodes=("d",) * 4, state="failed", points=points(9.0)),
    ]
    assert speeds("digits", runs) == {2: 50.0, 1: 100.0}
    assert speeds("other", runs) == {}
