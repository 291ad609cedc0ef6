"""Small drawings: what each shows in the width it has."""

from __future__ import annotations

import math

import pytest

from wiiiiided.ui.top.marks import (
    Chart,
    Mark,
    ProgressBar,
    ShareMeter,
    Sparkline,
    TimeBar,
    stretched,
)


def text(mark: Mark, width: int) -> str:
    return "".join(piece for piece, _ in mark.pieces(width))


def test_a_sparkline_goes_from_zero_to_the_largest() -> None:
    assert text(Sparkline((0.0, 7.0, 3.5)), 4) == " ▁▇▄"
    assert text(Sparkline((0.0, 0.0)), 2) == "▁▁"
    assert text(Sparkline(()), 3) == "   "
    assert text(Sparkline((math.nan, 1.0, math.inf, -1.0)), 4) == "▁▇▁▁"
    assert text(Sparkline(tuple(map(float, range(60)))), 2) == "▇▇"


def test_time_is_compute_exchange_and_waiting() -> None:
    assert text(TimeBar(0.5, 0.3), 10) == "▆▆▆▆▆▄▄▂▂▂"
    assert text(TimeBar(0.0, 0.0), 4) == "▆▆▆▆"
    assert text(TimeBar(1.0, 1.0), 4) == "▂▂▂▂"


@pytest.mark.parametrize("shares", [(math.nan, 2.0), (-1.0, 5.0), (9.0, math.inf), (0.2, 0.9)])
@pytest.mark.parametrize("width", [1, 7, 40])
def test_a_time_bar_fills_its_width_whatever_it_is_told(
    shares: tuple[float, float], width: int
) -> None:
    assert len(text(TimeBar(*shares), width)) == width


def test_a_meter_goes_from_green_to_red() -> None:
    styles = [style for piece, style in ShareMeter(1.0).pieces(15) if piece.startswith("━")]
    assert styles == [f"heat.{heat}" for heat in range(10)]
    assert text(ShareMeter(0.5), 9) == "━━──  50%"
    assert text(ShareMeter(0.5), 4) == " 50%"
    assert text(ShareMeter(None), 9).strip() == "–"
    assert text(ShareMeter(0.0), 9) == "────   0%"


def test_progress_is_full_at_its_end_only() -> None:
    assert text(ProgressBar(0.999), 5) == "━━━━─"
    assert text(ProgressBar(1.5), 5) == "━━━━━"


def test_a_chart_says_its_largest_and_its_smallest() -> None:
    rows = [row.plain for row in Chart((4.0, 2.0, 1.0)).rows(30, 3)]
    assert rows[0].startswith("4.000 │█")
    assert rows[-1].startswith("1.000 │█")
    assert rows[-1].endswith("▁")
    assert {len(row) for row in rows} == {30}
    assert [row.plain for row in Chart((math.nan,)).rows(30, 3)] == [" no values yet"]
    assert len(Chart((2.0, 2.0)).rows(30, 3)) == 3


def test_the_labels_of_a_chart_are_of_what_is_drawn() -> None:
    rows = [row.plain for row in Chart((9.0, 1.0) * 23).rows(30, 3)]  # two values a column
    assert rows[0].startswith("5.000 │")
    assert rows[-1].startswith("5.000 │")


def test_a_chart_may_begin_at_a_given_value() -> None:
    rows = [row.plain for row in Chart((100.0, 99.0), low=0.0).rows(30, 3)]
    assert rows[-1].startswith("0.000 │")
    assert set(rows[0].partition("│")[2]) <= set("▇█")  # a per cent less is no cliff


def test_values_are_stretched_and_squeezed_in_order() -> None:
    assert stretched((1.0, 2.0), 4) == [1.0, 1.0, 2.0, 2.0]
    assert stretched((1.0, 3.0, 5.0, 7.0), 2) == [2.0, 6.0]
