"""A full disk under the state: jobs can be cancelled all the same, and what is shown is true."""

from __future__ import annotations

import asyncio
import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from tests.cluster.connections import run
from tests.cluster.requesting import ADA, Coordinator, coordinator
from tests.kit.conditions import wait_until
from tests.kit.daemons import private_daemon
from tests.kit.disks import fill, small_disk
from tests.kit.shims import PATIENCE_S, Attempt
from wiiiiided.cluster.control.actions import StopWorkers
from wiiiiided.cluster.rpc import messages as m
from wiiiiided.cluster.shim import protocol
from wiiiiided.cluster.state import disk_reserve
from wiiiiided.cluster.state.disk_reserve import Reserve
from wiiiiided.cluster.state.store import StateStore, StoreError

FULL = "cannot write /state.sqlite: the disk is full"
FOREVER = "import time\nprint('begun', flush=True)\ntime.sleep(1000)"
KIBIBYTES = 24 << 10


@contextmanager
def no_room(site: Coordinator, *, but_the_reserve: bool) -> Iterator[None]:
    """Nothing can be stored; or only while the reserve is released."""
    real = site.store.commit

    def commit(*given: Any) -> None:
        if site.store.reserve.is_kept or not but_the_reserve:
            raise StoreError(FULL)
        real(*given)

    site.store.commit = commit  # type: ignore[method-assign]
    yield
    site.store.commit = real  # type: ignore[method-assign]
    site.controller.tick()


def stopped(site: Coordinator) -> list[int]:
    return [action.id for action in site.actions if isinstance(action, StopWorkers)]


async def until(condition: Any) -> None:
    async with asyncio.timeout(PATIENCE_S):
        while not condition():
            await asyncio.sleep(0.002)


@pytest.mark.parametrize("now", [False, True])
def test_a_cancel_is_recorded_with_the_room_that_is_kept_for_it(tmp_path: Path, now: bool) -> None:
    async def scene() -> None:
        with coordinator(tmp_path, alone=True) as site:
            job = site.submit()
            site.start(job)
            with no_room(site, but_the_reserve=True):
                asked = asyncio.ensure_future(site.one(m.Cancel(job, now), ADA))
                await until(lambda: stopped(site) == [job])
                assert site.store.job(job).state == "stopping"  # type: ignore[union-attr]
                site.store.reserve.keep()  # as if there had been room for a moment
                site.end(job)
                view = await asked
            assert (view.state, view.why) == ("cancelled", "cancelled by ada")
            assert site.store.reserve.is_kept  # again

    run(scene())


def test_where_not_even_that_helps_it_is_ended_and_not_yet_recorded(tmp_path: Path) -> None:
    async def scene() -> None:
        with coordinator(tmp_path, alone=True) as site:
            job, queued = site.submit(), site.submit()
            site.start(job)
            with no_room(site, but_the_reserve=False):
                asked = asyncio.ensure_future(site.one(m.Cancel(job, True), ADA))
                await until(lambda: stopped(site) == [job])
                site.end(job)
                view = await asked
                said = f"ended (cancelled by ada), not yet recorded: {FULL}"
                assert (view.state, view.why) == ("stopping", said)
                again = await site.one(m.Cancel(job), ADA)  # the same request gets the same answer
                assert again.why == said
                gone = await site.one(m.Cancel(queued), ADA)
                assert gone.why == said
                listed = await site.one(m.ListJobs())
                assert {one.state for one in listed.jobs} == {"stopping"}
                assert listed.problem == FULL
                assert (await site.one(m.Why(job))).problem == FULL
                refused = await site.one(m.Requeue(job), ADA)
                assert isinstance(refused, m.Refusal)
            states = [site.job(number).state for number in (job, queued)]
            assert states == ["cancelled", "cancelled"]
            assert site.controller.unrecorded == {}
            assert (await site.one(m.ListJobs())).problem == ""

    run(scene())


