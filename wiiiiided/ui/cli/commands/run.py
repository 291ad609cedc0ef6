"""`wiiiiide run -- python train.py`: a job without a job file.

words ──► --set run.command=… ──► spec ──► as `submit -f` does
                                   └─────► --save: the job file it would have been
"""

from __future__ import annotations

import os
import tempfile
from collections.abc import Callable, Iterable
from contextlib import ExitStack
from functools import partial
from typing import Annotated

import msgspec
import typer

from wiiiiided.errors import HostError
from wiiiiided.ui.cli import screen
from wiiiiided.ui.cli.commands.submit import queue
from wiiiiided.ui.cli.current_folder import refuse_home
from wiiiiided.ui.cli.loaded_job import LoadedJob, Sets, Shipped, report
from wiiiiided.ui.cli.options import DryRun, Json, Name
from wiiiiided.ui.jobfile.describe import printable
from wiiiiided.ui.jobfile.problem import Invalid, Problem
from wiiiiided.ui.jobfile.read import examine
from wiiiiided.ui.jobfile.to_toml import as_toml, toml

CONTEXT = {"allow_interspersed_args": False}  # options behind the command's first word are its own
CALLED = "wiiiiide run"  # in place of a file's name


def command(
    words: Annotated[
        list[str], typer.Argument(metavar="COMMAND", help="A program, and its arguments.")
    ],
    workers: Annotated[
        str | None,
        typer.Option(
            "-n", "--workers-per-node", metavar="N", help="Ranks on each machine; 1 by itself."
        ),
    ] = None,
    nodes: Annotated[
        str | None,
        typer.Option(metavar="N", help="Machines: 3, 2-4 or all; 1 by itself."),
    ] = None,
    name: Name = None,
    sets: Sets = None,
    detach: Annotated[
        bool, typer.Option("-d", "--detach", help="Only queue it, and print its number.")
    ] = False,
    dry_run: DryRun = False,
    save: Annotated[
        str | None,
        typer.Option(metavar="FILE", help="Write it as a job file instead; nothing is queued."),
    ] = None,
    force: Annotated[bool, typer.Option("--force", help="--save replaces FILE.")] = False,
    no_ship: Annotated[
        bool,
        typer.Option("--no-ship", help="Send no files: the ranks start in an empty folder."),
    ] = False,
    as_json: Json = False,
) -> int:
    """Run a command as a job, without a job file: wiiiiide run -n 2 -- python train.py --lr 0.1

    This folder is sent along, as with submit. Its output is shown until it ends, and its exit code
    is the job's. Ctrl-C stops the watching, not the job.
    """
    if save is not None and no_ship:
        raise typer.BadParameter(
            "--save and --no-ship exclude each other: a job file ships the folder it is in"
        )
    if force and save is None:
        raise typer.BadParameter("--force is for --save FILE: it replaces that file")
    given = {f"run.command={toml(words)}": CALLED}
    if workers is not None:
        given[f"resources.workers_per_node={workers}"] = f"-n {workers}"
    if nodes is not None:
        given[f"resources.nodes={nodes}"] = f"--nodes {nodes}"
    if name is not None:
        given[f"name={toml(name)}"] = f"--name {name}"
    with ExitStack() as stack:
        empty = stack.enter_context(tempfile.TemporaryDirectory()) if no_ship else ""
        made = partial(_job, given, sets or [], empty)
        if save is not None:
            return _save(made, save, force, as_json)
        return queue(made, dry_run=dry_run, following=not detach, as_json=as_json)


def _job(given: dict[str, str], sets: list[str], empty: str) -> LoadedJob:
    """The job of these options, each with the name that problems give it."""
    names = {f"--set {printable(text)}": printable(name) for text, name in given.items()}

    def called(problems: Iterable[Problem]) -> tuple[Problem, ...]:
        return tuple(
            msgspec.structs.replace(one, file=names.get(one.file, one.file)) for one in problems
        )

    try:
        spec, warnings = examine("", CALLED, [*given, *sets], lambda path: Shipped(empty or path))
    except Invalid as invalid:
        if empty:
            screen.say("note: with --no-ship the ranks start in an empty folder: give whole paths")
        raise Invalid(called(invalid.problems)) from None
    job = LoadedJob(CALLED, spec, called(warnings), empty)
    if not empty:
        refuse_home(job.directory, "; --no-ship runs without")
    return job


def _save(made: Callable[[], LoadedJob], path: str, force: bool, as_json: bool) -> int:
    """Write the job file; its working directory is relative to the file's."""
    try:
        job = made()
    except Invalid as invalid:
        return report(invalid, as_json)
    workdir = os.path.relpath(job.directory, os.path.dirname(os.path.abspath(path)))
    run = msgspec.structs.replace(job.spec.run, workdir=workdir)
    try:
        with open(path, "w" if force else "x", encoding="utf-8") as file:
            file.write(as_toml(msgspec.structs.replace(job.spec, run=run)))
    except FileExistsError:
        if os.path.isdir(path):
            raise HostError(f"{path} is a folder; --save needs the name of a file") from None
        raise HostError(f"{path} is there already; --force replaces it") from None
    except OSError as problem:
        raise HostError(f"cannot write {path}: {problem.strerror}") from problem
    screen.say(f"{path}: written, nothing was queued; wiiiiide submit -f {path} queues it")
    return 0
