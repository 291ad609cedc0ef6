"""What a rank of a trial sees of its own steps, and how machines take turns in pairs."""

from __future__ import annotations

import itertools
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch
from torch.nn.modules.module import _global_forward_pre_hooks
from torch.optim.optimizer import _global_optimizer_post_hooks
from torch.utils.data import TensorDataset

from wiiiiided.domain.plan import RankLine, read_line
from wiiiiided.torch import step_probe
from wiiiiided.torch.link_probe import rounds
from wiiiiided.torch.step_probe import StepProbe, batch_of, usual
from wiiiiided.train.data import batches
from wiiiiided.train.data.batches import Batches
from wiiiiided.train.round_length import MOST, first_length, shape_of
from wiiiiided.train.script_notes import ScriptNotes


class Watched:
    """A probe whose clock goes on by as much as a step is said to take."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(step_probe, "reported_samples", lambda: self.reported)
        notes = ScriptNotes()  # of this script alone
        monkeypatch.setattr(step_probe, "notes", notes)
        monkeypatch.setattr(batches, "notes", notes)
        self.now, self.reported = 100.0, 0
        self.lines: list[RankLine] = []
        self.probe = StepProbe(self._say, lambda: self.now)
        self.model = torch.nn.Linear(4, 2)
        self.optimizer = torch.optim.SGD(self.model.parameters(), lr=0.1)

    def _say(self, text: str) -> None:
        found = read_line(text)
        assert isinstance(found, RankLine)
        self.lines.append(found)

    def step(self, seconds: float, batches: tuple[int, ...] = (8,)) -> None:
        for batch in batches:
            self.model(torch.ones(batch, 4)).sum().backward()
        self.now += seconds
        self.optimizer.step()


@pytest.fixture
def watched(monkeypatch: pytest.MonkeyPatch) -> Iterator[Watched]:
    made = Watched(monkeypatch)
    before = dict(_global_optimizer_post_hooks)
    made.probe.watch()
    yield made
    _global_optimizer_post_hooks.clear()
    _global_optimizer_post_hooks.update(before)
    assert not _global_forward_pre_hooks  # it was taken off after the first forward


def test_steps_after_the_first_ones_are_measured(watched: Watched) -> None:
    for seconds in (30.0, 0.5, *(1.0,) * 5):
        watched.step(seconds)
    (line,) = watched.lines
    assert (line.steps, line.step_s, line.samples) == (5, 1.0, 8.0)
    assert line.gradient_bytes == 4 * 10
    assert (line.way, line.coded, line.shape) == (
        "other",
        False,
        shape_of(watched.model.named_parameters()),
    )
    watched.step(0.5)
    assert len(watched.lines) == 1  # a second has not passed
    watched.step(0.6)
    assert watched.lines[1].steps == 7


def test_an_evaluation_between_two_steps_is_no_step() -> None:
    assert usual([1.0, 1.2, 30.0, 0.8]) == pytest.approx(1.0)


def test_batches_of_one_step_add_up_and_those_of_an_evaluation_do_not_count(
    watched: Watched,
) -> None:
    for _ in range(8):
        watched.step(1.0, (8, 4))
        with torch.no_grad():
            watched.model(torch.ones(100, 4))
    assert watched.lines[-1].samples == 12.0


def test_samples_that_the_script_reports_count_more(watched: Watched) -> None:
    for number in range(8):
        watched.step(1.0)
        watched.reported = 32 * number
    assert watched.lines[-1].samples > 16


def test_a_transform_of_the_data_is_not_taken_for_the_model(watched: Watched) -> None:
    transform = torch.nn.Sequential(torch.nn.Flatten(0), torch.nn.ReLU())
    frozen = torch.nn.Linear(3, 3).requires_grad_(False)
    for _ in range(8):
        frozen(transform(torch.ones(100, 3)).reshape(100, 3))
        watched.step(1.0)
    line = watched.lines[-1]
    assert line.samples == 8.0
    assert line.shape == shape_of(watched.model.named_parameters())


def test_a_second_optimizer_makes_no_steps_of_its_own(watched: Watched) -> None:
    other = torch.optim.SGD([torch.nn.Parameter(torch.ones(1))], lr=0.1)
    for _ in range(8):
        watched.step(1.0)
        other.step()
    assert watched.lines[-1].step_s == 1.0


def test_a_script_that_ends_by_itself_says_what_was_seen(watched: Watched) -> None:
    watched.probe.end()
    for _ in range(5):
        watched.step(0.2)
    watched.probe.end()
    assert [line.steps for line in watched.lines] == []  # two steps are no measure
    watched.step(0.2)
    watched.probe.end()
    assert [line.steps for line in watched.lines] == [3]


def test_half_of_each_batch_is_timed_where_the_batch_is_of_all_machines(watched: Watched) -> None:
    data = Batches(TensorDataset(torch.ones(1600, 4)), batch_size=16)
    for (x,) in data:
        watched.step(0.5 + len(x) / 32, (len(x),))  # 1 s of 16 samples, 0.75 s of 8
        if watched.lines and not watched.lines[-1].more:
            break
    first, *_, last = watched.lines
    assert (first.step_s, first.samples, first.more) == (1.0, 16.0, True)
    assert (first.part_s, first.part_samples) == (0.0, 0.0)
    assert (last.step_s, last.samples, last.steps) == (1.0, 16.0, first.steps)
    assert (last.part_s, last.part_samples) == (0.75, 8.0)
    assert all(line.more for line in watched.lines[:-1])


def test_samples_of_half_batches_are_those_that_the_script_reports_of_them(
    watched: Watched,
) -> None:
    data = Batches(TensorDataset(torch.ones(1600, 4)), batch_size=16)
    for (x,) in data:
        watched.step(1.0)
        watched.reported += 3 * len(x)
        if watched.lines and not watched.lines[-1].more:
            break
    assert (watched.lines[-1].samples, watched.lines[-1].part_samples) == (48.0, 24.0)


def test_halves_that_do_not_reach_the_steps_are_seen_as_whole_ones(watched: Watched) -> None:
    data = iter(Batches(TensorDataset(torch.ones(1600, 4)), batch_size=16))
    while not watched.lines or watched.lines[-1].more:
        next(data)
        watched.step(1.0, (16,))  # of data of its own
    assert len(watched.lines) > 1
    assert (watched.lines[-1].samples, watched.lines[-1].part_samples) == (16.0, 16.0)


def test_a_batch_of_one_sample_is_not_halved(watched: Watched) -> None:
    data = iter(Batches(TensorDataset(torch.ones(1600, 4)), batch_size=1))
    while not watched.lines:
        watched.step(1.0, (len(next(data)[0]),))
    assert not watched.lines[-1].more


def test_a_script_that_ends_among_half_batches_says_what_was_seen_of_whole_ones(
    watched: Watched,
) -> None:
    data = iter(Batches(TensorDataset(torch.ones(1600, 4)), batch_size=16))
    while not watched.lines:
        watched.step(1.0, (len(next(data)[0]),))
    watched.step(1.0, (len(next(data)[0]),))
    watched.probe.end()
    last = watched.lines[-1]
    assert (last.samples, last.more, last.part_s) == (16.0, False, 0.0)


SCRIPT = """
import sys
import torch
import torch.distributed as dist
from torch.utils.data import TensorDataset
import wiiiiided.torch as wide
from wiiiiided.torch import step_probe

