"""A job file and its folder go to the daemon, and come back as a number: what `submit`, `run` and
a sweep do.

job.toml ──read──► spec ─┐
folder ──pack──► tar ────┼──► daemon ──► id on stdout, a sentence on stderr
environment ──► secrets ─┘
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, TypeVar

from wiiiiided.cluster.client import Client, ClientError, DaemonLost, NoDaemon, Progress
from wiiiiided.cluster.rpc.messages import Submitted
from wiiiiided.domain.exit_codes import NEVER
from wiiiiided.domain.metrics import RunForecast
from wiiiiided.domain.node import Node
from wiiiiided.domain.rank_layout import Layout
from wiiiiided.domain.spec import Resources
from wiiiiided.metrics.kept_plan import fewer_was_faster, fewer_would_do
from wiiiiided.text import clean, format_size
from wiiiiided.ui.cli import job_facts, screen
from wiiiiided.ui.cli.bulk import split
from wiiiiided.ui.cli.command_failed import CommandFailed
from wiiiiided.ui.cli.daemon import connect
from wiiiiided.ui.cli.follow import follow
from wiiiiided.ui.cli.job_lines import with_start
from wiiiiided.ui.cli.loaded_job import (
    LoadedJob,
    packed_folder,
    report,
    say_notes,
    surveyed,
)
from wiiiiided.ui.cli.progress import counted
from wiiiiided.ui.cli.sections import put
from wiiiiided.ui.jobfile.problem import Invalid

if TYPE_CHECKING:
    from wiiiiided.cluster.archive.pack import Packed

Result = TypeVar("Result")

ALONE = "this machine alone"
UNKNOWN = "the needs of earlier runs are not known"
NODES_S = 8.0  # a member gives its coordinator 5 s before it says that there is none
ASK_S = 2.0  # a dry run does not wait longer for what is only good to know


def queue(
    made: Callable[[], LoadedJob],
    *,
    dry_run: bool = False,
    hold: bool = False,
    resumes: int | None = None,
    following: bool = False,
    as_json: bool = False,
) -> int:
    """Queue the job that is made, or say what would run; every problem of it is told."""
    try:
        job = made()
        if dry_run:
            return _dry_run(job, resumes, as_json)
        return _submit(job, hold, resumes, following, as_json)
    except Invalid as invalid:
        return report(invalid, as_json)


def earlier_jobs(texts: Sequence[str]) -> tuple[int, ...]:
    """The jobs to start after; a sweep stands for all of its jobs."""
    given = [split(text) for text in texts]
    found: list[int] = []
    for _, number, sweep in given:
        found += [number] if number else [job.id for job in connect().sweep(sweep)]
    return tuple(found)


def _dry_run(job: LoadedJob, resumes: int | None, as_json: bool) -> int:
    ships = surveyed(job)
    job.secrets()
    (dry,) = dry_runs([job])
    if as_json:
        screen.put_json(job_facts.as_json(job, ships, dry))
    else:
        title = f"{clean(job.file)}: ok; nothing was queued. It would be"
        put([job_facts.section(title, job, ships, dry)])
    say_notes(job, ships.notes)
    if resumes is not None:
        screen.say(f"note: whether job {resumes} has checkpoints is looked up when it is queued")
    return 0


def dry_runs(jobs: Sequence[LoadedJob]) -> list[job_facts.DryRun]:
    """Where each job would run; jobs with the same resources are placed once."""
    from wiiiiided.cluster.control import placement

    nodes, where, problem = _nodes()
    name = jobs[0].spec.name
    forecast, expects = (None, f"{UNKNOWN}: {problem}") if problem else _forecast(name)
    layouts: dict[Resources, Layout] = {}
    for job in jobs:
        if job.spec.resources not in layouts:
            try:
                layouts[job.spec.resources] = placement.plan(job.spec, nodes)
            except placement.NeverRuns as never:
                raise CommandFailed(
                    NEVER, f"{job.file}: it can never run on {where}: {never}"
                ) from never
    return [job_facts.DryRun(layouts[job.spec.resources], forecast, expects) for job in jobs]


def _nodes() -> tuple[list[Node], str, str]:
    """The machines to place jobs on, a name for them, and what is wrong with the daemon: those of
    the cluster as the daemon knows them, else this one."""
    from wiiiiided.cluster.system import probe

    try:
        found = connect().nodes(within_s=NODES_S)
    except NoDaemon:
        return [probe.this_node()], ALONE, ""
    except ClientError as problem:
        screen.say("note: planned for this machine alone: the others are not known")
        return [probe.this_node()], ALONE, str(problem)
    where = f"the cluster {found.cluster}" if found.cluster else ALONE
    return [one.node for one in found.nodes], where, ""


def _forecast(name: str) -> tuple[RunForecast | None, str]:
    """The needs of earlier runs of that name, as the daemon knows them; a dry run goes without."""
    try:
        found = connect().predict(name, within_s=ASK_S)
    except (NoDaemon, DaemonLost):
        return None, f"no daemon answers: {UNKNOWN}"
    except ClientError as problem:
        return None, f"{UNKNOWN}: {problem}"
    return found, found.text


def _submit(job: LoadedJob, hold: bool, resumes: int | None, following: bool, as_json: bool) -> int:
    secrets = job.secrets()
    client = connect()

    def ask(packed: Packed, progress: Progress) -> Submitted:
        return client.submit(
            job.spec, packed, secrets, hold=hold, resumes=resumes, progress=progress
        )

    submitted, sent = send(client, job, ask, as_json)
    sentence = f"job {submitted.id} ({job.spec.name}): {submitted.why}"
    _tell(submitted, job, sentence, sent, following, as_json)
    if said := _fewer(client, job):
        screen.say(f"note: {said}")
    if not following:
        return 0
    sys.stdout.flush()
    try:
        return follow(client, submitted.id, as_json=as_json, told=sentence)
    except KeyboardInterrupt:
        screen.say(
            f"\ndetached; job {submitted.id} goes on. wiiiiide logs -f {submitted.id} shows it "
            f"again, wiiiiide cancel {submitted.id} ends it"
        )
        raise


def _fewer(client: Client, job: LoadedJob) -> str:
    """The advice of a plan, or else of earlier runs, to take fewer machines; else empty."""
    from wiiiiided.cluster.control.placement import expected_nodes

    if job.spec.resources.nodes == (1, 1):
        return ""
    try:
        found = client.foretold(job.spec.name, within_s=ASK_S)
        views = client.nodes(within_s=ASK_S).nodes
    except ClientError:  # the advice is only good to know
        return ""
    there = [view.node for view in views if view.state not in ("lost", "drained")]
    machines = expected_nodes(job.spec, there)
    network = job.spec.network
    plans = (found.plan, *found.others) if found.plan else ()
    planned = fewer_would_do(plans, machines, network.every, network.gradients)
    return planned or fewer_was_faster(found.speeds, machines)


def _tell(
    submitted: Submitted, job: LoadedJob, sentence: str, sent: int, following: bool, as_json: bool
) -> None:
    if as_json:
        made = {"id": submitted.id, "name": job.spec.name, "why": submitted.why}
        made["starts"] = submitted.starts
        screen.put_json({**made, "sent_bytes": sent})
    elif sys.stdout.isatty() and not following:
        screen.put(clean(with_start(sentence, submitted.starts)))
    else:
        # First on stderr: where stdout cannot be written to, it is known what was queued.
        screen.say(with_start(sentence, submitted.starts))
        if not following:
            screen.put(str(submitted.id))


def send(
    client: Client, job: LoadedJob, ask: Callable[[Packed, Progress], Result], as_json: bool
) -> tuple[Result, int]:
    """The daemon's answer, and how many bytes of the job's folder it wanted."""
    # Asked first: nothing is packed for a daemon that is not there.
    status = client.status()
    try:
        answer, sent = _packed(job, ask)
    except ClientError as refusal:
        if status.problem not in str(refusal):
            screen.say(f"note: the daemon says: {status.problem}")
        raise
    if status.problem:
        screen.say(f"note: the daemon says: {status.problem}")
    if not as_json and not job.empty:
        screen.say(_shipped(sent, status.role))
    return answer, sent


def _packed(job: LoadedJob, ask: Callable[[Packed, Progress], Result]) -> tuple[Result, int]:
    sent = 0
    with packed_folder(job) as packed:
        say_notes(job, packed.notes)
        with counted("sending the folder") as tell:

            def progress(done: int, total: int) -> None:
                nonlocal sent
                sent = done
                tell(done, total)

            return ask(packed, progress), sent


def _shipped(sent: int, role: str) -> str:
    if sent:
        return f"sent {format_size(sent)}"
    # Nodes were not asked: each gets the folder from there when a job is placed on it.
    who = "the daemon" if role == "alone" else "the coordinator"
    return f"nothing sent: {who} has the folder already"
