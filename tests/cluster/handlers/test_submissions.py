"""Submitting: once, within what one user and all may have, and without keeping others from it."""

from __future__ import annotations

import asyncio
import hashlib
from dataclasses import replace
from pathlib import Path
from typing import Any

import msgspec
import pytest

from tests.cluster.connections import answers, pair, run
from tests.cluster.control.world import spec
from tests.cluster.requesting import ADA, ROOT, Coordinator, coordinator
from wiiiiided.cluster.control import events as e
from wiiiiided.cluster.handlers import quota, uploads
from wiiiiided.cluster.rpc import messages as m
from wiiiiided.cluster.rpc.connection import Caller, RpcConnection
from wiiiiided.domain.exit_codes import BUSY, FAILED, INVALID, NO_SUCH

EVE = Caller(1001, "eve", False, "a")
DATA = b"bytes of an archive" * 100
SPEC = spec()


def digest(data: bytes) -> str:
    return hashlib.sha256(data).hexdigest()


def keep(cluster: Coordinator, data: bytes = DATA) -> str:
    """An archive that is here already."""
    with cluster.archives.receive(digest(data), len(data)) as upload:
        upload.take(data)
        upload.finish()
    return digest(data)


def submit(data: bytes = DATA, **rest: Any) -> m.Submit:
    return m.Submit(rest.pop("spec", SPEC), digest(data), len(data), hold=True, **rest)


async def sent(cluster: Coordinator, caller: Caller, data: bytes, **rest: Any) -> Any:
    """The last answer to a Submit whose archive is sent if it is wanted."""
    here, there = await pair()
    await here.say(submit(data, **rest))
    serving = asyncio.ensure_future(cluster.api.serve(there, caller))
    answer = m.decode_answer(await here.message())
    if isinstance(answer, m.SendArchive):
        await here.send_blob(data)
        await here.end_blob()
        answer = m.decode_answer(await here.message())
    await serving
    here.close()
    return answer


async def dawdling(cluster: Coordinator, caller: Caller, data: bytes) -> RpcConnection:
    """An upload that has begun; close it to end it."""
    here, there = await pair()
    await here.say(submit(data))
    serving = asyncio.ensure_future(cluster.api.serve(there, caller))
    serving.add_done_callback(lambda _: None)
    assert m.decode_answer(await here.message()) == m.SendArchive()
    return here


# ---- once


def test_a_submit_said_again_queues_nothing_more(tmp_path: Path) -> None:
    async def scene() -> None:
        with coordinator(tmp_path) as cluster:
            first = await sent(cluster, ADA, DATA, nonce="n1")
            assert await sent(cluster, ADA, DATA, nonce="n1") == first
            assert await cluster.one(m.FindSubmission("n1"), ADA) == first
            other = await sent(cluster, ADA, DATA, nonce="n2")
            without = [(await sent(cluster, ADA, DATA)).id for _ in range(2)]
            assert len({first.id, other.id, *without}) == 4
            assert len(cluster.controller.state.jobs) == 4

    run(scene())


def test_a_nonce_is_its_users_own(tmp_path: Path) -> None:
    async def scene() -> None:
        with coordinator(tmp_path) as cluster:
            first = await sent(cluster, ADA, DATA, nonce="n1")
            no = await cluster.one(m.FindSubmission("n1"), EVE)
            assert (no.code, no.message) == (NO_SUCH, "no job was queued by that request")
            assert (await sent(cluster, EVE, DATA, nonce="n1")).id != first.id
            no = await sent(cluster, ADA, DATA, nonce="n" * 65)
            assert (no.code, no.message) == (INVALID, "a nonce of more than 64 characters")

    run(scene())


def test_a_sweep_said_again_is_the_same_sweep(tmp_path: Path) -> None:
    async def scene() -> None:
        with coordinator(tmp_path) as cluster:
            keep(cluster)
            jobs = tuple(m.SweepJob(SPEC, {"run.env.LR": value}) for value in ("1", "2", "3"))
            sweep = m.SubmitSweep(jobs, digest(DATA), len(DATA), hold=True, nonce="n1")
            first = await cluster.one(sweep, ADA)
            assert await cluster.one(sweep, ADA) == first
            assert await cluster.one(m.FindSubmission("n1"), ADA) == first
            assert first.jobs == (first.id, first.id + 1, first.id + 2)
            assert len(cluster.controller.state.jobs) == 3
            cluster.settings = replace(cluster.settings, queue_per_user=5)
            no = await cluster.one(msgspec.structs.replace(sweep, nonce="n2"), ADA)
            assert "and a user may have 5 (limits.queue_per_user): none was queued" in no.message

    run(scene())


