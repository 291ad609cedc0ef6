"""`wiiiiide run -- python train.py`: a job without a job file.

words ──► --set run.command=… ──► spec ──► as `submit -f` does
                                   └─────► --save: the job file it would have been
"""

from __future__ import annotations

from typing import Annotated

import typer

from wiiiiided.ui.cli.options import DryRun, Json, Name, Sets

CONTEXT = {"allow_interspersed_args": False}  # options behind the command's first word are its own


def command(
    words: Annotated[
        list[str], typer.Argument(metavar="COMMAND", help="A program, and its arguments.")
    ],
    workers: Annotated[
        str | None,
        typer.Option(
            "-n", "--workers-per-node", metavar="N", help="Ranks on each machine; 1 by itself."
        ),
    ] = None,
    nodes: Annotated[
        str | None,
        typer.Option(metavar="N", help="Machines: 3, 2-4 or all; 1 by itself."),
    ] = None,
    name: Name = None,
    sets: Sets = None,
    detach: Annotated[
        bool, typer.Option("-d", "--detach", help="Only queue it, and print its number.")
    ] = False,
    dry_run: DryRun = False,
    save: Annotated[
        str | None,
        typer.Option(metavar="FILE", help="Write it as a job file instead; nothing is queued."),
    ] = None,
    force: Annotated[bool, typer.Option("--force", help="--save replaces FILE.")] = False,
    no_ship: Annotated[
        bool,
        typer.Option("--no-ship", help="Send no files: the ranks start in an empty folder."),
    ] = False,
    as_json: Json = False,
) -> int:
    """Run a command as a job, without a job file: wiiiiide run -n 2 -- python train.py --lr 0.1

    This folder is sent along, as with submit. Its output is shown until it ends, and its exit code
    is the job's. Ctrl-C stops the watching, not the job.
    """
    if save is not None and no_ship:
        raise typer.BadParameter(
            "--save and --no-ship exclude each other: a job file ships the folder it is in"
        )
    if force and save is None:
        raise typer.BadParameter("--force is for --save FILE: it replaces that file")
    from wiiiiided.ui.cli.job_of_words import run  # help does without
    from wiiiiided.ui.jobfile.to_toml import toml

    options = {}
    if workers is not None:
        options[f"resources.workers_per_node={workers}"] = f"-n {workers}"
    if nodes is not None:
        options[f"resources.nodes={nodes}"] = f"--nodes {nodes}"
    if name is not None:
        options[f"name={toml(name)}"] = f"--name {name}"
    return run(
        words,
        options,
        sets or [],
        save=save,
        force=force,
        no_ship=no_ship,
        detach=detach,
        dry_run=dry_run,
        as_json=as_json,
    )
