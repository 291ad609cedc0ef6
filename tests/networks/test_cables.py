"""Cables that are pulled, switches that fail, links that are slow: a lost host is named, and a host
that is not lost is never called so."""

from __future__ import annotations

import hashlib
import time
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed as dist

from tests.faults.test_late import Lines
from tests.kit.conditions import wait_until
from tests.kit.faults import FaultPlan, failure_of, reach
from tests.kit.networks import Network
from tests.kit.ranks import Outcome, Rank, note

pytestmark = pytest.mark.needs("root", "ip", "unshare", "mount")

LOST_PROMISE_S = 10.0
KILL_PROMISE_S = 2.0
STEPS = 60
CUT_AT = 20
FELT_AT = STEPS - 10  # so many steps are left, at least, when the cable is out
CUT_S = 5.0
REACHED = "reached"
FAILED = "failed"


class Cable:
    """When a rank has reached a step: pull a host's cable, and put it back after so long."""

    def __init__(
        self,
        network: Network,
        letter: str,
        *,
        heal_after_s: float = float("inf"),
        silently: bool = False,
    ) -> None:
        self._network, self._letter = network, letter
        self._heal_after_s, self._silently = heal_after_s, silently
        self.cut_at = self.healed_at = 0.0

    def __call__(self, outcomes: list[Outcome], elapsed_s: float) -> None:
        now = time.monotonic()
        if not self.cut_at:
            if (REACHED, CUT_AT) in [what for _, what in outcomes[0].notes]:
                pull = self._network.silence if self._silently else self._network.cut
                pull(self._letter)
                self.cut_at = time.monotonic()
                for _, what in outcomes[0].notes:
                    if isinstance(what, Path):
                        what.touch()
        elif not self.healed_at and (now >= self.cut_at + self._heal_after_s or _over(outcomes)):
            self._network.heal(self._letter)
            self.healed_at = time.monotonic()


def _over(outcomes: list[Outcome]) -> bool:
    """All have failed, and all but the last have ended: the ranks it waits for may as well answer
    that they are gone."""
    alone = FAILED in [what for _, what in outcomes[-1].notes]
    return alone and all(outcome.exit_code is not None for outcome in outcomes[:-1])


def train(me: Rank, is_cut: bool) -> dict[str, Any]:
    """A small model under DDP; the same every time but for what the network does."""
    lines = Lines()
    torch.manual_seed(7)
    model = torch.nn.Sequential(
        torch.nn.Linear(256, 1024), torch.nn.ReLU(), torch.nn.Linear(1024, 256)
    )
    ddp = torch.nn.parallel.DistributedDataParallel(model)
    optimizer = torch.optim.SGD(ddp.parameters(), lr=0.01, momentum=0.9)
    data = torch.Generator().manual_seed(100 + me.rank)
    longest, cut = 0.0, Path(me.folder, "cut")
    note(cut)
    for step in range(1, STEPS + 1):
        reach(step)
        if is_cut and step == FELT_AT:
            wait_until(cut.exists, 30.0, "the cable is out")
        began = time.monotonic()
        optimizer.zero_grad()
        ddp(torch.randn(8, 256, generator=data)).square().mean().backward()
        optimizer.step()
        longest = max(longest, time.monotonic() - began)
    digest = hashlib.sha256()
    for parameter in model.parameters():
        digest.update(parameter.detach().numpy().tobytes())
    return {"digest": digest.hexdigest(), "longest_s": longest, "lines": lines.said}


def test_training_goes_on_after_a_cable_was_out_for_five_seconds() -> None:
    with Network("ab") as network:
        undisturbed = network.run(train, "aab", False)
        cable = Cable(network, "b", heal_after_s=CUT_S)
        disturbed = network.run(train, "aab", True, during=cable)
    assert cable.healed_at
    assert len({one["digest"] for one in [*undisturbed, *disturbed]}) == 1
    for one in disturbed:
        assert one["longest_s"] > CUT_S * 0.9, "the cut was not felt: the test is none"
        assert not [line for line in one["lines"] if "lost" in line or "died" in line]
    resumed_s = max(one["longest_s"] for one in disturbed) - CUT_S
    print(f"resumed {resumed_s:.1f} s after the cable was back")


def exchange_until_it_fails(me: Rank, count: int) -> Any:
    step = 0
    while True:
        step += 1
        reach(step)
        failure = failure_of(dist.all_reduce, torch.ones(count))
        if failure is not None:
            note(FAILED)
            return failure, [failure_of(dist.barrier)]


def test_a_host_that_falls_silent_is_named_by_every_rank_on_every_other() -> None:
    """No card loses its carrier and no connection is reset: the switch drops what it gets."""
    with Network("abc") as network:
        cable = Cable(network, "c", silently=True)
        outcomes = network.watch(exchange_until_it_fails, "aabc", 4_000_000, during=cable)
        victim = outcomes[3]
        for outcome in outcomes[:3]:
            assert outcome.exit_code == 0, outcome.error
            assert not outcome.error, outcome.trace
            failure, (later,) = outcome.value
            assert failure.kind == later.kind == "PeerLost", failure
            for text in (failure.text, later.text):
                assert f"rank 3 (pid {victim.pid} on host-c) is lost" in text, text
                assert "has not answered" in text, text
            took_s = failure.at - cable.cut_at
            assert took_s < 5 * LOST_PROMISE_S
            print(f"rank {outcome.rank} named host-c after {took_s:.1f} s")
        alone, _ = victim.value  # the lost one lost all the others: it names one of them
        assert alone.kind == "PeerLost", alone
        assert "is lost" in alone.text, alone


def test_a_killed_rank_on_a_real_host_is_named_with_that_host() -> None:
    plan = FaultPlan().kill(rank=2, step=CUT_AT)
    with Network("ab") as network:
        outcomes = network.watch(exchange_until_it_fails, "aab", 1_000_000, during=plan)
    for outcome in outcomes[:2]:
        assert not outcome.error, outcome.trace
        failure, (later,) = outcome.value
        assert failure.kind == later.kind == "PeerLost"
        assert f"rank 2 (pid {outcomes[2].pid} on host-b) died" in failure.text, failure
        assert failure.at - plan.when(2) < 5 * KILL_PROMISE_S


SLOW_S = 20.0


def fill_a_slow_link(me: Rank) -> dict[str, Any]:
    """Transfers without a pause, in both directions, for longer than a lost host takes to name."""
    lines, done = Lines(), 0
    x, y = torch.randn(500_000), torch.empty(500_000)
    began = time.monotonic()
    more = torch.ones(1)
    while more[0]:
        work = dist.isend(x, (me.rank + 1) % me.size)
        dist.recv(y, (me.rank - 1) % me.size)
        assert work is not None
        work.wait()
        z = x.clone()
        dist.all_reduce(z)
        done += 1
        more[0] = float(time.monotonic() - began < SLOW_S)
        dist.broadcast(more, 0)
    return {"done": done, "lines": lines.said, "digest": float(z.sum())}


@pytest.mark.soak
def test_a_link_at_ten_megabit_full_of_our_own_traffic_gives_no_false_alarm() -> None:
    with Network("ab") as network:
        network.shape("10mbit")
        values = network.run(fill_a_slow_link, "ab", timeout_s=100.0)
    for value in values:
        assert value["done"] >= 2
        assert value["lines"] == []
    assert values[0]["digest"] == values[1]["digest"]
    print(f"{values[0]['done']} rounds of 4 MB")
