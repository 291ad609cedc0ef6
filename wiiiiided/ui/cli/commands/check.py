"""`wiiiiide check`: whether a job file is right, without a daemon and without running anything."""

from __future__ import annotations

from wiiiiided.text import clean
from wiiiiided.ui.cli import job_facts, screen
from wiiiiided.ui.cli.command_failed import CommandFailed
from wiiiiided.ui.cli.loaded_job import JobFile, Sets, read, report, say_notes, surveyed
from wiiiiided.ui.cli.options import Json
from wiiiiided.ui.cli.sections import put
from wiiiiided.ui.jobfile.problem import Invalid


def command(file: JobFile, sets: Sets = None, as_json: Json = False) -> int:
    """Say whether a job file is right, and what it asks for. Needs no daemon.

    Every problem is listed with its line and a suggestion; the exit code is 3 then.
    """
    try:
        job = read(file, sets)
        ships = surveyed(job)
    except Invalid as invalid:
        return report(invalid, as_json)
    if as_json:
        screen.put_json(job_facts.as_json(job, ships, None))
    else:
        put([job_facts.section(f"{clean(job.file)}: ok", job, ships)])
    say_notes(job, ships.notes)
    try:
        job.secrets()
    except CommandFailed as missing:
        screen.say(f"note: {missing}")
    return 0
