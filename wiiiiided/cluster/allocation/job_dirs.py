"""The jobs' directories, which untrusted code writes to.

    <jobs>/                 owned by the daemon; in system mode readable for the jobs' group
        home/               HOME of the jobs' user (system mode)
        <id>/               owned by the daemon: jobs cannot put anything here
            job.json        the job, as it was given to this node
            cancelled.json  that it was cancelled here, until the coordinator knows
            placing         while its checkpoints are exchanged for another machine's
            files/work/     the working directory
            files/aside-3/  checkpoints from before attempt 3 that differed from the placed ones
            <attempt>/      what shim and daemon share (shim/__init__)

A job may replace any file it can write by a link to the daemon's keys, by a FIFO, by gigabytes. So
the daemon opens files relative to a directory it made, never through a link, only regular files
that the jobs' user or the daemon owns, and reads at most MAX_FILE_BYTES.
"""

from __future__ import annotations

import errno
import itertools
import os
import stat
from pathlib import Path

from wiiiiided.cluster.allocation.spawn import JobAccount
from wiiiiided.cluster.shim import protocol
from wiiiiided.errors import HostError

JOB, PLACING = "job.json", "placing"
CANCELLED = "cancelled.json"


class JobDirs:
    """All jobs' directories."""

    def __init__(self, root: Path, user: JobAccount) -> None:
        self.root = root
        self.user = user
        self._prepare()

    def _prepare(self) -> None:
        mode = 0o750 if self.user.other else 0o700
        try:
            self.root.mkdir(mode=mode, parents=True, exist_ok=True)
            self._share(self.root, mode)
            if self.user.other:
                home = Path(self.user.home)
                if home.is_relative_to(self.root):
                    home.mkdir(exist_ok=True)
                    self._share(home, 0o770)
        except OSError as problem:
            raise HostError(
                f"cannot make the jobs' directory {problem.filename}: {problem.strerror}"
            ) from problem

    def _share(self, path: Path, mode: int) -> None:
        if self.user.other:
            os.chown(path, -1, self.user.gid)
        path.chmod(mode)

    def job(self, number: int) -> Path:
        return self.root / str(number)

    def work(self, number: int) -> Path:
        return self.job(number) / "files" / "work"

    def attempt(self, number: int, attempt: int) -> Path:
        return self.job(number) / str(attempt)

    def numbers(self) -> list[int]:
        """Jobs that have a directory."""
        return [int(name) for name in os.listdir(self.root) if name.isdecimal()]

    def began(self, number: int, attempt: int) -> bool:
        """Whether there is a directory of that attempt."""
        return self.attempt(number, attempt).exists()

    def set_aside(self, number: int) -> Path:
        """Keep a job's directory under a name that no job will ever have; the new path."""
        for copy in itertools.count(1):
            path = self.root / f"{number}-before-{copy}"
            if not path.exists():
                os.rename(self.job(number), path)
                return path
        raise AssertionError

    def make(self, number: int, attempt: int) -> None:
        """Make the directories of an attempt, if they are not there yet."""
        outer = 0o750 if self.user.other else 0o700
        shared = self.user.directory_mode
        for path, mode in (
            (self.job(number), outer),
            (self.job(number) / "files", shared),
            (self.attempt(number, attempt), shared),
        ):
            path.mkdir(mode=0o700, exist_ok=True)
            self._share(path, mode)  # also when a crash came between the two
        for path in (self.root, self.job(number)):
            fd = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
            try:
                os.fsync(fd)
            finally:
                os.close(fd)

    def open_attempt(self, number: int, attempt: int) -> int:
        """A descriptor of the attempt's directory; OSError when there is none."""
        flags = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC
        return os.open(self.attempt(number, attempt), flags)

    def write(self, number: int, attempt: int, name: str, data: bytes) -> None:
        """A file for the shim."""
        directory = self.open_attempt(number, attempt)
        try:
            protocol.write_durably(directory, name, data, self.user.file_mode, self._group)
        finally:
            os.close(directory)

    @property
    def _group(self) -> int:
        return self.user.gid if self.user.other else -1

    def keep(self, number: int, data: bytes, name: str = JOB) -> None:
        """Write down what this node was told of a job, where no job can change it."""
        path = self.job(number)
        path.mkdir(mode=0o700, exist_ok=True)
        self._share(path, 0o750 if self.user.other else 0o700)
        directory = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        try:
            protocol.write_durably(directory, name, data, 0o600)
        finally:
            os.close(directory)

    def mark_placing(self, number: int, *, placing: bool) -> None:
        """Note that a job's checkpoints are being exchanged, where no job can change the note. One
        that stays is of an exchange that was cut short."""
        path = self.job(number) / PLACING
        path.touch(0o600) if placing else path.unlink(missing_ok=True)
        directory = os.open(path.parent, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        try:
            os.fsync(directory)
        finally:
            os.close(directory)

    def is_placing(self, number: int) -> bool:
        return (self.job(number) / PLACING).exists()

    def kept(self, number: int, name: str = JOB) -> bytes | None:
        """The content that `keep` wrote; None: it has not."""
        try:
            return (self.job(number) / name).read_bytes()
        except (FileNotFoundError, NotADirectoryError):
            return None

    def open(self, number: int, attempt: int, name: str) -> int:
        """A file of the attempt, for reading; FileNotFoundError when it is not there, HostError
        when it is no regular file of the jobs' user or the daemon."""
        directory = self.open_attempt(number, attempt)
        try:
            return open_untrusted(directory, name, {self.user.uid, os.getuid()})
        finally:
            os.close(directory)

    def read(self, number: int, attempt: int, name: str) -> bytes | None:
        """A small file of the attempt; None when it is not there."""
        try:
            fd = self.open(number, attempt, name)
        except (FileNotFoundError, NotADirectoryError):
            return None
        try:
            data = os.read(fd, protocol.MAX_FILE_BYTES + 1)
        finally:
            os.close(fd)
        if len(data) > protocol.MAX_FILE_BYTES:
            raise HostError(
                f"{name} of job {number} is larger than {protocol.MAX_FILE_BYTES} bytes"
            )
        return data


def open_untrusted(directory: int, name: str, owners: set[int]) -> int:
    """Open a file without blocking; HostError unless it is regular and one of `owners` owns it."""
    flags = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC
    try:
        fd = os.open(name, flags, dir_fd=directory)
    except OSError as problem:
        if problem.errno in (errno.ELOOP, errno.ENXIO):
            raise HostError(f"{name} is not a plain file") from problem
        raise
    about = os.fstat(fd)
    if not stat.S_ISREG(about.st_mode) or about.st_uid not in owners:
        os.close(fd)
        raise HostError(f"{name} is not a plain file of the job's")
    return fd
