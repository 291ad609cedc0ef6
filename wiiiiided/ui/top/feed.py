"""Answers as they come, from a connection that is only read when something is there.

A frame may come in parts, and a daemon may stop in the middle of one. `answers` takes whole
frames and returns; the rest waits in the connection.
"""

from __future__ import annotations

import time
from collections.abc import Iterator

from wiiiiided.cluster.client import TimedOut
from wiiiiided.cluster.client.connection import Connection
from wiiiiided.cluster.rpc import messages as m

AT_ONCE = 8  # answers between two looks at keys and signals


def answers(connection: Connection) -> Iterator[m.Answer]:
    """The answers that have come; ClientError as `Connection.answer` raises it."""
    for _ in range(AT_ONCE):
        try:
            yield connection.answer(deadline=time.monotonic())
        except TimedOut:
            return
        if not connection.waiting:
            return
