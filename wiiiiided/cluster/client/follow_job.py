"""Watching a job through restarts of the daemon: two streams at once, and no line twice."""

from __future__ import annotations

import select
import time
from collections.abc import Iterator

from wiiiiided.cluster.client.connection import SLICE_S, Connection
from wiiiiided.cluster.rpc import messages as m

LINGER_S = 5.0  # for the last lines of a job that is over


class SeenLines:
    """Which log lines were handed out already, told by their times.

    A line has no number that would survive rotation, but within one rank's log times only grow. So
    after a restart of the daemon, a rank's lines are skipped up to the time of the last one seen,
    and of those with that very time, as many as were seen.
    """

    def __init__(self) -> None:
        self.attempt: int | None = None  # the latest
        self._last: dict[tuple[int, int], tuple[float, int]] = {}
        self._skip: dict[tuple[int, int], tuple[float, int]] = {}

    def rewind(self) -> None:
        """Lines from the beginning on will come again."""
        self._skip = dict(self._last)

    def unseen(self, lines: Iterator[m.LogLine]) -> Iterator[m.LogLine]:
        for line in lines:
            key = (line.attempt, line.rank)
            if key in self._skip and self._skips(key, line.at):
                continue
            at, count = self._last.get(key, (line.at, 0))
            self._last[key] = (line.at, count + 1 if line.at == at else 1)
            self.attempt = max(self.attempt or 0, line.attempt)
            yield line

    def _skips(self, key: tuple[int, int], at: float) -> bool:
        last, count = self._skip[key]
        if at == last and count:
            self._skip[key] = (last, count - 1)
            return True
        if at < last:
            return True
        del self._skip[key]
        return False


def both(states: Connection, lines: Connection) -> Iterator[m.Answer]:
    """The answers of both as they come, until both have ended."""
    open_ones = [states, lines]
    linger: float | None = None
    while open_ones:
        ready = [one for one in open_ones if one.waiting]
        if not ready:
            ready = select.select(open_ones, [], [], SLICE_S)[0]
        if not ready and linger is not None and time.monotonic() > linger:
            return  # the job is over, and its log does not end: what came is what there is
        for one in ready:
            answer = one.answer()
            if linger is not None:  # as long as something comes there is more
                linger = time.monotonic() + LINGER_S
            if not isinstance(answer, m.EndOfAnswers):
                yield answer
                continue
            open_ones.remove(one)
            if one is states:
                linger = time.monotonic() + LINGER_S
