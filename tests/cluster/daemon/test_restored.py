"""A daemon whose state was restored from an older copy: it ends what it does not know, loses no
files of it, and gives no number twice."""

from __future__ import annotations

import asyncio
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

from msgspec.structs import replace

from tests.cluster.daemon.test_full_disk import Member, given
from tests.cluster.daemon.test_jobs import FOREVER, alive, running
from tests.kit.conditions import wait_until
from tests.kit.daemons import PrivateDaemon, private_cluster, private_daemon
from wiiiiided.cluster.allocation.job_dirs import JobDirs
from wiiiiided.cluster.allocation.lifecycle import Allocation, Following
from wiiiiided.cluster.allocation.spawn import JobAccount
from wiiiiided.domain.spec import Restart

PATIENCE_S = 60.0


class Copy:
    """Of a daemon's state, taken while it is stopped."""

    def __init__(self, daemon: PrivateDaemon, where: Path) -> None:
        self._daemon, self._where = daemon, where
        daemon.stop()
        shutil.copytree(daemon.paths.state, where, ignore=_jobs_of(daemon))
        daemon.start()

    def restore(self) -> None:
        """As if all that happened since had not; jobs and their files stay as they are."""
        self._daemon.kill()
        state = self._daemon.paths.state
        for path in state.iterdir():
            if path == self._daemon.paths.jobs:
                continue
            shutil.rmtree(path) if path.is_dir() else path.unlink()
        shutil.copytree(self._where, state, dirs_exist_ok=True)
        self._daemon.start()


def _jobs_of(daemon: PrivateDaemon) -> Callable[[str, list[str]], list[str]]:
    def ignored(directory: str, names: list[str]) -> list[str]:
        return [name for name in names if Path(directory, name) == daemon.paths.jobs]

    return ignored


def test_a_job_that_the_queue_never_knew_is_ended_and_its_files_stay(tmp_path: Path) -> None:
    with private_daemon() as daemon:
        first = daemon.submit("pass")
        daemon.end_of(first)
        copy = Copy(daemon, tmp_path / "copy")
        job = daemon.submit(f"open('result', 'w').write('of weeks'); {FOREVER}")
        pids = running(daemon, job)
        copy.restore()
        wait_until(lambda: not any(map(alive, pids)), PATIENCE_S, "its ranks have ended")
        again = daemon.submit("pass")
        assert again == job + 1
        assert daemon.end_of(again).state == "done"
        daemon.stop()
        daemon.start()  # its number is behind the next one now: that does not make it old
        assert daemon.end_of(daemon.submit("pass")).state == "done"
        assert f"jobs {job} (1) have files, and this queue never knew them" in daemon.said()
        work = daemon.paths.jobs / str(job) / "files" / "work"
        assert (work / "result").read_text() == "of weeks"


ALONE = """
import fcntl, os, pathlib, time
lock = open("lock", "w")
fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)  # no other process is in this directory
print("up", flush=True)
while not pathlib.Path({go!r}).exists():
    if os.environ["WIIIIIDE_ATTEMPT"] == "1" and pathlib.Path({fail!r}).exists():
        raise SystemExit(1)
    time.sleep(0.01)
"""


def test_an_attempt_that_the_queue_forgot_ends_before_the_next_begins(tmp_path: Path) -> None:
    go, fail = tmp_path / "go", tmp_path / "fail"
    with private_daemon() as daemon:
        policy = {"restart": Restart(max=1, backoff_s=0.1)}
        job = daemon.submit(ALONE.format(go=str(go), fail=str(fail)), policy=policy)
        running(daemon, job)
        copy = Copy(daemon, tmp_path / "copy")
        fail.touch()
        wait_until(lambda: daemon.view(job).attempt == 2, PATIENCE_S, "the second attempt")
        daemon.wait_for(job, "running")
        running(daemon, job)
        (before,) = daemon.pids(job)
        copy.restore()
        wait_until(lambda: bool(set(daemon.pids(job)) - {before, None}), PATIENCE_S, "a new rank")
        assert not alive(before)
        go.touch()
        view = daemon.end_of(job)
        assert (view.state, view.attempt) == ("done", 2)


def test_a_member_keeps_the_files_of_jobs_that_the_coordinator_forgot(tmp_path: Path) -> None:
    with private_cluster(2) as (a, b):
        copy = Copy(a, tmp_path / "copy")
        wait_until(lambda: a.client.nodes().nodes[1].state == "idle", PATIENCE_S, "b is heard")
        job = b.submit("open('result', 'w').write('of weeks')", use=("b",))
        assert b.end_of(job).state == "done"
        copy.restore()
        wait_until(lambda: a.client.nodes().nodes[1].state == "idle", PATIENCE_S, "b is heard")
        again = b.submit("pass", use=("b",))
        assert again == job + 1
        assert b.end_of(again).state == "done"
        work = b.paths.jobs / str(job) / "files" / "work"
        assert (work / "result").read_text() == "of weeks"


class _Old:
    """A shim that takes its time to end."""

    was_stopped = False

    def stop(self, *_: object) -> None:
        self.was_stopped = True


def test_a_start_that_waits_for_a_forgotten_attempt_can_be_cancelled(tmp_path: Path) -> None:
    async def scene() -> None:
        member = Member(tmp_path)
        new = given()
        key, workers = (new.job.id, 1), member.workers
        old: Any = _Old()
        workers.shims[key] = old
        shim = Following(replace(new.job, submitted_at=-1.0))
        workers._allocations[key] = Allocation(key, "b", shim=shim)
        workers.start(new, 1)
        await member.until(lambda: old.was_stopped)
        workers.stop(new.job, 1, 0.0, "cancelled by ada")
        ended = await member.report()
        assert (ended.id, ended.attempt, ended.code) == (*key, 0)
        workers.shims.clear()
        await workers.close()
        assert len(member.reports) == 1

    asyncio.run(scene())


def test_files_of_another_job_of_that_number_are_set_aside(tmp_path: Path) -> None:
    job_dirs = JobDirs(tmp_path / "jobs", JobAccount.this())
    for content in ("first", "second"):
        job_dirs.make(3, 1)
        job_dirs.work(3).mkdir()
        (job_dirs.work(3) / "result").write_text(content)
        aside = job_dirs.set_aside(3)
        assert (aside / "files" / "work" / "result").read_text() == content
    assert job_dirs.numbers() == []
    assert sorted(path.name for path in job_dirs.root.iterdir()) == ["3-before-1", "3-before-2"]
