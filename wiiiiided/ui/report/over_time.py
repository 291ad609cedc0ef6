"""The job over time: loss, metrics of scripts, throughput, memory, CPU, bytes, attempts.

A `Quantity` is there when a point has a value of it; the page and the terminal draw the same ones.
The unit of throughput is the best the run gave: samples where the script counts them, else steps,
else operations of the backend.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

from wiiiiided.domain.metrics import METRICS, Point
from wiiiiided.text import count
from wiiiiided.ui.report import formats
from wiiiiided.ui.report.charts import ChartFigure, Curve, LineChart
from wiiiiided.ui.report.ranks import diverged, is_measured
from wiiiiided.ui.report.run_history import Line, RunHistory
from wiiiiided.ui.report.summary import has_metrics, slowest_of
from wiiiiided.ui.report.ticks import Scale, amounts, around, sizes, times
from wiiiiided.ui.report.timeline import straggler_spells, timeline

Value = Callable[[Point], float | None]
_RATES: tuple[tuple[str, Value], ...] = (
    ("samples/s", lambda point: point.rates.samples),
    ("steps/s", lambda point: point.rates.steps),
    ("operations/s", lambda point: point.rates.operations if point.rates.measured else None),
)


@dataclass(frozen=True)
class Quantity:
    name: str  # on a terminal
    title: str  # on the page
    told: str
    value: Value
    scale: Scale
    more: str = ""  # what the page's sentence says besides
    lost: tuple[float, ...] = ()  # where on the axis it became no number
    mean: bool = False  # of the whole stretch that a point covers; else the value at its end


def quantities(past: RunHistory) -> Iterator[Quantity]:
    yield from _loss(past)
    yield from _metrics(past)
    yield from _throughput(past)
    yield from _memory(past)
    yield from _cpu(past)


def over_time(past: RunHistory) -> Iterator[ChartFigure]:
    """The charts of the page."""
    if not past.attempts or past.length <= 0:
        return
    for each in quantities(past):
        told = each.told[:1].upper() + each.told[1:] + each.more + "."
        curve = Curve("one", past.lines(each.value, ends=not each.mean))
        chart = _chart(past, each.scale, [curve], _tell, each.lost)
        yield ChartFigure(each.title, told, chart)
    yield from _wire(past)
    yield _happened(past)


def _chart(
    past: RunHistory,
    up: Scale,
    curves: Sequence[Curve],
    tells: Callable[[Point], str],
    lost: Sequence[float] = (),
) -> LineChart:
    """`tells` is what a stretch says while a pointer rests on it."""
    several = len(past.attempts) > 1
    hovers = [
        (
            stretch.begin,
            stretch.end,
            (f"attempt {attempt.run.attempt}, " if several else "")
            + f"{formats.duration(stretch.end - attempt.begin)}: {text}",
        )
        for attempt in past.attempts
        for line in attempt.seen
        for stretch in line
        if (text := tells(stretch.point))
    ]
    starts = [(a.begin, f"attempt {a.run.attempt} began") for a in past.attempts[1:]]
    return LineChart(times(past.length), up, curves, hovers, starts, lost, "nan")


def _values(lines: list[Line]) -> list[float]:
    return [value for line in lines for _, value in line]


def _loss(past: RunHistory) -> Iterator[Quantity]:
    values = _values(past.lines(_loss_of))
    if not values:
        return
    scale, lost = around(values), diverged_at(past)
    first, last, best = map(formats.number, (values[0], values[-1], min(values)))
    if past.attempts[-1].run.attempt in lost:
        last = f"nan ({last} before)"
    more = f", at best {best}" + ("; each line across is ten times the one below" * scale.log)
    told = f"from {first} to {last}"
    yield Quantity("loss", "Loss", told, _loss_of, scale, more, tuple(lost.values()))


def _loss_of(point: Point) -> float | None:
    return point.loss


def diverged_at(past: RunHistory) -> dict[int, float]:
    """Where on the axis each attempt was last seen with a loss that is no finite number."""
    return {
        attempt.run.attempt: attempt.seen[-1][-1].end
        for attempt in past.attempts
        if attempt.seen and diverged(attempt.run)
    }


def _metrics(past: RunHistory) -> Iterator[Quantity]:
    """The metrics scripts report by name, in the order in which they were first reported."""
    reported = (name for stretch in past.stretches() for name in stretch.point.metrics)
    for name in list(dict.fromkeys(reported))[:METRICS]:
        value = _metric_of(name)
        if values := _values(past.lines(value)):
            yield Quantity(name, name, _range(values), value, around(values))


def _metric_of(name: str) -> Value:
    return lambda point: point.metrics.get(name)


def _range(values: list[float]) -> str:
    first, last = formats.number(values[0]), formats.number(values[-1])
    least, most = formats.number(min(values)), formats.number(max(values))
    beyond = "" if {least, most} <= {first, last} else f"; least {least}, most {most}"
    return f"from {first} to {last}{beyond}"


def _throughput(past: RunHistory) -> Iterator[Quantity]:
    for unit, rate in _RATES:
        most = max(_values(past.lines(rate)), default=0.0)
        if most > 0:
            # All ranks take the same steps, each has its own samples.
            of = "mean of the ranks" if unit == "steps/s" else "all ranks together"
            told, scale = f"up to {formats.number(most)} {unit}, {of}", amounts(0.0, most)
            yield Quantity(unit, f"Throughput, {unit}", told, rate, scale, mean=True)
            return


def _memory(past: RunHistory) -> Iterator[Quantity]:
    def value(point: Point) -> float | None:
        return point.memory

    if values := _values(past.lines(value)):
        told = f"at most {formats.size(max(values))}, all ranks together"
        yield Quantity("memory", "Memory", told, value, sizes(max(values)))


def _cpu(past: RunHistory) -> Iterator[Quantity]:
    def value(point: Point) -> float | None:
        return point.cpu

    if values := _values(past.lines(value)):
        told = f"up to {formats.number(max(values))} cores, all ranks together"
        yield Quantity("cpu", "CPU, cores in use", told, value, amounts(0.0, max(values)))


def _wire(past: RunHistory) -> Iterator[ChartFigure]:
    """Bytes sent to other hosts: as the ranks gave them, and as they travelled."""
    raw = past.lines(lambda point: point.rates.wire_out_raw)
    wire = past.lines(lambda point: point.rates.wire_out)
    most = max([*_values(raw), *_values(wire)], default=0.0)
    if most <= 0:
        return
    told = f"Up to {formats.size(most)} a second sent to other hosts, all ranks together."
    chart = _chart(past, sizes(most), [Curve("one", raw), Curve("two", wire)], _tell_wire)
    keys = (("one", "before the codec"), ("two", "as it travelled (dotted)"))
    yield ChartFigure("Wire against raw, a second", told, chart, keys)


def _happened(past: RunHistory) -> ChartFigure:
    slow = straggler_spells(past)
    told = count(len(past.attempts), "attempt")
    named = [rank for a in past.attempts if (rank := slowest_of(a.run)) is not None]
    if named:
        worst = max(named, key=lambda rank: rank.straggled_s)
        told += f"; rank {worst.rank} on {worst.node} was the slowest for longest."
    elif any_measured(past):
        told += "; no one rank was the slowest for long."
    else:
        told += "."
    open_ones = (a for a in past.attempts if a.run.ended_at is None)
    keys = (
        *(("good", "done"), ("bad", "ended otherwise")),
        *dict.fromkeys(("open", "running" if a.running else "no end seen") for a in open_ones),
        *([("looked", "metrics were taken")] if any(past.stretches()) else []),
        *([("held", "was the slowest")] if slow else []),
    )
    return ChartFigure(happened_title(past), told, timeline(past), keys)


def happened_title(past: RunHistory) -> str:
    """The strip's title: without stragglers where no waiting was measured."""
    return "Attempts and stragglers" if any_measured(past) else "Attempts over time"


def any_measured(past: RunHistory) -> bool:
    return any(is_measured(a.run) and has_metrics(a.run) for a in past.attempts)


def _tell(point: Point) -> str:
    """A point in words; only what is known."""
    parts = (
        ("loss", point.loss, formats.number),
        ("samples/s", point.rates.samples, formats.number),
        ("steps/s", point.rates.steps, formats.number),
        ("step", point.step, formats.number),
        *((name, value, formats.number) for name, value in point.metrics.items()),
        ("memory", point.memory, formats.size),
        ("cores", point.cpu, formats.number),
        ("exchange", point.rates.exchange if point.rates.measured else None, formats.share),
    )
    return ", ".join(f"{name} {write(value)}" for name, value, write in parts if value is not None)


def _tell_wire(point: Point) -> str:
    raw, wire = (formats.size(value) for value in (point.rates.wire_out_raw, point.rates.wire_out))
    return f"{raw}/s before the codec, {wire}/s travelled"
