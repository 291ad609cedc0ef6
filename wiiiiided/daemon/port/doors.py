"""The doors of a job's processes: unix sockets through which the daemon passes them connections.

    <jobs>/<id>/<attempt>/
        key                   32 bytes: who has them belongs to this attempt, on whatever machine
        door                  the shim's. One byte with the connection (SCM_RIGHTS):
                                  L   a local client of the Store   ◄── + it is mine, - it is not
                                  R   the Store's pipe from another machine's shim    ◄── +
        door-<process uid>    a worker's: W with the connection, no answer

What the daemon has passed it does not keep: it may restart, and no connection notices. These files
are a job's to replace: only sockets of the jobs' user (or the daemon's) are connected to, never
through a link, and nothing here waits longer than ANSWER_S for anybody.
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

from wiiiiided.daemon.shares.runs import Runs
from wiiiiided.errors import HostError
from wiiiiided.shim.files import DOOR, KEY
from wiiiiided.wire.knock import KEY_BYTES

ANSWER_S: Final = 3.0
TAKEN: Final = b"+"


class NoDoor(HostError):
    """Nobody opens: there is no such door, or nobody behind it."""


class DoorBusy(HostError):
    """Somebody is behind the door and cannot take more connections just now."""


class Doors:
    """All doors of this machine's attempts."""

    def __init__(self, runs: Runs, live: Callable[[], Iterable[tuple[int, int]]]) -> None:
        self._runs = runs
        self._live = live  # jobs and attempts that may run here

    def key(self, job: int, attempt: int) -> bytes | None:
        """The attempt's key; None when there is no such attempt here, or no key that can be."""
        if (job, attempt) not in set(self._live()):
            return None
        try:
            key = self._runs.read(job, attempt, KEY)
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

        Raises NoDoor, DoorBusy, or OSError when the connection has broken.
        """
        with self._knock(job, attempt, f"{DOOR}-{uid}") as door:
            await _say(connection, greeting())
            _pass(door, b"W", connection)

    async def store(
        self,
        job: int,
        attempt: int,
        connection: socket.socket,
        greeting: Callable[[], bytes] = bytes,
    ) -> None:
        """Pass another machine's pipe to the shim that keeps the Store; as `worker`."""
        with self._knock(job, attempt, DOOR) as door:
            await _say(connection, greeting())
            _pass(door, b"R", connection)
            if not await _taken(door):
                raise NoDoor(f"the shim of job {job}, attempt {attempt} keeps no store")

    async def local_store(self, connection: socket.socket) -> bool:
        """Offer a local client of a Store to the shims that run; whether it is one's.

        The youngest attempts first: ranks connect when they start.
        """
        for job, attempt in sorted(self._live(), reverse=True):
            try:
                with self._knock(job, attempt, DOOR) as door:
                    _pass(door, b"L", connection)
                    if await _taken(door):
                        return True
            except (OSError, HostError):
                continue
        return False

    def _knock(self, job: int, attempt: int, name: str) -> socket.socket:
        """A connection to a door; NoDoor, DoorBusy."""
        owners = {self._runs.user.uid, os.getuid()}
        try:
            directory = self._runs.open_attempt(job, attempt)
            try:
                return _connected(directory, name, owners)
            finally:
                os.close(directory)
        except BlockingIOError as problem:
            raise DoorBusy(f"{name} of job {job} has too many waiting before it") from problem
        except OSError as problem:
            if problem.errno in (errno.EMFILE, errno.ENFILE, errno.ENOMEM):
                raise DoorBusy(f"the daemon: {problem.strerror}") from problem
            raise NoDoor(f"{name} of job {job}: {problem.strerror}") from problem


def _connected(directory: int, name: str, owners: set[int]) -> socket.socket:
    """Connect to a socket file of one of `owners`. Opened first, so that what was looked at is
    what is connected to; by a path that is always short enough."""
    handle = os.open(name, os.O_PATH | os.O_NOFOLLOW | os.O_CLOEXEC, dir_fd=directory)
    try:
        about = os.fstat(handle)
        if not stat.S_ISSOCK(about.st_mode) or about.st_uid not in owners:
            raise OSError(errno.ECONNREFUSED, "it is no socket of the job's")
        door = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        try:
            # Not the loop's sock_connect: it takes a full queue (EAGAIN) for a connection to come.
            door.setblocking(False)
            door.connect(f"/proc/self/fd/{handle}")
            if _uid(door) not in owners:
                raise OSError(errno.ECONNREFUSED, "somebody else listens there")
        except OSError:
            door.close()
            raise
        return door
    finally:
        os.close(handle)


def _uid(door: socket.socket) -> int:
    """Who listens there, as the kernel knows it."""
    raw = door.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, struct.calcsize("3i"))
    return int(struct.unpack("3i", raw)[1])


def _pass(door: socket.socket, what: bytes, connection: socket.socket) -> None:
    """One byte and a copy of the descriptor; a new unix connection always has room for it."""
    socket.send_fds(door, [what], [connection.fileno()])


async def _taken(door: socket.socket) -> bool:
    try:
        async with asyncio.timeout(ANSWER_S):
            return await asyncio.get_running_loop().sock_recv(door, 1) == TAKEN
    except TimeoutError:
        return False


async def _say(connection: socket.socket, words: bytes) -> None:
    await asyncio.get_running_loop().sock_sendall(connection, words)
