"""The lines at the top of a report: true, and silent about what is not known."""

from __future__ import annotations

import math
from typing import Any

import pytest
from msgspec.structs import replace

from tests.ui.report.runs import MIB, diverged, point, rank, records, restarted, run, unmeasured
from wiiiiided.domain.metrics import Point, Rates, TrainingMetrics
from wiiiiided.ui.report.attempt_table import attempt_rows
from wiiiiided.ui.report.rank_charts import batches_words
from wiiiiided.ui.report.rank_table import rank_rows
from wiiiiided.ui.report.ranks import Split, nodes_of, split_of
from wiiiiided.ui.report.run_history import history
from wiiiiided.ui.report.sanitize import sanitized, sanitized_run
from wiiiiided.ui.report.summary import (
    NOT_MEASURED,
    codec_words,
    ending,
    facts,
    metric_rows,
    why_nothing,
    wire_words,
)

BARE: dict[str, Any] = {
    "operations": 0,
    "step": None,
    "samples": None,
    "loss": None,
    "total": None,
    "codec": "",
    "wire_out": 0,
    "wire_in": 0,
    "wire_out_raw": 0,
    "wire_in_raw": 0,
    "exchange_s": 0.0,
}


def test_a_run_in_a_few_lines() -> None:
    assert dict(metric_rows(run())) == {
        "steps": "1,000 of 1,000, 10.08/s",
        "samples": "128,000, 322.7/s",
        "loss": "0.412 at last",
        "time": "80 % compute, 15 % exchange, 5.0 % waiting for others",
        "wire": "400 MiB sent to other hosts travelled as 240 MiB: 40 % saved by lz4",
        "memory": "300 MiB at most in a rank",
    }


def test_what_the_run_measured_is_told() -> None:
    told = {"noise_scale": 1890.0, "speed_spread": 3.0, "balance_gain": 1.5, "own_steps": True}
    lossy = {"codec": "int8"}
    uneven = run(
        ranks=(
            rank(
                0, step=900, codec_why="3.94 times smaller, 0.71 % left", **lossy,
                training=TrainingMetrics(share=0.75, **told),
            ),
            rank(
                1, "b", step=300, codec_why="3.94 times smaller, 0.74 % left", **lossy,
                training=TrainingMetrics(share=0.25, **told),
            ),
        )
    )  # fmt: skip
    found = dict(metric_rows(sanitized_run(uneven)))
    assert found["batch"] == (
        "about 1,900 samples a step are worth it (gradient noise scale); it has 213"
    )
    assert found["shares"] == (
        "a 75 %, b 25 % of the samples; speeds 3 times apart: with even parts a step would take "
        "1.5 times as long"
    )
    assert codec_words(uneven) == " int8: 3.94 times smaller, 0.71 % left."
    assert "by design" in batches_words(uneven)
    assert [row[8] for row in rank_rows(uneven)] == ["75 %", "25 %"]


def test_figures_that_cannot_be_are_not_told() -> None:
    absurd = TrainingMetrics(noise_scale=math.nan, share=-1.0, round_steps=math.inf)
    assert sanitized_run(run(ranks=(rank(training=absurd),))).ranks[0].totals.training == (
        TrainingMetrics()
    )


def test_where_no_one_rank_was_slow_they_took_turns() -> None:
    waiting = tuple(rank(number, held_s=12.0, waiting_s=20.0) for number in range(2))
    assert dict(metric_rows(run(ranks=waiting)))["slowest"] == (
        "none: ranks took turns: they waited 20 % of the time in the mean, for no one rank"
    )


def test_the_slowest_rank_is_named() -> None:
    assert dict(facts(restarted()))["slowest"] == (
        "rank 4 on c was the slowest for 2m18s (46 % of the time); the others waited 52s for it"
    )


def test_what_the_others_waited_is_their_mean_and_unknown_where_none_says() -> None:
    three = [rank(0, waited_for={1: 30.0}), rank(1, held_s=60.0), rank(2, waited_for={0: 9.0})]
    assert dict(metric_rows(run(ranks=three)))["slowest"].endswith("; the others waited 15s for it")
    three[0] = rank(0, waited_for={})
    assert dict(metric_rows(run(ranks=three)))["slowest"] == (
        "rank 1 on a was the slowest for 1m00s (60 % of the time)"
    )


