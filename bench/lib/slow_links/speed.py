"""How fast hosts train together over one link after the other: contenders, targets and tables.

step        of the slowest rank, the mean of a turn: exchanges every H steps are in it
samples/s   of all hosts together
alone       one host's samples/s while the other hosts train unconnected copies on their cores
computing   a step without exchange (alone's) to the contender's
"""

from __future__ import annotations

import statistics
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from lib.fleet import FleetError
from lib.grid import NUMBER, PERCENT, TIMES, Asked, Grid, GridRow
from lib.hosts import FAST, GIGABIT, INTERFACE, SLOW, Hosts, HostsFleet, LinkSpeed
from lib.measure import RATE, Measure, MeasureUnit, in_turns, ratios
from lib.slow_links.uneven import SHARES, WIDTHS, UnevenPlan
from wiiiiided.train.round_length import MOST

MEGABYTES = MeasureUnit("bytes", lambda amount: f"{amount / 1e6:.2f} MB")
BATCH = 16  # samples of a rank and step, in lib/train_rank.py
_PATIENCE_S = 600.0
# Rounds that every="auto" takes to find its length: it sees a new link in the third, by the median.
_LEAST_ROUNDS, _MOST_ROUNDS, _LENGTH_SECONDS = 4, 16, 60.0
_EXACT = "exact"


@dataclass(frozen=True)
class Contender:
    """A way to train, as lib/train_rank.py calls it; `between`: the arguments of wide.Between."""

    name: str
    way: str = "parallel"
    backend: str | None = "wiiiiide"
    gradients: str = _EXACT
    every: int | str = 1
    fragments: int = 1

    @property
    def between(self) -> dict[str, Any]:
        return {"gradients": self.gradients, "every": self.every, "fragments": self.fragments}

    @property
    def is_connected(self) -> bool:
        """Whether hosts train together."""
        return self.backend is not None

    @property
    def is_exact(self) -> bool:
        return self.backend is not None and self.gradients == _EXACT

    @property
    def proof_steps(self) -> int:
        """So many, then all ranks agree; "auto" exchanges after the first, and begins a round."""
        return 1 if isinstance(self.every, str) else 3


ALONE = Contender("one host alone", "host alone", None)
GLOO = Contender("gloo, DDP", "ddp", "gloo")
DDP = Contender("wiiiiide, DDP", "ddp")
EXACT = Contender("wide.parallel")
BF16 = Contender("bf16", gradients="bf16")
INT8 = Contender("int8", gradients="int8")
INT4 = Contender("int4", gradients="int4")
TOPK = Contender("topk:0.01", gradients="topk:0.01")
SELDOM = Contender("every=16, int8", gradients="int8", every=16)
LONG = Contender("every=64, int8", gradients="int8", every=64)
AUTO = Contender('every="auto", int8', gradients="int8", every="auto")
EVERY_STEP = (ALONE, GLOO, DDP, EXACT, BF16, INT8, INT4, TOPK)
MEANWHILE = Contender("every=16 in 4 fragments, int8", gradients="int8", every=16, fragments=4)
CONTENDERS = (*EVERY_STEP, SELDOM, MEANWHILE, LONG, AUTO)
FEW = (ALONE, GLOO, EXACT, INT8, SELDOM, AUTO)


@dataclass(frozen=True)
class LinkRounds:
    """The rounds on one link. Over a slow one an exact step takes half a minute: few take part."""

    link: LinkSpeed
    rounds: int
    contenders: Sequence[Contender] = CONTENDERS


@dataclass(frozen=True)
class Site:
    """Hosts with so many ranks each, and the links that they are measured on."""

    ranks: tuple[int, ...]
    stages: Sequence[LinkRounds]

    @property
    def contenders(self) -> list[Contender]:
        """All that take part on one of the links."""
        return list(dict.fromkeys(one for stage in self.stages for one in stage.contenders))


@dataclass(frozen=True)
class SlowLinksPlan:
    """Where, how long a turn takes at least, and how one slow host is measured."""

    sites: Sequence[Site]
    turn_seconds: float
    uneven: UnevenPlan

    def with_rounds(self, rounds: int) -> SlowLinksPlan:
        """The same with so many rounds everywhere."""
        sites = [
            replace(site, stages=[replace(stage, rounds=rounds) for stage in site.stages])
            for site in self.sites
        ]
        return replace(self, sites=sites, uneven=replace(self.uneven, rounds=rounds))


