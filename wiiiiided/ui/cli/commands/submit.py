"""`wiiiiide submit`: the words of the command line; the work is `submission`."""

from __future__ import annotations

from functools import partial
from typing import Annotated

import typer

from wiiiiided.domain.states import ENDED
from wiiiiided.ui.cli.completion_candidates import LIVE, jobs
from wiiiiided.ui.cli.option_values import job_id
from wiiiiided.ui.cli.options import DryRun, JobFile, Json, Sets


def command(
    file: JobFile,
    sweeps: Annotated[
        list[str] | None,
        typer.Option(
            "--sweep",
            metavar="KEY=VALUES",
            help="A job for each value: run.env.LR=0.1,0.01 or run.env.SEED=1..3; of several "
            "--sweep, for each combination.",
        ),
    ] = None,
    dry_run: DryRun = False,
    following: Annotated[
        bool,
        typer.Option("-f", "--follow", help="Show its output, and end with its exit code."),
    ] = False,
    after: Annotated[
        list[str] | None,
        typer.Option(
            metavar="ID",
            help="Start when this job is done; may be given several times.",
            autocompletion=jobs(LIVE),
        ),
    ] = None,
    resumed: Annotated[
        str | None,
        typer.Option(
            "--resume",
            metavar="ID",
            help="Begin with the checkpoints of this job, which is over.",
            autocompletion=jobs(ENDED, sweeps=False),
        ),
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
    if sweeps and following:
        raise typer.BadParameter("-f follows one job; without it, wiiiiide wait waits for a sweep")
    if sweeps and resumed is not None:
        raise typer.BadParameter(
            "--resume is for one job: those of a sweep share no checkpoints; submit each by itself"
        )
    resumes = job_id(resumed) if resumed is not None else None
    from wiiiiided.ui.cli import loaded_job, submission, submit_sweep  # help does without

    earlier = submission.earlier_jobs([text for texts in after or () for text in texts.split(",")])
    made = partial(loaded_job.read, file, sets, name, earlier)
    if sweeps:
        return submit_sweep.run(sweeps, made, hold, dry_run, as_json)
    given = {"dry_run": dry_run, "hold": hold, "following": following, "as_json": as_json}
    return submission.queue(made, resumes=resumes, **given)
