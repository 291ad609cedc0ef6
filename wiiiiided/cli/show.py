"""`wiiiiide show`: everything about one job: facts, figures, ranks, story, its error."""

from __future__ import annotations

import shlex
import sys
import time
from collections.abc import Iterator
from typing import Any

from wiiiiided.cli import screen
from wiiiiided.cli.daemon import connect, fields
from wiiiiided.cli.jobs import attempts
from wiiiiided.cli.options import Id, Json
from wiiiiided.cli.text import cell, clean, columns, pad
from wiiiiided.cli.words import clock, code_words, job_id, span
from wiiiiided.domain.figures import RankSample
from wiiiiided.jobfile.spoken import as_in_file
from wiiiiided.report.ranks import memory_of
from wiiiiided.report.sound import sound_run
from wiiiiided.report.summary import beyond_state, figures, has_figures, is_loud
from wiiiiided.report.words import size
from wiiiiided.wire.messages import JobDetail, JobView


def command(job: Id, as_json: Json = False) -> None:
    """Print everything about a job: what it is, its ranks, what happened to it, how it failed.

    Of a job that ran also its figures; of one that waits what earlier runs of its name needed.
    """
    detail = connect().show(job_id(job))
    if as_json:
        screen.put_json({**fields(detail), "job": fields(detail.job)})
        return
    for line in lines(detail, time.time()):
        screen.put(line)


def lines(detail: JobDetail, now: float) -> Iterator[str]:
    """The whole page. Everything in it is clean."""
    job = detail.job
    yield _heading(f"job {job.id}: {cell(job.name)}")
    for title, text in _facts(detail, now):
        yield f"  {title:<10} {text}"
    spec = [f"  {cell(key)} = {cell(value)}" for key, value in settings_of(detail.spec)]
    if spec:
        yield from ("", _heading("settings"), *spec)
    yield from _figures(detail)
    if detail.ranks:
        yield from ("", _heading("ranks"))
    widest = max((columns(cell(rank.node)) for rank in detail.ranks), default=0)
    run = detail.run
    used = {} if run is None else {rank.rank: rank.totals for rank in run.ranks}
    for rank in detail.ranks:
        pid = "" if rank.pid is None else f"  pid {rank.pid}"
        code = "" if rank.code is None else f"  exit code {code_words(rank.code)}"
        use = "" if rank.state != "running" else _use(used.get(rank.rank))
        yield f"  {rank.rank:>3}  {pad(cell(rank.node), widest)}  {rank.state}{pid}{code}{use}"
    if detail.story:
        yield from ("", _heading("story"))
    for told in detail.story:
        yield f"  {clock(told.at)}  {cell(told.text)}"
    if detail.error:
        yield from ("", _heading("error"))
        yield from (f"  {clean(line)}" for line in detail.error.rstrip("\n").split("\n"))


def _use(totals: RankSample | None) -> str:
    """What the processes of a rank use now."""
    if totals is None:
        return ""
    cores = "" if totals.cpu is None else f"  {totals.cpu:.1f} cores"
    return cores + ("" if totals.memory is None else f"  {size(totals.memory)}")


def _figures(detail: JobDetail) -> Iterator[str]:
    """What the latest attempt counted; nothing where it counted nothing."""
    run = None if detail.run is None else sound_run(detail.run)
    if run is None or not (has_figures(run) or memory_of(run) is not None):
        return
    running = "" if run.ended_at is not None else " so far"
    yield from ("", _heading(f"figures of attempt {run.attempt}{running}"))
    for title, text in figures(run):
        told = cell(text)
        shown = screen.paint(told, screen.BOLD, sys.stdout) if is_loud(title, text) else told
        yield f"  {title:<10} {shown}"


def _heading(text: str) -> str:
    return screen.paint(text, screen.BOLD, sys.stdout)


def _facts(detail: JobDetail, now: float) -> Iterator[tuple[str, str]]:
    job = detail.job
    state = screen.paint(job.state, screen.STATE_COLOURS.get(job.state), sys.stdout)
    yield "state", state + cell(beyond_state(job.state, job.why))
    if job.sweep:
        pairs = ", ".join(f"{key} = {value}" for key, value in job.setting.items())
        yield "sweep", cell(f"{job.sweep}: {pairs}")
    yield "owner", f"{cell(job.owner)}, priority {job.priority}"
    yield "submitted", f"{clock(job.submitted_at)} ({span(now - job.submitted_at)} ago)"
    if job.starts:
        yield "starts", cell(job.starts.removeprefix("starts "))
    if job.started_at is not None:
        yield "started", f"{clock(job.started_at)} (attempt {attempts(job)})"
    if job.ended_at is not None:
        yield "ended", f"{clock(job.ended_at)}{_ran(job)}, exit code {code_words(job.code)}"
    where = " on " + cell(", ".join(job.nodes)) if job.nodes else ""
    yield "workers", f"{job.workers}{where}"
    argv = detail.spec.get("run", {}).get("command", ())
    if detail.forecast is not None:
        yield "expects", cell(detail.forecast.text)
    yield "command", cell(shlex.join(map(str, argv)))
    yield "directory", cell(detail.directory)


def _ran(job: JobView) -> str:
    if job.started_at is None or job.ended_at is None:
        return ""
    return f" after {span(job.ended_at - job.started_at)}"


def settings_of(tree: dict[str, Any], prefix: str = "") -> Iterator[tuple[str, str]]:
    """`policy.max_time` and `"8h"` of each value; command and name have lines of their own."""
    for key, value in tree.items():
        path = prefix + key
        if isinstance(value, dict) and value:
            yield from settings_of(value, path + ".")
        elif path not in ("name", "run.command") and value not in ({}, [], None):
            yield as_in_file(path, value)
