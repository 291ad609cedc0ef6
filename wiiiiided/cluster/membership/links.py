"""The coordinator's ends of the links: one a member, which the member dials.

    LinkHello ──► NodeSeen: the control plane hears of it
              ◄── Reconcile: all that is believed to be there, in as many messages as it needs
    Report    ──► re-stamped by this machine's clock, to the controller
    Metrics   ──► to the sampler
    the end, or ten seconds of silence ──► NodeLeft; what is on that node may go on

A second link of the same member takes the place of the first: it knows better than we do whether
the old one still works. A member's words about others are not believed.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable

import msgspec
from msgspec.structs import replace

from wiiiiided.cluster.control import events as e
from wiiiiided.cluster.control.job import Job, Stopping
from wiiiiided.cluster.membership.control_port import OpenConnections
from wiiiiided.cluster.membership.dispatch import Assigner
from wiiiiided.cluster.membership.link import DaemonLink
from wiiiiided.cluster.membership.members import Members
from wiiiiided.cluster.peering import messages as p
from wiiiiided.cluster.peering.metrics_codec import NodeMetrics
from wiiiiided.cluster.rpc.connection import RpcConnection
from wiiiiided.cluster.rpc.errors import Refuse
from wiiiiided.cluster.rpc.messages import Message
from wiiiiided.cluster.state.controller import Controller
from wiiiiided.cluster.state.store import StoreError
from wiiiiided.cluster.trust.certificate import is_due
from wiiiiided.domain.node import Node
from wiiiiided.domain.states import ON_NODES
from wiiiiided.errors import WiiiiideError
from wiiiiided.log import Complaints, about, logger
from wiiiiided.text import plain

HELLO_S = 10.0
AGO_S = 86400.0  # the longest ago that something can have happened and still be news
RENEW_LOOK_S = 3600.0
METRICS_BYTES = 256 << 10  # of one message: thousands of ranks; reading more would stop the daemon
VERSION_CHARS = 64
ERROR_CHARS = 300
USER_CHARS = 64
CANCELLED = 4096  # jobs that one member says were cancelled there
LARGEST = 1 << 62  # of a count: what the store and JSON hold exactly


class Links:
    """All members that are heard. `connections` are all connections that members have open, the
    links among them."""

    def __init__(
        self,
        controller: Controller,
        assigner: Assigner,
        members: Members,
        connections: OpenConnections,
        on_metrics: Callable[[str, NodeMetrics], None],
    ) -> None:
        self.controller = controller
        self.assigner = assigner
        self.members = members
        self._connections = connections
        self._on_metrics = on_metrics
        self._links: dict[str, DaemonLink] = {}
        self._leaving: set[str] = set()  # removed, and heard until their allocations have ended
        self._sorted: set[str] = set()  # members with files compared with the queue
        self._closing = False
        self._complaints = Complaints("links")
        self._renewals = asyncio.get_running_loop().call_later(RENEW_LOOK_S, self._look_at_dates)

    # ---- to the members

    def send(self, node: str, message: Message) -> None:
        """Queue a message for a member; do nothing when it is not linked."""
        if link := self._links.get(node):
            link.say(message)

    def forget(self, jobs: Iterable[int]) -> None:
        """The files of these jobs are not wanted any more."""
        message = p.Forget(tuple(jobs))
        if message.jobs:
            for link in self._links.values():
                link.say(message)

    def remove(self, node: str, by: str, listen: bool = False) -> None:
        """Tell a node that it is no member any more, and hang up. With `listen` the link stays, for
        what the node has to say of the allocations it ends, until this is called again."""
        link = self._links.get(node)
        if link is not None and node not in self._leaving:
            link.say(p.MemberRemoved(by))
        if listen:
            self._leaving.add(node)
        else:
            self._leaving.discard(node)
            self._links.pop(node, None)
            if link is not None:
                asyncio.get_running_loop().call_later(1.0, link.end, f"{node} was removed by {by}")
        self._connections.hang_up(node)

    def linked(self, node: str) -> bool:
        return node in self._links

    # ---- one member

    async def serve(self, connection: RpcConnection) -> None:
        """A link, from its hello to its end."""
        assert connection.peer is not None
        name = connection.peer.name
        async with asyncio.timeout(HELLO_S):
            hello = p.decode_hello(await connection.message())
        if self._closing:
            return
        if no := self.members.verdict(connection.peer):  # removed while it waited with its hello
            raise WiiiiideError(no)
        link = self._take(name, connection, hello)
        why = await self._run(name, link)
        if self._links.get(name) is link:
            del self._links[name]
            logger.info("the link of %s has ended: %s", name, why, extra=about(node=(name,)))
            if not self._closing:
                self.controller.report(e.NodeLeft(self.controller.clock(), name, link.silent_s))

    async def _run(self, name: str, link: DaemonLink) -> str:
        """Run a member's link until it ends; why it did. All connections of a removed member are
        cancelled but this one, while its allocations end."""
        running = asyncio.ensure_future(link.run(lambda data: self._heard(name, link, data)))
        try:
            return await asyncio.shield(running)
        except asyncio.CancelledError:
            if name in self._leaving and not self._closing:
                return await running
            running.cancel()
            await asyncio.gather(running, return_exceptions=True)
            raise

    def _take(self, name: str, connection: RpcConnection, hello: p.LinkHello) -> DaemonLink:
        node = _sound(hello.node, name)
        self.members.check_place(node)
        if (old := self._links.get(name)) and self._is_another(node):
            # It has restarted, and a word finds the old link dead; or there are two of them.
            old.say(p.Ping())
            raise WiiiiideError(f"{name} dials from another machine or boot while its link stands")
        if old := self._links.pop(name, None):
            old.end("it has dialled again")
        # First: what its people have cancelled must not start again because it is heard.
        cancelled = tuple(
            one.id for one in hello.cancelled[:CANCELLED] if self._cancelled(name, one)
        )
        # Before the link is there: what this event lets start is in the reconciliation.
        self.controller.report(e.NodeSeen(self.controller.clock(), node))
        try:
            *first, last = self._reconciliation(name, hello)
            told = [*first, replace(last, cancelled=cancelled)]
        except BaseException:
            self.controller.report(e.NodeLeft(self.controller.clock(), name))
            raise
        self._leaving.discard(name)  # it has joined again
        link = self._links[name] = DaemonLink(connection, told)
        if is_due(self.members.until(name) or 0.0, self.controller.clock()):
            link.say(p.RenewDue())
        return link

    def _is_another(self, node: Node) -> bool:
        """A machine is not booted twice at once; of two with one certificate, as when one was
        cloned, each would run the same allocations."""
        known = self.controller.state.nodes.get(node.name)
        return known is not None and known.boot_id != node.boot_id

    def _reconciliation(self, name: str, hello: p.LinkHello) -> list[p.Reconcile]:
        jobs = [job for job in self.controller.state.jobs.values() if _is_on(job, name)]
        numbers = [number for number in hello.has if 0 < number < LARGEST]
        store = self.controller.store
        try:
            # Only a member that comes for the first time can have jobs of a later state of this
            # queue: all that it gets after that is from here.
            known = store.never_issued(numbers, skip=name not in self._sorted) | store.numbers()
            self._sorted.add(name)
            gone = tuple(number for number in numbers if number not in known)
        except StoreError:  # no room: at the next link
            gone = ()
        return p.reconciliation(map(self.assigner.given, jobs), gone, hello.in_parts)

    def _cancelled(self, name: str, one: p.CancelledHere) -> bool:
        """A job was cancelled on a machine that was cut off: that holds whatever the policy has
        made of it meanwhile, unless a person has asked for it anew since. Whether the member can
        forget it: it is stored, or there is no such job."""
        now = self.controller.clock()
        job = self.controller.state.jobs.get(one.id)
        if job is None or job.submitted_at != one.submitted_at:
            return True
        if job.requeued_at <= now - max(0.0, one.ago_s) and not _is_cancelled(job):
            by = f"{plain(one.by, USER_CHARS)} on {name}"
            self.controller.report(e.CancelRequested(now, job.id, by, one.now))
            after = self.controller.state.jobs.get(one.id)
            return after is None or _is_cancelled(after)
        return True

    def _heard(self, name: str, link: DaemonLink, data: bytes) -> None:
        if self._links.get(name) is not link:
            return  # removed, or it has dialled again: this link does not count
        try:
            said = p.decode_from_member(data)
        except msgspec.DecodeError as problem:
            logger.debug("%s said something unknown: %s", name, problem)
            return
        try:
            match said:
                case p.Report():
                    self._reported(name, said)
                case p.MetricsUpdate(metrics=metrics):
                    if len(data) <= METRICS_BYTES:
                        self._on_metrics(name, metrics)
                case p.RenewRequest(request=request):
                    self._renew(name, request)
                case p.Ping():
                    pass
        except Exception:
            logger.exception("a defect while hearing %s", name, extra=about(node=(name,)))

    def _reported(self, name: str, said: p.Report) -> None:
        now = self.controller.clock()
        event = restamped(said.event, now)
        node = getattr(event, "node", name)
        job = self.controller.state.jobs.get(event.id)
        if node != name or (job is not None and not _may_say(job, name, event)):
            text = "%s speaks of job %d, which is not on it: passed over"
            logger.debug(text, name, event.id, extra=about(event.id, node=(name,)))
            return
        self.controller.report(event)

    def _renew(self, name: str, request: str) -> None:
        try:
            certificate = self.members.renew(name, request)
        except (Refuse, WiiiiideError) as problem:
            self._complaints.say(f"the certificate of {name} cannot be renewed: {problem}")
            return
        self.send(name, p.Renewed(certificate.pem, certificate.until))
        logger.info("the certificate of %s was renewed", name, extra=about(node=(name,)))

    def _look_at_dates(self) -> None:
        loop = asyncio.get_running_loop()
        self._renewals = loop.call_later(RENEW_LOOK_S, self._look_at_dates)
        for name, link in self._links.items():
            if is_due(self.members.until(name) or 0.0, self.controller.clock()):
                link.say(p.RenewDue())

    def close(self) -> None:
        """The daemon goes; its members dial on."""
        self._closing = True
        self._renewals.cancel()
        for link in list(self._links.values()):
            link.end("the daemon stops")


def _is_cancelled(job: Job) -> bool:
    return isinstance(job.phase, Stopping) and job.phase.cause == "cancel"


def restamped(event: p.NodeEvent, at: float) -> p.NodeEvent:
    """An event of another machine by the time of this one: only spans can be trusted. Its words
    are kept short and printable: they are stored, and shown to people."""
    if isinstance(event, e.WorkersPrepared):
        python, torch, own = map(_version, (event.python, event.torch, event.wiiiiided))
        note = plain(event.note)
        return replace(event, at=at, python=python, torch=torch, wiiiiided=own, note=note)
    if not isinstance(event, e.WorkersEnded):
        return replace(event, at=at)

    def ours(then: float | None) -> float | None:
        return None if then is None else at - min(max(0.0, event.at - then), AGO_S)

    ended_at, failed_at = ours(event.ended_at), ours(event.failed_at)
    reason, error = plain(event.reason), plain(event.error, ERROR_CHARS)
    return replace(event, at=at, ended_at=ended_at, failed_at=failed_at, reason=reason, error=error)


def _version(text: str) -> str:
    return plain(text, VERSION_CHARS)


def _sound(node: Node, name: str) -> Node:
    """A machine's own description, under the name its certificate has."""
    counts = (node.cores - 1, node.memory, node.gpus)
    if not all(0 <= count < LARGEST for count in counts):
        raise WiiiiideError(f"{name} describes itself with impossible numbers")
    return replace(node, name=name, boot_id=plain(node.boot_id, 64), version=_version(node.version))


def _may_say(job: Job, node: str, event: p.NodeEvent) -> bool:
    """Whether what a node reports is about its own allocation, and about ranks of it."""
    if not _is_on(job, node) or job.attempt is None:
        return False
    return (
        not isinstance(event, e.ProgressSampled) or event.rank in job.attempt.layout.on(node).ranks
    )


def _is_on(job: Job, node: str) -> bool:
    return job.state in ON_NODES and job.attempt is not None and node in job.attempt.live
