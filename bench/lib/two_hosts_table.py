"""Tables of measures: a row for what is measured, a column for each side and each comparison.

Every cell keeps its rounds, so that a ratio is that of each round (both saw the same machine) and
its spread is known.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from lib.cells import ALL_REDUCE, MB, Value
from lib.measure import SECONDS, Chapter, Measure, MeasureUnit
from lib.report import Sheet, value_text
from lib.two_hosts_rig import EntryTurn, SideContest

PERCENT = MeasureUnit("share", lambda share: f"{100 * share:.1f} %")
COST = MeasureUnit("share", lambda share: f"{100 * share:+.1f} %".replace("-", "−"))
TIMES = MeasureUnit("ratio", lambda ratio: f"{ratio:.2f}×")
# A bound of 3 % needs one digit more.
TIMES_EXACT = MeasureUnit("ratio", lambda ratio: f"{ratio:.3f}×")
MBIT = MeasureUnit("bytes per second", lambda rate: f"{rate * 8 / 1e6:,.0f} Mbit/s")
MEBIBYTES = MeasureUnit("bytes", lambda amount: f"{amount / MB:.2f} MiB")
NUMBER = MeasureUnit("number", lambda number: f"{number:,.0f}")


@dataclass(frozen=True)
class Asked:
    """The project's target of a measure, and how the sentence about it begins."""

    what: str
    bound: float
    at_least: bool = True


@dataclass(frozen=True)
class GridRow:
    """Cells by column; what is asked of a cell that could not be measured is missing."""

    what: str
    cells: Mapping[str, Measure]
    missing: Sequence[tuple[Asked, MeasureUnit]] = ()


@dataclass
class Grid:
    """One table."""

    title: str
    rows: list[GridRow] = field(default_factory=list)

    @property
    def columns(self) -> list[str]:
        return list(dict.fromkeys(name for row in self.rows for name in row.cells))

    def sheet(self, judged: bool) -> Sheet:
        columns = self.columns or ["nothing was measured"]
        sheet = Sheet(self.title, ["", *columns])
        for row in self.rows:
            texts = [_text(row.cells.get(name), judged) for name in columns]
            sheet.rows.append([row.what, *texts])
        return sheet

    def targets(self) -> list[Measure]:
        cells = [measure for row in self.rows for measure in row.cells.values()]
        return [measure for measure in cells if measure.asked is not None]

    def data(self, judged: bool) -> dict[str, Any]:
        rows = [
            {
                "what": row.what,
                "cells": {_plain(name): cell.data(judged) for name, cell in row.cells.items()},
            }
            for row in self.rows
        ]
        return {"title": self.title, "rows": rows}


def targets(grids: Iterable[Grid], judged: bool) -> Sheet:
    """Everything that is asked, in one table, whether it could be measured or not."""
    grids = list(grids)
    sheet = Chapter("Targets", [one for grid in grids for one in grid.targets()]).sheet(judged)
    for asked, unit in (one for grid in grids for row in grid.rows for one in row.missing):
        aim = f"{'≥' if asked.at_least else '≤'} {unit.text(asked.bound)}"
        sheet.rows.append([asked.what, "–", "–", "–", f"{aim}: not measured"])
    return sheet


def missing(
    grids: Iterable[Grid], wanted: Iterable[tuple[Asked, MeasureUnit]]
) -> list[tuple[Asked, MeasureUnit]]:
    """The targets that were not measured."""
    there = {measure.what for grid in grids for measure in grid.targets()}
    return [one for one in wanted if one[0].what not in there]


def _plain(name: str) -> str:
    return name.replace("\n", " ")


def _number(text: str) -> str:
    """A spread is in the median's unit, which need not be said three times."""
    return re.split(r"[^\d.,+−]", text)[0]


def _text(measure: Measure | None, judged: bool) -> str:
    if measure is None:
        return "–"
    low, high = min(measure.rounds), max(measure.rounds)
    if measure.unit is SECONDS:
        text = value_text(Value(measure.median, low, high))
    elif low == high:
        text = measure.unit.text(low)
    else:
        say = measure.unit.text
        between = " to " if measure.unit is COST else "–"
        text = f"{say(measure.median)}\n({_number(say(low))}{between}{_number(say(high))})"
    return text if measure.asked is None else f"{text}\n{measure.row(judged)[-1]}"


