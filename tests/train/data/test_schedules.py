"""Runs that are killed, resized and divided otherwise at random: every sample once an epoch.

All ranks are simulated in this process, each with its own `Batches`: the code that fetches, hands
out, commits, divides, saves and loads is the real one, and with an exchange in every step so is
what a step does with the data (`LoopStep`). What is random:

    a kill       at any moment: of what was fetched ahead or handed out, in the middle of gradients
                 that accumulate or of a round of hosts
    a resume     from a checkpoint that may be some commits old: the steps after it are lost, and
                 what they trained comes again
    a resize     other ranks, hosts and batch sizes in every attempt
    a division   shares that change, sizes that follow a noise scale (which are kept, with learning
                 rates), rounds that end early
    the loop     fetches ahead, accumulates (also into the next epoch), is left and begun anew
"""

from __future__ import annotations

import itertools
import math
import random
from collections import deque
from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any, NamedTuple

import pytest
import torch
from torch.utils.data import TensorDataset

from wiiiiided.train import loop_step
from wiiiiided.train.checkpoints.policy import SaveWish
from wiiiiided.train.data import adaptive_batch
from wiiiiided.train.data.batches import Batches, HostPlace, RankPart
from wiiiiided.train.data.order import split
from wiiiiided.train.data.rounds import HostRound, HostSizes, cut_round, round_end
from wiiiiided.train.loop_step import LoopStep
from wiiiiided.train.sync_step import SyncStep
from wiiiiided.train.training_loop import TrainingLoop

EPOCHS = 2
LEAST, MOST = 4, 12  # samples of a batch; an adaptive one may have twice as many
KEPT = 3  # checkpoints

Sample = tuple[int, int]  # of an epoch, a number


class Killed(Exception):
    """All ranks of an attempt are gone."""


class Saved(NamedTuple):
    """A checkpoint."""

    steps: int  # that had been committed by all
    state: dict[str, Any]


class Training:
    """What has been trained for good, over all attempts."""

    def __init__(self, random_: random.Random) -> None:
        self.random = random_
        self.length, self.drop = random_.randint(1, 90), random_.random() < 0.3
        if self.drop:
            self.length += 2 * MOST
        self.is_adaptive = random_.random() < 0.3
        self.steps: list[list[Sample]] = []  # committed by all, each with its samples
        self.saved: list[Saved] = []
        self.is_done = False
        self._moments = self._save_chance = 0.0

    def begin_attempt(self, moments: float) -> dict[str, Any]:
        """So many moments until it is killed. Returns the state it begins with, if there is one."""
        if self.saved and self.random.random() < 0.4:  # the newest is damaged, or was not written
            del self.saved[self.random.randint(1, len(self.saved)) :]
        found = self.saved[-1] if self.saved else Saved(0, {})
        del self.steps[found.steps :]
        self._moments, self._save_chance = moments, self.random.choice([0.1, 0.5, 1.0])
        self.is_done = bool(found.state) and found.state["data"]["epoch"] >= EPOCHS
        return found.state

    def pass_moment(self) -> None:
        """Something of the loop is about to happen, or never will."""
        if not self._moments:
            raise Killed
        self._moments -= 1

    def draws(self, chance: float) -> bool:
        return self.random.random() < chance

    def commit(self, ranks: list[SimulatedRank]) -> None:
        """All ranks have the same weights, with all that they have trained."""
        self.steps.append([sample for rank in ranks for sample in rank.trained])
        for rank in ranks:
            rank.trained.clear()
        states = [rank.state_dict() for rank in ranks]
        assert all(state == states[0] for state in states)
        self.is_done = states[0]["epoch"] >= EPOCHS

    def may_save(self, state: dict[str, Any]) -> None:
        if self.draws(self._save_chance):
            self.saved = [*self.saved, Saved(len(self.steps), state)][-KEPT:]

    def check(self) -> None:
        seen = [sample for step in self.steps for sample in step]
        assert len(set(seen)) == len(seen), "a sample came twice"
        epochs = [epoch for epoch, _ in seen]
        for epoch in range(EPOCHS):
            missing = self.length - epochs.count(epoch)
            assert missing == 0 or (self.drop and missing < 2 * MOST), "a sample was lost"


