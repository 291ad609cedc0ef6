"""How much a daemon and its shims use while nothing happens: memory, and processor time.

Processor time needs a long look, so all daemons are looked at in the same minute. Memory is taken
while only one daemon runs: pages that several daemons share would make each look smaller.
"""

from __future__ import annotations

import contextlib
import os
import select
import socket
import time
from collections.abc import Iterator
from typing import Any

import psutil

from lib.measure import BYTES, SHARE, Chapter, Measure
from lib.measured_daemon import MeasuredDaemon
from lib.proc import cpu_seconds
from wiiiiided.domain.spec import Policy

DAEMON_BYTES, SHIM_BYTES, IDLE_SHARE = 50e6, 15e6, 0.003
SHIM_RANKS = (1, 2, 16)
WATCHDOG_S = 30.0  # as systemd/wiiiiided.service has it
# A second after a change the daemon tells its status and prunes; that is not idling.
_AFTER_CHANGE_S = 2.0


def _memory(pid: int) -> Any:
    """`rss` counts every page the process has; `pss` shares those of libraries fairly out."""
    return psutil.Process(pid).memory_full_info()


def _measures(what: str, found: list[Any], asked: float) -> list[Measure]:
    return [
        Measure(f"{what}, RSS", BYTES, [one.rss for one in found], asked),
        Measure(f"{what}, PSS", BYTES, [one.pss for one in found]),
    ]


def small(rounds: int) -> Chapter:
    """A daemon that has just started, and shims; each round with a daemon of its own."""
    idle: list[Any] = []
    shims: dict[int, list[Any]] = {ranks: [] for ranks in SHIM_RANKS}
    for _ in range(rounds):
        with MeasuredDaemon() as daemon:
            time.sleep(_AFTER_CHANGE_S)
            idle.append(_memory(daemon.pid))
            for ranks, found in shims.items():
                job = daemon.sleeping(ranks)
                found.append(_memory(daemon.shim(job)))
                daemon.cancel(job)
    measures = _measures("daemon, no jobs", idle, DAEMON_BYTES)
    for ranks, found in shims.items():
        what = f"shim, {ranks} idle rank{'s' if ranks > 1 else ''}"
        measures += _measures(what, found, SHIM_BYTES)
    return Chapter("Memory", measures)


def full(daemon: MeasuredDaemon, jobs: int) -> list[Measure]:
    """The same daemon after it was given a long queue."""
    return _measures(f"daemon, {jobs:,} jobs queued", [_memory(daemon.pid)], DAEMON_BYTES)


class ServiceManager:
    """Listens like systemd does, so that the daemon has a reason to feed the watchdog."""

    def __init__(self) -> None:
        self.name = f"@wiiiiide-bench-{os.getpid()}"
        self._socket = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
        self._socket.bind("\0" + self.name[1:])
        self.heard: list[str] = []

    def listen(self, seconds: float) -> None:
        deadline = time.monotonic() + seconds
        while (left := deadline - time.monotonic()) > 0:
            if select.select([self._socket], [], [], left)[0]:
                self.heard.append(self._socket.recv(4096).decode())

    def close(self) -> None:
        self._socket.close()


@contextlib.contextmanager
def _manager() -> Iterator[ServiceManager]:
    made = ServiceManager()
    try:
        yield made
    finally:
        made.close()


def idle(queued: MeasuredDaemon, jobs: int, seconds: float, rounds: int) -> Chapter:
    """Shares of a core while nothing happens, all daemons over the same time."""
    with contextlib.ExitStack() as stack:
        manager = stack.enter_context(_manager())
        usec = str(int(WATCHDOG_S * 1e6))
        watched = {"NOTIFY_SOCKET": manager.name, "WATCHDOG_USEC": usec}
        daemons = {
            "daemon, no jobs": stack.enter_context(MeasuredDaemon()),
            "daemon, with a watchdog to feed": stack.enter_context(MeasuredDaemon(**watched)),
            "daemon, one idle job": stack.enter_context(MeasuredDaemon()),
            "daemon, one idle job with a hang_timeout": stack.enter_context(MeasuredDaemon()),
            f"daemon, {jobs:,} jobs queued": queued,
        }
        busy = daemons["daemon, one idle job"]
        job = busy.sleeping(2)
        daemons["daemon, one idle job with a hang_timeout"].sleeping(
            2, Policy(hang_timeout_s=600.0)
        )
        pids = {what: daemon.pid for what, daemon in daemons.items()}
        pids["shim, 2 idle ranks"] = busy.shim(job)
        manager.listen(_AFTER_CHANGE_S)
        shares: dict[str, list[float]] = {what: [] for what in pids}
        for _ in range(rounds):
            for what, share in _shares(pids, seconds / rounds, manager).items():
                shares[what].append(share)
        if seconds > WATCHDOG_S and not any("WATCHDOG=1" in said for said in manager.heard):
            raise OSError("the daemon never fed its watchdog")
    title = f"Processor time of idle processes, {seconds:.0f} s in {rounds} parts"
    measures = [Measure(what, SHARE, found, IDLE_SHARE) for what, found in shares.items()]
    return Chapter(title, measures)


def _shares(pids: dict[str, int], seconds: float, manager: ServiceManager) -> dict[str, float]:
    begin = time.monotonic()
    before = {what: cpu_seconds(pid) for what, pid in pids.items()}
    manager.listen(seconds)
    passed = time.monotonic() - begin
    return {what: (cpu_seconds(pid) - before[what]) / passed for what, pid in pids.items()}
