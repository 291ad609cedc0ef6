"""Other processes, as /proc shows them: their descendants, signal masks and open files.

A pid may be another process's by the time it is used. Here a process is its pid *and*
its start time, and a signal goes through a pidfd after both have been compared.
"""

from __future__ import annotations

import contextlib
import os
import signal
from dataclasses import dataclass

from wiiiiided.cluster.shim import protocol

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterator


@dataclass(frozen=True, slots=True)
class ProcessEntry:
    """One line of `ps`. Zombies are not in it: they run nothing."""

    pid: int
    parent: int
    ticks: int


def running() -> dict[int, ProcessEntry]:
    """Every process this user can see, by pid."""
    found = {}
    for name in os.listdir("/proc"):
        if name.isdecimal() and (process := _read(int(name))):
            found[process.pid] = process
    return found


def _read(pid: int) -> ProcessEntry | None:
    try:
        with open(f"/proc/{pid}/stat", "rb", buffering=0) as file:
            fields = file.read().rpartition(b")")[2].split()
    except OSError:
        return None
    if len(fields) < 20 or fields[0] in (b"Z", b"X"):
        return None
    return ProcessEntry(pid, int(fields[1]), int(fields[19]))


def descendants(of: int, among: dict[int, ProcessEntry] | None = None) -> list[ProcessEntry]:
    """Children, their children, and so on; a parent stands before its children.

    A zombie breaks the chain to its children for the moment between its death and their adoption;
    a caller that must not miss one asks again.
    """
    children: dict[int, list[ProcessEntry]] = {}
    for process in (running() if among is None else among).values():
        children.setdefault(process.parent, []).append(process)
    found, queue = [], [of]
    for pid in queue:
        for child in children.get(pid, ()):
            found.append(child)
            queue.append(child.pid)
    return found


def send(process: ProcessEntry, number: int) -> bool:
    """Signal exactly this process; False when it is gone, or that is not permitted."""
    try:
        fd = os.pidfd_open(process.pid)
    except OSError:
        return False
    try:
        if protocol.start_ticks(process.pid) != process.ticks:
            return False
        signal.pidfd_send_signal(fd, number)
        return True
    except OSError:
        return False
    finally:
        os.close(fd)


def catches(pid: int, number: int) -> bool:
    """Whether a process has a handler for a signal: without one, most signals would end it."""
    return _has("SigCgt", number, _content(pid, "status"))


def blocking(pid: int, number: int) -> set[int]:
    """Its threads that take no such signal now: among them the one that is in its handler."""
    try:
        threads = [int(name) for name in os.listdir(f"/proc/{pid}/task")]
    except OSError:
        return set()
    return {one for one in threads if _has("SigBlk", number, _content(pid, f"task/{one}/status"))}


def _has(mask: str, number: int, status: bytes) -> bool:
    """Whether a signal is in one of the sets that /proc/PID/status shows."""
    for line in status.splitlines():
        if line.startswith(mask.encode()):
            return bool(int(line.split()[1], 16) >> (number - 1) & 1)
    return False


def environment(pid: int) -> list[bytes]:
    """NAME=value as the process was started with; empty where that may not be read."""
    return _content(pid, "environ").split(b"\0")


def command(pid: int) -> str:
    """The command as in `ps`, on one line of at most 200 characters."""
    words = _content(pid, "cmdline").rstrip(b"\0").replace(b"\0", b" ")
    text = words.decode("utf-8", "replace")
    return "".join(char if char.isprintable() else "?" for char in text[:200])


def writes_to(pid: int, prefix: str, others: frozenset[str] = frozenset()) -> bool:
    """Whether a process has open for writing what begins with `prefix`, or is one of `others`."""
    for link, target in _open_files(pid):
        if target.startswith(prefix) or target in others:
            with contextlib.suppress(OSError):
                # The link of a descriptor carries its access in its mode: write is 0o200.
                if os.lstat(link).st_mode & 0o200:
                    return True
    return False


def has_open(pid: int, wanted: str) -> bool:
    """Whether a process has this among its descriptors: `socket:[123]`."""
    return any(target == wanted for _, target in _open_files(pid))


def _open_files(pid: int) -> Iterator[tuple[str, str]]:
    """(link in /proc, what it leads to) of each descriptor of a process, as far as permitted."""
    folder = f"/proc/{pid}/fd"
    with contextlib.suppress(OSError):
        for name in os.listdir(folder):
            with contextlib.suppress(OSError):
                yield f"{folder}/{name}", os.readlink(f"{folder}/{name}")


def _content(pid: int, name: str) -> bytes:
    try:
        with open(f"/proc/{pid}/{name}", "rb", buffering=0) as file:
            return file.read()
    except OSError:
        return b""
