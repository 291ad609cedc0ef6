"""How the machine is, and what its ranks weigh."""

from __future__ import annotations

import os
import subprocess
import sys
from os import scandir

import pytest

from tests.kit.conditions import wait_until
from wiiiiided.cluster.monitoring import host_stats as module
from wiiiiided.cluster.monitoring.host_stats import HostStats, ProcessScan, Usage
from wiiiiided.cluster.shim import protocol


class Times(tuple[float, ...]):
    """As psutil has them: user, nice, system, idle, iowait, irq, softirq, steal, guest ones."""

    idle = property(lambda self: self[3])
    iowait = property(lambda self: self[4])
    guest = property(lambda self: self[8])
    guest_nice = property(lambda self: self[9])


@pytest.fixture
def now(monkeypatch: pytest.MonkeyPatch) -> dict[str, float]:
    """A clock, and what the kernel has counted."""
    told = {"at": 0.0, "busy": 0.0, "idle": 0.0, "swapped": 0.0}

    def cpu_times() -> Times:
        return Times((told["busy"], 0, 0, told["idle"], 0, 0, 0, 0, 0, 0))

    class Swap:
        sout = 0

        @property
        def sin(self) -> int:
            return int(told["swapped"])

    monkeypatch.setattr(module.psutil, "cpu_times", cpu_times)
    monkeypatch.setattr(module.psutil, "swap_memory", Swap)
    return told


def test_the_use_of_the_processor_is_known_from_the_second_look_on(now: dict[str, float]) -> None:
    machine = HostStats(lambda: now["at"])
    assert machine.look().cpu is None
    now.update(at=1.0, busy=0.5, idle=1.5)
    assert machine.look().cpu == pytest.approx(0.25)
    now.update(at=2.0, busy=2.5)
    assert machine.look().cpu == 1.0
    assert machine.look().cpu == 1.0  # twice within a tick


def test_a_mean_over_minutes_is_not_shown_as_now(now: dict[str, float]) -> None:
    machine = HostStats(lambda: now["at"])
    machine.look()
    now.update(at=1000.0, busy=500.0, idle=500.0)
    assert machine.look().cpu is None


def test_swapping_is_noticed_and_goes_again(now: dict[str, float]) -> None:
    machine = HostStats(lambda: now["at"])
    now.update(swapped=1e12)  # of before the first look
    assert not machine.look().swapping
    now.update(at=5.0, swapped=1e12 + 50e6)
    assert machine.look().swapping
    now.update(at=10.0)
    assert not machine.look().swapping


def test_memory_in_use_is_a_share(now: dict[str, float]) -> None:
    used = HostStats(lambda: now["at"]).look().memory_used
    assert used is not None
    assert 0 < used < 1


def test_a_process_weighs_with_its_children() -> None:
    nested = "import subprocess, sys; subprocess.run([sys.executable, '-c', 'input()'])"
    child = subprocess.Popen([sys.executable, "-c", nested], stdin=subprocess.PIPE)
    try:
        alone = ProcessScan()._stat(child.pid)
        assert alone is not None

        def both() -> bool:
            return usage(child.pid).memory > 1.5 * alone.memory

        wait_until(both, 30, "the child is there and weighed with its parent")
        assert usage(os.getpid()).memory > usage(child.pid).memory
    finally:
        child.communicate(b"\n", timeout=30)


def test_a_process_that_is_not_there_uses_nothing() -> None:
    assert ProcessScan().usage(1 << 22) is None


def test_a_process_that_was_started_at_another_time_is_another() -> None:
    ticks = protocol.start_ticks(os.getpid())
    assert ticks is not None
    assert ProcessScan().usage(os.getpid(), ticks) is not None
    assert ProcessScan().usage(os.getpid(), ticks + 1) is None


def test_the_processor_time_of_children_counts_when_they_have_ended_too() -> None:
    before = usage(os.getpid()).cpu_s
    burn = "import time\nwhile time.process_time() < 0.5: pass"
    subprocess.run([sys.executable, "-c", burn], check=True, timeout=60)
    assert usage(os.getpid()).cpu_s - before >= 0.45


def test_a_rank_with_any_number_of_processes_costs_so_many_files_and_no_more(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    read = 0

    def bomb(path: str) -> bytes:
        nonlocal read
        read += 1
        if path.endswith("children"):
            return b" ".join(b"%d" % (1000 + read * 50 + n) for n in range(50))
        return b"1 (a) b) " + b" ".join([b"1"] * 40)

    monkeypatch.setattr(module, "_content", bomb)
    own = os.getpid()
    monkeypatch.setattr(module.os, "scandir", lambda path: scandir(f"/proc/{own}/task"))
    look = ProcessScan(files=200)
    assert look.usage(5) is not None  # what was seen of the first
    assert read <= 200
    while not look.is_over:
        look.usage(5)
    assert read <= 200
    assert look.usage(6) is None


def usage(pid: int) -> Usage:
    found = ProcessScan().usage(pid)
    assert found is not None
    return found
