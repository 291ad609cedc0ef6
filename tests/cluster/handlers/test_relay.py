"""A member's answers are the coordinator's, whatever happens between the two."""

from __future__ import annotations

import asyncio
import contextlib
import hashlib
import tempfile
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import msgspec
import pytest

from tests.cluster.connections import FakeDialer, answers, pair, run, until
from tests.cluster.requesting import ADA, Coordinator, coordinator, facts
from wiiiiided.cluster.allocation.archive_cache import Archives
from wiiiiided.cluster.allocation.cancellations import Cancellations
from wiiiiided.cluster.allocation.job_dirs import JobDirs
from wiiiiided.cluster.client import Client, DaemonRefused
from wiiiiided.cluster.control.job import Job, Owner
from wiiiiided.cluster.handlers.cluster_role import ClusterRole
from wiiiiided.cluster.handlers.offline import OfflineAnswers
from wiiiiided.cluster.handlers.relay import Relay, patience
from wiiiiided.cluster.handlers.status import status_of
from wiiiiided.cluster.membership.dial import PeerRefusal
from wiiiiided.cluster.peering import messages as p
from wiiiiided.cluster.rpc import framing
from wiiiiided.cluster.rpc import messages as m
from wiiiiided.cluster.rpc.connection import Caller, RpcConnection
from wiiiiided.cluster.rpc.server import RpcServer
from wiiiiided.cluster.system.settings import Settings
from wiiiiided.cluster.trust.identity import NodeEndpoint
from wiiiiided.config import Paths

COORDINATOR = "10.0.0.1"
DATA = b"a working directory" * 100_000
DIGEST = hashlib.sha256(DATA).hexdigest()


class Member:
    """b, whose coordinator is a."""

    def __init__(self, cluster: Coordinator, directory: Path) -> None:
        self.cluster = cluster
        self.dialer = FakeDialer({COORDINATOR: cluster.serve})
        self.archives = Archives(directory / "archives")
        self.cluster_role = ClusterRole("member", "lab", "a", lambda: False, str)
        about = facts(cluster.b, directory)
        self.settings = Settings()
        self.relay = Relay(
            *(
                self.dialer,
                NodeEndpoint("a", COORDINATOR, 9461),
                self.archives,
                lambda: self.settings,
            ),
            lambda: status_of(about, self.cluster_role, {}),
            OfflineAnswers(cluster.b.allocations, "a"),
        )
        self.paths = Paths.private(str(directory))
        self.api = RpcServer(self.paths.socket, False, self.relay.handle, "b")

    async def ask(
        self, request: m.Request, caller: Caller = ADA, notices: bool = False
    ) -> list[Any]:
        here, there = await pair()
        there.hears_notices = notices
        await here.say(request)
        await self.api.serve(there, caller)
        return await answers(here)


@contextlib.asynccontextmanager
async def member(tmp_path: Path) -> AsyncIterator[Member]:
    with (
        tempfile.TemporaryDirectory(prefix="wd") as short,  # a socket's path is
        coordinator(tmp_path) as cluster,
    ):
        made = Member(cluster, Path(short))
        await made.api.listen()
        try:
            yield made
        finally:
            await made.api.close()


