"""Turns the times of one_host.py into tables."""

import statistics
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

from lib.one_host import cells
from lib.one_host.cells import GLOO, LABELS, MPI, OURS, SHARED, OneHostCell
from lib.report import BenchResult, Sheet, Value, ratio_text, value_text
from lib.units import size_text


class CallTimes(NamedTuple):
    """Seconds per call in one round. The mean is kept too: it shows a tail the median hides."""

    median: float
    mean: float


Taken = dict[OneHostCell, dict[str, list[CallTimes]]]

METHOD = (
    "float32, sum. Contenders take turns in {rounds} rounds within one run; a call's time is that"
    " of its slowest rank; shown is the median over rounds of each round's median, in brackets"
    " the least and the most of them. Every result is compared with the exact expected values,"
    " outside of the timed part. 1 KB is 1024 bytes; the size of reduce_scatter is that of its"
    " input, the size of all_gather that of its output, memcpy copies as many bytes on one core."
    " Ranks have one thread each. A ratio above 1 means faster than the one compared with."
)


def summary(rounds: Sequence[CallTimes]) -> Value:
    medians = [one.median for one in rounds]
    return Value(statistics.median(medians), min(medians), max(medians))


def _ratio(values: Mapping[str, Value], contender: str, against: str) -> float | None:
    if contender not in values or against not in values:
        return None
    return values[against].median / values[contender].median


def _row(cell: OneHostCell, values: Mapping[str, Value]) -> list[str]:
    ratios = [
        "\n".join(ratio_text(_ratio(values, contender, against)) for contender in (OURS, SHARED))
        for against in (GLOO, MPI)
    ]
    reached = "\n".join(outcome.text for outcome in cells.outcomes(cell, values))
    times = [value_text(values.get(contender)) for contender in cells.CONTENDERS]
    return [size_text(cell.nbytes), *times, *ratios, reached]


def sheets(values: Mapping[OneHostCell, Mapping[str, Value]]) -> list[Sheet]:
    both = f"{LABELS[OURS]}\n{LABELS[SHARED]}"
    columns = ["size", *(LABELS[contender] for contender in cells.CONTENDERS)]
    columns += [f"{both}\nto gloo", f"{both}\nto Open MPI", "targets"]
    made: dict[tuple[str, int], Sheet] = {}
    for cell, by_contender in values.items():
        title = f"{cell.op}, {cell.ranks} ranks"
        sheet = made.setdefault((cell.op, cell.ranks), Sheet(title, columns))
        sheet.rows.append(_row(cell, by_contender))
    return list(made.values())


def _data(taken: Taken, values: Mapping[OneHostCell, Mapping[str, Value]]) -> dict[str, Any]:
    listed = []
    for cell, by_contender in values.items():
        listed.append(
            {
                "op": cell.op,
                "ranks": cell.ranks,
                "bytes": cell.nbytes,
                "seconds": {
                    LABELS[contender]: {
                        "median": value.median,
                        "min": value.low,
                        "max": value.high,
                        "round_medians": [one.median for one in taken[cell][contender]],
                        "round_means": [one.mean for one in taken[cell][contender]],
                    }
                    for contender, value in by_contender.items()
                },
                "targets": [
                    {
                        "contender": LABELS[outcome.target.contender],
                        "against": LABELS[outcome.target.against],
                        "at_least": outcome.target.factor,
                        "measured": outcome.ratio,
                        "met": outcome.met,
                        "steady": outcome.steady,
                    }
                    for outcome in cells.outcomes(cell, by_contender)
                ],
            }
        )
    return {"cells": listed}


def _unsteady_notes(values: Mapping[OneHostCell, Mapping[str, Value]]) -> list[str]:
    """Something else ran meanwhile, most likely: a contender that spins suffers most from that."""
    notes = []
    for contender in cells.CONTENDERS:
        where = [
            f"{cell.title} ({by_contender[contender].high / by_contender[contender].low:.0f}×)"
            for cell, by_contender in values.items()
            if contender in by_contender and not by_contender[contender].steady
        ]
        if where:
            notes.append(
                f"unsteady, the rounds of {LABELS[contender]} lie far apart: {', '.join(where)}"
            )
    return notes


def result(about: dict[str, str], rounds: int, taken: Taken, notes: list[str]) -> BenchResult:
    values = {
        cell: {contender: summary(times) for contender, times in by_contender.items()}
        for cell, by_contender in taken.items()
    }
    method = METHOD.format(rounds=rounds)
    notes = notes + _unsteady_notes(values)
    return BenchResult("one_host", about, method, sheets(values), notes, _data(taken, values))
