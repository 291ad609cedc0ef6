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
        bool, typer.Option("--force", help="Also when the coordinator cannot be told.")
    ] = False,
) -> None:
    """Take this machine out of its cluster. Files of the cluster's jobs stay on its disk.

    With --force it leaves without asking: the others go on waiting for it until somebody says
    wiiiiide nodes remove NAME there.
    """
    client = connect()
    with waiting("leaving the cluster"):
        view = client.leave(force)
    become(client, "alone")
    screen.say(standing(view))
