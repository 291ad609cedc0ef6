"""A member's link to the coordinator: dialled, kept, and dialled again for ever.

    dial ──► LinkHello ──► ◄── Reconcile ──► linked: reports, metrics, orders ──► broken ─┐
      ▲ 0.2 s … 2 s                                                                       │
      └────────────────────────────────────────────────────────────────────────────────────┘
    removed: a machine that was removed ends what it runs and waits for `wiiiiide leave`

Events while there is no link are not kept for later: the next reconciliation asks about
everything that the coordinator still believes to be here, and the node's files know the answers.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable
from typing import Protocol

import msgspec

from wiiiiided.cluster.allocation.spawn import may_pass
from wiiiiided.cluster.allocation.workers import HEARD_S, Workers
from wiiiiided.cluster.control import actions as a
from wiiiiided.cluster.control import events as e
from wiiiiided.cluster.membership.credentials import Credentials
from wiiiiided.cluster.membership.dial import Dialer, PeerRefusal, Unreachable
from wiiiiided.cluster.membership.link import DaemonLink
from wiiiiided.cluster.peering import messages as p
from wiiiiided.cluster.peering.metrics_codec import NodeMetrics
from wiiiiided.cluster.rpc.connection import RpcConnection
from wiiiiided.cluster.trust.certificate import Certificate
from wiiiiided.domain.node import Node
from wiiiiided.errors import WiiiiideError
from wiiiiided.log import about, logger

FIRST_S, MOST_S = 0.2, 2.0  # between two tries
TURNED_S = 10.0  # when it answered, and said no
RECONCILE_S = 30.0
RENEW_S = 15.0
ASLEEP_S = 10.0  # beyond that: this machine slept, and what it finds in its socket is old


class LinkWatcher(Protocol):
    """A member's reactions to its link."""

    def linked(self) -> None:
        """The coordinator hears this machine from now on."""

    def unlinked(self) -> None:
        """The link is lost, or is lost for another cause."""

    async def forget(self, jobs: tuple[int, ...]) -> None:
        """Remove the files of these jobs."""