def test_two_that_come_at_once_with_one_nonce_are_one_job(tmp_path: Path) -> None:
    """A command that lost its connection asks again while its first request is still at work."""

    async def scene() -> None:
        with coordinator(tmp_path) as cluster:
            both = await asyncio.gather(*(sent(cluster, ADA, DATA, nonce="n1") for _ in range(2)))
            assert both[0].id == both[1].id
            assert len(cluster.controller.state.jobs) == 1

    run(scene())


def test_a_nonce_outlives_its_job_and_a_restart(tmp_path: Path) -> None:
    async def scene() -> None:
        with coordinator(tmp_path) as cluster:
            number = (await sent(cluster, ADA, DATA, nonce="n1")).id
            cluster.controller.ask(
                e.CancelRequested(cluster.controller.clock(), number, "ada", now=True)
            )
            cluster.store.forget([number])
        with coordinator(tmp_path) as cluster:
            again = await sent(cluster, ADA, DATA, nonce="n1")
            assert again == m.Submitted(number, "it is over, and no longer kept")

    run(scene())


# ---- of the queue


def test_one_user_cannot_have_all_of_the_queue(tmp_path: Path) -> None:
    async def scene() -> None:
        with coordinator(tmp_path) as cluster:
            cluster.settings = replace(cluster.settings, queue=5, queue_per_user=2)
            keep(cluster)
            first = await cluster.one(submit(), ADA)
            await cluster.one(submit(), ADA)
            no = await cluster.one(submit(), ADA)
            text = "ada has 2 jobs that are not over, and a user may have 2 (limits.queue_per_user)"
            assert (no.code, no.message) == (FAILED, text)
            assert (await cluster.one(submit(), EVE)).id
            await cluster.ask(m.Cancel(first.id, now=True), ADA)
            assert (await cluster.one(submit(), ADA)).id
            for _ in range(2):
                assert (await cluster.one(submit(), ROOT)).id  # as far as there is room for all
            no = await cluster.one(submit(), ROOT)
            assert no.message == "the queue is full: 5 jobs are not over"

    run(scene())


def test_a_requeue_is_no_way_past_the_limit_of_a_queue(tmp_path: Path) -> None:
    async def scene() -> None:
        with coordinator(tmp_path) as cluster:
            cluster.settings = replace(cluster.settings, queue=3, queue_per_user=1)
            keep(cluster)
            first = (await cluster.one(submit(), ADA)).id
            await cluster.ask(m.Cancel(first, now=True), ADA)
            second = (await cluster.one(submit(), ADA)).id
            no = await cluster.one(m.Requeue(first), ADA)
            text = "ada has 1 jobs that are not over, and a user may have 1 (limits.queue_per_user)"
            assert (no.code, no.message) == (FAILED, text)
            assert (await cluster.one(m.Requeue(first))).state == "starting"  # root may
            assert (await cluster.one(submit(), ROOT)).id
            await cluster.ask(m.Cancel(second, now=True), ADA)
            assert (await cluster.one(submit(), EVE)).id
            no = await cluster.one(m.Requeue(second))
            assert no.message == "the queue is full: 3 jobs are not over"
            cluster.start(first)
            assert (await cluster.one(m.Requeue(first), ADA)).id  # it is none more

    run(scene())


