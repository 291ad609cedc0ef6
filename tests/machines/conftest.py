"""What most of these tests share: a machine, and three that are a cluster. wiiiiided is their
service, ada may use it, bob not. In `make test` the cluster runs on Debian's own Python and the
single machine on that of the tests, in `make soak` the other way round: what only one of the two
does shows here."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from typing import Any

import pytest

from tests.kit.fleet import Fleet
from tests.kit.machines import Machine
from tests.machines.cluster import Cluster
from tests.machines.shared import Shared
from tests.machines.site import Site

STATE = ("/var/lib/wiiiiide", "/var/lib/wiiiiide-jobs")


@contextmanager
def _installed(debian: bool) -> Iterator[Site]:
    with Machine("m1", disk=STATE, debian=debian) as machine:
        machine.wiiiiide("service", "install")
        for name in ("ada", "bob"):
            machine.run("useradd", "--create-home", name)
        machine.run("usermod", "--append", "--groups", "wiiiiide", "ada")
        yield Site(machine)


@contextmanager
def _founded(debian: bool) -> Iterator[Cluster]:
    with Fleet("abc", disk=STATE, debian=debian) as fleet:
        cluster = Cluster(fleet)
        cluster.found()
        yield cluster


def _pythons(usual: str, other: str) -> list[Any]:
    """Which of the two Pythons, as parameters of a fixture: whether it is Debian's."""
    return [
        pytest.param(usual == "debian", id=usual),
        pytest.param(other == "debian", id=other, marks=pytest.mark.soak),
    ]


@pytest.fixture(scope="session", params=_pythons("own", "debian"))
def sites(request: pytest.FixtureRequest) -> Iterator[Shared[Site]]:
    shared = Shared(partial(_installed, request.param), Site.reset)
    yield shared
    shared.close()


@pytest.fixture
def site(sites: Shared[Site]) -> Iterator[Site]:
    """The shared machine, and after the test in order again."""
    with sites.lent() as site:
        yield site


@pytest.fixture(scope="session", params=_pythons("debian", "own"))
def clusters(request: pytest.FixtureRequest) -> Iterator[Shared[Cluster]]:
    shared = Shared(partial(_founded, request.param), Cluster.reset)
    yield shared
    shared.close()


@pytest.fixture
def cluster(clusters: Shared[Cluster]) -> Iterator[Cluster]:
    """The shared cluster, and after the test in order again."""
    with clusters.lent() as cluster:
        yield cluster
