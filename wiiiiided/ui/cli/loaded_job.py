"""From the words of a command line to a job that can be sent, for check, submit and run."""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING

import msgspec

from wiiiiided.cluster.archive.ignore import OURS, PULLED, BadRules, left_out
from wiiiiided.cluster.archive.scan import PackError, Survey, survey
from wiiiiided.config import passed
from wiiiiided.domain.exit_codes import INVALID
from wiiiiided.domain.spec import JobSpec
from wiiiiided.text import clean
from wiiiiided.ui.cli.command_failed import CommandFailed
from wiiiiided.ui.cli.progress import waiting
from wiiiiided.ui.cli.screen import put_json, say
from wiiiiided.ui.jobfile.problem import Invalid, Problem
from wiiiiided.ui.jobfile.read import examine
from wiiiiided.ui.jobfile.rules import Complaint
from wiiiiided.ui.jobfile.source import text_of
from wiiiiided.ui.jobfile.to_toml import toml

if TYPE_CHECKING:
    from wiiiiided.cluster.archive.pack import Packed


@dataclass(frozen=True)
class LoadedJob:
    """A job file that was read."""

    file: str
    spec: JobSpec
    warnings: tuple[Problem, ...] = ()
    empty: str = ""  # a folder with nothing in it, in place of the working directory

    @property
    def directory(self) -> str:
        """The directory that is shipped."""
        if self.empty:
            return self.empty
        return os.path.normpath(os.path.join(os.path.dirname(self.file), self.spec.run.workdir))

    def secrets(self) -> dict[str, str]:
        """The values of run.pass_env, all of them."""
        found = passed(self.spec.run.pass_env)
        missing = [name for name in self.spec.run.pass_env if name not in found]
        if missing:
            raise CommandFailed(
                INVALID,
                f"{self.file}: run.pass_env names {', '.join(missing)}, which "
                f"{'is' if len(missing) == 1 else 'are'} not set here",
                "export it before you submit, or leave it out of run.pass_env",
            )
        return found


def read(
    path: str,
    sets: list[str] | None,
    name: str | None = None,
    after: tuple[int, ...] = (),
    swept: Sequence[str] = (),
) -> LoadedJob:
    """The job in a file, changed by options, `swept` being those of one combination of a sweep.
    Raises Invalid with everything that is wrong."""
    file = os.path.join(path, "job.toml") if os.path.isdir(path) else path
    options = [*(sets or ()), *(() if name is None else (f"name={toml(name)}",))]
    spec, warnings = examine(text_of(file), file, options, Shipped, swept)
    if after:
        policy = spec.policy
        both = tuple(dict.fromkeys((*policy.after, *after)))
        policy = msgspec.structs.replace(policy, after=both)
        spec = msgspec.structs.replace(spec, policy=policy)
    return LoadedJob(file, spec, warnings)


@dataclass(frozen=True)
class Shipped:
    """A working directory, and which files in it are not shipped."""

    path: str

    def left_out(self, name: str) -> Complaint | None:
        try:
            found = left_out(self.path, name)
        except BadRules:  # reported when the folder is surveyed
            return None
        if found is None:
            return None
        line = f" by its line {found.pattern}" if found.pattern else ""
        rule = f"{found.by} leaves {found.name} out{line}"
        match found.by:
            case "":
                told = "set run.python to the environment's whole path, or rename it"
                return Complaint(f"{found.name} never is", told)
            case by if by == PULLED:
                told = f"remove {found.name}{PULLED} to ship it"
                return Complaint(f"{found.name} was made by wiiiiide pull", told)
            case by if by == OURS:
                return Complaint(rule, f"take that line out, or add !/{found.name} below it")
            case _:
                return Complaint(rule, f"add the line !/{found.name} to {OURS}, which counts first")


def surveyed(job: LoadedJob) -> Survey:
    """The part of a job's directory that is shipped; its problems are those of the job file."""
    with waiting("looking at the folder"):
        try:
            return survey(job.directory)
        except PackError as problem:
            raise _unshippable(job, problem) from None


@contextmanager
def packed_folder(job: LoadedJob) -> Iterator[Packed]:
    """The job's directory as an archive, which is removed at the end."""
    from wiiiiided.cluster.archive.pack import pack  # it brings tarfile, which checks do without

    with waiting("packing the folder"):
        try:
            packed = pack(job.directory)
        except PackError as problem:
            raise _unshippable(job, problem) from None
    try:
        yield packed
    finally:
        packed.remove()


def _unshippable(job: LoadedJob, problem: PackError) -> Invalid:
    return Invalid([Problem(job.file, None, "", str(problem))])


def say_notes(job: LoadedJob, found: Sequence[str]) -> None:
    """Notes on the job's directory and on its file."""
    for note in (*found, *notes(job)):
        say(f"note: {note}")


def notes(job: LoadedJob) -> Iterator[str]:
    """Settings that are no mistake, yet may not be meant so."""
    spec = job.spec
    yield from map(str, job.warnings)
    several = spec.resources.nodes[1] != 1
    if several and spec.policy.restart.max > 0 and not spec.output.checkpoints:
        yield (
            "it may run on several machines and be restarted, and each has a working directory of "
            "its own: the others do not find rank 0's files there. output.checkpoints = "
            '["ckpt/**"] gives it to all before a restart; not needed with wide.parallel(save=…), '
            "where every machine saves, or with a shared file system"
        )
    if spec.policy.hang_timeout_s is not None and spec.network.backend != "wiiiiide":
        yield (
            f'policy.hang_timeout with network.backend = "{spec.network.backend}" counts only '
            "when the script calls wiiiiided.torch.progress(step)"
        )
    if spec.network.interface != "auto" and spec.network.backend == "wiiiiide":
        yield (
            "network.interface is for gloo and nccl; with wiiiiide ranks are reached through their "
            "machine's one port, at the address that the machine has in the cluster"
        )


def check(file: str, sets: list[str] | None, as_json: bool) -> int:
    """Print what a job file asks for, or every problem of it; the exit code."""
    from wiiiiided.ui.cli import job_facts
    from wiiiiided.ui.cli.sections import put

    try:
        job = read(file, sets)
        ships = surveyed(job)
    except Invalid as invalid:
        return report(invalid, as_json)
    if as_json:
        put_json(job_facts.as_json(job, ships, None))
    else:
        put([job_facts.section(f"{clean(job.file)}: ok", job, ships)])
    say_notes(job, ships.notes)
    try:
        job.secrets()
    except CommandFailed as missing:
        say(f"note: {missing}")
    return 0


def report(invalid: Invalid, as_json: bool) -> int:
    """All problems, one per line; the exit code for them."""
    if as_json:
        problems = [msgspec.to_builtins(problem) for problem in invalid.problems]
        put_json({"ok": False, "problems": problems})
    for problem in invalid.problems:
        say(str(problem))
    return INVALID
