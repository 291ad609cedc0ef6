"""`wiiiiide leave`: this machine is alone again."""

from __future__ import annotations

from typing import Annotated

import typer

from wiiiiided.ui.cli import screen
from wiiiiided.ui.cli.daemon import connect
from wiiiiided.ui.cli.membership import become, role_sentence
from wiiiiided.ui.cli.progress import waiting


def command(
    force: Annotated[
        bool,
        typer.Option(
            "--force",
            help="End the jobs on it, and leave also when the coordinator cannot be told.",
        ),
    ] = False,
) -> None:
    """Take this machine out of its cluster. Files of the cluster's jobs stay on its disk.

    With --force it ends what jobs run on it, and leaves whether the coordinator can be told or
    not: where it cannot, the others wait for it until wiiiiide nodes remove NAME is said there.
    """
    client = connect()
    with waiting("leaving the cluster"):
        view = client.leave(force)
    become(client, "alone")
    screen.say(role_sentence(view))
