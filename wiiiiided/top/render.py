"""The screen: a pure function of the scene and a size.

     WIIIIIDE  lab  3/3 nodes  job 17 digits running 00:41:12  1 queued        12:04:55  1.0s
     out of touch …                                  only when something is wrong
     NODE …                                          nodes, their sum, stragglers
     JOB NAME …                                      jobs
    ── log 17 ──                                     when asked for
     18 lm: waits for a, which runs job 17           the selected row in full, where there is room
     q quit  ? help …                                or a question, a filter, an answer

Rows are shared out so that nodes and jobs both get what they need; where that is not possible, half
each. Under SMALL lines only the pane in focus is shown. No row is ever wider than the screen and
there are never more of them than it has lines: `fit` and the last line of `render` see to that.
"""

from __future__ import annotations

from dataclasses import replace
from typing import NamedTuple

from wiiiiided.domain.figures import METRICS, JobNow
from wiiiiided.domain.states import ENDED, ON_NODES
from wiiiiided.text import columns, compact_bytes, cut
from wiiiiided.top import helping, jobs, lines, nodes, numbers
from wiiiiided.top.grid import NAME_MOST, words
from wiiiiided.top.order import jobs_of, nodes_of, selected_job, selected_node
from wiiiiided.top.seen import learned
from wiiiiided.top.spans import Frame, Row, Span, filled, fit, in_ascii, restyled
from wiiiiided.top.ui import Draining, Question, Resuming, Scene, Ui
from wiiiiided.wire.messages import Snapshot

SMALL = 10  # lines of a screen that has room for one pane only
DETAILED = 16  # lines of a screen that has one to spare for the selected row
LOG_LEAST = 3
REASON_LEAST = 12  # columns of one that is being typed
KEYS = (
    *(("q", "quit"), ("?", "help"), ("↑↓", "select"), ("Tab", "pane"), ("s", "sort")),
    *(("r", "reverse"), ("/", "filter"), ("l", "logs"), ("x", "cancel"), ("d", "drain")),
    *(("p", "pause"), ("+/-", "rate")),
)
DESTRUCTIVE = ("x", "d")


class Plan(NamedTuple):
    """Lines of each pane below its heading; None: it is not shown."""

    nodes: int | None
    jobs: int | None
    log: int | None


def render(scene: Scene, width: int, height: int) -> Frame:
    """At most `height` rows of at most `width` columns; the last is the line of keys."""
    ui = learned(scene.ui, scene.snapshot)
    scene = replace(scene, ui=ui)
    top = [_header(scene, width), *_banner(scene, width)]
    foot = [] if ui.once else [_footer(scene, width)]
    room = height - len(top) - len(foot)
    body = _help(ui, width, room) if ui.help else _panes(scene, width, room)
    body = body[: max(0, room)]
    if scene.gone is not None:
        body = [restyled(row, "dim") for row in body]
    if not ui.once:
        body += [()] * (room - len(body))
    # A screen of a line or two keeps its last ones: a question must be seen.
    frame = tuple([*top, *body, *foot][-height:]) if room < 0 else (*top, *body, *foot)
    return in_ascii(frame) if ui.ascii else frame


def settled(scene: Scene, width: int, height: int) -> Ui:
    """The ui with scrolling that ends where the text does: a key never scrolls beyond that."""
    ui = scene.ui
    room = height - 2 - len(_banner(scene, width))
    last = len(helping.page(width, ui.readonly)) - room
    plan = _plan(scene, room, len(nodes.stragglers(scene, width)))
    back = lines.furthest(scene, plan.log) if plan.log else 0
    return replace(
        ui, help_top=max(0, min(ui.help_top, last)), log_back=max(0, min(ui.log_back, back))
    )


def natural(scene: Scene, width: int) -> int:
    """Lines of a screen that shows everything and nothing else."""
    panes = (
        2 + nodes.wanted(scene) + max(1, jobs.wanted(scene)) + len(nodes.stragglers(scene, width))
    )
    return max(SMALL, 2 + len(_banner(scene, width)) + panes)


def _help(ui: Ui, width: int, room: int) -> list[Row]:
    page = helping.page(width, ui.readonly)
    first = max(0, min(ui.help_top, len(page) - room))
    return [fit(row, width) for row in page[first : first + max(0, room)]]


