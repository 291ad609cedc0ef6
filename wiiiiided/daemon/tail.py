"""Reading ranks' logs while shims write and rotate them.

    rank-0.log.1   rank-0.log        a line: <seconds> <out|err|note> <text>
    (older)        (now)

A reader keeps the inode it is in and the offset of the first line it has not given. When the
current file is another inode, the old one is now .1: finish it there, then begin the new one.
"""

from __future__ import annotations

import heapq
import os
import re
from operator import attrgetter

from wiiiiided.control.job import Job
from wiiiiided.daemon.runs import Runs
from wiiiiided.errors import HostError
from wiiiiided.shim.lines import parse
from wiiiiided.wire.messages import LogLine, Logs

CHUNK_BYTES = 1 << 20  # of one rank at once: many ranks must not fill the daemon's memory


class RankLog:
    """One rank's log, from the beginning or from near the end, to where it is now."""

    def __init__(self, runs: Runs, job: int, attempt: int, rank: int) -> None:
        self.runs, self.job, self.attempt, self.rank = runs, job, attempt, rank
        self._inode = 0
        self._offset = 0

    def lines(self) -> list[LogLine]:
        """What was written since the last call; at most about CHUNK_BYTES of it."""
        current = self._open("")
        if current is None:
            return []
        try:
            inode = os.fstat(current).st_ino
            if self._inode == 0 and (older := self._open(".1")) is not None:
                self._inode = os.fstat(older).st_ino
                os.close(older)
            if self._inode not in (0, inode):
                found = self._rest_of_older()
                if found:
                    return found
                self._offset = 0
            self._inode = inode
            return self._read(current)
        finally:
            os.close(current)

    def _rest_of_older(self) -> list[LogLine]:
        older = self._open(".1")
        if older is None:
            return []
        try:
            # Rotated more than once since: what was in between is gone.
            return self._read(older) if os.fstat(older).st_ino == self._inode else []
        finally:
            os.close(older)

    def _read(self, fd: int) -> list[LogLine]:
        data = os.pread(fd, CHUNK_BYTES, self._offset)
        whole = data.rfind(b"\n") + 1
        self._offset += whole
        return [self._line(raw) for raw in data[:whole].split(b"\n")[:-1]]

    def _line(self, raw: bytes) -> LogLine:
        at, stream, text = parse(raw)
        return LogLine(at, self.rank, stream, text, self.attempt)  # type: ignore[arg-type]

    def _open(self, suffix: str) -> int | None:
        try:
            return self.runs.open(self.job, self.attempt, f"rank-{self.rank}.log{suffix}")
        except (OSError, HostError):
            return None


class Tail:
    """Several ranks' logs, merged by time as far as they go."""

    def __init__(
        self, runs: Runs, job: Job, attempt: int, ranks: tuple[int, ...], lines: int | None
    ) -> None:
        self.attempt = attempt
        wanted = ranks or ranks_of(runs, job, attempt)
        self._logs = [RankLog(runs, job.id, attempt, rank) for rank in wanted]
        self._first = lines

    def more(self) -> list[LogLine]:
        """Everything new, oldest first."""
        batches = [self._batch(log) for log in self._logs]
        self._first = None
        return list(heapq.merge(*batches, key=attrgetter("at")))

    def _batch(self, log: RankLog) -> list[LogLine]:
        if self._first is None:
            return log.lines()
        found: list[LogLine] = []
        while new := log.lines():
            found = (found + new)[-self._first :] if self._first else []
        return found

    def close(self) -> None:
        self._logs.clear()


def read_logs(runs: Runs, job: Job, attempt: int, wanted: Logs) -> list[LogLine]:
    """An attempt's logs as they are now."""
    tail = Tail(runs, job, attempt, wanted.ranks, wanted.tail)
    found = tail.more()
    while wanted.tail is None and (new := tail.more()):
        found += new
    return found


def ranks_of(runs: Runs, job: Job, attempt: int) -> tuple[int, ...]:
    """The ranks this node ran in an attempt: by its layout if it is the latest, else by files."""
    if job.attempt is not None and job.attempt.number == attempt:
        return tuple(range(job.attempt.layout.world_size))
    try:
        names = os.listdir(runs.attempt(job.id, attempt))
    except OSError:
        return ()
    found = (re.fullmatch(r"rank-(\d{1,5})\.log", name) for name in names)
    return tuple(sorted(int(match[1]) for match in found if match))
