"""The lines of one job for the log pane, through a second connection; the newest LINES of them.

Every machine sends its lines as they are written, so they are put in the order of time here. Within
a rank it stays as it came: a clock that was set back turns no line round.

Selecting another job closes the connection and opens one for it. A connection that is lost comes
back with the watch: kept lines are thrown away then, since the daemon sends its tail again.
"""

from __future__ import annotations

from collections.abc import Sequence
from operator import itemgetter

from wiiiiided.cluster.client import Client, ClientError
from wiiiiided.cluster.client.connection import Connection
from wiiiiided.cluster.rpc import messages as m
from wiiiiided.ui.top.background import BackgroundRequests
from wiiiiided.ui.top.feed import answers
from wiiiiided.ui.top.ui import LogView

LINES = 1000
TAIL = 100  # lines of each rank, to begin with
REQUEST = "log"

Moment = tuple[int, float]  # an attempt, and when


class LogFeed:
    def __init__(self, client: Client, requests: BackgroundRequests) -> None:
        self._client, self._requests = client, requests
        self.connection: Connection | None = None
        self._job: int | None = None
        self._asked: int | None = None  # the job that the request is for
        self._lines: list[tuple[Moment, m.LogLine]] = []
        self._note = ""
        self._known: Moment = (0, 0.0)  # the newest line before the log was opened again
        self._wanted = False  # a connection is to be opened

    def close(self) -> None:
        if self.connection is not None:
            self.connection.close()
            self.connection = None

    def want(self, job: int | None) -> bool:
        """Show this job's lines from now on; None: no job's. Whether it is another than before."""
        changes = job != self._job
        if changes:
            self.close()
            self._lines.clear()
            self._job, self._wanted, self._note = job, job is not None, "opening"
        if self._wanted and (wanted := self._job) is not None:
            tail = lambda: (wanted, self._client.tailing(wanted, TAIL))  # noqa: E731
            if self._requests.run(REQUEST, tail):
                self._asked, self._wanted = wanted, False
        return changes

    def again(self) -> None:
        """Go on where the connection was lost: the daemon is back."""
        self._wanted = self._job is not None and self.connection is None and self._note != OVER

    def opened(self, result: object) -> None:
        """Take the request's result; the selection may have moved on meanwhile."""
        if isinstance(result, ClientError):
            if self._asked == self._job:
                self._note = str(result)
            return
        assert isinstance(result, tuple)
        job, connection = result
        if job != self._job:
            connection.close()
            self._wanted = self._job is not None
            return
        self.close()
        self._known = self._lines[-1][0] if self._lines else (0, 0.0)
        self._lines.clear()
        self.connection, self._note = connection, ""

    def read(self) -> int:
        """Take the lines that have come; the number of new ones. A log that is opened again begins
        with lines that were there before."""
        count = 0
        if self.connection is None:
            return 0
        try:
            for answer in answers(self.connection):
                if isinstance(answer, m.LogLines):
                    self._lines = merged(self._lines, answer.lines)
                    count += sum((line.attempt, line.at) > self._known for line in answer.lines)
                elif isinstance(answer, m.EndOfAnswers):
                    self.close()
                    self._note = OVER
                    break
        except ClientError as problem:
            self.close()
            self._note = str(problem)
        return count

    def view(self) -> LogView | None:
        if self._job is None:
            return None
        note = self._note or ("" if self._lines else "nothing was written so far")
        return LogView(self._job, tuple(line for _, line in self._lines), note)


def merged(
    lines: list[tuple[Moment, m.LogLine]], new: Sequence[m.LogLine]
) -> list[tuple[Moment, m.LogLine]]:
    """Old and new lines in the order of time, the newest LINES of them."""
    last: dict[int, Moment] = {line.rank: moment for moment, line in lines}
    found = list(lines)
    for line in new:
        moment = max((line.attempt, line.at), last.get(line.rank, (0, 0.0)))
        last[line.rank] = moment
        found.append((moment, line))
    found.sort(key=itemgetter(0))  # stable, and quick: nearly all of it is in order
    return found[-LINES:]


OVER = "end of the log"
