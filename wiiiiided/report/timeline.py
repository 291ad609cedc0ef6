"""What happened when: attempts and how they ended, when figures were taken, who was the slowest.

attempts          ▐ failed ▌      ▐ done                    ▌
figures            ███ ████        █████████████  ██████████
rank 3 on c             ██             ███████
0                     10m                    20m

Its axis lies below those of the other charts over time: all have the same margins.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from wiiiiided.report import axes, words
from wiiiiided.report.history import Attempt, History
from wiiiiided.report.markup import Markup, joined, plain, tag
from wiiiiided.report.summary import ending
from wiiiiided.report.ticks import Scale, times

TEXT, STRIP, GAP = 17.0, 14.0, 8.0  # pixels of a row
ROW = TEXT + STRIP + GAP
STRAGGLERS = 8  # rows; those who were the slowest for longest
GOOD, BAD, OPEN = "good", "bad", "open"  # classes of attempts


@dataclass(frozen=True)
class Held:
    """A rank that was the slowest, and when."""

    rank: int
    node: str
    seconds: float
    when: tuple[tuple[float, float], ...]  # on the axis


def timeline(past: History, sentence: str) -> Markup:
    axis = times(past.length)
    rows = [
        ("attempts", "", _attempts(past, axis)),
        # A job that never had any would look as if the daemon had been away.
        *([("figures", _looked(past), _seen(past, axis))] if any(past.stretches()) else []),
        *(
            (f"rank {h.rank} on {h.node}", words.span(h.seconds), _held(h, axis))
            for h in held(past)
        ),
    ]
    height = ROW * len(rows)
    drawn = (
        _row(name, told, shapes, ROW * number) for number, (name, told, shapes) in enumerate(rows)
    )
    return axes.drawing(
        height + axes.FOOT, sentence, *drawn, axes.columns(axis, height), class_="chart strips"
    )


def _row(name: str, told: str, shapes: Markup, top: float) -> Markup:
    return tag(
        "g",
        tag("text", plain(name, 32), tag("title", name), x=-axes.MARGIN, y=top + 12),
        tag("text", told, x="100%", y=top + 12, class_="end"),
        tag("rect", x=0, y=top + TEXT, width="100%", height=STRIP, class_="strip"),
        axes.stretched(STRIP, shapes, top=top + TEXT),
    )


def _looked(past: History) -> str:
    whole = sum(attempt.length for attempt in past.attempts)
    seen = sum(s.end - s.begin for s in past.stretches())
    return words.share(min(1.0, seen / whole)) + " of the time" if whole > 0 else ""


def _attempts(past: History, axis: Scale) -> Markup:
    return joined(
        _strip(attempt.begin, attempt.end, axis, told_of(attempt), kind_of(attempt))
        for attempt in past.attempts
    )


def told_of(attempt: Attempt) -> str:
    """An attempt in a sentence."""
    began = words.moment(attempt.run.started_at)
    pause = f", {words.span(attempt.pause)} after the one before" if attempt.pause > 0 else ""
    told = f"attempt {attempt.run.attempt} began {began}{pause}"
    return f"{told}, lasted {words.span(attempt.length)}: {ending(attempt.run, attempt.running)}"


def kind_of(attempt: Attempt) -> str:
    if attempt.run.ended_at is None:
        return OPEN
    return GOOD if attempt.run.state == "done" else BAD


def _seen(past: History, axis: Scale) -> Markup:
    lines = (line for attempt in past.attempts for line in attempt.seen if line)
    return joined(
        _strip(line[0].begin, line[-1].end, axis, "figures were taken", "looked") for line in lines
    )


def _held(slow: Held, axis: Scale) -> Markup:
    told = f"rank {slow.rank} on {slow.node} was the slowest"
    return joined(_strip(begin, end, axis, told, "held") for begin, end in slow.when)


def _strip(begin: float, end: float, axis: Scale, told: str, kind: str) -> Markup:
    x = axis.place(begin) * axes.WIDTH
    width = max(axis.place(end) * axes.WIDTH - x, 2.0)  # an attempt of a blink is still seen
    shape = {"x": min(x, axes.WIDTH - 2.0), "y": 0, "width": width, "height": STRIP}
    return tag("rect", tag("title", told), **shape, class_=kind)


def held(past: History) -> list[Held]:
    """Who was the slowest, for longest first; the strips of a rank that touch are one."""
    when: dict[tuple[int, str], list[tuple[float, float]]] = {}
    for rank, begin, end in _stragglers(past):
        strips = when.setdefault(rank, [])
        if strips and begin - strips[-1][1] < 1e-6:
            strips[-1] = (strips[-1][0], end)
        else:
            strips.append((begin, end))
    found = [
        Held(rank, node, sum(end - begin for begin, end in strips), tuple(strips))
        for (rank, node), strips in when.items()
    ]
    return sorted(found, key=lambda h: (-h.seconds, h.rank))[:STRAGGLERS]


def _stragglers(past: History) -> Iterator[tuple[tuple[int, str], float, float]]:
    for attempt in past.attempts:
        nodes = {rank.rank: rank.node for rank in attempt.run.ranks}
        for stretch in (s for line in attempt.seen for s in line):
            if (rank := stretch.point.straggler) is not None:
                yield (rank, nodes.get(rank, "?")), stretch.begin, stretch.end
