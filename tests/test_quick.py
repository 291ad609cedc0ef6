"""Which tests are quick is seen from their code; a process they start all the same fails them."""

from __future__ import annotations

import functools
import os
import subprocess
import sys
from collections.abc import Callable

import pytest

from tests.kit import daemons, quick
from tests.kit.daemons import PrivateDaemon, private_daemon
from tests.kit.ranks import run_ranks


def starts_a_rank() -> None:
    run_ranks(print, 1)


def starts_a_daemon_in_a_context() -> None:
    with private_daemon():
        pass


def starts_one_through_a_module() -> None:
    daemons.make_cluster([])
    daemons.private_cluster()


def starts_one_through_a_class(daemon: PrivateDaemon) -> None:
    PrivateDaemon.start(daemon)


def forks() -> None:
    os.fork()


def starts_in_a_function_inside() -> Callable[[], None]:
    def inside() -> None:
        starts_a_rank()

    return inside


def starts_nothing() -> None:
    assert starts_nothing.__name__


@pytest.mark.parametrize(
    "start",
    [
        *(starts_a_rank, starts_a_daemon_in_a_context, starts_one_through_a_module, forks),
        *(starts_one_through_a_class, starts_in_a_function_inside, starts_in_a_function_inside()),
        *(functools.partial(starts_a_rank), {"one": [starts_a_rank]}, PrivateDaemon),
    ],
    # Not repr: it has addresses, and the workers of a run must collect the same names.
    ids=lambda start: getattr(start, "__name__", type(start).__name__),
)
def test_a_test_from_which_a_process_is_reached_is_not_quick(start: object) -> None:
    assert quick.starts(start)


def test_a_test_that_reaches_none_is_quick(request: pytest.FixtureRequest) -> None:
    assert not quick.starts(starts_nothing)
    assert request.node.get_closest_marker("quick")


def test_a_fixture_counts_as_the_test_does(starter: None, request: pytest.FixtureRequest) -> None:
    assert not request.node.get_closest_marker("quick")


@pytest.fixture
def starter() -> None:
    assert subprocess.run(["true"]).returncode == 0


OVERLOOKED = """
import multiprocessing, os, subprocess, sys
from tests.kit import quick
quick.forbid_processes()
subprocess.run(["true"], check=True)  # a program of others is none of ours
for start in (
    lambda: subprocess.run([sys.executable, "-c", ""]),
    lambda: subprocess.run(["wiiiiided"]),
    os.fork,
    multiprocessing.get_context("forkserver").Process(target=print).start,
):
    try:
        start()
    except BaseException as refused:
        assert "a quick test started a process" in str(refused), refused
    else:
        raise SystemExit(f"{start} was let through")
"""


def test_a_process_that_a_quick_test_starts_all_the_same_fails_it() -> None:
    subprocess.run([sys.executable, "-c", OVERLOOKED], check=True)