def test_rates_are_of_the_time_from_the_first_step_to_the_last() -> None:
    def at(moment: float, steps: float, span: float = 1.0) -> Point:
        return point(moment, span, rates=Rates(steps=steps, samples=4 * steps))

    begin = (at(20.0, 0.0, 20.0), at(40.0, 1.0, 20.0))  # start-up, and the first step
    steady = tuple(at(41.0 + n, 10.0 if n != 5 else 0.0) for n in range(10))
    end = (at(80.0, 0.0, 30.0),)
    told = dict(metric_rows(run(points=begin + steady + end)))
    assert told["steps"] == "1,000 of 1,000, 9/s"  # a pause amid training counts
    assert told["samples"] == "128,000, 36/s"


def test_where_only_the_whole_is_known_the_rate_says_so() -> None:
    told = dict(metric_rows(run(points=())))
    assert told["steps"] == "1,000 of 1,000, 10/s, start-up included"


def test_without_a_group_of_the_backend_nothing_is_said_of_exchange() -> None:
    told = dict(metric_rows(sanitized(unmeasured()).runs[0]))
    assert told["time"] == NOT_MEASURED
    assert set(told) == {"steps", "samples", "loss", "time", "memory"}


def test_ranks_that_are_not_measured_do_not_count_among_those_that_are() -> None:
    mixed = sanitized_run(
        run(ranks=(rank(0), rank(1, measured=False), rank(2, "b", measured=False)))
    )
    assert dict(metric_rows(mixed))["time"].startswith("80 % compute, 15 % exchange")
    assert [node.split is None for node in nodes_of(mixed)] == [False, True]


def test_a_loss_that_is_no_number_is_not_told_as_the_last_one_that_was() -> None:
    assert dict(facts(diverged()))["loss"] == "nan at last (0.412 before)"
    never = run(ranks=(rank(loss=None, diverged=True),), points=())
    assert dict(metric_rows(never))["loss"] == "nan at last"


@pytest.mark.parametrize(
    ("state", "why", "told"),
    [
        ("done", "done", "done"),
        ("cancelled", "cancelled by root", "cancelled by root"),
        ("running", "runs on a, b (attempt 2)", "running on a, b (attempt 2)"),
        ("stopping", "is being stopped: cancelled by ada", "stopping: cancelled by ada"),
        ("hung", "hangs: rank 1 is late; stacks", "hung: rank 1 is late; stacks"),
        ("held", "is held by ada; release", "held by ada; release"),
        ("queued", "waits for a", "queued: waits for a"),
        ("failed", "failedover is no word", "failed: failedover is no word"),
    ],
)
def test_a_reason_does_not_repeat_the_state(state: str, why: str, told: str) -> None:
    assert dict(facts(records(state=state, why=why)))["state"] == told


def test_an_attempt_that_goes_on_is_running_and_one_that_was_left_open_is_not() -> None:
    open_end: dict[str, Any] = {"ended_at": None, "state": ""}
    now = records(run(**open_end), run(2, **open_end), state="running")
    first, second = history(now).attempts
    assert ending(first.run, first.running) == "no end seen"
    assert ending(second.run, second.running) == "running"
    assert dict(facts(now))["ran for"] == "3m20s so far"
    waits = history(records(run(**open_end), state="backoff")).attempts[0]
    assert not waits.running


def test_the_facts_are_of_all_attempts_and_the_figures_of_the_last() -> None:
    told = dict(facts(restarted()))
    assert told["ran for"] == "5m40s"
    assert told["attempts"] == "2"
    assert told["nodes"] == "a, b and c"
    assert told["steps"].startswith("2,999 of")


def test_a_last_attempt_without_figures_does_not_hide_those_of_the_one_before() -> None:
    empty = run(2, points=(), ranks=())
    assert dict(facts(records(run(), empty)))["loss"] == "0.412 at last"


def test_attempts_without_metrics_are_said() -> None:
    assert dict(facts(records(run(), attempt=3)))["attempts"] == "3; metrics of 1"


def test_without_figures_the_reason_is_said() -> None:
    assert "has not run" in why_nothing(records(attempt=0))
    assert "No daemon looked" in why_nothing(records(attempt=2))
    silent = run(points=(point(1.0, rates=Rates(), step=None),), ranks=(rank(**BARE),))
    assert "progress" in why_nothing(records(silent))
    assert why_nothing(records(run())) == ""


def test_a_rank_that_said_nothing_gets_no_invented_figures() -> None:
    silent = run(ranks=(rank(**BARE),), points=())
    assert dict(metric_rows(silent)) == {"memory": "300 MiB at most in a rank"}


