"""What plan's rows predict, next to what the same ways then do, on two hosts and a link.

round    trial ── rows ──► predicted        every round has a trial of its own
         a turn of each row's way ──► measured
"""

from __future__ import annotations

import statistics
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field

from lib.measure import RATE, Measure, Unit
from lib.net_fleet import NetFleet
from lib.net_hosts import INTERFACE, UNSHAPED, Hosts, Link
from lib.slow_speed import ALONE, BATCH, WIDTHS, Contender, Trainers
from lib.two_hosts_table import PERCENT, TIMES, Asked, Grid, Row
from wiiiiided.domain.plan import PairLine, PairProbe, PlanRow, RankLine, TrialMeasures, read_line
from wiiiiided.metrics.plan import plan_rows, predict
from wiiiiided.ui.cli import trial

_NAMES = ("a", "b")
_OFF, _BEHIND = 0.2, 0.1  # asked, at most
_LINKS_S = trial.LINKS_S[0]
_SETTINGS = {"GLOO_SOCKET_IFNAME": INTERFACE}


@dataclass(frozen=True)
class PlannedWay:
    """A row of plan, without its figures."""

    nodes: tuple[str, ...]
    every: int
    gradients: str

    @classmethod
    def of(cls, row: PlanRow) -> PlannedWay:
        return cls(row.nodes if len(row.nodes) > 1 else _NAMES[:1], row.every, row.gradients)

    @property
    def name(self) -> str:
        if len(self.nodes) == 1:
            return "one machine"
        return f"every {self.every} steps, {self.gradients}".replace("every 1 steps", "every step")

    @property
    def kind(self) -> tuple[int, bool, str]:
        """The row, whatever number of steps a trial finds for it."""
        return len(self.nodes), self.every > 1, self.gradients

    @property
    def contender(self) -> Contender:
        """As lib/train_rank.py trains it."""
        if len(self.nodes) == 1:
            return ALONE
        return Contender(self.name, gradients=self.gradients, every=self.every)

    def predicted(self, measures: TrialMeasures) -> float:
        """samples/s; one machine: the mean of both, as it is measured."""
        if len(self.nodes) == 1:
            return statistics.fmean(one.speed for one in measures.machines)
        return predict(measures, self.nodes, self.every, self.gradients).samples_per_s


@dataclass
class LinkAccuracy:
    """What one link gave, by way."""

    link: Link
    predicted: dict[PlannedWay, list[float]] = field(default_factory=dict)
    measured: dict[PlannedWay, list[float]] = field(default_factory=dict)
    recommended: list[PlannedWay] = field(default_factory=list)  # by round

    @property
    def choice(self) -> PlannedWay:
        """What most trials recommend."""
        kind = Counter(way.kind for way in self.recommended).most_common(1)[0][0]
        return next(way for way in self.predicted if way.kind == kind)

    @property
    def note(self) -> str:
        """What each trial recommends."""
        said = ", ".join(way.name for way in self.recommended)
        return f"{self.link.name}: recommended in each round: {said}"

    def off(self, way: PlannedWay) -> float:
        """How far the medians are apart, as a part of the measured one."""
        ratio = statistics.median(self.predicted[way]) / statistics.median(self.measured[way])
        return abs(ratio - 1)

    def behind(self) -> float:
        """How far what is recommended is behind the best measured way."""
        medians = {way: statistics.median(rates) for way, rates in self.measured.items()}
        return 1 - medians[self.choice] / max(medians.values())

    def grid(self, judged: bool) -> Grid:
        grid = Grid(f"{self.link.name}, two hosts")
        for way, predicted in self.predicted.items():
            measured = self.measured[way]
            ratios = [ours / real for ours, real in zip(predicted, measured, strict=True)]
            cells = {
                "predicted": Measure("predicted", RATE, predicted),
                "measured": Measure("measured", RATE, measured),
                "by rounds": Measure("by rounds", TIMES, ratios),
                "medians apart": Measure(
                    _off_words(self.link, way), PERCENT, [self.off(way)], _OFF
                ),
            }
            if way is self.choice:
                cells["recommended, behind the best"] = Measure(
                    _behind_words(self.link), PERCENT, [self.behind()], _BEHIND
                )
            grid.rows.append(Row(way.name, cells))
        return grid


