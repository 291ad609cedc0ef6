"""Machines that come back to something else than they left: half-started allocations, a coordinator
restored from an old copy, a name that another machine has by now.

Two real daemons on one machine, each on a loopback address of its own.
"""

from __future__ import annotations

import shutil
import signal
import sys
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.cluster.daemon.slow_shims import may_begin
from tests.kit.conditions import wait_until
from tests.kit.daemons import (
    PrivateDaemon,
    join_cluster,
    node_states,
    private_cluster,
    private_daemon,
)
from wiiiiided.cluster.client.machines import settle
from wiiiiided.domain.spec import Restart

LOST_WITHIN_S = 5 * 12.0  # five times what a silent node may take to be noticed
STUBBORN = "import signal, time; signal.signal(signal.SIGTERM, signal.SIG_IGN); time.sleep(1000)"

Cluster = list[PrivateDaemon]


@pytest.fixture
def own() -> Iterator[Cluster]:
    with private_cluster(2) as daemons:
        yield daemons


def starts(daemon: PrivateDaemon, job: int) -> int:
    return sum(line.text.startswith("starting") for line in daemon.client.show(job).story)


def test_an_allocation_whose_shim_has_not_begun_when_its_daemon_dies_begins_all_the_same(
    own: Cluster,
) -> None:
    """The claim must not count as the coordinator's order: it still wants the allocation."""
    a, b = own
    b.stop()
    b.program = [sys.executable, "-m", "tests.cluster.daemon.slow_shims"]
    b.start()
    wait_until(lambda: node_states(a)["b"] != "lost", LOST_WITHIN_S, "b is heard")
    job = a.submit("print('begun')", use=("b",))
    wait_until(lambda: len(b.processes()) == 1, 60, "its shim is being started")
    b.kill()
    b.start()
    wait_until(lambda: len(b.processes()) == 2, 60, "another one is, by the next daemon")
    with may_begin(b.home):
        view = a.end_of(job)
        b.no_process_is_left()  # of two shims one came too late
    assert (view.state, view.why) == ("done", "done")
    assert starts(a, job) == 1
    assert a.output(job) == ["begun"]


def test_a_coordinator_that_goes_while_an_archive_is_fetched_costs_the_job_nothing(
    own: Cluster, tmp_path: Path
) -> None:
    a, b = own
    (tmp_path / "hello.py").write_text("print('hello')")
    assert b.process is not None
    b.process.send_signal(signal.SIGSTOP)
    try:
        job = a.submit(command=("python", "hello.py"), work=tmp_path, use=("b",))
        assert a.state(job) == "starting"  # and its order is on the way by now
        a.kill()
    finally:
        b.process.send_signal(signal.SIGCONT)
    tries = "cannot be fetched now"
    wait_until(lambda: b.said().count(tries) > 2, 60, "b has tried for longer than a moment")
    a.start()
    assert a.end_of(job).state == "done"
    assert a.output(job) == ["hello"]
    assert starts(a, job) == 1


@pytest.mark.parametrize("again", ["another job", "the same attempt"])
def test_a_number_that_is_given_anew_after_a_restore_is_not_taken_for_what_had_it(
    own: Cluster, tmp_path: Path, again: str
) -> None:
    """b has files of job 1, attempt 1: how that ended is not how this one does."""
    a, b = own
    (tmp_path / "run.py").write_text("import sys; print('first'); sys.exit(7)")
    fails = ("python", "run.py")
    same = again == "the same attempt"
    job = a.submit(command=fails, work=tmp_path, use=("b",), hold=True) if same else 0
    copy = tmp_path / "copy"
    a.stop()
    shutil.copytree(a.paths.state, copy)
    a.start()
    if same:
        a.client.release(job)
    else:
        job = a.submit(command=fails, work=tmp_path, use=("b",))
    first = a.end_of(job)
    assert first.code == 7
    for daemon in (b, a):
        daemon.stop()
    shutil.rmtree(a.paths.state)
    shutil.copytree(copy, a.paths.state)
    a.start()
    if same:
        a.client.release(job)
    else:
        assert a.submit("print('second')", use=("b",)) == job
    b.start()
    view = a.end_of(job)
    assert (view.state, a.output(job)) == (("failed", ["first"]) if same else ("done", ["second"]))
    assert view.ended_at is not None
    assert first.ended_at is not None
    assert view.ended_at > first.ended_at
    aside = list(b.paths.jobs.glob(f"{job}-before-*"))
    if same:
        assert "files of attempts that the queue does not remember are removed" in b.said()
    else:
        assert f"files of another job of that number are kept in {aside[0]}" in b.said()


