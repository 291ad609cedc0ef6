"""A rank's log: two pipes in, one bounded file out, and the rank never waits for it.

    rank ── stdout ─► Pipe ─┐
                            ├─► log ─► rank-0.log ── full ─► rank-0.log.1
    rank ── stderr ─► Pipe ─┘

A line that cannot be written is dropped and counted: a full disk must not fill the pipe, because
a rank would then wait in print(). The first line that can be written again follows a note with the
count. The file never ends in half a line. A new file begins with a note of how many lines came
before it: the file before the last one is gone then.

One line is left out: torch's harmless warning, in every rank, that no resolver has a name for the
machine's own address (NAMELESS).
"""

from __future__ import annotations

import collections
import contextlib
import errno
import os
import re
import stat
import time

from wiiiiided.cluster.shim import lines
from wiiiiided.cluster.shim.loop import READ, ShimLoop, Timer

READ_BYTES = 64 << 10  # what a pipe holds by default
LAST_LINES = 20  # of stderr, kept for the report on a rank that failed
LAST_BYTES = 1000  # of each of them
# c10d's socket.cpp looks up the name of the Store's address, for its own messages only.
NAMELESS = re.compile(
    rb"\[W[0-9]{4} [0-9:.]+ socket\.cpp:[0-9]+\] \[c10d\] "
    rb"The hostname of the client socket cannot be retrieved\. err=-?[0-9]+\r?"
)


class RankLogWriter:
    """The file of one rank; at most two times `limit` bytes on the disk."""

    def __init__(self, directory: int, name: str, mode: int, limit: int) -> None:
        self._directory, self._name, self._mode, self._limit = directory, name, mode, limit
        self._fd = -1
        self._size = 0
        self._dropped = 0
        self._why = ""
        self._lines = 0  # written so far, in all files
        self.last_errors: collections.deque[bytes] = collections.deque(maxlen=LAST_LINES)

    def write(self, stream: str, texts: list[bytes]) -> None:
        """Add lines; never raises, waits for nothing but the disk."""
        if stream == "err":
            texts = [text for text in texts if not NAMELESS.fullmatch(text)]
            self.last_errors.extend(text[:LAST_BYTES] for text in texts[-LAST_LINES:])
        now = time.time()
        front = lines.head(now, stream)
        ready = [front + text + b"\n" for text in texts]
        if self._dropped:
            words = f"{_count(self._dropped)} dropped: {self._why}"
            ready.insert(0, lines.head(now, "note") + words.encode() + b"\n")
            note = 1
        else:
            note = 0
        lost = self._put(ready)
        # The note is the first line: when it was written, the count begins anew.
        self._dropped = lost if lost < len(ready) else self._dropped + lost - note

    def note(self, text: str) -> None:
        """Add a line of the shim's own."""
        self.write("note", [text.encode("utf-8", "replace")])

    def close(self) -> None:
        if self._dropped:
            self.write("note", [])
        if self._fd >= 0:
            os.close(self._fd)
            self._fd = -1

    def _put(self, ready: list[bytes]) -> int:
        """Write lines, in as many files as it takes; how many could not be written."""
        begin = 0
        while begin < len(ready):
            try:
                if self._size and self._size + len(ready[begin]) > self._limit:
                    self._rotate()
                if self._fd < 0:
                    self._open()
                    if self._lines and not self._size:
                        self._append([self._turned_over()])
                end, room = begin + 1, self._limit - self._size - len(ready[begin])
                while end < len(ready) and len(ready[end]) <= room:
                    room -= len(ready[end])
                    end += 1
                written = self._append(ready[begin:end])
            except OSError as problem:
                self._why = problem.strerror or str(problem)
                return len(ready) - begin
            begin += written
            self._lines += written
            if begin < end:
                return len(ready) - begin
        return 0

    def _append(self, ready: list[bytes]) -> int:
        """Write lines in one go; how many are whole in the file."""
        data = b"".join(ready)
        count = os.write(self._fd, data)
        if count == len(data):
            self._size += count
            return len(ready)
        self._why = "No space left on device"  # the usual reason for a short write
        whole = 0
        while count >= len(ready[whole]):
            count -= len(ready[whole])
            self._size += len(ready[whole])
            whole += 1
        os.ftruncate(self._fd, self._size)
        return whole

    def _turned_over(self) -> bytes:
        words = f"a new file of this log, after {self._lines} lines; only the last two are kept"
        return lines.head(time.time(), "note") + words.encode() + b"\n"

    def _open(self) -> None:
        # The job can put something else in the file's place: a link is not followed, a FIFO does
        # not block.
        flags = os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_NOFOLLOW | os.O_NONBLOCK
        fd = os.open(self._name, flags, self._mode, dir_fd=self._directory)
        try:
            found = os.fstat(fd)
            if not stat.S_ISREG(found.st_mode):
                raise OSError(errno.EINVAL, "the log is not a regular file")
            os.fchmod(fd, self._mode)  # the umask may have taken some of it
        except OSError:
            os.close(fd)
            raise
        self._fd, self._size = fd, found.st_size

    def _rotate(self) -> None:
        if self._fd >= 0:
            os.close(self._fd)
            self._fd = -1
        self._size = 0
        with contextlib.suppress(FileNotFoundError):  # the job may remove its own log
            os.rename(
                self._name,
                f"{self._name}.1",
                src_dir_fd=self._directory,
                dst_dir_fd=self._directory,
            )


def _count(number: int) -> str:
    return "1 line was" if number == 1 else f"{number} lines were"


class Pipe:
    """One stream of a rank, from its pipe into its log."""

    def __init__(self, loop: ShimLoop, fd: int, stream: str, log: RankLogWriter) -> None:
        self._loop, self._fd, self._stream, self._log = loop, fd, stream, log
        self._cutter = lines.Cutter()
        self._fed_at = 0.0
        self._timer: Timer | None = None
        self.name = f"pipe:[{os.fstat(fd).st_ino}]"
        os.set_blocking(fd, False)
        loop.watch(fd, READ, self._ready)

    def _ready(self) -> None:
        self._read()

    def _read(self) -> bool:
        """Take what is there; False when there is nothing more for now."""
        if self._fd < 0:
            return False
        try:
            data = os.read(self._fd, READ_BYTES)
        except BlockingIOError:
            return False
        except OSError:
            data = b""
        if not data:
            self.close()
            return False
        self._fed_at = time.monotonic()
        if done := self._cutter.feed(data, self._fed_at):
            self._log.write(self._stream, done)
        self._set_timer()
        return True

    def drain(self) -> None:
        """Read the rest, when the job has ended. A process elsewhere may have got the descriptor
        and still write, so the number of reads is bounded."""
        for _ in range(64):
            if not self._read():
                break
        self.close()

    def close(self) -> None:
        """Write the text without an end of line, and close the pipe."""
        if self._fd < 0:
            return
        if done := self._cutter.flush(time.monotonic(), self._fed_at, final=True):
            self._log.write(self._stream, done)
        self._loop.forget(self._fd)
        os.close(self._fd)
        self._fd = -1
        if self._timer is not None:
            self._timer.cancel()

    def _set_timer(self) -> None:
        # One timer at a time: when it fires too early, because more has come, it is set again.
        if self._timer is None or not self._timer.pending:
            wait = self._cutter.flush_in_s(time.monotonic(), self._fed_at)
            if wait is not None:
                self._timer = self._loop.after(wait, self._flush)

    def _flush(self) -> None:
        if done := self._cutter.flush(time.monotonic(), self._fed_at):
            self._log.write(self._stream, done)
        self._set_timer()
