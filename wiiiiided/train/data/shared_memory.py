"""Memory of one host that its ranks and their DataLoader workers map.

    builder      segment, writable ── written once ──┐
                                                     ├─ mapped anew, each for itself
    other ranks  the descriptor, over a unix socket ─┘        │
    workers      forked: the same map · spawned: the descriptor, by multiprocessing

A segment is a memfd (`backend/shm/segment`): it has no name, so two jobs or users cannot meet in
it, and it is gone with the last process that maps it, however that ends. The second map is private:
a write to a tensor out of it is seen by the process that wrote, and reaches no other.

The private map reserves nothing (MAP_NORESERVE): a kernel that counts what could be written would
otherwise count the data set once for every process.
"""

from __future__ import annotations

import mmap
import os
from multiprocessing.reduction import DupFd, ForkingPickler
from pathlib import Path
from typing import Any, Final, NoReturn

import numpy as np
import psutil
import torch

from wiiiiided.backend.shm.segment import Segment
from wiiiiided.errors import HostError, UsageError

_MAP_NORESERVE: Final = 0x4000  # Linux's number; Python's mmap module has the name since 3.13


class SharedBuffer:
    """A segment's bytes, from which this process reads; `tensor` has them."""

    def __init__(self, fd: int, nbytes: int) -> None:
        """Takes the descriptor over."""
        self._fd, self._nbytes = fd, nbytes
        flags, access = mmap.MAP_PRIVATE | _MAP_NORESERVE, mmap.PROT_READ | mmap.PROT_WRITE
        self._map = mmap.mmap(fd, nbytes, flags=flags, prot=access)
        with torch.inference_mode(False):
            self.tensor = torch.from_numpy(np.frombuffer(self._map, np.uint8))

    @classmethod
    def of(cls, segment: Segment) -> SharedBuffer:
        """The memory of a segment that has been written."""
        return cls(os.dup(segment.fd), segment.nbytes)

    def __reduce__(self) -> NoReturn:
        raise UsageError(
            "a shared data set is memory of this machine: it can be given to DataLoader workers "
            "and processes of multiprocessing, and cannot be saved"
        )

    def __deepcopy__(self, memo: Any) -> SharedBuffer:
        return self

    def __del__(self) -> None:
        if getattr(self, "_fd", -1) >= 0:
            os.close(self._fd)
            self._fd = -1


def _send(buffer: SharedBuffer) -> tuple[Any, ...]:
    """What multiprocessing sends to a process that it starts, or through its queues."""
    return _received, (DupFd(buffer._fd), buffer._nbytes)


def _received(sent: Any, nbytes: int) -> SharedBuffer:
    return SharedBuffer(sent.detach(), nbytes)


ForkingPickler.register(SharedBuffer, _send)


def check_room(nbytes: int) -> None:
    """Raise if this machine, or this process's control group, has not so much memory left."""
    free = available_bytes()
    if nbytes > free:
        raise HostError(
            f"the shared data set takes {nbytes / 2**20:,.1f} MiB and {free / 2**20:,.1f} MiB of "
            "memory are free: free some, raise the container's or job's limit, or keep the data in "
            "a file and use wide.mapped, which loads nothing"
        )


def available_bytes(root: Path = Path("/sys/fs/cgroup")) -> int:
    """What can be allocated without pushing anything out of memory."""
    free = [psutil.virtual_memory().available]
    try:
        path = Path("/proc/self/cgroup").read_text().rpartition("::")[2].strip().lstrip("/")
    except OSError:
        path = ""
    for group in (root / path, *(root / path).parents):
        try:
            most = int((group / "memory.max").read_text())
            used = int((group / "memory.current").read_text())
            about = dict(line.split() for line in (group / "memory.stat").read_text().splitlines())
            cached = int(about.get("inactive_file", 0)) + int(about.get("active_file", 0))
        except (OSError, ValueError):  # no limit ("max"), or no such file
            continue
        free.append(max(0, most - used + cached))
    return min(free)