def test_operations_stand_in_where_the_script_says_nothing() -> None:
    quiet = run(ranks=(rank(**{**BARE, "operations": 4000}),), points=())
    assert dict(metric_rows(quiet))["operations"] == "4,000, 40/s, start-up included"
    two = run(ranks=[rank(n, **{**BARE, "operations": 4000}) for n in range(2)])
    assert dict(metric_rows(two))["operations"] == "8,000, 40/s, all ranks together"  # as its chart


def test_headers_can_make_it_more_and_that_is_no_saving() -> None:
    more = run(ranks=(rank(wire_out=101 * MIB, wire_out_raw=100 * MIB, codec="none"),))
    assert "saved" not in wire_words(more)
    assert "headers included" in wire_words(more)


def test_time_is_split_by_node_as_the_mean_of_its_ranks() -> None:
    two = run(ranks=(rank(0), rank(1, exchange_s=40.0, waiting_s=30.0), rank(2, "b")))
    a, b = nodes_of(two)
    assert a.split == Split(70.0, 12.5, 17.5)
    assert (b.ranks, b.split) == (1, Split(80.0, 15.0, 5.0))


def test_counters_beyond_the_attempt_are_not_less_than_nothing() -> None:
    split = split_of(rank(exchange_s=150.0, waiting_s=200.0), 100.0)
    assert (split.compute, split.exchange, split.waiting) == (0.0, 0.0, 150.0)
    assert sum(split.shares) == 1.0


def test_the_spread_of_batches_is_said() -> None:
    assert batches_words(run()) == "All ranks are at 1,000 steps."
    few = run(ranks=[rank(n, step=None, operations=1) for n in range(2)])
    assert batches_words(few) == "All ranks are at 1 operation."
    assert batches_words(run(ranks=(rank(step=7),))) == "Its one rank is at 7 steps."
    apart = run(ranks=(rank(0, step=900), rank(1, step=1100)))
    assert batches_words(apart) == "From 900 to 1,100 steps a rank: 20 % apart."


def test_absurd_numbers_become_unknown() -> None:
    broken = run(
        started_at=float("nan"),
        observed_s=-5.0,
        points=(point(1.0, loss=float("inf"), memory=-1),),
        ranks=(rank(loss=float("nan"), step=-7, exchange_s=float("inf"), wire_out=-1),),
    )
    made = sanitized_run(broken)
    assert (made.started_at, made.ended_at, made.observed_s) == (0.0, None, 0.0)
    assert (made.points[0].loss, made.points[0].memory) == (None, None)
    totals = made.ranks[0].totals
    assert (totals.loss, totals.step, totals.exchange_s, totals.wire_out) == (None, None, 0.0, 0)


def test_the_command_is_told_as_one_would_type_it() -> None:
    assert dict(facts(records(run())))["command"] == "python train.py 'a b'"
    assert "command" not in dict(facts(replace(records(run()), spec={})))
    assert "command" not in dict(facts(replace(records(run()), spec={"run": {"command": 3}})))


def test_what_ranks_use_and_report_is_told() -> None:
    said = {"accuracy": 0.75, "lr": None}
    ranks = tuple(rank(number, cpu_s=150.0, metrics=said) for number in range(2))
    told = dict(metric_rows(run(ranks=ranks)))
    assert told["cpu"] == "3.00 cores in the mean, all ranks together"
    assert told["metrics"] == "accuracy 0.75, lr nan"


def test_all_attempts_are_listed_with_their_ends_and_reasons() -> None:
    first, second = attempt_rows(restarted())
    assert first[:2] == ("1", "a and b")
    assert first[4:] == ("40s", "failed, exit code 137 (SIGKILL)", "rank 3 was killed by SIGKILL")
    assert second[1] == "a, b and c"
    assert second[5:] == ("done", "–")
    failed = records(run(state="failed", code=1), state="failed", why="rank 1: ValueError: x")
    assert attempt_rows(failed)[0][6] == "rank 1: ValueError: x"  # an older daemon kept none


def test_ranks_that_trained_apart_are_named_after_the_end_too() -> None:
    apart = "rank 1 on b is 1,450 steps behind"
    assert dict(facts(records(state="done", why="done", apart=apart)))["steps"] == apart
    assert "steps" not in dict(facts(records(state="running", why=f"runs on a; {apart}")))
