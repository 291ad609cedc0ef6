"""A job without a job file: the words of `wiiiiide run` as a spec, queued, or saved as the file it
would have been."""

from __future__ import annotations

import os
import tempfile
from collections.abc import Callable, Iterable, Mapping
from contextlib import ExitStack
from functools import partial

import msgspec

from wiiiiided.errors import HostError
from wiiiiided.ui.cli import screen
from wiiiiided.ui.cli.current_folder import refuse_home
from wiiiiided.ui.cli.loaded_job import LoadedJob, Shipped, report
from wiiiiided.ui.cli.submission import queue
from wiiiiided.ui.jobfile.describe import printable
from wiiiiided.ui.jobfile.problem import Invalid, Problem
from wiiiiided.ui.jobfile.read import examine
from wiiiiided.ui.jobfile.to_toml import as_toml, toml

CALLED = "wiiiiide run"  # in place of a file's name


def run(
    words: list[str],
    options: Mapping[str, str],
    sets: list[str],
    *,
    save: str | None,
    force: bool,
    no_ship: bool,
    detach: bool,
    dry_run: bool,
    as_json: bool,
) -> int:
    """Queue the job of these words, or save it as a file. `options` are settings, each with the
    words that a problem of it names."""
    given = {f"run.command={toml(words)}": CALLED, **options}
    with ExitStack() as stack:
        empty = stack.enter_context(tempfile.TemporaryDirectory()) if no_ship else ""
        made = partial(_job, given, sets, empty)
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
