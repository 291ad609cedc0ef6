"""`wiiiiide history`: the jobs that are over, and how they ended."""

from __future__ import annotations

from typing import Annotated

import typer

from wiiiiided.cluster.rpc.messages import JobView
from wiiiiided.domain.exit_codes import code_words
from wiiiiided.text import format_moment
from wiiiiided.ui.cli import screen
from wiiiiided.ui.cli.daemon import connect, fields
from wiiiiided.ui.cli.job_lines import attempts, put_table, reason, took
from wiiiiided.ui.cli.options import Json
from wiiiiided.ui.cli.table import TableColumn

COLUMNS = (
    TableColumn("ID", right=True),
    TableColumn("NAME", least=8, readable=16, style="bold"),
    TableColumn("STATE", painted=True),
    TableColumn("CODE"),
    TableColumn("TIME", right=True, leaves=1),
    TableColumn("ENDED", leaves=3),
    TableColumn("OWNER", leaves=4, least=6),
    TableColumn("TRY", leaves=5),
    TableColumn("WHY", leaves=2, least=20, readable=28),
)

MOST = 10**9  # jobs, far more than a daemon keeps


def command(
    limit: Annotated[
        int, typer.Option("-n", "--limit", metavar="N", min=0, max=MOST, help="How many, at most.")
    ] = 50,
    as_json: Json = False,
) -> None:
    """List the jobs that are over, the latest first."""
    jobs = connect().history(limit)[:limit]
    if as_json:
        screen.put_json({"jobs": [fields(job) for job in jobs]})
    elif jobs:
        put_table(COLUMNS, [_row(job) for job in jobs])
    elif limit:
        screen.say("no job has ended yet; wiiiiide ps lists those under way")


def _row(job: JobView) -> list[str]:
    how = [job.state, code_words(job.code), took(job), format_moment(job.ended_at)]
    return [str(job.id), job.name, *how, job.owner, attempts(job), reason(job)]