class Cells:
    """Collects a row's cells; what could not be measured is left out."""

    def __init__(self, contest: SideContest) -> None:
        self._contest = contest
        self.made: dict[str, Measure] = {}
        self._missing: list[tuple[Asked, MeasureUnit]] = []

    def row(self, what: str) -> GridRow:
        return GridRow(what, self.made, self._missing)

    def add(
        self, column: str, unit: MeasureUnit, rounds: Sequence[float], asked: Asked | None = None
    ) -> None:
        if not rounds:
            self._missing += [(asked, unit)] if asked else []
        elif asked is None:
            self.made[column] = Measure(_plain(column), unit, rounds)
        else:
            self.made[column] = Measure(asked.what, unit, rounds, asked.bound, asked.at_least)

    def times(self, *names: str, named: str | None = None) -> None:
        for name in names:
            self.add(named or name, SECONDS, self.seconds(name))

    def ratio(
        self,
        column: str,
        upper: str,
        lower: str,
        asked: Asked | None = None,
        unit: MeasureUnit = TIMES,
    ) -> None:
        """One entry's time over another's, round by round."""
        pairs = zip(self.seconds(upper), self.seconds(lower), strict=False)
        self.add(column, unit, [above / below for above, below in pairs], asked)

    def rates(self) -> None:
        self.add("iperf3,\neach way", MBIT, [rate.each for rate in self._contest.rates])

    def allowed(self, column: str, name: str, least: float, asked: Asked | None = None) -> None:
        """Which share of what iperf3's rate allows was reached, with `least` bytes to move.

        Of iperf3's rounds the best counts: a busy machine slows it too, and would flatter us.
        """
        rates = [rate.each for rate in self._contest.rates]
        taken = self.seconds(name) if rates else []
        self.add(column, PERCENT, [least / max(rates) / one for one in taken], asked)

    def seconds(self, name: str) -> list[float]:
        return [turn.median for turn in self._contest.turns.get(name, [])]

    def over_turns(
        self,
        column: str,
        name: str,
        unit: MeasureUnit,
        of: Callable[[EntryTurn], float],
        asked: Asked | None = None,
    ) -> None:
        turns = self._contest.turns.get(name, [])
        self.add(column, unit, [of(turn) for turn in turns], asked)


def least_bytes(op: str, nbytes: int, hosts: int) -> float:
    """The bytes that every host must at least send, and receive, when all hosts share equally."""
    once = (hosts - 1) / hosts * nbytes
    return 2 * once if op == ALL_REDUCE else once


def busiest(turn: EntryTurn) -> float:
    """The bytes the busiest host's interface carried in its busier direction, for one call."""
    return max(host.most for host in turn.traffic)


def bytes_to(least: float) -> Callable[[EntryTurn], float]:
    return lambda turn: busiest(turn) / least


def _payload(turn: EntryTurn) -> float:
    return max(host.most_payload for host in turn.traffic)


def _packets(turn: EntryTurn) -> float:
    return max(max(host.out_packets, host.in_packets) for host in turn.traffic)


def wire_row(
    what: str, contest: SideContest, name: str, least: float, asked: Asked | None = None
) -> GridRow:
    """One entry's bytes on the wire next to the least there could be."""
    cells = Cells(contest)
    cells.add("least", MEBIBYTES, [least])
    cells.over_turns("interface counter", name, MEBIBYTES, busiest)
    to_least = "counter to least"
    cells.over_turns(to_least, name, TIMES_EXACT, bytes_to(least), asked)
    cells.over_turns("without headers", name, TIMES_EXACT, lambda turn: _payload(turn) / least)
    cells.over_turns("packets counted", name, NUMBER, _packets)
    if all(turn.own for turn in contest.turns.get(name, [])):

        def own(turn: EntryTurn) -> float:
            return max(max(host) for host in turn.own) / least

        cells.over_turns("by the backend's\nown counters", name, TIMES_EXACT, own)
    return cells.row(what)
