"""Upgrades: today's daemon after, and beside, the daemon of the previous release.

daemon.tar.xz is the daemon of commit c903191, before modules and classes got the names they have
now: its packages as they were, without the backend and the commands. Make it anew for a release:

    git archive TAG wiiiiided | tar -x -C DIR, keep what the daemon imports, tar -c | xz -9e
"""

from __future__ import annotations

import sys
import tarfile
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest

from tests.kit.conditions import wait_until
from tests.kit.daemons import PrivateDaemon, make_cluster, node_states, private_daemon

ARCHIVE = Path(__file__).with_name("daemon.tar.xz")
WAITS = """
import os, sys, time
print("up", os.environ["RANK"], flush=True)
while not os.path.exists(sys.argv[1]):
    time.sleep(0.02)
raise SystemExit(int(sys.argv[2]))
"""
# The ranks meet through the ports of both daemons: each proves that it has the attempt's key.
RING = """
import os
os.environ["WIIIIIDE_HOST_ID"] = os.environ["GROUP_RANK"]  # as if on two machines
import torch, torch.distributed as dist
dist.init_process_group("wiiiiide")
total = torch.ones(1000)
dist.all_reduce(total)
print("sum", int(total[0].item()))
dist.destroy_process_group()
"""

Program = list[str]


@pytest.fixture(scope="module")
def previous(tmp_path_factory: pytest.TempPathFactory) -> Program:
    """The command that starts the previous release's daemon; its shims come from there too."""
    directory = tmp_path_factory.mktemp("previous")
    with tarfile.open(ARCHIVE) as archive:
        archive.extractall(directory, filter="data")
    start = "from wiiiiided.daemon.main import main; main()"
    code = f"import sys; sys.path.insert(0, {str(directory)!r}); {start}"
    return [sys.executable, "-P", "-c", code]


def waiting(daemon: PrivateDaemon, go: Path, code: int = 0, nodes: int = 1) -> int:
    """A job that runs until `go` is there, and ends with this code."""
    command = ("python", "-c", WAITS, str(go), str(code))
    return daemon.submit(command=command, nodes=nodes, cores=1)


def up(daemon: PrivateDaemon, job: int, ranks: int = 1) -> list[int]:
    """The processes of a job, once each of its ranks has written its first line."""
    daemon.wait_for(job, "running")
    wait_until(lambda: len(daemon.output(job)) == ranks, 30, "every rank has written")
    return daemon.pids(job)


def upgrade(daemon: PrivateDaemon, now: Program) -> None:
    daemon.stop()
    daemon.program = now
    daemon.start()


def test_todays_daemon_takes_over_the_jobs_of_the_previous_release(
    previous: Program, tmp_path: Path
) -> None:
    go = tmp_path / "go"
    with private_daemon(start=False) as daemon:
        today, daemon.program = daemon.program, previous
        daemon.start()
        done = daemon.submit("print('before')")
        assert daemon.end_of(done).state == "done"
        ends, cancelled = waiting(daemon, go, code=17), waiting(daemon, tmp_path / "never")
        pids = [up(daemon, ends), up(daemon, cancelled)]
        held = daemon.submit("print('after')", hold=True)

        upgrade(daemon, today)

        assert [daemon.pids(ends), daemon.pids(cancelled)] == pids
        states = {view.id: (view.state, view.attempt) for view in daemon.client.jobs().jobs}
        assert states == {ends: ("running", 1), cancelled: ("running", 1), held: ("held", 0)}
        assert daemon.output(ends) == ["up 0"]
        assert daemon.client.cancel(cancelled).state == "cancelled"
        go.touch()
        view = daemon.end_of(ends)
        assert (view.state, view.code, view.attempt) == ("failed", 17, 1)
        daemon.client.release(held)
        assert daemon.end_of(held).state == "done"
        assert daemon.output(done) == ["before"]
        assert [line.text for line in daemon.client.show(done).story][-1] == "done"


@pytest.fixture(params=["coordinator", "member"])
def mixed(request: pytest.FixtureRequest, previous: Program) -> Iterator[list[PrivateDaemon]]:
    """A coordinator and a member, of which one is of the previous release."""
    with ExitStack() as stack:
        programs = [previous, None] if request.param == "coordinator" else [None, previous]
        daemons = [stack.enter_context(private_daemon(program=one)) for one in programs]
        make_cluster(daemons)
        yield daemons


def test_members_one_version_apart_run_jobs_together(
    mixed: list[PrivateDaemon], tmp_path: Path
) -> None:
    coordinator, member = mixed
    go = tmp_path / "go"
    first = waiting(member, go, nodes=2)
    cancelled = waiting(coordinator, tmp_path / "never", nodes=2)
    for job in (first, cancelled):
        assert len(up(member, job, ranks=2)) == 2
    assert sorted(coordinator.output(first)) == ["up 0", "up 1"]
    assert set(node_states(member).values()) == {"ok"}
    wait_until(lambda: measured(coordinator) == 2, 30, "both nodes have sent metrics")
    assert member.client.cancel(cancelled).state == "cancelled"
    go.touch()
    assert coordinator.end_of(first).state == "done"
    ring = member.submit(RING, nodes=2, cores=1)
    assert member.end_of(ring).state == "done", member.output(ring)
    assert member.output(ring) == ["sum 2", "sum 2"]


def measured(daemon: PrivateDaemon) -> int:
    """How many nodes the coordinator knows the load of."""
    snapshot = daemon.client.snapshot()
    return sum(node.cpu is not None for node in snapshot.nodes)
