"""The belongings of a process, so that a test can say: after this, it holds no more than before."""

from __future__ import annotations

import contextlib
import gc
import os
import threading
from dataclasses import dataclass
from pathlib import Path

import psutil


@dataclass(frozen=True)
class Footprint:
    """Descriptors, threads, children and shared maps of this process."""

    descriptors: frozenset[str]
    threads: frozenset[str]
    children: frozenset[int]
    maps: int  # of memory that the backend made

    @classmethod
    def before(cls) -> Footprint:
        """As it is now, to be compared with later."""
        gc.freeze()  # so that `now` need not go through all of torch
        return cls.now()

    @classmethod
    def now(cls) -> Footprint:
        """As it is at this moment, without what only waits for the garbage collector."""
        gc.collect()
        return cls(
            descriptors=frozenset(open_descriptors()),
            threads=frozenset(f"{t.name} {t.native_id}" for t in threading.enumerate()),
            children=frozenset(children_of()),
            maps=len(shared_maps()),
        )

    def leaked_since(self, before: Footprint) -> list[str]:
        """Things here now that were not before; empty is good."""
        return [
            *(f"descriptor {what}" for what in sorted(self.descriptors - before.descriptors)),
            *(f"thread {what}" for what in sorted(self.threads - before.threads)),
            *(f"child {pid}" for pid in sorted(self.children - before.children)),
            *([f"{self.maps - before.maps} shared maps"] if self.maps > before.maps else []),
        ]


def open_descriptors(pid: int | str = "self") -> list[str]:
    """`3 -> socket:[123]` for each open descriptor of a process, but for /proc itself."""
    found = []
    folder = f"/proc/{pid}/fd"
    for name in os.listdir(folder):
        try:
            target = os.readlink(f"{folder}/{name}")
        except OSError:
            continue  # closed meanwhile: it was the listing's own
        if not target.startswith("/proc/"):
            found.append(f"{name} -> {target}")
    return found


def shared_maps(pid: int | str = "self") -> list[int]:
    """The sizes of the backend's shared memory in a process's address space."""
    sizes = []
    for line in Path(f"/proc/{pid}/maps").read_text().splitlines():
        if "memfd:wiiiiide" in line:
            start, end = line.split()[0].split("-")
            sizes.append(int(end, 16) - int(start, 16))
    return sizes


def shared_inodes(pid: int | str = "self", name: str = "data") -> set[int]:
    """Which of the backend's shared memory of that name a process maps or has open."""
    folder, wanted, found = Path(f"/proc/{pid}"), f"/memfd:wiiiiide-{name}", set()
    with contextlib.suppress(OSError):  # the process is gone
        for line in (folder / "maps").read_text().splitlines():
            if wanted in line:
                found.add(int(line.split()[4]))
        for fd in os.listdir(folder / "fd"):
            with contextlib.suppress(OSError):  # or this descriptor
                if os.readlink(folder / "fd" / fd).startswith(wanted):
                    found.add(os.stat(folder / "fd" / fd).st_ino)
    return found


def holders_of(inodes: set[int]) -> set[int]:
    """The processes of this machine that hold some of this shared memory; if none, it is gone."""
    return {pid for pid in psutil.pids() if shared_inodes(pid) & inodes}


def children_of(pid: int | None = None) -> list[int]:
    """The living children of a process (this one), and theirs."""
    return [child.pid for child in psutil.Process(pid).children(recursive=True)]


def dev_shm() -> set[str]:
    """The names in /dev/shm, but for those that Python, torch and browsers make there."""
    others = ("sem.mp-", "torch_", "psm_", ".org.chromium.", ".com.google.")
    return {name for name in os.listdir("/dev/shm") if not name.startswith(others)}
