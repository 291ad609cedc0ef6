"""`wiiiiide hold`: queued jobs do not start until they are released."""

from __future__ import annotations

from wiiiiided.cli.daemon import connect
from wiiiiided.cli.options import Ids
from wiiiiided.cli.several import each


def command(jobs: Ids) -> int:
    """Keep queued jobs from starting, until they are released."""
    client = connect()
    return each(jobs, client, client.hold, ("queued", "backoff"))
