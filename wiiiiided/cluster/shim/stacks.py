"""The stacks of every process of a job: faulthandler's answer to one signal.

The bootstrap registers the handler in each Python of a job. A process is sent the signal only when
it catches it *and* has the stacks file open: others (a shell, `python -I`, a program with its own
use for the number) would be ended or misled by it.

    for each rank, at once:     for each of its processes, one after the other:
                                  header ──► stacks-0, signal ──► handler ──► stacks-0
                                  wait until the handler is done, a second at most
    all done ──► one answer

A handler is done when it has written and no thread is in it any more: the kernel blocks a signal
for the thread that handles it. (A file that has stopped growing proves less: on a busy machine a
process may not run for a while in the middle of its stacks.)
"""

from __future__ import annotations

import contextlib
import os

from wiiiiided.cluster.shim import processes, protocol
from wiiiiided.cluster.shim.control_lines import RankStacks, RankState, StacksReport
from wiiiiided.cluster.shim.loop import ShimLoop
from wiiiiided.cluster.shim.processes import ProcessEntry

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable

SIGNAL = 59  # SIGRTMAX - 5; bootstrap/sitecustomize.py has it too
LOOK_S = 0.02
MOST_LOOKS = 50  # a second: a stopped process does not answer
PROCESSES = 64  # of one rank
TEXT_BYTES = 128 << 10  # of one rank
FILE_BYTES = 1 << 20  # a longer file is emptied before the next round

NO_HANDLER = (
    "no stack: the process has no handler. It is no Python program, or Python was started so that "
    "it ignores PYTHONPATH (-I, -E, -S), or it has only just begun"
)
NO_ANSWER = "no stack: the process did not answer within a second; it is stopped, or the disk full"
ENDED = "no stack: the rank is not running"


class Round:
    """The stacks of all ranks, asked for together; `done(line)` is called once."""

    def __init__(
        self,
        loop: ShimLoop,
        path: str,
        ranks: list[RankState],
        done: Callable[[bytes], None],
    ) -> None:
        self._ranks, self._done = ranks, done
        self._texts: dict[int, str] = {}
        everyone = processes.running()
        strays = _strays(path, ranks, everyone)
        for state in ranks:
            main = everyone.get(state.pid) if state.pid is not None else None
            if main is None or main.ticks != state.ticks:
                self._take(state.rank, ENDED)
                continue
            of_rank = [main, *processes.descendants(main.pid, everyone), *strays[state.rank]]
            Dump(loop, f"{path}/stacks-{state.rank}", state.rank, main.pid, of_rank, self._take)

    def _take(self, rank: int, text: str) -> None:
        self._texts[rank] = text
        if len(self._texts) == len(self._ranks):
            self._done(self._line())

    def _line(self) -> bytes:
        """The answer, each text cut to the same length where all would be too long for a line."""
        room = TEXT_BYTES
        while True:
            dumps = (
                RankStacks(state.rank, state.pid, self._texts[state.rank][:room])
                for state in self._ranks
            )
            line = StacksReport(tuple(dumps)).line()
            if len(line) <= protocol.LINE_BYTES:
                return line
            room //= 2


def _strays(
    path: str, ranks: list[RankState], everyone: dict[int, ProcessEntry]
) -> dict[int, list[ProcessEntry]]:
    """Find each rank's processes whose ancestors have ended: their environment names the rank."""
    found: dict[int, list[ProcessEntry]] = {state.rank: [] for state in ranks}
    mains = {state.pid for state in ranks}
    for child in everyone.values():
        if child.parent != os.getpid() or child.pid in mains:
            continue
        variables = processes.environment(child.pid)
        for rank, those in found.items():
            if f"WIIIIIDE_STACKS={path}/stacks-{rank}".encode() in variables:
                those += [child, *processes.descendants(child.pid, everyone)]
    return found


class Dump:
    """The stacks of one rank and its descendants; calls `done(rank, text)` at the end."""

    def __init__(
        self,
        loop: ShimLoop,
        path: str,
        rank: int,
        main: int,
        family: list[ProcessEntry],
        done: Callable[[int, str], None],
    ) -> None:
        self._loop, self._path, self._rank, self._main = loop, path, rank, main
        self._queue = [process for process in family if has_handler(process.pid, path)]
        # The rank's own process first, the rest as they were started.
        self._queue.sort(key=lambda process: (process.pid != main, process.ticks))
        del self._queue[PROCESSES:]
        self._done = done
        self._text = bytearray()
        if not any(process.pid == main for process in self._queue):
            self._text += f"{self._header(main)}{NO_HANDLER}\n".encode()
        self._open()

    def _open(self) -> None:
        flags = os.O_RDWR | os.O_APPEND | os.O_NOFOLLOW | os.O_NONBLOCK
        try:
            self._fd = os.open(self._path, flags)
            if os.fstat(self._fd).st_size > FILE_BYTES:
                os.ftruncate(self._fd, 0)  # its writers append, and go on at the new end
        except OSError as problem:
            self._done(self._rank, f"no stack: {self._path}: {problem.strerror}")
            return
        self._next()

    def _next(self) -> None:
        if not self._queue or len(self._text) >= TEXT_BYTES:
            self._finish()
            return
        process = self._queue.pop(0)
        if not has_handler(process.pid, self._path):  # it may have executed another program since
            self._next()
            return
        header = self._header(process.pid).encode()
        with contextlib.suppress(OSError):
            os.write(self._fd, header)
        self._text += header
        self._began = os.fstat(self._fd).st_size
        self._pid, self._looks = process.pid, 0
        self._deaf = processes.blocking(process.pid, SIGNAL)  # threads that never take signals
        processes.send(process, SIGNAL)
        self._loop.after(LOOK_S, self._look)

    def _look(self) -> None:
        self._looks += 1
        # In this order: once it has written, its thread is in the handler until that is done.
        has_begun = os.fstat(self._fd).st_size > self._began
        complete = has_begun and processes.blocking(self._pid, SIGNAL) <= self._deaf
        if not complete and self._looks < MOST_LOOKS:
            self._loop.after(LOOK_S, self._look)
            return
        self._text += self._answer() or NO_ANSWER.encode() + b"\n"
        self._next()

    def _answer(self) -> bytes:
        """The text the process has written."""
        try:
            return os.pread(self._fd, max(0, TEXT_BYTES - len(self._text)), self._began)
        except OSError as problem:
            return f"no stack: {problem.strerror}\n".encode()

    def _finish(self) -> None:
        os.close(self._fd)
        self._done(self._rank, bytes(self._text[:TEXT_BYTES]).decode("utf-8", "replace"))

    def _header(self, pid: int) -> str:
        return f"--- rank {self._rank} pid {pid}: {processes.command(pid)}\n"


def has_handler(pid: int, path: str) -> bool:
    """Whether the bootstrap runs in this process."""
    return processes.catches(pid, SIGNAL) and processes.writes_to(pid, path)
