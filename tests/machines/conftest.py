"""What most of these tests share: a machine, and three that are a cluster. wiiiiided is their
service, ada may use it, bob not. The cluster runs on Debian's own Python, the single machine on
that of the tests: what only one of the two does shows here."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import pytest

from tests.kit.fleet import Fleet
from tests.kit.machines import Machine
from tests.machines.cluster import Cluster
from tests.machines.shared import Shared
from tests.machines.site import Site

STATE = ("/var/lib/wiiiiide", "/var/lib/wiiiiide-jobs")


@contextmanager
def _installed() -> Iterator[Site]:
    with Machine("m1", disk=STATE) as machine:
        machine.wiiiiide("service", "install")
        for name in ("ada", "bob"):
            machine.run("useradd", "--create-home", name)
        machine.run("usermod", "--append", "--groups", "wiiiiide", "ada")
        yield Site(machine)


@contextmanager
def _founded() -> Iterator[Cluster]:
    with Fleet("abc", disk=STATE, debian=True) as fleet:
        cluster = Cluster(fleet)
        cluster.found()
        yield cluster


@pytest.fixture(scope="session")
def sites() -> Iterator[Shared[Site]]:
    shared = Shared(_installed, Site.reset)
    yield shared
    shared.close()


@pytest.fixture
def site(sites: Shared[Site]) -> Iterator[Site]:
    """The shared machine, and after the test in order again."""
    with sites.lent() as site:
        yield site


@pytest.fixture(scope="session")
def clusters() -> Iterator[Shared[Cluster]]:
    shared = Shared(_founded, Cluster.reset)
    yield shared
    shared.close()


@pytest.fixture
def cluster(clusters: Shared[Cluster]) -> Iterator[Cluster]:
    """The shared cluster, and after the test in order again."""
    with clusters.lent() as cluster:
        yield cluster