def _panes(scene: Scene, width: int, room: int) -> list[Row]:
    if scene.snapshot is None:
        return [fit((Span(" waiting for the daemon's figures", "dim"),), width)]
    slow = nodes.stragglers(scene, width)
    plan = _plan(scene, room, len(slow))
    made: list[Row] = []
    if plan.nodes is not None:
        made += nodes.title_and_rows(scene, width, plan.nodes)
        made += slow[: max(0, room - len(made))]
    if plan.jobs is not None:
        made += jobs.title_and_rows(scene, width, plan.jobs)
        if not scene.snapshot.jobs and plan.jobs:
            made.append(fit((Span(" no jobs; wiiiiide submit job.toml queues one", "dim"),), width))
    if plan.log is not None:
        made += lines.title_and_rows(scene, width, plan.log)
    if detail := _details(scene, room):
        above = room - len(detail)
        made += [()] * (above - len(made))
        rows = [fit((Span(f" {words(text, scene.ui.ascii)}", "dim"),), width) for text in detail]
        made = [*made[:above], *rows]
    return made


def _details(scene: Scene, room: int) -> list[str]:
    """The selected row in full, and of a job that runs what it uses and reports."""
    if room < DETAILED - 2 or scene.ui.once:
        return []
    return [_detail(scene), *filter(None, [_doing(scene)])]


