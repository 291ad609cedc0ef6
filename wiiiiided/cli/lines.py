"""Log lines on a screen: which rank, which stream, and what must not be overlooked.

    0 │ epoch 1 loss 0.412            stdout
    1 ! UserWarning: …                stderr: the mark is there without colours too
    1 ! Traceback (most recent …      a traceback: all of it in red, also one on stdout
    0 · rotated …                     a note of the shim

What a rank writes is untrusted: it is cleaned here. Of a line that was overwritten with carriage
returns, as progress bars do, the last version is shown, as on a terminal.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence

from wiiiiided.cli import screen
from wiiiiided.cli.text import clean
from wiiiiided.client import ClientError
from wiiiiided.wire.messages import JobView, LogLine

TRACEBACK = "Traceback (most recent call last)"


class NoSuchRank(ClientError):
    """The job has fewer ranks than that."""

    code = 2


def check_ranks(job: JobView, ranks: Sequence[int]) -> None:
    """A rank that the job does not have would just be silent."""
    if job.attempt and job.workers and max(ranks, default=0) >= job.workers:
        has = "rank 0 only" if job.workers == 1 else f"ranks 0 to {job.workers - 1}"
        raise NoSuchRank(f"job {job.id} has {has}")


class NoSuchAttempt(ClientError):
    """The job has not been tried so often."""

    code = 6


def check_attempt(job: JobView, attempt: int | None) -> None:
    """An attempt that was never made has no lines, which is not the same as silence."""
    if attempt is None or 0 < attempt <= job.attempt:
        return
    made = {0: "has not been started yet", 1: "has had attempt 1 only"}
    has = made.get(job.attempt, f"has had attempts 1 to {job.attempt}")
    raise NoSuchAttempt(f"there is no attempt {attempt}: job {job.id} {has}")


class Lines:
    """Prints log lines; `workers` says how wide the ranks' numbers get."""

    def __init__(self, workers: int) -> None:
        self.workers = workers
        self._in_traceback: set[int] = set()
        self._bar = "│" if screen.can_print("│", sys.stdout) else "|"
        self._dot = "·" if screen.can_print("·", sys.stdout) else "-"

    def put(self, line: LogLine) -> None:
        text = clean(line.text.rstrip("\r").rpartition("\r")[2])
        bad = self._is_traceback(line, text)
        mark = {"out": self._bar, "err": "!", "note": self._dot}[line.stream]
        if bad:
            mark = "!"
        prefix = f"{line.rank:>{len(str(max(0, self.workers - 1)))}} {mark}"
        if bad or line.stream == "note":
            colour = screen.RED if bad else screen.DIM
            screen.put(screen.paint(f"{prefix} {text}".rstrip(), colour, sys.stdout))
            return
        colour = screen.RED if line.stream == "err" else screen.DIM
        screen.put(f"{screen.paint(prefix, colour, sys.stdout)} {text}".rstrip())

    def _is_traceback(self, line: LogLine, text: str) -> bool:
        """Its first line, what is indented below it, and the error itself, which is not."""
        if line.stream == "note":
            return False
        if text.lstrip().startswith(TRACEBACK):
            self._in_traceback.add(line.rank)
            return True
        if line.rank not in self._in_traceback:
            return False
        if text and not text[0].isspace():
            self._in_traceback.discard(line.rank)
        return True
