"""A measured thing with all its rounds, next to what is asked of it.

The median is what counts. The best round says what the program can do where the machine is shared
with others; the worst says how much of that is noise. Where the noise is larger than what is asked,
the interval counts that holds the true median: the whole of it must keep to what is asked.
"""

from __future__ import annotations

import statistics
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, TypeVar

from lib.report import BenchResult, Sheet, ratio_text, seconds_text

Named = TypeVar("Named")
COLUMNS = ("", "median", "best", "worst", "asked")
_VERDICTS = {True: "met", False: "missed", None: "not decided"}


def _seconds_text(seconds: float) -> str:
    # A difference of two times may come out below nothing.
    return seconds_text(seconds) if seconds > 0 else f"−{seconds_text(-seconds)}"


def share_text(share: float) -> str:
    return f"{100 * share:.3f} %"


def bytes_text(amount: float) -> str:
    # Thousands, not 1024: the stricter reading of what is asked.
    return f"{amount / 1e6:.1f} MB"


def rate_text(rate: float) -> str:
    return f"{rate:,.0f} /s"


def in_turns(contenders: Iterable[Named], rounds: int) -> Iterator[tuple[int, Named]]:
    """Round after round, from 1, each beginning with another contender: none always follows the
    same one. One that is taken out of a collection takes no part in the next round."""
    for number in range(rounds):
        order = list(contenders)
        first = number % max(len(order), 1)
        for contender in order[first:] + order[:first]:
            yield number + 1, contender


def ratios(above: Sequence[float], below: Sequence[float]) -> list[float]:
    """Round by round: both saw the same machine."""
    return [upper / lower for upper, lower in zip(above, below, strict=True)]


@dataclass(frozen=True)
class MeasureUnit:
    """The kind of numbers: their name in the JSON, and how they read."""

    name: str
    text: Callable[[float], str]


SECONDS = MeasureUnit("seconds", _seconds_text)
SHARE = MeasureUnit("share of a core", share_text)
BYTES = MeasureUnit("bytes", bytes_text)
RATIO = MeasureUnit("ratio", ratio_text)
RATE = MeasureUnit("per second", rate_text)


def interval(values: Sequence[float]) -> tuple[float, float]:
    """Where the median of what these were drawn from lies, with at least 95 %."""
    n, ordered = len(values), sorted(values)
    left = 1.0  # how sure the interval from the k-th smallest to the k-th largest is
    chances = [1.0]
    for k in range(1, n + 1):
        chances.append(chances[-1] * (n - k + 1) / k)
    k = 0
    while k + 1 <= n // 2:
        left -= 2 * chances[k] / 2**n
        if left < 0.95:
            break
        k += 1
    k = max(0, k - 1)
    return ordered[k], ordered[n - 1 - k]


@dataclass(frozen=True)
class Measure:
    """`asked` is the most that is allowed, or with `at_least` the least; None: only reported.

    `by_interval`: asked of the interval, not of the median.
    """

    what: str
    unit: MeasureUnit
    rounds: Sequence[float]
    asked: float | None = None
    at_least: bool = False
    by_interval: bool = False

    @property
    def median(self) -> float:
        return statistics.median(self.rounds)

    @property
    def best(self) -> float:
        return max(self.rounds) if self.at_least else min(self.rounds)

    @property
    def worst(self) -> float:
        return min(self.rounds) if self.at_least else max(self.rounds)

    @property
    def interval(self) -> tuple[float, float]:
        return interval(self.rounds)

    @property
    def met(self) -> bool | None:
        """None: nothing is asked, or it lies within the interval and is not decided."""
        if self.asked is None:
            return None
        ends = self.interval if self.by_interval else (self.median,)
        kept = [end >= self.asked if self.at_least else end <= self.asked for end in ends]
        return kept[0] if len(set(kept)) == 1 else None

    def row(self, judged: bool) -> Sequence[str]:
        text = self.unit.text
        return (self.what, text(self.median), text(self.best), text(self.worst), self.ask(judged))

    def ask(self, judged: bool) -> str:
        """The target, and if `judged` whether it is met."""
        if self.asked is None:
            return "only reported"
        aim = f"{'≥' if self.at_least else '≤'} {self.unit.text(self.asked)}"
        return f"{aim}: {_VERDICTS[self.met]}" if judged else aim

    def data(self, judged: bool) -> dict[str, Any]:
        return {
            "what": self.what,
            "unit": self.unit.name,
            "median": self.median,
            "best": self.best,
            "worst": self.worst,
            "asked": self.asked,
            "met": self.met if judged else None,
            "rounds": list(self.rounds),
        }


@dataclass(frozen=True)
class Chapter:
    """Measures that belong together."""

    title: str
    measures: Sequence[Measure]

    def sheet(self, judged: bool) -> Sheet:
        return Sheet(self.title, COLUMNS, [measure.row(judged) for measure in self.measures])


def result(
    name: str, about: dict[str, str], method: str, chapters: Sequence[Chapter], judged: bool
) -> BenchResult:
    """That of a benchmark which is written in chapters."""
    sheets = [chapter.sheet(judged) for chapter in chapters]
    data = {chapter.title: [one.data(judged) for one in chapter.measures] for chapter in chapters}
    return BenchResult(name, about, method, sheets, [], {"chapters": data})
