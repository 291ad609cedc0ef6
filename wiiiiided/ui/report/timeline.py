"""Events and their times: attempts and how they ended, when metrics were taken, slow ranks.

attempts          ▐ failed ▌      ▐ done                    ▌
metrics            ███ ████        █████████████  ██████████
rank 3 on c             ██             ███████
0                     10m                    20m

Its axis lies below those of the other charts over time: all have the same margins.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from wiiiiided.ui.report import formats
from wiiiiided.ui.report.charts import Strip, StripChart
from wiiiiided.ui.report.run_history import PlacedAttempt, RunHistory
from wiiiiided.ui.report.summary import ending
from wiiiiided.ui.report.ticks import times

STRAGGLERS = 8  # rows; the ranks that were the slowest for longest
GOOD, BAD, OPEN = "good", "bad", "open"  # classes of attempts


@dataclass(frozen=True)
class StragglerSpell:
    """A rank that was the slowest, and when."""

    rank: int
    node: str
    seconds: float
    when: tuple[tuple[float, float], ...]  # on the axis


def timeline(past: RunHistory) -> StripChart:
    began = [(a.begin, a.end, told_of(a), kind_of(a)) for a in past.attempts]
    seen = [
        (line[0].begin, line[-1].end, "metrics were taken", "looked")
        for attempt in past.attempts
        for line in attempt.seen
        if line
    ]
    rows = [Strip("attempts", "", began)]
    if seen:  # a job that never had any would look as if the daemon had been away
        rows.append(Strip("metrics", _looked(past), seen))
    return StripChart(times(past.length), [*rows, *map(_strip, straggler_spells(past))])


def _looked(past: RunHistory) -> str:
    whole = sum(attempt.length for attempt in past.attempts)
    seen = sum(s.end - s.begin for s in past.stretches())
    return formats.share(min(1.0, seen / whole)) + " of the time" if whole > 0 else ""


def _strip(slow: StragglerSpell) -> Strip:
    name = f"rank {slow.rank} on {slow.node}"
    parts = [(begin, end, f"{name} was the slowest", "held") for begin, end in slow.when]
    return Strip(name, formats.duration(slow.seconds), parts)


def told_of(attempt: PlacedAttempt) -> str:
    """An attempt in a sentence."""
    began = formats.moment(attempt.run.started_at)
    pause = f", {formats.duration(attempt.pause)} after the one before" if attempt.pause > 0 else ""
    told = f"attempt {attempt.run.attempt} began {began}{pause}"
    return (
        f"{told}, lasted {formats.duration(attempt.length)}: {ending(attempt.run, attempt.running)}"
    )


def kind_of(attempt: PlacedAttempt) -> str:
    if attempt.run.ended_at is None:
        return OPEN
    return GOOD if attempt.run.state == "done" else BAD


def straggler_spells(past: RunHistory) -> list[StragglerSpell]:
    """The slowest ranks, for longest first; spells of a rank that touch are one."""
    when: dict[tuple[int, str], list[tuple[float, float]]] = {}
    for rank, begin, end in _stragglers(past):
        strips = when.setdefault(rank, [])
        if strips and begin - strips[-1][1] < 1e-6:
            strips[-1] = (strips[-1][0], end)
        else:
            strips.append((begin, end))
    found = [
        StragglerSpell(rank, node, sum(end - begin for begin, end in strips), tuple(strips))
        for (rank, node), strips in when.items()
    ]
    return sorted(found, key=lambda h: (-h.seconds, h.rank))[:STRAGGLERS]


def _stragglers(past: RunHistory) -> Iterator[tuple[tuple[int, str], float, float]]:
    for attempt in past.attempts:
        nodes = {rank.rank: rank.node for rank in attempt.run.ranks}
        for stretch in (s for line in attempt.seen for s in line):
            if (rank := stretch.point.straggler) is not None:
                yield (rank, nodes.get(rank, "?")), stretch.begin, stretch.end
