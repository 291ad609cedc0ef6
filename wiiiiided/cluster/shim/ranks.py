"""One rank: a process in a session of its own, which inherits nothing of the shim.

    shim                               child
    fork ────────────────────────────► setsid, die with the shim, default signals, /dev/null,
                                       the two pipes, oom_score_adj, working directory, umask
                                       exec
    report pipe: closed by the exec  ◄─┘   or one line: "127 the command … was not found"

The report pipe is watched by the loop: a file system that hangs at the exec does not hang the shim.
"""

from __future__ import annotations

import contextlib
import errno
import os
import resource
import signal
from dataclasses import dataclass

from wiiiiided.cluster.shim import access, kernel, protocol
from wiiiiided.cluster.shim.control_lines import RankState
from wiiiiided.cluster.shim.exit_reason import Exit
from wiiiiided.cluster.shim.logs import Pipe, RankLogWriter
from wiiiiided.cluster.shim.loop import READ, ShimLoop

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import NoReturn

OOM_SCORE = 200  # when memory runs out a rank goes before the shim and the daemon
UMASK = 0o022
NOT_EXECUTABLE, NOT_FOUND, NOT_PREPARED = (
    126,
    127,
    125,
)  # the codes of shells and container runtimes
STATS_BYTES = 4096


@dataclass(frozen=True)
class Program:
    """The program of a rank."""

    argv: list[str]
    env: dict[str, str]
    work: str
    descriptors: tuple[int, int]  # soft and hard limit


class Rank:
    """A rank and what the shim knows of it."""

    def __init__(self, number: int, log: RankLogWriter) -> None:
        self.number = number
        self.log = log
        self.pid: int | None = None
        self.ticks: int | None = None
        self.end: Exit | None = None
        self.started = False  # the exec has happened
        self._pipes: list[Pipe] = []
        self._report = -1  # the pipe

    def start(
        self, loop: ShimLoop, program: Program, report: Callable[[Rank, int, str], None]
    ) -> None:
        """Fork. Calls `report(rank, 0, "")` when the program runs, else with code and sentence."""
        out_read, out_write = os.pipe()
        err_read, err_write = os.pipe()
        report_read, report_write = os.pipe()
        shim = os.getpid()
        before = signal.pthread_sigmask(signal.SIG_BLOCK, signal.valid_signals())
        try:
            self.pid = os.fork()
            if self.pid == 0:
                _become(program, shim, (out_write, err_write, report_write))
        except OSError:
            for fd in (out_read, err_read, report_read):
                os.close(fd)
            raise
        finally:
            signal.pthread_sigmask(signal.SIG_SETMASK, before)
            for fd in (out_write, err_write, report_write):
                os.close(fd)
        self.ticks = protocol.start_ticks(self.pid)
        self._pipes = [
            Pipe(loop, out_read, "out", self.log),
            Pipe(loop, err_read, "err", self.log),
        ]
        self._report = report_read
        loop.watch(report_read, READ, lambda: self.read_start_report(loop, report))

    def finish_log(self) -> None:
        """Write the rest of the log, when no process of the job is left."""
        for pipe in self._pipes:
            pipe.drain()
        self.log.close()

    @property
    def pipes(self) -> list[str]:
        """The kernel's names of its output pipes."""
        return [pipe.name for pipe in self._pipes]

    @property
    def code(self) -> int | None:
        return None if self.end is None else self.end.code

    @property
    def state(self) -> RankState:
        return RankState(self.number, self.pid, self.ticks, self.code)

    def read_start_report(self, loop: ShimLoop, report: Callable[[Rank, int, str], None]) -> None:
        """Read the report once: the process runs the program, or has ended."""
        if self._report < 0:
            return
        said = os.read(self._report, 8192).decode("utf-8", "replace")
        loop.forget(self._report)
        os.close(self._report)
        self._report = -1
        code, _, sentence = said.partition(" ")
        self.started = not said
        report(self, int(code or 0), sentence)


def _become(program: Program, shim: int, fds: tuple[int, int, int]) -> NoReturn:
    """Exec the rank's program in the child, or report why not. Never returns to its caller."""
    out, err, report = fds
    try:
        os.setsid()
        kernel.die_with_parent()
        if os.getppid() != shim:
            os._exit(NOT_PREPARED)
        _plain_signals()
        _plain_descriptors(out, err)
        with contextlib.suppress(OSError), open("/proc/self/oom_score_adj", "w") as file:
            file.write(str(OOM_SCORE))
        resource.setrlimit(resource.RLIMIT_NOFILE, program.descriptors)
        os.umask(UMASK)
        os.chdir(program.work)
        os.execvpe(program.argv[0], program.argv, program.env)
    except BaseException as problem:
        code, sentence = _excuse(problem, program)
        with contextlib.suppress(OSError):
            os.write(report, f"{code} {sentence}".encode("utf-8", "replace")[:4000])
    finally:
        os._exit(NOT_PREPARED)


def _plain_signals() -> None:
    signal.set_wakeup_fd(-1)
    for number in signal.valid_signals() - {signal.SIGKILL, signal.SIGSTOP}:
        with contextlib.suppress(OSError, ValueError):
            signal.signal(number, signal.SIG_DFL)
    signal.pthread_sigmask(signal.SIG_SETMASK, ())


def _plain_descriptors(out: int, err: int) -> None:
    null = os.open("/dev/null", os.O_RDONLY)
    for fd, place in ((null, 0), (out, 1), (err, 2)):
        os.dup2(fd, place)


def _excuse(problem: BaseException, program: Program) -> tuple[int, str]:
    """Why a rank could not be started: a code, and a sentence for its owner."""
    name, work = program.argv[0], program.work
    if not isinstance(problem, OSError):
        return NOT_PREPARED, f"the command {name!r} cannot be started: {problem}"
    if problem.filename == work:
        return NOT_PREPARED, f"the working directory {work} cannot be entered: {problem.strerror}"
    if problem.errno in (errno.ENOENT, errno.ENOTDIR):
        if "/" in name and os.path.exists(name):
            return NOT_FOUND, f"the interpreter that {name!r} names in its first line was not found"
        where = f"in {work}" if "/" in name and not name.startswith("/") else "on this machine"
        hint = "" if "/" in name else "; is it in PATH?"
        return NOT_FOUND, f"the command {name!r} was not found {where}{hint}"
    if problem.errno == errno.ENOEXEC:
        return NOT_EXECUTABLE, f"{name!r} is no program: its first line must name an interpreter"
    if problem.errno == errno.EACCES:
        if "/" in name and (why := access.closed_here(os.path.join(work, name))):
            return NOT_EXECUTABLE, f"the command {name!r} cannot be reached: {why}"
        return NOT_EXECUTABLE, f"{name!r} is not executable: chmod +x, or name its interpreter"
    return NOT_EXECUTABLE, f"the command {name!r} cannot be started: {problem.strerror}"


def make_files(directory: int, number: int, mode: int) -> None:
    """Make the stats page and the stacks file, before the rank could do so itself."""
    flags = os.O_WRONLY | os.O_CREAT | os.O_NOFOLLOW | os.O_NONBLOCK
    for name, size in ((f"stats-{number}", STATS_BYTES), (f"stacks-{number}", 0)):
        fd = os.open(name, flags, mode, dir_fd=directory)
        try:
            os.fchmod(fd, mode)
            if size:
                os.posix_fallocate(fd, 0, size)
        finally:
            os.close(fd)
