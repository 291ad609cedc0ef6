"""The pane of jobs: those that run, the queue, and the latest that are over.

    ╭─ jobs 3 ──────────────────────────────────────────────────────────────────────────────────╮
    │  job name    state      progress            step         loss          samples/s       eta │
    │▸  17 digits  ▶ running  ━━━━━━─────── 7951/23460 █▅▃▂▁▁ 0.412          412.0 smp  01:20:10 │
    │   18 lm      ◷ queued   waits for a, which runs job 17                                     │
    │   16 first   ✗ failed   ValueError: boom (rank 1 ended with exit code 1)            3m ago │
    ╰─ 17 digits of ada: runs on a b c ─────────────────────────────────────────────────────────╯

A job that does not run has its reason where the others have their progress. A job that runs and
never said its step has `–`.
"""

from __future__ import annotations

from collections.abc import Mapping

from rich.console import Group, RenderableType
from rich.text import Text

from wiiiiided.cluster.rpc.messages import JobRow, JobView
from wiiiiided.domain.metrics import JobNow, Rates
from wiiiiided.domain.states import ENDED, ON_NODES
from wiiiiided.text import columns, format_duration
from wiiiiided.ui.top import formats
from wiiiiided.ui.top.marks import (
    BLANK,
    Inner,
    Mark,
    Pieces,
    ProgressBar,
    RowStrip,
    Sparkline,
    cell,
    stretched,
)
from wiiiiided.ui.top.order import JOB_ORDERS, job_at, jobs_of, selected_job, sorting, window
from wiiiiided.ui.top.pane import (
    EDGES,
    NAME_MOST,
    SORTED,
    fitted,
    framed,
    inside,
    line,
    mark,
    nothing,
    rows_of,
    short,
    title,
    words,
)
from wiiiiided.ui.top.ui import Scene

SIGNS = {  # of each state: sign, style
    "running": ("▶", "run"),
    "starting": ("▷", "run"),
    "queued": ("◷", "wait"),
    "held": ("‖", "wait"),
    "failed": ("✗", "bad"),
    "hung": ("!", "bad"),
    "stopping": ("■", "warn"),
    "backoff": ("↻", "warn"),
    "done": ("✓", "dim"),
    "cancelled": ("⊘", "dim"),
}
STEP_LEAST, STEP_MOST = 7, 13
ETA = 8
# The columns of a job that runs, as there is room for them, the most wanted first.
WIDER = (
    *(("bar", 5), ("loss", 6), ("spark", 6), ("bar", 10), ("loss", 8), ("spark", 8), ("rate", 10)),
    *(("bar", 20), ("spark", 16), ("bar", 30), ("spark", 24), ("bar", 40), ("spark", 40)),
    *(("bar", 60), ("spark", 60), ("bar", 80), ("spark", 100)),
)
PAPER = tuple(entry for entry in WIDER if entry[0] != "spark")  # losses are seen in a session
HEADINGS = {"bar": "progress", "step": "step", "spark": "", "loss": "loss", "rate": "rate"}
RIGHT = {"step", "rate"}


def pane(scene: Scene, width: int, height: int) -> RenderableType:
    """The pane in `height` lines with its frame; the last says how many jobs are not listed."""
    ui, jobs = scene.ui, jobs_of(scene.snapshot, scene.ui)
    focus = ui.focus == "jobs" and not ui.once
    every = scene.snapshot.jobs if scene.snapshot else ()
    about = f"{len(every)}" if len(jobs) == len(every) else f"{len(jobs)} of {len(every)}"
    heading = title("jobs", about, focus)
    room = rows_of(height)
    more = _more(scene) if room > 2 else 0
    rows = _rows(jobs, scene, width, room - bool(more))
    if not jobs and ui.jobs.filter and every:
        rows = [nothing(ui.jobs.filter, ui.ascii)]
    elif not jobs and not more:
        rows = [line(" no jobs; wiiiiide submit job.toml queues one", style="dim")]
    if more:
        rows.append(line(f" … {more:,} more; wiiiiide ps lists all", style="dim"))
    below = None if ui.once else _selected(scene)
    return framed(Group(*rows), heading, width, ui, height=height, focus=focus, below=below)


def wanted(scene: Scene) -> int:
    """The lines of the pane with its frame and heading, when there is room for all."""
    count = len(jobs_of(scene.snapshot, scene.ui))
    return EDGES + 1 + max(1, count) + bool(_more(scene))


