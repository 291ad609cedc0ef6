"""Slow links: what the tables make of the turns, and how the losses are judged."""

from __future__ import annotations

import importlib
import os
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

ROOT = Path(__file__).parents[2]


@pytest.fixture
def slow(monkeypatch: pytest.MonkeyPatch) -> Any:
    """The modules of bench/lib, which import each other from `lib`."""
    monkeypatch.syspath_prepend(str(ROOT / "bench"))
    names = ("cpu_quota", "speed", "losses", "uneven")
    parts = {name: importlib.import_module(f"lib.slow_links.{name}") for name in names}
    common = {name: importlib.import_module(f"lib.{name}") for name in ("hosts", "grid")}
    return SimpleNamespace(**parts, **common)


def hosts(count: int) -> Any:
    every = [SimpleNamespace(ranks=1) for _ in range(count)]
    return SimpleNamespace(all=every, ranks=count)


def grid(slow: Any, count: int, *steps: tuple[Any, float]) -> Any:
    """Two rounds, the second of which is ten times slower for all."""
    speed = slow.speed
    stage = speed.LinkRounds(slow.hosts.FAST, 2, [contender for contender, _ in steps])
    taken = {
        c: [speed.ContenderTurn(s, 5e6, 7), speed.ContenderTurn(10 * s, 5e6, 7)] for c, s in steps
    }
    return speed.SlowLinks(hosts(count), 1.0, print)._grid(stage, taken)


def test_a_row_compares_each_round_with_gloo_and_with_one_host_alone(slow: Any) -> None:
    speed = slow.speed
    steps = [(speed.ALONE, 0.1), (speed.GLOO, 2.0), (speed.AUTO, 0.125)]
    row = grid(slow, 2, *steps).rows[-1]
    rounds = {column: list(cell.rounds) for column, cell in row.cells.items()}
    assert rounds == {
        "samples/s": [256.0, 25.6],  # 2 ranks of 16 samples
        "to gloo's DDP": [16.0, 16.0],
        "to one host alone": pytest.approx([1.6, 1.6]),
        "computing": pytest.approx([0.8, 0.8]),
        "bytes a step": [5e6, 5e6],
        "exchange every": [7.0, 7.0],
    }


def test_targets_are_judged_on_two_hosts_and_named_where_nothing_was_measured(slow: Any) -> None:
    speed = slow.speed
    steps = [(speed.ALONE, 0.1), (speed.GLOO, 2.0), (speed.AUTO, 0.125)]
    two, three = grid(slow, 2, *steps), grid(slow, 3, *steps)
    assert [(one.what, one.met) for one in two.targets()] == [
        ('100 Mbit, every="auto", int8: to gloo\'s DDP', True),
        ('100 Mbit, every="auto", int8: computing', False),
    ]
    assert three.targets() == []
    left = slow.grid.missing([two, three], speed.asked())
    assert len(left) == len(speed.TARGETS) - 2


def test_a_host_has_cores_of_its_own_where_there_are_enough(slow: Any) -> None:
    own_cores = slow.hosts.own_cores
    assert own_cores((1, 1), (0, 1)) == [(0,), (1,)]
    assert own_cores((2, 1), (0, 2, 4, 6)) == [(0, 2), (4,)]
    assert own_cores((1, 1, 1), (0, 1)) == [(0, 1)] * 3


def test_two_hosts_are_held_against_the_sum_of_each_alone(slow: Any) -> None:
    uneven = slow.uneven
    alone = uneven.UnevenTurn(300.0, 100.0, 5.0)
    found = uneven.grid(
        {
            uneven.EVEN: [(alone, uneven.UnevenTurn(100.0, 100.0, 5.0))],
            uneven.SHARES: [(alone, uneven.UnevenTurn(285.0, 95.0, 5.0))],
            uneven.SELDOM: [(alone, uneven.UnevenTurn(240.0, 80.0, 5.0))],
        }
    )
    assert "3.0 times slower" in found.title
    assert [(one.median, one.met) for one in found.targets()] == [(0.95, True), (0.8, False)]
    assert slow.grid.missing([found], uneven.asked()) == []
    assert len(slow.grid.missing([], uneven.asked())) == 2


