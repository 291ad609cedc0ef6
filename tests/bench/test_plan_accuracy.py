"""plan's accuracy: what is recommended is judged among ways to train the same script."""

from __future__ import annotations

import importlib
from pathlib import Path
from typing import Any

import pytest

from wiiiiided.domain.plan import PlanRow

ROOT = Path(__file__).parents[2]
ALONE, SELDOM = PlanRow(("b",), 1, "exact", 10.0), PlanRow(("a", "b"), 16, "int8", 18.0, True)


@pytest.fixture
def accuracy(monkeypatch: pytest.MonkeyPatch) -> Any:
    monkeypatch.syspath_prepend(str(ROOT / "bench"))
    return importlib.import_module("lib.plan_accuracy")


def test_what_is_recommended_is_compared_with_ways_of_its_own_script(accuracy: Any) -> None:
    way = accuracy.PlannedWay.of
    link = importlib.import_module("lib.net_hosts").FAST
    found = accuracy.LinkAccuracy(link)
    divided = [way(row, data=True) for row in (SELDOM, ALONE)]
    for one, rate in zip(
        (*divided, way(SELDOM), way(ALONE)), (99.0, 50.0, 18.0, 20.0), strict=True
    ):
        found.predicted[one], found.measured[one] = [rate], [rate]
    found.recommended.append(way(SELDOM))
    assert found.choice == way(SELDOM)
    assert found.behind() == pytest.approx(0.1)  # and not behind the 99 of another script


def test_one_machine_trains_the_script_of_the_others(accuracy: Any) -> None:
    alone = accuracy.PlannedWay.of(ALONE)
    assert (alone.name, alone.contender.way) == ("one machine", "host apart")
    assert not alone.contender.is_connected
    assert accuracy.PlannedWay.of(SELDOM, data=True).name == "every 16 steps, int8, data="
