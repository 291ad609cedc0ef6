"""`wiiiiided`: puts the parts together, says when it is ready, and leaves the jobs alone when it
goes.

    settings ─ store ─ keeper ─ workers ─ api
                         │
                      systemd: READY, STATUS, WATCHDOG, STOPPING

Exit codes: 0 stopped · 1 cannot work here now (disk full, socket taken) · 2 usage · 78 a person
must mend something first: wiiiiided.toml, or a state of another version; the unit does not restart
it then.
"""

from __future__ import annotations

import argparse
import asyncio
import gc
import logging
import os
import signal
import sys
import time

from msgspec.structs import replace

from wiiiiided import __version__
from wiiiiided.config import Notification, Paths, inherited, under_journal
from wiiiiided.control.events import ClockJumped, NodeSeen
from wiiiiided.daemon import views
from wiiiiided.daemon.api import Api
from wiiiiided.daemon.archives import Archives
from wiiiiided.daemon.courses import Courses
from wiiiiided.daemon.figures import Figures
from wiiiiided.daemon.journal import JournalHandler, say_node
from wiiiiided.daemon.keeper import JUMP_S, Keeper
from wiiiiided.daemon.machine import Machine
from wiiiiided.daemon.metrics import Metrics
from wiiiiided.daemon.notify import Notifier
from wiiiiided.daemon.order import Surroundings
from wiiiiided.daemon.pages import Pages
from wiiiiided.daemon.picture import Picture
from wiiiiided.daemon.probe import this_node
from wiiiiided.daemon.requests import Identity, Requests
from wiiiiided.daemon.runs import Runs
from wiiiiided.daemon.sampler import Sampler
from wiiiiided.daemon.settings import BadSettings, Settings, read_settings
from wiiiiided.daemon.spawn import JobUser
from wiiiiided.daemon.store import Store, StoreError, StoreUnusable
from wiiiiided.daemon.workers import Workers
from wiiiiided.domain.states import ON_NODES
from wiiiiided.errors import UsageError, WiiiiideError
from wiiiiided.figures.prometheus import exposition
from wiiiiided.log import about, logger

EX_CONFIG = 78
STATUS_EVERY_S = 1.0
DAEMON_TIERS = {"silent": logging.ERROR, "normal": logging.INFO, "verbose": logging.DEBUG}


