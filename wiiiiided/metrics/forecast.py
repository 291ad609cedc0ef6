"""The likely needs of a job: the most and the least that earlier runs of the same name took.

Nothing is extrapolated. Runs of the same name may have had another size; the sentence says how many
workers they had, so that its reader can tell.
"""

from __future__ import annotations

from collections.abc import Sequence

from wiiiiided.domain.metrics import RunForecast, RunRecord
from wiiiiided.text import count, format_duration, format_size


def forecast(name: str, records: Sequence[RunRecord]) -> RunForecast:
    """The needs of runs that are done; others say how long a job takes to fail."""
    done = [run for run in records if run.state == "done" and run.name == name]
    if not done:
        return RunForecast(0, f'no earlier run named "{name}" is done: its needs are not known')
    peaks = [r.memory_peak for run in done for r in run.ranks if r.memory_peak is not None]
    memory = max(peaks, default=None)
    times = [run.ended_at - run.started_at for run in done if run.ended_at is not None]
    times = [max(0.0, seconds) for seconds in times]
    time_s = (min(times), max(times)) if times else None
    sent = [sum(rank.totals.wire_out for rank in run.ranks) for run in done if run.ranks]
    wire = max(sent, default=None)
    parts = [
        _times(*time_s) if time_s is not None else "",
        f"up to {format_size(memory)} of memory a rank" if memory is not None else "",
        f"up to {format_size(wire)} sent to other hosts" if wire else "",
        "nothing sent to other hosts" if wire == 0 else "",
    ]
    said = ", ".join(part for part in parts if part) or "no metrics"
    return RunForecast(len(done), f"{_runs(done)} took {said}", memory, time_s, wire)


def speeds(name: str, records: Sequence[RunRecord]) -> dict[int, float]:
    """The samples/s of done runs by their number of machines, the latest of each."""
    found: dict[int, float] = {}
    for run in records:
        known = [(p.rates.samples, p.span) for p in run.points if p.rates.samples is not None]
        seconds = sum(span for _, span in known)
        if run.state == "done" and run.name == name and seconds > 0:
            speed = sum(rate * span for rate, span in known) / seconds
            found.setdefault(len(run.nodes), speed)
    return found


def _runs(done: Sequence[RunRecord]) -> str:
    sizes = sorted({run.workers for run in done})
    of = f"{sizes[0]} to {sizes[-1]} workers" if len(sizes) > 1 else count(sizes[0], "worker")
    number = "the last run" if len(done) == 1 else f"the last {len(done)} runs"
    return f"{number} of this name ({of})"


def _times(least: float, most: float) -> str:
    one, other = (format_duration(each, fine=True) for each in (least, most))
    return one if one == other else f"{one} to {other}"
