"""`wiiiiided`: puts the parts together, says when it is ready, and leaves the jobs alone when it
goes.

    settings ─ store ─ keeper ─┬─ workers            this machine's shares
                         │     └─ links ─ members    theirs                    (coordination)
                         api ── people here
                         │
                      systemd: READY, STATUS, WATCHDOG, STOPPING

A daemon with a queue is `Daemon`, alone or as the coordinator of a cluster; one that was given to a
cluster is a `Member`. init, join and leave change that: the daemon is closed and built anew inside
its process.

Exit codes: 0 stopped · 1 cannot work here now (disk full, socket taken) · 2 usage · 78 a person
must mend something first: wiiiiided.toml, or a state of another version; the unit does not restart
it then.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import logging
import os
import sys
import time
from typing import TYPE_CHECKING

from msgspec.structs import replace

from wiiiiided import __version__
from wiiiiided.config import Notification, Paths, under_journal
from wiiiiided.control.events import ClockJumped, NodeSeen
from wiiiiided.daemon import views
from wiiiiided.daemon.answers.asks import Asks
from wiiiiided.daemon.answers.checkpoints import Checkpoints
from wiiiiided.daemon.answers.collecting import Collector
from wiiiiided.daemon.answers.figures import Figures
from wiiiiided.daemon.answers.nodes import Cluster
from wiiiiided.daemon.answers.requests import Requests
from wiiiiided.daemon.answers.share import Share
from wiiiiided.daemon.answers.standing import Standing
from wiiiiided.daemon.answers.status import DaemonFacts
from wiiiiided.daemon.cluster.perform import Assigner, Performer
from wiiiiided.daemon.cluster.roles import Roles
from wiiiiided.daemon.conversation.api import Api
from wiiiiided.daemon.host import DAEMON_TIERS, STATUS_EVERY_S, Host, keep_memory_private
from wiiiiided.daemon.journal import JournalHandler, say_node
from wiiiiided.daemon.keeper import JUMP_S, Keeper
from wiiiiided.daemon.notify import Notifier
from wiiiiided.daemon.probe import this_node
from wiiiiided.daemon.settings import BadSettings, Settings, read_settings
from wiiiiided.daemon.shares import whose
from wiiiiided.daemon.shares.archives import Archives
from wiiiiided.daemon.shares.order import Surroundings
from wiiiiided.daemon.shares.prepare import Preparer
from wiiiiided.daemon.shares.runs import Runs
from wiiiiided.daemon.shares.workers import Workers
from wiiiiided.daemon.store import Store, StoreError, StoreUnusable
from wiiiiided.daemon.watching.courses import Courses
from wiiiiided.daemon.watching.machine import Machine
from wiiiiided.daemon.watching.metrics import Metrics
from wiiiiided.daemon.watching.pages import Pages
from wiiiiided.daemon.watching.picture import Picture
from wiiiiided.daemon.watching.sampler import Sampler
from wiiiiided.domain.node import Node
from wiiiiided.domain.states import ON_NODES
from wiiiiided.errors import UsageError, WiiiiideError
from wiiiiided.figures.prometheus import exposition
from wiiiiided.log import about, logger
from wiiiiided.trust.identity import Identity, forget

if TYPE_CHECKING:
    from wiiiiided.daemon.cluster.coordination import Coordination
    from wiiiiided.daemon.cluster.members import Members

EX_CONFIG = 78


class Daemon(Host):
    """One daemon that has a queue: of a machine alone, or of a cluster."""

    def __init__(
        self,
        paths: Paths,
        settings: Settings,
        notifier: Notifier,
        tier: str,
        store: Store,
        identity: Identity | None,
    ) -> None:
        super().__init__(paths, settings, notifier, tier)
        self.identity = identity
        self.store = store
        # Jobs are bound to their node's name: it stays what it was, whatever the host is called.
        detected = this_node()
        own = replace(detected, name=self.store.fact("node", detected.name), version=__version__)
        self.node = own
        if self.identity is not None:
            place = (self.identity.node, self.identity.address, self.identity.port)
            self.node = replace(own, name=place[0], address=place[1], port=place[2])
        here = Surroundings.of(self.node, paths.mode == "system")
        self.runs = Runs(self.paths.jobs, here.user)
        whose.settle(self.paths.jobs, "")
        self.archives = Archives(self.paths.state / "archives")
        preparer = Preparer(self.archives, here)
        self.workers = Workers(self.runs, self.archives, here, lambda: self.settings, preparer)
        self._keep()
        self._look_at_jobs()
        self._listen_to(own)
        self._status: asyncio.TimerHandle | None = None
        self._pruning: asyncio.Task[None] | None = None
        self._pruned = False  # since the start

    def _keep(self) -> None:
        """The state, and who carries out what it decides."""
        members = self._members()  # first: rows of an earlier cluster's nodes go
        assigner = Assigner(lambda: self.keeper.state.nodes, self.store.secrets, self.identity)
        self.performer = Performer(self.node.name, self.workers, assigner)
        self.keeper = Keeper(self.store, [self.node], self.performer)
        self.keeper.on_change = self._changed
        self.workers.report, self.workers.clock = self.keeper.report, self.keeper.clock
        self.cluster: Coordination | None = None
        self.standing = Standing(troubles=lambda: self.trouble)
        if members is not None:
            from wiiiiided.daemon.cluster.coordination import Coordination

            cluster = Coordination(members, self.keeper, assigner, self.workers, self.archives)
            self.performer.send = cluster.links.send
            self.standing = Standing(
                role="coordinator",
                cluster=members.identity.cluster,
                coordinator=self.node.name,
                troubles=lambda: self.trouble or cluster.trouble,
            )
            self.cluster = cluster

    def _members(self) -> Members | None:
        if self.identity is None:
            self.store.forget_nodes()
            return None
        from wiiiiided.daemon.cluster.members import Members
        from wiiiiided.trust.authority import Authority

        authority = Authority.load(self.identity.directory)
        return Members(self.store.db, self.identity, authority, time.time)

    def _look_at_jobs(self) -> None:
        pages = Pages(self.runs, time.monotonic, time.time)
        courses = Courses(
            self.node.name,
            pages,
            records=self.store.records,
            shims=self.workers.shims,
            find=self.keeper.job,
            monotonic=time.monotonic,
            clock=time.time,
        )
        self.sampler = Sampler(self.keeper, courses, Machine(time.monotonic), self.loop)
        self.picture = Picture(self.keeper, self.sampler, self.node, self.standing.cluster)
        if self.cluster is not None:
            self.cluster.links.on_figures = self.sampler.take

    def _listen_to(self, own: Node) -> None:
        self.roles = Roles(self.paths.state, own, self.identity, self)
        self.roles.again = lambda: self.end("again")
        requests = self._requests()
        self.collector = Collector(
            requests.ranks.outputs,
            requests.ranks.asks,
            self.keeper,
            limit=lambda: self.settings.outputs_bytes,
        )
        self.checkpoints = Checkpoints(
            self.paths.state / "checkpoints",
            requests.ranks.asks,
            self.keeper,
            limit=lambda: self.settings.outputs_bytes,
        )
        self.workers.placer.bring = self.checkpoints.bring
        handle = self.roles.before(requests.handle)
        system = self.paths.mode == "system"
        self.api = Api(self.paths.socket, system, handle, self.node.name)
        self.metrics = Metrics(lambda: exposition(self.picture.fresh(), requests.status()))
        if self.cluster is not None:
            self.cluster.api = self.api
            self.cluster.checkpoints = self.checkpoints.send

    def _requests(self) -> Requests:
        facts = DaemonFacts(self.paths.mode, self.node, time.time(), str(self.paths.state))
        asks, cluster = None, None
        if self.cluster is not None:
            share = Share(self.node.name, self.workers, self.runs)
            asks = Asks(share, lambda: self.keeper.state.nodes, self.cluster.dialer)
            members, links = self.cluster.members, self.cluster.links
            cluster = Cluster(self.standing.cluster, members, links.remove)
        return Requests(
            keeper=self.keeper,
            workers=self.workers,
            runs=self.runs,
            archives=self.archives,
            facts=facts,
            settings=lambda: self.settings,
            figures=Figures(self.picture),
            standing=self.standing,
            asks=asks,
            cluster=cluster,
        )

    # ---- from start to end

    async def open(self) -> str:
        self.checkpoints.start()  # first: what is adopted may be waiting for some
        adopted = self.adopt()
        if self.cluster is not None:
            await self.cluster.open()
        await self.api.listen()
        await self.metrics.apply(self.settings)
        self.collector.start()
        self._changed()
        return adopted

    def adopt(self) -> str:
        """Find every job that was on this node; then let the queue move."""
        jobs = self.keeper.state.jobs.values()
        found = [job for job in jobs if job.state in ON_NODES]
        with contextlib.suppress(StoreError):  # no room; what a job finds there is set aside then
            self.store.strangers(self.runs.numbers())
        given = [self.performer.assigner.given(job) for job in found]
        self.workers.reconcile(given, latest=self.store.latest_attempts())
        self.sampler.adopt()
        now = self.keeper.clock()
        latest = self.keeper.latest(jobs)
        if latest > now + JUMP_S:  # the clock was set back while no daemon ran
            self.keeper.report(ClockJumped(now, now - latest))
        self.keeper.report(NodeSeen(now, self.node))
        self.keeper.tick()
        return f"; looking after {len(found)} that it had started" if found else ""

    def summary(self) -> str:
        jobs = views.summary(self.keeper.state)
        words = self.standing.words()
        return f"{words}; {jobs}" if words else jobs

    def goes_on(self) -> str:
        return views.goes_on(self.keeper.state)

    async def apply(self) -> None:
        await self.metrics.apply(self.settings)

    async def close(self) -> None:
        if self._status is not None:
            self._status.cancel()
        if self._pruning is not None:
            self._pruning.cancel()
        self.keeper.close()
        await self.metrics.close()
        await self.api.close()
        await self.collector.close()
        await self.checkpoints.close()
        if self.cluster is not None:
            await self.cluster.close()
        await self.workers.close()
        self.sampler.close()
        self.store.close()

    # ---- leaving, renewing (of a coordinator; see roles)

    def unfinished(self) -> str:
        number = len(self.keeper.state.jobs)
        if not number:
            return ""
        return f"{number} job{'s' if number > 1 else ''} of this machine's own queue are not over"

    async def part(self, by: str, force: bool) -> None:
        assert self.cluster is not None
        await self.cluster.part(by, force)

    async def renew(self) -> Identity:
        assert self.cluster is not None
        return await self.cluster.renew()

    # ---- what follows a change

    def _changed(self) -> None:
        if self._status is None:
            self._status = self.loop.call_later(STATUS_EVERY_S, self._after_changes)
        self.sampler.changed()
        self.collector.changed()
        self.checkpoints.changed()

    def _after_changes(self) -> None:
        self._status = None
        problem = self.keeper.trouble or self.standing.trouble
        self.notifier.status(problem or self.summary())
        if self._pruning is None or self._pruning.done():
            self._pruning = self.loop.create_task(self._prune())
        else:
            self._changed()  # what ended meanwhile has its turn after it

    async def _prune(self) -> None:
        """Old jobs' files, then their rows, then archives that no job names."""
        try:
            old = self.store.ended_before_latest(self.settings.keep)
            # The rows first: a job without one cannot be requeued under our hands.
            self.store.forget(old)
            if self.cluster is not None:
                self.cluster.links.forget(old)
            if not self._pruned:
                old += self._left_over()
            busy = {number for number, _ in self.workers.shims}
            for number in set(old) - busy:
                await self._remove(number)
            if old or not self._pruned:
                self.archives.prune(self.store.archives())
                self._pruned = busy.isdisjoint(old)
        except (OSError, StoreError) as problem:
            logger.warning("old jobs cannot be removed: %s", problem)

    def _left_over(self) -> list[int]:
        """Jobs that have files and no row: their removal was interrupted. Those that this queue
        never gave out are somebody's work."""
        numbers = self.runs.numbers()
        known = self.store.strangers(numbers) | self.store.numbers()
        return [number for number in numbers if number not in known]

    async def _remove(self, number: int) -> None:
        try:
            await self.workers.remove(number)
            await self.collector.forget(number)
        except OSError as problem:
            text = "the files of job %d cannot be removed: %s"
            logger.warning(text, number, problem, extra=about(number))


