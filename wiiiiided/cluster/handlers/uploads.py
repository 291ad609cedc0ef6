"""A working directory on its way in: how many at once, how slowly, and whether there is room.

    a place   16 for all, 2 for each user; waited for at most 20 s, then Refusal(BUSY)
    a pace    64 KiB/s over half a minute at least, an hour for all of it
    room      limits.archives for all that are kept, a quarter of it for one user's jobs that are
              not over; and of the disk what `check_room` leaves for the state

Where it would be too much, archives go that only jobs which are over name, those first that ended
first: they are kept for `requeue`, which then says so.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import AsyncIterator, Callable, Iterable
from contextlib import asynccontextmanager

from wiiiiided.cluster.allocation.archive_cache import Archives
from wiiiiided.cluster.control.job import Owner
from wiiiiided.cluster.handlers.quota import PART
from wiiiiided.cluster.rpc import messages as m
from wiiiiided.cluster.rpc.connection import RpcConnection
from wiiiiided.cluster.rpc.errors import Refuse
from wiiiiided.cluster.system.settings import Settings
from wiiiiided.domain.exit_codes import BUSY, FAILED, INVALID
from wiiiiided.errors import UsageError
from wiiiiided.text import format_size

PLACES = 16  # at once: each may be half a gigabyte
PLACES_PER_USER = 2
PLACE_WITHIN_S = 20.0  # a person sits before a screen
SLOW_S = 30.0  # in which …
LEAST_BYTES = 30 * (64 << 10)  # … so many must come
WHOLE_WITHIN_S = 3600.0


class Uploads:
    """All uploads that are under way. `unneeded`: those of these archives that no job needs, those
    first that go first."""

    def __init__(
        self,
        archives: Archives,
        settings: Callable[[], Settings],
        unneeded: Callable[[Iterable[str]], list[str]],
    ) -> None:
        self.archives = archives
        self.settings = settings
        self._unneeded = unneeded
        self._places = asyncio.Semaphore(PLACES)
        self._users: Counter[tuple[str, int]] = Counter()
        self._announced = 0  # bytes of those under way

    async def receive(
        self, connection: RpcConnection, request: m.Submission, owner: Owner, needs: set[str]
    ) -> None:
        """The archive is here when this returns. `needs` are those of the owner's other jobs."""
        limit = self.settings().archive_limit
        if not 0 <= request.archive_bytes <= limit:
            raise Refuse(INVALID, f"the working directory is larger than {limit} bytes")
        async with self._place(owner):
            await self._make_room(request.archive_bytes, owner, connection.caller.admin, needs)
            self._announced += request.archive_bytes
            try:
                await self._take(connection, request)
            finally:
                self._announced -= request.archive_bytes

    async def _take(self, connection: RpcConnection, request: m.Submission) -> None:
        try:
            with self.archives.receive(request.archive, request.archive_bytes) as upload:
                await connection.say(m.SendArchive())
                async for piece in connection.blob(SLOW_S, LEAST_BYTES, WHOLE_WITHIN_S):
                    upload.take(piece)
                # Half a gigabyte takes a slow disk longer than the watchdog waits.
                await asyncio.to_thread(upload.finish)
        except TimeoutError as problem:
            text = f"the working directory arrives too slowly: less than {LEAST_BYTES >> 10} KiB "
            text += f"in {SLOW_S:g} s, or not all of it in {WHOLE_WITHIN_S / 60:g} min"
            raise Refuse(FAILED, f"{text}; nothing was queued") from problem
        except UsageError as problem:
            raise Refuse(INVALID, str(problem)) from problem
        except OSError as problem:
            if problem.filename is None and problem.errno is None:
                raise
            text = f"the working directory cannot be stored: {problem.strerror}"
            raise Refuse(FAILED, f"{text}; nothing was queued") from problem

    @asynccontextmanager
    async def _place(self, owner: Owner) -> AsyncIterator[None]:
        """Take one of the few places, or Refuse after a while."""
        user = (owner.node, owner.uid)
        until = asyncio.get_running_loop().time() + PLACE_WITHIN_S
        while self._users[user] >= PLACES_PER_USER:
            if asyncio.get_running_loop().time() > until:
                text = f"{owner.user} is sending {PLACES_PER_USER} working directories already"
                raise Refuse(BUSY, f"{text}; nothing was queued", "try again when they are here")
            await asyncio.sleep(0.1)
        self._users[user] += 1
        try:
            try:
                async with asyncio.timeout_at(until):
                    await self._places.acquire()
            except TimeoutError:
                text = f"{PLACES} working directories are being sent at the moment"
                raise Refuse(BUSY, f"{text}; nothing was queued", "try again later") from None
            try:
                yield
            finally:
                self._places.release()
        finally:
            self._users[user] -= 1
            self._users += Counter()  # drops users without uploads

    async def _make_room(self, size: int, owner: Owner, admin: bool, needs: set[str]) -> None:
        """Remove archives that are not needed until this one fits into limits.archives; Refuse: the
        user, or all users, would have too much."""
        most = self.settings().archives_bytes
        sizes = await asyncio.to_thread(self.archives.sizes)
        own = sum(sizes.get(digest, 0) for digest in needs)
        if not admin and own + size > most // PART:
            text = f"the working directories of {owner.user}'s jobs that are not over would have "
            text += f"{format_size(own + size)}, and a user's may have {format_size(most // PART)}"
            hint = "a quarter of limits.archives; large data belongs on the nodes"
            raise Refuse(FAILED, f"{text}; nothing was queued", hint)
        too_many = sum(sizes.values()) + self._announced + size - most
        if too_many > 0:
            for digest in self._unneeded(sizes):
                if self.archives.remove(digest):
                    too_many -= sizes.get(digest, 0)
                if too_many <= 0:
                    return
            text = f"the working directories of all jobs would have more than {format_size(most)}"
            raise Refuse(FAILED, f"{text} (limits.archives); nothing was queued")
