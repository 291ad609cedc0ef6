"""`wiiiiide check`: whether a job file is right, without a daemon and without running anything."""

from __future__ import annotations

from wiiiiided.cluster.archive.scan import PackError, survey
from wiiiiided.text import clean
from wiiiiided.ui.cli import job_facts, screen
from wiiiiided.ui.cli.command_failed import CommandFailed
from wiiiiided.ui.cli.loaded_job import JobFile, Sets, notes, read, report, unshippable
from wiiiiided.ui.cli.options import Json
from wiiiiided.ui.cli.progress import waiting
from wiiiiided.ui.cli.sections import put
from wiiiiided.ui.jobfile.problem import Invalid


def command(file: JobFile, sets: Sets = None, as_json: Json = False) -> int:
    """Say whether a job file is right, and what it asks for. Needs no daemon.

    Every problem is listed with its line and a suggestion; the exit code is 3 then.
    """
    try:
        job = read(file, sets)
        with waiting("looking at the folder"):
            ships = survey(job.directory)
    except Invalid as invalid:
        return report(invalid, as_json)
    except PackError as problem:
        return report(unshippable(job, problem), as_json)
    if as_json:
        screen.put_json(job_facts.as_json(job, ships, None))
    else:
        put([job_facts.section(f"{clean(job.file)}: ok", job, ships)])
    for note in (*ships.notes, *notes(job)):
        screen.say(f"note: {note}")
    try:
        job.secrets()
    except CommandFailed as missing:
        screen.say(f"note: {missing}")
    return 0
