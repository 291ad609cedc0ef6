"""A job that would run, in words and as JSON, for check and submit --dry-run. No I/O."""

from __future__ import annotations

import shlex
from collections.abc import Iterator
from typing import Any

import msgspec

from wiiiiided.cluster.archive.ignore import PULLED
from wiiiiided.cluster.archive.scan import Survey
from wiiiiided.domain.metrics import RunForecast
from wiiiiided.domain.rank_layout import Layout
from wiiiiided.domain.spec import JobSpec
from wiiiiided.text import cell, count, format_duration, format_size
from wiiiiided.ui.cli.loaded_job import LoadedJob
from wiiiiided.ui.cli.sections import FactSection

NAMED = 4  # names of what each ignore file leaves out; more are counted


class DryRun(msgspec.Struct, frozen=True):
    """Facts only a dry run knows: where it would run, and what earlier runs of its name needed."""

    layout: Layout
    forecast: RunForecast | None  # None: no daemon could be asked
    expects: str  # the forecast in words, or why there is none


def as_json(job: LoadedJob, ships: Survey, dry: DryRun | None = None) -> dict[str, Any]:
    """The facts of `section` for programs. Values of passed variables are in neither."""
    found: dict[str, Any] = {
        "ok": True,
        "file": job.file,
        "job": msgspec.to_builtins(job.spec),
        "ships": {
            "directory": job.directory,
            "files": ships.files,
            "bytes": ships.bytes,
            "left_out": [name for name, _ in ships.ignored],
        },
    }
    if dry is not None:
        found["shares"] = [msgspec.to_builtins(one) for one in dry.layout.allocations]
        found["forecast"] = msgspec.to_builtins(dry.forecast)
    return found


def section(title: str, job: LoadedJob, ships: Survey, dry: DryRun | None = None) -> FactSection:
    """A section with a line for each fact."""
    rows = [(name, cell(text)) for name, text in _facts(job, ships, dry)]
    return FactSection(title, rows, lambda row: f"  {row[0]:<9} {row[1]}", state="ok")


def _facts(job: LoadedJob, ships: Survey, dry: DryRun | None) -> Iterator[tuple[str, str]]:
    spec = job.spec
    yield "name", spec.name
    if dry is None:
        yield "wants", wants(spec)
        yield "command", shlex.join(spec.run.command)
    else:
        for part in dry.layout.allocations:
            last = part.first_rank + part.workers - 1
            ranks = f"rank {last}" if part.workers == 1 else f"ranks {part.first_rank}-{last}"
            claimed = f"{count(part.cores, 'core')} claimed"
            yield "runs", f"{ranks} on {part.node} ({claimed}): {shlex.join(spec.run.command)}"
    yield "python", spec.run.python or "the daemon's own"
    if job.empty:
        yield "ships", "nothing: its ranks start in an empty folder"
    else:
        files = f"{count(ships.files, 'file')}, {format_size(ships.bytes)}"
        yield "ships", f"{files} from {job.directory}"
    if ships.ignored:
        yield "leaves", f"out {left_out(ships)}"
    if spec.run.env:
        yield "sets", ", ".join(spec.run.env)
    if spec.run.pass_env:
        yield "passes", ", ".join(spec.run.pass_env)
    yield from _policy(spec)
    if spec.output.collect:
        yield "collects", ", ".join(spec.output.collect)
    if dry is not None:
        yield "expects", dry.expects


def left_out(ships: Survey) -> str:
    """Top paths that are not shipped, and which file says so: `data/, big.bin (.gitignore)`."""
    groups: dict[str, list[str]] = {}
    for name, by in ships.ignored:
        groups.setdefault("made by pull" if by == PULLED else by, []).append(name)
    parts = []
    for by, names in groups.items():
        more = f" and {len(names) - NAMED} more" if len(names) > NAMED else ""
        parts.append(f"{', '.join(names[:NAMED])}{more} ({by})")
    return "; ".join(parts)


def _policy(spec: JobSpec) -> Iterator[tuple[str, str]]:
    policy = spec.policy
    if policy.after:
        yield "after", ", ".join(f"job {number}" for number in policy.after)
    if policy.max_time_s is not None:
        yield "limit", f"{format_duration(policy.max_time_s)} of running"
    if policy.restart.max:
        times = count(policy.restart.max, "time")
        yield "restarts", f"up to {times} on {', '.join(policy.restart.on)}"


def wants(spec: JobSpec) -> str:
    """The resources that a job wants: `2 workers on each of 3 nodes, 1 core a worker`."""
    least, most = spec.resources.nodes
    if most is None:
        nodes = "every node"
    elif least == most:
        nodes = "1 node" if least == 1 else f"each of {least} nodes"
    else:
        nodes = f"each of {least} to {most} nodes"
    per_node = spec.resources.workers_per_node
    workers = {"cores": "a worker per core", "gpus": "a worker per GPU"}.get(str(per_node))
    cores = spec.resources.cores_per_worker
    claim = "which it has for itself" if cores is None else f"{count(cores, 'core')} a worker"
    return f"{workers or count(int(per_node), 'worker')} on {nodes}, {claim}"
