"""`wiiiiide why`: one sentence about a job, the same that ps and the daemon's log have."""

from __future__ import annotations

from wiiiiided.text import clean
from wiiiiided.ui.cli import screen
from wiiiiided.ui.cli.daemon import connect, fields
from wiiiiided.ui.cli.job_lines import say_problem, with_start
from wiiiiided.ui.cli.option_values import job_id
from wiiiiided.ui.cli.options import Id, Json


def command(job: Id, as_json: Json = False) -> None:
    """One sentence: why a job waits, what it does, or how it ended."""
    reason = connect().why(job_id(job))
    if as_json:
        screen.put_json(fields(reason))
    else:
        screen.put(clean(with_start(reason.why, reason.starts)))
    say_problem(reason.problem)
