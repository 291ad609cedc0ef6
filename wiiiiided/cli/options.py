"""Arguments and options that several commands share, so that they are the same everywhere."""

from __future__ import annotations

from typing import Annotated

import typer

Id = Annotated[str, typer.Argument(metavar="ID", help="The job's number, as ps shows it.")]
Ids = Annotated[
    list[str], typer.Argument(metavar="ID", help="The jobs' numbers; s12 is all jobs of a sweep.")
]
NodeName = Annotated[str, typer.Argument(metavar="NAME", help="The machine, as nodes shows it.")]
Json = Annotated[bool, typer.Option("--json", help="As JSON, for programs.")]
Name = Annotated[
    str | None, typer.Option(metavar="NAME", help="What the job is called; else as its folder.")
]
DryRun = Annotated[
    bool, typer.Option("--dry-run", help="Only say what would run where; without a daemon, here.")
]
