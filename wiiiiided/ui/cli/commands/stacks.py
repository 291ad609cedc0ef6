"""`wiiiiide stacks`: the Python stack of every worker, to see where a job hangs."""

from __future__ import annotations

import sys

from wiiiiided.text import cell, clean
from wiiiiided.ui.cli import screen
from wiiiiided.ui.cli.daemon import connect, fields
from wiiiiided.ui.cli.option_values import job_id
from wiiiiided.ui.cli.options import Id, Json
from wiiiiided.ui.cli.progress import waiting


def command(job: Id, as_json: Json = False) -> None:
    """Print where each worker of a job is right now, or where it was when the job hung.

    Workers go on undisturbed. One that was started without Python's fault handler has no stack.
    In a cluster, "b:4" is rank 4, on node b.
    """
    number = job_id(job)
    with waiting(f"asking the workers of job {number} where they are"):
        dumps = connect().stacks(number)
    if as_json:
        screen.put_json({"id": number, "dumps": [fields(dump) for dump in dumps]})
        return
    for place, dump in enumerate(dumps):
        pid = "" if dump.pid is None else f", pid {dump.pid}"
        whose = f"{cell(dump.node)}:{dump.rank}" if dump.node else f"rank {dump.rank}"
        heading, text = whose + pid, dump.text
        first = f"--- rank {dump.rank} pid {dump.pid}: "
        if text.startswith(first):  # the dump has a heading for each process of the rank
            program, _, text = text.removeprefix(first).partition("\n")
            heading = f"{heading}: {clean(program)}"
        screen.put(("\n" if place else "") + screen.paint(heading, screen.BOLD, sys.stdout))
        for line in text.rstrip("\n").split("\n"):
            screen.put(f"  {clean(line)}".rstrip())
