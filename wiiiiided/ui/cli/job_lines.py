"""Jobs as rows of a table, for ps and history, and in one line."""

from __future__ import annotations

import sys
import time
from collections.abc import Sequence

from wiiiiided.cluster.rpc.messages import JobView
from wiiiiided.domain.states import ENDED
from wiiiiided.domain.sweep import label
from wiiiiided.text import clean, format_duration
from wiiiiided.ui.cli import screen
from wiiiiided.ui.cli.table import TableColumn, render


def is_over(job: JobView) -> bool:
    return job.state in ENDED


def exit_code(job: JobView) -> int:
    """The code with which `wait` ends for a job that is over."""
    if job.code is not None:
        return job.code
    return 0 if job.state == "done" else 1


def lasted(job: JobView, now: float | None = None) -> float:
    """The seconds that a job has run, or has waited so far."""
    end = job.ended_at if job.ended_at is not None else time.time() if now is None else now
    begin = job.submitted_at if job.started_at is None else job.started_at
    waits = job.state in ("queued", "held", "backoff")
    return end - (job.submitted_at if waits else begin)


def took(job: JobView, now: float | None = None) -> str:
    """`lasted` as text; "-" for a job that ended before it ran."""
    return "-" if is_over(job) and job.started_at is None else format_duration(lasted(job, now))


def attempts(job: JobView) -> str:
    """Which attempt, and of how many where its policy allows more; "-" before the first."""
    if not job.attempt:
        return "-"
    # A user who requeues a job may go beyond what the policy allows by itself.
    more = job.attempts > 1 and job.attempt <= job.attempts
    return f"{job.attempt}/{job.attempts}" if more else str(job.attempt)


def line(job: JobView) -> str:
    """One job in one line: `job 17 (digits): runs on a`."""
    return f"job {job.id} ({job.name}): {job.why}"


def base_name(job: JobView) -> str:
    """The job's name in its file, without the setting that tells it from others of its sweep."""
    return job.name.removesuffix(f" {label(job.setting)}") if job.setting else job.name


def with_start(why: str, starts: str) -> str:
    """Why a job waits, and when it starts, or why that is not known."""
    return f"{why}; {starts}" if starts else why


def ending(job: JobView) -> str:
    """How a job ended, in one line. The sentence of one whose end is not recorded yet says so."""
    if not is_over(job):
        return f"job {job.id} ({job.name}) {job.why}"
    ran = "" if job.started_at is None else format_duration(lasted(job))
    if job.why == job.state:
        return f"job {job.id} ({job.name}) {job.state}" + (f" after {ran}" if ran else "")
    words = "" if job.why.startswith(job.state) else f"{job.state}: "
    return f"job {job.id} ({job.name}) {words}{job.why}" + (f"; it ran for {ran}" if ran else "")


def reason(job: JobView) -> str:
    """The job's sentence, where it says more than its state."""
    return "" if job.why == job.state else job.why


def say_problem(problem: str) -> None:
    """The problem of the daemon that has the queue, below what it answered."""
    if problem:
        screen.say(f"the daemon says: {clean(problem)}")


def put_table(columns: Sequence[TableColumn], rows: list[list[str]]) -> None:
    """The rows on stdout, as wide as the screen: drawn on a terminal, aligned in a pipe."""
    if sys.stdout.isatty():
        from wiiiiided.ui.cli import rich_drawing

        rich_drawing.table(columns, rows)
        return
    for row in render(columns, rows, screen.width()):
        screen.put(row)
