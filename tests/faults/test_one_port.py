"""Ranks behind a daemon's one port: they reach each other through it and listen nowhere.

Two machines are pretended: a port mux on 127.0.0.1 and one on 127.0.0.2, each with directories of
its own. Ranks find each other by a FileStore, so what is at stake is the links alone.
"""

from __future__ import annotations

import contextlib
import os
import signal
import socket
import threading
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import psutil
import pytest
import torch
import torch.distributed as dist

from tests.faults.test_late import Lines
from tests.kit import data
from tests.kit.conditions import wait_until
from tests.kit.faults import failure_of, make_group
from tests.kit.leaks import Footprint
from tests.kit.networks import tcp_of
from tests.kit.port_mux import Port
from tests.kit.ranks import Outcome, Rank, note, run_ranks, watch_ranks
from wiiiiided.backend.engine import connect_hosts
from wiiiiided.backend.net import handoff_listener

JOB, ATTEMPT = 7, 2
KEY = bytes(range(32))
DEADLINE_S = 10.0
PATIENCE_S = 50.0
LATE_S = 6.0


@dataclass(frozen=True)
class Place:
    """What a rank is told of its machine."""

    endpoint: str
    directory: str


@pytest.fixture
def ports(tmp_path: Path) -> Iterator[dict[str, Port]]:
    with contextlib.ExitStack() as stack:
        found = {}
        for letter, address in (("a", "127.0.0.1"), ("b", "127.0.0.2")):
            found[letter] = stack.enter_context(Port(tmp_path / letter, address))
            found[letter].attempt(JOB, ATTEMPT, KEY)
        yield found
    left = [path.name for path in tmp_path.rglob("door-*")]
    assert not left, "an endpoint was left behind"


def places(ports: dict[str, Port]) -> dict[str, Place]:
    return {
        letter: Place(f"{port.address}:{port.number}", str(port.job_dirs.attempt(JOB, ATTEMPT)))
        for letter, port in ports.items()
    }


def enter_machine(me: Rank, where: dict[str, Place]) -> Place:
    """Put this rank on the machine of its letter."""
    place = where[data.hosts[me.rank]]
    os.environ.update(
        WIIIIIDE_DOOR=place.endpoint,
        WIIIIIDE_JOB_ID=str(JOB),
        WIIIIIDE_ATTEMPT=str(ATTEMPT),
        WIIIIIDE_ATTEMPT_DIR=place.directory,
        WIIIIIDE_DAEMON_UID=str(os.getuid()),
    )
    return place


def sums(me: Rank) -> list[float]:
    """A small and a large exchange."""
    found = []
    for size in (8, 1_000_000):
        x = torch.full((size,), float(me.rank + 1))
        dist.all_reduce(x)
        found.append(float(x[-1]))
    return found


def listeners() -> list[Any]:
    found = psutil.Process().net_connections("inet")
    return [one.laddr for one in found if one.status == psutil.CONN_LISTEN or not one.raddr]


def exchange(me: Rank, where: dict[str, Place]) -> Any:
    place = enter_machine(me, where)
    before = Footprint.before()
    make_group(me, 30.0)
    found = sums(me), listeners(), sorted({there for _, there in tcp_of(os.getpid())})
    endpoints = [name for name in os.listdir(place.directory) if name.startswith("door-")]
    dist.barrier()
    dist.destroy_process_group()
    return *found, len(endpoints), Footprint.now().leaked_since(before)


@pytest.mark.parametrize("tls", ["off", "on"])
@pytest.mark.parametrize("hosts", ["ab", "aab", "abab"])
def test_ranks_reach_each_other_through_the_one_port_and_listen_nowhere(
    ports: dict[str, Port], hosts: str, tls: str
) -> None:
    env = {"WIIIIIDE_TLS": tls}
    values = run_ranks(exchange, hosts, places(ports), backend=None, env=env)
    total = sum(range(1, len(hosts) + 1))
    for rank, (found, listening, peers, endpoints, leaks) in enumerate(values):
        assert found == [total, total]
        assert listening == []
        assert all(peer.startswith("127.0.0.") for peer in peers)
        assert peers
        assert endpoints == hosts.count(hosts[rank])
        assert leaks == []
    for port in ports.values():
        wait_until(lambda port=port: port.stages() == (0, 0, 0), PATIENCE_S, "all passed on")  # type: ignore[misc]


def test_ranks_of_one_machine_need_no_endpoint(ports: dict[str, Port]) -> None:
    values = run_ranks(exchange, "aa", places(ports), backend=None)
    assert [(value[1], value[2], value[3]) for value in values] == [([], [], 0)] * 2


# -- a daemon that restarts ----


class Restart:
    """Given as `during`: at a rank's note the daemons go, at the next they come back."""

    def __init__(self, ports: dict[str, Port]) -> None:
        self._ports, self._seen = ports, set[str]()

    def __call__(self, outcomes: list[Outcome], elapsed_s: float) -> None:
        notes = {str(value) for outcome in outcomes for _, value in outcome.notes}
        for word in sorted(notes - self._seen):
            self._seen.add(word)
            done = Path(word.partition(" ")[2])
            if word.startswith("start"):
                done.touch()  # before: ranks that meet through it look for this
            for port in self._ports.values():
                (port.stop if word.startswith("stop") else port.start)()
            done.touch()


