"""Drawings: sound SVG, with words for readers who do not see them."""

from __future__ import annotations

import itertools
import re
from xml.etree import ElementTree

from tests.ui.report.runs import HOSTILE, diverged, point, records, restarted, run
from wiiiiided.domain.metrics import Rates
from wiiiiided.ui.report.charts import Bar, BarChart, ChartFigure, Curve, LineChart
from wiiiiided.ui.report.over_time import over_time
from wiiiiided.ui.report.page import draw
from wiiiiided.ui.report.run_history import RunHistory, history
from wiiiiided.ui.report.ticks import Scale, amounts, times
from wiiiiided.ui.report.timeline import straggler_spells, timeline

EVEN = Scale(0.0, 1.0, ((0.0, "0"), (1.0, "1")))


def parsed(figure: ChartFigure) -> ElementTree.Element:
    root = ElementTree.fromstring(draw(figure)).find("svg")
    assert root is not None
    assert root.get("role") == "img"
    assert root.get("aria-label")
    return root


def drawn(past: RunHistory) -> str:
    return "".join(map(draw, over_time(past)))


def loss_of(past: RunHistory) -> ChartFigure:
    curve = Curve("one", past.lines(lambda p: p.loss, ends=True))
    return ChartFigure("Loss", "", LineChart(times(past.length), amounts(0, 3), [curve]))


def test_a_gap_begins_a_new_stroke() -> None:
    seen = tuple(point(float(at)) for at in range(1, 101) if not 40 < at <= 60)
    past = history(records(run(points=seen)))
    (path,) = parsed(loss_of(past)).iter("path")
    strokes = path.get("d") or ""
    assert strokes.count("M") == 2
    ends = [float(x) for x in re.findall(r"(?:M|L)([\d.]+) ", strokes)]
    assert max(b - a for a, b in itertools.pairwise(ends)) == 210.0  # 40 s to 61 s


def test_a_single_point_is_a_dot() -> None:
    past = history(records(run(points=(point(50.0),))))
    (path,) = parsed(loss_of(past)).iter("path")
    assert re.fullmatch(r"M([\d.]+ [\d.]+)L\1", path.get("d") or "")


def test_every_stretch_tells_on_hovering_when_and_in_which_attempt() -> None:
    loss = parsed(next(over_time(history(restarted()))))
    hovers = [each.findtext("title") or "" for each in loss.iter("rect")]
    assert any(told.startswith("attempt 2, 1m00s: loss 0.4996, samples/s") for told in hovers)
    assert "attempt 2 began" in [each.findtext("title") for each in loss.iter("line")]


def test_a_stacked_bar_fills_its_width() -> None:
    bar = Bar(
        "a",
        "60 · 30 · 10 %",
        (("compute", 0.6, "c"), ("exchange", 0.3, "e"), ("waiting", 0.1, "w")),
    )
    rects = list(parsed(ChartFigure("Time", "", BarChart(EVEN, [bar]))).iter("rect"))
    assert [(r.get("x"), r.get("width")) for r in rects] == [
        *(("0%", "60%"), ("60%", "30%"), ("90%", "10%"))
    ]


def test_a_hostile_name_is_text_in_a_drawing_too() -> None:
    bar = Bar(HOSTILE, HOSTILE, (("compute", 0.6, HOSTILE),))
    root = parsed(ChartFigure(HOSTILE, HOSTILE, BarChart(EVEN, [bar])))
    assert {element.tag for element in root.iter()} <= {
        *("svg", "g", "text", "tspan", "rect", "title", "line")
    }
    assert HOSTILE.partition("\u202e")[0] in (root.get("aria-label") or "")


def test_stragglers_are_named_longest_first_with_their_times() -> None:
    past = history(restarted())
    slow = straggler_spells(past)
    assert [(each.rank, each.node) for each in slow] == [(4, "c"), (1, "a")]
    assert slow[1].when == ((89.0, 95.0),)
    assert slow[0].seconds == 140.0
    texts = [text.text for text in parsed(ChartFigure("All", "", timeline(past))).iter("text")]
    assert texts[:1] == ["attempts"]
    assert "rank 4 on c" in texts


def test_the_timeline_says_how_attempts_ended() -> None:
    told = draw(ChartFigure("All", "", timeline(history(restarted()))))
    assert "lasted 40s: failed, exit code 137 (SIGKILL)" in told
    assert "20s after the one before, lasted 5m00s: done" in told


def test_a_job_without_metrics_has_no_strip_that_looks_like_an_outage() -> None:
    assert ">metrics<" in draw(ChartFigure("All", "", timeline(history(restarted()))))
    bare = drawn(history(records(run(points=(), ranks=()))))
    assert "metrics" not in bare
    assert "straggler" not in bare
    assert "slowest" not in bare


def test_a_running_attempt_is_called_so() -> None:
    now = records(run(ended_at=None, state=""), state="running")
    shown = drawn(history(now))
    assert "lasted 1m40s: running" in shown
    assert "no end seen" not in shown


def test_a_loss_that_became_no_number_ends_with_a_mark() -> None:
    loss, *others = map(draw, over_time(history(diverged())))
    assert "From 2.302 to nan (0.4135 before)" in loss
    assert loss.count(">nan</text>") == 1
    assert not any("nan" in other for other in others)


def test_what_is_summed_over_ranks_is_said_so() -> None:
    bare = tuple(point(float(n), rates=Rates(operations=80.0), step=None) for n in range(1, 9))
    told = drawn(history(records(run(points=bare))))
    assert "Up to 80 operations/s, all ranks together." in told
