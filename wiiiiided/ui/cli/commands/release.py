"""`wiiiiide release`: held jobs may start."""

from __future__ import annotations

from wiiiiided.ui.cli.bulk import each
from wiiiiided.ui.cli.daemon import connect
from wiiiiided.ui.cli.options import HeldIds


def command(jobs: HeldIds) -> int:
    """Let held jobs start when their turn comes."""
    client = connect()
    return each(jobs, client, client.release, ("held",))
