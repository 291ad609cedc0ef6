"""`wiiiiide hold`: queued jobs do not start until they are released."""

from __future__ import annotations

from wiiiiided.ui.cli.bulk import each
from wiiiiided.ui.cli.daemon import connect
from wiiiiided.ui.cli.options import WaitingIds


def command(jobs: WaitingIds) -> int:
    """Keep queued jobs from starting, until they are released."""
    client = connect()
    return each(jobs, client, client.hold, ("queued", "backoff"))
