"""A member's answers to the people on it: the coordinator's, frame by frame.

    command ── unix socket ── relay ── TLS, purpose `request`, its user ── coordinator
               ◄── as it comes, never collected ──

    Submit     the archive passes through, and a copy stays: this machine may be asked to run it
    the coordinator goes away in the middle    the command's connection ends, as when its own daemon
                                               restarts; it asks again, and loses nothing
    it is away from the start                  a notice says that it waits, and for how long;
                                               it is dialled again meanwhile. Then this machine says
                                               what it knows of its own (offline), or refuses; jobs
                                               go on
    it falls silent during `top`               a notice says so

Requests about this machine are answered here: Status; init, join, leave and renew are taken out
before (membership/roles).
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager, contextmanager, suppress

import msgspec

from wiiiiided.cluster.allocation.archive_cache import PIECE_WITHIN_S, Archives, Upload
from wiiiiided.cluster.handlers.node_rpc import Opens
from wiiiiided.cluster.handlers.offline import OfflineAnswers
from wiiiiided.cluster.membership.dial import PeerRefusal, Unreachable
from wiiiiided.cluster.peering import messages as p
from wiiiiided.cluster.rpc import framing
from wiiiiided.cluster.rpc import messages as m
from wiiiiided.cluster.rpc.connection import RpcConnection
from wiiiiided.cluster.rpc.errors import Refuse
from wiiiiided.cluster.system.settings import Settings
from wiiiiided.cluster.trust.identity import NodeEndpoint
from wiiiiided.domain.exit_codes import FAILED, NO_DAEMON
from wiiiiided.errors import UsageError
from wiiiiided.log import logger

# How long the coordinator may be away before the answer is no: less than a command waits.
AT_ONCE_S = 4.0
PATIENT_S = 20.0
WATCHING_S = 30.0  # a command that waits for a job outlives a restart
AGAIN_S = 0.25
NOTICE_S = 0.5  # before a notice says which machine the command waits for
QUIET_S = 4.0  # of a coordinator that sends snapshots; and three intervals


class Away(Refuse):
    """The coordinator does not answer."""


class Relay:
    """Answers clients of a member."""

    def __init__(
        self,
        dialer: Opens,
        coordinator: NodeEndpoint,
        archives: Archives,
        settings: Callable[[], Settings],
        status: Callable[[], m.DaemonStatus],
        alone: OfflineAnswers,
    ) -> None:
        self._dialer = dialer
        self._coordinator = coordinator
        self._archives = archives
        self._settings = settings
        self._status = status
        self._alone = alone

    async def handle(self, connection: RpcConnection, request: m.Request) -> None:
        """Relay one request, to its end."""
        if isinstance(request, m.GetStatus):
            await connection.say(self._status())
            return
        try:
            async with self._asked(connection, request) as there:
                if isinstance(request, m.Submission):
                    await self._submit(connection, there, request)
                elif isinstance(request, m.WatchSnapshots):
                    await self._pass_pictures(there, connection, max(QUIET_S, 3 * request.every_s))
                else:
                    await _pass_on(there, connection)
        except Away as away:
            if not self._alone.can(request):
                raise
            await self._alone.handle(connection, request, str(away))

    async def _pass_pictures(
        self, there: RpcConnection, connection: RpcConnection, quiet_s: float
    ) -> None:
        """Pass frames on like `_pass_on`, and tell the person when it is the coordinator that has
        become silent."""
        silent_s, place = 0.0, self._coordinator
        while True:
            try:
                async with asyncio.timeout(quiet_s):
                    kind, payload = await there.frame()
            except TimeoutError:
                silent_s += quiet_s
                text = f"the coordinator {place.name} ({place.endpoint}) has said nothing for"
                await connection.notice(f"{text} {silent_s:.0f} s")
                continue
            except EOFError:
                return
            silent_s = 0.0
            await connection.send(kind, payload)

    # ---- the coordinator

    @asynccontextmanager
    async def _asked(
        self, connection: RpcConnection, request: m.Request
    ) -> AsyncIterator[RpcConnection]:
        """A connection on which the coordinator's answers come."""
        alone = self._alone.can(request)
        there = await self._reach(connection, AT_ONCE_S if alone else patience(request))
        try:
            await there.say(request)
            yield there
        finally:
            there.close()

    async def _reach(self, connection: RpcConnection, within_s: float) -> RpcConnection:
        """Dial until it answers. Refuse: it does not want us; Away: it does not answer."""
        caller, place = connection.caller, self._coordinator
        person = p.Person(caller.uid, caller.user, caller.admin)
        tries: list[str] = []  # why they failed
        dialing = asyncio.ensure_future(self._dial(place, person, tries))
        try:
            async with asyncio.timeout(within_s):
                await asyncio.wait({dialing}, timeout=NOTICE_S)
                if not dialing.done():
                    text = f"waiting up to {within_s:.0f} s for the coordinator {place.name}"
                    why = f": {tries[-1]}" if tries else ""
                    await connection.notice(
                        f"{text} ({place.endpoint}), which does not answer{why}"
                    )
                return await dialing
        except TimeoutError:
            why = tries[-1] if tries else "nothing came back in time"
            text = f"the coordinator {place.name} ({place.endpoint}) does not answer: {why}"
            hint = f"is {place.name} on, and wiiiiided running there?"
            raise Away(NO_DAEMON, f"{text}; jobs go on", hint) from None
        except PeerRefusal as no:
            hint = "wiiiiide leave takes it out of that cluster" if no.removed else no.hint
            raise Refuse(no.code, str(no), hint) from no
        finally:
            dialing.cancel()

    async def _dial(self, place: NodeEndpoint, person: p.Person, tries: list[str]) -> RpcConnection:
        while True:
            try:
                return await self._dialer.open(place.address, place.port, "request", person)
            except Unreachable as problem:
                tries.append(str(problem))
            await asyncio.sleep(AGAIN_S)

    # ---- submitting

    async def _submit(
        self, connection: RpcConnection, there: RpcConnection, request: m.Submission
    ) -> None:
        """The archive, if it is asked for, passes through, and stays here as well."""
        answer = await there.message()
        await connection.send(framing.MESSAGE, answer)
        if not _asks_for_archive(answer):
            return
        limit = self._settings().archive_limit
        with self._archives.pinned(request.archive), ArchiveCopy(self._archives, limit) as copy:
            copy.begin(request.archive)
            whole = await _upload(connection, there, copy)
            await _pass_on(there, connection)
            if whole:
                await asyncio.to_thread(copy.finish)


