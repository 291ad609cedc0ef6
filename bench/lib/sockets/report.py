"""Turns what sockets.py measured into tables, and into a verdict on each old claim."""

from __future__ import annotations

import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from lib.report import Sheet, ratio_text, seconds_text
from lib.sockets.cases import AGAIN, CLAIMS, LEAST_GAIN, Claim, SocketChapter, SocketLink


@dataclass(frozen=True)
class SocketRound:
    """One round of one way. Seconds: of the transfer, of a trip, or of a small frame's delay."""

    seconds: float
    cpu: float  # of both ends; 0 where it was not taken
    rate: float  # bytes a second; 0 where there is none
    granted: Sequence[int]


Rounds = list[SocketRound]
# chapter's title, link's name → label → rounds
Taken = dict[tuple[str, str], dict[str, Rounds]]


@dataclass(frozen=True)
class Ratio:
    """Of two ways, round by round: both saw the same machine. Above 1: the first is better."""

    rounds: Sequence[float]

    @property
    def median(self) -> float:
        return statistics.median(self.rounds)

    @property
    def text(self) -> str:
        spread = [ratio_text(bound)[:-1] for bound in (min(self.rounds), max(self.rounds))]
        return f"{ratio_text(self.median)} ({'–'.join(spread)})"

    def beyond(self, margin: float) -> bool:
        """Better by more than the margin, and in every round; of seven or more, one may differ."""
        against = sum(one <= 1 for one in self.rounds)
        return self.median > 1 + margin and against <= (len(self.rounds) >= 7)

    def turned(self) -> Ratio:
        return Ratio([1 / one for one in self.rounds])


def speed(ways: Mapping[str, Rounds], better: str, worse: str) -> Ratio:
    pairs = zip(ways[better], ways[worse], strict=True)
    return Ratio([slow.seconds / fast.seconds for fast, slow in pairs])


def noise(ways: Mapping[str, Rounds]) -> float:
    """How far the chapter's first way is from itself, one outlier aside; at least LEAST_GAIN."""
    first = next(iter(ways))
    apart = sorted(abs(one - 1) for one in speed(ways, AGAIN, first).rounds)
    return max(LEAST_GAIN, apart[-2] if len(apart) > 2 else apart[-1])


def _cell(ways: Mapping[str, Rounds], label: str) -> str:
    first, rounds = next(iter(ways)), ways[label]
    median = statistics.median(one.seconds for one in rounds)
    rate = statistics.median(one.rate for one in rounds)
    lines = [f"{rate / 1e6:,.0f} MB/s" if rate else seconds_text(median)]
    if rate and not rounds[0].cpu:
        lines[0] = f"{seconds_text(median)}, {lines[0]}"
    if label != first:
        lines.append(speed(ways, label, first).text)
    if rounds[0].cpu:
        cpu = statistics.median(one.cpu / (one.rate * one.seconds) for one in rounds)
        lines.append(f"CPU {cpu * 1e9:.2f} s/GB")
    return "\n".join(lines)


def sheet(chapter: SocketChapter, links: Sequence[SocketLink], taken: Taken) -> Sheet:
    made = Sheet(chapter.title, ["", *(link.name for link in links)])
    for way in chapter.turns:
        cells = [_cell(taken[chapter.title, link.name], way.label) for link in links]
        made.rows.append([way.label, *cells])
    made.rows.append(
        [
            "noise, taken as no difference",
            *(f"± {100 * noise(taken[chapter.title, link.name]):.0f} %" for link in links),
        ]
    )
    return made


@dataclass(frozen=True)
class Verdict:
    """A claim's verdict on each link."""

    claim: Claim
    ratios: Mapping[str, Ratio]
    better: Sequence[str]  # links on which the gain is beyond the noise
    worse: Sequence[str]

    @property
    def text(self) -> str:
        if self.better and not self.worse:
            everywhere = len(self.better) == len(self.ratios)
            return "holds" if everywhere else f"holds ({', '.join(self.better)} only)"
        if self.better:
            return f"depends: better {', '.join(self.better)}, worse {', '.join(self.worse)}"
        return "no longer holds" + (f": worse {', '.join(self.worse)}" if self.worse else "")

    def data(self) -> dict[str, Any]:
        return {
            "claim": self.claim.text,
            "verdict": self.text,
            "ratios": {
                link: {"median": one.median, "rounds": list(one.rounds)}
                for link, one in self.ratios.items()
            },
        }


def verdicts(links: Sequence[SocketLink], taken: Taken) -> list[Verdict]:
    """Of the claims whose ways were both measured."""
    made = []
    for claim in CLAIMS:
        by_link = {link.name: taken.get((claim.chapter, link.name), {}) for link in links}
        if not all({claim.better, claim.worse} <= ways.keys() for ways in by_link.values()):
            continue
        ratios = {name: speed(ways, claim.better, claim.worse) for name, ways in by_link.items()}
        margins = {name: noise(ways) for name, ways in by_link.items()}
        better = [name for name, one in ratios.items() if one.beyond(margins[name])]
        worse = [name for name, one in ratios.items() if one.turned().beyond(margins[name])]
        made.append(Verdict(claim, ratios, better, worse))
    return made


def verdict_sheet(links: Sequence[SocketLink], found: Sequence[Verdict]) -> Sheet:
    title = "The first WIIIIIDE's claims, today"
    made = Sheet(title, ["claim", *(link.name for link in links), "verdict"])
    for one in found:
        cells = [one.ratios[link.name].text for link in links]
        made.rows.append([one.claim.text, *cells, one.text])
    return made


def granted_notes(taken: Taken) -> list[str]:
    """The sizes got for the buffers that were asked for."""
    for (title, _), ways in taken.items():
        if title.startswith("Buffers"):
            kept = {label: [size // 1024 for size in one[0].granted] for label, one in ways.items()}
            shown = [f"{label} → {send} K, {receive} K" for label, (send, receive) in kept.items()]
            return [f"send and receive buffers, asked → granted: {'; '.join(shown)}"]
    return []


def data(taken: Taken, found: Sequence[Verdict]) -> dict[str, Any]:
    cells = [
        {
            "chapter": title,
            "link": link,
            "noise": noise(ways),
            "ways": {
                label: {
                    "seconds": [one.seconds for one in rounds],
                    "cpu_seconds": [one.cpu for one in rounds],
                    "bytes_per_second": [one.rate for one in rounds],
                    "granted": list(rounds[0].granted),
                }
                for label, rounds in ways.items()
            },
        }
        for (title, link), ways in taken.items()
    ]
    return {"verdicts": [one.data() for one in found], "cells": cells}