class Uplink:
    """A member's link to its coordinator. `run` it as long as the daemon is a member."""

    def __init__(
        self,
        credentials: Credentials,
        dialer: Dialer,
        node: Node,
        workers: Workers,
        watcher: LinkWatcher,
    ) -> None:
        self.credentials = credentials
        self.removed = ""  # a sentence once this machine is no member any more
        self.away = "it was not reached yet"  # why there is no link
        self._dialer = dialer
        self._node = node
        self._workers = workers
        self._watcher = watcher
        self._link: DaemonLink | None = None
        self._heard_at = self._awake_at = 0.0  # by a clock that goes on while the machine sleeps
        self._renewals: list[asyncio.Future[float]] = []
        self._tasks: set[asyncio.Task[None]] = set()

    @property
    def linked(self) -> bool:
        return self._link is not None

    @property
    def trouble(self) -> str:
        """A sentence while the coordinator does not hear this machine."""
        if self.removed or self.linked:
            return self.removed
        place = self.credentials.identity.coordinator
        who = f"the coordinator {place.name} ({place.endpoint})"
        return f"{who} does not answer: {self.away}; jobs go on"

    # ---- to the coordinator

    def report(self, event: e.AnyEvent) -> None:
        """Tell the coordinator what has happened. Without a link the reconciliation will ask."""
        if self._link is not None:
            self._link.say(p.Report(event))  # type: ignore[arg-type]

    def push(self, metrics: NodeMetrics) -> None:
        if self._link is not None:
            self._link.say(p.MetricsUpdate(metrics))

    async def renew(self) -> float:
        """A new certificate; until when it is valid. WiiiiideError: why there is none."""
        if self._link is None:
            raise WiiiiideError(self.trouble or "there is no link to the coordinator")
        done: asyncio.Future[float] = asyncio.get_running_loop().create_future()
        self._renewals.append(done)
        self._link.say(p.RenewRequest(self.credentials.request()))
        try:
            async with asyncio.timeout(RENEW_S):
                return await done
        except TimeoutError:
            text = f"the coordinator did not sign it within {RENEW_S:g} s; its log may say why"
            raise WiiiiideError(text) from None

    # ---- keeping the link

    async def run(self) -> None:
        """Dial, listen, dial again, for ever, with exponential backoff between FIRST_S and
        MOST_S."""
        wait_s = FIRST_S
        while True:
            try:
                began = asyncio.get_running_loop().time()
                await self._once()
                if asyncio.get_running_loop().time() - began > MOST_S:
                    wait_s = FIRST_S
            except PeerRefusal as no:
                self._refused(no)
                wait_s = TURNED_S
            except (Unreachable, EOFError, OSError, TimeoutError, msgspec.DecodeError) as problem:
                self._is_away(str(problem) or "it hung up")
            except Exception as problem:
                logger.exception("a defect of the link to the coordinator; it is dialled again")
                self._is_away(str(problem))
            await asyncio.sleep(wait_s)
            wait_s = min(wait_s * 2, MOST_S)

    async def _once(self) -> None:
        place = self.credentials.identity.coordinator
        connection = await self._dialer.open(place.address, place.port, "link")
        try:
            cancelled = self._workers.cancellations.told(self._workers.clock())
            has = tuple(self._workers.job_dirs.numbers())
            await connection.say(p.LinkHello(self._node, has, True, cancelled))
            told = await _reconciliation(connection)
        except BaseException:
            connection.close()
            raise
        await self._listen(DaemonLink(connection), told, {one.id for one in cancelled})

    async def _listen(self, link: DaemonLink, told: p.Reconcile, cancelled: set[int]) -> None:
        place = self.credentials.identity.coordinator
        self._link, self.removed = link, ""
        self._heard_at = self._awake_at = _now()
        logger.info("the coordinator %s (%s) hears this machine", place.name, place.endpoint)
        beat = asyncio.ensure_future(self._tell_shims())
        try:
            self._reconcile(told)
            self._watcher.linked()
            if self._workers.cancellations.untold.keys() - cancelled:
                link.end("a job was cancelled here before it stood")  # the next one tells
            why = await link.run(lambda data: self._arrived(link, data))
        finally:
            beat.cancel()
            self._link = None
        self._is_away(why)

    def _reconcile(self, told: p.Reconcile) -> None:
        self._workers.cancellations.forget(told.cancelled)
        given, unreadable = [], []
        for packed in told.assignments:
            try:
                given.append(p.unpack(packed))
            except p.UnreadableAssignment as problem:
                unreadable.append(problem)
        self._workers.reconcile(given, {(one.job, one.attempt) for one in unreadable})
        for one in unreadable:
            self._workers.decline(one.job, one.attempt, str(one))
        if told.forget:
            self._spawn(self._watcher.forget(told.forget))

    async def _tell_shims(self) -> None:
        """Tell the shims when the coordinator was heard, not whether a link is there: allocations
        that end themselves when they are cut off count on it, and so does the coordinator, which
        starts them elsewhere."""
        while self._is_awake():
            self._workers.heard(self._heard_at)
            await asyncio.sleep(HEARD_S)

    def _arrived(self, link: DaemonLink, data: bytes) -> None:
        if not self._is_awake():
            link.end("this machine slept, or its daemon was stopped")
            return
        self._heard_at = _now()
        self._heard(data)

    def _is_awake(self) -> bool:
        """Whether nothing has stopped this process for long. If something has, what was said on
        this link may be of before, and only a new one tells how things stand."""
        before, self._awake_at = self._awake_at, _now()
        if self._awake_at - before <= HEARD_S + ASLEEP_S:
            return True
        self._awake_at = before  # until the link is another
        return False

    def _is_away(self, why: str) -> None:
        if why != self.away:
            place = self.credentials.identity.coordinator
            text = "no link to the coordinator %s (%s): %s; jobs go on, it is dialled again"
            logger.warning(text, place.name, place.endpoint, why)
        self.away = why
        self._watcher.unlinked()

    def _refused(self, no: PeerRefusal) -> None:
        if no.removed:
            self._is_removed(str(no))
        else:
            self._is_away(f"it turns this machine away: {no}")

    def _is_removed(self, why: str) -> None:
        if not self.removed:
            logger.error("%s; its jobs here end. wiiiiide leave makes it alone again", why)
        self.removed = f"{why}: wiiiiide leave makes this machine alone again"
        self._watcher.unlinked()
        self._workers.reconcile((), reason=why)

    # ---- what it says

    def _heard(self, data: bytes) -> None:
        try:
            said = p.decode_from_coordinator(data)
        except msgspec.DecodeError as problem:
            logger.debug("the coordinator said something unknown: %s", problem)
            return
        try:
            self._do(said)
        except Exception:
            logger.exception("a defect while doing an order of the coordinator")

    def _do(self, said: p.FromCoordinator) -> None:
        match said:
            case p.Do(action=action, assignment=packed):
                self._order(action, packed)
            case p.Forget(jobs=jobs):
                self._spawn(self._watcher.forget(jobs))
            case p.RenewDue():
                assert self._link is not None
                self._link.say(p.RenewRequest(self.credentials.request()))
            case p.Renewed(certificate=pem, until=until):
                self._renewed(Certificate(pem, until))
            case p.MemberRemoved(by=by):
                cluster = self.credentials.identity.cluster
                self._is_removed(f"this machine was removed from {cluster} by {by}")
            case p.Ping():
                pass

    def _order(self, action: p.NodeAction, packed: msgspec.Raw) -> None:
        try:
            self._workers.perform(action, p.unpack(packed))
        except p.UnreadableAssignment as problem:
            key = (problem.job, problem.attempt)
            if isinstance(action, a.StopWorkers) and (job := self._workers.following.get(key)):
                # A job that is to end needs nothing that is not known here.
                self._workers.perform(action, p.Assignment(job, ""))
            else:
                self._workers.decline(*key, str(problem))
        except Exception as problem:
            if not isinstance(action, a.PrepareWorkers | a.StartWorkers):
                raise
            logger.exception("a defect while carrying out %s", action, extra=about(action.id))
            if not may_pass(problem):  # what passes is asked for again (control/scheduler)
                why = f"a defect kept it from being started: {problem!r}"
                self._workers.never((action.id, action.attempt), why)

    def _renewed(self, certificate: Certificate) -> None:
        waiting, self._renewals = self._renewals, []
        try:
            self.credentials.renewed(certificate)
        except WiiiiideError as problem:
            logger.error("the renewed certificate cannot be kept: %s", problem)
            for one in waiting:
                if not one.done():
                    one.set_exception(problem)
            return
        logger.info("this machine has a renewed certificate")
        for one in waiting:
            if not one.done():
                one.set_result(certificate.until)

    def _spawn(self, work: Awaitable[None]) -> None:
        task: asyncio.Task[None] = asyncio.ensure_future(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    def close(self) -> None:
        for task in self._tasks:
            task.cancel()


async def _reconciliation(connection: RpcConnection) -> p.Reconcile:
    """Read the parts of a reconciliation and put them together; PeerRefusal: it was refused."""
    given: list[msgspec.Raw] = []
    while True:
        async with asyncio.timeout(RECONCILE_S):
            told = p.decode_reconcile(await connection.message())
        if isinstance(told, p.TurnedAway):
            raise PeerRefusal(told.code, told.message, told.hint, told.removed)
        given += told.assignments
        if not told.more:
            return p.Reconcile(tuple(given), told.forget, cancelled=told.cancelled)


def _now() -> float:
    return time.clock_gettime(time.CLOCK_BOOTTIME)