class ArchiveCopy:
    """An archive that passes by, kept. A failure is a line in the log and no more."""

    def __init__(self, archives: Archives, limit: int) -> None:
        self._archives = archives
        self._limit = limit
        self._upload: Upload | None = None

    def __enter__(self) -> ArchiveCopy:
        return self

    def __exit__(self, *problem: object) -> None:
        if self._upload is not None:
            with self._or_none():
                self._upload.__exit__(*problem)

    def begin(self, digest: str) -> None:
        with self._or_none():
            if not self._archives.has(digest):
                self._upload = self._archives.receive(digest, self._limit)

    def take(self, piece: bytes) -> None:
        if self._upload is not None:
            with self._or_none():
                self._upload.take(piece)

    def finish(self) -> None:
        if self._upload is not None:
            with self._or_none():
                self._upload.finish()

    @contextmanager
    def _or_none(self) -> Iterator[None]:
        try:
            yield
        except (OSError, UsageError) as problem:
            logger.warning("no copy of an archive is kept here: %s", problem)
            failed, self._upload = self._upload, None
            if failed is not None:
                with suppress(OSError):
                    failed.__exit__()


async def _upload(connection: RpcConnection, there: RpcConnection, copy: ArchiveCopy) -> bool:
    """Pass on every piece, or as many as are wanted: the coordinator may say no in the middle.
    Whether all were."""
    no = asyncio.ensure_future(there.waiting())
    sending = asyncio.ensure_future(_send_archive(connection, there, copy))
    try:
        await asyncio.wait({no, sending}, return_when=asyncio.FIRST_COMPLETED)
    finally:
        whole = sending.done()
        for task in (no, sending):
            task.cancel()
        _, sent = await asyncio.gather(no, sending, return_exceptions=True)
    if isinstance(sent, TimeoutError):
        text = f"the working directory stopped arriving for {PIECE_WITHIN_S:g} s"
        raise Refuse(FAILED, f"{text}; nothing was queued") from sent
    if isinstance(sent, Exception):
        raise sent
    return whole


async def _send_archive(connection: RpcConnection, there: RpcConnection, copy: ArchiveCopy) -> None:
    async for piece in connection.blob(PIECE_WITHIN_S):
        async with asyncio.timeout(PIECE_WITHIN_S):
            await there.send_blob(piece)
        copy.take(piece)
    await there.end_blob()


def patience(request: m.Request) -> float:
    """How long a command can wait for the coordinator to be there."""
    match request:
        case m.Wait() | m.Cancel() | m.CancelSweep():
            return WATCHING_S
        case m.Logs() | m.Pull() | m.Stacks() | m.Requeue() | m.Submit() | m.SubmitSweep():
            return PATIENT_S
        case _:
            return AT_ONCE_S


async def _pass_on(there: RpcConnection, connection: RpcConnection) -> None:
    """Frames until the coordinator closes: it has said all, or went away. Either way the command's
    connection ends then, and a command knows whether it has heard all."""
    while True:
        try:
            kind, payload = await there.frame()
        except EOFError:
            return
        await connection.send(kind, payload)


def _asks_for_archive(answer: bytes) -> bool:
    try:
        return isinstance(m.decode_answer(answer), m.SendArchive)
    except msgspec.DecodeError:
        return False  # of a newer coordinator: the command will say so
