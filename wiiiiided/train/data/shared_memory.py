"""Memory of one host that its ranks and their DataLoader workers map.

    builder      `GrowingMemory`: taken piece by piece, written, cut to what is used ─┐
                                                                                     ├─ mapped anew
    other ranks  the descriptor, over a unix socket ─────────────────────────────────┘  by each
    workers      forked: the same map · spawned: the descriptor, by multiprocessing

A segment is a memfd (`backend/shm/segment`): it has no name, so two jobs or users cannot meet in
it, and it is gone with the last process that maps it, however that ends. The second map is private:
a write to a tensor out of it is seen by the process that wrote, and reaches no other.

How large a data set gets is known when it is built. The builder maps as much as the machine could
have; that is a number, and takes memory only where a piece was taken. Before that it is looked
whether there is room: a machine that is full says so, and kills no process.

The private map reserves nothing (MAP_NORESERVE): a kernel that counts what could be written would
otherwise count the data set once for every process.
"""

from __future__ import annotations

import mmap
import os
from collections.abc import Sequence
from multiprocessing.reduction import DupFd, ForkingPickler
from pathlib import Path
from typing import Any, Final, NoReturn

import numpy as np
import psutil
import torch

from wiiiiided.backend.shm.segment import Segment, page_up
from wiiiiided.errors import HostError, UsageError
from wiiiiided.train.layout import aligned

_MAP_NORESERVE: Final = 0x4000  # Linux's number; Python's mmap module has the name since 3.13
_AT_ONCE: Final = 16 << 20  # bytes: to look whether there is room takes 0.2 ms


class GrowingMemory:
    """A data set's memory while it is built. `segment` is to be shared once it is sealed."""

    def __init__(self) -> None:
        self._most = page_up(psutil.virtual_memory().total)
        self.segment = Segment.create("data", self._most, is_final=False)
        self._raw = np.frombuffer(self.segment.map, np.uint8)
        self._end = self._reserved = 0
        self._is_sealed = False

    def empty(self, shape: int | Sequence[int], dtype: torch.dtype = torch.float32) -> torch.Tensor:
        """A tensor in the shared memory, all zero: what `make` returns of it is not copied."""
        like = torch.empty(shape, dtype=dtype, device="meta")  # torch's own words for a bad shape
        _, raw = self.take(like.nbytes)
        with torch.inference_mode(False):
            return torch.from_numpy(raw).view(dtype).view(like.shape)

    def take(self, nbytes: int) -> tuple[int, Any]:
        """The next piece: its offset, and its bytes. Raises if there is no room for it."""
        if self._is_sealed:
            raise UsageError(
                "empty() gives out memory of the shared data set while `make` runs, not afterwards"
            )
        begin = aligned(self._end)
        end = begin + nbytes
        if end > self._reserved:
            room = check_room(end - self._reserved)
            reserved = min(page_up(max(end, self._reserved + min(_AT_ONCE, room))), self._most)
            self.segment.reserve(self._reserved, reserved - self._reserved)
            self._reserved = reserved
        self._end = end
        return begin, self._raw[begin:end]

    def find(self, address: int, nbytes: int) -> int | None:
        """The offset of bytes at this address; None: they are no piece of this."""
        at: int = address - self._raw.__array_interface__["data"][0]
        return at if at >= 0 and at + nbytes <= self._end else None

    def seal(self) -> Segment:
        """All is written."""
        self._is_sealed = True
        self.segment.seal(self._end)
        return self.segment


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
    """A buffer as multiprocessing sends it to a process that it starts, or through its queues."""
    return _received, (DupFd(buffer._fd), buffer._nbytes)


def _received(sent: Any, nbytes: int) -> SharedBuffer:
    return SharedBuffer(sent.detach(), nbytes)


ForkingPickler.register(SharedBuffer, _send)


def check_room(nbytes: int) -> int:
    """How much memory this machine, or this process's control group, has left; raises if it is not
    so much."""
    free = available_bytes()
    if nbytes > free:
        raise HostError(
            f"the shared data set needs {_mib(nbytes)} more and {_mib(free)} of memory are free: "
            f"{_mib(nbytes - free)} are missing. Free some, raise the container's or job's limit, "
            "or keep the data in a file and use wide.mapped, which loads nothing"
        )
    return free


def _mib(nbytes: int) -> str:
    return f"{nbytes / 2**20:,.1f} MiB"


def available_bytes(root: Path = Path("/sys/fs/cgroup")) -> int:
    """The bytes that can be allocated without pushing anything out of memory."""
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
