"""The job's working directory, made from its archive before the first attempt.

    <work>.unpacking.<pid>  ── unpacked, on the disk ──►  rename  ──►  <work>

So a directory with the final name is whole, whatever happened. A child process unpacks: it takes
memory that a shim should not keep, and it can be killed. Where it fails no file of it stays; on a
full disk (NO_ROOM) it is tried again.
"""

from __future__ import annotations

import contextlib
import errno
import os
import signal

from wiiiiided.cluster.shim import file_trees, kernel
from wiiiiided.cluster.shim.protocol import LaunchOrder

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import NoReturn

SENTENCE_BYTES = 4000
NO_ROOM = 75  # a failure that may pass, by sysexits.h


def needed(order: LaunchOrder) -> bool:
    return not os.path.isdir(order.work)


def start(order: LaunchOrder, archive: int | None) -> tuple[int, int]:
    """Start the child; (pid, a pipe with a sentence where it fails). The caller reaps it: code 0 is
    success, NO_ROOM a full disk."""
    read, write = os.pipe()
    shim = os.getpid()
    before = signal.pthread_sigmask(signal.SIG_BLOCK, signal.valid_signals())
    try:
        pid = os.fork()
        if pid == 0:
            _work(order, archive, write, shim, before)
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)
        os.close(write)
    return pid, read


def _work(
    order: LaunchOrder,
    archive: int | None,
    report: int,
    shim: int,
    before: set[int | signal.Signals],
) -> NoReturn:
    code = 1
    try:
        kernel.die_with_parent()
        if os.getppid() != shim:
            os._exit(1)
        _close_all_but(0, 1, 2, report, archive)  # a daemon connected to the shim must see its end
        signal.set_wakeup_fd(-1)
        for number in (signal.SIGTERM, signal.SIGCHLD):
            signal.signal(number, signal.SIG_DFL)
        signal.pthread_sigmask(signal.SIG_SETMASK, before)
        os.umask(0o022)  # the job's files, not the shim's
        make(order, archive)
        os._exit(0)
    except BaseException as problem:
        code = NO_ROOM if is_no_room(problem) else 1
        sentence = f"the working directory cannot be made: {words(problem)}"
        with contextlib.suppress(OSError):
            os.write(report, sentence.encode("utf-8", "replace")[:SENTENCE_BYTES])
    finally:
        os._exit(code)


def _close_all_but(*kept: int | None) -> None:
    for name in os.listdir("/proc/self/fd"):
        if int(name) not in kept:
            with contextlib.suppress(OSError):
                os.close(int(name))


def make(order: LaunchOrder, archive: int | None) -> None:
    """Make order.work; where that fails nothing of it is left."""
    _remove_leftovers(order.work)
    temporary = f"{order.work}.unpacking.{os.getpid()}"
    try:
        _fill(temporary, order, archive)
        os.rename(temporary, order.work)
    except BaseException:
        with contextlib.suppress(file_trees.NotRemoved):
            file_trees.remove(temporary)
        raise


def _fill(temporary: str, order: LaunchOrder, archive: int | None) -> None:
    os.mkdir(temporary, 0o700)
    os.chmod(temporary, 0o750 if order.file_mode & 0o040 else 0o700)
    if archive is not None:
        # Not at the top: tarfile and what it needs would stay in the shim.
        from wiiiiided.cluster.archive.unpack import unpack

        with contextlib.suppress(OSError):  # a pipe cannot seek
            os.lseek(archive, 0, os.SEEK_SET)
        with open(archive, "rb", closefd=False) as stream:
            unpack(
                stream,
                temporary,
                limit_bytes=order.archive_bytes,
                limit_files=order.archive_files,
            )
        # Else a power failure could leave the final name with empty files in it.
        kernel.sync_file_system(temporary)


def _remove_leftovers(work: str) -> None:
    """Remove the directories of attempts that were killed while they unpacked."""
    parent, name = os.path.split(work)
    for entry in os.listdir(parent):
        if entry.startswith(f"{name}.unpacking."):
            file_trees.remove(os.path.join(parent, entry))


def is_no_room(problem: BaseException | None) -> bool:
    """Whether it comes from a full disk, also as the cause of another exception."""
    while problem is not None:
        if isinstance(problem, OSError) and problem.errno in (errno.ENOSPC, errno.EDQUOT):
            return True
        problem = problem.__cause__ or problem.__context__
    return False


def words(problem: BaseException) -> str:
    if isinstance(problem, OSError) and problem.strerror:
        where = f" ({problem.filename})" if problem.filename else ""
        return f"{problem.strerror}{where}"
    return str(problem) or type(problem).__name__
