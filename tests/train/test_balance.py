"""Ranks of different speeds: the decision, what is measured, and what a rank takes by it."""

from __future__ import annotations

import time

import pytest
import torch
from torch import nn

from tests.kit.ranks import Rank, run_ranks
from wiiiiided.backend.engine.process import stats_page
from wiiiiided.backend.shm import stats
from wiiiiided.torch import Between, parallel
from wiiiiided.train import balance, sync_step
from wiiiiided.train.balance import Balance, LastMinute, Parts, RankSpeed, StepClock, is_told
from wiiiiided.train.round_length import RoundTimes


def _told(*speeds: float, measured_s: float = 100.0) -> list[RankSpeed]:
    return [RankSpeed(speed, measured_s) for speed in speeds]


def test_shares_follow_speeds_and_the_reason_is_said() -> None:
    found = Balance(Parts.of_ranks(2))
    assert found.shares == (0.5, 0.5)
    said = found.hear(_told(300.0, 100.0))
    assert found.shares == pytest.approx((0.75, 0.25))
    assert "3.00 times apart: rank 0 takes 75 % instead of 50 %" in said
    assert (found.spread, found.gain) == pytest.approx((3.0, 2.0))


def test_a_rank_that_becomes_slow_loses_share_and_gets_it_back() -> None:
    found = Balance(Parts.of_ranks(3))
    assert found.hear(_told(10.0, 10.0, 2.0))
    assert found.shares[2] == pytest.approx(2 / 22)
    assert found.hear(_told(10.0, 10.0, 10.0))
    assert found.shares == pytest.approx((1 / 3, 1 / 3, 1 / 3))


def test_shares_change_seldom() -> None:
    found = Balance(Parts.of_ranks(2))
    assert not found.hear(_told(300.0, 100.0, measured_s=14.0))
    assert found.hear(_told(300.0, 100.0, measured_s=15.0))
    assert not found.hear(_told(100.0, 100.0, measured_s=59.0))
    assert found.hear(_told(100.0, 100.0, measured_s=60.0))
    assert not found.hear(_told(105.0, 100.0))
    assert not found.hear(_told(300.0, 0.0))  # not every rank's speed is known
    assert found.shares == (0.5, 0.5)


def test_a_very_slow_rank_keeps_enough_to_be_measured() -> None:
    found = Balance(Parts.of_ranks(2))
    found.hear(_told(1e6, 1.0))
    assert found.shares[1] == pytest.approx(0.025, rel=0.05)
    assert sum(found.shares) == pytest.approx(1.0)


def test_a_fixed_cost_of_steps_does_not_keep_a_machine_small() -> None:
    """Of a rank's t = fixed + n / speed every change sees n / t; all t become the same."""
    found = Balance(Parts.of_ranks(2))
    found.shares = (0.97, 0.03)
    for _ in range(20):
        times = [0.05 + share * 100 / 400 for share in found.shares]
        found.hear(_told(*(share * 100 / t for share, t in zip(found.shares, times, strict=True))))
    assert found.shares[1] > 0.44


def test_a_pause_and_the_wait_for_others_do_not_count() -> None:
    clock, now = StepClock(), [0.0]
    balance.time.monotonic, real = lambda: now[0], time.monotonic  # type: ignore[assignment,misc]
    try:
        clock.begin_anew()
        clock.stepped(None)
        for step in range(9):
            now[0] += 100.0 if step == 4 else 2.0
            clock.wait(1.0)
            clock.arrive()
            now[0] += 5.0  # the others come
            clock.arrive()
            clock.stepped(8.0)
        assert clock.speed.samples_per_s == pytest.approx(8.0)
    finally:
        balance.time.monotonic = real


class _Machine:
    """A rank or a host that tells its speed, in time that passes here."""

    def __init__(self, kind: str) -> None:
        self._kind, self._times, self._clock = kind, RoundTimes(), StepClock()
        self._since = _Clock.now

    def step(self, taken_s: float, samples: float, round_s: float) -> None:
        """A step of its own in one of all."""
        begun = _Clock.now
        self._times.add_step(taken_s)
        _Clock.now = begun + taken_s
        self._clock.arrive()
        _Clock.now = begun + round_s
        self._clock.stepped(samples)
        _Clock.now = begun

    def told(self, batch: float) -> RankSpeed:
        if self._kind == "rank":
            return self._clock.speed
        usual = self._times.usual_step_s
        return RankSpeed(batch / usual if usual else 0.0, _Clock.now - self._since)

    def changed(self) -> None:
        self._clock.begin_anew()
        self._since = _Clock.now


class _Clock:
    now = 0.0


