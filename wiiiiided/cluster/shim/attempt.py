"""The attempt's directory from the shim's side: reading its files, and claiming it.

    .shim.json.<pid>  ── fsync ──►  link(2)  ──►  shim.json

A link is made or it fails, so of several shims one has the attempt, and nothing is ever started
without it. The file is never replaced: a later process, such as a cleanup, reads which shim had it.
"""

from __future__ import annotations

import contextlib
import os
import stat

from wiiiiided.cluster.shim import protocol

PIPES = "pipes"

TYPE_CHECKING = False
if TYPE_CHECKING:
    from wiiiiided.cluster.shim.protocol import SharedFile


def open_directory(path: str) -> int:
    return os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)


def read(directory: int, name: str, kind: type[SharedFile]) -> SharedFile:
    """A shared file's value; FileNotFoundError, or UnreadableFile with a sentence."""
    flags = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC
    try:
        fd = os.open(name, flags, dir_fd=directory)
    except FileNotFoundError:
        raise
    except OSError as problem:
        raise protocol.UnreadableFile(f"{name} cannot be opened: {problem.strerror}") from problem
    with open(fd, "rb") as file:
        if not stat.S_ISREG(os.fstat(fd).st_mode):
            raise protocol.UnreadableFile(f"{name} is not a regular file")
        data = file.read(protocol.MAX_FILE_BYTES + 1)
    if len(data) > protocol.MAX_FILE_BYTES:
        raise protocol.UnreadableFile(f"{name} has more than {protocol.MAX_FILE_BYTES} bytes")
    return protocol.from_bytes(kind, data)


def read_key(directory: int) -> bytes:
    """The attempt's key, as the daemon wrote it; UnreadableFile with a sentence."""
    flags = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC
    try:
        fd = os.open(protocol.KEY, flags, dir_fd=directory)
    except OSError as problem:
        raise protocol.UnreadableFile(f"the attempt's key: {problem.strerror}") from problem
    with open(fd, "rb") as file:
        key = file.read(protocol.KEY_BYTES + 1)
    if len(key) != protocol.KEY_BYTES:
        raise protocol.UnreadableFile(f"the attempt's key has not {protocol.KEY_BYTES} bytes")
    return key


def claim(directory: int, socket: str, mode: int) -> bool:
    """Claim the attempt for this process; False when another has it."""
    own = protocol.ShimClaim(
        os.getpid(), protocol.start_ticks(os.getpid()) or 0, protocol.boot_id(), socket
    )
    temporary = f".{protocol.CLAIM}.{os.getpid()}"
    protocol.write_durably(directory, temporary, protocol.to_bytes(own), mode)
    try:
        os.link(temporary, protocol.CLAIM, src_dir_fd=directory, dst_dir_fd=directory)
    except FileExistsError:
        return False
    finally:
        with contextlib.suppress(OSError):
            os.unlink(temporary, dir_fd=directory)
    os.fsync(directory)
    return True


def write_pipes(directory: int, names: list[str]) -> None:
    """Write the names of the ranks' output pipes for a cleanup. A full disk is no reason to end."""
    flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC
    with contextlib.suppress(OSError):
        fd = os.open(PIPES, flags, 0o600, dir_fd=directory)
        try:
            os.write(fd, "\n".join(names).encode())
        finally:
            os.close(fd)


def read_pipes(directory: int) -> frozenset[str]:
    try:
        fd = os.open(PIPES, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK, dir_fd=directory)
        with open(fd, "rb") as file:
            lines = file.read(protocol.MAX_FILE_BYTES).decode("ascii", "ignore").splitlines()
    except OSError:
        return frozenset()
    return frozenset(line for line in lines if line.startswith("pipe:["))


def is_alive(claim: protocol.ShimClaim) -> bool:
    """Whether the process that has a claim still runs."""
    return claim.boot_id == protocol.boot_id() and protocol.start_ticks(claim.pid) == claim.ticks


def is_gone(directory: int) -> bool:
    """Whether the directory was removed: then no daemon wants to know the end."""
    return os.fstat(directory).st_nlink == 0
