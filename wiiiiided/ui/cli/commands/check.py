"""`wiiiiide check`: whether a job file is right, without a daemon and without running anything."""

from __future__ import annotations

from wiiiiided.ui.cli.options import JobFile, Json, Sets


def command(file: JobFile, sets: Sets = None, as_json: Json = False) -> int:
    """Say whether a job file is right, and what it asks for. Needs no daemon.

    Every problem is listed with its line and a suggestion; the exit code is 3 then.
    """
    from wiiiiided.ui.cli.loaded_job import check  # help does without

    return check(file, sets, as_json)
