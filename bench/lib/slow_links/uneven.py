"""One host three times slower than the other: what do both reach together of the sum of each alone?

    fast alone   ▏1200 samples/s ▕                both, every step     each takes its share
    slow alone   ▏ 400 ▕                          both, every 16       each makes its own steps

A control group's quota makes the slow host (lib/slow_links/cpu_quota.py). Each alone is measured
while the other trains an unconnected copy. Shares and steps follow speeds that are measured for a
minute, so contenders train for longer than that before they are measured.
"""

from __future__ import annotations

import statistics
from collections.abc import Callable, Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass
from typing import Any, NamedTuple

from lib.grid import PERCENT, Asked, Grid, GridRow
from lib.hosts import GIGABIT, INTERFACE, Hosts, HostsFleet
from lib.measure import RATE, Measure, MeasureUnit
from lib.slow_links.cpu_quota import CpuQuota

WIDTHS = (1024, 1728, 1728, 1024)  # 6.5 million parameters: 26 MB of gradients
SLOW_SHARE = 1 / 3
_PATIENCE_S = 600.0
_BOTH = "to the sum of both alone"
_ASKED = 0.9
_LEAST_TIMES = 2.5  # slower alone: on a busy machine a quota makes no difference
_EVEN_WITHIN = 0.05


@dataclass(frozen=True)
class Together:
    """A way to train on both hosts, as lib/slow_links/uneven_rank.py calls it."""

    name: str
    way: str
    every: int = 1
    batch: int = 2048  # samples of a rank and step, before they are divided by speed
    asked: bool = True
    warm_s: float = 0.0

    @property
    def between(self) -> dict[str, Any]:
        return {"gradients": "int8", "every": self.every}


EVEN = Together("every step, even parts", "even", asked=False)
SHARES = Together("every step, run.shares", "shares", warm_s=90.0)
SELDOM = Together("every=16, wide.Batches", "data", 16, batch=256, warm_s=70.0)
WAYS = (EVEN, SHARES, SELDOM)


@dataclass(frozen=True)
class UnevenPlan:
    """How often, and how long a turn takes about."""

    rounds: int
    turn_seconds: float
    ways: Sequence[Together] = WAYS


@dataclass(frozen=True)
class UnevenTurn:
    """Samples a second of each host."""

    fast: float
    slow: float
    seconds: float

    @property
    def both(self) -> float:
        return self.fast + self.slow


class Uneven:
    """Two hosts, the second of which is slowed down."""

    def __init__(self, plan: UnevenPlan, say: Callable[[str], None]) -> None:
        self._plan, self._say = plan, say

    def run(self) -> Grid:
        with (
            Hosts([1, 1], pinned=True) as hosts,
            closing(CpuQuota(SLOW_SHARE)) as quota,
            HostsFleet(hosts, {"GLOO_SOCKET_IFNAME": INTERFACE}, "slow_links.uneven_rank") as fleet,
        ):
            self._fleet = fleet
            quota.take(fleet.pids[1:])
            hosts.shape(GIGABIT.rate)
            for way in self._plan.ways:
                self._open(way)
            amounts = {way: self._warm(way) for way in self._plan.ways}
            return grid({way: self._rounds(way, amounts[way]) for way in self._plan.ways})

    def _open(self, way: Together) -> None:
        samples = 2 * way.batch * way.every * 4  # four rounds an epoch
        shape = {"batch": way.batch, "between": way.between, "widths": WIDTHS, "samples": samples}
        for contender, kind in ((way.name, way.way), (_alone(way), "alone")):
            message = {"do": "open", "contender": contender, "way": kind, **shape}
            self._fleet.ask(message, seconds=_PATIENCE_S)

    def _warm(self, way: Together) -> int:
        """Lets speeds be known, for twice as long where all is still even on a busy machine.

        Returns how many steps or epochs a turn has from then on.
        """
        self._say(f"a slow host: {way.name} while speeds are measured, {way.warm_s:.0f} s or more")
        taken_s, amount, is_even = 0.0, 1, False
        while not taken_s or taken_s < way.warm_s * (1 + is_even):
            turn = self._turn(way.name, amount)
            taken_s += turn.seconds
            amount = max(1, round(amount * self._plan.turn_seconds / turn.seconds))
            is_even = abs(turn.fast / turn.both - 0.5) < _EVEN_WITHIN
        return amount

    def _rounds(self, way: Together, amount: int) -> list[tuple[UnevenTurn, UnevenTurn]]:
        """Each alone, and both together, in turns."""
        taken = []
        for number in range(self._plan.rounds):
            self._say(f"a slow host, round {number + 1} of {self._plan.rounds}: {way.name}")
            fast, slow = self._measure(_alone(way), self._plan.turn_seconds)
            alone = UnevenTurn(fast.rate, slow.rate, max(fast.seconds, slow.seconds))
            taken.append((alone, self._turn(way.name, amount)))
        return taken

    def _turn(self, contender: str, amount: int) -> UnevenTurn:
        """Of both together: the one that is done first has to wait."""
        fast, slow = self._measure(contender, amount)
        longest = max(fast.seconds, slow.seconds)
        return UnevenTurn(fast.samples / longest, slow.samples / longest, longest)

    def _measure(self, contender: str, amount: float) -> list[_Trained]:
        message = {"do": "measure", "contender": contender, "amount": amount}
        answers = self._fleet.ask(message, seconds=_PATIENCE_S)
        return [_Trained(answer["samples"], answer["seconds"]) for answer in answers]


class _Trained(NamedTuple):
    """One host's work in a turn."""

    samples: int
    seconds: float

    @property
    def rate(self) -> float:
        return self.samples / self.seconds


def _alone(way: Together) -> str:
    """With the same batch."""
    return f"alone: {way.name}"


def grid(taken: Mapping[Together, Sequence[tuple[UnevenTurn, UnevenTurn]]]) -> Grid:
    """A row for each way, next to its hosts alone."""
    times = statistics.median(one.fast / one.slow for turns in taken.values() for one, _ in turns)
    found = Grid(f"1 Gbit, int8, one host {times:.1f} times slower than the other")
    for way, turns in taken.items():
        columns: dict[str, tuple[MeasureUnit, list[float]]] = {
            "fast alone": (RATE, [alone.fast for alone, _ in turns]),
            "slow alone": (RATE, [alone.slow for alone, _ in turns]),
            "together": (RATE, [turn.both for _, turn in turns]),
            "fast host's part": (PERCENT, [turn.fast / turn.both for _, turn in turns]),
        }
        cells = {name: Measure(name, *column) for name, column in columns.items()}
        reached = [turn.both / alone.both for alone, turn in turns]
        bound = _ASKED if way.asked and times >= _LEAST_TIMES else None
        cells[_BOTH] = Measure(_what(way), PERCENT, reached, bound, True)
        found.rows.append(GridRow(way.name, cells))
    return found


def asked() -> list[tuple[Asked, MeasureUnit]]:
    """The targets, where nothing could be measured."""
    return [(Asked(_what(way), _ASKED), PERCENT) for way in WAYS if way.asked]


def _what(way: Together) -> str:
    return f"one host three times slower, {way.name}: {_BOTH}"
