"""What every test gets, which tests are quick, how they are spread over workers, and the list at
the end of what could not run.

A test that needs something of the machine says so: `@pytest.mark.needs("root", "unshare")`. Where
it is missing the test does not run, and the end of the run says which test, what it lacks and how
to get it. In CI that list must be empty: a hole there fails the run.
"""

from __future__ import annotations

import functools
import os
import shutil
import subprocess
from collections.abc import Callable

import pytest
import torch

from tests.kit.examples import load_profile
from tests.kit.machines import has_debians_python
from tests.kit.quick import forbid_processes, is_quick
from tests.kit.workers import WORKERS, spread


@functools.cache
def _can_boot() -> bool:
    """Whether systemd-nspawn can work here: a container without privileges may not mount."""
    programs = ("systemd-nspawn", "dbus-daemon", "unshare", "nsenter", "setpriv")
    trial = ["unshare", "--mount", "--pid", "--fork", "mount", "-t", "tmpfs", "tmpfs", "/mnt"]
    return all(map(shutil.which, programs)) and subprocess.run(trial).returncode == 0


# What a test may need: how to see whether it is there, and how to get it.
NEEDS: dict[str, tuple[Callable[[], bool], str]] = {
    "root": (lambda: os.geteuid() == 0, "run as root"),
    "unshare": (lambda: shutil.which("unshare") is not None, "apt-get install util-linux"),
    "mount": (lambda: shutil.which("mount") is not None, "apt-get install mount"),
    "ip": (lambda: shutil.which("ip") is not None, "apt-get install iproute2"),
    "git": (lambda: shutil.which("git") is not None, "apt-get install git"),
    "make": (lambda: shutil.which("make") is not None, "apt-get install make"),
    "systemd-analyze": (
        lambda: shutil.which("systemd-analyze") is not None,
        "apt-get install systemd",
    ),
    "machines": (
        _can_boot,
        "apt-get install systemd-container dbus libpam-systemd util-linux, and be allowed to mount",
    ),
    "debian-python": (
        has_debians_python,
        "apt-get install python3, and a .venv of a Python of the same version",
    ),
    "chromium": (lambda: shutil.which("chromium") is not None, "apt-get install chromium"),
    "disks": (
        lambda: bool(shutil.which("mkfs.ext4")) and os.path.exists("/dev/loop-control"),
        "apt-get install e2fsprogs mount, and a kernel with loop devices",
    ),
}


def pytest_configure(config: pytest.Config) -> None:
    load_profile(config.option.markexpr)
    # torch's threads wait for each other by spinning: where processes are as many as cores that
    # took 24 s for a file of tests that needs 2.5. Here, and in processes that tests start:
    torch.set_num_threads(1)
    os.environ.setdefault("OMP_NUM_THREADS", "1")


@pytest.hookimpl(tryfirst=True)  # before xdist reads the groups
def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    for item in items:
        for mark in item.iter_markers("needs"):
            lacking = [need for need in mark.args if not NEEDS[need][0]()]
            if lacking:
                hints = "; ".join(f"{need} ({NEEDS[need][1]})" for need in lacking)
                item.add_marker(pytest.mark.skip(reason=f"lacks {hints}"))
        if item.get_closest_marker("soak") is None and is_quick(item):
            item.add_marker("quick")
        if getattr(item.obj, "is_hypothesis_test", False):
            item.add_marker("property")
    if hasattr(config, "workerinput"):
        spread(items)


def pytest_collection_finish(session: pytest.Session) -> None:
    if session.config.option.markexpr == "quick":
        forbid_processes()


@pytest.hookimpl(optionalhook=True)  # where pytest runs without xdist
def pytest_xdist_auto_num_workers(config: pytest.Config) -> int:
    cores = len(os.sched_getaffinity(0))
    return cores if config.option.markexpr == "quick" else cores * WORKERS // 2


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    if skipped := terminalreporter.stats.get("skipped"):
        terminalreporter.section("could not run here")
        for report in skipped:
            terminalreporter.line(f"{report.nodeid}: {report.longrepr[2]}")


def pytest_sessionfinish(session: pytest.Session) -> None:
    reporter = session.config.pluginmanager.get_plugin("terminalreporter")
    holes = reporter is not None and reporter.stats.get("skipped")
    if os.environ.get("CI") and holes and session.exitstatus == pytest.ExitCode.OK:
        session.exitstatus = pytest.ExitCode.TESTS_FAILED