def _plan(scene: Scene, room: int, slow: int) -> Plan:
    ui = scene.ui
    if ui.once:
        return Plan(nodes.wanted(scene), max(1, jobs.wanted(scene)), None)
    if room < SMALL - 2:
        left = max(0, room - 1)
        focus = ui.focus
        return Plan(
            max(0, left - slow) if focus == "nodes" else None,
            left if focus == "jobs" else None,
            left if focus == "log" else None,
        )
    left = room - 2 - slow - len(_details(scene, room))
    log = None
    if ui.log:
        log = max(LOG_LEAST, left // 3)
        left -= log + 1
    for_nodes, for_jobs = _shared(left, nodes.wanted(scene), max(1, jobs.wanted(scene)))
    if log is not None:
        log += left - for_nodes - for_jobs
    return Plan(for_nodes, for_jobs, log)


def _shared(room: int, first: int, second: int) -> tuple[int, int]:
    """Lines for two panes: what they want, or half each and what the other leaves."""
    half = room // 2
    if first + second <= room:
        return first, second
    if second <= room - half:
        return room - second, second
    return (first, room - first) if first <= half else (half, room - half)


# ---- the lines round the panes


def _header(scene: Scene, width: int) -> Row:
    ui, snapshot = scene.ui, scene.snapshot
    parts = ["WIIIIIDE"]
    right = f"{ui.every_s:g}s"
    if snapshot is not None:
        parts += _summary(snapshot, scene)
        right = f"{_time(snapshot.at + scene.since_s, scene.offset_s)}  {right}"
    if ui.paused:
        right = f"PAUSED  {right}"
    if ui.once:
        right = "" if snapshot is None else _time(snapshot.at, scene.offset_s)
    while len(parts) > 1 and columns("  ".join(parts)) + columns(right) + 4 > width:
        parts.pop()
    left = " " + "  ".join(parts)
    if ui.once:
        return fit((Span(f"{left}  {right}", "bold"),), width)
    blanks = " " * max(2, width - columns(left) - columns(right) - 1)
    row = fit((Span(left + blanks + right + " "),), width)
    return filled(row, width, "dim" if scene.gone else "bar")


def _summary(snapshot: Snapshot, scene: Scene) -> list[str]:
    ui = scene.ui
    # Whether a job goes on while nobody tells is not known.
    now = snapshot.at + (0.0 if scene.gone or ui.paused else scene.since_s)
    there = sum(node.state != "lost" for node in snapshot.nodes)
    count = len(snapshot.nodes)
    parts = [words(snapshot.cluster, ui.ascii)[:40]]
    parts.append(f"{there}/{count} node{'' if count == 1 else 's'}")
    running = [row.job for row in snapshot.jobs if row.job.state in ON_NODES]
    if len(running) == 1:
        job = running[0]
        name = words(job.name, ui.ascii)[:24]
        began = now if job.started_at is None else job.started_at
        parts.append(f"job {job.id} {name} {job.state} {numbers.clock(now - began)}")
    elif running:
        parts.append(f"{len(running)} jobs running")
    held = sum(row.job.state == "held" for row in snapshot.jobs)
    waiting = sum(row.job.state not in {*ENDED, *ON_NODES, "held"} for row in snapshot.jobs)
    if snapshot.more > 0:  # of those that are not listed nobody says which are held
        return [*parts, f"{waiting + held + snapshot.more:,} queued or held"]
    if waiting:
        parts.append(f"{waiting} queued")
    if held:
        parts.append(f"{held} held")
    return parts


def _time(at: float, offset_s: int) -> str:
    seconds = int(at + offset_s) % 86400 if abs(at) < 1e15 else 0
    return f"{seconds // 3600:02}:{seconds // 60 % 60:02}:{seconds % 60:02}"


def _banner(scene: Scene, width: int) -> list[Row]:
    """What is wrong, in a line under the header."""
    if (gone := scene.gone) is not None:
        when = "waiting for it" if gone.retry_s is None else f"next try in {gone.retry_s:.0f} s"
        text = f" out of touch ({when}): {words(gone.reason, scene.ui.ascii)}"
    elif scene.snapshot is not None and scene.snapshot.problem:
        text = f" problem: {words(scene.snapshot.problem, scene.ui.ascii)}"
    else:
        return []
    return [fit((Span(text, "bad"),), width)]


def _doing(scene: Scene) -> str:
    row = selected_job(scene.snapshot, scene.ui)
    if scene.ui.focus == "nodes" or row is None or row.now is None:
        return ""
    now = row.now
    cores = "" if now.cpu is None else f"cpu {now.cpu:.1f} cores"
    memory = "" if now.memory is None else f"memory {compact_bytes(now.memory)}{_each(now)}"
    shown = list(now.metrics.items())[:METRICS]
    said = [f"{name} {'nan' if v is None else numbers.loss(v)}" for name, v in shown]
    return "  ".join(filter(None, (cores, memory, *said)))


def _each(now: JobNow) -> str:
    """From the rank with least to the one with most, where they are several."""
    sizes = [rank.memory for rank in now.ranks if rank.memory is not None]
    if len(sizes) < 2:
        return ""
    return f" ({compact_bytes(min(sizes))} to {compact_bytes(max(sizes))} a rank)"


def _detail(scene: Scene) -> str:
    ui, snapshot = scene.ui, scene.snapshot
    text = ""
    if ui.focus == "nodes" and (node := selected_node(snapshot, ui)) is not None:
        facts = [f"{node.cores} cores"] if node.cores else []
        facts += [f"{node.memory / (1 << 30):.1f} GiB"] if node.memory else []
        facts += ["jobs " + " ".join(map(str, node.jobs[:20]))] if node.jobs else []
        facts += [node.note] if node.note else []
        facts += [f"{node.codec}: {node.codec_why}"] if node.codec and node.codec_why else []
        text = f"{node.name}: {', '.join(facts)}"
    elif (row := selected_job(snapshot, ui)) is not None:
        text = f"{row.job.id} {row.job.name} of {row.job.owner}: {row.job.why}"
    return text


def _footer(scene: Scene, width: int) -> Row:
    ui = scene.ui
    if ui.question is not None:
        return filled(_question(ui.question, ui.ascii, width), width, "bar")
    if ui.help:
        return fit((Span(" ↑↓ scroll, any other key closes this page", "bold"),), width)
    pane = ui.nodes if ui.focus == "nodes" else ui.jobs
    if ui.typing:
        text = f" / {words(pane.filter, ui.ascii)}_   Enter keeps it  Esc shows all"
        return fit((Span(text, "bold"),), width)
    if ui.message:
        return fit((Span(" " + words(ui.message, ui.ascii), "bold"),), width)
    spans = [Span(" ")]
    if pane.filter:
        spans.append(Span(f"/{words(pane.filter, ui.ascii)} ({_matching(scene)})  ", "warn"))
    left = width - sum(columns(span.text) for span in spans)
    for key, what in KEYS:
        if ui.readonly and key in DESTRUCTIVE:
            continue
        left -= columns(key) + 1 + len(what) + 2
        if left < -2:
            break
        spans += [Span(key, "bold"), Span(f" {what}  ")]
    return fit((*spans[:-1], spans[-1]._replace(text=spans[-1].text.rstrip())), width)


def _question(question: Question | Resuming | Draining, ascii_only: bool, width: int) -> Row:
    """A long name is cut: what is asked, and how to answer, is always seen."""
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
    return fit((Span(before + text + after),), width)


def _draining(question: Draining, ascii_only: bool, width: int) -> Row:
    """Of a long reason the end is seen: that is where one types."""
    name = cut(words(question.node, ascii_only), max(1, min(NAME_MOST, width // 4)))
    before, reason = f" drain {name}, because: ", words(question.reason, ascii_only)
    after = "_   Enter drains it  Esc does not"
    if columns(before) + len(after) > width - REASON_LEAST:
        after = "_"
    room = max(1, width - columns(before) - len(after))
    while columns(reason) > room:
        reason = reason[1:]
    return fit((Span(before + reason + after),), width)


def _matching(scene: Scene) -> str:
    snapshot, ui = scene.snapshot, scene.ui
    if snapshot is None:
        return "nothing yet"
    if ui.focus == "nodes":
        return f"{len(nodes_of(snapshot, ui))} of {len(snapshot.nodes)}"
    return f"{len(jobs_of(snapshot, ui))} of {len(snapshot.jobs)}"
