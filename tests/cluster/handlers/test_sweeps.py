"""Sweeps in the daemon: all jobs or none, one transaction, one owner, and every restart."""

from __future__ import annotations

import asyncio
import hashlib
import sqlite3
from pathlib import Path
from typing import Any

import msgspec
import pytest

from tests.cluster.connections import pair, run, until
from tests.cluster.control.world import World, spec
from tests.cluster.requesting import ADA, ROOT, Coordinator, coordinator
from wiiiiided.cluster.control import events as e
from wiiiiided.cluster.control.actions import StartWorkers
from wiiiiided.cluster.control.job import Job, Owner
from wiiiiided.cluster.rpc import messages as m
from wiiiiided.cluster.rpc.connection import Caller
from wiiiiided.cluster.state.store import StateStore
from wiiiiided.cluster.system.settings import Settings
from wiiiiided.domain.spec import Run

EVE = Caller(1001, "eve", False, "a")
FOLDER = b"x"


def sweep_of(many: int, *, base: Any = None, **rest: Any) -> m.SubmitSweep:
    jobs = tuple(m.SweepJob(base or spec("digits"), {"run.env.N": str(n)}) for n in range(many))
    return m.SubmitSweep(jobs, hashlib.sha256(FOLDER).hexdigest(), 1, **rest)


def has_folder(cluster: Coordinator) -> None:
    with cluster.archives.receive(hashlib.sha256(FOLDER).hexdigest(), 10) as upload:
        upload.take(FOLDER)
        upload.finish()


def test_all_jobs_are_queued_with_one_step_under_one_id(tmp_path: Path) -> None:
    async def scene() -> None:
        with coordinator(tmp_path) as cluster:
            has_folder(cluster)
            first = await cluster.one(m.Submit(spec(), sweep_of(1).archive, 1), ADA)
            swept = await cluster.one(sweep_of(4), ADA)
            assert (swept.id, swept.jobs) == (first.id + 1, (2, 3, 4, 5))
            assert swept.why.startswith("is being started on")
            listed = (await cluster.one(m.ListJobs(sweep=swept.id))).jobs
            assert [(job.id, job.name, job.sweep) for job in listed] == [
                (2, "digits N=0", "s2"),
                (3, "digits N=1", "s2"),
                (4, "digits N=2", "s2"),
                (5, "digits N=3", "s2"),
            ]
            assert listed[0].setting == {"run.env.N": "0"}
            assert listed[3].state == "queued"  # three nodes, and one has the first job
            assert (await cluster.one(m.ListJobs())).jobs[0].sweep == ""
            for no in (1, 3, 6, -1, 1 << 63):
                assert (await cluster.one(m.ListJobs(sweep=no))).code == 6

    run(scene())


def test_the_archive_is_asked_for_once(tmp_path: Path) -> None:
    async def scene() -> None:
        with coordinator(tmp_path) as cluster:
            here, there = await pair()
            await here.say(sweep_of(3))
            serving = asyncio.ensure_future(cluster.api.serve(there, ADA))
            assert isinstance(m.decode_answer(await here.message()), m.SendArchive)
            await here.send_blob(FOLDER)
            await here.end_blob()
            assert m.decode_answer(await here.message()) == m.Swept(
                1, (1, 2, 3), "is being started on a"
            )
            await serving

    run(scene())


def test_a_queue_without_room_for_all_takes_none(tmp_path: Path) -> None:
    async def scene() -> None:
        with coordinator(tmp_path) as cluster:
            has_folder(cluster)
            cluster.settings = Settings(queue=5)
            cluster.submit()
            no = await cluster.one(sweep_of(5), ADA)
            assert no.code == 1
            assert no.message == (
                "the queue has room for 4 of the sweep's 5 jobs (5 in all): none was queued"
            )
            assert list(cluster.controller.state.jobs) == [1]
            assert (await cluster.one(sweep_of(4), ADA)).jobs == (2, 3, 4, 5)
            assert "the queue is full" in (await cluster.one(sweep_of(1), ADA)).message

    run(scene())


@pytest.mark.parametrize(
    ("request_", "code", "told"),
    [
        (sweep_of(0), 3, "a sweep has 1 to 1,000 jobs"),
        (sweep_of(1001), 3, "a sweep has 1 to 1,000 jobs"),
        (sweep_of(2, base=spec(policy={"priority": 900})), 3, "policy.priority is not from 0"),
        (sweep_of(2, secrets={"KEY": "x"}), 3, "secrets that run.pass_env does not name"),
        (sweep_of(2, base=spec(resources={"nodes": (9, 9)})), 7, "needs 9 nodes"),
        (sweep_of(2, base=spec(policy={"after": (77,)})), 6, "there is no job 77"),
        (m.SubmitSweep((m.SweepJob(spec(), {}),), "ab" * 32, 1), 3, "1 to 16 keys"),
        (m.SubmitSweep((m.SweepJob(spec(), {"k": "v" * 5000}),), "ab" * 32, 1), 3, "4,096"),
        (
            m.SubmitSweep((m.SweepJob(spec(), {f"k{n}": "v" * 300 for n in range(16)}),), "x", 1),
            *(3, "keys included"),
        ),
    ],
)
def test_what_a_strange_client_sends_is_refused_whole(
    tmp_path: Path, request_: m.SubmitSweep, code: int, told: str
) -> None:
    async def scene() -> None:
        with coordinator(tmp_path) as cluster:
            has_folder(cluster)
            no = await cluster.one(request_, ADA)
            assert (no.code, told in no.message) == (code, True), no
            assert not cluster.controller.state.jobs
            assert cluster.store.next_id() == 1

    run(scene())


