"""A piece of memory that several processes of one machine map.

It is a memfd: memory with a descriptor and no name. The creator hands the descriptor to the others
over a unix socket, each maps it, and each closes its copy of the descriptor:

    creator   memfd_create ─ ftruncate ─ seal ─┬─ mmap ─ close(fd)
    others          (fd arrives by SCM_RIGHTS) └─ mmap ─ close(fd)

(Python's mmap keeps a descriptor of its own until the memory goes.)

Why not a file in /dev/shm (or POSIX shm, or multiprocessing.shared_memory):
- nothing can leak: there is no name to unlink, and the kernel frees the pages with the last map;
- docker's 64 MB /dev/shm, or a full one, does not matter: a memfd is not on that mount;
- no name, so no collision, no stale segment, and no other user who could open it;
- sealed against shrinking, so no peer's mistake can turn a read of ours into SIGBUS.

Pages are reserved (posix_fallocate) by the rank that owns them before any rank touches them: too
little memory is an OSError with a sentence, and on a NUMA machine the pages lie near their owner.
"""

from __future__ import annotations

import ctypes
import errno
import fcntl
import mmap
import os

from wiiiiided.errors import HostError

PAGE = 4096
_POPULATE_WRITE = 23  # Linux's number; Python's mmap module has no name for it

# Linux's fcntl numbers; Python's fcntl module has these names since 3.8 on Linux.
_SEALS = fcntl.F_SEAL_SHRINK | fcntl.F_SEAL_GROW | fcntl.F_SEAL_SEAL


def page_up(nbytes: int) -> int:
    """The next multiple of the page size."""
    return (nbytes + PAGE - 1) // PAGE * PAGE


class Segment:
    """A mapped stretch of shared memory. `fd` is open until `forget_fd`."""

    def __init__(self, fd: int, nbytes: int) -> None:
        self.fd = -1  # ours only once the map stands: until then the caller closes it
        self.nbytes = nbytes
        self.map = mmap.mmap(fd, nbytes)
        self.fd = fd

    @classmethod
    def create(cls, label: str, nbytes: int, is_final: bool = True) -> Segment:
        """New memory, all zero, nothing reserved yet. `label` shows in /proc/PID/maps. If the size
        is not final, `seal` will say what is used of it."""
        try:
            fd = os.memfd_create(f"wiiiiide-{label}"[:200], os.MFD_CLOEXEC | os.MFD_ALLOW_SEALING)
        except OSError as problem:
            raise HostError(
                f"cannot make shared memory: memfd_create: {problem.strerror}; the kernel must "
                "be Linux 3.17 or newer and a container's seccomp profile must allow the call"
            ) from problem
        try:
            os.ftruncate(fd, nbytes)
            if is_final:
                fcntl.fcntl(fd, fcntl.F_ADD_SEALS, _SEALS)
            return cls(fd, nbytes)
        except OSError as problem:
            os.close(fd)
            raise _no_room(nbytes, problem) from problem

    @classmethod
    def attach(cls, fd: int, nbytes: int) -> Segment:
        """Map what a peer made; takes the descriptor over. Its size is checked, not believed."""
        try:
            if os.fstat(fd).st_size != nbytes:
                raise HostError(
                    f"a peer announced shared memory of {nbytes} bytes and sent "
                    f"{os.fstat(fd).st_size}: different versions of wiiiiided in one job?"
                )
            return cls(fd, nbytes)
        except HostError:
            os.close(fd)
            raise
        except OSError as problem:
            os.close(fd)
            raise _no_room(nbytes, problem) from problem

    def reserve(self, offset: int, nbytes: int) -> None:
        """Have the kernel allocate these pages now, so that touching them cannot fail later."""
        try:
            os.posix_fallocate(self.fd, offset, nbytes)
        except OSError as problem:
            raise _no_room(nbytes, problem) from problem

    def seal(self, nbytes: int) -> None:
        """Cut it to its first bytes, for good; what lies behind is not to be touched any more."""
        os.ftruncate(self.fd, nbytes)
        fcntl.fcntl(self.fd, fcntl.F_ADD_SEALS, _SEALS)
        self.nbytes = nbytes

    def populate(self) -> None:
        """Have this process's map of all pages made now; a kernel before 5.14 leaves it to the
        first touch of each."""
        libc = ctypes.CDLL(None)  # which lets other threads run meanwhile; mmap.madvise does not
        address = ctypes.addressof(ctypes.c_char.from_buffer(self.map))
        libc.madvise(ctypes.c_void_p(address), ctypes.c_size_t(self.nbytes), _POPULATE_WRITE)

    def forget_fd(self) -> None:
        """Close the descriptor; the mapping stays."""
        if self.fd >= 0:
            os.close(self.fd)
            self.fd = -1

    def __del__(self) -> None:
        if getattr(self, "fd", -1) >= 0:
            self.forget_fd()


def _no_room(nbytes: int, problem: OSError) -> HostError:
    hint = ""
    if problem.errno in (errno.ENOSPC, errno.ENOMEM):
        hint = "; free memory, or raise the container's memory limit"
    return HostError(
        f"cannot get {nbytes / 2**20:.1f} MiB of shared memory: {problem.strerror}{hint}"
    )
