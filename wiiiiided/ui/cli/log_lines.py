"""Log lines on a screen: which rank, which stream, and what must not be overlooked.

    0 │ epoch 1 loss 0.412            stdout
    1 ! UserWarning: …                stderr: the mark is there without colours too
    1 ! Traceback (most recent …      a traceback: all of it in red, also one on stdout
    0 · rotated …                     a note of the shim
    b:4 │ epoch 1 loss 0.409          of a job on several nodes, each line with its node
    05:11:54.123 0 │ …                with -t, each with its time

A rank's text is untrusted: it is cleaned here. Its colours pass on a terminal that shows any, end
with their line, and are left out everywhere else. Of a line that was overwritten with carriage
returns, as progress bars do, the last version is shown.
"""

from __future__ import annotations

import re
import sys
import time
from collections.abc import Sequence
from dataclasses import dataclass

from wiiiiided.cluster.rpc.messages import JobView, LogLine
from wiiiiided.domain.exit_codes import NO_SUCH, USAGE
from wiiiiided.text import cell, clean_colours, columns, without_overwritten
from wiiiiided.ui.cli import screen
from wiiiiided.ui.cli.command_failed import CommandFailed

TRACEBACK = "Traceback (most recent call last)"


def check_ranks(job: JobView, ranks: Sequence[int]) -> None:
    """Refuse a rank that the job does not have: it would just be silent."""
    if job.attempt and job.workers and max(ranks, default=0) >= job.workers:
        has = "rank 0 only" if job.workers == 1 else f"ranks 0 to {job.workers - 1}"
        raise CommandFailed(USAGE, f"job {job.id} has {has}")


def check_attempt(job: JobView, attempt: int | None) -> None:
    """Refuse an attempt that was never made: having no lines is not the same as silence."""
    if attempt is None or 0 < attempt <= job.attempt:
        return
    made = {0: "has not been started yet", 1: "has had attempt 1 only"}
    has = made.get(job.attempt, f"has had attempts 1 to {job.attempt}")
    raise CommandFailed(NO_SUCH, f"there is no attempt {attempt}: job {job.id} {has}")


def check_node(job: JobView, node: str | None) -> None:
    """Refuse a node without an allocation of the job: it would just be silent."""
    if node is not None and job.attempt and node not in job.nodes:
        problem = f"attempt {job.attempt} of job {job.id} has no allocation on {node}"
        raise CommandFailed(
            NO_SUCH, f"{problem}: it is on {', '.join(job.nodes)}" if job.nodes else problem
        )


@dataclass(frozen=True)
class Wanted:
    """Which lines are shown. Chosen here, not by the daemon: a pattern may take for ever, and then
    it is only this command that does."""

    node: str | None = None
    pattern: re.Pattern[str] | None = None
    since: float | None = None  # seconds since 1970

    @property
    def nodes(self) -> tuple[str, ...]:
        """The nodes to be asked; none means all."""
        return () if self.node is None else (self.node,)

    @property
    def chooses(self) -> bool:
        """Whether silence may be the choice and not the job's."""
        return self.pattern is not None or self.since is not None

    def takes(self, line: LogLine, job: JobView | None) -> bool:
        # A machine alone does not say its name.
        alone = "" if job is None or len(job.nodes) != 1 else job.nodes[0]
        if self.node is not None and (line.node or alone) != self.node:
            return False
        if self.since is not None and line.at < self.since:
            return False
        shown = clean_colours(without_overwritten(line.text), False)
        return self.pattern is None or self.pattern.search(shown) is not None


ALL = Wanted()


def moment(at: float) -> str:
    """A moment to the millisecond, in this machine's own time; with its date if not today."""
    try:
        seconds, thousandths = divmod(int(at * 1000), 1000)
        then = time.localtime(seconds)
    except (ValueError, OverflowError, OSError):  # a job may have written anything there
        return "-"
    today = time.localtime()[:3] == then[:3]
    return time.strftime("%H:%M:%S" if today else "%Y-%m-%d %H:%M:%S", then) + f".{thousandths:03}"


class Lines:
    """Prints log lines, with `times` when each was written; the job's view says how wide ranks and
    nodes get."""

    def __init__(self, job: JobView | None = None, times: bool = False) -> None:
        self.job = job
        self._times = times
        self._in_traceback: set[int] = set()
        self._bar = "│" if screen.can_print("│", sys.stdout) else "|"
        self._dot = "·" if screen.can_print("·", sys.stdout) else "-"

    def put(self, line: LogLine) -> None:
        shown = without_overwritten(line.text)
        text = clean_colours(shown, False)
        bad = self._is_traceback(line, text)
        mark = {"out": self._bar, "err": "!", "note": self._dot}[line.stream]
        if bad:
            mark = "!"
        when = f"{moment(line.at)} " if self._times else ""
        prefix = f"{when}{self._whose(line)} {mark}"
        if bad or line.stream == "note":
            colour = screen.RED if bad else screen.DIM
            screen.put(screen.paint(f"{prefix} {text}".rstrip(), colour, sys.stdout))
            return
        if screen.colourful(sys.stdout):
            text = clean_colours(shown, True)
        colour = screen.RED if line.stream == "err" else screen.DIM
        screen.put(f"{screen.paint(prefix, colour, sys.stdout)} {text}".rstrip())

    def _whose(self, line: LogLine) -> str:
        """The rank, with its node where the job has several; all as wide as the widest."""
        workers, nodes = (1, ()) if self.job is None else (self.job.workers, self.job.nodes)
        rank = f"{line.rank:>{len(str(max(0, workers - 1)))}}"
        if len(nodes) < 2:
            return rank
        node = cell(line.node)
        widest = max(columns(cell(name)) for name in (*nodes, line.node))
        return " " * (widest - columns(node)) + (f"{node}:{rank}" if node else f" {rank}")

    def _is_traceback(self, line: LogLine, text: str) -> bool:
        """Whether the line is part of a traceback: its head, indented lines, the error."""
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
