"""What most of these tests share: a machine, and three that are a cluster. wiiiiided is their
service, ada may use it, bob not."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.kit.fleet import Fleet
from tests.kit.machines import Machine
from tests.machines.cluster import Cluster
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


@pytest.fixture(scope="session")
def founded() -> Iterator[Cluster]:
    with Fleet("abc", disk=STATE) as fleet:
        cluster = Cluster(fleet)
        cluster.found()
        yield cluster


@pytest.fixture
def cluster(founded: Cluster) -> Iterator[Cluster]:
    """The shared cluster, and after the test in order again."""
    yield founded
    founded.reset()
