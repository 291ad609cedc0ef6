"""The report on a terminal: the sections of the page, in characters, for any width from 40 on."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from wiiiiided.cluster.rpc.messages import JobRecords
from wiiiiided.domain.metrics import RunRecord
from wiiiiided.text import cell, columns, count, cut, pad
from wiiiiided.ui.cli import text_charts
from wiiiiided.ui.cli.table import TableColumn, render
from wiiiiided.ui.report import formats, rank_charts
from wiiiiided.ui.report.attempt_table import attempt_rows
from wiiiiided.ui.report.over_time import happened_title, quantities
from wiiiiided.ui.report.rank_table import TITLES, rank_rows, shown_columns
from wiiiiided.ui.report.ranks import is_measured, measured, nodes_of, split_of
from wiiiiided.ui.report.run_history import RunHistory, history, length_of
from wiiiiided.ui.report.sanitize import sanitized
from wiiiiided.ui.report.summary import (
    codec_words,
    facts,
    has_metrics,
    is_loud,
    latest,
    why_nothing,
    wire_words,
)
from wiiiiided.ui.report.timeline import straggler_spells

LEAST, DRAWN = 40, 100  # columns: the least to draw for, and the most that make charts clearer
FRAME = 4  # columns of a frame, on both sides together
FRAMED = LEAST + FRAME  # a terminal as wide as that gets frames
TITLE = 10  # columns of a fact's name
NAME = 20  # of the name beside a bar
BARS = 32  # of one chart; the table and --json have all
STORY = 100  # lines, the latest
TEXT = 600  # characters of one sentence of another user's
# ASCII characters for these; all others that are not ASCII become a question mark.
INSTEAD = str.maketrans({"–": "-", "…": "~", "→": ">", "·": "/"})

_COLUMNS = (
    TableColumn("RANK", right=True),
    TableColumn("NODE", least=4, readable=10),
    TableColumn("STEPS", right=True, leaves=6),
    TableColumn("SAMPLES", right=True, leaves=10),
    TableColumn("LOSS", right=True, leaves=7),
    TableColumn("COMPUTE", right=True, leaves=2),
    TableColumn("EXCHANGE", right=True, leaves=3),
    TableColumn("WAITING", right=True, leaves=1),
    TableColumn("SHARE", right=True, leaves=5),
    TableColumn("WAITS MOST FOR", leaves=8, least=12),
    TableColumn("SENT", right=True, leaves=9),
    TableColumn("RECEIVED", right=True, leaves=11),
    TableColumn("CODEC", leaves=12, least=4, readable=8),
    TableColumn("CODING", right=True, leaves=13),
    TableColumn("MEMORY", right=True, leaves=4),
    TableColumn("CPU", right=True, leaves=4),
    TableColumn("SLOWEST FOR", right=True, leaves=5),
)
RANK_COLUMNS = {column.title.lower(): column for column in _COLUMNS}  # by rank_table.TITLES


class Heading(str):
    """A line above others: on a terminal, the title of a frame."""


class BoldLine(str):
    """A line that must not be overlooked."""


@dataclass(frozen=True)
class ReportStyle:
    """The width of lines, and the characters they are drawn with."""

    width: int | None  # None: no end to a line
    marks: text_charts.Marks = text_charts.BLOCKS

    @property
    def room(self) -> int:
        """The width of charts."""
        return min(max(self.width or DRAWN, LEAST), DRAWN)

    @property
    def name(self) -> int:
        """The greatest width of names beside bars and strips."""
        return NAME if self.room > 2 * LEAST else NAME // 2


def lines(
    records: JobRecords, look: ReportStyle, settings: Sequence[tuple[str, str]] = ()
) -> Iterator[str]:
    """The whole report. Everything in it is clean."""
    for line in _all(sanitized(records), look, settings):
        yield line if look.marks is text_charts.BLOCKS else ascii_only(line)


def ascii_only(line: str) -> str:
    """The line in ASCII, which any terminal shows, as wide as before."""
    shown = line.translate(INSTEAD)
    return type(line)("".join(char if char.isascii() else "?" * columns(char) for char in shown))


def _all(
    records: JobRecords, look: ReportStyle, settings: Sequence[tuple[str, str]]
) -> Iterator[str]:
    name = f"job {records.job.id}: {_text(records.job.name)}"
    yield Heading(name if look.width is None else cut(name, look.width))
    if said := why_nothing(records):
        yield from wrapped(said, look)
    for title, text in facts(records):
        for line in wrapped(text, look, f"  {title:<{TITLE}} "):
            yield BoldLine(line) if is_loud(title, text) else line
    past = history(records)
    if past.length > 0:
        yield from _over_time(past, look)
    yield from _attempts(records, look)
    run = latest(records)
    if run is not None and run.ranks:
        yield from _ranks(run, look, several=len(records.runs) > 1)
    if settings:
        yield from _section("settings", "", look)
        for key, value in settings:
            yield from wrapped(f"{key} = {value}", look, "  ")
    yield from _story(records, look)


def _attempts(records: JobRecords, look: ReportStyle) -> Iterator[str]:
    """Each attempt: where, when, how it ended and why."""
    if not records.runs:
        return
    yield from _section("attempts", "", look)
    for number, nodes, started, ended, lasted, end, why in attempt_rows(records):
        told = f"on {nodes}, {started} to {ended}, {lasted}: {end}"
        yield from wrapped(told, look, f"  {number:>3}  ")
        if why != formats.UNKNOWN:
            yield from wrapped(why, look, "       ")


def _text(text: str) -> str:
    return cell(text if len(text) <= TEXT else text[: TEXT - 1] + "…")


def wrapped(text: str, look: ReportStyle, lead: str = "") -> Iterator[str]:
    """A sentence in as many lines as it needs, the later ones below the first."""
    room = None if look.width is None else max(look.width - len(lead), 16)
    line = ""
    for word in _text(text).split(" "):
        joined = f"{line} {word}" if line else word
        if room is None or columns(joined) <= room:
            line = joined
            continue
        if line:
            yield lead + line
            lead = " " * len(lead)
        line = cut(word, room)
    yield lead + line


def _section(title: str, told: str, look: ReportStyle) -> Iterator[str]:
    yield ""
    yield Heading(title)
    if told:
        yield from wrapped(told, look, "  ")


# ---- over time


def _over_time(past: RunHistory, look: ReportStyle) -> Iterator[str]:
    """All charts over time, with the same margins: what is below each other was at one time."""
    if past.cut > 0:
        told = (
            f"pauses between attempts are drawn shorter: {formats.duration(past.cut)} are left out"
        )
        yield from ("", *wrapped(told, look))
    charts, strips = list(quantities(past)), list(_strips(past, look))
    labels = [columns(label) for chart in charts for label in text_charts.ends(chart.scale)]
    names = min(max(columns(name) for name, _, _ in strips), look.name)
    margin = max(names + 4, *(label + 2 for label in labels), 0)
    place = margin, max(look.room - margin, 4)
    for chart in charts:
        yield from _section(_text(chart.name), chart.told, look)
        yield from text_charts.over_time(past, chart.value, chart.scale, place, look.marks)
    yield from _section(happened_title(past).lower(), "", look)
    for name, when, signs in strips:
        shown = text_charts.strip(when, signs, past.length, place[1])
        yield f"  {pad(name, margin - 4)}  {shown}".rstrip()
    yield " " * margin + text_charts.time_labels(past.length, place[1])


Strip = tuple[str, Sequence[tuple[float, float]], Sequence[str]]  # name, when, a sign for each


def _strips(past: RunHistory, look: ReportStyle) -> Iterator[Strip]:
    """Attempts by the last digit of their number, then when each straggler was one."""
    spans = [(attempt.begin, attempt.end) for attempt in past.attempts]
    yield "attempt", spans, [str(attempt.run.attempt)[-1] for attempt in past.attempts]
    seen = [(ln[0].begin, ln[-1].end) for attempt in past.attempts for ln in attempt.seen]
    if seen:
        yield "metrics", seen, [look.marks.floor] * len(seen)
    for each in straggler_spells(past):
        name = f"rank {each.rank} {_text(each.node)}"
        yield name, each.when, [look.marks.levels[-1]] * len(each.when)


# ---- ranks and nodes


def _ranks(run: RunRecord, look: ReportStyle, several: bool) -> Iterator[str]:
    of = f" of attempt {run.attempt}" if several else ""
    if has_metrics(run):
        yield from _time(run, look, of)
        yield from _batches(run, look, of)
        yield from _wire(run, look)
    rows = rank_rows(run)
    shown = shown_columns(rows)
    yield from _section(f"ranks{of}", "", look)
    wanted = [RANK_COLUMNS[TITLES[n]] for n in shown]
    width = None if look.width is None else max(look.width, LEAST)
    yield from render(wanted, [[row[n] for n in shown] for row in rows], width)
    if (more := len(run.ranks) - len(rows)) > 0:
        yield from wrapped(f"{count(more, 'more rank')}: --json has them", look)


def _time(run: RunRecord, look: ReportStyle, of: str) -> Iterator[str]:
    if not is_measured(run):  # the summary says so
        return
    length = length_of(run)
    compute, exchange, waiting = tuple(look.marks.parts)
    told = f"{compute} compute and the rest, {exchange} exchange, {waiting} waiting for others"
    yield from _section(f"time{of}", told, look)
    nodes = nodes_of(run)
    splits = [(node.name, node.split) for node in nodes if node.split and len(nodes) > 1]
    splits += [(f"rank {rank.rank} {rank.node}", split_of(rank, length)) for rank in measured(run)]
    bars = [(name, split.shares) for name, split in splits[:BARS]]
    ends = [" · ".join(f"{100 * part:.0f}" for part in shares) + " %" for _, shares in bars]
    yield from _bars(
        [name for name, _ in bars],
        [shares for _, shares in bars],
        ends,
        look,
    )
    yield from _left_out(len(splits), look)


def _bars(
    names: Sequence[str], shares: Sequence[Sequence[float]], ends: Sequence[str], look: ReportStyle
) -> Iterator[str]:
    """Names, bars and their numbers, in columns."""
    clean = [_text(name) for name in names]
    wide = min(max(map(columns, clean), default=0), look.name)
    last = max(map(columns, ends), default=0)
    room = max(look.room - wide - last - 6, 4)
    for name, parts, end in zip(clean, shares, ends, strict=True):
        drawn = pad(text_charts.bar(parts, room, look.marks), room)
        yield f"  {pad(name, wide)}  {drawn}  {pad(end, last, right=True)}"


def _left_out(many: int, look: ReportStyle) -> Iterator[str]:
    if many > BARS:
        yield from wrapped(f"… {many - BARS:,} more: the table below, or --json", look, "  ")


def _batches(run: RunRecord, look: ReportStyle, of: str) -> Iterator[str]:
    told = rank_charts.batches_words(run)
    if not told:
        return
    yield from _section(f"batches{of}", told, look)
    nodes = nodes_of(run)
    means = [(node.steps or node.operations).mean for node in nodes]
    most = max(means) or 1.0
    yield from _bars(
        [node.name for node in nodes[:BARS]],
        [(mean / most,) for mean in means[:BARS]],
        [formats.number(mean) for mean in means[:BARS]],
        look,
    )
    yield from _left_out(len(nodes), look)


def _wire(run: RunRecord, look: ReportStyle) -> Iterator[str]:
    """Two bars a node: before the codec, and as it travelled."""
    if not (told := wire_words(run)):
        return
    yield from _section("sent to other hosts", f"{told}.{codec_words(run)}", look)
    nodes = nodes_of(run)
    most = max(max(node.raw, node.wire) for node in nodes) or 1
    pairs = [
        pair
        for node in nodes[: BARS // 2]
        for pair in ((f"{node.name} raw", node.raw), (f"{node.name} wire", node.wire))
    ]
    yield from _bars(
        [name for name, _ in pairs],
        [(many / most,) for _, many in pairs],
        [formats.size(many) for _, many in pairs],
        look,
    )
    yield from _left_out(2 * len(nodes), look)


def _story(records: JobRecords, look: ReportStyle) -> Iterator[str]:
    if not records.story:
        return
    left_out = len(records.story) - STORY
    told = f"{count(left_out, 'earlier line')}: --json has them" if left_out > 0 else ""
    yield from _section("story", told, look)
    for line in records.story[-STORY:]:
        yield from wrapped(line.text, look, f"  {formats.moment(line.at)}  ")
