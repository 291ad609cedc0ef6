"""`wiiiiide requeue`: jobs run again from the beginning, with the files they had."""

from __future__ import annotations

from wiiiiided.ui.cli.bulk import each
from wiiiiided.ui.cli.daemon import connect
from wiiiiided.ui.cli.options import Ids


def command(jobs: Ids) -> int:
    """Run jobs again: those that are over, and those that run now, which are ended first.

    A job keeps its number, its working directory and what it wrote there. Of a sweep, those that
    failed or were cancelled.
    """
    client = connect()
    return each(jobs, client, client.requeue, ("failed", "cancelled"))
