"""The shim's program and its command line.

    run.py ATTEMPT_DIR [--archive FD] [--secrets FD]    supervise the attempt
    run.py --cleanup ATTEMPT_DIR                        end what a killed shim left behind
    run.py --kill ATTEMPT_DIR                           end what runs of an attempt, no more
    run.py --remove DIR...                              delete trees
    run.py --tar DIR GLOB...                            a tar of some files, on stdout
    run.py --names DIR GLOB...                          the same, without their content
    run.py --place JSON TAR_FD ARCHIVE_FD               checkpoints into a working directory

The daemon starts it as the jobs' user. Its stderr may go nowhere: why an attempt failed is in its
exit.json.
"""

from __future__ import annotations

import contextlib
import gc
import os
import resource
import signal
import sys
import time

from wiiiiided.cluster.shim import (
    attempt,
    cleanup,
    control,
    descendants,
    exit_reason,
    file_trees,
    kernel,
    protocol,
)
from wiiiiided.cluster.shim.ranks import NOT_PREPARED
from wiiiiided.cluster.shim.supervisor import ShimArguments, Supervisor

TYPE_CHECKING = False
if TYPE_CHECKING:
    import socket
    from collections.abc import Callable

USAGE = __doc__.split("\n\n")[1]
UMASK = 0o077
INTERNAL = 70  # a program's own fault, by sysexits.h
RETRY_S = 1.0
MOST_WORKERS = 10_000


def main(arguments: list[str]) -> int:
    """The exit code; 2 for a wrong command line."""
    match arguments:
        case ["--cleanup" | "--sweep", path]:  # the second by a daemon of before an upgrade
            return _as_helper(path, cleanup.main)
        case ["--kill", path]:
            return _as_helper(path, cleanup.kill)
        case ["--remove", *paths] if paths:
            return max(_as_helper(path, _remove) for path in paths)
        case ["--tar" | "--names" as what, path, *patterns]:
            from wiiiiided.cluster.shim import collect_files  # tarfile would stay in every shim

            return collect_files.main(path, patterns, what == "--names")
        case ["--place", given, source, archive] if source.isdecimal() and archive.isdecimal():
            from wiiiiided.cluster.shim import checkpoints

            return checkpoints.main(given, int(source), int(archive))
        case [path, *options] if not path.startswith("--") and (fds := _options(options)):
            return _run(path, *fds)
    print(f"usage:\n{USAGE}", file=sys.stderr)
    return 2


def _options(options: list[str]) -> tuple[int | None, int | None] | None:
    """(archive, secrets), or None when they are wrong."""
    given: dict[str, int] = {}
    for name, value in zip(options[::2], options[1::2], strict=False):
        if name in ("--archive", "--secrets") and value.isdecimal():
            given[name] = int(value)
    if 2 * len(given) != len(options):
        return None
    return given.get("--archive"), given.get("--secrets")


def _as_helper(path: str, action: Callable[[str], int]) -> int:
    try:
        return action(path)
    except (OSError, file_trees.NotRemoved) as problem:
        words = problem.strerror if isinstance(problem, OSError) else str(problem)
        print(f"{path}: {words}", file=sys.stderr)
        return 1


def _remove(path: str) -> int:
    file_trees.remove(path)
    return 0


def _run(path: str, archive: int | None, secrets: int | None) -> int:
    """Supervise. 0 also when another shim has the attempt; 1 when nothing could be begun, so that
    the daemon may try again."""
    path = os.path.realpath(path)
    descriptors = _own_process(archive, secrets)
    name = f"ctl.{os.getpid()}"
    try:
        directory = attempt.open_directory(path)
        order, sentence = _order(directory)
        mode = cleanup.DEFAULT_MODE if order is None else order.file_mode
        listener = control.bind(directory, name, mode)
        try:
            if not attempt.claim(directory, name, mode):
                return 0
            if order is None:
                _write_at_last(
                    directory, exit_reason.failed_before_start(NOT_PREPARED, sentence), mode
                )
            else:
                _supervise(
                    ShimArguments(order, path, directory, archive, secrets, descriptors), listener
                )
        finally:
            listener.close()
            with contextlib.suppress(OSError):
                os.unlink(name, dir_fd=directory)
    except OSError as problem:
        print(f"{path}: {problem.strerror}", file=sys.stderr)
        return 1
    return 0