class Daemon:
    """One daemon, from its start to its end."""

    def __init__(
        self, paths: Paths, settings: Settings, notifier: Notifier, tier: str = ""
    ) -> None:
        self.paths = paths
        self.settings = settings
        self.tier = tier  # of log lines, whatever the settings say; empty: as they say
        self.notifier = notifier
        self.stopping = asyncio.Event()
        self.loop = asyncio.get_running_loop()
        system = paths.mode == "system"
        user = JobUser.service() if system else JobUser.this()
        self.store = Store(paths.state)
        # Jobs are bound to their node's name: it stays what it was, whatever the host is called.
        detected = this_node()
        self.node = replace(detected, name=self.store.fact("node", detected.name))
        self.runs = Runs(paths.jobs, user)
        self.archives = Archives(paths.state / "archives")
        here = Surroundings(
            self.node.name, user, sys.executable, {} if system else inherited(), os.getuid()
        )
        self.workers = Workers(
            self.runs, self.archives, here, lambda: self.settings, self.store.secrets
        )
        self.keeper = Keeper(self.store, [self.node], self.workers.perform)
        self.keeper.on_change = self._changed
        self.workers.report, self.workers.clock = self.keeper.report, self.keeper.clock
        pages = Pages(self.runs, time.monotonic, time.time)
        courses = Courses(
            *(self.node.name, pages, self.store.records, self.workers.shims, self.keeper.job),
            *(time.monotonic, time.time),
        )
        self.sampler = Sampler(self.keeper, courses, Machine(time.monotonic), self.loop)
        self.sampler.over = self._over
        self.picture = Picture(self.keeper, self.sampler, self.node)
        identity = Identity(paths.mode, self.node, time.time(), str(paths.state))
        requests = Requests(
            *(self.keeper, self.workers, self.runs, self.archives, identity),
            *(lambda: self.settings, Figures(self.picture)),
        )
        self.api = Api(paths.socket, system, requests.handle)
        self.metrics = Metrics(lambda: exposition(self.picture.fresh(), requests.status()))
        self._applying: asyncio.Task[None] | None = None  # of settings to `metrics`
        self._status: asyncio.TimerHandle | None = None
        self._pruning: asyncio.Task[None] | None = None
        self._pruned = False  # since the start

    async def run(self) -> None:
        for number in (signal.SIGTERM, signal.SIGINT):
            self.loop.add_signal_handler(number, self.stopping.set)
        self.loop.add_signal_handler(signal.SIGHUP, self.reload)
        adopted = self.adopt()
        await self.api.listen()
        await self.metrics.apply(self.settings)
        text = f"wiiiiided {__version__} on {self.node.name}: {views.summary(self.keeper.state)}"
        logger.info("%s%s; socket %s", text, adopted, self.paths.socket)
        self.notifier.ready(views.summary(self.keeper.state))
        self._feed_watchdog()
        self._changed()
        gc.collect()
        gc.freeze()  # what is here stays: later collections need not look at it
        await self.stopping.wait()
        await self.close()

    def adopt(self) -> str:
        """Find every job that was on this node; then let the queue move."""
        found = [job for job in self.keeper.state.jobs.values() if job.state in ON_NODES]
        for job in found:
            self.workers.adopt(job)
        self.sampler.adopt()
        now = self.keeper.clock()
        latest = max((job.phase.since for job in self.keeper.state.jobs.values()), default=now)
        if latest > now + JUMP_S:  # the clock was set back while no daemon ran
            self.keeper.report(ClockJumped(now, now - latest))
        self.keeper.report(NodeSeen(now, self.node))
        self.keeper.tick()
        return f"; looking after {len(found)} that it had started" if found else ""

    async def close(self) -> None:
        left = views.goes_on(self.keeper.state)
        text = f"stopping; {left}" if left else "stopping; no job is running"
        logger.info("%s", text)
        self.notifier.stopping(text)
        if self._status is not None:
            self._status.cancel()
        if self._pruning is not None:
            self._pruning.cancel()
        if self._applying is not None:
            self._applying.cancel()
        self.keeper.close()
        await self.metrics.close()
        await self.api.close()
        await self.workers.close()
        self.sampler.close()
        self.store.close()
        self.notifier.close()

    def reload(self) -> None:
        """SIGHUP: the settings again; a file with a mistake changes nothing."""
        try:
            self.settings = read_settings(self.paths.config)
        except BadSettings as problem:
            logger.error("the settings stay as they were: %s", problem)
            return
        logger.setLevel(DAEMON_TIERS[self.tier or self.settings.log])
        logger.info("settings read again from %s", self.paths.config)
        self._applying = self.loop.create_task(self.metrics.apply(self.settings))

    # ---- what follows a change

    def _changed(self) -> None:
        if self._status is None:
            self._status = self.loop.call_later(STATUS_EVERY_S, self._after_changes)
        self.sampler.changed()

    def _after_changes(self) -> None:
        self._status = None
        problem = self.keeper.problem
        self.notifier.status(problem or views.summary(self.keeper.state))
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
            if not self._pruned:
                old += [n for n in self.runs.numbers() if self.store.job(n) is None]
            for number in old:
                await self._remove(number)
            if old or not self._pruned:
                self.archives.prune(self.store.archives())
                self._pruned = True
        except (OSError, StoreError) as problem:
            logger.warning("old jobs cannot be removed: %s", problem)

    async def _remove(self, number: int) -> None:
        try:
            await self.workers.remove(number)
        except OSError as problem:
            text = "the files of job %d cannot be removed: %s"
            logger.warning(text, number, problem, extra=about(number))

    def _over(self, job: int, attempt: int) -> set[int]:
        """Ranks of an attempt that have ended."""
        shim = self.workers.shims.get((job, attempt))
        return shim.over if shim is not None else set()

    def _feed_watchdog(self) -> None:
        if self.notifier.watchdog_s:
            self.notifier.watchdog()
            self.loop.call_later(self.notifier.watchdog_s / 2, self._feed_watchdog)


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
        asyncio.run(_run(paths, settings, notifier, options.log))
    except (BadSettings, StoreUnusable) as problem:
        return _refuse(notifier, problem, EX_CONFIG)
    except UsageError as problem:
        return _refuse(notifier, problem, 2)
    except WiiiiideError as problem:
        return _refuse(notifier, problem, 1)
    except KeyboardInterrupt:
        return 130  # before the loop had its own handler
    return 0


async def _run(paths: Paths, settings: Settings, notifier: Notifier, tier: str) -> None:
    daemon = Daemon(paths, settings, notifier, tier)
    say_node(daemon.node.name)
    await daemon.run()


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
