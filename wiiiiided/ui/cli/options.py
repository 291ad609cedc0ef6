"""Arguments and options that several commands share, so that they are the same everywhere."""

from __future__ import annotations

from collections.abc import Container
from typing import Annotated, Any

import typer

from wiiiiided.domain.states import STATES
from wiiiiided.ui.cli.completion_candidates import LIVE, jobs, nodes


def _one(sweeps: bool) -> Any:
    told = "The job's number, as ps shows it."
    return typer.Argument(metavar="ID", help=told, autocompletion=jobs(sweeps=sweeps))


def _several(states: Container[str]) -> Any:
    told = "The jobs' numbers; s12 is all jobs of a sweep."
    return typer.Argument(metavar="ID", help=told, autocompletion=jobs(states))


Id = Annotated[str, _one(sweeps=False)]
IdOrSweep = Annotated[str, _one(sweeps=True)]
Ids = Annotated[list[str], _several(STATES)]
LiveIds = Annotated[list[str], _several(LIVE)]
WaitingIds = Annotated[list[str], _several(("queued", "backoff"))]
HeldIds = Annotated[list[str], _several(("held",))]
NodeName = Annotated[
    str,
    typer.Argument(metavar="NAME", help="The machine, as nodes shows it.", autocompletion=nodes),
]
Json = Annotated[bool, typer.Option("--json", help="As JSON, for programs.")]
Name = Annotated[
    str | None, typer.Option(metavar="NAME", help="The job's name; else its folder's.")
]
DryRun = Annotated[
    bool, typer.Option("--dry-run", help="Only say what would run where; without a daemon, here.")
]
Port = Annotated[
    int | None,
    typer.Option("--port", metavar="N", min=1, max=65535, help="Its one TCP port; 9461 without."),
]
JobFile = Annotated[
    str, typer.Argument(metavar="JOB", help="A job file, or a folder with a job.toml in it.")
]
Sets = Annotated[
    list[str] | None,
    typer.Option(
        "--set", metavar="KEY=VALUE", help="Change a key of the job file: --set run.env.LR=0.1"
    ),
]
