"""The lines that everybody reads first: true, and silent about what is not known."""

from __future__ import annotations

from typing import Any

from tests.report.runs import MIB, point, rank, records, restarted, run
from wiiiiided.domain.figures import Rates
from wiiiiided.report.rank_charts import batches_words
from wiiiiided.report.ranks import nodes_of, split_of
from wiiiiided.report.sound import sound_run
from wiiiiided.report.summary import facts, figures, why_nothing, wire_words

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
    assert dict(figures(run())) == {
        "steps": "1,000 of 1,000, 10/s",
        "samples": "128,000, 1,280/s",
        "loss": "0.412 at last",
        "time": "80 % compute, 15 % exchange, 5.0 % waiting for others",
        "wire": "400 MiB sent to other hosts travelled as 240 MiB: 40 % saved by lz4",
        "memory": "300 MiB at most in a rank",
    }


def test_the_slowest_rank_is_named() -> None:
    assert dict(facts(restarted()))["slowest"] == (
        "rank 4 on c: the others waited for it during 2m18s (46 % of the time)"
    )


def test_the_facts_are_of_all_attempts_and_the_figures_of_the_last() -> None:
    told = dict(facts(restarted()))
    assert told["ran for"] == "5m40s"
    assert told["attempts"] == "2"
    assert told["nodes"] == "a, b and c"
    assert told["steps"].startswith("2,999 of")


def test_a_last_attempt_without_figures_does_not_hide_those_of_the_one_before() -> None:
    empty = run(2, points=(), ranks=())
    assert dict(facts(records(run(), empty)))["loss"] == "0.412 at last"


def test_attempts_that_nobody_saw_are_said() -> None:
    assert dict(facts(records(run(), attempt=3)))["attempts"] == "3; figures of 1"


def test_without_figures_the_reason_is_said() -> None:
    assert "has not run" in why_nothing(records(attempt=0))
    assert "Nobody looked" in why_nothing(records(attempt=2))
    silent = run(points=(point(1.0, rates=Rates(), step=None),), ranks=(rank(**BARE),))
    assert "progress" in why_nothing(records(silent))
    assert why_nothing(records(run())) == ""


def test_a_rank_that_said_nothing_gets_no_invented_figures() -> None:
    silent = run(ranks=(rank(**BARE),), points=())
    assert dict(figures(silent)) == {"memory": "300 MiB at most in a rank"}


def test_operations_stand_in_where_the_script_says_nothing() -> None:
    quiet = run(ranks=(rank(**{**BARE, "operations": 4000}),), points=())
    assert dict(figures(quiet))["operations"] == "4,000, 40/s"


def test_headers_can_make_it_more_and_that_is_no_saving() -> None:
    more = run(ranks=(rank(wire_out=101 * MIB, wire_out_raw=100 * MIB, codec="none"),))
    assert "saved" not in wire_words(more)
    assert "headers included" in wire_words(more)


def test_time_is_split_by_node_as_the_mean_of_its_ranks() -> None:
    two = run(ranks=(rank(0), rank(1, exchange_s=40.0, waiting_s=30.0), rank(2, "b")))
    a, b = nodes_of(two)
    assert (a.split.compute, a.split.exchange, a.split.waiting) == (70.0, 12.5, 17.5)
    assert (b.ranks, b.split.compute) == (1, 80.0)


def test_counters_beyond_the_attempt_are_not_less_than_nothing() -> None:
    split = split_of(rank(exchange_s=150.0, waiting_s=200.0), 100.0)
    assert (split.compute, split.exchange, split.waiting) == (0.0, 0.0, 150.0)
    assert sum(split.shares) == 1.0


def test_the_spread_of_batches_is_said() -> None:
    assert batches_words(run()) == "All ranks are at 1,000 steps."
    apart = run(ranks=(rank(0, step=900), rank(1, step=1100)))
    assert batches_words(apart) == "From 900 to 1,100 steps a rank: 20 % apart."


def test_absurd_numbers_become_unknown() -> None:
    broken = run(
        started_at=float("nan"),
        observed_s=-5.0,
        points=(point(1.0, loss=float("inf"), memory=-1),),
        ranks=(rank(loss=float("nan"), step=-7, exchange_s=float("inf"), wire_out=-1),),
    )
    made = sound_run(broken)
    assert (made.started_at, made.ended_at, made.observed_s) == (0.0, None, 0.0)
    assert (made.points[0].loss, made.points[0].memory) == (None, None)
    totals = made.ranks[0].totals
    assert (totals.loss, totals.step, totals.exchange_s, totals.wire_out) == (None, None, 0.0, 0)
