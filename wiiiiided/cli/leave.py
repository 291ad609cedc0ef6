"""`wiiiiide leave`: this machine is alone again."""

from __future__ import annotations

from typing import Annotated

import typer

from wiiiiided.cli import screen
from wiiiiided.cli.daemon import connect
from wiiiiided.cli.machines import become, standing
from wiiiiided.cli.progress import waiting


def command(
    force: Annotated[
        bool,
        typer.Option(
            "--force", help="End its shares, and leave also when the coordinator cannot be told."
        ),
    ] = False,
) -> None:
    """Take this machine out of its cluster. Files of the cluster's jobs stay on its disk.

    With --force it ends the shares of jobs it has, and leaves whether the coordinator can be told
    or not: where it cannot, the others wait for it until somebody says wiiiiide nodes remove NAME
    there.
    """
    client = connect()
    with waiting("leaving the cluster"):
        view = client.leave(force)
    become(client, "alone")
    screen.say(standing(view))
