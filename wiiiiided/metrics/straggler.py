"""Which rank the others wait for: from the time each rank waits, not from how much it does.

In step with each other, all ranks do the same number of steps a second, the slow one too: its
throughput says nothing. But the others wait for it, and it waits for none:

    rank 0   compute ██████░░░░░░░░░ wait       waits 60 % of the time
    rank 1   compute ██████████████░            waits  5 %   ◄ the straggler
    rank 2   compute ███████░░░░░░░░            waits 53 %
                     └──── a step ──┘

By how much: with w its share of waiting and o the mean of the others', a step of length T would
take T·(1 - (o - w)) if this rank were as quick as the others are in the mean. Its cost is
T over that, less one: (o - w) / (1 - (o - w)). Here 0.515 / 0.485: +106 % step time.

Some rank is always the latest, and a name that changes every few seconds sends people to machines
that have nothing. So time is cut into windows, and it must be the same rank again and again:

    late in windows    │ 1 │ 1 │ 1 │ 1 │ 1 │ 1 │ 1 │ 1 │     rank 1 is the straggler
                       │ 1 │ 2 │ 2 │ 0 │ 1 │ 2 │ 0 │ 1 │     ranks take turns

A wait is counted when it ends, so a window has at least 3 s and four operations of every rank, and
four steps where they are said. A rank is late in one when it is in the lowest quarter between the
least and the mean. It is named when it was late in all of the last eight windows (six at least),
and the others wait 5 % of all that time more than it does; it stays until it is late in less than
six of eight, or that is less than 3 %. Two ranks whose steps take from 1 to 2 times as long by
chance are named for 0.3 % of the time so; with seven of eight windows, and from five on, it was 6
%.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Mapping, Sequence
from typing import Final, NamedTuple

from wiiiiided.domain.metrics import RankRecord, RankSample, RunRecord, Straggler

WINDOW_S: Final = 3.0
LONGEST_S: Final = 300.0  # the longest window: steps of a minute still count
OPERATIONS: Final = 4  # that every rank must have finished within a window, and steps
WINDOWS, LEAST = 8, 6  # that are looked at; that there must be, and in which a straggler is late
NAMED, STAYS = 0.05, 0.03  # the lead, of the time, to be named and to stay named
NOTABLE: Final = (0.05, 0.03)  # of the time that ranks wait: to be told, and to stay so
LOWEST: Final = 0.25  # of the way from the least waiting to the mean
MOST: Final = 0.95  # of a lead: beyond, a small error in it is a hundred per cent of step time
RUN_SHARE: Final = 0.1  # of a run: a rank is named that was the straggler for so much of it
RUN_CLEAR: Final = 2.0  # times as long as any other rank

Ranks = Mapping[int, tuple[str, RankSample]]  # rank → its node, its sample
Waits = dict[int, float]  # rank → its share of waiting


class WaitMark(NamedTuple):
    """The part of a sample that is kept: a whole one may have 256 peers in it."""

    at: float
    pid: int
    operations: int
    waiting_s: float
    step: int | None


class Window(NamedTuple):
    span: float
    waits: Waits
    late: frozenset[int]


class StragglerVerdict(NamedTuple):
    straggler: Straggler | None
    why: str  # the straggler's sentence, or why there is none
    turns: bool = False  # ranks wait notably, and for no one rank: worth a line of its own


class StragglerFinder:
    """Looks at every sample of an attempt; knows which rank is the straggler now."""

    def __init__(self) -> None:
        self.verdict = StragglerVerdict(None, "nothing was seen yet")
        self._since: tuple[float, dict[int, WaitMark]] | None = None  # where the open window begins
        self._windows: deque[Window] = deque(maxlen=WINDOWS)

    def take(self, at: float, ranks: Ranks) -> StragglerVerdict:
        self.verdict = self._look(at, ranks)
        return self.verdict

    def _look(self, at: float, ranks: Ranks) -> StragglerVerdict:
        if len(ranks) < 2:
            self._begin(at, {})
            return StragglerVerdict(None, "a rank alone waits for no other")
        marks = {rank: _mark(sample) for rank, (_, sample) in ranks.items()}
        if self._since is None or _pids(self._since[1]) != _pids(marks):
            self._begin(at, marks)  # a rank has come, has gone, or is another process
            return StragglerVerdict(None, "too few operations were seen to tell")
        began, old = self._since
        if at - began > LONGEST_S:
            self._begin(at, marks)
            return StragglerVerdict(None, "too few operations were seen to tell")
        if at - began < WINDOW_S or not all(enough(old[rank], marks[rank]) for rank in marks):
            return self.verdict
        waits = {rank: _waiting(old[rank], mark) for rank, mark in marks.items()}
        self._windows.append(Window(at - began, waits, late(waits)))
        self._since = at, marks
        return judge(self._windows, {rank: node for rank, (node, _) in ranks.items()}, self.verdict)

    def _begin(self, at: float, marks: dict[int, WaitMark]) -> None:
        self._windows.clear()
        self._since = at, marks


def judge(
    windows: Sequence[Window], nodes: Mapping[int, str], before: StragglerVerdict
) -> StragglerVerdict:
    """The verdict of these windows. It depends on the one before: a name must not flicker."""
    many = len(windows)
    if many < LEAST:
        return StragglerVerdict(None, "it is not certain yet")
    waits = _mean(windows)
    counts = {rank: sum(rank in window.late for window in windows) for rank in waits}
    now = before.straggler
    # Of two that are equally late, the one that was named first.
    rank = max(waits, key=lambda r: (counts[r], now is not None and now.rank == r, -waits[r], -r))
    if counts[rank] == many and lead(waits, rank) >= NAMED:
        return _named(rank, nodes, waits)
    if now is not None and counts[now.rank] >= LEAST and lead(waits, now.rank) >= STAYS:
        return _named(now.rank, nodes, waits)
    found = [window.late for window in windows if window.late]
    if found and frozenset.intersection(*found):
        return StragglerVerdict(None, "one rank was late, not for long enough to be named")
    share = sum(waits.values()) / len(waits)
    if share < NOTABLE[before.turns]:
        return StragglerVerdict(None, "no rank waits notably for the others")
    return StragglerVerdict(None, turns_words(share), turns=True)


def enough(old: WaitMark, new: WaitMark) -> bool:
    """Whether a rank did so much in between that its waiting says something."""
    if new.operations - old.operations < OPERATIONS:
        return False
    if old.step is None or new.step is None or new.step < old.step:  # a new epoch
        return True
    return new.step - old.step >= OPERATIONS


def late(waits: Waits) -> frozenset[int]:
    """The ranks that are waited for; none where all wait about as long."""
    least = min(waits, key=lambda rank: (waits[rank], rank))
    if lead(waits, least) < STAYS:
        return frozenset()
    mean = sum(waits.values()) / len(waits)
    most = waits[least] + LOWEST * (mean - waits[least])
    return frozenset(rank for rank, share in waits.items() if share <= most)


def lead(waits: Mapping[int, float], rank: int) -> float:
    """How much more of the time the others wait than this rank, in the mean."""
    return (sum(waits.values()) - waits[rank]) / (len(waits) - 1) - waits[rank]


def behind(more: float) -> float:
    """The part of a step by which a rank holds the others up, from its lead: see above."""
    more = min(more, MOST)
    return more / (1.0 - more)


def turns_words(share: float, were: bool = False) -> str:
    took, wait = ("took", "waited") if were else ("take", "wait")
    text = f"ranks {took} turns: they {wait} {share:.0%} of the time in the mean, for no one rank"
    return text.replace("%", " %")


# ---- over a whole run


def of_run(run: RunRecord) -> int | None:
    """The rank that held the others up over a run: for a good part of what was seen of it, and
    clearly longer than any other."""
    spent = sorted(((rank.straggled_s, -rank.rank) for rank in _measured(run)), reverse=True)
    if not spent or spent[0][0] < RUN_SHARE * run.observed_s or spent[0][0] <= 0:
        return None
    if len(spent) > 1 and spent[0][0] < RUN_CLEAR * spent[1][0]:
        return None
    return -spent[0][1]


def turns_of_run(run: RunRecord, length_s: float) -> str:
    """The sentence of a run in which ranks waited for each other and for no one in particular;
    empty where one waited less than the others, and was not it for long enough to be named."""
    waits = {
        r.rank: min(1.0, r.totals.waiting_s / length_s) for r in _measured(run) if length_s > 0
    }
    if of_run(run) is not None or len(waits) < 2 or late(waits):
        return ""
    share = sum(waits.values()) / len(waits)
    return turns_words(share, were=True) if share > NOTABLE[0] else ""


def _measured(run: RunRecord) -> list[RankRecord]:
    return [rank for rank in run.ranks if rank.totals.measured]


# ---- the parts


def _named(rank: int, nodes: Mapping[int, str], waits: Waits) -> StragglerVerdict:
    more = lead(waits, rank)
    costs_more = behind(more)
    costs = f"+{costs_more:.0%}" if more < MOST else f"over {1 + costs_more:.0f} times the"
    why = (
        f"rank {rank} on {nodes[rank]} costs {costs} step time: the others wait "
        f"{waits[rank] + more:.0%} of the time, it waits {waits[rank]:.0%}"
    )
    found = Straggler(rank, nodes[rank], costs_more, why.replace("%", " %"))
    return StragglerVerdict(found, found.why)


def _mean(windows: Iterable[Window]) -> Waits:
    """The mean of each rank's waiting over all windows, by their length."""
    found = list(windows)
    whole = sum(window.span for window in found)
    return {
        rank: sum(window.waits[rank] * window.span for window in found) / whole
        for rank in found[0].waits
    }


def _mark(sample: RankSample) -> WaitMark:
    return WaitMark(sample.at, sample.pid, sample.operations, sample.waiting_s, sample.step)


def _pids(marks: Mapping[int, WaitMark]) -> dict[int, int]:
    return {rank: mark.pid for rank, mark in marks.items()}


def _waiting(old: WaitMark, new: WaitMark) -> float:
    span = new.at - old.at
    return min(1.0, (new.waiting_s - old.waiting_s) / span) if span > 0 else 0.0
