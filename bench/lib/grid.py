"""Tables of measures: a row for what is measured, a column for each comparison.

Every cell keeps its rounds, so that a ratio is that of each round (both saw the same machine) and
its spread is known.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from lib.measure import SECONDS, Chapter, Measure, MeasureUnit
from lib.report import Sheet, Value, value_text
from lib.units import MB

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
                "cells": {plain(name): cell.data(judged) for name, cell in row.cells.items()},
            }
            for row in self.rows
        ]
        return {"title": self.title, "rows": rows}


def targets(
    grids: Sequence[Grid], judged: bool, wanted: Iterable[tuple[Asked, MeasureUnit]] = ()
) -> Sheet:
    """Everything that is asked, in one table, whether it could be measured or not. `wanted`: also
    where the grids do not know of it."""
    sheet = Chapter("Targets", [one for grid in grids for one in grid.targets()]).sheet(judged)
    known = [one for grid in grids for row in grid.rows for one in row.missing]
    for asked, unit in (*known, *missing(grids, wanted)):
        aim = f"{'≥' if asked.at_least else '≤'} {unit.text(asked.bound)}"
        sheet.rows.append([asked.what, "–", "–", "–", f"{aim}: not measured"])
    return sheet


def missing(
    grids: Sequence[Grid], wanted: Iterable[tuple[Asked, MeasureUnit]]
) -> list[tuple[Asked, MeasureUnit]]:
    """The targets that were not measured."""
    there = {measure.what for grid in grids for measure in grid.targets()}
    return [one for one in wanted if one[0].what not in there]


def plain(name: str) -> str:
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
