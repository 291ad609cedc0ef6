"""Requests on a coordinator: whose job it is, and what the nodes of a job have to say."""

from __future__ import annotations

import asyncio
import io
import tarfile
from pathlib import Path
from typing import Any

import pytest

from tests.cluster.connections import FakeShim, pair, run, until
from tests.cluster.control.world import spec
from tests.cluster.requesting import ADA, ARCHIVE, ROOT, coordinator
from wiiiiided.cluster.control import events as e
from wiiiiided.cluster.control.job import Owner
from wiiiiided.cluster.handlers import pull_files
from wiiiiided.cluster.rpc import messages as m
from wiiiiided.cluster.rpc.connection import NOBODY, Caller
from wiiiiided.cluster.shim import protocol
from wiiiiided.cluster.shim.control_lines import RankStacks, RankState
from wiiiiided.domain.exit_codes import BUSY

ADA_OF_B = Caller(1000, "ada", False, "b")
ROOT_OF_B = Caller(0, "root", True, "b")


# ---- whose


def test_a_uid_of_another_machine_is_another_user(tmp_path: Path) -> None:
    async def scene() -> None:
        with coordinator(tmp_path) as cluster:
            job = cluster.submit(owner=Owner("a", 1000, "ada"))
            no = await cluster.one(m.Hold(job), ADA_OF_B)
            assert (no.code, "ada's on a" in no.message) == (5, True)
            no = await cluster.one(m.Cancel(job), NOBODY)
            assert no.code == 5
            assert cluster.job(job).state == "starting"

    run(scene())


def test_an_owner_changes_a_job_from_where_it_was_submitted(tmp_path: Path) -> None:
    async def scene() -> None:
        with coordinator(tmp_path) as cluster:
            blocker = [cluster.submit() for _ in range(3)]
            job = cluster.submit(owner=Owner("b", 1000, "ada"))
            held = await cluster.one(m.Hold(job), ADA_OF_B)
            assert (held.state, held.owner, len(blocker)) == ("held", "ada@b", 3)

    run(scene())


def test_a_job_that_cannot_be_read_is_a_sentence_and_the_others_are_listed(tmp_path: Path) -> None:
    async def scene() -> None:
        with coordinator(tmp_path) as cluster:
            for _ in range(2):
                job = cluster.submit()
                cluster.start(job)
                cluster.end(job)
            cluster.store.db.execute("UPDATE jobs SET body = CAST('{}' AS BLOB) WHERE id = 1")
            listed = await cluster.one(m.ListJobs(ended=10))
            assert [view.id for view in listed.jobs] == [job]
            no = await cluster.one(m.Why(1))
            assert no.message == "job 1 is over, and this version cannot read what is stored of it"
            assert (await cluster.one(m.Why(3))).message == "there is no job 3"

    run(scene())


def test_a_job_that_ran_is_requeued_though_what_it_ran_after_is_not_kept(tmp_path: Path) -> None:
    async def scene() -> None:
        with coordinator(tmp_path, alone=True) as cluster:
            cluster.archives.path(ARCHIVE).write_bytes(b"")
            first = cluster.submit()
            cluster.start(first)
            cluster.end(first)
            ran = cluster.submit(policy={"after": (first,)})
            cluster.start(ran)
            never = cluster.submit(policy={"after": (first,)})
            await cluster.ask(m.Cancel(never))
            cluster.end(ran, 3)
            cluster.store.forget([first])
            assert (await cluster.one(m.Requeue(never))).message == f"there is no job {first}"
            assert (await cluster.one(m.Requeue(ran))).state == "starting"

    run(scene())


def test_root_of_any_member_may_change_everything(tmp_path: Path) -> None:
    async def scene() -> None:
        with coordinator(tmp_path) as cluster:
            _ = [cluster.submit() for _ in range(3)]
            job = cluster.submit()
            assert (await cluster.one(m.Hold(job), ROOT_OF_B)).state == "held"

    run(scene())