def test_the_texts_of_a_queue_have_an_end(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(quota, "QUEUE_BYTES", 40_000)
    large = spec(output={"collect": ["x" * 6000]})

    async def scene() -> None:
        with coordinator(tmp_path) as cluster:
            keep(cluster)
            assert (await cluster.one(submit(spec=large), ADA)).id
            no = await cluster.one(submit(spec=large), ADA)
            assert "of text, and a user's may have 9.8 KiB" in no.message
            assert no.hint == "put long texts into files of the working directory"
            for _ in range(5):
                assert (await cluster.one(submit(spec=large), ROOT)).id
            no = await cluster.one(submit(spec=large), ROOT)
            assert no.message == "the queue is full: its jobs have 39.1 KiB of text"

    run(scene())


def test_the_settings_of_a_sweep_are_texts_of_the_queue_too(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(quota, "QUEUE_BYTES", 40_000)
    jobs = tuple(m.SweepJob(spec(), {"run.env.N": f"{n}" * 3000}) for n in range(2))

    async def scene() -> None:
        with coordinator(tmp_path) as cluster:
            keep(cluster)
            swept = m.SubmitSweep(jobs, submit().archive, submit().archive_bytes)
            assert (await cluster.one(swept, ADA)).id
            no = await cluster.one(swept, ADA)
            assert "of text, and a user's may have 9.8 KiB" in no.message

    run(scene())


# ---- of the uploads


def test_a_user_with_too_many_uploads_is_told_so_and_keeps_no_other_from_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(uploads, "PLACE_WITHIN_S", 0.2)
    monkeypatch.setattr(uploads, "PLACES", 3)

    async def scene() -> None:
        with coordinator(tmp_path) as cluster:
            busy = [await dawdling(cluster, ADA, b"%d" % number) for number in range(2)]
            no = await sent(cluster, ADA, DATA)
            assert no.code == BUSY
            assert no.message == "ada is sending 2 working directories already; nothing was queued"
            assert (await sent(cluster, EVE, DATA)).id  # the third place
            busy.append(await dawdling(cluster, EVE, b"another"))
            no = await sent(cluster, ROOT, b"of root")
            assert no.code == BUSY
            text = "3 working directories are being sent at the moment; nothing was queued"
            assert no.message == text
            for connection in busy:
                connection.close()
            monkeypatch.setattr(uploads, "PLACE_WITHIN_S", 20.0)
            assert (await sent(cluster, ADA, b"later")).id  # their places are free again

    run(scene())


def test_an_upload_of_a_byte_now_and_then_loses_its_place(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(uploads, "SLOW_S", 0.2)

    async def scene() -> None:
        with coordinator(tmp_path) as cluster:
            connection = await dawdling(cluster, ADA, bytes(1 << 20))

            # A few, and not until the end: what is written to a closed connection takes the
            # answer that came before it along.
            for _ in range(5):
                await connection.send_blob(b"x")
                await asyncio.sleep(0.01)
            (no,) = await answers(connection)
            assert no.code == FAILED
            assert "the working directory arrives too slowly: less than 1920 KiB" in no.message
            assert not cluster.controller.state.jobs

    run(scene())


def test_no_more_comes_than_was_announced(tmp_path: Path) -> None:
    async def scene() -> None:
        with coordinator(tmp_path) as cluster:
            connection = await dawdling(cluster, ADA, DATA)
            await connection.send_blob(DATA + b"x")
            (no,) = await answers(connection)
            assert "larger than the limit of" in no.message

    run(scene())


# ---- of the disk


def test_archives_of_all_jobs_have_an_end_and_those_of_ended_ones_go_first(tmp_path: Path) -> None:
    async def scene() -> None:
        with coordinator(tmp_path) as cluster:
            cluster.settings = replace(cluster.settings, archives_bytes=3000)
            ended, other, live = (bytes([number]) * 1000 for number in range(3))
            numbers = [(await sent(cluster, ROOT, data)).id for data in (ended, other, live)]
            for number in numbers[:2]:
                await cluster.ask(m.Cancel(number, now=True))
            await sent(cluster, ROOT, b"new" * 300)
            there = [cluster.archives.has(digest(data)) for data in (ended, other, live)]
            assert there == [False, True, True]
            no = await cluster.one(m.Requeue(numbers[0]))
            assert no.message == f"the working directory of job {numbers[0]} is kept no longer"
            assert "submit the job again" in no.hint
            assert (await cluster.one(m.Requeue(numbers[1]))).state == "starting"
            no = await sent(cluster, ROOT, b"much" * 500)
            text = "the working directories of all jobs would have more than 2.9 KiB"
            assert no.message == f"{text} (limits.archives); nothing was queued"

    run(scene())


def test_the_archive_of_a_submit_that_was_refused_makes_room(tmp_path: Path) -> None:
    async def scene() -> None:
        with coordinator(tmp_path) as cluster:
            cluster.settings = replace(cluster.settings, archives_bytes=3000)
            with cluster.archives.receive(digest(b"r" * 2500), 2500) as upload:
                upload.take(b"r" * 2500)
                upload.finish()  # of a job that was not queued after all
            assert (await sent(cluster, ROOT, b"new" * 300)).id
            assert not cluster.archives.has(digest(b"r" * 2500))

    run(scene())


def test_one_users_archives_are_a_part_of_all(tmp_path: Path) -> None:
    async def scene() -> None:
        with coordinator(tmp_path) as cluster:
            cluster.settings = replace(cluster.settings, archives_bytes=8000)
            assert (await sent(cluster, ADA, b"a" * 1500)).id
            no = await sent(cluster, ADA, b"b" * 1500)
            text = "the working directories of ada's jobs that are not over would have 2.9 KiB"
            assert no.message == f"{text}, and a user's may have 2 KiB; nothing was queued"
            assert (await sent(cluster, ADA, b"a" * 1500)).id  # the same one is there once
            assert (await sent(cluster, EVE, b"b" * 1500)).id

    run(scene())
