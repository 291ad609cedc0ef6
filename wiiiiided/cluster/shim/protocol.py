"""The files that the shim and the daemon share, and the version number of files and lines.

The lines of the control socket are in `control_lines`.

Versions. A daemon meets shims of other versions: those that ran when it was upgraded, and, when the
package is replaced under a running daemon, those it starts itself. So:

    a newer daemon, an older shim   a command it does not know is ignored (it always was)
    an older daemon, a newer shim   a field of the order that is not there has the value that means
                                    "as before": no endpoint, no head, never alone
    a newer order, an older shim    a field it does not know is ignored. The endpoint must not be:
                                    ranks of several machines would wait in separate Stores. So an
                                    order with one is of format 2, which an older shim refuses
"""

from __future__ import annotations

import contextlib
import errno
import json
import os
from dataclasses import asdict, dataclass, replace

TYPE_CHECKING = False  # the typing module would be half a megabyte of every shim
if TYPE_CHECKING:
    from typing import Any, TypeVar

    SharedFile = TypeVar("SharedFile", "LaunchOrder", "ShimClaim", "AttemptEnd")

FORMAT = 1
WITH_ENDPOINT = 2  # the format of an order that has an endpoint (`door`)
ORDER, CLAIM, EXIT = "order.json", "shim.json", "exit.json"
ROOM, ROOM_BYTES = ".exit.json.room", 32 << 10  # kept for the end, in case of a full disk
ENDPOINT, KEY = "door", "key"
PEM = "store.pem"  # a certificate and its key, where the Store is reached in TLS
KEY_BYTES = 32
MAX_FILE_BYTES = 1 << 20
LINE_BYTES = 1 << 20


@dataclass(frozen=True)
class LaunchOrder:
    """The command the daemon wants started. No secret is in it: those come by descriptor."""

    job: int
    attempt: int
    name: str
    argv: list[str]
    work: str  # absolute; made and filled by the shim when it is not there
    env: dict[str, str]  # the same for all ranks
    world_size: int
    first_rank: int
    workers: int
    node: str
    node_index: int = 0
    nodes: int = 1
    restart_count: int = 0
    max_restarts: int = 0
    grace_s: float = 10.0
    threads: int = 1  # OMP_NUM_THREADS, unless env has it
    log_bytes: int = 16 << 20  # of one rank's log before it is rotated
    archive_bytes: int = 512 << 20  # limits of what is unpacked
    archive_files: int = 100_000
    listener_uid: int = 0  # the user that may give commands, besides root and the shim's own
    file_mode: int = 0o600  # of what the shim writes; 0640 where the daemon is another user
    door: str = ""  # this machine's one port, "ip:port"; empty: a machine alone
    head: str = ""  # the one port of the first node's machine, where the Store is
    interface: str = ""  # the network interface that has the endpoint's address
    alone_s: float = 0.0  # without word of the coordinator before the attempt is ended; 0: never
    heard_at: float = 0.0  # when the coordinator was heard last, by CLOCK_BOOTTIME; 0: just now
    format: int = FORMAT
    encrypt: bool = False  # the way to the Store between machines


@dataclass(frozen=True)
class ShimClaim:
    """Which process has this attempt. The pid alone could be another's by now."""

    pid: int
    ticks: int  # start time, field 22 of /proc/PID/stat
    boot_id: str
    socket: str  # its name in the same directory
    format: int = FORMAT


@dataclass(frozen=True)
class AttemptEnd:
    """How it ended. Nothing of the attempt runs any more when this file exists."""

    ended_at: float
    codes: dict[str, int]  # rank → code; ranks that never started are missing
    code: int  # of the job: 0, or the code of the rank that failed first
    failed_rank: int | None = None
    reason: str = ""  # a sentence: "rank 1 was killed by SIGKILL"
    stopped: str = ""  # the reason given with stop, when that is why it ended
    error: str = ""  # the failing rank's error file, or the last lines of its log
    lost: bool = False  # the shim was killed and its cleanup wrote this, or it was alone too long
    format: int = FORMAT
    failed_at: float = 0.0  # when the first of its ranks failed; 0: none did, or unknown


class UnreadableFile(Exception):
    """A shared file lacks a field, is no plain file, or is of another format."""


def boot_id() -> str:
    """The kernel's name for this boot."""
    with open("/proc/sys/kernel/random/boot_id") as file:
        return file.read().strip()


def start_ticks(pid: int) -> int | None:
    """When a process was started, in clock ticks since boot; None when there is none, or a zombie.

    Together with the boot id and the pid this names a process for ever.
    """
    try:
        with open(f"/proc/{pid}/stat", "rb") as file:
            fields = file.read().rpartition(b")")[2].split()
    except OSError:
        return None
    return None if fields[0] in (b"Z", b"X") else int(fields[19])


