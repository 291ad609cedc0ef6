"""The charts of a whole job over time: loss, throughput, memory, wire against raw, what happened.

Each is there when there is something to draw. The unit of throughput is the best the run gave:
samples where the script counts them, else steps, else operations of the backend.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator

from wiiiiided.domain.figures import Point
from wiiiiided.report import axes, words
from wiiiiided.report.history import History, Line
from wiiiiided.report.line_chart import Series, line_chart
from wiiiiided.report.markup import Markup, tag
from wiiiiided.report.ticks import amounts, around, sizes
from wiiiiided.report.timeline import held, timeline

RATES: tuple[tuple[str, Callable[[Point], float | None]], ...] = (
    ("samples/s", lambda point: point.rates.samples),
    ("steps/s", lambda point: point.rates.steps),
    ("operations/s", lambda point: point.rates.operations),
)


def over_time(past: History) -> Iterator[Markup]:
    if not past.attempts or past.length <= 0:
        return
    yield tag("h2", "Over time")
    if past.cut > 0:
        told = f"Pauses between attempts are drawn shorter: {words.span(past.cut)} are left out."
        yield tag("p", told, class_="soft")
    for chart in (_loss, _throughput, _memory, _wire, _happened):
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
    told = f"From {first} to {last}, at best {words.number(min(values))}"
    told += "; each line across is ten times the one below." if scale.log else "."
    yield figure(
        "Loss",
        told,
        line_chart(past, [Series("one", lines)], scale, f"Loss over time. {told}", _tell),
    )


def rate_of(past: History) -> tuple[str, list[Line]]:
    """The unit of throughput, and its lines; no lines where nothing moved."""
    for unit, rate in RATES:
        lines = past.lines(rate)
        if any(value > 0 for value in _values(lines)):
            return unit, lines
    return RATES[-1][0], []


def _throughput(past: History) -> Iterator[Markup]:
    unit, lines = rate_of(past)
    if not (values := _values(lines)):
        return
    told = f"Up to {words.number(max(values))} {unit}, all ranks together."
    if unit != "samples/s":
        told = f"Up to {words.number(max(values))} {unit}, mean of the ranks."
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
    many = words.count(len(past.attempts), "attempt")
    told = f"{many}; nobody held up the others for long."
    if slow:
        told = f"{many}; the others waited longest for rank {slow[0].rank} on {slow[0].node}."
    keys = (
        *(("good", "done"), ("bad", "ended otherwise"), ("open", "no end seen")),
        *(("looked", "somebody looked"), ("held", "the others waited for it")),
    )
    yield figure(
        "Attempts and stragglers",
        told,
        timeline(past, f"What happened when. {told}"),
        axes.legend(keys),
    )


def _tell(point: Point) -> str:
    """A point in words; only what is known."""
    parts = (
        ("loss", point.loss, words.number),
        ("samples/s", point.rates.samples, words.number),
        ("steps/s", point.rates.steps, words.number),
        ("step", point.step, words.number),
        ("memory", point.memory, words.size),
        ("exchange", point.rates.exchange, words.share),
    )
    return ", ".join(f"{name} {write(value)}" for name, value, write in parts if value is not None)


def _tell_wire(point: Point) -> str:
    raw, wire = (words.size(value) for value in (point.rates.wire_out_raw, point.rates.wire_out))
    return f"{raw}/s before the codec, {wire}/s travelled"