def test_a_disk_that_takes_half_of_it_has_taken_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def scene() -> None:
        with coordinator(tmp_path) as cluster:
            has_folder(cluster)
            put, left = cluster.store._put, 3

            def fills(job: Job) -> None:
                nonlocal left
                left -= 1
                if left < 0:
                    raise sqlite3.OperationalError("database or disk is full")
                put(job)

            monkeypatch.setattr(cluster.store, "_put", fills)
            no = await cluster.one(sweep_of(5), ADA)
            assert (no.code, "the disk is full; nothing was changed" in no.message) == (1, True)
            assert not cluster.controller.state.jobs
            assert not cluster.store.numbers()
            assert cluster.actions == []
            monkeypatch.undo()
            assert (await cluster.one(sweep_of(5), ADA)).jobs == (1, 2, 3, 4, 5)

    run(scene())


def test_each_job_gets_the_secrets_it_names_and_its_own_order(tmp_path: Path) -> None:
    async def scene() -> None:
        with coordinator(tmp_path) as cluster:
            has_folder(cluster)
            names = msgspec.structs.replace(spec(), run=Run(("python",), pass_env=("KEY",)))
            jobs = (m.SweepJob(names, {"k": "1"}), m.SweepJob(spec(), {"k": "2"}))
            archive = sweep_of(1).archive
            await cluster.one(m.SubmitSweep(jobs, archive, 1, {"KEY": "s3cret"}), ADA)
            assert cluster.store.secrets(1) == {"KEY": "s3cret"}
            assert cluster.store.secrets(2) == {}
            assert cluster.job(1).owner == cluster.job(2).owner == Owner("a", 1000, "ada")
            held = await cluster.one(sweep_of(2, hold=True), ADA)
            assert {cluster.job(number).state for number in held.jobs} == {"held"}

    run(scene())


def test_a_sweep_is_cancelled_in_one_step_by_its_owner(tmp_path: Path) -> None:
    async def scene() -> None:
        with coordinator(tmp_path) as cluster:
            has_folder(cluster)
            swept = await cluster.one(sweep_of(6), ADA)
            for number in (1, 2, 3):
                cluster.start(number)
            cluster.end(1)  # and the fourth begins
            no = await cluster.one(m.CancelSweep(swept.id), EVE)
            assert (no.code, "eve may not change it" in no.message) == (5, True)
            assert cluster.job(6).state == "queued"
            asked = asyncio.ensure_future(cluster.ask(m.CancelSweep(swept.id), ADA))
            await until(lambda: cluster.job(6).state == "cancelled", "the queued ones are over")
            assert [cluster.job(n).state for n in (2, 3, 4, 5)] == [
                *("stopping", "stopping", "stopping", "cancelled")
            ]
            before = [a.id for a in cluster.actions if isinstance(a, StartWorkers)]
            for number in (2, 3, 4):
                cluster.end(number, 143)
            answers = await asked
            assert [type(answer) for answer in answers] == [m.JobView] * 5 + [m.EndOfAnswers]
            assert [(view.id, view.state) for view in answers[:-1]] == [
                (number, "cancelled") for number in (2, 3, 4, 5, 6)
            ]
            assert [a.id for a in cluster.actions if isinstance(a, StartWorkers)] == before
            assert await cluster.ask(m.CancelSweep(swept.id), ROOT) == [m.EndOfAnswers()]
            assert cluster.controller._watchers == {}

    run(scene())


def test_a_sweep_is_there_after_a_restart_and_as_long_as_one_of_its_jobs(tmp_path: Path) -> None:
    async def scene() -> None:
        with coordinator(tmp_path) as cluster:
            has_folder(cluster)
            await cluster.one(sweep_of(3), ADA)
            await cluster.one(sweep_of(2), ADA)
            cluster.start(1)
            cluster.end(1)

    run(scene())
    store = StateStore(tmp_path / "state")
    try:
        assert [(job.id, job.state, job.name) for job in store.sweep(1)] == [
            (1, "done", "digits N=0"),
            (2, "starting", "digits N=1"),
            (3, "starting", "digits N=2"),
        ]
        store.forget([1])
        assert [job.id for job in store.sweep(1)] == [2, 3]
        assert [job.id for job in store.sweep(4)] == [4, 5]
    finally:
        store.close()


def test_a_job_of_before_there_were_sweeps_is_read(tmp_path: Path) -> None:
    world = World()
    number = world.submit()
    old = msgspec.to_builtins(world.job(number))
    del old["sweep"], old["setting"]
    job = msgspec.convert(old, Job)
    assert (job.sweep, job.setting, job.name) == (0, {}, "job")


def test_a_sweep_of_jobs_after_each_other_ends_as_a_whole() -> None:
    world = World()
    jobs = tuple(
        e.JobSubmitted(
            *(world.now, n, spec(policy={"after": (n - 1,) if n > 1 else ()}), Owner("a", 1, "x")),
            *("0" * 64, (n - 1,) if n > 1 else ()),
            sweep=1,
            setting={"k": str(n)},
        )
        for n in (1, 2, 3)
    )
    world.feed(e.SweepSubmitted(world.now, 1, jobs))
    world.started_on(1)
    world.feed(e.SweepCancelRequested(world.now, (1, 2, 3), "ada", True))
    assert [world.state_of(n) for n in (1, 2, 3)] == ["stopping", "cancelled", "cancelled"]
    world.ended_on(1, code=137)
    assert world.state_of(1) == "cancelled"