def main(argv: list[str] | None = None) -> int:
    """The program."""
    parser = argparse.ArgumentParser(
        prog="wiiiiided",
        description="The daemon: queues and runs jobs on this machine. It stays in the foreground.",
        epilog="WIIIIIDE_HOME=DIR keeps everything under DIR. Jobs go on when it stops.",
    )
    parser.add_argument("--system", action="store_true", help="as the service (see the unit)")
    parser.add_argument(
        "--log",
        choices=tuple(DAEMON_TIERS),
        default="",
        metavar="TIER",
        help="silent, normal or verbose, whatever wiiiiided.toml says",
    )
    parser.add_argument("--version", action="version", version=f"wiiiiided {__version__}")
    options = parser.parse_args(argv)
    notifier = Notifier(Notification.take())
    try:
        paths = Paths.system() if options.system else Paths.user()
        settings = read_settings(paths.config)
        set_up_log(options.log or settings.log)
        if options.system and os.getuid() == 0:
            raise UsageError("the service runs as user wiiiiide: systemctl start wiiiiided")
        keep_memory_private()
        notifier.starting()
        asyncio.run(_run(paths, settings, notifier, options.log))
    except (BadSettings, StoreUnusable) as problem:
        return _refuse(notifier, problem, EX_CONFIG)
    except UsageError as problem:
        return _refuse(notifier, problem, 2)
    except WiiiiideError as problem:
        return _refuse(notifier, problem, 1)
    except KeyboardInterrupt:
        return 130  # before the loop had its own handler
    finally:
        notifier.close()
    return 0


