"""Snapshots from the daemon, while the screen is open: through its silence and its restarts.

    connected ──ends──► gone, counting down ──► trying (a request) ──► connected, and gone until it
                                                                       speaks
        └──says nothing──► silent: the connection stays, it may speak again

The loop asks `gone` for the banner above the last frame, and `read` for the next snapshot.
"""

from __future__ import annotations

from wiiiiided.cluster.client import Client, ClientError
from wiiiiided.cluster.client.connection import Connection
from wiiiiided.cluster.rpc.messages import Notice, Snapshot
from wiiiiided.ui.top.background import BackgroundRequests
from wiiiiided.ui.top.feed import answers
from wiiiiided.ui.top.ui import Gone

SILENT_S = 5.0  # and three intervals, whichever is longer
PAUSES_S = (1.0, 2.0, 5.0)  # before the first new try, the second, all others
REQUEST = "watch"


class SnapshotFeed:
    """Begins with a connection; the first refusal is the caller's, later ones are waited out."""

    def __init__(
        self,
        client: Client,
        requests: BackgroundRequests,
        connection: Connection,
        every_s: float,
        now: float,
    ) -> None:
        self._client, self._requests = client, requests
        self.connection: Connection | None = connection
        self._every_s = every_s
        self._heard_at = now
        self._spoke = False  # a snapshot has come, ever
        self._reason = ""  # why no snapshot comes; empty when one did
        self._retry_at: float | None = None
        self._tries = 0

    def close(self) -> None:
        if self.connection is not None:
            self.connection.close()
            self.connection = None

    def read(self, now: float) -> Snapshot | None:
        """The newest snapshot that has come."""
        newest = None
        if self.connection is None:
            return None
        try:
            for answer in answers(self.connection):
                if isinstance(answer, Snapshot):
                    newest, self._reason = answer, ""
                elif isinstance(answer, Notice):
                    self._reason = answer.text  # the daemon speaks, but has no snapshot
        except ClientError as problem:
            if not self._spoke and newest is None:
                raise
            self._lost(problem, now)
        if newest is not None:
            self._spoke, self._heard_at, self._tries = True, now, 0
        return newest

    def opened(self, result: object, now: float) -> None:
        """Take the request's result: the new connection replaces the old one."""
        if isinstance(result, Connection):
            self.close()
            self.connection, self._heard_at, self._retry_at = result, now, None
        elif isinstance(result, ClientError):
            self._lost(result, now)

    def tick(self, now: float, every_s: float) -> None:
        """Try again when it is time; ask anew when the interval has been changed."""
        due = self.connection is None and (self._retry_at is None or now >= self._retry_at)
        changed = self.connection is not None and every_s != self._every_s
        if (due or changed) and self._requests.run(REQUEST, lambda: self._client.watching(every_s)):
            self._every_s, self._retry_at = every_s, None

    def gone(self, now: float) -> Gone | None:
        if self.connection is None:
            left = None if self._retry_at is None else max(0.0, self._retry_at - now)
            return Gone(self._reason, left)
        if self._reason:  # connected again, and the last snapshot is still the old one
            return Gone(self._reason)
        silent_s = now - self._heard_at
        if silent_s > max(SILENT_S, 3 * self._every_s):
            return Gone(f"the daemon has said nothing for {silent_s:.0f} s")
        return None

    def _lost(self, problem: ClientError, now: float) -> None:
        self.close()
        self._reason = str(problem)
        self._retry_at = now + PAUSES_S[min(self._tries, len(PAUSES_S) - 1)]
        self._tries += 1
