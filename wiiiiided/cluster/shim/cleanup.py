"""When a shim was killed: end the processes it left behind, and write exit.json in its place.

Its ranks died with it (each asked the kernel for that), their children may not have. A process of
the attempt is known by any of three marks, and its descendants are killed too:

    the attempt's directory in the environment     unless the program hides it behind a title
    the stacks file, open for writing              every Python that was started in the job
    a rank's stdout or stderr, open for writing    what a rank started without redirecting it

It refuses while the shim lives, and takes the claim when there is none: a shim that was started but
has not claimed yet then finds the attempt taken, and starts nothing.

`kill` only ends processes: a job can write that its shim has ended, and go on.
"""

from __future__ import annotations

import os
import signal
import sys
import time

from wiiiiided.cluster.shim import attempt, environment, file_trees, processes, protocol
from wiiiiided.cluster.shim.processes import ProcessEntry

KILLED = 128 + signal.SIGKILL
KILL_WITHIN_S = 60.0  # a process that waits for a dead disk does not die; the daemon asks again
PAUSE_S = 0.02
DEFAULT_MODE = 0o640


def main(path: str) -> int:
    """`--cleanup ATTEMPT_DIR`: 0 when nothing is left and exit.json is there, else 1, and why."""
    path = os.path.realpath(path)
    directory = attempt.open_directory(path)
    if _has_end(directory):
        return 0
    mode = _mode(directory)
    try:
        claim = _claim(directory, mode)
    except protocol.UnreadableFile as problem:
        print(f"the claim of {path} is not what a shim writes: {problem}", file=sys.stderr)
        claim = None
    if claim is not None and claim.pid != os.getpid() and attempt.is_alive(claim):
        print(f"the shim of {path} is alive: pid {claim.pid}", file=sys.stderr)
        return 1
    if _kill(path, directory):
        return 1
    end = protocol.AttemptEnd(time.time(), {}, KILLED, reason=_reason(claim), lost=True)
    if not _has_end(directory):
        file_trees.remove(f"{path}/{protocol.EXIT}")  # what a job may have put there
        protocol.write_end(directory, end, mode)
    return 0


def kill(path: str) -> int:
    """`--kill ATTEMPT_DIR`: 0 when nothing of the attempt runs, whatever its files say, else 1."""
    path = os.path.realpath(path)
    return _kill(path, attempt.open_directory(path))


def _kill(path: str, directory: int) -> int:
    if left := _kill_all(path, attempt.read_pipes(directory)):
        pids = ", ".join(str(process.pid) for process in left[:10])
        print(f"cannot be killed, of {path}: pid {pids}", file=sys.stderr)
    return int(bool(left))


def _has_end(directory: int) -> bool:
    """Whether exit.json can be read; a job may have put something else there."""
    try:
        attempt.read(directory, protocol.EXIT, protocol.AttemptEnd)
    except (FileNotFoundError, protocol.UnreadableFile):
        return False
    return True


def _claim(directory: int, mode: int) -> protocol.ShimClaim:
    """The claim of the attempt; this process takes it when there is none."""
    while True:
        try:
            return attempt.read(directory, protocol.CLAIM, protocol.ShimClaim)
        except FileNotFoundError:
            attempt.claim(directory, "", mode)


def _mode(directory: int) -> int:
    try:
        return attempt.read(directory, protocol.ORDER, protocol.LaunchOrder).file_mode
    except (FileNotFoundError, protocol.UnreadableFile):
        return DEFAULT_MODE


def _reason(claim: protocol.ShimClaim | None) -> str:
    if claim is None:
        return "the job's supervisor (shim) was killed"
    if claim.boot_id != protocol.boot_id():
        return f"the machine was restarted while the job ran (shim, pid {claim.pid})"
    if claim.pid == os.getpid():
        return "the job's supervisor (shim) was killed before it started anything"
    return f"the job's supervisor (shim, pid {claim.pid}) was killed"


def _kill_all(path: str, pipes: frozenset[str]) -> list[ProcessEntry]:
    """Kill until none is found; those that are left after KILL_WITHIN_S."""
    deadline = time.monotonic() + KILL_WITHIN_S
    while left := _found(path, pipes):
        if time.monotonic() > deadline:
            return left
        for process in left:
            processes.send(process, signal.SIGKILL)
        time.sleep(PAUSE_S)
    return []


def _found(path: str, pipes: frozenset[str]) -> list[ProcessEntry]:
    """The attempt's processes and their descendants, without this one and its ancestors."""
    everyone = processes.running()
    spared = _ancestors(os.getpid(), everyone)
    mark = f"{environment.MARK}={path}".encode()
    found: dict[int, ProcessEntry] = {}
    for process in everyone.values():
        if process.pid in spared or process.pid in found:
            continue
        if mark in processes.environment(process.pid) or processes.writes_to(
            process.pid, f"{path}/stacks-", pipes
        ):
            found[process.pid] = process
            found.update(
                (child.pid, child) for child in processes.descendants(process.pid, everyone)
            )
    return [process for pid, process in found.items() if pid not in spared]


def _ancestors(pid: int, everyone: dict[int, ProcessEntry]) -> set[int]:
    found = {pid}
    while pid in everyone and everyone[pid].parent not in found:
        pid = everyone[pid].parent
        found.add(pid)
    return found