def _more(scene: Scene) -> int:
    """Jobs of the queue beyond those that the daemon lists."""
    return 0 if scene.snapshot is None else max(0, scene.snapshot.more)


def _selected(scene: Scene) -> Text | None:
    """The selected job's sentence in full, as far as the frame goes."""
    row = selected_job(scene.snapshot, scene.ui)
    if row is None:
        return None
    job = row.job
    began = ""
    if job.state in ON_NODES and job.started_at is not None and scene.snapshot is not None:
        gone_on = 0.0 if scene.gone or scene.ui.paused else scene.since_s
        began = f", {format_duration(max(0.0, scene.snapshot.at + gone_on - job.started_at))}"
    again = f", attempt {attempts(job)}" if job.attempt > 1 else ""
    head = f"{job.id} {short(job.name, scene.ui)} of {words(job.owner, scene.ui.ascii)}"
    return line((f"{head}{began}{again}: {words(job.why, scene.ui.ascii)}", "dim"))


def attempts(job: JobView) -> str:
    """Which attempt it is, and of how many; empty before the first."""
    if not job.attempt:
        return ""
    return f"{job.attempt}/{job.attempts}" if job.attempts > 1 else str(job.attempt)


# ---- rows


def _rows(jobs: list[JobRow], scene: Scene, width: int, room: int) -> list[RenderableType]:
    ui = scene.ui
    sizes, runs = _widths(scene, width)
    by, falling = sorting(ui.jobs, JOB_ORDERS)
    rows: list[RenderableType] = [_headings(sizes, runs, by, SORTED[falling])]
    place = job_at(jobs, ui)
    shown = window(len(jobs), place, room - 1)
    for number in shown:
        sign = mark(number, shown, len(jobs), None if ui.once else place)
        picked = number == place and ui.focus == "jobs" and not ui.once
        rows.append(_row(jobs[number], scene, sizes, runs, sign, picked))
    return rows


def _widths(scene: Scene, width: int) -> tuple[dict[str, int], dict[str, int]]:
    """The widths of the columns of all jobs, and of those that a running job has in the middle."""
    ui, room = scene.ui, inside(width)
    number = max(3, ui.seen.digits)
    name = max(4, ui.seen.job if ui.once else min(ui.seen.job, NAME_MOST))
    if ui.once:  # a file has no end of lines
        rows = scene.snapshot.jobs if scene.snapshot else ()
        reasons = max((columns(reason(row, ui.ascii)) for row in rows), default=0)
        room = min(room, 1 + number + name + 11 + max(70, reasons) + ETA + 5)
    state = 11 if room >= 60 else 1
    eta = ETA if room >= 48 else 0
    fixed = 1 + number + 1 + 1 + state + 1 + (eta + 1 if eta else 0)
    step = max(4, ui.seen.step)
    name = min(name, max(6, room - fixed - step - 8))
    middle = max(1, room - fixed - name - 1)
    runs = fitted({"step": min(step, middle)}, PAPER if ui.once else WIDER, middle)
    sizes = {"mark": 1, "id": number, "name": name, "state": state, "middle": middle}
    order = [key for key in HEADINGS if key in runs]
    return sizes | ({"eta": eta} if eta else {}), {key: runs[key] for key in order}


def _headings(sizes: dict[str, int], runs: dict[str, int], by: str, arrow: str) -> RenderableType:
    def text(key: str, name: str, size: int = NAME_MOST) -> str:
        shown = f"{arrow}{name}" if by == key else name
        return shown if len(shown) <= size else ""

    middle: list[tuple[Mark, int]] = [
        (cell((text(key, HEADINGS[key], size), "head"), right=key in RIGHT), size)
        for key, size in runs.items()
    ]
    parts: dict[str, Mark] = {
        "id": cell((text("id", "id") if by == "id" else "job", "head"), right=True),
        "name": cell((text("name", "name"), "head")),
        "state": cell((text("state", "state") if sizes["state"] > 1 else "", "head")),
        "middle": Inner(RowStrip(middle)),
        "eta": cell((text("eta", "eta"), "head"), right=True),
    }
    return RowStrip([(parts.get(key, BLANK), size) for key, size in sizes.items()])


