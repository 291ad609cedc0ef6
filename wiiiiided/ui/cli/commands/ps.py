"""`wiiiiide ps`: the jobs that are not over, in the order in which they will run."""

from __future__ import annotations

import time
from collections.abc import Sequence
from fnmatch import fnmatchcase
from typing import Annotated

import typer
from msgspec.structs import replace

from wiiiiided.cluster.client import Client
from wiiiiided.cluster.rpc.messages import JobList, JobView
from wiiiiided.domain.states import ENDED as OVER
from wiiiiided.domain.states import STATES
from wiiiiided.domain.sweep import sweep_number
from wiiiiided.text import format_size_compact
from wiiiiided.ui.cli import completion_candidates, screen
from wiiiiided.ui.cli.daemon import connect, fields
from wiiiiided.ui.cli.job_lines import (
    attempts,
    base_name,
    is_over,
    put_table,
    reason,
    say_problem,
    took,
)
from wiiiiided.ui.cli.options import Json
from wiiiiided.ui.cli.table import TableColumn

ENDED = 1000  # jobs that are over, the latest: a daemon may keep a hundred times as many

COLUMNS = (
    TableColumn("ID", right=True),
    TableColumn("SWEEP", leaves=8),
    TableColumn("NAME", least=8, readable=16, style="bold"),
    TableColumn("STATE", painted=True),
    TableColumn("OWNER", leaves=6, least=6),
    TableColumn("WORKERS", right=True, leaves=5),
    TableColumn("TRY", leaves=7),
    TableColumn("CPU", right=True, leaves=4),
    TableColumn("MEM", right=True, leaves=3),
    TableColumn("TIME", right=True, leaves=1),
    TableColumn("STARTS", leaves=9),
    TableColumn("WHY", leaves=2, least=20, readable=28),
)
SOME = ("SWEEP", "CPU", "MEM", "STARTS")  # columns that are shown where a job has something there


def command(
    sweeps: Annotated[
        list[str] | None,
        typer.Argument(
            metavar="SWEEP",
            help="Only the jobs of this sweep (s12), all of them.",
            autocompletion=completion_candidates.jobs(alone=False),
        ),
    ] = None,
    everything: Annotated[
        bool, typer.Option("-a", "--all", help="Also the jobs that are over.")
    ] = False,
    state: Annotated[
        list[str] | None,
        typer.Option(
            metavar="STATE",
            help="Only jobs in this state; several: running,queued.",
            autocompletion=completion_candidates.states,
        ),
    ] = None,
    name: Annotated[
        str | None, typer.Option(metavar="GLOB", help="Only jobs whose name matches: 'digits*'.")
    ] = None,
    as_json: Json = False,
) -> None:
    """List the jobs: those that run, then the queue in its order; with -a by their numbers.

    TIME is how long a job has been running, or waiting, or ran. TRY is the attempt, and how many
    its restart policy allows. CPU are the cores and MEM is the memory that a running job's ranks
    use together. A narrow screen shows fewer columns; --json has everything.
    """
    states = _states(state or ())
    everything = everything or not OVER.isdisjoint(states)
    listed = _jobs(connect(), [_sweep(text) for text in sweeps or ()], everything)
    found = [job for job in listed.jobs if _matches(job, states, name)]
    if as_json:
        marked = {"partial": listed.partial} if listed.partial else {}
        screen.put_json({"jobs": [fields(job) for job in found], **marked})
    elif found:
        now = time.time()
        rows = [_row(job, now) for job in found]
        shown = [n for n, one in enumerate(COLUMNS) if one.title not in SOME or _any(rows, n)]
        put_table([COLUMNS[n] for n in shown], [[row[n] for n in shown] for row in rows])
    elif listed.jobs:
        screen.say("no job is as asked for; wiiiiide ps lists all")
    elif everything:
        screen.say("no jobs yet; wiiiiide submit job.toml queues one")
    else:
        screen.say("no jobs; wiiiiide ps -a shows ended ones")


def _jobs(client: Client, sweeps: Sequence[int], everything: bool) -> JobList:
    """All jobs of these sweeps; without any, the queue, and with `everything` what is over too."""
    if sweeps:
        jobs = tuple(job for number in dict.fromkeys(sweeps) for job in client.sweep(number))
        told = JobList(jobs)
    else:
        told = client.jobs(ended=ENDED + 1 if everything else 0)  # one more says that there are
        jobs = told.jobs
        say_problem(told.problem)
        if sum(map(is_over, jobs)) > ENDED:
            jobs = jobs[1:]  # the oldest comes first
            said = f"the latest {ENDED:,} that are over are listed"
            screen.say(f"{said}, and there are more; wiiiiide history -n N lists so many")
    if everything:
        jobs = tuple(sorted(jobs, key=lambda job: job.id))
    return replace(told, jobs=jobs)


def _sweep(text: str) -> int:
    number = sweep_number(text)
    if number is None:
        raise typer.BadParameter(f"{text!r} is no sweep such as s12; wiiiiide show has a job alone")
    return number


def _any(rows: list[list[str]], column: int) -> bool:
    return any(row[column] not in ("", "-") for row in rows)


def _states(texts: Sequence[str]) -> set[str]:
    """The states in --state; none means all."""
    chosen = [text for given in texts for text in given.split(",")]
    for text in chosen:
        if text not in STATES:
            raise typer.BadParameter(f"--state {text!r} is none of {', '.join(STATES)}")
    return set(chosen)


def _matches(job: JobView, states: set[str], name: str | None) -> bool:
    if states and job.state not in states:
        return False
    return name is None or any(fnmatchcase(text, name) for text in (job.name, base_name(job)))


def _row(job: JobView, now: float) -> list[str]:
    workers = str(job.workers) if job.workers else "-"
    head = [str(job.id), job.sweep, job.name, job.state, job.owner, workers]
    cpu = "-" if job.cpu is None else f"{job.cpu:.1f}"
    memory = "-" if job.memory is None else format_size_compact(job.memory)
    starts = "-" if job.starts_at is None else job.starts.removeprefix("starts ")
    return [*head, attempts(job), cpu, memory, took(job, now), starts, reason(job)]
