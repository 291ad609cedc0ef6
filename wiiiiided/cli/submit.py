"""`wiiiiide submit`: a job file and its folder go to the daemon, and come back as a number.

job.toml ──read──► spec ─┐
folder ──pack──► tar ────┼──► daemon ──► id on stdout, a sentence on stderr
environment ──► secrets ─┘
"""

from __future__ import annotations

import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Annotated

import typer

from wiiiiided.cli import plan, screen
from wiiiiided.cli.daemon import connect
from wiiiiided.cli.follow import follow
from wiiiiided.cli.jobfile import Job, JobFile, NotReady, Sets, notes, read, report, unshippable
from wiiiiided.cli.options import Json
from wiiiiided.cli.text import clean
from wiiiiided.cli.words import job_id
from wiiiiided.client import Client, ClientError, DaemonLost, NoDaemon, Progress
from wiiiiided.domain.figures import Forecast
from wiiiiided.jobfile.problem import Invalid
from wiiiiided.ship.pack import PackError, pack
from wiiiiided.ship.survey import size_words, survey
from wiiiiided.wire.messages import Submitted

NEVER = 7
SLOW_S = 1.0  # what takes less needs no progress
FORECAST_S = 2.0  # a dry run does not wait longer for what is only good to know


class NeverHere(NotReady):
    """This machine can never run the job."""

    code = NEVER


def command(
    file: JobFile,
    dry_run: Annotated[
        bool,
        typer.Option("--dry-run", help="Only say what would run where. Needs no daemon."),
    ] = False,
    following: Annotated[
        bool,
        typer.Option("-f", "--follow", help="Show its output, and end with its exit code."),
    ] = False,
    after: Annotated[
        list[str] | None,
        typer.Option(metavar="ID", help="Start when this job is done; may be given several times."),
    ] = None,
    sets: Sets = None,
    name: Annotated[
        str | None, typer.Option(metavar="NAME", help="Call it so, whatever the job file says.")
    ] = None,
    hold: Annotated[bool, typer.Option("--hold", help="Queue it held; release starts it.")] = False,
    as_json: Json = False,
) -> int:
    """Queue a job. Its folder is sent along, without what .gitignore and .wiiiiideignore name.

    Prints the job's number: id=$(wiiiiide submit job.toml). With -f, Ctrl-C stops the watching,
    not the job.
    """
    earlier = [job_id(text) for texts in after or () for text in texts.split(",")]
    try:
        job = read(file, sets, name, tuple(earlier))
        if dry_run:
            return _dry_run(job, as_json)
        return _submit(job, hold, following, as_json)
    except Invalid as invalid:
        return report(invalid, as_json)
    except PackError as problem:
        return report(unshippable(job, problem), as_json)


def _dry_run(job: Job, as_json: bool) -> int:
    from wiiiiided.control import place
    from wiiiiided.daemon import probe

    ships = survey(job.directory)
    job.secrets()
    try:
        layout = place.plan(job.spec, [probe.this_node()])
    except place.NeverRuns as never:
        raise NeverHere(f"{job.file}: it can never run on this machine alone: {never}") from never
    forecast, expects = _forecast(job.spec.name)
    dry = plan.Dry(layout, forecast, expects)
    if as_json:
        screen.put_json(plan.as_json(job, ships, dry))
    else:
        screen.put(f"{clean(job.file)}: ok; nothing was queued. It would be")
        for line in plan.lines(job, ships, dry):
            screen.put(line)
    for note in (*ships.notes, *notes(job.spec)):
        screen.say(f"note: {note}")
    return 0


def _forecast(name: str) -> tuple[Forecast | None, str]:
    """What earlier runs of that name needed, as the daemon knows it; a dry run needs none."""
    try:
        found = connect().predict(name, within_s=FORECAST_S)
    except (NoDaemon, DaemonLost):
        return None, "no daemon answers: what earlier runs needed is not known"
    except ClientError as problem:
        return None, f"what earlier runs needed is not known: {problem}"
    return found, found.text


def _submit(job: Job, hold: bool, following: bool, as_json: bool) -> int:
    secrets = job.secrets()
    client = connect()
    # So that nothing is packed for a daemon that is not there.
    if problem := client.status().problem:
        screen.say(f"note: the daemon {problem}")
    submitted = _send(client, job, secrets, hold)
    sentence = f"job {submitted.id} ({job.spec.name}): {submitted.why}"
    _tell(submitted, job, sentence, following, as_json)
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


def _tell(submitted: Submitted, job: Job, sentence: str, following: bool, as_json: bool) -> None:
    if as_json:
        screen.put_json({"id": submitted.id, "name": job.spec.name, "why": submitted.why})
    elif sys.stdout.isatty() and not following:
        screen.put(clean(sentence))
    else:
        if not following:
            screen.put(str(submitted.id))
        screen.say(sentence)


def _send(client: Client, job: Job, secrets: dict[str, str], hold: bool) -> Submitted:
    packed = pack(job.directory)
    try:
        for note in (*packed.notes, *notes(job.spec)):
            screen.say(f"note: {note}")
        with _progress() as progress:
            return client.submit(job.spec, packed, secrets, hold=hold, progress=progress)
    finally:
        packed.remove()


@contextmanager
def _progress() -> Iterator[Progress]:
    """A line that tells how much is sent, on a terminal, when it takes a while."""
    begun = shown = time.monotonic()
    visible = False

    def tell(sent: int, total: int) -> None:
        nonlocal shown, visible
        now = time.monotonic()
        if not sys.stderr.isatty() or now - begun < SLOW_S or now - shown < 0.1:
            return
        shown, visible = now, True
        share = f"{size_words(sent)} of {size_words(total)}, {100 * sent // max(1, total)} %"
        print(f"\r\x1b[Ksending the folder: {share}", end="", file=sys.stderr, flush=True)

    try:
        yield tell
    finally:
        if visible:
            print("\r\x1b[K", end="", file=sys.stderr, flush=True)
