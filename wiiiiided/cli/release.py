"""`wiiiiide release`: held jobs may start."""

from __future__ import annotations

from wiiiiided.cli.daemon import connect
from wiiiiided.cli.options import Ids
from wiiiiided.cli.several import each


def command(jobs: Ids) -> int:
    """Let held jobs start when their turn comes."""
    client = connect()
    return each(jobs, client, client.release, ("held",))
