"""Reading ranks' logs while shims write and rotate them, a piece at a time.

    rank-0.log.1   rank-0.log        a line: <seconds> <out|err|note> <text>
    (older)        (now)

A reader keeps which file it is in and the offset of the first line it has not given. When the
current file is another, the old one is now .1: finish it there, then begin the new one. A file is
known by its inode and its first line's time: inodes are used again as soon as they are free.
No more than one piece per rank is held: a log may be as large as it likes, and so may the
number of ranks. Lines of several ranks are merged by their time. Which ranks there are is told by
the files: so a node knows it of its own allocation, whatever became of the job.

    truncate(rank-0.log, 1 TiB)      ░░░░░░░ zeros ░░░░░░░░░░░░│▒ 2 × limits.log ▒│
                                     never looked at           └ what is read of it, without zeros

The file is the job's, and may be of any size without a block on the disk. A shim writes at most
limits.log to one, so of a larger file only the end is read, and a note says so. Holes are passed
over unread. All of this waits for a disk, which may be slow or gone: `Tail` and its `batches` are
for a thread, which ends within a piece once the reader has gone.
"""

from __future__ import annotations

import heapq
import os
import re
import threading
import time
from collections.abc import Iterator
from operator import attrgetter

from wiiiiided.cluster.allocation.job_dirs import JobDirs
from wiiiiided.cluster.rpc.messages import LogLine
from wiiiiided.cluster.shim.lines import LINE_BYTES, parse
from wiiiiided.cluster.system.settings import Settings
from wiiiiided.domain.limits import MAX_WORKERS
from wiiiiided.errors import HostError
from wiiiiided.text import format_size

PIECE_BYTES = 2 * LINE_BYTES  # of one rank at once; a line and its head fit in it
MOST_LINES = 1_000_000  # that `tail` may ask for
BATCH_CHARS = 1 << 18  # of log lines in one message; JSON may make each six bytes
LINE_OVERHEAD = 80
OVERTAKEN = "lines are missing here: the log was written faster than it was read"


FileId = tuple[int, bytes]


def identity(fd: int) -> FileId | None:
    """Which file this is; None while it is empty."""
    head = os.pread(fd, 17, 0)  # seconds and microseconds
    return (os.fstat(fd).st_ino, head) if head else None


class RankLog:
    """One rank's log, from the beginning or from near the end, to where it is now."""

    def __init__(
        self,
        job_dirs: JobDirs,
        job: int,
        attempt: int,
        rank: int,
        most_bytes: int,
        node: str,
        given_up: threading.Event,
    ) -> None:
        self.job_dirs, self.job, self.attempt, self.rank = job_dirs, job, attempt, rank
        self.most_bytes = most_bytes  # of one file, from its end
        self.node = node
        self._given_up = given_up
        self._file: FileId | None = None
        self._offset = 0
        self._overtaken = False

    def lines(self) -> Iterator[LogLine]:
        """The lines since the last call, to the end of what there is."""
        while not self._given_up.is_set() and (piece := self._piece()):
            yield from piece

    def skip_to_last(self, lines: int) -> None:
        """Leave out all but the last so many of the lines there are now."""
        for suffix in ("", ".1"):
            fd = self._open(suffix)
            if fd is None:
                return
            try:
                self._file = identity(fd)
                floor = max(0, os.fstat(fd).st_size - self.most_bytes)
                self._offset, found = _last_lines(fd, lines, floor, self._given_up)
            finally:
                os.close(fd)
            lines -= found
            if lines <= 0 or self._given_up.is_set():
                return
            if floor:  # not ours: what is before it is none of our lines either
                self._offset = 0
                return

    def _piece(self) -> list[LogLine]:
        current = self._open("")
        if current is None:
            return []
        try:
            now = identity(current)
            if now is None:
                return []  # nothing is in it yet
            if self._file is None and (older := self._open(".1")) is not None:
                self._file = identity(older)
                os.close(older)
            if self._file not in (None, now):
                found = self._rest_of_older()
                if found:
                    return found
                self._offset, self._file = 0, now
                if self._overtaken:
                    self._overtaken = False
                    return [self._note(OVERTAKEN)]
            self._file = now
            return self._read(current)
        finally:
            os.close(current)

    def _rest_of_older(self) -> list[LogLine]:
        older = self._open(".1")
        if older is None:
            return []
        try:
            if identity(older) == self._file:
                return self._read(older)
            self._overtaken = True  # rotated more than once since
            return []
        finally:
            os.close(older)

    def _read(self, fd: int) -> list[LogLine]:
        notes = self._skip_what_is_not_ours(fd)
        data = os.pread(fd, PIECE_BYTES, self._offset)
        whole = data.rfind(b"\n") + 1
        if not whole and len(data) == PIECE_BYTES:
            whole = len(data)  # no shim writes such a line, but a job can
        if not whole:
            return [self._note(text) for text in notes]
        self._offset += whole
        texts = data[:whole].removesuffix(b"\n").split(b"\n")
        lines = [self._line(raw.lstrip(b"\0")) for raw in texts]
        # With the time of the line that follows: times of a rank only grow.
        return [*(self._note(text, lines[0].at) for text in notes), *lines]

    def _skip_what_is_not_ours(self, fd: int) -> list[str]:
        """Go on at the file's end if it is larger than a shim makes one, and after zeros: a job has
        stretched it, or a crash has. Notes in the place of what is left out."""
        size = os.fstat(fd).st_size
        notes: list[str] = []
        if size - self._offset > self.most_bytes:
            self._offset = size - self.most_bytes
            text = (
                f"this file has {format_size(size)}, more than its limit (limits.log) allows: only "
            )
            notes.append(f"{text}the last {format_size(self.most_bytes)} are read")
            cut = os.pread(fd, PIECE_BYTES, self._offset).find(b"\n") + 1
            self._offset += cut  # it was in the middle of a line
        after = _after_zeros(fd, self._offset, size, self._given_up)
        if after > self._offset:
            text = f"{format_size(after - self._offset)} of zeros are left out here"
            notes.append(f"{text}: no rank wrote them")
            self._offset = after
        return notes

    def _line(self, raw: bytes) -> LogLine:
        at, stream, text = parse(raw)
        return LogLine(at, self.rank, stream, text, self.attempt, self.node)  # type: ignore[arg-type]

    def _note(self, text: str, at: float | None = None) -> LogLine:
        at = time.time() if at is None else at
        return LogLine(at, self.rank, "note", text, self.attempt, self.node)

    def _open(self, suffix: str) -> int | None:
        try:
            return self.job_dirs.open(self.job, self.attempt, f"rank-{self.rank}.log{suffix}")
        except (OSError, HostError):
            return None