def test_a_machine_that_leaves_by_force_has_ended_its_allocation_before_the_coordinator_is_told(
    own: Cluster,
) -> None:
    a, b = own
    job = a.submit(STUBBORN, use=("b",), policy={"grace_s": 2.0})
    a.wait_for(job, "running")
    leaving = threading.Thread(target=lambda: b.client.leave(force=True))
    leaving.start()
    view = a.end_of(job)
    left = b.processes()
    leaving.join(60)
    assert view.state == "failed"
    assert left == []


def test_a_machine_that_leaves_by_force_gets_no_other_job_meanwhile(own: Cluster) -> None:
    """What ended on it made room for the next of the queue, which was not told to end."""
    a, b = own
    first, second = (a.submit("import time; time.sleep(1000)", use=("b",)) for _ in range(2))
    a.wait_for(first, "running")
    assert a.state(second) == "queued"
    assert b.client.leave(force=True).role == "alone"
    settle(b.client.status, "alone")
    assert a.end_of(first).state == "failed"
    assert (a.state(second), starts(a, second)) == ("queued", 0)
    join_cluster(a, b, "b", "127.0.0.3")
    a.wait_for(second, "running")  # it is not drained any more
    a.client.cancel(second, now=True)


def test_a_machine_that_is_removed_has_ended_its_allocation_before_that_begins_elsewhere(
    own: Cluster, tmp_path: Path
) -> None:
    """Each attempt looks whether the one before is still there."""
    a, b = own
    script = f"""
import fcntl, os, sys, time
print("attempt", flush=True)
lock = open({str(tmp_path / "one-at-a-time")!r}, "w")
try:
    fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
except OSError:
    sys.exit(9)
while not os.path.exists({str(tmp_path / "go")!r}):
    time.sleep(0.02)
"""
    name = a.client.status().node.name
    a.client.drain(name, "so that it begins on b")
    restart = Restart(max=1, on=("node-lost",), backoff_s=0.0)
    job = a.submit(script, policy={"restart": restart})
    a.wait_for(job, "running")
    assert a.view(job).nodes == ("b",)
    a.client.resume(name)
    a.client.remove_node("b", force=True)
    assert b.processes() == []
    assert "b" not in node_states(a)
    (tmp_path / "go").touch()
    view = a.end_of(job)
    assert (view.state, view.nodes, view.attempt) == ("done", (name,), 2)


def test_an_allocation_that_ends_well_because_its_machine_leaves_has_not_done_its_work(
    own: Cluster,
) -> None:
    a, b = own
    script = "import signal, sys, time; signal.signal(signal.SIGTERM, lambda *_: sys.exit(0))\n"
    job = a.submit(f"{script}print('ready', flush=True)\ntime.sleep(1000)", use=("b",))
    wait_until(lambda: a.output(job) == ["ready"], 60, "it catches the signal")
    b.client.leave(force=True)
    view = a.end_of(job)
    assert view.state == "failed"
    assert "leaves the cluster" in view.why


@pytest.mark.soak
def test_a_removed_machine_ends_its_allocation_also_when_another_has_its_name(own: Cluster) -> None:
    a, b = own
    job = a.submit(STUBBORN, use=("b",), policy={"grace_s": 1.0})
    a.wait_for(job, "running")
    assert b.process is not None
    b.process.send_signal(signal.SIGSTOP)
    try:
        wait_until(lambda: node_states(a)["b"] == "lost", LOST_WITHIN_S, "b is lost")
        a.client.remove_node("b", force=True)
        with private_daemon() as other:
            join_cluster(a, other, "b", "127.0.0.5")
            assert b.processes()
            b.process.send_signal(signal.SIGCONT)
            b.no_process_is_left()
    finally:
        b.process.send_signal(signal.SIGCONT)
    assert a.state(job) == "failed"
