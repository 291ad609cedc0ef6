"""The predictions of plan's rows, next to what the same ways then do, on two hosts and a link.

round    trial ── rows ──► predicted        every round has a trial of its own
         a turn of each row's way ──► measured

Once with a batch for each host, and in a few ways with one of both, by data= of wide.parallel.
"""

from __future__ import annotations

import statistics
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field

from lib.grid import PERCENT, TIMES, Asked, Grid, GridRow
from lib.hosts import INTERFACE, UNSHAPED, Hosts, HostsFleet, LinkSpeed
from lib.measure import RATE, Measure, MeasureUnit, ratios
from lib.slow_links.speed import BATCH, Contender, Trainers
from lib.slow_links.uneven import WIDTHS
from wiiiiided.domain.plan import (
    EXACT,
    INT8,
    PairLine,
    PairProbe,
    PlanRow,
    RankLine,
    TrialMeasures,
    read_line,
)
from wiiiiided.metrics.plan import plan_rows, predict
from wiiiiided.ui.cli import trial

_NAMES = ("a", "b")
_OFF, _BEHIND = 0.2, 0.1  # asked, at most
_LINKS_S = trial.LINKS_S[0]
_SETTINGS = {"GLOO_SOCKET_IFNAME": INTERFACE}
_LEARNER = {"widths": WIDTHS, "batch": BATCH}
_EPOCH = 16  # steps, at least: as many as a round
_LONGEST = 1024  # steps of a round: a turn is one at least, and plan's longest takes minutes
_PATIENCE_S = 600.0
# One machine, every step and every H steps in int8: each of the formula's cases of one batch. What
# is recommended takes the place of its own case.
_DATA_KINDS = ((1, False, EXACT), (2, False, INT8), (2, True, INT8))


@dataclass(frozen=True)
class PlannedWay:
    """A row of plan, without its figures."""

    nodes: tuple[str, ...]
    every: int
    gradients: str
    data: bool = False

    @classmethod
    def of(cls, row: PlanRow, data: bool = False) -> PlannedWay:
        nodes = row.nodes if len(row.nodes) > 1 else _NAMES[:1]
        return cls(nodes, min(row.every, _LONGEST), row.gradients, data)

    @property
    def name(self) -> str:
        said = f"every {self.every} steps, {self.gradients}"
        said = said.replace("every 1 steps", "every step")
        if len(self.nodes) == 1:
            said = "one machine"
        return said + (", data=" if self.data else "")

    @property
    def kind(self) -> tuple[int, bool, str]:
        """The row, whatever number of steps a trial finds for it."""
        return len(self.nodes), self.every > 1, self.gradients

    @property
    def contender(self) -> Contender:
        """As lib/train_rank.py trains it: one machine with the script of the others."""
        if len(self.nodes) == 1:
            return Contender(self.name, "host apart", None)
        return Contender(self.name, gradients=self.gradients, every=self.every)

    def predicted(self, measures: TrialMeasures) -> float:
        """samples/s; one machine: the mean of both, as it is measured."""
        if len(self.nodes) == 1:
            return statistics.fmean(one.speed for one in measures.machines)
        return predict(measures, self.nodes, self.every, self.gradients).samples_per_s