PAIR, PAIR_OF_TWO, THREE = (1, 1), (2, 2), (1, 1, 1)
_ENDS = (ALONE, GLOO, AUTO)
FULL = SlowLinksPlan(
    (
        Site(
            PAIR,
            (LinkRounds(GIGABIT, 3), LinkRounds(FAST, 3), LinkRounds(SLOW, 2, (*_ENDS, SELDOM))),
        ),
        Site(PAIR_OF_TWO, (LinkRounds(GIGABIT, 5, EVERY_STEP),)),
        Site(
            THREE,
            (LinkRounds(GIGABIT, 2, FEW), LinkRounds(FAST, 2, FEW), LinkRounds(SLOW, 1, _ENDS)),
        ),
    ),
    1.0,
    UnevenPlan(3, 5.0),
)
QUICK = SlowLinksPlan(
    (
        Site(PAIR, (LinkRounds(GIGABIT, 1), LinkRounds(FAST, 1, FEW))),
        Site(PAIR_OF_TWO, (LinkRounds(GIGABIT, 2, EVERY_STEP),)),
    ),
    0.5,
    UnevenPlan(1, 3.0, (SHARES,)),
)

_GLOO, _ALONE, _COMPUTING = "to gloo's DDP", "to one host alone", "computing"
_Key = tuple[tuple[int, ...], LinkSpeed, Contender, str]
TARGETS: dict[_Key, float] = {  # all of them are least values
    (PAIR_OF_TWO, GIGABIT, BF16, _GLOO): 1.8,
    (PAIR_OF_TWO, GIGABIT, INT8, _GLOO): 2.5,
    (PAIR_OF_TWO, GIGABIT, INT4, _GLOO): 3.0,
    (PAIR, FAST, AUTO, _COMPUTING): 0.9,
    (PAIR, FAST, AUTO, _GLOO): 15.0,
    (PAIR, SLOW, AUTO, _ALONE): 1.0,
}


@dataclass(frozen=True)
class ContenderTurn:
    """One contender's steps in one round."""

    step_s: float
    wire_bytes: float  # of the busiest host's busier direction, a step
    every: int  # the length of the round that follows


@dataclass
class Speed:
    """The tables of one site."""

    grids: list[Grid] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)


class Trainers:
    """Ranks in which every contender is alive, opened by its name and measured in turns."""

    def __init__(self, hosts: Hosts, fleet: HostsFleet) -> None:
        self._hosts, self._fleet = hosts, fleet

    def open(self, contender: Contender) -> float:
        """Makes the contender's trainer; returns what its parameters add up to after some steps."""
        message = {
            "do": "open",
            "contender": contender.name,
            "backend": contender.backend,
            "way": contender.way,
            "between": contender.between,
            "steps": contender.proof_steps,
            "widths": WIDTHS,
            "views": False,
            "optimizer": "adamw",
        }
        answers = self._fleet.ask(message, seconds=_PATIENCE_S)
        if contender.is_connected and len({a["digest"] for a in answers}) > 1:
            raise FleetError(f"{contender.name}: the ranks' parameters differ")
        return float(answers[0]["sum"])

    def turn(self, contender: Contender, steps: int) -> ContenderTurn:
        """So many steps."""
        before = self._hosts.traffic()
        message = {"do": "measure", "contender": contender.name, "iterations": steps, "warmup": 0}
        answers = self._fleet.ask(message, seconds=_PATIENCE_S)
        after = self._hosts.traffic()
        means = [sum(answer["ns"]) / steps / 1e9 for answer in answers]
        # Unconnected hosts do not wait for the slowest of them.
        step_s = max(means) if contender.is_connected else statistics.fmean(means)
        traffic = [late.since(early, steps) for late, early in zip(after, before, strict=True)]
        return ContenderTurn(step_s, max(one.most for one in traffic), answers[0]["every"])