class SimulatedRank(Batches):
    """A rank of a group that is not there."""

    def __init__(self, run: Training, batch: int | str, rank: int = 0, ranks: int = 1) -> None:
        self._simulated = rank, ranks
        bounds = (LEAST, 2 * MOST) if batch == "auto" else None
        samples = TensorDataset(torch.arange(run.length))
        super().__init__(samples, batch, 5, drop_last=run.drop, between=bounds)
        self.attach()
        self.got: list[Sample] = []  # since this rank's last step
        self.trained: list[Sample] = []  # by its steps since all have committed
        self._ahead = run.random.choice([0, 0, 1, 3, 8])
        self._batches: Iterator[Any] | None = None

    def _place(self) -> tuple[int, int]:
        return self._simulated

    def _begin_loop(self) -> Iterator[Any]:
        """A loop that fetches ahead, as a DataLoader with workers does, or none of it."""
        if not self._ahead:
            return iter(self)
        fetched: deque[RankPart] = deque()

        def fetch() -> Iterator[Any]:
            found = (self._fetch(part.numbers) for part in self.parts(fetched))
            ready = deque(itertools.islice(found, self._ahead + 1))
            while ready:
                yield ready.popleft()
                ready.extend(itertools.islice(found, 1))

        return self.hand_out(fetch, fetched)

    def take(self) -> bool:
        """The loop gets a batch; False: the epoch is over."""
        if self._batches is None:
            self._batches = self._begin_loop()
        before = self.samples_of_step()
        found = next(self._batches, None)
        if found is None:
            self._batches = None
            return False
        numbers = found[0].tolist()[: self.samples_of_step() - before]
        self.got += [(self.epoch, number) for number in numbers]
        assert len(self.got) == self.samples_of_step()
        return True

    def stepped(self) -> None:
        """This rank has made a step with what it has got."""
        self.trained += self.got
        self.got.clear()

    def leave(self) -> None:
        """The loop is left and begun anew, without a step."""
        self._batches = self._begin_loop()
        self.got.clear()


# -- an exchange in every step ----


class SimulatedSteps(SyncStep):
    """Steps of ranks that say what a group would have told them."""

    def __init__(self) -> None:
        self.number, self.samples = 0, None
        self._factor = None  # none of them clips
        self.wishes_save = self.save_wished = SaveWish.NO
        self.noise: Any = SimpleNamespace(value=None)
        self.balance: Any = SimpleNamespace(shares=(1.0,))

    def step(self, inner: Any) -> None:
        self.number, self.samples = self.number + 1, None


class SteppingRank(SimulatedRank):
    """With an optimizer and a scheduler, whose steps are those of the real loop."""

    def __init__(self, run: Training, batch: int | str, rank: int, ranks: int) -> None:
        super().__init__(run, batch, rank, ranks)
        self.optimizer = torch.optim.SGD([torch.zeros(1)], lr=0.1)
        self.scheduler = torch.optim.lr_scheduler.LambdaLR(self.optimizer, _slower)
        self.optimizer.step()  # else the scheduler warns
        self.steps, self.known = SimulatedSteps(), TrainingLoop(self, self.scheduler)
        self.loop = LoopStep(self.steps, self.known, None, self.optimizer, lambda text: None)

    def load(self, state: dict[str, Any]) -> None:
        self.known.load(state)
        if "optimizer" in state:
            self.optimizer.load_state_dict(state["optimizer"])
            self.loop.go_on_after(state["step"])

    def state(self) -> dict[str, Any]:
        optimizer = self.optimizer.state_dict()
        return {**self.known.state(), "optimizer": optimizer, "step": self.loop.number}

    def make_step(self, shares: list[float], noise: float | None) -> None:
        self.steps.balance.shares, self.steps.noise.value = tuple(shares), noise
        self.loop.step(lambda: None)
        self.scheduler.step()
        self.stepped()

    def check_rate(self) -> None:
        """The learning rate is that of this step, for a batch of this size."""
        scale = math.sqrt(self.batch_size / LEAST) if self.adaptive else 1.0
        wanted = 0.1 * scale * _slower(self.loop.number)
        assert math.isclose(self.optimizer.param_groups[0]["lr"], wanted)


def _slower(step: int) -> float:
    return 1 / (1 + step / 10)


def attempt_with_steps(run: Training, state: dict[str, Any]) -> None:
    """Ranks exchange in every step; shares and the batch change, gradients accumulate."""
    count = run.random.randint(1, LEAST)
    batch = "auto" if run.is_adaptive else run.random.randint(LEAST, MOST)
    ranks = [SteppingRank(run, batch, r, count) for r in range(count)]
    for rank in ranks:
        rank.load(state)
        rank.check_rate()
    shares, accumulated = [1.0] * count, 0
    while not run.is_done:
        more = []
        for rank in ranks:
            run.pass_moment()
            more.append(rank.take())
        assert len(set(more)) == 1
        accumulated += more[0]
        run.may_save(ranks[0].state())
        if more[0] and run.draws(0.04):
            accumulated = 0
            for rank in ranks:
                rank.leave()
            if run.draws(0.5):  # a step without a batch
                _make_step(run, ranks, shares)
        # At the epoch's end the script steps with what it has, or takes more from the next.
        is_enough = run.random.randint(1, 3) if more[0] or run.draws(0.3) else 1
        if accumulated >= is_enough:
            if run.draws(0.3):
                shares = [run.random.choice([0.01, run.random.random() + 0.01]) for _ in ranks]
            _make_step(run, ranks, shares)
            accumulated = 0


