"""`wiiiiide token`: what lets another machine join."""

from __future__ import annotations

import time
from typing import Annotated

import typer

from wiiiiided.cli import screen
from wiiiiided.cli.daemon import connect, fields
from wiiiiided.cli.group import Command, plain_app
from wiiiiided.cli.machines import put_joining
from wiiiiided.cli.options import Json
from wiiiiided.cli.words import number, seconds

app = plain_app(help="What lets another machine join the cluster.", no_args_is_help=True)

Ttl = Annotated[str, typer.Option(metavar="TIME", help="How long it can be used: 10m, 1h, 24h.")]
Uses = Annotated[str, typer.Option(metavar="N", help="How many machines it lets in.")]


@app.callback()
def _group() -> None:
    """What lets another machine join the cluster."""


@app.command(cls=Command, short_help="Print the command that lets another machine join.")
def create(ttl: Ttl = "1h", uses: Uses = "1", as_json: Json = False) -> None:
    """Print the command with which another machine joins, with a new token in it.

    The token is a secret: who has it can make a machine a member, and a member can run programs
    on all the others. It is only printed, never stored.
    """
    lasts, times = seconds(ttl, "--ttl"), number(uses, "--uses")
    if not lasts or not times:
        raise typer.BadParameter("--ttl and --uses are more than 0")
    token = connect().create_token(lasts, times)
    if as_json:
        screen.put_json(fields(token))
    else:
        put_joining(token, time.time())
