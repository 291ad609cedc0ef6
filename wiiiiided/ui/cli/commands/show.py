"""`wiiiiide show`: everything about one job: facts, metrics, ranks, story, its error."""

from __future__ import annotations

import shlex
import time
from collections.abc import Iterator
from functools import partial
from typing import Any

from wiiiiided.cluster.rpc.messages import JobDetail, JobView
from wiiiiided.domain.exit_codes import code_words
from wiiiiided.domain.metrics import RankSample
from wiiiiided.text import cell, clean, columns, format_duration, format_moment, pad
from wiiiiided.ui.cli import screen
from wiiiiided.ui.cli.daemon import connect, fields
from wiiiiided.ui.cli.job_lines import attempts
from wiiiiided.ui.cli.option_values import job_id
from wiiiiided.ui.cli.options import Id, Json
from wiiiiided.ui.cli.sections import FactSection, Row, put
from wiiiiided.ui.jobfile.to_toml import as_in_file
from wiiiiided.ui.report.formats import size
from wiiiiided.ui.report.ranks import memory_of
from wiiiiided.ui.report.sanitize import sanitized_run
from wiiiiided.ui.report.summary import beyond_state, has_metrics, is_loud, metric_rows


def command(job: Id, as_json: Json = False) -> None:
    """Print everything about a job: what it is, its ranks, what happened to it, how it failed.

    Of a job that ran also its metrics; of a waiting job what earlier runs of its name needed.
    """
    detail = connect().show(job_id(job))
    if as_json:
        screen.put_json({**fields(detail), "job": fields(detail.job)})
        return
    put(sections(detail, time.time()))


def sections(detail: JobDetail, now: float) -> Iterator[FactSection]:
    """The whole page. Everything in it is clean."""
    job = detail.job
    title = f"job {job.id}: {cell(job.name)}"
    yield FactSection(title, list(_facts(detail, now)), state=job.state)
    if spec := [(cell(key), cell(value)) for key, value in settings_of(detail.spec)]:
        yield FactSection("settings", spec, lambda row: f"  {row[0]} = {row[1]}")
    yield from _metrics(detail)
    if detail.ranks:
        rows = list(_ranks(detail))
        widest = max(columns(row[1]) for row in rows)
        yield FactSection("ranks", rows, partial(_rank, widest))
    if detail.story:
        story = [(format_moment(told.at), cell(told.text)) for told in detail.story]
        yield FactSection("story", story, lambda row: f"  {row[0]}  {row[1]}")
    if detail.error:
        error = [(clean(line),) for line in detail.error.rstrip("\n").split("\n")]
        yield FactSection("error", error, lambda row: f"  {row[0]}", state="failed")


def _ranks(detail: JobDetail) -> Iterator[Row]:
    """Each rank: its node, its state, its process, and what that uses now."""
    run = detail.run
    used = {} if run is None else {rank.rank: rank.totals for rank in run.ranks}
    for rank in detail.ranks:
        pid = "" if rank.pid is None else f"pid {rank.pid}"
        code = "" if rank.code is None else f"exit code {code_words(rank.code)}"
        use = "" if rank.state != "running" else _use(used.get(rank.rank))
        more = "  ".join(filter(None, (pid, code, use)))
        yield str(rank.rank), cell(rank.node), rank.state, more


def _rank(widest: int, row: Row) -> str:
    number, node, state, more = row
    return f"  {number:>3}  {pad(node, widest)}  {state}  {more}".rstrip()


def _use(totals: RankSample | None) -> str:
    """The resources the processes of a rank use now."""
    if totals is None:
        return ""
    cores = "" if totals.cpu is None else f"{totals.cpu:.1f} cores"
    memory = "" if totals.memory is None else size(totals.memory)
    return "  ".join(filter(None, (cores, memory)))


def _metrics(detail: JobDetail) -> Iterator[FactSection]:
    """The metrics of the latest attempt; none where it has none."""
    run = None if detail.run is None else sanitized_run(detail.run)
    if run is None or not (has_metrics(run) or memory_of(run) is not None):
        return
    running = "" if run.ended_at is not None else " so far"
    rows = [(title, cell(text)) for title, text in metric_rows(run)]
    loud = {title for title, text in rows if is_loud(title, text)}
    yield FactSection(f"metrics of attempt {run.attempt}{running}", rows, loud=loud)


def _facts(detail: JobDetail, now: float) -> Iterator[tuple[str, str]]:
    job = detail.job
    yield "state", job.state + cell(beyond_state(job.state, job.why))
    if job.sweep:
        pairs = ", ".join(f"{key} = {value}" for key, value in job.setting.items())
        yield "sweep", cell(f"{job.sweep}: {pairs}")
    yield "owner", f"{cell(job.owner)}, priority {job.priority}"
    yield (
        "submitted",
        f"{format_moment(job.submitted_at)} ({format_duration(now - job.submitted_at)} ago)",
    )
    if job.starts:
        yield "starts", cell(job.starts.removeprefix("starts "))
    if job.started_at is not None:
        yield "started", f"{format_moment(job.started_at)} (attempt {attempts(job)})"
    if job.ended_at is not None:
        yield "ended", f"{format_moment(job.ended_at)}{_ran(job)}, exit code {code_words(job.code)}"
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
    return f" after {format_duration(job.ended_at - job.started_at)}"


def settings_of(tree: dict[str, Any], prefix: str = "") -> Iterator[tuple[str, str]]:
    """Each setting as `policy.max_time` and `"8h"`; command and name have lines of their own."""
    for key, value in tree.items():
        path = prefix + key
        if isinstance(value, dict) and value:
            yield from settings_of(value, path + ".")
        elif path not in ("name", "run.command") and value not in ({}, [], None):
            yield as_in_file(path, value)