def quickly(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("AT_ONCE_S", "PATIENT_S", "WATCHING_S"):
        monkeypatch.setattr(f"wiiiiided.cluster.handlers.relay.{name}", 0.05)


def test_an_answer_is_passed_on_and_the_person_with_the_question(tmp_path: Path) -> None:
    async def scene() -> None:
        async with member(tmp_path) as b:
            job = b.cluster.submit()
            (view,) = await b.ask(m.Why(job), Caller(1000, "ada", False, "b"))
            assert view == m.JobReason(job, "starting", "is being started on a")
            assert b.dialer.opened == [(COORDINATOR, "request", p.Person(1000, "ada", False))]

    run(scene())


def test_a_refusal_is_passed_on_as_it_is(tmp_path: Path) -> None:
    async def scene() -> None:
        async with member(tmp_path) as b:
            (no,) = await b.ask(m.Show(77))
            assert (no.code, no.message) == (6, "there is no job 77")

    run(scene())


def test_what_is_about_this_machine_is_answered_here(tmp_path: Path) -> None:
    async def scene() -> None:
        async with member(tmp_path) as b:
            (said,) = await b.ask(m.GetStatus())
            assert (said.role, said.cluster, said.coordinator) == ("member", "lab", "a")
            assert not said.linked
            assert b.dialer.opened == []

    run(scene())


def test_without_its_coordinator_a_member_says_so_and_that_jobs_go_on(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    quickly(monkeypatch)

    async def scene() -> None:
        async with member(tmp_path) as b:
            b.dialer.away.add(COORDINATOR)
            (no,) = await b.ask(m.ListNodes())
            assert no.code == 4
            assert "the coordinator a (10.0.0.1:9461) does not answer" in no.message
            assert no.message.endswith("jobs go on")

    run(scene())


def given_to_b(b: Member, **given: Any) -> Job:
    """A job of ada's on b, which runs: started there, and nothing more is known of it."""
    number = b.cluster.submit(nodes=2, owner=Owner("b", 1000, "ada"), **given)
    b.cluster.start(number)
    job = b.cluster.job(number)
    node = b.cluster.b
    node.job_dirs.keep(number, msgspec.json.encode(job))
    assert job.attempt is not None
    node.workers.following[number, job.attempt.number] = job
    b.dialer.away.add(COORDINATOR)
    return job


def test_a_waiting_command_is_told_at_once_for_which_machine_and_how_long(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("wiiiiided.cluster.handlers.relay.NOTICE_S", 0.01)
    monkeypatch.setattr("wiiiiided.cluster.handlers.relay.AT_ONCE_S", 0.6)

    async def scene() -> None:
        async with member(tmp_path) as b:
            b.dialer.away.add(COORDINATOR)
            notice, no = await b.ask(m.ListNodes(), notices=True)
            words = "waiting up to 1 s for the coordinator a (10.0.0.1:9461), which does not answer"
            assert notice.text.startswith(words)
            assert "Connection refused" in notice.text
            assert no.code == 4
            (no,) = await b.ask(m.ListNodes())  # of a client that does not know notices
            assert no.code == 4

    run(scene())


def test_a_member_answers_of_its_own_when_its_coordinator_is_away_and_marks_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    quickly(monkeypatch)

    async def scene() -> None:
        async with member(tmp_path) as b:
            job = given_to_b(b)
            b.cluster.b.write(2, (1.0, "hello"), job=job.id)
            notice, listed = await b.ask(m.ListJobs(), notices=True)
            assert notice.text == listed.partial
            assert "does not answer" in listed.partial
            assert listed.partial.endswith("b tells of its own jobs only")
            (view,) = listed.jobs
            assert (view.id, view.state, view.owner) == (job.id, "running", "ada@b")
            assert view.why == "its part on b runs"
            (shown,) = await b.ask(m.Show(job.id))
            assert shown.partial == listed.partial
            assert shown.job == view
            (why,) = await b.ask(m.Why(job.id))
            assert why.why == view.why
            lines, end = await b.ask(m.Logs(job.id))
            assert [(line.node, line.text) for line in lines.lines] == [("b", "hello")]
            assert end == m.EndOfAnswers()
            assert await b.ask(m.Logs(job.id, nodes=("a",))) == [m.EndOfAnswers()]
            sweeps = (m.ListJobs(sweep=3), m.CancelSweep(3))
            others = (m.Show(99), m.Cancel(99), m.ListHistory(), m.Logs(job.id, follow=True))
            for other in (*others, *sweeps):
                (no,) = await b.ask(other)
                assert (no.code, "does not answer" in no.message) == (4, True)

    run(scene())


def test_the_owner_and_root_may_cancel_the_part_here_and_no_other_user(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    quickly(monkeypatch)

    async def scene() -> None:
        async with member(tmp_path) as b:
            job = given_to_b(b)
            workers = b.cluster.b.workers
            for other in (Caller(1001, "bob", False, "b"), Caller(1000, "ada", False, "c")):
                (no,) = await b.ask(m.Cancel(job.id), other)
                assert (no.code, workers.stopped) == (5, [])
            (view,) = await b.ask(m.Cancel(job.id), Caller(1000, "ada", False, "b"))
            assert workers.stopped == [(job.id, 1, 10.0, "cancelled by ada")]
            assert view.state == "stopping"
            assert view.why == (
                "cancelled by ada: its part on b has ended; a is told when it is heard, and ends "
                "the rest"
            )
            (listed,) = await b.ask(m.ListJobs())
            assert [one.why for one in listed.jobs] == [view.why]
            # And after a restart of this daemon.
            again = Cancellations(b.cluster.b.job_dirs)
            again.read()
            (told,) = again.told(1010.0)
            assert told == p.CancelledHere(job.id, job.submitted_at, "ada", False, 10.0)
            again.forget([job.id])
            again = Cancellations(b.cluster.b.job_dirs)
            again.read()
            assert again.told(0.0) == ()

    run(scene())


def test_a_cancel_that_cannot_be_kept_ends_the_part_here_and_says_so(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    quickly(monkeypatch)

    def full(*_: Any) -> None:
        raise OSError(28, "No space left on device")

    async def scene() -> None:
        async with member(tmp_path) as b:
            job = given_to_b(b)
            monkeypatch.setattr(JobDirs, "keep", full)
            (no,) = await b.ask(m.Cancel(job.id, now=True), Caller(0, "root", True, "b"))
            assert b.cluster.b.workers.stopped == [(job.id, 1, 0.0, "cancelled by root")]
            assert "No space left on device" in no.message
            assert len(b.cluster.b.workers.cancellations.told(1000.0)) == 1

    run(scene())


def test_a_watching_client_hears_that_it_is_the_coordinator_that_is_silent(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("wiiiiided.cluster.handlers.relay.QUIET_S", 0.05)

    async def silent(connection: RpcConnection) -> None:
        await connection.message()
        await asyncio.sleep(0.3)

    async def scene() -> None:
        async with member(tmp_path) as b:
            b.dialer.serves[COORDINATOR] = silent
            first, *_ = await b.ask(m.WatchSnapshots(0.01), notices=True)
            assert first.text == "the coordinator a (10.0.0.1:9461) has said nothing for 0 s"

    run(scene())


def test_a_command_is_told_before_it_stops_waiting() -> None:
    from wiiiiided.cluster.client.connection import ANSWER_S, PATIENT_S

    assert patience(m.ListJobs()) < ANSWER_S - 2
    assert patience(m.Logs(1)) < PATIENT_S - 5


def test_a_coordinator_that_restarts_is_waited_for(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("wiiiiided.cluster.handlers.relay.AT_ONCE_S", 50.0)

    async def scene() -> None:
        async with member(tmp_path) as b:
            b.dialer.away.add(COORDINATOR)
            asking = asyncio.ensure_future(b.ask(m.ListJobs()))
            await until(lambda: len(b.dialer.opened) >= 2, "it is dialled again")
            b.dialer.away.clear()
            assert await asking == [m.JobList(())]

    run(scene())


def test_a_removed_member_is_told_how_to_go(tmp_path: Path) -> None:
    async def scene() -> None:
        async with member(tmp_path) as b:

            async def turned(*given: object) -> RpcConnection:
                raise PeerRefusal(5, "b was removed by root", removed=True)

            b.dialer.open = turned  # type: ignore[method-assign,assignment]
            (no,) = await b.ask(m.ListJobs())
            assert (no.code, no.message) == (5, "b was removed by root")
            assert "wiiiiide leave" in no.hint

    run(scene())


def test_a_request_ends_at_the_coordinator_when_its_client_goes(tmp_path: Path) -> None:
    async def scene() -> None:
        async with member(tmp_path) as b:
            job = b.cluster.submit()
            here, there = await pair()
            await here.say(m.Wait(job))
            asking = asyncio.ensure_future(b.api.serve(there, ADA))
            await here.message()
            assert b.cluster.controller._watchers
            here.close()
            await asking
            await until(lambda: not b.cluster.controller._watchers, "nobody waits there any more")

    run(scene())


# ---- submitting


def test_an_archive_passes_through_and_a_copy_stays(tmp_path: Path) -> None:
    async def scene() -> None:
        async with member(tmp_path) as b:
            *_, made = await submit(b)
            assert isinstance(made, m.Submitted)
            assert b.cluster.archives.has(DIGEST)
            await until(lambda: b.archives.has(DIGEST), "the copy")
            owner = b.cluster.job(made.id).owner
            assert (owner.node, owner.user) == ("b", "root")
            (again,) = await submit(b)
            assert isinstance(again, m.Submitted)

    run(scene())


def test_a_sweep_passes_through_as_a_job_does(tmp_path: Path) -> None:
    async def scene() -> None:
        async with member(tmp_path) as b:
            *_, made = await submit(b, sweep=3)
            assert isinstance(made, m.Swept)
            assert b.cluster.archives.has(DIGEST)
            await until(lambda: b.archives.has(DIGEST), "the copy")
            assert {b.cluster.job(number).owner.node for number in made.jobs} == {"b"}
            (listed,) = await b.ask(m.ListJobs(sweep=made.id))
            assert [job.id for job in listed.jobs] == list(made.jobs)

    run(scene())


def test_a_machine_without_room_for_a_copy_submits_all_the_same(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def scene() -> None:
        async with member(tmp_path) as b:

            def full(digest: str, limit: int) -> None:
                raise OSError(28, "No space left on device")

            monkeypatch.setattr(b.archives, "receive", full)
            *_, made = await submit(b)
            assert isinstance(made, m.Submitted)
            assert not b.archives.has(DIGEST)

    run(scene())


def test_a_copy_that_fails_in_the_middle_leaves_nothing(tmp_path: Path) -> None:
    async def scene() -> None:
        async with member(tmp_path) as b:
            b.settings = Settings(archive_bytes=1 << 19, archive_files=0)
            *_, made = await submit(b)
            assert isinstance(made, m.Submitted)
            await until(lambda: not list(b.archives.directory.iterdir()), "nothing is left")

    run(scene())


def test_an_archive_that_is_not_what_was_announced_is_refused_by_the_coordinator(
    tmp_path: Path,
) -> None:
    async def scene() -> None:
        async with member(tmp_path) as b:
            *_, no = await submit(b, DATA + b"x")
            assert "not the one that was announced" in no.message
            assert list(b.archives.directory.iterdir()) == []

    run(scene())


def test_a_coordinator_that_says_no_in_the_middle_is_heard(tmp_path: Path) -> None:
    async def scene() -> None:
        async with member(tmp_path) as b:

            async def enough(connection: RpcConnection) -> None:
                await connection.message()
                await connection.say(m.SendArchive())
                await connection.frame()
                await connection.say(m.Refusal(3, "too large"))
                await connection.gone()

            b.dialer.serves[COORDINATOR] = enough
            here, there = await pair()
            await here.say(m.Submit(b.cluster.job(b.cluster.submit()).spec, DIGEST, len(DATA)))
            asking = asyncio.ensure_future(b.api.serve(there, ADA))
            assert m.decode_answer(await here.message()) == m.SendArchive()
            await here.send_blob(DATA[: 1 << 18])  # and no more: the client waits
            assert m.decode_answer(await here.message()) == m.Refusal(3, "too large")
            here.close()
            b.dialer.cut()
            await asking
            assert list(b.archives.directory.iterdir()) == []

    run(scene())


def test_a_client_that_stops_sending_is_told(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("wiiiiided.cluster.handlers.relay.PIECE_WITHIN_S", 0.05)

    async def scene() -> None:
        async with member(tmp_path) as b:
            spec = b.cluster.job(b.cluster.submit()).spec
            _, no = await b.ask(m.Submit(spec, DIGEST, len(DATA)))
            assert "stopped arriving" in no.message
            assert b.cluster.store.next_id() == 2  # nothing was queued besides

    run(scene())


async def submit(b: Member, data: bytes = DATA, sweep: int = 0) -> list[Any]:
    spec = b.cluster.job(b.cluster.submit()).spec
    here, there = await pair()
    jobs = tuple(m.SweepJob(spec, {"k": str(number)}) for number in range(sweep))
    several, one = m.SubmitSweep(jobs, DIGEST, len(data)), m.Submit(spec, DIGEST, len(data))
    await here.say(several if sweep else one)
    asking = asyncio.ensure_future(b.api.serve(there, ADA))
    found = [m.decode_answer(await here.message())]
    if found == [m.SendArchive()]:
        for start in range(0, len(data), 1 << 18):
            await here.send_blob(data[start : start + (1 << 18)])
        await here.end_blob()
        found += await answers(here)
    await asking
    return found


# ---- through restarts, with the real client


def test_logs_are_followed_through_a_restart_of_the_coordinator(tmp_path: Path) -> None:
    async def scene() -> list[str]:
        async with member(tmp_path) as b:
            cluster = b.cluster
            job = cluster.submit(nodes=2)
            cluster.start(job)
            cluster.b.write(2, (1.0, "before"), job=job)
            notices: list[str] = []
            client = Client(b.paths, notices.append)
            texts: list[str] = []

            def follow() -> None:
                texts.extend(
                    item.text for item in client.follow(job) if isinstance(item, m.LogLine)
                )

            following = asyncio.ensure_future(asyncio.to_thread(follow))
            await until(lambda: texts == ["before"], "b's line")
            b.dialer.away.add(COORDINATOR)
            b.dialer.cut()
            await until(lambda: bool(notices), "it was noticed")
            cluster.a.write(0, (2.0, "meanwhile"), job=job)
            asked = len(b.dialer.opened)
            await until(lambda: len(b.dialer.opened) > asked + 1, "it is dialled again")
            b.dialer.away.clear()
            await until(lambda: "the daemon is back" in notices, "it is back")
            cluster.b.write(2, (3.0, "after"), job=job)
            cluster.end(job)
            await following
            return texts

    assert run(scene()) == ["before", "meanwhile", "after"]


def test_large_answers_are_passed_on_as_they_come(tmp_path: Path) -> None:
    async def scene() -> None:
        async with member(tmp_path) as b:
            sent: list[int] = []

            async def many(connection: RpcConnection) -> None:
                await connection.message()
                for _ in range(400):
                    await connection.send(framing.BLOB, bytes(1 << 18))
                    sent.append(1 << 18)
                await connection.end_blob()
                await connection.say(m.EndOfAnswers())

            b.dialer.serves[COORDINATOR] = many
            here, there = await pair()
            await here.say(m.Pull(1, ("**",)))
            asking = asyncio.ensure_future(b.api.serve(there, ADA))
            total = 0
            async for piece in here.blob(30):
                total += len(piece)
                assert sum(sent) - total < 16 << 20  # what sockets hold, and no more
            assert total == 400 << 18
            assert m.decode_answer(await here.message()) == m.EndOfAnswers()
            await asking

    run(scene())


def test_an_unknown_request_is_not_relayed_to_the_coordinator(tmp_path: Path) -> None:
    async def scene() -> None:
        async with member(tmp_path) as b:
            client = Client(b.paths)
            with pytest.raises(DaemonRefused, match="there is no job 5"):
                await asyncio.to_thread(client.show, 5)
            here, there = await pair()
            await here.send(framing.MESSAGE, b'{"type":"Dance"}')
            await b.api.serve(there, ADA)
            (no,) = await answers(here)
            assert "does not understand" in no.message

    run(scene())