def test_nothing_is_judged_where_the_slow_host_was_hardly_slower(slow: Any) -> None:
    uneven = slow.uneven
    turn = uneven.UnevenTurn(120.0, 100.0, 5.0)
    found = uneven.grid({uneven.SHARES: [(turn, turn)], uneven.SELDOM: [(turn, turn)]})
    assert found.targets() == []
    assert len(slow.grid.missing([found], uneven.asked())) == 2


def test_a_quota_is_written_for_either_version_of_control_groups(
    slow: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    made = tmp_path / f"wiiiiide-bench-{os.getpid()}"
    with pytest.raises(slow.cpu_quota.NoQuota, match="no control group"):
        slow.cpu_quota.CpuQuota(1 / 3, tmp_path)
    (tmp_path / "cpu").mkdir()
    (tmp_path / "cpu" / "cgroup.procs").touch()
    quota = slow.cpu_quota.CpuQuota(1 / 3, tmp_path)
    old = tmp_path / "cpu" / made.name
    assert (old / "cpu.cfs_quota_us").read_text() == "3333"
    quota.take([17])
    assert (old / "cgroup.procs").read_text() == "17"
    (tmp_path / "cgroup.controllers").write_text("memory cpu")
    (tmp_path / "cgroup.subtree_control").touch()
    make = Path.mkdir

    def kernel_makes(folder: Path) -> None:
        make(folder)
        (folder / "cpu.max").touch()

    monkeypatch.setattr(Path, "mkdir", kernel_makes)
    slow.cpu_quota.CpuQuota(0.25, tmp_path)
    assert (made / "cpu.max").read_text() == "2500 10000"


def test_in_equal_time_a_way_makes_the_whole_rounds_that_fit(slow: Any) -> None:
    losses = slow.losses
    parameters = 3_125_000  # exact: 12.5 MB, a second at 100 Mbit
    assert losses.EXACT.step_s(0.1, parameters) == pytest.approx(1.1)
    assert losses.EXACT.steps_in(11.0, 0.1, parameters) == 10
    assert losses.EXACT.steps_in(0.1, 0.1, parameters) == 1
    assert losses.LONG.step_s(0.1, parameters) == pytest.approx(0.1 + 1 / 64)
    assert losses.LONG.steps_in(15.0, 0.1, parameters) == 128
    assert losses.SELDOM.step_s(0.1, parameters) == pytest.approx(0.1 + 0.254 / 16, rel=1e-3)


@pytest.mark.parametrize(
    ("int8", "seldom", "verdicts"),
    [
        (2.05, 2.03, ["met", "met"]),  # 2.5 % above, but not above the worst seed
        (2.009, 2.05, ["met", "missed"]),
        (2.11, 2.0, ["missed", "met"]),
    ],
)
def test_losses_are_held_against_the_exact_ones(
    slow: Any, int8: float, seldom: float, verdicts: list[str]
) -> None:
    losses = slow.losses

    def runs(*found: float) -> list[Any]:
        return [losses.TrainingLoss(loss, 0.1, 10, []) for loss in found]

    found = {way: runs(2.0) for way in losses.WAYS}
    found |= {losses.EXACT: runs(1.9, 2.1), losses.INT8: runs(int8), losses.SELDOM: runs(seldom)}
    made = losses.Losses(192, found, found, found, dict.fromkeys(losses.WAYS, 1), 9.0)
    for sheet in made.sheets(1536, True):  # of short runs, and of long ones
        asked = {row[0]: row[-1].rpartition(": ")[2] for row in sheet.rows}
        assert [asked["every step, int8"], asked["every=16, int8"]] == verdicts
        assert asked["every step, exact"] == ""