store, way = sys.argv[1:]
step_probe.MEASURED_S = step_probe.HALVES_S = 0.0  # three steps will do
dist.init_process_group("wiiiiide", init_method=f"file://{store}", rank=0, world_size=1)
model = torch.nn.Linear(4, 1)
optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
batches = wide.Batches(TensorDataset(torch.ones(320, 4)), batch_size=16)
loop = batches if way in ("data", "batches") else [(torch.ones(16, 4),)] * 20
if way != "alone":
    between = eval("wide." + way) if way.startswith("Between") else None
    data = batches if way == "data" else None
    run = wide.parallel(model, optimizer, between=between, data=data)
for (x,) in loop:
    part = x[: round(16 * run.share)] if way == "share" else x
    optimizer.zero_grad()
    model(part).sum().backward()
    optimizer.step()
dist.destroy_process_group()
"""


def tried(tmp_path: Path, way: str) -> RankLine:
    """What the script's probe says last."""
    env = {**os.environ, "WIIIIIDE_PROBE": "1", "OMP_NUM_THREADS": "1"}
    command = [sys.executable, "-c", SCRIPT, str(tmp_path / "store"), way]
    ran = subprocess.run(command, capture_output=True, text=True, timeout=100, env=env)
    assert ran.returncode == 0, ran.stderr
    *_, line = filter(None, map(read_line, ran.stderr.splitlines()))
    assert isinstance(line, RankLine)
    return line


@pytest.mark.parametrize(
    ("way", "shares", "data", "global_batch"),
    [
        ("data", True, True, True),
        ("share", True, False, True),
        ("batches", False, False, True),
        ("own", False, False, False),
        ("alone", False, False, False),
    ],
)
def test_a_script_is_known_by_how_it_divides_its_batches(
    tmp_path: Path, way: str, shares: bool, data: bool, global_batch: bool
) -> None:
    line = tried(tmp_path, way)
    assert (line.samples, line.way) == (16.0, "other" if way == "alone" else "parallel")
    assert (line.shares, line.data, line.global_batch) == (shares, data, global_batch)
    halves = way in ("data", "batches")
    assert (line.part_samples, line.part_s > 0) == ((8.0, True) if halves else (0.0, False))


@pytest.mark.parametrize(
    ("between", "said"),
    [
        ("own", (None, None)),
        ("Between()", (None, None)),
        ("Between(every=16)", (None, 16)),
        ("Between(gradients='int8', every='auto')", ("int8", "auto")),
        ("Between(every=64, fragments=4)", (None, None)),
    ],
)
def test_what_the_script_says_of_the_exchange_is_known(
    tmp_path: Path, between: str, said: tuple[object, object]
) -> None:
    line = tried(tmp_path, between)
    assert (line.gradients, line.every) == said
    assert line.fixed == (between if "=" in between else "")


def test_a_batch_is_found_in_containers() -> None:
    assert batch_of((3, {"x": [torch.ones(7, 2)]})) == 7
    assert batch_of((torch.tensor(1.0), "x")) == 0


@pytest.mark.parametrize("count", range(2, 12))
def test_every_pair_has_its_turn_and_no_machine_is_in_two_at_once(count: int) -> None:
    found = rounds(count)
    assert sorted(itertools.chain(*found)) == list(itertools.combinations(range(count), 2))
    for turn in found:
        machines = list(itertools.chain(*turn))
        assert len(set(machines)) == len(machines)
    assert len(found) == count - (count % 2 == 0)


def test_auto_begins_with_what_was_found_for_this_shape() -> None:
    assert first_length("auto", "16@ab12,4@ffff", "ffff") == 4
    assert first_length("auto", "16@ab12", "ab1") == first_length("auto", "", "ab12") == 1
    assert first_length("auto", "99999@ab12", "ab12") == MOST
    assert first_length(8, "16@ab12", "ab12") == 8