def told(me: Rank, word: str) -> None:
    """Have the daemons stopped or started, and wait until all ranks know that they are."""
    done = Path(me.folder, word)
    if me.rank == 0:
        note(f"{word} {done}")
    wait_until(done.exists, PATIENCE_S, word)


def two_groups(me: Rank, where: dict[str, Place]) -> Any:
    enter_machine(me, where)
    make_group(me, 30.0)
    first = sums(me)
    told(me, "stop")
    second = sums(me)  # connections that stand do not notice
    dist.destroy_process_group()
    if me.rank == 0:  # the daemons come back while the ranks already try
        threading.Timer(1.0, note, [f"start {Path(me.folder, 'start')}"]).start()
    make_group(me, 30.0, "second store")
    return first, second, sums(me), Path(me.folder, "start").exists()


def test_a_daemon_that_restarts_disturbs_no_connection_and_is_waited_for(
    ports: dict[str, Port],
) -> None:
    values = run_ranks(two_groups, "ab", places(ports), backend=None, during=Restart(ports))
    assert values == [([3.0, 3.0], [3.0, 3.0], [3.0, 3.0], True)] * 2


def late_daemon(me: Rank, where: dict[str, Place]) -> Any:
    enter_machine(me, where)
    os.environ["WIIIIIDE_STALL_WARNING_S"] = "0.3"
    lines = Lines()
    # The rank that waits for it says why; the other's time is not up before.
    failure = failure_of(make_group, me, 50.0 if me.rank else LATE_S)
    return failure, lines.said


def test_a_daemon_that_does_not_come_back_is_named_with_host_and_address(
    ports: dict[str, Port],
) -> None:
    where = places(ports)
    ports["b"].stop()
    try:
        values = run_ranks(late_daemon, "ab", where, backend=None)
    finally:
        ports["b"].start()
    host = socket.gethostname()
    for failure, _ in values:
        assert failure.kind == "PeerLate", failure
        assert f"rank 0 on {host} to rank 1 on {host}" in failure.text
        assert f"the daemon at {where['b'].endpoint}: Connection refused" in failure.text
        assert "Does it run on that machine?" in failure.text
        assert failure.took_s < LATE_S + DEADLINE_S
    assert any("It is tried again until the group's timeout" in line for line in values[0][1])


# -- refused connections ----


def impatient(me: Rank, where: dict[str, Place], timeout_s: float = 30.0) -> Any:
    enter_machine(me, where)
    handoff_listener.READY_S = 0.5  # type: ignore[misc]
    connect_hosts.TURN_S = 1.0  # type: ignore[misc]
    before = Footprint.before()
    failure = failure_of(make_group, me, timeout_s)
    return failure, Footprint.now().leaked_since(before)


def test_machines_with_different_keys_refuse_each_other_and_say_so(ports: dict[str, Port]) -> None:
    ports["b"].attempt(JOB, ATTEMPT, bytes(32))
    for failure, leaks in run_ranks(impatient, "ab", places(ports), backend=None):
        assert failure.kind in ("HostError", "PeerLost"), failure
        assert "the daemon refuses it: it does not run this attempt of the job" in failure.text
        assert failure.took_s < 5 * DEADLINE_S
        assert leaks == []


def test_an_attempt_that_is_over_on_one_machine_admits_no_connection(
    ports: dict[str, Port],
) -> None:
    ports["b"].live.clear()
    ports["a"].live.clear()
    for failure, leaks in run_ranks(impatient, "ab", places(ports), backend=None):
        assert "it does not run this attempt of the job" in failure.text
        assert leaks == []


def test_without_its_key_a_rank_says_so_and_all_stop(ports: dict[str, Port]) -> None:
    (ports["b"].job_dirs.attempt(JOB, ATTEMPT) / "key").unlink()
    for failure, leaks in run_ranks(impatient, "ab", places(ports), backend=None):
        assert failure.kind == "HostError", failure
        assert "which the daemon wrote for this attempt: No such file" in failure.text
        assert failure.took_s < DEADLINE_S
        assert leaks == []


def die_before_connecting(me: Rank, where: dict[str, Place]) -> Any:
    if me.rank == 1:

        def fatal(*_: Any) -> None:
            time.sleep(0.1)
            os.kill(os.getpid(), signal.SIGKILL)

        connect_hosts.LinkBuilder.start = fatal  # type: ignore[method-assign]
    return impatient(me, where)


def test_a_rank_that_has_died_behind_its_endpoint_is_named(
    ports: dict[str, Port], tmp_path: Path
) -> None:
    outcomes = watch_ranks(die_before_connecting, "ab", places(ports), backend=None)
    for left in tmp_path.rglob("door-*"):  # a killed process cannot
        left.unlink()
    failure, leaks = outcomes[0].value
    assert failure.kind == "PeerLost", failure
    assert "rank 1 " in failure.text
    assert "is not there yet, or has ended" in failure.text
    assert leaks == []
    assert failure.took_s < 5 * DEADLINE_S
