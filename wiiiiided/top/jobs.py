"""The pane of jobs: those that run, the queue, and the latest that are over.

     JOB NAME    STATE     NODES  STEP        LOSS   ETA       TRY  WHY
    ▸ 17 digits  running   a b c  7951/23460  0.412  01:20:10  1/4  runs on a b c
      18 lm      queued                                             waits for a, which runs job 17

A job that does not run has no step: the place is empty. One that runs and never said has `–`.
"""

from __future__ import annotations

from collections.abc import Sequence

from wiiiiided.text import columns
from wiiiiided.top import numbers
from wiiiiided.top.grid import Cell, Column, Grid, grid, mark, words
from wiiiiided.top.order import JOB_ORDERS, job_at, jobs_of, sorting, window
from wiiiiided.top.spans import Row, Style
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
NAME_MOST = 24  # the name of a job gives way to the reason
TIERS = (
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
    "eta": ("ETA", 8),
    "try": ("TRY", 5),
}
LEFT = ("state", "nodes")
NODES_MOST = 20  # columns; more names are counted


def title_and_rows(scene: Scene, width: int, room: int) -> list[Row]:
    """The heading and as many jobs as there is room for."""
    ui, jobs = scene.ui, jobs_of(scene.snapshot, scene.ui)
    table = _grid(jobs, scene, width)
    focus = ui.focus == "jobs" and not ui.once
    order = ui.jobs
    rows = [table.title(*sorting(order, JOB_ORDERS), focus or ui.once)]
    place = job_at(jobs, ui)
    shown = window(len(jobs), place, room)
    digits = max([3, *(len(str(row.job.id)) for row in jobs)])
    for number in shown:
        sign = mark(number, shown, len(jobs), None if ui.once else place)
        cells = _cells(jobs[number], digits, scene)
        rows.append(table.row(cells, sign, focus and number == place))
    return rows


def wanted(scene: Scene) -> int:
    return len(jobs_of(scene.snapshot, scene.ui))


def attempts(job: JobView) -> str:
    """Which one it is, and of how many; nothing before the first."""
    if not job.attempt:
        return ""
    return f"{job.attempt}/{job.attempts}" if job.attempts > 1 else str(job.attempt)


def _grid(jobs: Sequence[JobRow], scene: Scene, width: int) -> Grid:
    keys = next(keys for least, keys in TIERS if width >= least).split()
    number = max((len(str(row.job.id)) for row in jobs), default=0)
    fixed = []
    for key in keys:
        heading, size = TITLES[key]
        if key == "nodes":
            size = max([5, *(columns(_nodes(row, scene)) for row in jobs)])
        if key == "step":
            size = max([4, *(len(_step(row)) for row in jobs)])
        fixed.append(Column(key, heading, size, right=key not in LEFT))
    longest = max((columns(words(row.job.name, scene.ui.ascii)) for row in jobs), default=4)
    name = min(longest, NAME_MOST if width < 120 else 2 * NAME_MOST)
    why = max((columns(_why(row, scene)) for row in jobs), default=0)
    first = Column("name", f"{'JOB':>{max(3, number)}} NAME", FIRST.width + number, right=False)
    return grid(width, (first, name + 1 + max(3, number)), fixed, (LAST, why))


def _why(row: JobRow, scene: Scene) -> str:
    return "" if row.job.why == row.job.state else words(row.job.why, scene.ui.ascii)


def _nodes(row: JobRow, scene: Scene) -> str:
    text = " ".join(words(name, scene.ui.ascii) for name in row.job.nodes[:NODES_MOST])
    count = len(row.job.nodes)
    return text if count <= NODES_MOST and columns(text) <= NODES_MOST else f"{count} nodes"


def _step(row: JobRow) -> str:
    return "" if row.now is None else numbers.steps(row.now.step, row.now.total)


def _cells(row: JobRow, digits: int, scene: Scene) -> dict[str, Cell]:
    job, now = row.job, row.now
    made = {
        "name": Cell(f"{job.id:>{digits}} {words(job.name, scene.ui.ascii)}"),
        "state": Cell(words(job.state, scene.ui.ascii), STYLES.get(job.state, "")),
        "nodes": Cell(_nodes(row, scene)),
        "try": Cell(attempts(job)),
        "why": Cell(_why(row, scene)),
    }
    if now is not None:
        made["step"] = Cell(_step(row))
        made["loss"] = Cell(numbers.loss(now.loss))
        made["eta"] = Cell(numbers.clock(now.eta_s))
    return made
