"""The charts of one attempt: where time went, by node and by rank; batches; bytes on the wire."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from wiiiiided.domain.metrics import RunRecord
from wiiiiided.text import count
from wiiiiided.ui.report import formats
from wiiiiided.ui.report.charts import Bar, BarChart, ChartFigure
from wiiiiided.ui.report.ranks import (
    RANKS,
    NodeSum,
    Split,
    is_measured,
    measured,
    nodes_of,
    operations_of,
    split_of,
    spread,
)
from wiiiiided.ui.report.run_history import length_of
from wiiiiided.ui.report.summary import codec_words, has_metrics, split_words, wire_words
from wiiiiided.ui.report.ticks import Scale, amounts, sizes

NODES = 64  # bars; the sums count all
WHOLE = Scale(0.0, 1.0, tuple((n / 4, f"{25 * n} %") for n in range(5)))
PARTS = (
    ("compute", "compute and the rest"),
    ("exchange", "exchange"),
    ("waiting", "waiting for others"),
)


def rank_charts(run: RunRecord) -> Iterator[ChartFigure]:
    if not has_metrics(run):
        return
    nodes = nodes_of(run)
    yield from _time(run, nodes)
    yield from _batches(run, nodes)
    yield from _wire(run, nodes)


def _time(run: RunRecord, nodes: Sequence[NodeSum]) -> Iterator[ChartFigure]:
    length = length_of(run)
    if length <= 0 or not is_measured(run):  # the summary says so
        return
    told = split_words(run)[:1].upper() + split_words(run)[1:] + ", mean of the ranks."
    ranks = [
        _split_bar(f"rank {rank.rank} on {rank.node}", split_of(rank, length))
        for rank in measured(run)[:RANKS]
    ]
    if len(nodes) > 1:
        bars = [_split_bar(node.name, node.split) for node in nodes[:NODES] if node.split]
        said = told + _left_out(len(nodes), NODES)
        yield ChartFigure("Time by node", said, BarChart(WHOLE, bars), PARTS)
    said = (told if len(nodes) < 2 else "") + _left_out(len(measured(run)), RANKS)
    yield ChartFigure("Time by rank", said, BarChart(WHOLE, ranks), PARTS)


def _left_out(many: int, most: int) -> str:
    return f" The first {most} of {many:,}." if many > most else ""


def _split_bar(name: str, split: Split) -> Bar:
    shares = split.shares
    seconds = (split.compute, split.exchange, split.waiting)
    parts = tuple(
        (kind, part, f"{formats.share(part)} {told}, {formats.duration(spent)}")
        for (kind, told), part, spent in zip(PARTS, shares, seconds, strict=True)
    )
    compute, exchange, waiting = (f"{100 * part:.0f}" for part in shares)
    return Bar(name, f"{compute} · {exchange} · {waiting} %", parts)


def _batches(run: RunRecord, nodes: Sequence[NodeSum]) -> Iterator[ChartFigure]:
    """Steps by node: the bar is the mean of its ranks, the whisker goes from least to most."""
    said = all(node.steps is not None for node in nodes)
    what = "steps" if said else "operations"
    spreads = [node.steps if said and node.steps else node.operations for node in nodes]
    most = max((each.high for each in spreads), default=0)
    if most <= 0:
        return
    bars = []
    for node, each in zip(nodes[:NODES], spreads, strict=False):
        samples = "" if node.samples is None else f", {formats.number(node.samples)} samples"
        apart = "" if each.low == each.high else f" ({each.low:,.0f}–{each.high:,.0f})"
        mean, more = formats.number(each.mean), f"{apart} {what}{samples}"
        part = ("one", each.mean, f"{count(node.ranks, 'rank')}, {mean}{more}")
        bars.append(Bar(node.name, mean, (part,), more, (each.low, each.high)))
    told = batches_words(run) + _left_out(len(nodes), NODES)
    chart = BarChart(amounts(0.0, most), bars)
    yield ChartFigure(f"Batches by node ({what} of a rank)", told, chart)


def batches_words(run: RunRecord) -> str:
    """How far apart the ranks are, in a sentence."""
    steps = spread([rank.totals.step for rank in run.ranks])
    what = "step" if steps else "operation"
    steps = steps or spread([operations_of(rank) for rank in run.ranks])
    if steps is None or steps.high <= 0:
        return ""
    if steps.low == steps.high:
        who = "All ranks are" if len(run.ranks) > 1 else "Its one rank is"
        return f"{who} at {count(int(steps.high), what)}."
    apart = formats.share(steps.share)
    told = f"From {steps.low:,.0f} to {steps.high:,.0f} {what}s a rank: {apart} apart"
    if any(rank.totals.training.own_steps for rank in run.ranks):
        told += ", by design: each host makes as many steps as it can between two exchanges"
    return f"{told}."


def _wire(run: RunRecord, nodes: Sequence[NodeSum]) -> Iterator[ChartFigure]:
    most = max((max(node.raw, node.wire) for node in nodes), default=0)
    told = wire_words(run)
    if most <= 0 or not told:
        return
    bars = []
    for node in nodes[:NODES]:
        raw, wire = formats.size(node.raw), formats.size(node.wire)
        parts = (
            ("raw", float(node.raw), f"{raw} before the codec"),
            ("wire", float(node.wire), f"{wire} travelled"),
        )
        bars.append(Bar(node.name, f"{raw} → {wire}", parts))
    keys = (("raw", "before the codec"), ("wire", "as it travelled"))
    chart = BarChart(sizes(most), bars, stacked=False)
    said = f"{told}.{codec_words(run)}" + _left_out(len(nodes), NODES)
    yield ChartFigure("Sent to other hosts", said, chart, keys)
