"""A machine that cannot just now, most of all for want of room: jobs wait, and none is failed for
it; a cancel need not wait."""

from __future__ import annotations

import asyncio
import errno
import io
import os
import sys
import tarfile
from collections.abc import Awaitable, Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.kit.conditions import wait_until
from tests.kit.daemons import PrivateDaemon, join_cluster, make_cluster, private_daemon
from tests.kit.disks import fill, small_disk
from tests.kit.shims import PATIENCE_S, Attempt
from wiiiiided.cluster.allocation import launcher, prepare, shim_process, workers
from wiiiiided.cluster.allocation.archive_cache import Archives
from wiiiiided.cluster.allocation.job_dirs import JobDirs
from wiiiiided.cluster.allocation.prepare import NodeShortage, Preparer
from wiiiiided.cluster.allocation.shim_order import HostContext
from wiiiiided.cluster.allocation.spawn import JobAccount
from wiiiiided.cluster.allocation.workers import Workers
from wiiiiided.cluster.control import events as e
from wiiiiided.cluster.control.job import Attempt as Placed
from wiiiiided.cluster.control.job import Job, Owner, Starting
from wiiiiided.cluster.peering.messages import Assignment
from wiiiiided.cluster.shim import protocol
from wiiiiided.cluster.system.settings import Settings
from wiiiiided.cluster.system.threads import in_thread
from wiiiiided.domain.rank_layout import AllocationSpec, Layout
from wiiiiided.domain.spec import JobSpec, Run

FULL = OSError(errno.ENOSPC, "No space left on device")
ARCHIVE = "ab" * 32
Fetch = Callable[[Archives], Awaitable[None]]


class Member:
    """A member without a coordinator: real Workers; each fetch is the next of `fetches`."""

    def __init__(self, folder: Path, *fetches: Fetch) -> None:
        self.fetches = list(fetches)
        self.reports: list[Any] = []
        (folder / "state").mkdir()
        user = JobAccount.this()
        here = HostContext("b", user, sys.executable, {}, os.getuid())
        self.archives = Archives(folder / "state" / "archives")
        self.job_dirs = JobDirs(folder / "jobs", user)
        preparer = Preparer(self.archives, here, self._fetch)
        self.workers = Workers(
            *(self.job_dirs, self.archives, here, Settings, preparer),
            bring=None,
            report=self.reports.append,
            clock=lambda: 0.0,
        )

    async def _fetch(self, digest: str) -> None:
        assert digest == ARCHIVE
        await self.fetches.pop(0)(self.archives)

    async def until(self, condition: Callable[[], bool]) -> None:
        async with asyncio.timeout(PATIENCE_S):
            while not condition():
                await asyncio.sleep(0.002)

    async def report(self) -> Any:
        """The first one."""
        await self.until(lambda: bool(self.reports))
        return self.reports[0]


def given() -> Assignment:
    placed = Placed(1, Layout((AllocationSpec("b", 0, 0, 1, 1),)), 0.0)
    spec = JobSpec("test", Run(("python", "-c", "pass")))
    owner = Owner("a", 0, "root")
    return Assignment(Job(7, spec, owner, ARCHIVE, 0.0, Starting(0.0), attempt=placed), "")


async def full(archives: Archives) -> None:
    raise FULL


async def whole(archives: Archives) -> None:
    archives.path(ARCHIVE).write_bytes(b"")


async def endless(archives: Archives) -> None:
    """Most of an archive, and then nothing more."""
    with archives.receive(ARCHIVE, 1 << 20) as upload:
        upload.take(b"x" * 1000)
        await asyncio.Event().wait()


def once(problem: OSError, real: Callable[..., Any]) -> Callable[..., Any]:
    """`real`, but the first call fails."""
    calls = iter([problem])

    def called(*given: Any, **options: Any) -> Any:
        if (found := next(calls, None)) is not None:
            raise found
        return real(*given, **options)

    return called


@pytest.fixture
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(workers, "LATER_S", 0.01)
    monkeypatch.setattr(launcher, "LATER_S", 0.01)


# ---- before the start


def prepared(member: Member) -> Any:
    async def scene() -> Any:
        member.workers.prepare(given(), 1)
        try:
            return await member.report()
        finally:
            await member.workers.close()

    return asyncio.run(scene())


