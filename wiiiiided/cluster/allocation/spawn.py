"""Starting a process for a job: as the jobs' user, with nothing of the daemon's powers.

    mode     daemon runs as      jobs run as      how
    user     you                 you              an ordinary child
    system   wiiiiide            wiiiiide-job     CAP_SETUID and CAP_SETGID, given by the unit

In system mode the child has changed user and groups and has given up every capability before exec:
permitted, effective, inheritable and with them ambient. It inherits no descriptor of the daemon's
but those named.

A failure of the machine that may pass (`may_pass`) is never charged to the job: the job waits.
"""

from __future__ import annotations

import asyncio
import ctypes
import errno
import os
import pwd
import subprocess
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import IO

from wiiiiided.errors import HostError

JOB_USER = "wiiiiide-job"
HELPER_ENV = {
    "PATH": "/usr/bin:/bin",
    "LANG": "C.UTF-8",
}  # of wiiiiide's own programs that run as it
MAY_PASS = {
    *(errno.ENOSPC, errno.EDQUOT, errno.EROFS, errno.EIO, errno.EAGAIN, errno.ENOMEM),
    *(errno.EMFILE, errno.ENFILE, errno.EINTR),
}
CANNOT_RUN = 126  # a shell's exit code for it
EXEC_FAILED = b"exec failed: "  # and the errno
EXECUTE = f"""
import os, sys
try:
    os.execvp(sys.argv[1], sys.argv[1:])
except OSError as problem:
    os.write(1, {EXEC_FAILED!r} + b"%d" % problem.errno)
    os._exit({CANNOT_RUN})
"""
CAPABILITY_VERSION = 0x20080522  # of capset(2): 64 capabilities in two words of each set

_libc = ctypes.CDLL(None, use_errno=True)
_capability_header = (ctypes.c_uint32 * 2)(CAPABILITY_VERSION, 0)
_no_capabilities = (ctypes.c_uint32 * 6)()


@dataclass(frozen=True)
class JobAccount:
    """The user that jobs run as. `other`: not the daemon's own user."""

    name: str
    uid: int
    gid: int
    home: str
    other: bool

    @classmethod
    def this(cls) -> JobAccount:
        """The daemon's own user: a person's daemon runs that person's jobs."""
        try:
            entry = pwd.getpwuid(os.getuid())
        except KeyError:  # a container's random uid
            return cls(str(os.getuid()), os.getuid(), os.getgid(), "/", other=False)
        return cls(entry.pw_name, os.getuid(), os.getgid(), entry.pw_dir, other=False)

    @classmethod
    def service(cls) -> JobAccount:
        """The user of the service's jobs."""
        try:
            entry = pwd.getpwnam(JOB_USER)
        except KeyError:
            raise HostError(
                f"there is no user {JOB_USER}, as which jobs run; "
                "`wiiiiide service install` makes it"
            ) from None
        return cls(JOB_USER, entry.pw_uid, entry.pw_gid, entry.pw_dir, other=True)

    @property
    def file_mode(self) -> int:
        """The mode of files that daemon and jobs share."""
        return 0o640 if self.other else 0o600

    @property
    def directory_mode(self) -> int:
        return 0o770 if self.other else 0o700


def may_pass(problem: BaseException) -> bool:
    """Whether it is a passing failure of this machine: no room, no descriptors, no memory, no
    thread (for which Python has no errno)."""
    if isinstance(problem, RuntimeError):
        return "start new thread" in str(problem)
    return isinstance(problem, OSError) and problem.errno in MAY_PASS


def spawn(
    argv: Sequence[str],
    user: JobAccount,
    *,
    env: Mapping[str, str],
    cwd: str = "/",
    fds: Sequence[int] = (),
    stdout: int | IO[bytes] = subprocess.DEVNULL,
    stderr: int | IO[bytes] = subprocess.DEVNULL,
) -> subprocess.Popen[bytes]:
    """Start a process in a session of its own; the caller waits for its end (`ended`)."""
    switch: dict[str, object] = {}
    if user.other:
        switch = {
            "user": user.uid,
            "group": user.gid,
            "extra_groups": [],
            "preexec_fn": _drop_capabilities,
        }
    return subprocess.Popen(  # type: ignore[call-overload,no-any-return]
        list(argv),
        env=dict(env),
        cwd=cwd,
        pass_fds=tuple(fds),
        stdin=subprocess.DEVNULL,
        stdout=stdout,
        stderr=stderr,
        start_new_session=True,
        umask=0o022,
        **switch,
    )


def spawn_named(
    argv: Sequence[str],
    user: JobAccount,
    *,
    env: Mapping[str, str],
    stdout: int | IO[bytes] = subprocess.DEVNULL,
) -> subprocess.Popen[bytes]:
    """Start a program that a job names, which may be on a file system that does not answer. A
    process of ours executes it, and hangs then: the start of a process waits for its exec. Where
    that fails the process ends with CANNOT_RUN, and its output says why (`exec_problem`)."""
    return spawn([sys.executable, "-I", "-S", "-c", EXECUTE, *argv], user, env=env, stdout=stdout)


def exec_problem(said: bytes, code: int) -> OSError | None:
    """Why a program could not be executed, from the output of `spawn_named`; None: it was."""
    number = said.removeprefix(EXEC_FAILED).strip()
    if code != CANNOT_RUN or not said.startswith(EXEC_FAILED) or not number.isdigit():
        return None
    return OSError(int(number[:6]), os.strerror(int(number[:6])))


def _drop_capabilities() -> None:
    """Drop all capabilities, in the child, after it has become the jobs' user and before exec."""
    if _libc.capset(_capability_header, _no_capabilities) != 0:
        os._exit(126)  # better no job than one with the daemon's powers


def end_process(pid: int, user: JobAccount, *, group: bool = False) -> None:
    """Send SIGKILL as the jobs' user: the daemon itself is not permitted to."""
    target = f"-{pid}" if group else str(pid)
    spawn(["/bin/sh", "-c", f"kill -KILL {target}"], user, env=HELPER_ENV).wait()


async def ended(process: subprocess.Popen[bytes]) -> int:
    """Wait for a child without a thread and without polling; its return code."""
    try:
        pidfd = os.pidfd_open(process.pid)
    except ProcessLookupError:
        return process.wait()
    try:
        await readable(pidfd)
    finally:
        os.close(pidfd)
    return process.wait()


async def readable(fd: int) -> None:
    """Wait until the descriptor is readable: for a pidfd, until that process has ended."""
    loop = asyncio.get_running_loop()
    seen = asyncio.Event()
    loop.add_reader(fd, seen.set)
    try:
        await seen.wait()
    finally:
        loop.remove_reader(fd)