def _make_step(run: Training, ranks: list[SteppingRank], shares: list[float]) -> None:
    noise = run.random.choice([None, run.random.uniform(1.0, 60.0)])
    for rank in ranks:
        run.pass_moment()  # a kill between two ranks' commits
        rank.make_step(shares, noise)
        rank.check_rate()
    run.commit([*ranks])
    run.may_save(ranks[0].state())


# -- rounds of hosts ----


def attempt_with_rounds(run: Training, state: dict[str, Any]) -> None:
    """Hosts make rounds of their own, some of which end early; a kill loses the round."""
    batch = run.random.randint(LEAST, MOST)
    hosts = [run.random.randint(1, 2) for _ in range(run.random.randint(2, 3))]
    if sum(hosts) > batch:
        hosts = [1, 1]
    cuts = split(batch, sum(hosts))
    firsts = [sum(hosts[:h]) for h in range(len(hosts) + 1)]
    sizes = tuple(cuts[b] - cuts[a] for a, b in itertools.pairwise(firsts))

    def drawn() -> HostSizes:
        return HostSizes(sizes, tuple(run.random.randint(1, 5) for _ in hosts))

    now = drawn()
    ranks: list[list[SimulatedRank]] = []
    for number, count in enumerate(hosts):
        made = [SimulatedRank(run, batch) for _ in range(count)]
        for place, rank in enumerate(made):
            rank.begin_rounds(number, now, HostPlace(place, count))
            if state:
                rank.load_state_dict(state["data"])
        ranks.append(made)
    everyone = [rank for made in ranks for rank in made]
    while not run.is_done:
        early = run.draws(0.3)
        for host in ranks:
            _host_round(run, host, early, state)
        told = [host[0].batches_of_round for host in ranks]
        unstepped = [host[0].unstepped for host in ranks]
        now = drawn() if run.draws(0.4) else now
        for rank in everyone:
            run.pass_moment()
            rank.end_round(told, unstepped, now)
            if not rank.unstepped:
                rank.committed()
        run.commit(everyone)
        run.may_save({**state, "data": everyone[0].state_dict()})


def _host_round(
    run: Training, host: list[SimulatedRank], early: bool, state: dict[str, Any]
) -> None:
    """A host's steps of a round, of one batch or more each."""
    while True:
        for rank in host:
            run.pass_moment()
            if not rank.take():
                assert rank.take()  # the next epoch's first
        run.may_save({**state, "data": host[0].state_dict()})
        has_rest = host[0].unstepped > host[0].batches_of_round  # of the epoch before
        if run.draws(0.03) and not has_rest:
            for rank in host:
                rank.leave()
            continue
        if run.draws(0.2):  # accumulates, also across an epoch's end
            if not host[0].is_round_over:
                continue
            if host[0].next_round.last and not has_rest:
                return  # what is left of one epoch, not of two
        for rank in host:
            rank.committed()
            rank.stepped()
        if host[0].is_round_over or (early and run.draws(0.5)):
            return


def _schedule(seed: int) -> None:
    run = Training(random.Random(seed))
    kinds = [attempt_with_steps] if run.is_adaptive else [attempt_with_steps, attempt_with_rounds]
    kills = run.random.randint(1, 10)
    for attempt in range(kills + 1):
        state = run.begin_attempt(run.random.randint(1, 40) if attempt < kills else math.inf)
        try:
            run.random.choice(kinds)(run, state)
            break
        except Killed:
            pass
    run.check()


@pytest.fixture(autouse=True)
def _changes_soon(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(adaptive_batch, "_LEAST_STEPS", 2)
    silent = SimpleNamespace(is_scripts=True)  # this process's own page is no rank's
    monkeypatch.setattr(loop_step, "stats_page", lambda: silent)


@pytest.mark.parametrize("block", range(10))
def test_no_sample_is_lost_or_doubled_in_a_thousand_schedules(block: int) -> None:
    for seed in range(100 * block, 100 * block + 100):
        _schedule(seed)


def test_the_rest_of_an_epoch_is_a_round_in_which_every_host_steps() -> None:
    found = cut_round(95, 96, HostSizes((4, 8), (6, 2)))
    assert found.last
    assert found.counts == (1, 1)
    assert [stretch.size for stretch in found.ranges] == [1, 0]


def test_hosts_that_step_alike_do_so_to_the_end_of_an_epoch() -> None:
    found = cut_round(24, 42, HostSizes((6, 2), (3, 3)))
    assert [stretch.size for stretch in found.ranges] == [14, 4]
    assert found.counts == (3, 3)


def test_hosts_that_went_beyond_their_round_have_left_a_part_of_the_next() -> None:
    sizes = HostSizes((2, 2), (2, 2))
    ended = round_end(0, 100, sizes, [3, 2])  # of 8 numbers each round: 0 has 0-4, 8-10
    assert ended.end == 16
    assert ended.left == [(10, 12), (12, 16)]
    assert not ended.is_epochs_last


def test_a_round_is_cut_by_counts() -> None:
    assert cut_round(10, 1000, HostSizes((4, 2), (3, 1))) == HostRound(
        ((10, 22), (22, 24)), (3, 1), False
    )