async def _run(paths: Paths, settings: Settings, notifier: Notifier, tier: str) -> None:
    """Role after role, until it is stopped."""
    trouble = ""
    before: Host | None = None
    while True:
        try:
            daemon = _built(paths, settings, notifier, tier)
        except WiiiiideError as problem:
            fresh = before is not None and before.standing.role == "alone"
            if isinstance(problem, StoreError) or not fresh:
                raise
            # What made it a member or coordinator a moment ago cannot be used: alone again.
            trouble = f"this machine stays alone: its new role cannot be taken up ({problem})"
            logger.error("%s", trouble)
            forget(paths.state)
            daemon = _built(paths, settings, notifier, tier)
        daemon.trouble = trouble
        say_node(daemon.node.name)
        if before is not None and before.stop_wanted:
            daemon.end("stopped")
        if await daemon.run() == "stopped":
            return
        settings, before, trouble = daemon.settings, daemon, ""


def _built(paths: Paths, settings: Settings, notifier: Notifier, tier: str) -> Host:
    """The daemon of this machine's role."""
    store = Store(paths.state)  # and its lock, before anything is touched
    try:
        identity = Identity.load(paths.state)
        if identity is None or identity.role == "coordinator":
            return Daemon(paths, settings, notifier, tier, store, identity)
        from wiiiiided.daemon.member import Member

        return Member(paths, settings, notifier, tier, store, identity)
    except BaseException:
        store.close()
        raise


def _refuse(notifier: Notifier, problem: Exception, code: int) -> int:
    notifier.status(str(problem))
    print(f"wiiiiided: {problem}", file=sys.stderr)
    return code


def set_up_log(tier: str) -> None:
    """Lines on stderr, with their time; under systemd to its journal, with fields instead."""
    handler: logging.Handler = logging.StreamHandler()
    if under_journal():
        handler = JournalHandler(fallback=handler)
    else:
        handler.setFormatter(logging.Formatter("%(asctime)s %(message)s"))
    logger.addHandler(handler)
    logger.propagate = False
    logger.setLevel(DAEMON_TIERS[tier])


if __name__ == "__main__":
    sys.exit(main())