def _row(
    row: JobRow,
    scene: Scene,
    sizes: Mapping[str, int],
    runs: Mapping[str, int],
    sign: str,
    picked: bool,
) -> RenderableType:
    job = row.job
    icon, style = SIGNS.get(job.state, ("·", ""))
    over = job.state in ("done", "cancelled")
    word = f"{icon} {words(job.state, scene.ui.ascii)}" if sizes["state"] > 1 else icon
    name = "select" if picked else "dim" if over else "bold" if job.state in ON_NODES else ""
    parts: dict[str, Mark] = {
        "mark": cell((sign, "focus" if picked else "")),
        "id": cell((str(job.id), "dim" if over else ""), right=True),
        "name": cell(short(job.name, scene.ui), style=name),
        "state": cell((word, style)),
        "middle": _middle(row, scene, runs),
        "eta": cell((_when(row, scene), "dim" if job.state in ENDED else ""), right=True),
    }
    return RowStrip([(parts[key], size) for key, size in sizes.items()])


def _middle(row: JobRow, scene: Scene, runs: Mapping[str, int]) -> Mark:
    job, now = row.job, row.now
    if now is None or job.state not in ON_NODES:
        return cell((reason(row, scene.ui.ascii), _reason_style(job)))
    cells = _running(row, now, scene)
    return Inner(RowStrip([(cells[key], size) for key, size in runs.items()]))


def _running(row: JobRow, now: JobNow, scene: Scene) -> dict[str, Mark]:
    losses = scene.losses.get(row.job.id, ())
    known = now.step is not None and bool(now.total)
    share = min(1.0, (now.step or 0) / now.total) if now.total else 0.0
    style = "bad" if row.job.state == "hung" else "run"
    loss = cell(("nan", "bad")) if now.diverged else cell(formats.loss(now.loss))
    return {
        "bar": ProgressBar(share, style) if known else BLANK,
        "step": cell(step_text(row), right=True),
        "spark": _LossCurve(losses) if len(losses) > 1 else BLANK,
        "loss": loss,
        "rate": cell(rate_text(now.rates), right=True),
    }


class _LossCurve(Sparkline):
    """All losses of a run in the width there is: the shape of the curve counts, not its end."""

    def __init__(self, values: tuple[float, ...]) -> None:
        super().__init__(values, "loss")

    def pieces(self, width: int) -> Pieces:
        low = min(self.values)
        shown = stretched([value - low for value in self.values], width)
        yield from Sparkline(shown, self.style).pieces(width)


def reason(row: JobRow, in_ascii: bool) -> str:
    """Why a job waits or how it ended; of a failed job the exception's line first."""
    job = row.job
    why = "" if job.why == job.state else words(job.why, in_ascii)
    if job.state in ENDED:  # "cancelled by ada" stands right beside "cancelled"
        why = why.removeprefix(f"{job.state} ")
    error = words(job.error, in_ascii)
    if error:  # the daemon's sentence ends with it
        why = why.replace(f": {error}", "", 1)
    return f"{error} ({why})" if error and why else error or why


def _reason_style(job: JobView) -> str:
    return "bad" if job.state == "failed" else "" if job.state in ON_NODES else "dim"


def _when(row: JobRow, scene: Scene) -> str:
    """The time until its end while the job runs, since its end when it is over."""
    job = row.job
    if row.now is not None and job.state in ON_NODES:
        return formats.clock(row.now.eta_s)
    if job.state in ENDED and job.ended_at is not None and scene.snapshot is not None:
        return f"{formats.age(max(0.0, scene.snapshot.at - job.ended_at))} ago"
    return ""


def step_text(row: JobRow) -> str:
    return "" if row.now is None else formats.steps(row.now.step, row.now.total)


def step_room(row: JobRow) -> int:
    """The columns that a job's step will need, up to its last step."""
    if row.now is None:
        return 0
    at_end = formats.steps(row.now.total or row.now.step, row.now.total)
    return max(columns(step_text(row)), STEP_LEAST, min(len(at_end), STEP_MOST))


def rate_text(rates: Rates) -> str:
    """A job's throughput with its unit: scripts report different ones."""
    for value, unit in ((rates.samples, "smp"), (rates.steps, "stp")):
        if value is not None:
            return f"{formats.rate(value, 6)} {unit}"
    return formats.UNKNOWN
