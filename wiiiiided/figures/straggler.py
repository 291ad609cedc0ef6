"""Who the others wait for: from the time each rank waits, not from how much it does.

In step with each other, all ranks do the same number of steps a second, the slow one too: its
throughput says nothing. But the others wait for it, and it waits for nobody:

    rank 0   compute ██████░░░░░░░░░ wait       waits 60 % of the time
    rank 1   compute ██████████████░            waits  5 %   ◄ the straggler
    rank 2   compute ███████░░░░░░░░            waits 53 %
                     └──── a step ──┘

By how much: with w its share of waiting and o the mean of the others', a step of length T would
take T·(1 - (o - w)) if this rank were as quick as the others are in the mean. What it costs is
T over that, less one: (o - w) / (1 - (o - w)). Here 0.515 / 0.485: +106 % step time.

A wait is counted when it ends, so the shares are taken over a window of at least 5 s in which
every rank finished two operations. It takes 5 % of the time to be named and 3 % to stay it, and
two seconds of either: the name must not flicker. Of two that are equally late the first stays.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Mapping
from typing import Final, NamedTuple

from wiiiiided.domain.figures import RankSample, Straggler

WINDOW_S: Final = 5.0
LONGEST_S: Final = 120.0  # a window never reaches further back: steps of a minute still count
GRAIN_S: Final = 0.9  # between two samples that are kept
OPERATIONS: Final = 2  # that every rank must have finished within the window
NAMED, STAYS = 0.05, 0.03  # of the time, that the others wait more than it
OVERTAKES: Final = 0.02  # that another must wait less, to be named instead
SURE_S: Final = 2.0
MOST: Final = 0.95  # of a lead: beyond, a hair of error in it is a hundred per cent of step time

Ranks = Mapping[int, tuple[str, RankSample]]  # rank → its node, its sample


class Mark(NamedTuple):
    """What is kept of a sample for two minutes: a whole one may have 256 peers in it."""

    at: float
    pid: int
    operations: int
    waiting_s: float


class Verdict(NamedTuple):
    straggler: Straggler | None
    why: str  # the straggler's sentence, or why there is none


class Finder:
    """Looks at every sample of an attempt; knows who is the straggler now."""

    def __init__(self) -> None:
        self.verdict = Verdict(None, "nothing was seen yet")
        self._past: deque[tuple[float, dict[int, Mark]]] = deque()
        self._turning: int | None = None  # who it is about to be
        self._since: float | None = None

    def take(self, at: float, ranks: Ranks) -> Verdict:
        self.verdict = self._look(at, ranks)
        return self.verdict

    def _look(self, at: float, ranks: Ranks) -> Verdict:
        if len(ranks) < 2:
            self._past.clear()
            return Verdict(None, "a rank alone waits for nobody")
        marks = {rank: _mark(sample) for rank, (_, sample) in ranks.items()}
        self._remember(at, marks)
        waits = self._waits(at, marks)
        if waits is None:
            return self._without(at, "too few operations were seen to tell")
        now = self.verdict.straggler
        # Of two that are equally late, the one that was looked at first.
        before = now.rank if now is not None else self._turning
        rank, lead = slowest(waits, before)
        is_now = now is not None and now.rank == rank
        if lead < (STAYS if is_now else NAMED):
            return self._without(at, "all ranks wait about as long")
        found = _describe(rank, ranks[rank][0], waits, lead)
        if is_now or self._sure(at, rank):
            self._since = None
            return Verdict(found, found.why)
        return self.verdict if now is not None else Verdict(None, "it is not certain yet")

    def _without(self, at: float, why: str) -> Verdict:
        if self.verdict.straggler is None:
            self._since = None
        elif not self._sure(at, None):
            return self.verdict
        return Verdict(None, why)

    def _sure(self, at: float, rank: int | None) -> bool:
        """Whether it has looked like that for long enough."""
        if self._since is None or self._turning != rank:
            self._turning, self._since = rank, at
        return at - self._since >= SURE_S

    def _remember(self, at: float, marks: dict[int, Mark]) -> None:
        past = self._past
        if past and _pids(past[-1][1]) != _pids(marks):
            past.clear()  # a rank has come, or is another process
        if not past or at - past[-1][0] >= GRAIN_S:
            past.append((at, marks))
        while at - past[0][0] > LONGEST_S:
            past.popleft()

    def _waits(self, at: float, marks: dict[int, Mark]) -> dict[int, float] | None:
        """Each rank's share of waiting, over the shortest window that can tell."""
        for then, old in reversed(self._past):
            if at - then >= WINDOW_S and all(
                mark.operations - old[rank].operations >= OPERATIONS for rank, mark in marks.items()
            ):
                return {rank: _waiting(old[rank], mark) for rank, mark in marks.items()}
        return None


def slowest(waits: Mapping[int, float], now: int | None = None) -> tuple[int, float]:
    """The rank that waits least, and how much more of the time the others wait in the mean."""
    rank = min(waits, key=lambda number: (waits[number], number))
    if now in waits and now is not None and waits[now] - waits[rank] < OVERTAKES:
        rank = now
    others = (sum(waits.values()) - waits[rank]) / (len(waits) - 1)
    return rank, others - waits[rank]


def behind(lead: float) -> float:
    """By how much of a step it holds the others up; the module's text derives it."""
    lead = min(lead, MOST)
    return lead / (1.0 - lead)


def _describe(rank: int, node: str, waits: Mapping[int, float], lead: float) -> Straggler:
    late = behind(lead)
    costs = f"+{late:.0%}" if lead < MOST else f"over {1 + late:.0f} times the"
    why = (
        f"rank {rank} on {node} costs {costs} step time: the others wait "
        f"{waits[rank] + lead:.0%} of the time, it waits {waits[rank]:.0%}"
    )
    return Straggler(rank, node, late, why.replace("%", " %"))


def _mark(sample: RankSample) -> Mark:
    return Mark(sample.at, sample.pid, sample.operations, sample.waiting_s)


def _pids(marks: Mapping[int, Mark]) -> dict[int, int]:
    return {rank: mark.pid for rank, mark in marks.items()}


def _waiting(old: Mark, new: Mark) -> float:
    span = new.at - old.at
    return min(1.0, (new.waiting_s - old.waiting_s) / span) if span > 0 else 0.0