@dataclass
class LinkAccuracy:
    """One link's figures, by way."""

    link: LinkSpeed
    predicted: dict[PlannedWay, list[float]] = field(default_factory=dict)
    measured: dict[PlannedWay, list[float]] = field(default_factory=dict)
    recommended: list[PlannedWay] = field(default_factory=list)  # by round

    def choice(self, data: bool) -> PlannedWay:
        """The recommendation of most trials; that of the first one is always among the ways."""
        ways = {way.kind: way for way in self.predicted if way.data is data}
        kinds = [way.kind for way in self.recommended if way.data is data and way.kind in ways]
        return ways[Counter(kinds).most_common(1)[0][0]]

    @property
    def note(self) -> str:
        """The recommendation of each trial."""
        said = ", ".join(way.name for way in self.recommended)
        return f"{self.link.name}: recommended in each round: {said}"

    def off(self, way: PlannedWay) -> float:
        """How far the medians are apart, as a part of the measured one."""
        ratio = statistics.median(self.predicted[way]) / statistics.median(self.measured[way])
        return abs(ratio - 1)

    def behind(self, data: bool) -> float:
        """How far what is recommended is behind the best measured way of the same script."""
        measured = {way: rates for way, rates in self.measured.items() if way.data is data}
        medians = {way: statistics.median(rates) for way, rates in measured.items()}
        return 1 - medians[self.choice(data)] / max(medians.values())

    def grid(self, judged: bool) -> Grid:
        grid = Grid(f"{self.link.name}, two hosts")
        for way, predicted in self.predicted.items():
            measured = self.measured[way]
            cells = {
                "predicted": Measure("predicted", RATE, predicted),
                "measured": Measure("measured", RATE, measured),
                "by rounds": Measure("by rounds", TIMES, ratios(predicted, measured)),
                "medians apart": Measure(
                    _off_words(self.link, way), PERCENT, [self.off(way)], _OFF
                ),
            }
            if way is self.choice(way.data):
                cells["recommended, behind the best"] = Measure(
                    *(_behind_words(self.link, way.data), PERCENT, [self.behind(way.data)]),
                    _BEHIND,
                )
            grid.rows.append(GridRow(way.name, cells))
        return grid


def asked(links: Sequence[LinkSpeed]) -> list[tuple[Asked, MeasureUnit]]:
    """The targets of every link, whichever rows it has."""
    words = (_behind_words(link, data) for link in links for data in (False, True))
    return [(Asked(said, _BEHIND, False), PERCENT) for said in words]


def _off_words(link: LinkSpeed, way: PlannedWay) -> str:
    return f"{link.name}, {way.name}: predicted and measured apart"


def _behind_words(link: LinkSpeed, data: bool) -> str:
    script = ", data=" if data else ""
    return f"{link.name}{script}: what is recommended behind the best"


def data_ways(rows: Sequence[PlanRow]) -> list[PlannedWay]:
    """As many ways as there are kinds, and what is recommended among them."""
    chosen = next(PlannedWay.of(row, data=True) for row in rows if row.recommended)
    kinds = [chosen.kind if kind[:2] == chosen.kind[:2] else kind for kind in _DATA_KINDS]
    found = (PlannedWay.of(row, data=True) for row in rows)
    return [way for way in found if way.kind in kinds]


