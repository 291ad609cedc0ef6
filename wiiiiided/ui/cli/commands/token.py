"""`wiiiiide token`: what lets another machine join."""

from __future__ import annotations

import time
from typing import Annotated

import typer

from wiiiiided.ui.cli import screen
from wiiiiided.ui.cli.command_table import QuickCommand, QuickGroup, plain_app
from wiiiiided.ui.cli.daemon import connect, fields
from wiiiiided.ui.cli.membership import put_joining
from wiiiiided.ui.cli.option_values import seconds
from wiiiiided.ui.cli.options import Json

app = plain_app(
    cls=QuickGroup, help="Tokens let another machine join the cluster.", no_args_is_help=True
)

Ttl = Annotated[str, typer.Option(metavar="TIME", help="How long it can be used: 10m, 1h, 24h.")]
Uses = Annotated[
    int, typer.Option(metavar="N", min=1, max=1024, help="How many machines it lets in.")
]


@app.callback()
def _group() -> None:
    """Tokens let another machine join the cluster."""


@app.command(
    cls=QuickCommand,
    short_help="Print the command that lets another machine join.",
    epilog="Example: sudo wiiiiide token create --uses 3 --ttl 10m",
)
def create(ttl: Ttl = "1h", uses: Uses = 1, as_json: Json = False) -> None:
    """Print the command with which another machine joins, with a new token in it.

    The token is a secret: with it any machine can become a member, and a member can run programs
    on all the others. It is only printed, never stored.
    """
    if not (lasts := seconds(ttl, "--ttl")):
        raise typer.BadParameter("--ttl is more than 0")
    token = connect().create_token(lasts, uses)
    if as_json:
        screen.put_json(fields(token))
    else:
        put_joining(token, time.time())
