"""Every daemon, whatever its role: a process with settings, signals and a service manager.

    built ──► run: adopt, listen, ready ──► stopped, or again in another role ──► closed

systemd hears READY once a process; a change of role is a line of STATUS.
"""

from __future__ import annotations

import asyncio
import ctypes
import gc
import logging
import signal
import time
from dataclasses import dataclass
from typing import Literal

from msgspec.structs import replace

from wiiiiided import __version__
from wiiiiided.cluster.allocation.archive_cache import Archives
from wiiiiided.cluster.allocation.job_dirs import JobDirs
from wiiiiided.cluster.allocation.shim_order import HostContext
from wiiiiided.cluster.handlers.cluster_role import ClusterRole
from wiiiiided.cluster.handlers.status import DaemonFacts
from wiiiiided.cluster.membership.own_address import interface_of
from wiiiiided.cluster.state.store import StateStore
from wiiiiided.cluster.system.probe import this_node
from wiiiiided.cluster.system.sd_notify import Notifier
from wiiiiided.cluster.system.settings import BadSettings, Settings, read_settings
from wiiiiided.cluster.trust.identity import Identity
from wiiiiided.config import Paths
from wiiiiided.log import logger

DAEMON_TIERS = {"silent": logging.ERROR, "normal": logging.INFO, "verbose": logging.DEBUG}
STATUS_EVERY_S = 1.0
PR_SET_DUMPABLE = 4  # prctl(2)

DaemonOutcome = Literal["stopped", "again"]


def keep_memory_private() -> None:
    """No core file, and no other process of the same user may trace this one or read its memory:
    keys and secrets are in there. A child is not concerned, from its exec on."""
    ctypes.CDLL(None).prctl(PR_SET_DUMPABLE, 0, 0, 0, 0)


@dataclass(frozen=True)
class Launch:
    """The settings the process was started with."""

    paths: Paths
    settings: Settings
    notifier: Notifier
    tier: str  # of log lines, whatever the settings say; empty: as they say


class DaemonProcess:
    """One role of a daemon, from its start to its end."""

    cluster_role: ClusterRole

    def __init__(self, launch: Launch, store: StateStore, identity: Identity | None) -> None:
        paths = self.paths = launch.paths
        self.settings = launch.settings
        self.tier = launch.tier
        self.notifier = launch.notifier
        self.store = store
        # Jobs are bound to their node's name: it stays what it was, whatever the host is called.
        detected = this_node()
        own = replace(detected, name=store.fact("node", detected.name), version=__version__)
        self.own = self.node = own  # when it is alone, and as it is called now
        if identity is not None:
            place = {"address": identity.address, "port": identity.port}
            interface = interface_of(identity.address)
            self.node = replace(own, name=identity.node, interface=interface, **place)
        self.here = HostContext.of(self.node, paths.mode == "system")
        self.job_dirs = JobDirs(paths.jobs, self.here.user)
        self.archives = Archives(paths.state / "archives")
        self.facts = DaemonFacts(
            paths.mode,
            self.node,
            time.time(),
            str(paths.state),
            jobs_directory=str(self.job_dirs.root),
            job_user=self.here.user.name,
        )
        self.loop = asyncio.get_running_loop()
        self.trouble = ""  # what went wrong before this role was built, a sentence
        self.stop_wanted = False  # also when that came while it was being built anew
        self._outcome: asyncio.Future[DaemonOutcome] = self.loop.create_future()
        self._watchdog: asyncio.TimerHandle | None = None
        self._applying: asyncio.Task[None] | None = None

    async def run(self) -> DaemonOutcome:
        for number in (signal.SIGTERM, signal.SIGINT):
            self.loop.add_signal_handler(number, self.end, "stopped")
        self.loop.add_signal_handler(signal.SIGHUP, self.reload)
        adopted = await self.open()
        text = f"wiiiiided {__version__} on {self.node.name}: {self.summary()}"
        logger.info("%s%s; socket %s", text, adopted, self.paths.socket)
        self.notifier.ready(self.summary())
        self._feed_watchdog()
        gc.collect()
        gc.freeze()  # what is here stays: later collections need not look at it
        outcome = await self._outcome
        if outcome == "stopped":
            left = self.goes_on()
            text = f"stopping; {left}" if left else "stopping; no job is running"
            logger.info("%s", text)
            self.notifier.stopping(text)
        if self._watchdog is not None:
            self._watchdog.cancel()
        if self._applying is not None:
            self._applying.cancel()
        gc.unfreeze()  # what was here goes, when it is built anew
        await self.close()
        return outcome

    def end(self, outcome: DaemonOutcome) -> None:
        """Stop, or be built again in another role."""
        self.stop_wanted |= outcome == "stopped"
        if not self._outcome.done():
            self._outcome.set_result(outcome)

    def rebuild(self) -> None:
        """The role has changed on disk: the daemon is built anew in it."""
        self.end("again")

    def reload(self) -> None:
        """SIGHUP: the settings again; a file with a mistake changes nothing."""
        try:
            self.settings = read_settings(self.paths.config)
        except BadSettings as problem:
            logger.error("the settings stay as they were: %s", problem)
            return
        logger.setLevel(DAEMON_TIERS[self.tier or self.settings.log])
        logger.info("settings read again from %s", self.paths.config)
        self._applying = self.loop.create_task(self.apply())

    def _feed_watchdog(self) -> None:
        if self.notifier.watchdog_s:
            self.notifier.watchdog()
            wait_s = self.notifier.watchdog_s / 3  # one datagram, and the next, may be dropped
            self._watchdog = self.loop.call_later(wait_s, self._feed_watchdog)

    # ---- what a role has to say and to do

    async def open(self) -> str:
        """Adopt what runs, and listen; a few words on what was found."""
        raise NotImplementedError

    async def apply(self) -> None:
        """The settings have changed."""

    def summary(self) -> str:
        """One line for the service manager."""
        raise NotImplementedError

    def goes_on(self) -> str:
        """The jobs that keep running when this daemon stops; empty: nothing."""
        raise NotImplementedError

    async def close(self) -> None:
        """Let go of everything; the jobs go on."""
        raise NotImplementedError
