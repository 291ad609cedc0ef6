"""The pane of jobs: those that run, the queue, and the latest that are over.

     JOB NAME    STATE     NODES  STEP        LOSS   ETA       TRY  WHY
    ▸ 17 digits  running   a b c  7951/23460  0.412  01:20:10  1/4  runs on a, b, c
      18 lm      queued                                             waits for a, which runs job 17

A job that does not run has no step: the place is empty. One that runs and never said has `–`.
"""

from __future__ import annotations

from collections.abc import Sequence

from wiiiiided.domain.figures import JobNow, Rates
from wiiiiided.text import columns
from wiiiiided.top import numbers
from wiiiiided.top.grid import NAME_MOST, SORTED, Cell, Column, Grid, grid, mark, nothing, words
from wiiiiided.top.order import JOB_ORDERS, job_at, jobs_of, sorting, window
from wiiiiided.top.spans import Row, Span, Style, fit
from wiiiiided.top.ui import Scene
from wiiiiided.wire.messages import JobRow, JobView

STYLES: dict[str, Style] = {
    "running": "good",
    "starting": "good",
    "failed": "bad",
    "hung": "bad",
    "stopping": "warn",
    "backoff": "warn",
    "done": "dim",
    "cancelled": "dim",
}
FIRST, LAST = Column("name", "NAME", 6, right=False), Column("why", "WHY", 0, right=False)
TIERS = (
    (120, "state nodes step loss rate comm eta try"),
    (100, "state nodes step loss eta try"),
    (80, "state step loss eta try"),
    (60, "state step eta"),
    (0, "state step"),
)
TITLES = {
    "state": ("STATE", 9),
    "nodes": ("NODES", 9),
    "step": ("STEP", 13),
    "loss": ("LOSS", 8),
    "rate": ("RATE", 10),
    "comm": ("COMM%", 5),
    "eta": ("ETA", 8),
    "try": ("TRY", 5),
}
LEFT = ("state", "nodes")
STEP_LEAST, STEP_MOST = 7, 13
NODES_MOST = 20  # columns; more names are counted


def title_and_rows(scene: Scene, width: int, room: int) -> list[Row]:
    """The heading and as many jobs as there is room for; last, how many are not listed."""
    more = _more(scene) if room > 1 else 0
    if not more:
        return _rows(scene, width, room)
    rows = _rows(scene, width, room - 1)
    return [*rows, fit((Span(f" … {more:,} more; wiiiiide ps lists all", "dim"),), width)]


def _rows(scene: Scene, width: int, room: int) -> list[Row]:
    ui, jobs = scene.ui, jobs_of(scene.snapshot, scene.ui)
    table = _grid(jobs, scene, width)
    focus = ui.focus == "jobs" and not ui.once
    order = ui.jobs
    column, falling = sorting(order, JOB_ORDERS)
    # The number and the name share a column: the mark of the name is in its title already.
    column = {"id": "name", "name": ""}.get(column, column)
    rows = [table.title(column, falling, focus or ui.once)]
    if not jobs and order.filter and scene.snapshot and scene.snapshot.jobs and room > 0:
        return [*rows, nothing(order.filter, ui.ascii, width)]
    place = job_at(jobs, ui)
    shown = window(len(jobs), place, room)
    digits = max(3, ui.seen.digits)
    for number in shown:
        sign = mark(number, shown, len(jobs), None if ui.once else place)
        cells = _cells(jobs[number], digits, scene)
        rows.append(table.row(cells, sign, focus and number == place))
    return rows


def wanted(scene: Scene) -> int:
    count = len(jobs_of(scene.snapshot, scene.ui))
    return max(1, count) + 1 if _more(scene) else count


def _more(scene: Scene) -> int:
    """Jobs of the queue beyond those that the daemon lists."""
    return 0 if scene.snapshot is None else max(0, scene.snapshot.more)


def attempts(job: JobView) -> str:
    """Which one it is, and of how many; nothing before the first."""
    if not job.attempt:
        return ""
    return f"{job.attempt}/{job.attempts}" if job.attempts > 1 else str(job.attempt)


def _grid(jobs: Sequence[JobRow], scene: Scene, width: int) -> Grid:
    keys = next(keys for least, keys in TIERS if width >= least).split()
    ui, number = scene.ui, max(3, scene.ui.seen.digits)
    fixed = []
    for key in keys:
        heading, size = TITLES[key]
        if key == "nodes":
            size = max(5, ui.seen.nodes)
        if key == "step":
            size = max(4, ui.seen.step)
        fixed.append(Column(key, heading, size, right=key not in LEFT))
    name = max(4, ui.seen.job if ui.once else min(ui.seen.job, NAME_MOST))
    why = max((columns(_why(row, scene)) for row in jobs), default=0)
    column, falling = sorting(ui.jobs, JOB_ORDERS)
    sign = SORTED[falling] if column == "name" else " "
    first = Column("name", f"{'JOB':>{number}}{sign}NAME", FIRST.width + number, right=False)
    return grid(width, (first, name + 1 + number), fixed, (LAST, why))


def _why(row: JobRow, scene: Scene) -> str:
    return "" if row.job.why == row.job.state else words(row.job.why, scene.ui.ascii)


def nodes_text(row: JobRow, in_ascii: bool) -> str:
    text = " ".join(words(name, in_ascii) for name in row.job.nodes[:NODES_MOST])
    count = len(row.job.nodes)
    return text if count <= NODES_MOST and columns(text) <= NODES_MOST else f"{count} nodes"


def _step(row: JobRow) -> str:
    return "" if row.now is None else numbers.steps(row.now.step, row.now.total)


def step_room(row: JobRow) -> int:
    """Columns that its step will need, not just now: up to the last one."""
    if row.now is None:
        return 0
    at_end = numbers.steps(row.now.total or row.now.step, row.now.total)
    return max(len(_step(row)), STEP_LEAST, min(len(at_end), STEP_MOST))


def _rate(rates: Rates) -> str:
    """What it gets done, with its unit: jobs differ in what they say."""
    for value, unit in ((rates.samples, "smp"), (rates.steps, "stp")):
        if value is not None:
            return f"{numbers.rate(value, 6)} {unit}"
    return numbers.UNKNOWN


def _loss(now: JobNow) -> Cell:
    return Cell("nan", "bad") if now.diverged else Cell(numbers.loss(now.loss))


def _cells(row: JobRow, digits: int, scene: Scene) -> dict[str, Cell]:
    job, now = row.job, row.now
    made = {
        "name": Cell(f"{job.id:>{digits}} {words(job.name, scene.ui.ascii)}"),
        "state": Cell(words(job.state, scene.ui.ascii), STYLES.get(job.state, "")),
        "nodes": Cell(nodes_text(row, scene.ui.ascii)),
        "try": Cell(attempts(job)),
        "why": Cell(_why(row, scene)),
    }
    if now is not None:
        made["step"] = Cell(_step(row))
        made["loss"] = _loss(now)
        made["rate"] = Cell(_rate(now.rates))
        comm = now.rates.exchange if now.rates.measured else None
        made["comm"] = Cell(numbers.percent(comm))
        made["eta"] = Cell(numbers.clock(now.eta_s))
    return made