def host_and_port(endpoint: str) -> tuple[str, int]:
    """The parts of "10.0.0.5:9461" or "[fd00::5]:9461"; ValueError when it is neither."""
    host, _, port = endpoint.rpartition(":")
    if not host or not port.isdecimal() or not 0 < int(port) < 1 << 16:
        raise ValueError(f"{endpoint!r} is no address with a port")
    return host.removeprefix("[").removesuffix("]"), int(port)


def to_bytes(value: LaunchOrder | ShimClaim | AttemptEnd) -> bytes:
    """A shared file's content."""
    return json.dumps(asdict(value)).encode()


def from_bytes(kind: type[SharedFile], data: bytes) -> SharedFile:
    """The value in a shared file; UnreadableFile with a sentence when it is none of `kind`.

    A claim and an end of another format are read all the same: what they have in common keeps its
    name and meaning in every format, so that a daemon of another version knows whether a shim
    lives and how it ended. An order of another format is refused: it would be half obeyed.
    """
    try:
        fields = json.loads(data)
        version = fields["format"]
        if kind is LaunchOrder and version not in (FORMAT, WITH_ENDPOINT):
            known = f"{FORMAT} and {WITH_ENDPOINT}"
            raise UnreadableFile(f"an order of format {version}; this version knows {known}")
        given = {name: fields[name] for name in kind.__dataclass_fields__ if name in fields}
        value = kind(**given)
        _check_types(value)
        return value
    except (ValueError, TypeError, KeyError, AttributeError, RecursionError) as problem:
        raise UnreadableFile(f"its content is not what it should be: {problem}") from problem


_TYPES: dict[object, Any] = {"int": int, "str": str, "float": (int, float), "bool": bool}


def _check_types(value: Any) -> None:
    """TypeError or ValueError where a job has written what later code cannot work with."""
    for name, about in value.__dataclass_fields__.items():
        found, wanted = getattr(value, name), _TYPES.get(about.type)
        if wanted is not None and not isinstance(found, wanted):
            raise TypeError(f"{name} is not {about.type}")
        if isinstance(found, int | float) and not -1e18 < found < 1e18:
            raise ValueError(f"{name} is beyond any number there is")
    for rank, code in getattr(value, "codes", {}).items():
        if not isinstance(rank, str) or not isinstance(code, int) or not 0 <= code <= 255:
            raise TypeError("codes are not exit codes")


def write_durably(directory: int, name: str, data: bytes, mode: int, group: int = -1) -> None:
    """Write a file that is whole or not there, whatever happens, and on the disk afterwards.

    The directory may be writable for jobs: a link planted under the temporary name is not followed.
    """
    temporary = f".{name}.{os.getpid()}"
    with contextlib.suppress(FileNotFoundError):
        os.unlink(temporary, dir_fd=directory)
    flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC
    fd = os.open(temporary, flags, mode, dir_fd=directory)
    try:
        os.fchown(fd, -1, group)
        os.fchmod(fd, mode)
        # On a disk that is nearly full a write takes a part, and does not fail.
        while data:
            data = data[os.write(fd, data) :]
        os.fsync(fd)
    finally:
        os.close(fd)
    os.rename(temporary, name, src_dir_fd=directory, dst_dir_fd=directory)
    os.fsync(directory)


def keep_room(directory: int, mode: int) -> None:
    """Reserve a file of exit.json's size before anything runs, in case of a full disk later. Where
    that fails there is none."""
    flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC
    with contextlib.suppress(OSError):
        fd = os.open(ROOM, flags, mode, dir_fd=directory)
        try:
            os.fchmod(fd, mode)
            os.posix_fallocate(fd, 0, ROOM_BYTES)
        finally:
            os.close(fd)


def write_end(directory: int, end: AttemptEnd, mode: int) -> None:
    """Write exit.json, durably; on a full disk into the room that was kept for it. OSError: not
    now."""
    try:
        write_durably(directory, EXIT, to_bytes(end), mode)
    except OSError as problem:
        if problem.errno not in (errno.ENOSPC, errno.EDQUOT):
            raise
        with contextlib.suppress(OSError):
            os.unlink(f".{EXIT}.{os.getpid()}", dir_fd=directory)  # the part that could be written
        _write_into_room(directory, end)
    else:
        with contextlib.suppress(OSError):
            os.unlink(ROOM, dir_fd=directory)


def _write_into_room(directory: int, end: AttemptEnd) -> None:
    data = to_bytes(end)
    if len(data) > ROOM_BYTES:
        data = to_bytes(replace(end, error=""))
    fd = os.open(ROOM, os.O_WRONLY | os.O_NOFOLLOW | os.O_CLOEXEC, dir_fd=directory)
    try:
        size = os.fstat(fd).st_size
        if len(data) > size:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        os.pwrite(fd, data, 0)
        os.ftruncate(fd, len(data))
        os.fsync(fd)
    finally:
        os.close(fd)
    os.rename(ROOM, EXIT, src_dir_fd=directory, dst_dir_fd=directory)