class PlanAccuracy:
    """Two hosts; ranks that train are alive on them all the time, those of trials come and go."""

    def __init__(
        self, hosts: Hosts, rounds: int, turn_s: float, say: Callable[[str], None]
    ) -> None:
        self._hosts, self._rounds, self._turn_s, self._say = hosts, rounds, turn_s, say

    def run(self, links: Sequence[LinkSpeed]) -> Iterator[LinkAccuracy]:
        """On one link after the other."""
        with (
            HostsFleet(self._hosts, _SETTINGS, "train_rank") as fleet,
            HostsFleet(self._hosts, _SETTINGS, "slow_links.uneven_rank") as self._data_fleet,
        ):
            self._trainers = Trainers(self._hosts, fleet)
            self._opened: set[PlannedWay] = set()
            for link in links:
                yield self._on(link)

    def _on(self, link: LinkSpeed) -> LinkAccuracy:
        found = LinkAccuracy(link)
        for number in range(self._rounds):
            self._hosts.shape(link.rate)
            self._say(f"{link.name}, round {number + 1} of {self._rounds}: a trial")
            own, divided = self._trial()
            rows, data_rows = plan_rows(own), plan_rows(divided)
            if not found.predicted:
                self._hosts.shape(UNSHAPED.rate)
                for way in (*map(PlannedWay.of, rows), *data_ways(data_rows)):
                    found.predicted[way], found.measured[way] = [], []
                    self._open(way)
                self._hosts.shape(link.rate)
            found.recommended += [
                PlannedWay.of(row, data)
                for data, each in ((False, rows), (True, data_rows))
                for row in each
                if row.recommended
            ]
            for way in found.predicted:
                self._say(f"{link.name}, round {number + 1} of {self._rounds}: {way.name}")
                found.predicted[way].append(way.predicted(divided if way.data else own))
                found.measured[way].append(self._measured(way))
        return found

    def _open(self, way: PlannedWay) -> None:
        if way in self._opened:
            return
        self._opened.add(way)
        if not way.data:
            self._trainers.open(way.contender)
            return
        apart = len(way.nodes) == 1
        between = {} if apart else {"gradients": way.gradients, "every": way.every}
        batch = len(_NAMES) * BATCH
        message = {"do": "open", "contender": way.name, "way": "data", "apart": apart}
        message |= {"between": between, "samples": batch * max(way.every, _EPOCH), **_LEARNER}
        self._data_fleet.ask(message, seconds=_PATIENCE_S)

    def _measured(self, way: PlannedWay) -> float:
        return self._measured_by_data(way) if way.data else self._measured_by_steps(way)

    def _measured_by_data(self, way: PlannedWay) -> float:
        """samples/s of whole epochs, the first of which only says how many there are."""

        def turn(epochs: int) -> tuple[float, float]:
            message = {"do": "measure", "contender": way.name, "amount": epochs}
            answers = self._data_fleet.ask(message, seconds=_PATIENCE_S)
            seconds = max(answer["seconds"] for answer in answers)
            samples = sum(answer["samples"] for answer in answers)
            # One machine is the mean of two hosts that train apart.
            return seconds, samples / seconds / (len(_NAMES) if len(way.nodes) == 1 else 1)

        seconds, rate = turn(1)
        least = int(self._turn_s / seconds)
        return turn(least)[1] if least else rate

    def _measured_by_steps(self, way: PlannedWay) -> float:
        """samples/s of whole rounds of steps, the first of which only says how many there are."""
        turn = self._trainers.turn(way.contender, way.every)
        least = int(self._turn_s / (turn.step_s * way.every))
        if least:
            turn = self._trainers.turn(way.contender, least * way.every)
        return len(way.nodes) * BATCH / turn.step_s

    def _trial(self) -> tuple[TrialMeasures, TrialMeasures]:
        """Of scripts with a batch for each host, and with one of both."""
        with HostsFleet(self._hosts, _SETTINGS, "plan_accuracy.rank") as fleet:
            divided = self._script(fleet, True)
        with HostsFleet(self._hosts, _SETTINGS, "plan_accuracy.rank") as fleet:
            ranks = self._script(fleet, False)
            gradient_bytes = trial.facts(ranks).gradient_bytes
            request = {"do": "links", "bytes": gradient_bytes, "seconds": _LINKS_S}
            heard = [line for answer in fleet.ask(request) for line in answer["lines"]]
        pairs = tuple(
            PairProbe(_NAMES[one.a], _NAMES[one.b], one.fixed_s, one.byte_s, one.bits_per_s)
            for one in map(read_line, heard)
            if isinstance(one, PairLine)
        )
        return _measures(ranks, pairs), _measures(divided, pairs)

    def _script(self, fleet: HostsFleet, data: bool) -> dict[str, list[RankLine]]:
        """Lines of the ranks of each host about their steps."""
        samples = len(_NAMES) * BATCH * _EPOCH
        message = {"do": "trial", "data": data, "samples": samples, **_LEARNER}
        said = (map(read_line, answer["lines"]) for answer in fleet.ask(message))
        return {
            name: [line for line in lines if isinstance(line, RankLine)]
            for name, lines in zip(_NAMES, said, strict=True)
        }


def _measures(ranks: dict[str, list[RankLine]], pairs: tuple[PairProbe, ...]) -> TrialMeasures:
    machines = tuple(trial.machine(name, lines) for name, lines in ranks.items())
    return TrialMeasures(machines, pairs, trial.facts(ranks))
