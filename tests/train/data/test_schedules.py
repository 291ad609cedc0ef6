"""Runs that are killed, resized and divided otherwise at random: every sample once an epoch.

All ranks are simulated in this process, each with its own `Batches`: the code that hands out,
commits, saves and loads is the real one; steps, exchanges and kills are random.
"""

from __future__ import annotations

import itertools
import random
from collections.abc import Iterator
from typing import Any

import pytest
import torch
from torch.utils.data import TensorDataset

from wiiiiided.train.data.batches import Batches, HostPlace
from wiiiiided.train.data.order import split
from wiiiiided.train.data.rounds import HostRound, HostSizes, cut_round, settle_rounds

EPOCHS = 2


class SimulatedRank(Batches):
    """A rank of a group that is not there."""

    def __init__(self, length: int, batch: int, rank: int, ranks: int, drop: bool) -> None:
        self._simulated = rank, ranks
        super().__init__(TensorDataset(torch.arange(length)), batch, 5, drop_last=drop)
        self.attach()
        self.got: list[int] = []
        self._batches: Iterator[Any] | None = None

    def _place(self) -> tuple[int, int]:
        return self._simulated

    def take(self) -> bool:
        """The loop gets a batch; False: the epoch is over."""
        if self._batches is None:
            self._batches = iter(self)
        before = self.samples_of_step()
        found = next(self._batches, None)
        if found is None:
            self._batches = None
            return False
        self.got += found[0].tolist()[: self.samples_of_step() - before]
        return True


class Training:
    """What has been trained for good, over all attempts."""

    def __init__(self, random_: random.Random) -> None:
        self.random = random_
        self.length, self.drop = random_.randint(1, 90), random_.random() < 0.3
        self.batch = random_.randint(4, 12)
        if self.drop:
            self.length += self.batch
        self.trained: dict[int, list[int]] = {epoch: [] for epoch in range(EPOCHS)}
        self.state: dict[str, Any] | None = None

    def commit(self, epoch: int, ranks: list[SimulatedRank]) -> None:
        for rank in ranks:  # a rest that is left out may have led to another epoch
            self.trained.setdefault(epoch, []).extend(rank.got)
            rank.got.clear()
        states = [rank.state_dict() for rank in ranks]
        assert all(state == states[0] for state in states)
        self.state = states[0]

    @property
    def is_done(self) -> bool:
        return self.state is not None and self.state["epoch"] >= EPOCHS

    def check(self) -> None:
        for seen in [self.trained[epoch] for epoch in range(EPOCHS)]:
            assert len(set(seen)) == len(seen), "a sample came twice"
            missing = self.length - len(seen)
            assert missing == 0 or (self.drop and missing < 12), "a sample was lost"

    def load(self, rank: SimulatedRank) -> SimulatedRank:
        if self.state is not None:
            rank.load_state_dict(self.state)
        return rank


def attempt_with_steps(run: Training, kill: int) -> None:
    """Ranks exchange in every step; shares and the batch change, steps accumulate."""
    count = run.random.randint(1, 4)
    ranks = [
        run.load(SimulatedRank(run.length, run.batch, r, count, run.drop)) for r in range(count)
    ]
    accumulated = 0
    while not run.is_done and kill:
        more = [rank.take() for rank in ranks]
        assert len(set(more)) == 1
        if not more[0]:
            if accumulated:  # the script steps with what it has at the epoch's end
                accumulated = _step(run, ranks)
            continue
        accumulated += 1
        if accumulated >= run.random.randint(1, 3):
            accumulated = _step(run, ranks)
            kill -= 1
            if run.random.random() < 0.2:
                shares = [run.random.random() + 0.01 for _ in ranks]
                for rank in ranks:
                    rank.divide(shares)


def _step(run: Training, ranks: list[SimulatedRank]) -> int:
    epoch = ranks[0]._cursor.committed.epoch
    for rank in ranks:
        rank.committed()
    run.commit(epoch, ranks)
    return 0


def attempt_with_rounds(run: Training, kill: int) -> None:
    """Hosts make rounds of their own, some of which end early; a kill loses the round."""
    hosts = [run.random.randint(1, 2) for _ in range(run.random.randint(2, 3))]
    if sum(hosts) > run.batch:
        hosts = [1, 1]
    cuts = split(run.batch, sum(hosts))
    firsts = [sum(hosts[:h]) for h in range(len(hosts) + 1)]
    sizes = tuple(cuts[b] - cuts[a] for a, b in itertools.pairwise(firsts))

    def drawn() -> HostSizes:
        return HostSizes(sizes, tuple(run.random.randint(1, 5) for _ in hosts))

    now = drawn()
    ranks: list[list[SimulatedRank]] = []
    for host, count in enumerate(hosts):
        made = [SimulatedRank(run.length, run.batch, 0, 1, run.drop) for _ in range(count)]
        for place, rank in enumerate(made):
            rank.begin_rounds(host, now, HostPlace(place, count))
            run.load(rank)
        ranks.append(made)
    everyone = [rank for made in ranks for rank in made]
    while not run.is_done and kill:
        early = run.random.random() < 0.3
        epoch = everyone[0]._cursor.committed.epoch
        for host in ranks:
            _host_round(run, host, early)
        if run.random.random() < 0.1:
            return  # killed before the exchange
        told = [host[0].batches_of_round for host in ranks]
        now = drawn() if run.random.random() < 0.4 else now
        for rank in everyone:
            rank.end_round(told, now)
            rank.committed()
        run.commit(epoch, everyone)
        kill -= 1


def _host_round(run: Training, host: list[SimulatedRank], early: bool) -> None:
    """A host's steps of a round, of one batch or more each."""
    while True:
        for rank in host:
            if not rank.take():
                assert rank.take()  # the next epoch's first
        if run.random.random() < 0.2 and not host[0].is_round_over:
            continue  # accumulates
        for rank in host:
            rank.committed()
        if host[0].is_round_over or (early and run.random.random() < 0.5):
            return


def _schedule(seed: int) -> None:
    run = Training(random.Random(seed))
    while not run.is_done:
        attempt = run.random.choice([attempt_with_steps, attempt_with_rounds])
        attempt(run, run.random.randint(1, 12))
    run.check()


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
    settled = settle_rounds(0, 100, sizes, [3, 2])  # of 8 numbers each round: 0 has 0-4, 8-10
    assert settled.end == 16
    assert settled.left == [(10, 12), (12, 16)]
    assert not settled.is_epochs_last


def test_a_round_is_cut_by_counts() -> None:
    assert cut_round(10, 1000, HostSizes((4, 2), (3, 1))) == HostRound(
        ((10, 22), (22, 24)), (3, 1), False
    )
