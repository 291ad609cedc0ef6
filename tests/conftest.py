"""What every test gets, and the list at the end of what could not run.

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

import hypothesis
import pytest

from tests.kit.machines import has_debians_python

# How long an example takes says nothing on a machine that does something else meanwhile.
hypothesis.settings.register_profile("patient", deadline=None)
hypothesis.settings.load_profile("patient")


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

_holes: list[str] = []


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    for item in items:
        for mark in item.iter_markers("needs"):
            lacking = [need for need in mark.args if not NEEDS[need][0]()]
            if lacking:
                hints = "; ".join(f"{need} ({NEEDS[need][1]})" for need in lacking)
                _holes.append(f"{item.nodeid}: lacks {hints}")
                item.add_marker(pytest.mark.skip(reason=f"lacks {hints}"))


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    if _holes:
        terminalreporter.section("could not run here")
        for hole in _holes:
            terminalreporter.line(hole)


def pytest_sessionfinish(session: pytest.Session) -> None:
    skipped = session.config.pluginmanager.get_plugin("terminalreporter")
    holes = len(_holes) or (skipped is not None and len(skipped.stats.get("skipped", [])))
    if os.environ.get("CI") and holes and session.exitstatus == pytest.ExitCode.OK:
        session.exitstatus = pytest.ExitCode.TESTS_FAILED
