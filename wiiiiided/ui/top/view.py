"""The screen: a pure function of the scene and a size, as a Rich renderable.

     WIIIIIDE  lab  3/3 nodes  1 running  1 queued          1,236 samples/s  ↑ 181M/s  12:04:55  1s
     out of touch …                                  only when something is wrong
    ╭─ nodes ─╮                                      nodes, their sum, the straggler
    ╭─ jobs ──╮
    ╭─ ranks ─╮╭─ loss ─╮                            of the selected job, where there is room
    ╭─ log ───╮                                      fills the rest
     q quit  ? help …                                or a question, a filter, an answer

Lines are shared out so that nodes and jobs both get what they need; where that is not possible,
half each. Under SMALL lines only the pane in focus is shown. A page (help, details) covers all.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import NamedTuple

from rich.console import Group, RenderableType
from rich.layout import Layout
from rich.text import Text

from wiiiiided.cluster.rpc.messages import Snapshot
from wiiiiided.domain.states import ENDED, ON_NODES
from wiiiiided.text import columns, cut
from wiiiiided.ui.top import (
    details,
    formats,
    help_page,
    jobs_pane,
    log_pane,
    nodes_pane,
    ranks_pane,
)
from wiiiiided.ui.top.column_memory import learned
from wiiiiided.ui.top.order import jobs_of, nodes_of
from wiiiiided.ui.top.paint import Faded, Scrolled, lines
from wiiiiided.ui.top.pane import EDGES, NAME_MOST, framed, inside, line, title, words
from wiiiiided.ui.top.ui import Draining, Question, Resuming, Scene, Ui

SMALL = 12  # lines of a screen that has room for one pane only
TALL = ranks_pane.ROOMY + 2  # lines from which on ranks and loss of the selected job are shown
LOG_LEAST, LOG_WORTH = 3, 5  # lines of the log with its frame: the least, and worth taking away for
LOGGED = 18  # lines for panes from which on the log may take some away
ENDLESS = 1 << 16
REASON_LEAST = 12  # columns of one that is being typed
KEYS = (
    *(("q", "quit"), ("?", "help"), ("↑↓", "select"), ("Tab", "pane"), ("↵", "details")),
    *(("l", "log"), ("x", "cancel"), ("/", "filter"), ("s", "sort"), ("d", "drain")),
    *(("p", "pause"), ("r", "reverse"), ("+/-", "rate")),
)
DESTRUCTIVE = ("x", "d")


class Shares(NamedTuple):
    """Lines of each pane with its frame; 0: it is not shown."""

    nodes: int
    jobs: int
    ranks: int
    log: int


def view(scene: Scene, width: int, height: int) -> RenderableType:
    """`height` lines of `width` columns; the last is the line of keys."""
    scene = replace(scene, ui=learned(scene.ui, scene.snapshot))
    if scene.ui.once:
        return _paper(scene, width)
    top = [_header(scene, width), *_banner(scene)]
    foot = _footer(scene, width)
    room = height - len(top) - 1
    if room < 1:  # a question must be seen
        return Group(*[*top, foot][-height:])
    parts = [Layout(each, size=1) for each in top]
    for size, content in _body(scene, width, room):
        parts.append(Layout(Faded(content) if scene.gone else content, size=size))
    screen = Layout()
    screen.split_column(*parts, Layout(foot, size=1))
    return screen


def clamp_scroll(scene: Scene, width: int, height: int) -> Ui:
    """The ui with its scroll positions within the text: a key never scrolls beyond its end."""
    ui = replace(learned(scene.ui, scene.snapshot), seen=scene.ui.seen)
    room = height - 2 - len(_banner(scene))
    top = 0
    if ui.page:
        count = len(lines(_page(scene, inside(width)), inside(width)))
        top = max(0, min(ui.page_top, count - (room - EDGES)))
    log = _shares(scene, width, room).log
    back = log_pane.furthest(scene, log) if log else 0
    return replace(ui, page_top=top, log_back=max(0, min(ui.log_back, back)))


def natural(scene: Scene, width: int) -> int:
    """Lines of a screen that shows everything and nothing else."""
    log = LOG_LEAST + 7 if scene.log and scene.log.lines else 0
    ranks = ranks_pane.wanted(scene, width, ENDLESS)
    panes = nodes_pane.wanted(scene) + jobs_pane.wanted(scene) + ranks
    need = 2 + len(_banner(scene)) + panes + log
    return max(SMALL, need, TALL + ranks_pane.BELOW * (width < ranks_pane.BESIDE) if ranks else 0)


def _paper(scene: Scene, width: int) -> RenderableType:
    """The screen as it is printed once: without frames and keys."""
    made: list[RenderableType] = [_header(scene, width), *_banner(scene)]
    if scene.snapshot is not None:
        made += [nodes_pane.pane(scene, width, ENDLESS), jobs_pane.pane(scene, width, ENDLESS)]
    return Group(*made)


# ---- panes


def _body(scene: Scene, width: int, room: int) -> list[tuple[int, RenderableType]]:
    """The part between the first lines and the last: (lines, renderable)."""
    ui = scene.ui
    if ui.page:
        kind, about = ("help", "") if ui.page == "help" else details.heading(scene)
        content = Scrolled(_page(scene, inside(width)), ui.page_top)
        return [(room, framed(content, title(kind, about, True), width, ui, focus=True))]
    if scene.snapshot is None:
        return [(room, line(" waiting for the daemon's metrics", style="dim"))]
    shares = _shares(scene, width, room)
    draw: list[tuple[int, Callable[[Scene, int, int], RenderableType]]] = [
        (shares.nodes, nodes_pane.pane),
        (shares.jobs, jobs_pane.pane),
        (shares.ranks, ranks_pane.panes),
        (shares.log, log_pane.pane),
    ]
    made: list[tuple[int, RenderableType]] = [
        (size, pane(scene, width, size)) for size, pane in draw if size
    ]
    left = room - sum(shares)
    return [*made, (left, Text(" "))] if left > 0 else made  # Rich draws a box for an empty text


def _page(scene: Scene, width: int) -> RenderableType:
    if scene.ui.page == "help":
        return help_page.page(width, scene.ui.readonly)
    return details.page(scene, width)


def _shares(scene: Scene, width: int, room: int) -> Shares:
    ui = scene.ui
    if room < SMALL - 2:
        focus = ui.focus if ui.focus != "log" or ui.log else "jobs"
        return Shares(
            room * (focus == "nodes"), room * (focus == "jobs"), 0, room * (focus == "log")
        )
    log = LOG_WORTH if ui.log and room >= LOGGED else 0
    middle = ranks_pane.wanted(scene, width, room)
    left = room - log - middle
    for_nodes, for_jobs = _halves(left, nodes_pane.wanted(scene), jobs_pane.wanted(scene))
    spare = left - for_nodes - for_jobs
    log += spare if ui.log and (log or spare >= LOG_LEAST) else 0
    return Shares(for_nodes, for_jobs, middle, log)


def _halves(room: int, first: int, second: int) -> tuple[int, int]:
    """The lines of two panes: as they want, or half each and what the other leaves."""
    half = room // 2
    if first + second <= room:
        return first, second
    if second <= room - half:
        return room - second, second
    return (first, room - first) if first <= half else (half, room - half)


# ---- the first lines


def _header(scene: Scene, width: int) -> RenderableType:
    """The cluster and its activity on the left, the clock on the right: parts without room
    are left out, the last first."""
    ui, snapshot = scene.ui, scene.snapshot
    left: list[tuple[str, str]] = [(" WIIIIIDE ", "dim" if scene.gone else "logo")]
    right: list[tuple[str, str]] = []
    totals = _totals(snapshot) if snapshot is not None else []
    if snapshot is not None:
        moment = snapshot.at + (0.0 if ui.once else scene.since_s)
        left += _counts(snapshot, scene)
        right += totals
        right.append((formats.time_of_day(moment, scene.offset_s), ""))
    if not ui.once:
        right.append((f"{ui.every_s:g}s", "dim"))
    if ui.paused:
        right.append(("PAUSED", "warn"))
    kept = len(right) - len(totals)  # clock, interval, PAUSED: the bytes go before the rate
    while _length(left) + _length(right) + 2 > width and len(left) + len(right) > 2:
        if len(right) > kept:
            right.pop(len(right) - kept - 1)
        elif len(left) > 2:
            left.pop()
        elif len(right) > 1:
            right.pop(0)
        else:
            break
    blanks = 2 if ui.once else max(2, width - _length(left) - _length(right) - 1)
    style = "dim" if scene.gone else ""
    return line(*_spaced(left), " " * blanks, *_spaced(right), style=style)


def _spaced(parts: list[tuple[str, str]]) -> list[tuple[str, str]]:
    return [
        piece for place, part in enumerate(parts) for piece in (("  " if place else "", ""), part)
    ]


def _length(parts: list[tuple[str, str]]) -> int:
    return sum(columns(text) + 2 for text, _ in parts) - 2


def _counts(snapshot: Snapshot, scene: Scene) -> list[tuple[str, str]]:
    there = sum(node.state != "lost" for node in snapshot.nodes)
    count = len(snapshot.nodes)
    parts = [(cut(words(snapshot.cluster, scene.ui.ascii), 40).lstrip(), "bold")]
    parts.append(
        (f"{there}/{count} node{'' if count == 1 else 's'}", "bad" if there < count else "good")
    )
    states = [row.job.state for row in snapshot.jobs]
    running = sum(state in ON_NODES for state in states)
    held = states.count("held")
    waiting = sum(state not in {*ENDED, *ON_NODES, "held"} for state in states)
    if running:
        parts.append((f"{running} running", "run"))
    if snapshot.more > 0:  # which of the jobs that are not listed are held is not known
        return [*parts, (f"{waiting + held + snapshot.more:,} queued or held", "wait")]
    if waiting:
        parts.append((f"{waiting} queued", "wait"))
    if held:
        parts.append((f"{held} held", "wait"))
    return parts


def _totals(snapshot: Snapshot) -> list[tuple[str, str]]:
    rate, up = nodes_pane.total_rate(snapshot.nodes), nodes_pane.total_up(snapshot.nodes)
    parts = []
    if rate is not None:
        text = formats.rate(rate, 9) if rate < 10_000 else f"{rate:,.0f}"
        parts.append((f"{text} samples/s", "spark"))
    if up:
        parts.append((f"↑ {formats.byte_rate(up)}", ""))
    return parts


def _banner(scene: Scene) -> list[Text]:
    """The problem, in a line under the header."""
    if (gone := scene.gone) is not None:
        when = "waiting for it" if gone.retry_s is None else f"next try in {gone.retry_s:.0f} s"
        text = f" out of touch ({when}): {words(gone.reason, scene.ui.ascii)}"
    elif scene.snapshot is not None and scene.snapshot.problem:
        text = f" problem: {words(scene.snapshot.problem, scene.ui.ascii)}"
    else:
        return []
    return [line(text, style="bad")]


# ---- the last line


def _footer(scene: Scene, width: int) -> RenderableType:
    ui = scene.ui
    if ui.question is not None:
        return _question(ui.question, ui.ascii, width)
    if ui.page:
        text = " ↑↓ scroll, any other key closes this page"
        return line(text if len(text) <= width else " ↑↓ scroll, others close", style="bold")
    pane = ui.nodes if ui.focus == "nodes" else ui.jobs
    if ui.typing:
        text = f" / {words(pane.filter, ui.ascii)}_   Enter keeps it  Esc shows all"
        return line(text, style="bold")
    if ui.message:
        return line(" " + words(ui.message, ui.ascii), style="bold")
    parts: list[tuple[str, str]] = []
    if pane.filter:
        parts.append((f" /{words(pane.filter, ui.ascii)} ({_matching(scene)}) ", "warn"))
    left = width - sum(columns(text) for text, _ in parts)
    for key, about in KEYS:
        if ui.readonly and key in DESTRUCTIVE:
            continue
        left -= columns(key) + len(about) + 5
        if left < -2:
            break
        parts += [(f" {key} ", "chip"), (f" {about}  ", "")]
    made = line(*parts)
    made.rstrip()
    return made


def _question(question: Question | Resuming | Draining, ascii_only: bool, width: int) -> Text:
    """The line of a question. A long name is cut: how to answer is always seen."""
    match question:
        case Question(job=job, name=middle, now=now):
            before = f" {'kill' if now else 'cancel'} job {job} "
            after = f"{' at once' if now else ''}? y/n"
        case Resuming(node=middle, reason=reason):
            before, after = " give jobs to ", "? y/n"
            if reason:
                middle += f", drained for: {reason}"
        case Draining():
            return _draining(question, ascii_only, width)
    text = cut(words(middle, ascii_only), max(1, width - len(before) - len(after)))
    return _asked(before + text + after, width)


def _draining(question: Draining, ascii_only: bool, width: int) -> Text:
    """The line of a reason being typed. Of a long one the end is seen."""
    name = cut(words(question.node, ascii_only), max(1, min(NAME_MOST, width // 4)))
    before, reason = f" drain {name}, because: ", words(question.reason, ascii_only)
    after = "_   Enter drains it  Esc does not"
    if columns(before) + len(after) > width - REASON_LEAST:
        after = "_"
    room = max(1, width - columns(before) - len(after))
    while columns(reason) > room:
        reason = reason[1:]
    return _asked(before + reason + after, width)


def _asked(text: str, width: int) -> Text:
    """A question over the whole line, in reverse."""
    return line(text + " " * max(0, width - columns(text)), style="alarm")


def _matching(scene: Scene) -> str:
    snapshot, ui = scene.snapshot, scene.ui
    if snapshot is None:
        return "nothing yet"
    if ui.focus == "nodes":
        return f"{len(nodes_of(snapshot, ui))} of {len(snapshot.nodes)}"
    return f"{len(jobs_of(snapshot, ui))} of {len(snapshot.jobs)}"
