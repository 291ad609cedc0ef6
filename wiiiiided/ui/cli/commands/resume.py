"""`wiiiiide resume`: a machine that was drained gets jobs again."""

from __future__ import annotations

from wiiiiided.ui.cli.daemon import connect
from wiiiiided.ui.cli.membership import said
from wiiiiided.ui.cli.options import NodeName
from wiiiiided.ui.cli.screen import say


def command(node: NodeName) -> None:
    """Give a machine jobs again that was drained."""
    say(said(connect().resume(node)))
