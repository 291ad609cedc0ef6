"""The machine that most of these tests share: wiiiiided is its service, ada may use it, bob not."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.kit.machines import Machine
from tests.machines.site import Site

STATE = ("/var/lib/wiiiiide", "/var/lib/wiiiiide-jobs")


@pytest.fixture(scope="session")
def installed() -> Iterator[Site]:
    with Machine("m1", disk=STATE) as machine:
        machine.wiiiiide("service", "install")
        for name in ("ada", "bob"):
            machine.run("useradd", "--create-home", name)
        machine.run("usermod", "--append", "--groups", "wiiiiide", "ada")
        yield Site(machine)


@pytest.fixture
def site(installed: Site) -> Iterator[Site]:
    """The shared machine, and after the test in order again; also when it was left switched off."""
    yield installed
    if not installed.machine.is_on():
        installed.machine.boot()
    installed.reset()