def test_a_job_belongs_to_the_user_and_node_that_submitted_it(tmp_path: Path) -> None:
    async def scene() -> None:
        with coordinator(tmp_path) as cluster:
            first = cluster.job(cluster.submit())
            with cluster.archives.receive(_digest(b"x"), 10) as upload:
                upload.take(b"x")
                upload.finish()
            submit = m.Submit(first.spec, _digest(b"x"), 1)
            made = await cluster.one(submit, ADA_OF_B)
            assert cluster.job(made.id).owner == Owner("b", 1000, "ada")
            made = await cluster.one(submit, Caller(7, "eve", False))  # of this machine
            assert cluster.job(made.id).owner == Owner("a", 7, "eve")

    run(scene())


@pytest.mark.parametrize("request_", [m.Init(), m.Leave(), m.Renew(), m.Join("h", 1, "t")])
def test_no_user_elsewhere_changes_this_machines_role(tmp_path: Path, request_: Any) -> None:
    async def scene() -> None:
        with coordinator(tmp_path) as cluster:
            no = await cluster.one(request_, ROOT_OF_B)
            assert "is for the machine itself to ask" in no.message

    run(scene())


# ---- show


def test_show_has_the_processes_of_all_nodes(tmp_path: Path) -> None:
    async def scene() -> None:
        with coordinator(tmp_path) as cluster:
            job = cluster.submit(nodes=3)
            cluster.start(job)
            for node, first in (("a", 0), ("b", 2), ("c", 4)):
                told = [RankState(first + n, 100 + first + n) for n in (0, 1)]
                getattr(cluster, node).workers.shims[job, 1] = FakeShim(*told)
            detail = await cluster.one(m.Show(job))
            assert [(r.rank, r.node, r.pid, r.state) for r in detail.ranks] == [
                (rank, "abc"[rank // 2], 100 + rank, "running") for rank in range(6)
            ]
            assert detail.directory.startswith("a:/")
            assert f", c:{cluster.c.job_dirs.job(job)}" in detail.directory

    run(scene())


def test_show_does_without_a_node_that_does_not_answer(tmp_path: Path) -> None:
    async def scene() -> None:
        with coordinator(tmp_path) as cluster:
            job = cluster.submit(nodes=2)
            cluster.start(job)
            cluster.a.workers.shims[job, 1] = FakeShim(RankState(0, 100))
            cluster.dialer.away.add("10.0.0.2")
            detail = await cluster.one(m.Show(job))
            assert [(r.pid, r.state) for r in detail.ranks] == [
                (100, "running"),
                (None, "starting"),
                (None, "running"),
                (None, "running"),
            ]
            assert detail.directory == str(cluster.a.job_dirs.job(job))

    run(scene())


def test_show_has_the_errors_of_all_nodes_with_their_names(tmp_path: Path) -> None:
    async def scene() -> None:
        with coordinator(tmp_path) as cluster:
            job = cluster.submit(nodes=3)
            cluster.start(job)
            for node, error in (("a", "PeerLost: rank 2"), ("b", "ValueError: no")):
                end = protocol.AttemptEnd(1.0, {}, 1, error=error)
                getattr(cluster, node).job_dirs.write(job, 1, protocol.EXIT, protocol.to_bytes(end))
            detail = await cluster.one(m.Show(job))
            assert detail.error == "on a:\nPeerLost: rank 2\non b:\nValueError: no"

    run(scene())


# ---- logs


def test_logs_are_of_all_nodes_by_time(tmp_path: Path) -> None:
    async def scene() -> None:
        with coordinator(tmp_path) as cluster:
            job = cluster.submit(nodes=2)
            cluster.start(job)
            cluster.a.write(0, (1.0, "a"), (3.0, "aa"), job=job)
            cluster.b.write(2, (2.0, "b"), job=job)
            cluster.b.write(9, (2.5, "no rank of this allocation"), job=job)
            lines, end = await cluster.ask(m.Logs(job))
            assert [(line.node, line.text) for line in lines.lines] == [
                ("a", "a"),
                ("b", "b"),
                ("a", "aa"),
            ]
            assert end == m.EndOfAnswers()
            lines, _ = await cluster.ask(m.Logs(job, ranks=(2,)))
            assert [line.text for line in lines.lines] == ["b"]

    run(scene())


def test_only_nodes_with_a_wanted_rank_are_asked(tmp_path: Path) -> None:
    async def scene() -> None:
        with coordinator(tmp_path) as cluster:
            job = cluster.submit(nodes=3)
            cluster.start(job)
            await cluster.ask(m.Logs(job, ranks=(0, 3)))
            assert [address for address, *_ in cluster.dialer.opened] == ["10.0.0.2"]

    run(scene())


def test_only_wanted_nodes_are_asked(tmp_path: Path) -> None:
    async def scene() -> None:
        with coordinator(tmp_path) as cluster:
            job = cluster.submit(nodes=3)
            cluster.start(job)
            cluster.b.write(2, (1.0, "of b"), job=job)
            cluster.c.write(4, (2.0, "of c"), job=job)
            lines, _ = await cluster.ask(m.Logs(job, nodes=("b",)))
            assert [line.text for line in lines.lines] == ["of b"]
            await cluster.ask(m.Logs(job, attempt=7, nodes=("b",)))
            await cluster.ask(m.Logs(job, nodes=("x",)))
            assert [address for address, *_ in cluster.dialer.opened] == ["10.0.0.2"] * 2

    run(scene())


def test_of_an_earlier_attempt_every_node_is_asked(tmp_path: Path) -> None:
    async def scene() -> None:
        with coordinator(tmp_path) as cluster:
            job = cluster.submit()
            cluster.start(job)
            cluster.end(job)
            cluster.c.write(0, (1.0, "long ago"), job=job, attempt=7)
            lines, _ = await cluster.ask(m.Logs(job, attempt=7))
            assert [line.text for line in lines.lines] == ["long ago"]

    run(scene())


def test_following_goes_through_attempts_to_the_jobs_end(tmp_path: Path) -> None:
    async def scene() -> None:
        with coordinator(tmp_path) as cluster:
            job = cluster.submit(nodes=2)
            here, there = await pair()
            await here.say(m.Logs(job, follow=True))
            serving = asyncio.ensure_future(cluster.api.serve(there, ADA))
            cluster.start(job)
            cluster.b.write(2, (1.0, "first attempt"), job=job)
            lines = m.decode_answer(await here.message()).lines
            await cluster.ask(m.Requeue(job))
            cluster.end(job)
            assert cluster.job(job).state == "starting"
            cluster.prepare(job)
            cluster.start(job)
            cluster.a.write(0, (2.0, "second attempt"), job=job, attempt=2)
            lines += m.decode_answer(await here.message()).lines
            cluster.end(job)
            assert m.decode_answer(await here.message()) == m.EndOfAnswers()
            await serving
            assert [(line.text, line.attempt) for line in lines] == [
                ("first attempt", 1),
                ("second attempt", 2),
            ]

    run(scene())


def test_no_node_is_asked_for_lines_before_the_start_is_ordered(tmp_path: Path) -> None:
    async def scene() -> None:
        with coordinator(tmp_path) as cluster:
            job = cluster.submit(nodes=2, prepare=False)
            here, there = await pair()
            await here.say(m.Logs(job, follow=True))
            serving = asyncio.ensure_future(cluster.api.serve(there, ADA))
            await until(lambda: bool(cluster.controller._watchers), "it waits for the order")
            assert cluster.dialer.opened == []
            cluster.prepare(job)
            await until(lambda: bool(cluster.dialer.opened), "b is asked")
            here.close()
            await serving

    run(scene())


def test_following_a_job_that_ends_before_its_start_ends(tmp_path: Path) -> None:
    async def scene() -> None:
        with coordinator(tmp_path) as cluster:
            job = cluster.submit(nodes=2, prepare=False)
            here, there = await pair()
            await here.say(m.Logs(job, follow=True))
            serving = asyncio.ensure_future(cluster.api.serve(there, ADA))
            cluster.end(job, code=1)
            assert m.decode_answer(await here.message()) == m.EndOfAnswers()
            await serving

    run(scene())


def test_following_ends_with_its_client(tmp_path: Path) -> None:
    async def scene() -> None:
        with coordinator(tmp_path) as cluster:
            job = cluster.submit(nodes=2)
            cluster.start(job)
            here, there = await pair()
            await here.say(m.Logs(job, follow=True))
            serving = asyncio.ensure_future(cluster.api.serve(there, ADA))
            await until(lambda: bool(cluster.dialer.opened), "b is asked")
            here.close()
            await serving

    run(scene())


# ---- stacks


def test_stacks_are_of_all_nodes_and_one_that_is_away_is_a_sentence(tmp_path: Path) -> None:
    async def scene() -> None:
        with coordinator(tmp_path) as cluster:
            job = cluster.submit(nodes=2)
            cluster.start(job)
            cluster.a.workers.shims[job, 1] = FakeShim(RankStacks(0, 1, "stack"))
            cluster.dialer.away.add("10.0.0.2")
            found = (await cluster.one(m.Stacks(job))).dumps
            assert [(one.rank, one.pid) for one in found] == [(0, 1), (2, None), (3, None)]
            assert [one.node for one in found] == ["a", "b", "b"]
            assert found[1].text.startswith("b does not answer")

    run(scene())


def test_a_job_that_left_no_stacks_says_so(tmp_path: Path) -> None:
    async def scene() -> None:
        with coordinator(tmp_path) as cluster:
            job = cluster.submit(nodes=2)
            cluster.start(job)
            assert "gave no stacks" in (await cluster.one(m.Stacks(job))).message
            cluster.end(job)
            assert "no running ranks" in (await cluster.one(m.Stacks(job))).message

    run(scene())


# ---- pull


def test_pull_brings_the_files_of_all_nodes(tmp_path: Path) -> None:
    async def scene() -> None:
        with coordinator(tmp_path) as cluster:
            job = cluster.submit(nodes=3)
            cluster.start(job)
            cluster.a.give({"train.py": "code", "log": "a"}, job)
            cluster.b.give({"train.py": "code", "log": "b", "only": "b"}, job)
            data, end = await cluster.ask(m.Pull(job, ("**",)))
            assert unpacked(data) == {"train.py": "code", "log": "a", "log.b": "b", "only": "b"}
            assert end == m.EndOfAnswers()

    run(scene())


def test_pull_of_a_job_on_another_machine_passes_its_tar_on(tmp_path: Path) -> None:
    async def scene() -> None:
        with coordinator(tmp_path) as cluster:
            _ = cluster.submit()
            job = cluster.submit()
            assert cluster.job(job).attempt.nodes == ("b",)  # type: ignore[union-attr]
            cluster.start(job)
            cluster.b.give({"x": "1"}, job)
            data, _ = await cluster.ask(m.Pull(job, ("**",)))
            assert unpacked(data) == {"x": "1"}

    run(scene())


def test_pull_names_a_node_that_is_off_and_brings_the_others(tmp_path: Path) -> None:
    async def scene() -> None:
        with coordinator(tmp_path) as cluster:
            job = cluster.submit(nodes=2)
            cluster.start(job)
            cluster.a.give({"x": "1"}, job)
            cluster.dialer.away.add("10.0.0.2")
            data, _ = await cluster.ask(m.Pull(job, ("**",)))
            found = unpacked(data)
            assert found.pop("x") == "1"
            ((name, text),) = found.items()
            assert name == "missing-from-b.txt"
            assert text.startswith("b does not answer")

    run(scene())


def test_one_user_merges_the_files_of_several_nodes_twice_at_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def scene() -> None:
        with coordinator(tmp_path) as cluster:
            job = cluster.submit(nodes=2)
            cluster.start(job)
            cluster.a.give({"x": "1"}, job)
            cluster.b.give({"x": "2"}, job)
            go, begun = asyncio.Event(), []
            merges = pull_files._RunningPull.all

            async def waits(self: Any, nodes: Any) -> None:
                begun.append(nodes)
                await go.wait()
                await merges(self, nodes)

            monkeypatch.setattr(pull_files._RunningPull, "all", waits)
            pulls = [asyncio.create_task(cluster.ask(m.Pull(job, ("**",)), ADA)) for _ in range(2)]
            await until(lambda: len(begun) == 2, "both are under way")
            no = await cluster.one(m.Pull(job, ("**",)), ADA)
            assert (no.code, "ada is pulling files of several machines 2 times" in no.message) == (
                BUSY,
                True,
            )
            go.set()
            for pull in pulls:
                data, _ = await pull
                assert unpacked(data) == {"x": "1", "x.b": "2"}
            assert (await cluster.ask(m.Pull(job, ("**",)), ADA))[1] == m.EndOfAnswers()

    run(scene())


def test_pull_of_a_job_without_files_anywhere_is_refused(tmp_path: Path) -> None:
    async def scene() -> None:
        with coordinator(tmp_path) as cluster:
            job = cluster.submit(nodes=2)
            no = await cluster.one(m.Pull(job, ("**",)))
            assert (no.code, "has no files" in no.message) == (1, True)
            cluster.dialer.away.add("10.0.0.2")
            no = await cluster.one(m.Pull(job, ("**",)))
            assert "b does not answer" in no.message
            no = await cluster.one(m.Pull(job))
            assert no.code == 2

    run(scene())


def unpacked(data: bytes) -> dict[str, str]:
    with tarfile.open(fileobj=io.BytesIO(data)) as archive:
        return {
            entry.name: archive.extractfile(entry).read().decode()  # type: ignore[union-attr]
            for entry in archive
        }


def _digest(data: bytes) -> str:
    import hashlib

    return hashlib.sha256(data).hexdigest()


# ---- status


def test_status_says_what_this_machine_is_among_the_others(tmp_path: Path) -> None:
    async def scene() -> None:
        with coordinator(tmp_path) as cluster:
            said = await cluster.one(m.GetStatus(), ROOT)
            assert (said.role, said.cluster, said.coordinator) == ("coordinator", "lab", "a")
            assert said.linked
            cluster.cluster_role.troubles = lambda: "port 9461 is taken"
            assert (await cluster.one(m.GetStatus())).problem == "port 9461 is taken"

    run(scene())


def test_what_was_reported_counts_before_what_is_asked_is_decided(tmp_path: Path) -> None:
    """As when there was no room on the disk for the end of a job: it is over, and can go again."""

    async def scene() -> None:
        with coordinator(tmp_path, alone=True) as cluster:
            cluster.archives.path(ARCHIVE).write_bytes(b"")
            job = cluster.submit()
            cluster.start(job)
            now = cluster.controller.clock()
            end = e.WorkersEnded(now, job, 1, "a", 0, "all ranks ended")
            cluster.controller._reports.append(end)
            again = await cluster.one(m.Requeue(job))
            assert (again.state, again.attempt) == ("starting", 2)
            cluster.start(job)
            ended = e.WorkersEnded(now, job, 2, "a", 1, "rank 0 failed")
            cluster.controller._reports.append(ended)
            after = spec(policy={"after": (job,)})
            said = await cluster.one(m.Submit(after, ARCHIVE, 0))
            assert f"job {job} is failed: a job after it would never run" in said.message

    run(scene())
