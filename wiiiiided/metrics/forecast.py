"""The likely needs of a job: the most and the least that earlier runs of the same name took.

Nothing is extrapolated. Runs of the same name may have had another size; the sentence says how many
workers they had, so that its reader can tell.
"""

from __future__ import annotations

from collections.abc import Sequence

from wiiiiided.domain.metrics import RunForecast, RunRecord

UNITS = ("B", "KiB", "MiB", "GiB", "TiB", "PiB")


def forecast(name: str, records: Sequence[RunRecord]) -> RunForecast:
    """From runs that are done; the others say how long something takes to fail."""
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
        f"up to {as_bytes(memory)} of memory a rank" if memory is not None else "",
        f"up to {as_bytes(wire)} sent to other hosts" if wire else "",
        "nothing sent to other hosts" if wire == 0 else "",
    ]
    said = ", ".join(part for part in parts if part) or "no figures"
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
    of = f"{sizes[0]} to {sizes[-1]} workers" if len(sizes) > 1 else _count(sizes[0], "worker")
    number = "the last run" if len(done) == 1 else f"the last {len(done)} runs"
    return f"{number} of this name ({of})"


def _count(number: int, noun: str) -> str:
    return f"{number} {noun}" + ("" if number == 1 else "s")


def _times(least: float, most: float) -> str:
    one, other = as_time(least), as_time(most)
    return one if one == other else f"{one} to {other}"


def as_bytes(number: float) -> str:
    """Three digits and a unit: 1.21 GiB."""
    for unit in UNITS:
        if number < 1000 or unit == UNITS[-1]:
            break
        number /= 1024
    return f"{number:.0f} {unit}" if unit == "B" or number >= 100 else f"{number:.3g} {unit}"


def as_time(seconds: float) -> str:
    """As one would say it: 4.2 s, 41 s, 12 min, 3 h 05 min."""
    if seconds < 59.5:
        return f"{seconds:.1f} s" if seconds < 9.95 else f"{seconds:.0f} s"
    minutes = round(seconds / 60)
    return f"{minutes} min" if minutes < 60 else f"{minutes // 60} h {minutes % 60:02d} min"