def _supervise(given: ShimArguments, listener: socket.socket) -> None:
    """Returns when exit.json is written, whatever happens."""
    try:
        kernel.become_subreaper()
        supervisor = Supervisor(given, listener)
        _be_small()
        supervisor.run()
    except BaseException as problem:
        _give_up(given.directory, given.order.file_mode, problem)


def _own_process(archive: int | None, secrets: int | None) -> tuple[int, int]:
    """Detach from the daemon's session, descriptors and directory; the limits of descriptors as
    they were."""
    with contextlib.suppress(PermissionError):  # the leader of a session already
        os.setsid()
    os.umask(UMASK)
    # Until there is something to stop; the supervisor unblocks it.
    signal.pthread_sigmask(signal.SIG_BLOCK, (signal.SIGTERM,))
    for number in (signal.SIGPIPE, signal.SIGHUP, signal.SIGINT):
        signal.signal(number, signal.SIG_IGN)
    for fd in range(3):
        try:
            os.fstat(fd)
        except OSError:  # else a pipe could get the number of a standard stream
            os.open("/dev/null", os.O_RDWR)
    for name in os.listdir("/proc/self/fd"):
        fd = int(name)
        with contextlib.suppress(OSError):
            if fd in (archive, secrets):
                os.set_inheritable(fd, False)
            elif fd > 2:
                os.close(fd)
    # A rank takes three descriptors here, and its connections to the Store.
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
    os.chdir("/")
    return soft, hard


def _order(directory: int) -> tuple[protocol.LaunchOrder | None, str]:
    """The order, or a sentence why there is none."""
    try:
        order = attempt.read(directory, protocol.ORDER, protocol.LaunchOrder)
    except FileNotFoundError:
        return None, f"{protocol.ORDER} is missing"
    except protocol.UnreadableFile as problem:
        return None, f"{protocol.ORDER} cannot be obeyed: {problem}"
    if not order.argv or not all(isinstance(word, str) for word in order.argv):
        return None, f"{protocol.ORDER} has no command"
    if not 1 <= order.workers <= MOST_WORKERS:
        return (
            None,
            f"{protocol.ORDER} wants {order.workers} workers; 1 to {MOST_WORKERS} are possible",
        )
    if not os.path.isabs(order.work):
        return (
            None,
            f"{protocol.ORDER} has a working directory that is not absolute: {order.work!r}",
        )
    if order.door:
        try:
            for place in (order.door, order.head) if order.node_index else (order.door,):
                protocol.host_and_port(place)
        except ValueError as problem:
            return None, f"{protocol.ORDER} does not say where the ranks meet: {problem}"
    return order, ""


def _be_small() -> None:
    """Return memory that only the start needed."""
    gc.collect()
    gc.freeze()
    kernel.give_back_memory()


def _give_up(directory: int, mode: int, problem: BaseException) -> None:
    """A defect of the shim: kill every process, and write that into exit.json."""
    descendants.kill_and_wait()
    sentence = f"internal error: {type(problem).__name__}: {problem}"[:1000]
    _write_at_last(directory, exit_reason.failed_before_start(INTERNAL, sentence), mode)


def _write_at_last(directory: int, end: protocol.AttemptEnd, mode: int) -> None:
    """Write exit.json, however long the disk is full."""
    while True:
        try:
            protocol.write_end(directory, end, mode)
            return
        except OSError:
            if attempt.is_gone(directory):
                return
            time.sleep(RETRY_S)
