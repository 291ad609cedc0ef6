"""Ranks that train apart: at one pace, and at different steps.

After a restart in which each machine loads a checkpoint of its own, ranks go on in lock step, each
with another number. Nothing fails and nothing waits; the steps they report are the only sign:

    rank 0   1450  1460  1470  1480 …      the same pace, so they are in step with each other
    rank 1      0    10    20    30 …      1,450 behind, now as twenty seconds ago

No signs are: a step or two (samples of two machines are seconds apart), a rank that reports
seldom (its step is carried on to now, by its pace and the age of its word), a difference that
passes, and ranks that are not in step at all: their pace differs, or their run says so, since its
hosts make as many steps between two exchanges as each of them can.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Mapping
from typing import Final, NamedTuple

from wiiiiided.domain.metrics import RankSample

WINDOW_S: Final = 20.0  # at both ends of it they must differ alike
LONGEST_S: Final = 120.0  # the longest window: ranks that report once a minute still count
GRAIN_S: Final = 1.0  # between two samples that are kept
ALIKE: Final = 0.2  # the part by which two paces may differ and count as one
SKEW_S: Final = 3.0  # of two machines' samples, each sent and taken once a second
LEAST: Final = 3  # steps
SHOWN: Final = 4  # ranks that are listed
ADVICE: Final = "did each load its own checkpoint? output.checkpoints gives all machines the same"

Ranks = Mapping[int, tuple[str, RankSample]]  # rank → its node, its sample


class StepMark(NamedTuple):
    """The part of a sample that is kept."""

    pid: int
    step: int
    said_at: float
    age_s: float  # of its word, when it was read


class StepsFinder:
    """Looks at every sample of an attempt. `why` names the ranks that train apart; empty: none do;
    None: that cannot be told yet."""

    def __init__(self) -> None:
        self.why: str | None = None
        self._named: frozenset[int] | None = None
        self._past: deque[tuple[float, dict[int, StepMark]]] = deque()

    def take(self, at: float, ranks: Ranks) -> str | None:
        marks = {rank: mark for rank, (_, s) in ranks.items() if (mark := _mark(s)) is not None}
        if self._past and _pids(self._past[-1][1]) != _pids(marks):
            self._past.clear()  # a rank has come or gone, or said its first step
        if not self._past or at - self._past[-1][0] >= GRAIN_S:
            self._past.append((at, marks))
        while at - self._past[0][0] > LONGEST_S:
            self._past.popleft()
        apart = self._apart(at, marks)
        if apart is not None and frozenset(apart) != self._named:
            self._named = frozenset(apart)
            self.why = sentence(apart, ranks) if apart else ""
        return self.why

    def _apart(self, at: float, marks: dict[int, StepMark]) -> dict[int, int] | None:
        """How many steps ranks are ahead of (+) or behind (-) the first; None: not known."""
        for then, old in reversed(self._past):
            moved = {r: (old[r], m) for r, m in marks.items() if m.step > old[r].step}
            if at - then >= WINDOW_S and len(moved) == len(marks) > 1:
                return _compared(moved)
        return None


def _compared(moved: dict[int, tuple[StepMark, StepMark]]) -> dict[int, int]:
    paces = {rank: _pace(*both) for rank, both in moved.items()}
    first = min(moved)
    pace, found = paces[first], {}
    for rank, (old, new) in moved.items():
        if abs(paces[rank] - pace) > ALIKE * pace:
            continue
        before = _now(old, pace) - _now(moved[first][0], pace)
        now = _now(new, pace) - _now(moved[first][1], pace)
        # A word that is old is carried far, and the further the less it is to be trusted.
        age_s = max(mark.age_s for mark in (old, new, *moved[first]))
        bound = LEAST + pace * (SKEW_S + age_s / 2)
        if min(abs(before), abs(now)) > bound and (before > 0) == (now > 0):
            found[rank] = round(now)
    return found


def sentence(apart: Mapping[int, int], ranks: Ranks) -> str:
    """Which rank is at which step: the same in the log, in `why`, in `top` and in the report."""
    first = min(rank for rank, (_, s) in ranks.items() if s.step is not None)
    listed = [
        f"rank {rank} on {ranks[rank][0]} is {abs(steps):,} steps {_side(steps)}"
        for rank, steps in sorted(apart.items())[:SHOWN]
    ]
    more = f" and {len(apart) - SHOWN} more" if len(apart) > SHOWN else ""
    against = f"compared with rank {first} on {ranks[first][0]}"
    return f"{', '.join(listed)}{more}, {against}: {ADVICE}"


def _side(steps: int) -> str:
    return "ahead" if steps > 0 else "behind"


def _mark(sample: RankSample) -> StepMark | None:
    if sample.step is None or sample.said_at is None or sample.training.own_steps:
        return None
    return StepMark(sample.pid, sample.step, sample.said_at, max(0.0, sample.at - sample.said_at))


def _pace(old: StepMark, new: StepMark) -> float:
    return (new.step - old.step) / max(new.said_at - old.said_at, 1e-3)


def _now(mark: StepMark, pace: float) -> float:
    return mark.step + pace * mark.age_s


def _pids(marks: Mapping[int, StepMark]) -> dict[int, int]:
    return {rank: mark.pid for rank, mark in marks.items()}
