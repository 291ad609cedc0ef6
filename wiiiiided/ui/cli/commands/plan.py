"""`wiiiiide plan`: what a job would gain from which machines, found out by trying for some seconds.

job.toml ──► trial on its machines ──► what was measured ──► rows ──► one of them, if wanted, into
                                                                      job.toml
"""

from __future__ import annotations

from typing import Annotated

import typer

from wiiiiided.ui.cli.options import JobFile, Json


def command(
    file: JobFile,
    nodes: Annotated[
        str | None,
        typer.Option(metavar="NAMES", help="Machines to try: a,b,c, a number, or all."),
    ] = None,
    apply: Annotated[
        bool, typer.Option("--apply", help="Write what is recommended into the job file.")
    ] = False,
    yes: Annotated[bool, typer.Option("--yes", help="Run the trial without asking.")] = False,
    as_json: Json = False,
) -> int:
    """Say what a job would gain from which machines, by running it there for some seconds.

    The job's own script runs on each machine alone, in a copy of its folder, with WIIIIIDE_PROBE=1;
    then the machines time their links. Nothing of it stays. docs/plan.md has the formula.
    """
    from wiiiiided.ui.cli.planning import plan  # help does without

    return plan(file, nodes, apply, yes, as_json)