class SlowLinks:
    """Hosts on which all contenders are alive, in the same ranks."""

    def __init__(self, hosts: Hosts, turn_seconds: float, say: Callable[[str], None]) -> None:
        self._hosts, self._turn_seconds, self._say = hosts, turn_seconds, say
        self._lengths: dict[Contender, int] = {}

    def run(self, stages: Sequence[LinkRounds], show: Callable[[Grid], None]) -> Speed:
        """Measures on one link after the other, from the fastest to the slowest."""
        speed = Speed()
        with HostsFleet(self._hosts, {"GLOO_SOCKET_IFNAME": INTERFACE}, "train_rank") as fleet:
            self._trainers = Trainers(self._hosts, fleet)
            self._open_all(Site(self._ranks, stages).contenders)
            for stage in stages:
                self._hosts.shape(stage.link.rate)
                if AUTO in stage.contenders:
                    speed.notes.append(self._find_length(stage.link))
                speed.grids.append(self._grid(stage, self._rounds(stage)))
                show(speed.grids[-1])
        return speed

    def _open_all(self, contenders: Sequence[Contender]) -> None:
        """Makes the trainers, before links are slow, and checks that they train alike."""
        sums: dict[Contender, float] = {}
        for contender in contenders:
            self._say(f"{self._many}: making {contender.name}")
            sums[contender] = self._trainers.open(contender)
        for contender in filter(lambda one: one.is_exact, contenders):
            if abs(sums[contender] - sums[GLOO]) > 1e-4 * abs(sums[GLOO]):
                raise FleetError(f"{contender.name} trained other parameters than gloo")

    @property
    def _ranks(self) -> tuple[int, ...]:
        return tuple(host.ranks for host in self._hosts.all)

    @property
    def _many(self) -> str:
        return f"{len(self._ranks)} hosts"

    def _find_length(self, link: LinkSpeed) -> str:
        """Lets every="auto" find its length; says how it went."""
        lengths, taken_s = [self._lengths.get(AUTO, 1)], 0.0
        while len(lengths) <= _MOST_ROUNDS and taken_s < _LENGTH_SECONDS:
            self._say(f'{self._many}, {link.name}: every="auto" is at {lengths[-1]}')
            turn = self._turn(AUTO, lengths[-1])
            taken_s += turn.step_s * lengths[-1]
            lengths.append(turn.every)
            stays = lengths[-1] == lengths[-2] and len(lengths) > _LEAST_ROUNDS
            if stays or lengths[-1] == MOST:
                break
        path = ", ".join(str(length) for length in lengths)
        return f'{self._many}, {link.name}: every="auto" went {path} in {taken_s:.1f} s'

    def _rounds(self, stage: LinkRounds) -> dict[Contender, list[ContenderTurn]]:
        taken: dict[Contender, list[ContenderTurn]] = {
            contender: [] for contender in stage.contenders
        }
        steps: dict[Contender, int] = {}
        for number, contender in in_turns(stage.contenders, stage.rounds):
            self._say(
                f"{self._many}, {stage.link.name}, round {number} of {stage.rounds}:"
                f" {contender.name}"
            )
            taken[contender].append(self._long_turn(contender, steps))
        return taken

    def _long_turn(self, contender: Contender, steps: dict[Contender, int]) -> ContenderTurn:
        """Whole rounds of H steps; a first turn that was long enough counts."""
        every = self._lengths.get(contender, contender.every)
        assert isinstance(every, int)
        if contender not in steps:
            turn = self._turn(contender, every)
            steps[contender] = 1 + int(self._turn_seconds / (turn.step_s * every))
            if steps[contender] == 1:
                return turn
        return self._turn(contender, steps[contender] * every)

    def _turn(self, contender: Contender, steps: int) -> ContenderTurn:
        turn = self._trainers.turn(contender, steps)
        if contender is AUTO:
            self._lengths[AUTO] = turn.every
        return turn

    def _grid(self, stage: LinkRounds, taken: Mapping[Contender, Sequence[ContenderTurn]]) -> Grid:
        hosts = self._hosts
        ranks = "+".join(map(str, self._ranks))
        grid = Grid(f"{stage.link.name}, {self._many} with {ranks} ranks")
        here = hosts.all[0].ranks * BATCH
        alone, gloo = _rates(taken[ALONE], here), _rates(taken[GLOO], hosts.ranks * BATCH)
        for contender, turns in taken.items():
            rates = _rates(turns, here if contender is ALONE else hosts.ranks * BATCH)
            columns: dict[str, tuple[MeasureUnit, list[float]]] = {
                "samples/s": (RATE, rates),
                _GLOO: (TIMES, ratios(rates, gloo)),
            }
            if contender is not ALONE:
                without = [turn.step_s for turn in taken[ALONE]]
                columns[_ALONE] = (TIMES, ratios(rates, alone))
                share = ratios(without, [turn.step_s for turn in turns])
                columns[_COMPUTING] = (PERCENT, share)
                columns["bytes a step"] = (MEGABYTES, [turn.wire_bytes for turn in turns])
                columns["exchange every"] = (NUMBER, [float(turn.every) for turn in turns])
            cells = {
                column: self._measure(stage.link, contender, column, *found)
                for column, found in columns.items()
            }
            grid.rows.append(GridRow(contender.name, cells))
        return grid

    def _measure(
        self,
        link: LinkSpeed,
        contender: Contender,
        column: str,
        unit: MeasureUnit,
        rounds: list[float],
    ) -> Measure:
        bound = TARGETS.get((self._ranks, link, contender, column))
        if bound is None:
            return Measure(column, unit, rounds)
        return Measure(_what(link, contender, column), unit, rounds, bound, True)


def asked() -> list[tuple[Asked, MeasureUnit]]:
    """All that is asked of hosts that are alike."""
    return [
        (Asked(_what(link, one, column), bound), PERCENT if column == _COMPUTING else TIMES)
        for (_, link, one, column), bound in TARGETS.items()
    ]


def _what(link: LinkSpeed, contender: Contender, column: str) -> str:
    return f"{link.name}, {contender.name}: {column}"


def _rates(turns: Sequence[ContenderTurn], samples: int) -> list[float]:
    return [samples / turn.step_s for turn in turns]