@pytest.mark.parametrize("step_s", [0.03, 0.5, 5.0])
@pytest.mark.parametrize("kind", ["rank", "host"])
def test_seconds_of_other_work_move_no_share_and_a_lasting_slowdown_does(
    kind: str, step_s: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(_Clock, "now", 0.0)
    monkeypatch.setattr(balance.time, "monotonic", lambda: _Clock.now)
    found, machines = Balance(Parts.of_ranks(2)), [_Machine(kind), _Machine(kind)]
    changes: list[float] = []

    def train(seconds: float, slow: float) -> None:
        end, steps = _Clock.now + seconds, 0
        while _Clock.now < end:
            parts = [2 * share if kind == "rank" else 1.0 for share in found.shares]
            taken = [step_s * part * of for part, of in zip(parts, (1.0, slow), strict=True)]
            for machine, own_s, part in zip(machines, taken, parts, strict=True):
                machine.step(own_s, 8 * part, max(taken))
            _Clock.now += max(taken)
            steps += 1
            if is_told(steps) and found.hear([machine.told(8) for machine in machines]):
                changes.append(found.shares[1])
                for machine in machines:
                    machine.changed()

    train(120, 1.0)
    train(2, 1.6)  # a hiccup
    train(120, 1.0)
    train(step_s, 200 / step_s)  # an evaluation on one of them
    train(120, 1.0)
    train(2, 1.6)
    train(120, 1.0)
    assert not changes
    train(600, 3.0)
    assert found.shares[1] == pytest.approx(0.25, abs=0.02)
    slow = len(changes)
    assert 1 <= slow <= 3
    train(600, 1.0)
    assert found.shares[1] == pytest.approx(0.5, abs=0.03)
    assert len(changes) - slow <= 3


def test_a_minute_of_short_steps_takes_little_memory_and_follows() -> None:
    found = LastMinute()
    assert found.median == 0
    for _ in range(100_000):
        found.add(1.0, 0.0005)
    assert len(found._over) <= 60
    assert len(found._now) <= 256
    for _ in range(70_000):
        found.add(2.0, 0.0005)
    assert found.median == 2.0


def _trains(me: Rank, clips: bool) -> tuple[float, ...]:
    balance.Balance.__init__.__defaults__ = (0.0, 0.0)
    model = nn.Linear(8, 4)
    run = parallel(model, optimizer := torch.optim.SGD(model.parameters(), lr=0.01))
    assert run.share == 1 / 3
    for _ in range(16):
        count = 12
        time.sleep(0.06 if me.rank == 1 else 0.015)  # rank 1 is slow
        run.samples(count)
        model(torch.ones(count, 8)).sum().backward()
        if clips:
            run.clip_grad_norm_(1.0)
        optimizer.step()
        optimizer.zero_grad()
    assert run.share == run.shares[me.rank]
    told = stats_page().words[stats.TRAINING_AT : stats.WORDS].cast("B").cast("d").tolist()
    found = dict(zip(stats.TRAINING_METRICS, told, strict=True))
    assert found["share"] == 1 / 3  # which it had, whatever it should take
    assert found["wanted_share"] == run.share
    assert found["speed_spread"] > 1
    assert found["balance_gain"] == 1.0
    return run.shares


@pytest.mark.parametrize("clips", [False, True])
@pytest.mark.parametrize("hosts", ["aaa", "aab"])
def test_all_ranks_know_the_same_shares(hosts: str, clips: bool) -> None:
    found = run_ranks(_trains, hosts, clips)
    assert found[0] == found[1] == found[2]
    assert sum(found[0]) == pytest.approx(1.0)
    assert found[0][1] < min(found[0][0], found[0][2])


def _slow_for_a_while(me: Rank) -> list[float]:
    """Rank 1's machine does other work until it has lost share, and then no more."""
    balance.Balance.__init__.__defaults__ = (0.0, 0.0)
    model = nn.Linear(8, 4)
    run = parallel(model, optimizer := torch.optim.SGD(model.parameters(), lr=0.01))
    seen, is_slow = [run.shares[1]], True
    for _ in range(1600):
        count = max(1, round(48 * run.share))
        time.sleep((4e-4 if is_slow and me.rank == 1 else 1e-4) * count + 1e-3)
        run.samples(count)
        model(torch.ones(count, 8)).mean().backward()
        optimizer.step()
        optimizer.zero_grad()
        seen.append(run.shares[1])
        is_slow = is_slow and seen[-1] > 0.4
        if not is_slow and seen[-1] > 0.45:
            break
    return seen


@pytest.mark.parametrize("hosts", ["aa", "ab"])
def test_a_rank_whose_machine_is_slow_for_a_while_loses_share_and_gets_it_back(hosts: str) -> None:
    first, second = run_ranks(_slow_for_a_while, hosts)
    assert first == second
    assert first[0] == 0.5
    assert min(first) <= 0.4
    assert first[-1] > 0.45


def test_speeds_are_told_now_and_then() -> None:
    assert [step for step in range(1, 40) if is_told(step)] == [16, 32]


def _says(me: Rank, every: int, asks: bool) -> list[str]:
    """What rank 0 says in 17 steps of ranks whose speeds lie three times apart."""
    Balance.__init__.__defaults__ = (0.0, 0.0)
    rate = 30.0 if me.rank % 2 == 0 else 10.0
    StepClock.speed = property(lambda self: RankSpeed(rate, 1.0))  # type: ignore[assignment,method-assign]
    said: list[str] = []
    sync_step.log.tell = lambda who, text: said.append(text)  # type: ignore[attr-defined]
    model = nn.Linear(1, 1)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    run = parallel(model, optimizer, between=Between(every=every))
    for _ in range(17):
        if asks:
            assert len(run.shares) == me.size
        run.samples(2)
        model(torch.ones(2, 1)).mean().backward()
        optimizer.step()
        optimizer.zero_grad()
    return [text for text in said if "by their speeds" in text]


@pytest.mark.parametrize(
    ("hosts", "every", "asks", "sentences"),
    [("ab", 1, True, 1), ("ab", 1, False, 0), ("aabb", 4, True, 0)],
)
def test_new_shares_are_only_said_where_they_are_used(
    hosts: str, every: int, asks: bool, sentences: int
) -> None:
    first, *others = run_ranks(_says, hosts, every, asks)
    assert len(first) == sentences
    assert not any(others)
