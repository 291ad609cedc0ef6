"""The charts of a whole job over time: loss, throughput, memory, wire against raw, what happened.

Each is there when there is something to draw. The unit of throughput is the best the run gave:
samples where the script counts them, else steps, else operations of the backend.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator

from wiiiiided.domain.figures import METRICS, Point
from wiiiiided.report import axes, words
from wiiiiided.report.history import History, Line
from wiiiiided.report.line_chart import Series, line_chart
from wiiiiided.report.markup import Markup, tag
from wiiiiided.report.ranks import diverged, is_measured
from wiiiiided.report.summary import has_figures, slowest_of
from wiiiiided.report.ticks import amounts, around, sizes
from wiiiiided.report.timeline import held, timeline

RATES: tuple[tuple[str, Callable[[Point], float | None]], ...] = (
    ("samples/s", lambda point: point.rates.samples),
    ("steps/s", lambda point: point.rates.steps),
    ("operations/s", lambda point: point.rates.operations if point.rates.measured else None),
)


def over_time(past: History) -> Iterator[Markup]:
    if not past.attempts or past.length <= 0:
        return
    yield tag("h2", "Over time")
    if past.cut > 0:
        told = f"Pauses between attempts are drawn shorter: {words.span(past.cut)} are left out."
        yield tag("p", told, class_="soft")
    for chart in (_loss, _metrics, _throughput, _memory, _cpu, _wire, _happened):
        yield from chart(past)


def figure(title: str, told: str, *parts: str) -> Markup:
    """A chart with its name and a sentence."""
    caption = tag("figcaption", tag("b", title), f". {told}" if told else "")
    return tag("figure", caption, *parts)


def _values(lines: list[Line]) -> list[float]:
    return [value for line in lines for _, value in line]


def _loss(past: History) -> Iterator[Markup]:
    lines = past.lines(lambda point: point.loss, ends=True)
    if not (values := _values(lines)):
        return
    scale = around(values)
    first, last = map(words.number, (values[0], values[-1]))
    lost = diverged_at(past)
    if past.attempts[-1].run.attempt in lost:
        last = f"nan ({last} before)"
    told = f"From {first} to {last}, at best {words.number(min(values))}"
    told += "; each line across is ten times the one below." if scale.log else "."
    series = [Series("one", lines)]
    yield figure(
        "Loss",
        told,
        line_chart(past, series, scale, f"Loss over time. {told}", _tell, [*lost.values()], "nan"),
    )


def diverged_at(past: History) -> dict[int, float]:
    """By attempt, where on the axis it was last seen with a loss that is no finite number."""
    return {
        attempt.run.attempt: attempt.seen[-1][-1].end
        for attempt in past.attempts
        if attempt.seen and diverged(attempt.run)
    }


def rate_of(past: History) -> tuple[str, list[Line]]:
    """The unit of throughput, and its lines; no lines where nothing moved."""
    for unit, rate in RATES:
        lines = past.lines(rate)
        if any(value > 0 for value in _values(lines)):
            return unit, lines
    return RATES[-1][0], []


def of_ranks(unit: str) -> str:
    """How the ranks' rates make the job's: all take the same steps, each has its own samples."""
    return "mean of the ranks" if unit == "steps/s" else "all ranks together"


def _throughput(past: History) -> Iterator[Markup]:
    unit, lines = rate_of(past)
    if not (values := _values(lines)):
        return
    told = f"Up to {words.number(max(values))} {unit}, {of_ranks(unit)}."
    scale = amounts(0.0, max(values), words.number)
    chart = line_chart(past, [Series("one", lines)], scale, f"Throughput over time. {told}", _tell)
    yield figure(f"Throughput, {unit}", told, chart)


def _memory(past: History) -> Iterator[Markup]:
    lines = past.lines(lambda point: point.memory, ends=True)
    if not (values := _values(lines)):
        return
    told = f"At most {words.size(max(values))}, all ranks together."
    series = [Series("one", lines)]
    chart = line_chart(past, series, sizes(max(values)), f"Memory over time. {told}", _tell)
    yield figure("Memory", told, chart)


def _cpu(past: History) -> Iterator[Markup]:
    lines = past.lines(lambda point: point.cpu, ends=True)
    if not (values := _values(lines)):
        return
    told = f"Up to {words.number(max(values))} cores, all ranks together."
    scale = amounts(0.0, max(values), words.number)
    chart = line_chart(past, [Series("one", lines)], scale, f"Cores over time. {told}", _tell)
    yield figure("CPU, cores in use", told, chart)


def _metrics(past: History) -> Iterator[Markup]:
    """What scripts report by name, a chart each."""
    for name in metric_names(past):
        lines = past.lines(metric_of(name), ends=True)
        if not (values := _values(lines)):
            continue
        told = metric_range(values)
        told = told[:1].upper() + told[1:] + "."
        said = f"{name} over time. {told}"
        chart = line_chart(past, [Series("one", lines)], around(values), said, _tell)
        yield figure(name, told, chart)


def metric_names(past: History) -> list[str]:
    """In the order in which they were first reported; of all attempts no more than of one."""
    names = (name for stretch in past.stretches() for name in stretch.point.metrics)
    return list(dict.fromkeys(names))[:METRICS]


def metric_of(name: str) -> Callable[[Point], float | None]:
    return lambda point: point.metrics.get(name)


def metric_range(values: list[float]) -> str:
    first, last = words.number(values[0]), words.number(values[-1])
    least, most = words.number(min(values)), words.number(max(values))
    beyond = "" if {least, most} <= {first, last} else f"; least {least}, most {most}"
    return f"from {first} to {last}{beyond}"


def _wire(past: History) -> Iterator[Markup]:
    """Sent to other hosts: what the ranks gave, and what travelled of it."""
    raw = past.lines(lambda point: point.rates.wire_out_raw)
    wire = past.lines(lambda point: point.rates.wire_out)
    most = max([*_values(raw), *_values(wire)], default=0.0)
    if most <= 0:
        return
    told = f"Up to {words.size(most)} a second sent to other hosts, all ranks together."
    series = [Series("one", raw), Series("two", wire)]
    chart = line_chart(past, series, sizes(most), f"Bytes over time. {told}", _tell_wire)
    keys = (("one", "before the codec"), ("two", "as it travelled (dotted)"))
    yield figure("Wire against raw, a second", told, chart, axes.legend(keys))


def _happened(past: History) -> Iterator[Markup]:
    slow = held(past)
    told = words.count(len(past.attempts), "attempt")
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
        *([("looked", "figures were taken")] if any(past.stretches()) else []),
        *([("held", "was the slowest")] if slow else []),
    )
    yield figure(
        happened_title(past),
        told,
        timeline(past, f"What happened when. {told}"),
        axes.legend(keys),
    )


def happened_title(past: History) -> str:
    """Nothing can be said of stragglers where no waiting was measured."""
    return "Attempts and stragglers" if any_measured(past) else "Attempts"


def any_measured(past: History) -> bool:
    return any(is_measured(a.run) and has_figures(a.run) for a in past.attempts)


def _tell(point: Point) -> str:
    """A point in words; only what is known."""
    parts = (
        ("loss", point.loss, words.number),
        ("samples/s", point.rates.samples, words.number),
        ("steps/s", point.rates.steps, words.number),
        ("step", point.step, words.number),
        *((name, value, words.number) for name, value in point.metrics.items()),
        ("memory", point.memory, words.size),
        ("cores", point.cpu, words.number),
        ("exchange", point.rates.exchange if point.rates.measured else None, words.share),
    )
    return ", ".join(f"{name} {write(value)}" for name, value, write in parts if value is not None)


def _tell_wire(point: Point) -> str:
    raw, wire = (words.size(value) for value in (point.rates.wire_out_raw, point.rates.wire_out))
    return f"{raw}/s before the codec, {wire}/s travelled"