def test_an_end_that_is_not_stored_yet_is_not_shown_as_running(tmp_path: Path) -> None:
    async def scene() -> None:
        with coordinator(tmp_path, alone=True) as site:
            job, next_one = site.submit(), site.submit()
            site.start(job)
            with no_room(site, but_the_reserve=True):  # which is for cancels alone
                site.end(job)
                (first, second) = (await site.one(m.ListJobs())).jobs
                assert (first.id, first.state) == (job, "stopping")
                assert first.why == f"ended (done), not yet recorded: {FULL}"
                assert (second.id, second.state) == (next_one, "queued")
                assert site.store.reserve.is_kept
            assert site.job(job).state == "done"
            assert site.job(next_one).state == "starting"

    run(scene())


def test_a_reserve_is_made_when_there_is_room_and_only_then(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    kept = Reserve(tmp_path)
    assert not kept.is_kept
    monkeypatch.setattr(disk_reserve, "ROOM", 1 << 60)
    kept.keep()
    assert not kept.is_kept
    monkeypatch.undo()
    kept.keep()
    assert (tmp_path / "reserve").stat().st_blocks * 512 >= disk_reserve.BYTES
    assert Reserve(tmp_path).is_kept
    assert kept.release()
    assert not kept.release()
    (tmp_path / "reserve").write_bytes(b"not all of it")
    assert not Reserve(tmp_path).is_kept


# ---- real disks


@pytest.mark.needs("root", "mount")
def test_a_state_on_a_full_disk_is_opened_with_what_was_kept(tmp_path: Path) -> None:
    with small_disk(tmp_path / "state", KIBIBYTES) as place:
        StateStore(place).close()
        fill(place)
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(Reserve, "release", lambda kept: False)
            with pytest.raises(StoreError, match="the disk is full"):
                StateStore(place)
        store = StateStore(place)
        assert not store.reserve.is_kept
        assert store.reserve.trouble == ""  # for as long as it is not used
        fill(place)
        assert store.reserve.trouble.startswith(f"the disk of {place} is full")
        store.close()


@pytest.mark.needs("root", "mount")
def test_an_end_is_written_on_a_disk_that_was_filled_meanwhile(tmp_path: Path) -> None:
    command = ["sh", "-c", "echo begun; sleep 1000"]
    with (
        small_disk(tmp_path / "small", 512) as place,
        Attempt(place / "job", command) as attempt,
    ):
        attempt.start()
        listener = attempt.listen()
        wait_until(lambda: attempt.texts() == ["begun"], PATIENCE_S, "it runs")
        fill(place)
        listener.send(do="stop", grace_s=0, reason="changed my mind")
        assert attempt.end().stopped == "changed my mind"
        assert protocol.ROOM not in os.listdir(attempt.path)


@pytest.mark.needs("root", "mount")
def test_jobs_are_cancelled_on_a_full_disk(tmp_path: Path) -> None:
    with (
        private_daemon(start=False) as daemon,
        small_disk(daemon.paths.state, KIBIBYTES) as state,
        small_disk(daemon.paths.jobs, 4 << 10) as jobs,
    ):
        daemon.start()
        first, second = (daemon.submit(FOREVER, cores=1) for _ in range(2))
        for job in (first, second):
            daemon.wait_for(job, "running")
        fillers = [fill(place) for place in (state, jobs)]
        assert "is full" in daemon.client.jobs().problem
        assert "is full" in daemon.client.why(first).problem
        assert "is full" in daemon.client.snapshot().problem
        assert daemon.client.cancel(first, now=True).state == "cancelled"
        daemon.kill()
        daemon.start()  # and a daemon starts there
        assert daemon.client.cancel(second).state == "cancelled"
        for filler in fillers:
            filler.unlink()
        daemon.stop()
        daemon.no_process_is_left()
        assert "Traceback" not in daemon.said()