def asked(links: Sequence[Link]) -> list[tuple[Asked, Unit]]:
    """What is asked of every link, whichever rows it has."""
    return [(Asked(_behind_words(link), _BEHIND, False), PERCENT) for link in links]


def _off_words(link: Link, way: PlannedWay) -> str:
    return f"{link.name}, {way.name}: predicted and measured apart"


def _behind_words(link: Link) -> str:
    return f"{link.name}: what is recommended behind the best"


class PlanAccuracy:
    """Two hosts; ranks that train are alive on them all the time, those of trials come and go."""

    def __init__(
        self, hosts: Hosts, rounds: int, turn_s: float, say: Callable[[str], None]
    ) -> None:
        self._hosts, self._rounds, self._turn_s, self._say = hosts, rounds, turn_s, say

    def run(self, links: Sequence[Link]) -> Iterator[LinkAccuracy]:
        """On one link after the other."""
        with NetFleet(self._hosts, _SETTINGS, "train_rank") as fleet:
            self._trainers = Trainers(self._hosts, fleet)
            self._opened: set[Contender] = set()
            for link in links:
                yield self._on(link)

    def _on(self, link: Link) -> LinkAccuracy:
        found = LinkAccuracy(link)
        for number in range(self._rounds):
            self._hosts.shape(link)
            self._say(f"{link.name}, round {number + 1} of {self._rounds}: a trial")
            measures = self._trial()
            rows = plan_rows(measures)
            if not found.predicted:
                self._hosts.shape(UNSHAPED)
                for way in map(PlannedWay.of, rows):
                    found.predicted[way], found.measured[way] = [], []
                    self._open(way.contender)
                self._hosts.shape(link)
            found.recommended.append(PlannedWay.of(next(row for row in rows if row.recommended)))
            for way in found.predicted:
                self._say(f"{link.name}, round {number + 1} of {self._rounds}: {way.name}")
                found.predicted[way].append(way.predicted(measures))
                found.measured[way].append(self._measured(way))
        return found

    def _open(self, contender: Contender) -> None:
        if contender not in self._opened:
            self._trainers.open(contender)
            self._opened.add(contender)

    def _measured(self, way: PlannedWay) -> float:
        """samples/s of whole rounds of steps, the first of which only says how many there are."""
        turn = self._trainers.turn(way.contender, way.every)
        least = int(self._turn_s / (turn.step_s * way.every))
        if least:
            turn = self._trainers.turn(way.contender, least * way.every)
        return len(way.nodes) * BATCH / turn.step_s

    def _trial(self) -> TrialMeasures:
        with NetFleet(self._hosts, _SETTINGS, "plan_rank") as fleet:
            ranks: dict[str, list[RankLine]] = {}
            for name, answer in zip(
                _NAMES, fleet.ask({"do": "trial", "widths": WIDTHS}), strict=True
            ):
                said = map(read_line, answer["lines"])
                ranks[name] = [line for line in said if isinstance(line, RankLine)]
            script = trial.facts(ranks)
            request = {"do": "links", "bytes": script.gradient_bytes, "seconds": _LINKS_S}
            heard = [line for answer in fleet.ask(request) for line in answer["lines"]]
        pairs = tuple(
            PairProbe(_NAMES[one.a], _NAMES[one.b], one.fixed_s, one.byte_s, one.bits_per_s)
            for one in map(read_line, heard)
            if isinstance(one, PairLine)
        )
        machines = tuple(trial.machine(name, lines) for name, lines in ranks.items())
        return TrialMeasures(machines, pairs, script)
