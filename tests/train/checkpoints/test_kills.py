"""Ranks and writers are killed at random moments: no sample is lost or counted twice, and a killed
writer leaves the last good file."""

from __future__ import annotations

import contextlib
import hashlib
import os
import random
import signal
import subprocess
from pathlib import Path
from typing import Any, NamedTuple

import pytest
import torch
from torch import nn

from tests.kit.ranks import Outcome, Rank, note, run_ranks, watch_ranks
from tests.train.checkpoints.trained import (
    EPOCHS,
    LENGTH,
    Trained,
    files_in,
    folder_of,
)
from wiiiiided.torch import Between, Parallel, parallel
from wiiiiided.train import balance, sync_step
from wiiiiided.train.checkpoints import file


class Schedule(NamedTuple):
    """How the attempts of a run go about it."""

    seed: int
    every: int
    accumulate: int = 1  # batches a step
    is_uneven: bool = False  # ranks say speeds that are far apart, and others in every step

    @classmethod
    def of(cls, seed: int) -> Schedule:
        """Seed 7 has all that one run can have; of the others each has some of it."""
        if seed == 7:
            return cls(seed, 1, 2, True)
        chance = random.Random(seed)
        every = chance.choice([1, 1, 2, 3])
        return cls(seed, 1, chance.choice([1, 2, 4]), True) if every == 1 else cls(seed, every)


def _say_other_speeds(me: Rank, seed: int) -> None:
    """Ranks hear at once, and in each step, of speeds that were not measured."""
    chance = random.Random(100 * seed + me.rank)
    balance.Balance.__init__.__defaults__ = (0.0, 0.0)
    speed = property(lambda clock: balance.RankSpeed(chance.uniform(1.0, 8.0), 1.0))
    balance.StepClock.speed = speed  # type: ignore[assignment,method-assign]
    sync_step.is_told = lambda step: True


def _killed(me: Rank, base: str, hosts: str, how: Schedule) -> None:
    if how.is_uneven:
        _say_other_speeds(me, how.seed)
    options: dict[str, Any] = {"save_every": 2, "between": Between(every=how.every)}
    trained = Trained(folder_of(me, base, hosts), **options)
    note(("resumed", trained.run.resume()))
    batches, got = 0, list[tuple[int, int]]()  # epoch and sample
    for _ in range(trained.data.epoch, EPOCHS):
        for x, y, ids in trained.data:
            mine = ids.tolist()[: trained.data.samples_of_step() - len(got)]
            got += [(trained.data.epoch, number) for number in mine]
            loss = nn.functional.mse_loss(trained.model(torch.cat([x, x])), torch.cat([y, y]))
            loss.backward()
            batches += 1
            if batches % how.accumulate == 0:
                _noted_step(trained, got, how)
    if batches % how.accumulate:  # a rank may have got nothing in them
        _noted_step(trained, got, how)
    note(("done",))


def _noted_step(trained: Trained, got: list[tuple[int, int]], how: Schedule) -> None:
    """A step with these samples, told before it is made: after it a kill may come first."""
    if how.every == 1:
        note(("step", trained.run.state_dict()["step"] + 1, got.copy(), trained.run.shares))
    trained.optimizer.step()
    trained.optimizer.zero_grad()
    trained.scheduler.step()
    step = trained.run.state_dict()["step"]
    if how.every > 1:
        note(("step", step, got.copy(), trained.run.shares))
    got.clear()
    if step % 3 == 0:
        trained.run.save()


class Killer:
    """Kills one rank once it has said so many things."""

    def __init__(self, rank: int, after: int) -> None:
        self._rank, self._after = rank, after

    def __call__(self, outcomes: list[Outcome], elapsed_s: float) -> None:
        victim = outcomes[self._rank]
        if len(victim.notes) >= self._after and victim.exit_code is None:
            with contextlib.suppress(ProcessLookupError):  # killed, and not looked at yet
                os.kill(victim.pid, signal.SIGKILL)


_SCHEDULES = [7, *(pytest.param(seed, marks=pytest.mark.soak) for seed in range(100, 120))]


