"""`wiiiiide history`: the jobs that are over, and how they ended."""

from __future__ import annotations

from typing import Annotated

import typer

from wiiiiided.cli import screen
from wiiiiided.cli.daemon import connect, fields
from wiiiiided.cli.jobs import attempts, put_table, reason, took
from wiiiiided.cli.options import Json
from wiiiiided.cli.table import Column
from wiiiiided.cli.words import clock, code_words, number
from wiiiiided.wire.messages import JobView

COLUMNS = (
    Column("ID", right=True),
    Column("NAME", least=8, readable=16),
    Column("STATE", painted=True),
    Column("CODE"),
    Column("TIME", right=True, leaves=1),
    Column("ENDED", leaves=3),
    Column("OWNER", leaves=4, least=6),
    Column("TRY", leaves=5),
    Column("WHY", leaves=2, least=20, readable=28),
)


def command(
    limit: Annotated[
        str, typer.Option("-n", "--limit", metavar="N", help="How many, at most.")
    ] = "50",
    as_json: Json = False,
) -> None:
    """List the jobs that are over, the latest first."""
    most = number(limit, "--limit")
    jobs = connect().history(most)[:most]
    if as_json:
        screen.put_json({"jobs": [fields(job) for job in jobs]})
    elif jobs:
        put_table(COLUMNS, [job.state for job in jobs], [_row(job) for job in jobs])
    elif most:
        screen.say("no job has ended yet; wiiiiide ps lists those under way")


def _row(job: JobView) -> list[str]:
    how = [job.state, code_words(job.code), took(job), clock(job.ended_at)]
    return [str(job.id), job.name, *how, job.owner, attempts(job), reason(job)]
