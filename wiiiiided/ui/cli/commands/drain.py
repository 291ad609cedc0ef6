"""`wiiiiide drain`: a machine gets no new jobs; those on it go on."""

from __future__ import annotations

from typing import Annotated

import typer

from wiiiiided.ui.cli.daemon import connect
from wiiiiided.ui.cli.membership import said
from wiiiiided.ui.cli.options import NodeName
from wiiiiided.ui.cli.screen import say


def command(
    node: NodeName,
    reason: Annotated[
        list[str] | None, typer.Argument(metavar="REASON", help="Why; others are shown it.")
    ] = None,
) -> None:
    """Give a machine no new jobs until it is resumed. Jobs on it go on."""
    say(said(connect().drain(node, " ".join(reason or ()))))