@pytest.mark.parametrize("seed", _SCHEDULES)
def test_kills_and_other_numbers_of_hosts_lose_and_double_no_sample(
    tmp_path: Path, seed: int
) -> None:
    chance = random.Random(seed)
    resumed: list[int] = []
    trained: dict[int, list[tuple[int, int]]] = {}  # by step, as the last attempt at it had it
    attempts = ["abc", "ab", "cab", "a", "aab"]
    if seed != 7:
        chance.shuffle(attempts)
    how, shares = Schedule.of(seed), set[tuple[float, ...]]()
    for hosts in (*attempts, "ba"):
        kills = Killer(chance.randrange(len(hosts)), chance.randrange(3, 8))
        during = None if hosts == "ba" else kills
        outcomes = watch_ranks(_killed, hosts, str(tmp_path), hosts, how, during=during)
        started = [said[1] for o in outcomes for _, said in o.notes if said[0] == "resumed"]
        assert len(set(started)) <= 1
        resumed += started[:1]
        if started:
            trained = {step: ids for step, ids in trained.items() if step <= started[0]}
        for outcome in outcomes:
            for said in (said for _, said in outcome.notes if said[0] == "step"):
                trained.setdefault(said[1], []).extend(said[2])
                shares.add(said[3])
    assert any(max(found) > 2 * min(found) for found in shares) or seed != 7
    assert all(("done",) in [said for _, said in o.notes] for o in outcomes), outcomes
    assert max(resumed) > 0 or seed != 7  # each may have been killed before its first save
    seen = [sample for samples in trained.values() for sample in samples]
    assert sorted(seen) == [(epoch, n) for epoch in range(EPOCHS) for n in range(LENGTH)]


class Large:
    """A run whose files have some chunks, so that a writer can be met in the middle of one."""

    def __init__(self, folder: str) -> None:
        torch.manual_seed(5)
        self.model = nn.Linear(1024, 2048)
        self.optimizer = torch.optim.SGD(self.model.parameters(), lr=0.1, momentum=0.9)
        self.run = parallel(self.model, self.optimizer, save=folder, save_every=1, keep=9)

    def forward(self) -> torch.Tensor:
        """The step before it is saved as this begins."""
        found: torch.Tensor = self.model(torch.ones(1, 1024)).square().mean()
        return found

    def step(self) -> None:
        self.forward().backward()
        self.optimizer.step()
        self.optimizer.zero_grad()

    def weights(self) -> tuple[int, str]:
        """Of which step, and their digest."""
        raw = self.model.weight.detach().numpy().tobytes()
        return self.run.state_dict()["step"], hashlib.sha256(raw).hexdigest()


def _writer_of(run: Parallel) -> subprocess.Popen[str]:
    assert run._saver is not None
    ((_, process),) = run._saver._writing
    return process


def _grows_to(folder: Path, size: int, process: subprocess.Popen[str]) -> None:
    """Return once the file that is being written has so many bytes, or the writer is done."""
    while process.poll() is None:
        with contextlib.suppress(FileNotFoundError):  # it has been renamed
            if any(path.stat().st_size > size for path in folder.glob("*.tmp")):
                return


def _kills_writers(me: Rank, base: str, seed: int, together: bool) -> list[str]:
    """The writer of every other step is killed, until it was so in the middle of a file."""
    if together:
        os.setpgid(0, 0)
    chance, folder, halves = random.Random(seed), Path(base), list[str]()
    large = Large(base)
    large.run.resume()
    large.step()
    note(large.weights())
    large.run.save()
    size = max(path.stat().st_size for path in folder.glob("*.wide"))
    while len(halves) < 2:
        large.step()
        note(large.weights())
        large.run.save()  # the last good one, unless the writer of the next is too fast
        large.step()
        note(large.weights())
        loss = large.forward()
        process = _writer_of(large.run)
        _grows_to(folder, chance.randrange(size), process)
        if together:
            os.killpg(0, signal.SIGKILL)
        process.kill()
        process.wait()
        halves += [path.name for path in folder.glob("*.tmp")]
        loss.backward()
        large.optimizer.step()
        large.optimizer.zero_grad()
        note(large.weights())
        large.run.save()
        assert not list(folder.glob("*.tmp"))
    return halves


def _goes_on(me: Rank, base: str) -> tuple[int, tuple[int, str]]:
    large = Large(base)
    resumed = large.run.resume(), large.weights()
    large.step()
    large.run.save()
    return resumed


@pytest.mark.parametrize("together", [False, True])
def test_a_writer_that_is_killed_in_the_middle_of_a_file_leaves_the_last_good_one(
    tmp_path: Path, together: bool
) -> None:
    halves = 0
    for seed in range(20):
        (outcome,) = watch_ranks(_kills_writers, 1, str(tmp_path), seed, together)
        assert outcome.exit_code == (-signal.SIGKILL if together else 0), outcome
        halves += len(list(tmp_path.glob("*.tmp"))) if together else len(outcome.value)
        good = files_in(tmp_path)
        for path in good:
            file.check(path, None)
        step = file.read_head(good[-1]).step
        wanted = dict(said for _, said in outcome.notes)[step]
        assert run_ranks(_goes_on, 1, str(tmp_path)) == [(step, (step, wanted))]
        assert not list(tmp_path.glob("*.tmp"))
        if halves >= 2:
            return
    pytest.fail("no writer was killed in the middle of a file")
