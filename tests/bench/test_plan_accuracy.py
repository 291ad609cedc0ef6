"""plan's accuracy: what is recommended is judged among ways to train the same script."""

from __future__ import annotations

import importlib
from pathlib import Path
from typing import Any

import pytest
from msgspec.structs import replace

from wiiiiided.domain.plan import PlanRow

ROOT = Path(__file__).parents[2]
ALONE, SELDOM = PlanRow(("b",), 1, "exact", 10.0), PlanRow(("a", "b"), 16, "int8", 18.0, True)


@pytest.fixture
def accuracy(monkeypatch: pytest.MonkeyPatch) -> Any:
    monkeypatch.syspath_prepend(str(ROOT / "bench"))
    return importlib.import_module("lib.plan_accuracy.accuracy")


def test_what_is_recommended_is_compared_with_ways_of_its_own_script(accuracy: Any) -> None:
    way = accuracy.PlannedWay.of
    link = importlib.import_module("lib.hosts").FAST
    found = accuracy.LinkAccuracy(link)
    divided = [way(row, data=True) for row in (SELDOM, ALONE)]
    for one, rate in zip(
        (*divided, way(SELDOM), way(ALONE)), (99.0, 50.0, 18.0, 20.0), strict=True
    ):
        found.predicted[one], found.measured[one] = [rate], [rate]
    found.recommended += [way(SELDOM), way(ALONE, data=True), way(SELDOM)]
    assert (found.choice(False), found.choice(True)) == (way(SELDOM), divided[1])
    assert found.behind(False) == pytest.approx(0.1)  # and not behind the 99 of another script
    assert found.behind(True) == pytest.approx(1 - 50 / 99)
    behind = [measure.what for measure in found.grid(True).targets() if "behind" in measure.what]
    assert sorted(behind) == sorted(asked.what for asked, _ in accuracy.asked([link]))


def test_the_recommended_way_is_measured_in_the_place_of_its_case(accuracy: Any) -> None:
    rows = [
        PlanRow(("a", "b"), every, codec, 10.0)
        for every, codec in ((1, "exact"), (1, "int8"), (1, "int4"), (64, "exact"), (16, "int8"))
    ]
    chosen = replace(rows[2], recommended=True)
    ways = accuracy.data_ways([ALONE, *rows[:2], chosen, *rows[3:]])
    assert [way.kind for way in ways] == [
        *((1, False, "exact"), (2, False, "int4"), (2, True, "int8"))
    ]
    assert all(way.data for way in ways)


def test_one_machine_trains_the_script_of_the_others(accuracy: Any) -> None:
    alone = accuracy.PlannedWay.of(ALONE)
    assert (alone.name, alone.contender.way) == ("one machine", "host apart")
    assert not alone.contender.is_connected
    assert accuracy.PlannedWay.of(SELDOM, data=True).name == "every 16 steps, int8, data="


def test_rounds_that_take_minutes_are_predicted_and_measured_shorter(accuracy: Any) -> None:
    assert accuracy.PlannedWay.of(replace(SELDOM, every=16_384)).every == 1024