class Tail:
    """The logs of one attempt's ranks on this node, at most `most` of them, merged by time as far
    as they go. Once `given_up` is set, in whichever thread, nothing more is read."""

    def __init__(
        self,
        job_dirs: JobDirs,
        job: int,
        attempt: int,
        ranks: tuple[int, ...] = (),
        lines: int | None = None,
        node: str = "",
        log_bytes: int = Settings.log_bytes,
        most: int = MAX_WORKERS,
        given_up: threading.Event | None = None,
    ) -> None:
        self.job_dirs, self.job, self.attempt, self.node = job_dirs, job, attempt, node
        # Twice: a shim ends a file a line later, and the limit may have been another then.
        self._most_bytes = 2 * log_bytes
        self._wanted, self._most = frozenset(ranks), most
        self._given_up = given_up or threading.Event()
        self._logs: dict[int, RankLog] = {}
        self._look()
        if lines is not None:
            for log in self._logs.values():
                log.skip_to_last(min(max(0, lines), MOST_LINES))

    def more(self) -> Iterator[LogLine]:
        """Read all lines that are new, oldest first. No file is looked at before the first line is
        wanted."""
        self._look()
        logs = (self._logs[rank].lines() for rank in sorted(self._logs))
        yield from heapq.merge(*logs, key=attrgetter("at"))

    def _look(self) -> None:
        """A follower may be here before the ranks are."""
        for rank in ranks_written(self.job_dirs, self.job, self.attempt):
            if len(self._logs) >= self._most:
                return
            if rank not in self._logs and (not self._wanted or rank in self._wanted):
                self._logs[rank] = RankLog(
                    *(self.job_dirs, self.job, self.attempt, rank),
                    *(self._most_bytes, self.node, self._given_up),
                )


def ranks_written(
    job_dirs: JobDirs, job: int, attempt: int, pattern: str = r"rank-(\d+)\.log"
) -> list[int]:
    """The ranks of an attempt that have such a file on this node."""
    try:
        names = os.listdir(job_dirs.attempt(job, attempt))
    except OSError:
        return []
    found = (re.fullmatch(pattern, name) for name in names)
    ranks = sorted(int(match[1]) for match in found if match and _is_rank(match[1]))
    return ranks[:MAX_WORKERS]


def _is_rank(text: str) -> bool:
    return text.isascii() and len(text) <= 6 and (text == "0" or text[0] != "0")


def batches(lines: Iterator[LogLine]) -> Iterator[tuple[LogLine, ...]]:
    """Lines in messages of a bounded size."""
    batch: list[LogLine] = []
    size = 0
    for line in lines:
        batch.append(line)
        size += len(line.text) + LINE_OVERHEAD
        if size > BATCH_CHARS:
            yield tuple(batch)
            batch, size = [], 0
    if batch:
        yield tuple(batch)


def _last_lines(fd: int, lines: int, floor: int, given_up: threading.Event) -> tuple[int, int]:
    """(offset, how many) of the last lines of a file, found from its end down to `floor`."""
    end = os.fstat(fd).st_size
    # Bytes behind the last newline are not yet a line.
    count, offset = -1, end
    step = PIECE_BYTES
    while offset > floor and not given_up.is_set():
        begin = max(floor, offset - step)
        if _is_hole(fd, begin, offset):
            offset, step = begin, 2 * step
            continue
        if step > PIECE_BYTES:
            step = PIECE_BYTES
            continue
        data = os.pread(fd, offset - begin, begin)
        at = len(data)
        while (at := data.rfind(b"\n", 0, at)) >= 0:
            count += 1
            if count == lines:
                return begin + at + 1, lines
        offset = begin
    return floor, max(0, count + 1)


def _is_hole(fd: int, begin: int, end: int) -> bool:
    """Whether nothing was ever written there."""
    try:
        return os.lseek(fd, begin, os.SEEK_DATA) >= end
    except OSError:  # there is nothing but a hole
        return True


def _after_zeros(fd: int, offset: int, size: int, given_up: threading.Event) -> int:
    """`offset`, or where the zeros end that begin there; a hole is not read to be passed over."""
    while not given_up.is_set() and os.pread(fd, 1, offset) == b"\0":
        data = os.pread(fd, PIECE_BYTES, offset)
        if data.strip(b"\0"):
            break
        try:
            offset = os.lseek(fd, offset + len(data), os.SEEK_DATA)
        except OSError:  # there is nothing but a hole
            return max(offset + len(data), size)
    return offset
