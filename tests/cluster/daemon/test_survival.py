"""The daemon dies, at any moment: jobs go on, nothing acknowledged is lost, nothing runs twice."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import sys
from pathlib import Path

import pytest

from tests.cluster.daemon.test_jobs import FOREVER, alive, running
from tests.kit.conditions import wait_until
from tests.kit.daemons import PrivateDaemon, private_daemon
from wiiiiided.cluster.client import ClientError
from wiiiiided.cluster.rpc.messages import Cancel
from wiiiiided.cluster.shim import protocol
from wiiiiided.domain.spec import Restart


def until(go: Path) -> str:
    """A script that says that it is up, and runs until `go` is there."""
    return (
        "import pathlib, time; print('up', flush=True)\n"
        f"while not pathlib.Path({str(go)!r}).exists(): time.sleep(0.01)\n"
    )


def test_a_running_job_does_not_notice_and_is_adopted() -> None:
    with private_daemon() as daemon:
        job = daemon.submit(FOREVER, workers=2)
        pids = running(daemon, job)
        for end in (signal.SIGKILL, signal.SIGTERM):
            daemon.stop(end)
            assert all(map(alive, pids))
            daemon.start()
            wait_until(lambda: daemon.pids(job) == pids, 30, "the same ranks are known again")
            assert daemon.state(job) == "running"
            assert daemon.view(job).attempt == 1
        assert "goes on running without the daemon" in daemon.said()
        assert daemon.client.cancel(job, now=True).state == "cancelled"
        assert not [pid for pid in pids if alive(pid)]


def test_a_job_that_ended_meanwhile_is_known_with_its_code(tmp_path: Path) -> None:
    go = tmp_path / "go"
    with private_daemon() as daemon:
        job = daemon.submit(until(go) + "raise SystemExit(17)")
        running(daemon, job)
        daemon.kill()
        go.touch()
        daemon.no_process_is_left()
        daemon.start()
        view = daemon.end_of(job)
        assert (view.state, view.code) == ("failed", 17)
        assert view.attempt == 1


def test_the_queue_and_its_order_survive() -> None:
    with private_daemon() as daemon:
        first = daemon.submit(FOREVER)
        running(daemon, first)
        low = daemon.submit("print(1)", policy={"priority": 10})
        high = daemon.submit("print(2)", policy={"priority": 90})
        held = daemon.submit("print(3)", hold=True)
        before = daemon.client.jobs().jobs
        daemon.kill()
        daemon.start()
        assert [(v.id, v.state) for v in daemon.client.jobs().jobs] == [
            (v.id, v.state) for v in before
        ]
        daemon.client.cancel(first, now=True)
        assert daemon.end_of(low).state == daemon.end_of(high).state == "done"
        assert daemon.view(high).ended_at <= daemon.view(low).ended_at  # type: ignore[operator]
        assert daemon.client.cancel(held).state == "cancelled"


def test_a_cancel_that_was_under_way_is_finished() -> None:
    stubborn = "import signal; signal.signal(signal.SIGTERM, signal.SIG_IGN)\n" + FOREVER
    with private_daemon() as daemon:
        job = daemon.submit(stubborn, policy={"grace_s": 4.0})
        pids = running(daemon, job)
        with daemon.client._open(Cancel(job), 30.0):
            wait_until(lambda: daemon.state(job) == "stopping", 30, "it is being stopped")
        daemon.kill()
        daemon.start()
        assert daemon.end_of(job).state == "cancelled"
        assert not [pid for pid in pids if alive(pid)]


def test_a_killed_shim_takes_its_ranks_along_and_the_job_is_ended() -> None:
    with private_daemon() as daemon:
        job = daemon.submit(FOREVER, workers=2)
        pids = running(daemon, job)
        claim = json.loads((daemon.paths.jobs / str(job) / "1" / protocol.CLAIM).read_text())
        os.kill(claim["pid"], signal.SIGKILL)
        view = daemon.end_of(job)
        assert view.state == "failed"
        assert "killed" in view.why
        assert not [pid for pid in pids if alive(pid)]
        assert daemon.end_of(daemon.submit("print(1)")).state == "done"


def test_a_shim_killed_while_the_daemon_was_away_is_cleaned_up_and_restarted_by_policy() -> None:
    with private_daemon() as daemon:
        restart = Restart(max=1, on=("node-lost",), backoff_s=0.1)
        job = daemon.submit(FOREVER, policy={"restart": restart})
        pids = running(daemon, job)
        claim = json.loads((daemon.paths.jobs / str(job) / "1" / protocol.CLAIM).read_text())
        daemon.kill()
        os.kill(claim["pid"], signal.SIGKILL)
        daemon.start()
        wait_until(lambda: daemon.view(job).attempt == 2, 30, "a second attempt")
        running(daemon, job)
        assert not [pid for pid in pids if alive(pid)]
        daemon.client.cancel(job, now=True)


def test_another_process_with_the_shims_pid_is_not_taken_for_it() -> None:
    with private_daemon() as daemon:
        job = daemon.submit(FOREVER)
        pids = running(daemon, job)
        path = daemon.paths.jobs / str(job) / "1" / protocol.CLAIM
        claim = json.loads(path.read_text())
        daemon.kill()
        os.kill(claim["pid"], signal.SIGKILL)
        wait_until(lambda: not any(map(alive, pids)), 30, "the ranks died with their shim")
        # As if the number had been given to another process: to this very one.
        path.write_text(json.dumps({**claim, "pid": os.getpid()}))
        daemon.start()
        view = daemon.end_of(job)
        assert view.state == "failed"
        assert view.attempt == 1


def test_a_restarted_machine_is_recognised() -> None:
    with private_daemon() as daemon:
        job = daemon.submit(FOREVER)
        running(daemon, job)
        path = daemon.paths.jobs / str(job) / "1" / protocol.CLAIM
        claim = json.loads(path.read_text())
        daemon.kill()
        os.kill(claim["pid"], signal.SIGKILL)
        daemon.no_process_is_left()
        path.write_text(json.dumps({**claim, "boot_id": "of an earlier boot"}))
        daemon.start()
        view = daemon.end_of(job)
        assert (view.state, view.why) == ("failed", "the machine restarted while it ran")


def test_a_shim_of_a_newer_format_is_left_to_run_and_its_end_is_noticed(tmp_path: Path) -> None:
    go = tmp_path / "go"
    with private_daemon() as daemon:
        job = daemon.submit(until(go))
        running(daemon, job)
        daemon.kill()
        path = daemon.paths.jobs / str(job) / "1" / protocol.CLAIM
        path.write_text(json.dumps({**json.loads(path.read_text()), "format": 99, "new": 1}))
        daemon.start()
        assert "of format 99" in daemon.said()
        go.touch()
        assert daemon.end_of(job).state == "done"
        assert daemon.view(job).attempt == 1


@pytest.mark.needs("root", "mount")
def test_an_end_that_cannot_be_stored_is_stored_when_there_is_room_again() -> None:
    import subprocess

    with private_daemon(start=False) as daemon:
        state = daemon.home / "state"
        state.mkdir()
        mount = ["mount", "-t", "tmpfs", "-o", "size=2m", "tmpfs", str(state)]
        subprocess.run(mount, check=True)
        try:
            daemon.start()
            go = daemon.home / "go"
            job = daemon.submit(until(go))
            running(daemon, job)
            filler = state / "filler"
            with filler.open("wb", buffering=0) as file, contextlib.suppress(OSError):
                while file.write(b"x" * 1024):
                    pass
            refused = _fill_the_store(daemon)
            assert "the disk is full" in refused
            assert "nothing was changed" in refused
            go.touch()
            wait_until(lambda: bool(daemon.client.status().problem), 30, "it says so")
            assert daemon.state(job) == "running"  # what is not stored has not happened
            filler.unlink()
            assert daemon.end_of(job).state == "done"
            assert daemon.client.status().problem == ""
            daemon.stop()
        finally:
            subprocess.run(["umount", str(state)], check=True)


def _fill_the_store(daemon: PrivateDaemon) -> str:
    """Hold and release until the store refuses; what it said."""
    with contextlib.suppress(ClientError):
        for _ in range(5000):
            daemon.submit("print(1)", hold=True)
    try:
        daemon.submit("print(1)", hold=True)
    except ClientError as problem:
        return str(problem)
    raise AssertionError("the full disk was never noticed")


# ---- a SIGKILL at every change of state

PLACES = ("before-commit", "after-commit", "after-actions")


def the_plan(daemon: PrivateDaemon, marks: Path) -> list[int]:
    """Two jobs that go through most states; which of them were acknowledged."""
    note = (
        "import os, pathlib\ne = os.environ\n"
        "mark = f\"{e['WIIIIIDE_JOB_ID']}-{e['WIIIIIDE_ATTEMPT']}-{e['RANK']}\"\n"
        f"pathlib.Path({str(marks)!r}, mark).mkdir()\n"
    )
    known = []
    with contextlib.suppress(ClientError):
        known.append(daemon.submit(note, workers=2))
        fails_once = note + "raise SystemExit(int(e['WIIIIIDE_ATTEMPT']) == 1)"
        again = Restart(max=1, backoff_s=0.05)
        after = {"after": (known[0],), "restart": again}
        known.append(daemon.submit(fails_once, policy=after))
        held = daemon.submit(note, hold=True)
        known.append(held)
        daemon.client.release(held)
        daemon.end_of(held)
    return known


def crash_once(where: str, number: int) -> bool:
    """One run of the plan with a crash in it; False when the plan ended before the crash."""
    program = (sys.executable, "-m", "tests.cluster.daemon.crashing", where, str(number))
    with private_daemon(start=False, program=program) as daemon:
        marks = daemon.home / "marks"
        marks.mkdir()
        daemon.start(wait=False)
        with contextlib.suppress(AssertionError):
            wait_until(daemon.answers, 30, "it answers")
        known = the_plan(daemon, marks)
        crashed = daemon.stop() == -signal.SIGKILL  # unless it ends in good order
        daemon.program = [sys.executable, "-m", "wiiiiided.cluster.daemon.main"]
        daemon.start()
        stored = {view.id for view in daemon.client.jobs(ended=100).jobs}
        assert set(known) <= stored, f"acknowledged and lost: {known}, stored {stored}"
        for job in sorted(stored):
            if daemon.state(job) == "held":
                daemon.client.cancel(job)
                continue
            view = daemon.end_of(job)
            assert view.state == "done", (where, number, view, daemon.said())
            assert view.attempt == (2 if job == 2 else 1), (where, number, view, daemon.said())
            ran = sorted(p.name for p in marks.iterdir() if p.name.startswith(f"{job}-"))
            expected = [
                f"{job}-{n}-{rank}"
                for n in range(1, view.attempt + 1)
                for rank in range(view.workers)
            ]
            # A second start of the same attempt would have failed at its mark: state is not done.
            assert ran == expected, (where, number, ran)
        return crashed


def crash_at_changes(where: str, first: int, step: int) -> None:
    number = first
    while crash_once(where, number):
        number += step
    assert number > 8, "the plan has more changes than that"


@pytest.mark.timeout(400)
@pytest.mark.parametrize("where", PLACES)
def test_a_crash_at_a_change_loses_nothing_and_runs_nothing_twice(where: str) -> None:
    """Every second change at one place of it; the others are in the next test."""
    crash_at_changes(where, 1 + PLACES.index(where), 2 * len(PLACES))


@pytest.mark.soak
@pytest.mark.parametrize("where", PLACES)
def test_a_crash_at_every_place_of_every_change_loses_nothing_either(where: str) -> None:
    crash_at_changes(where, 1, 1)