@pytest.mark.usefixtures("quick")
def test_an_archive_for_which_there_is_no_room_is_fetched_again_later(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    member = Member(tmp_path, full, full, whole)
    assert isinstance(prepared(member), e.WorkersPrepared)
    said = [record.getMessage() for record in caplog.records if "waits" in record.getMessage()]
    (line,) = said
    assert line.startswith(
        "job 7 waits: its working directory cannot be kept on b now: No space left on device"
    )


@pytest.mark.usefixtures("quick")
@pytest.mark.parametrize("number", [errno.ENOSPC, errno.EDQUOT, errno.EMFILE])
def test_a_directory_that_cannot_be_made_now_is_made_later(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, number: int
) -> None:
    member = Member(tmp_path, whole)
    problem = OSError(number, os.strerror(number))
    monkeypatch.setattr(member.job_dirs, "keep", once(problem, member.job_dirs.keep))
    assert isinstance(prepared(member), e.WorkersPrepared)


@pytest.mark.usefixtures("quick")
@pytest.mark.parametrize("number", [errno.EMFILE, errno.ENOMEM, errno.EAGAIN])
def test_an_interpreter_that_cannot_be_run_now_is_run_later(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, number: int
) -> None:
    problem = OSError(number, os.strerror(number))
    monkeypatch.setattr(prepare, "spawn_named", once(problem, prepare.spawn_named))
    assert isinstance(prepared(Member(tmp_path, whole)), e.WorkersPrepared)


def test_what_does_not_pass_is_still_said_at_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    member = Member(tmp_path, whole)
    problem = PermissionError(errno.EACCES, "Permission denied")
    monkeypatch.setattr(member.job_dirs, "keep", once(problem, member.job_dirs.keep))
    found = prepared(member)
    assert isinstance(found, e.WorkersEnded)
    assert found.reason == "its directory cannot be made: Permission denied"


def test_an_archive_is_not_fetched_three_times_in_a_row_for_want_of_room(tmp_path: Path) -> None:
    member = Member(tmp_path, full)
    with pytest.raises(NodeShortage, match="cannot be kept on b now: No space left on device"):
        asyncio.run(member.workers.preparer.get(given().job))


# ---- at the start: whatever is raised, the allocation starts later, or has ended


async def no_thread(archives: Archives) -> None:
    raise RuntimeError("can't start new thread")


async def defect(archives: Archives) -> None:
    raise RuntimeError("a defect")


def started(member: Member) -> Any:
    """What is reported of an allocation that is told to start, until nothing of it is left."""

    async def scene() -> Any:
        member.workers.start(given(), 1)
        await member.until(lambda: bool(member.reports) and not member.workers.shims)
        await member.workers.close()
        return member.reports[-1]

    return asyncio.run(scene())


def test_an_exception_before_the_start_is_the_end_of_the_allocation(tmp_path: Path) -> None:
    """Not an allocation without a follower, which neither starts, ends nor can be cancelled."""
    found = started(Member(tmp_path, defect))
    assert isinstance(found, e.WorkersEnded)
    assert found.code == 1
    assert found.reason == "a defect kept it from being started: RuntimeError('a defect')"


@pytest.mark.usefixtures("quick")
def test_a_machine_without_threads_or_descriptors_starts_it_later(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    member = Member(tmp_path, no_thread, whole)
    problem = OSError(errno.EMFILE, "Too many open files")
    monkeypatch.setattr(launcher, "order_for", once(problem, launcher.order_for))
    found = started(member)
    assert isinstance(found, e.WorkersEnded)
    assert "can't start new thread" in caplog.text
    assert "job 7 waits: it cannot be started on b now: Too many open files" in caplog.text
    assert "defect" not in caplog.text


# ---- a stop


def stopped_while(member: Member, is_under_way: Callable[[], bool]) -> e.WorkersEnded:
    """An allocation that is stopped before its archive is here."""

    async def scene() -> Any:
        member.workers.start(given(), 1)
        await member.until(is_under_way)
        member.workers.stop(given().job, 1, 10.0, "cancelled by ada")
        try:
            return await member.report()
        finally:
            await member.workers.close()

    found = asyncio.run(scene())
    assert isinstance(found, e.WorkersEnded)
    return found


def test_a_stop_does_not_wait_for_an_archive_and_leaves_nothing_of_it(tmp_path: Path) -> None:
    member = Member(tmp_path, endless)
    place = member.archives.directory
    found = stopped_while(member, lambda: bool(os.listdir(place)))
    assert (found.code, found.reason) == (0, "it was stopped before it began")
    assert os.listdir(place) == []


def test_a_stop_does_not_wait_for_room(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    found = stopped_while(Member(tmp_path, full), lambda: "waits" in caplog.text)
    assert found.code == 0
    assert "No space left on device" in found.reason


def test_an_archive_that_is_being_kept_is_kept_before_the_fetch_ends() -> None:
    """Else its file would be closed under the thread that writes it to the disk."""
    steps: list[str] = []

    class Upload:
        def finish(self) -> None:
            steps.append("begun")
            wait_until(lambda: "cancelled" in steps, PATIENCE_S, "it is cancelled")
            steps.append("kept")

    async def scene() -> None:
        upload: Any = Upload()
        task = asyncio.ensure_future(in_thread(upload.finish))
        while "begun" not in steps:
            await asyncio.sleep(0.002)
        task.cancel()
        steps.append("cancelled")
        await asyncio.gather(task, return_exceptions=True)
        steps.append("over")
        assert task.cancelled()

    asyncio.run(scene())
    assert steps == ["begun", "cancelled", "kept", "over"]


def test_a_shim_that_cannot_be_killed_now_is_killed_later(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A machine without a process to spare at the one moment must not leave it stopping."""
    tries: list[int] = []

    def killed(pid: int, user: JobAccount) -> None:
        tries.append(pid)
        if len(tries) < 3:
            raise OSError(errno.EAGAIN, "Resource temporarily unavailable")

    monkeypatch.setattr(shim_process, "ENFORCE_S", 0.01)
    monkeypatch.setattr(shim_process, "ENFORCE_AGAIN_S", 0.01)
    monkeypatch.setattr(shim_process, "end_process", killed)

    async def scene() -> None:
        member = Member(tmp_path)
        shim = shim_process.Shim(member.job_dirs, 7, 1, lambda: None, lambda: 0.0)
        shim.stop(0.0, "cancelled by ada")
        shim.stop(1000.0, "told again")  # has not more time
        await asyncio.sleep(0.05)
        assert tries == []  # there is no process yet to be killed
        ticks = protocol.start_ticks(os.getpid())
        shim._claim = protocol.ShimClaim(os.getpid(), ticks or 0, protocol.boot_id(), "")
        await member.until(lambda: len(tries) == 3)
        shim._over = True

    asyncio.run(scene())


# ---- real disks


@pytest.fixture
def small(tmp_path: Path) -> Iterator[Path]:
    with small_disk(tmp_path / "small", 512) as place:
        yield place


def packed(folder: Path) -> Path:
    path = folder / "archive.tar"
    with tarfile.open(path, "w") as tar:
        for name, kibibytes in (("first", 100), ("second", 300)):
            entry = tarfile.TarInfo(name)
            entry.size = kibibytes << 10
            tar.addfile(entry, io.BytesIO(bytes(entry.size)))
    return path


def waits_for_room(attempt: Attempt) -> bool:
    return any("No space left on device" in text for text in attempt.texts(stream="note"))


@pytest.mark.needs("root", "mount")
def test_a_working_directory_waits_for_room_and_leaves_nothing_half_unpacked(
    tmp_path: Path, small: Path
) -> None:
    (small / "filler").write_bytes(bytes(300 << 10))
    work = str(small / "work")
    with Attempt(tmp_path / "job", ["ls"], work=work) as attempt:
        attempt.start(archive=packed(tmp_path))
        wait_until(lambda: waits_for_room(attempt), PATIENCE_S, "it says so")
        wait_until(lambda: os.listdir(small) == ["filler"], PATIENCE_S, "nothing is left")
        (small / "filler").unlink()
        assert attempt.end().code == 0
        assert attempt.texts() == ["first", "second"]
        assert len(attempt.texts(stream="note")) == 1


@pytest.mark.needs("root", "mount")
@pytest.mark.parametrize("grace_s", [0, 1000])
def test_a_stop_is_obeyed_while_a_working_directory_waits_for_room(
    tmp_path: Path, small: Path, grace_s: int
) -> None:
    fill(small)
    with Attempt(tmp_path / "job", ["ls"], work=str(small / "work")) as attempt:
        attempt.start(archive=packed(tmp_path))
        listener = attempt.listen()
        wait_until(lambda: waits_for_room(attempt), PATIENCE_S, "it says so")
        listener.send(do="stop", grace_s=grace_s, reason="changed my mind")
        end = attempt.end()
        assert (end.code, end.codes, end.stopped) == (143, {}, "changed my mind")
        assert os.listdir(small) == ["filler"]


@pytest.fixture
def cluster() -> Iterator[tuple[PrivateDaemon, PrivateDaemon]]:
    """b keeps archives and jobs on disks of its own, which are small."""
    with private_daemon() as a, private_daemon(start=False) as b:
        b.paths.state.mkdir()
        with small_disk(b.paths.state / "archives", 512), small_disk(b.paths.jobs, 512):
            b.start()
            make_cluster([a])
            join_cluster(a, b, "b", "127.0.0.3")
            yield a, b
            b.stop()
            b.no_process_is_left()


@pytest.mark.needs("root", "mount")
@pytest.mark.parametrize(("disk", "nodes"), [("archives", 1), ("jobs", 2)])
def test_jobs_on_a_member_whose_disk_is_full_wait_and_none_is_failed(
    cluster: tuple[PrivateDaemon, PrivateDaemon], tmp_path: Path, disk: str, nodes: int
) -> None:
    a, b = cluster
    filler = fill(b.paths.jobs if disk == "jobs" else b.paths.state / "archives")
    work = tmp_path / "work"
    work.mkdir()
    (work / "data").write_bytes(os.urandom(100 << 10))
    use = ("b",) if nodes == 1 else ()

    def complaints() -> int:
        said = b.said()  # an archive leaves some room, for the state is on that disk as a rule
        return said.count("No space left on device") + said.count("would be left on the disk")

    def submitted() -> int:
        before = complaints()
        job = a.submit("print(1)", nodes=nodes, use=use, work=work)
        wait_until(lambda: complaints() > before, 60, "b says so")
        assert a.state(job) == "starting"
        return job

    assert a.client.cancel(submitted()).state == "cancelled"
    job = submitted()
    filler.unlink()
    assert a.end_of(job).state == "done"
    assert "Traceback" not in b.said()
