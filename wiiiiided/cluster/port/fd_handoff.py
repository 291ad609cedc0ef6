"""Endpoints of a job's processes: unix sockets through which the daemon hands connections over.

    <jobs>/<id>/<attempt>/
        key                   32 bytes: a process that knows them is of this attempt, on any machine
        door                  the shim's. One byte with the connection (SCM_RIGHTS):
                                  L   a local client of the Store   ◄── + it is mine, - it is not
                                  R   the Store's pipe from another machine's shim    ◄── +
        door-<process uid>    a worker's: W with the connection, no answer

A passed connection the daemon does not keep: it may restart, and no connection notices. These files
are a job's to replace: only sockets of the jobs' user (or the daemon's) are connected to, never
through a link, and nothing here waits longer than ANSWER_S for a process.
"""

from __future__ import annotations

import asyncio
import errno
import os
import socket
import stat
import struct
from collections.abc import Callable, Iterable
from typing import Final

from wiiiiided.backend.wire.challenge import KEY_BYTES
from wiiiiided.cluster.allocation.job_dirs import JobDirs
from wiiiiided.cluster.shim.protocol import ENDPOINT, KEY
from wiiiiided.errors import HostError

ANSWER_S: Final = 3.0
TAKEN: Final = b"+"


class NoEndpoint(HostError):
    """There is no such endpoint, or no process listens at it."""


class EndpointBusy(HostError):
    """A process listens at the endpoint and cannot take more connections just now."""


class FdHandoff:
    """Hands connections to the processes of this machine's attempts."""

    def __init__(self, job_dirs: JobDirs, live: Callable[[], Iterable[tuple[int, int]]]) -> None:
        self._job_dirs = job_dirs
        self._live = live  # jobs and attempts that may run here

    def key(self, job: int, attempt: int) -> bytes | None:
        """The attempt's key; None when there is no such attempt here, or no key that can be."""
        if (job, attempt) not in set(self._live()):
            return None
        try:
            key = self._job_dirs.read(job, attempt, KEY)
        except (OSError, HostError):  # a job has put something else in its place: its own harm
            return None
        return key if key is not None and len(key) == KEY_BYTES else None

    async def worker(
        self,
        job: int,
        attempt: int,
        uid: str,
        connection: socket.socket,
        greeting: Callable[[], bytes] = bytes,
    ) -> None:
        """Pass a connection to a worker; `greeting` is sent on it once the worker is there.

        Raises NoEndpoint, EndpointBusy, or OSError when the connection has broken.
        """
        with self._connect(job, attempt, f"{ENDPOINT}-{uid}") as endpoint:
            await _say(connection, greeting())
            _pass(endpoint, b"W", connection)

    async def store(
        self,
        job: int,
        attempt: int,
        connection: socket.socket,
        greeting: Callable[[], bytes] = bytes,
    ) -> None:
        """Pass another machine's pipe to the shim that keeps the Store; as `worker`."""
        with self._connect(job, attempt, ENDPOINT) as endpoint:
            await _say(connection, greeting())
            _pass(endpoint, b"R", connection)
            if not await _taken(endpoint):
                raise NoEndpoint(f"the shim of job {job}, attempt {attempt} keeps no store")

    async def local_store(self, connection: socket.socket) -> bool:
        """Offer a local client of a Store to the shims that run; whether it is one's.

        The youngest attempts first: ranks connect when they start.
        """
        for job, attempt in sorted(self._live(), reverse=True):
            try:
                with self._connect(job, attempt, ENDPOINT) as endpoint:
                    _pass(endpoint, b"L", connection)
                    if await _taken(endpoint):
                        return True
            except (OSError, HostError):
                continue
        return False

    def _connect(self, job: int, attempt: int, name: str) -> socket.socket:
        """A connection to an endpoint; NoEndpoint, EndpointBusy."""
        owners = {self._job_dirs.user.uid, os.getuid()}
        try:
            directory = self._job_dirs.open_attempt(job, attempt)
            try:
                return _connected(directory, name, owners)
            finally:
                os.close(directory)
        except BlockingIOError as problem:
            raise EndpointBusy(f"{name} of job {job} has too many waiting before it") from problem
        except OSError as problem:
            if problem.errno in (errno.EMFILE, errno.ENFILE, errno.ENOMEM):
                raise EndpointBusy(f"the daemon: {problem.strerror}") from problem
            raise NoEndpoint(f"{name} of job {job}: {problem.strerror}") from problem


def _connected(directory: int, name: str, owners: set[int]) -> socket.socket:
    """Connect to a socket file of one of `owners`. The file is opened first, so that the one that
    was examined is the one connected to; its path through /proc is always short enough."""
    handle = os.open(name, os.O_PATH | os.O_NOFOLLOW | os.O_CLOEXEC, dir_fd=directory)
    try:
        about = os.fstat(handle)
        if not stat.S_ISSOCK(about.st_mode) or about.st_uid not in owners:
            raise OSError(errno.ECONNREFUSED, "it is no socket of the job's")
        endpoint = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        try:
            # Not the loop's sock_connect: it takes a full queue (EAGAIN) for a connection to come.
            endpoint.setblocking(False)
            endpoint.connect(f"/proc/self/fd/{handle}")
            if _uid(endpoint) not in owners:
                raise OSError(errno.ECONNREFUSED, "another user's process listens there")
        except OSError:
            endpoint.close()
            raise
        return endpoint
    finally:
        os.close(handle)


def _uid(endpoint: socket.socket) -> int:
    """The user whose process listens there, as the kernel knows it."""
    raw = endpoint.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, struct.calcsize("3i"))
    return int(struct.unpack("3i", raw)[1])


def _pass(endpoint: socket.socket, what: bytes, connection: socket.socket) -> None:
    """Send one byte and a copy of the descriptor; a new unix connection always has room for it."""
    socket.send_fds(endpoint, [what], [connection.fileno()])


async def _taken(endpoint: socket.socket) -> bool:
    try:
        async with asyncio.timeout(ANSWER_S):
            return await asyncio.get_running_loop().sock_recv(endpoint, 1) == TAKEN
    except TimeoutError:
        return False


async def _say(connection: socket.socket, words: bytes) -> None:
    await asyncio.get_running_loop().sock_sendall(connection, words)
