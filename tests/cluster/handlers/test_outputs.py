"""Outputs are brought back when a job is over: from which nodes, when, and how `pull` uses them."""

from __future__ import annotations

import asyncio
import contextlib
import io
import signal
import stat
import tarfile
from collections.abc import AsyncGenerator, AsyncIterator, Iterator
from pathlib import Path
from typing import Any

import pytest
from msgspec.structs import replace

from tests.cluster.connections import FakeNode, run, until
from tests.cluster.requesting import Coordinator, coordinator
from tests.kit.conditions import wait_until
from tests.kit.daemons import PrivateDaemon, node_states, private_cluster
from wiiiiided.cluster.control import events as e
from wiiiiided.cluster.handlers import collect_outputs
from wiiiiided.cluster.handlers.collect_outputs import Collector, sentence
from wiiiiided.cluster.handlers.output_store import CollectedPart, Collection
from wiiiiided.cluster.peering import messages as p
from wiiiiided.cluster.rpc import messages as m
from wiiiiided.cluster.rpc.connection import RpcConnection
from wiiiiided.domain import disk_room
from wiiiiided.domain.spec import Output

GIB = 1 << 30
SAID_WITHIN_S = 30.0
WHERE = {"b": "10.0.0.2", "c": "10.0.0.3"}


class Site:
    """A coordinator that collects."""

    def __init__(self, cluster: Coordinator) -> None:
        self.cluster = cluster
        self.limit = GIB
        self.outputs = cluster.requests.ranks.outputs
        self.collector = self.new_collector()

    def new_collector(self) -> Collector:
        node_rpc = self.cluster.requests.ranks.node_rpc
        made = Collector(self.outputs, node_rpc, self.cluster.controller, lambda: self.limit)
        self.cluster.on_change = made.changed
        made.start()
        return made

    async def restart(self) -> None:
        await self.collector.close()
        self.collector = self.new_collector()

    def run(self, nodes: int = 3, *, collect: tuple[str, ...] = ("out/**",)) -> int:
        """A job that runs now, with a file of its own on each node and one that all have."""
        job = self.cluster.submit(nodes=nodes, output=Output(collect))
        self.cluster.start(job)
        self.write(job)
        return job

    def write(self, job: int, more: str = "") -> None:
        attempt = self.cluster.job(job).attempt
        assert attempt is not None
        for node in attempt.nodes:
            content = {"out/which": node + more, "out/same": "same", "else": "x"}
            self.node(node).give(content, job)

    def run_elsewhere(self, nodes: int = 2) -> int:
        """The same on b and c, while another job has a."""
        other = self.cluster.submit()
        job = self.run(nodes)
        self.cluster.end(other)
        assert self.names(job) == ("b", "c")[:nodes]
        return job

    def node(self, name: str) -> FakeNode:
        found: FakeNode = getattr(self.cluster, name)
        return found

    def names(self, job: int) -> tuple[str, ...]:
        attempt = self.cluster.job(job).attempt
        assert attempt is not None
        return attempt.nodes

    def switch_off(self, *names: str) -> None:
        for name in names:
            self.cluster.dialer.away.add(WHERE[name])
            self.cluster.controller.report(e.NodeLeft(self.cluster.controller.clock(), name))

    def switch_on(self, *names: str) -> None:
        for name in names:
            self.cluster.dialer.away.discard(WHERE[name])
            now = self.cluster.controller.clock()
            self.cluster.controller.report(e.NodeSeen(now, self.node(name).node))

    def story(self, job: int) -> list[str]:
        return [text for _, text in self.cluster.store.story(job) if "outputs" in text]

    async def says(self, job: int, *parts: str) -> None:
        def said() -> bool:
            story = self.story(job)
            done = bool(story) and job not in self.collector._tasks
            return done and all(part in story[-1] for part in parts)

        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(SAID_WITHIN_S):
                await until(said, "")
        assert said(), f"not {parts}: {self.story(job)}"

    async def pull(self, job: int, *globs: str) -> dict[str, str]:
        data, end = await self.cluster.ask(m.Pull(job, globs))
        assert end == m.EndOfAnswers()
        return unpacked(data)


def unpacked(data: bytes) -> dict[str, str]:
    with tarfile.open(fileobj=io.BytesIO(data)) as archive:
        return {
            entry.name: archive.extractfile(entry).read().decode()  # type: ignore[union-attr]
            for entry in archive
        }


@contextlib.asynccontextmanager
async def site(directory: Path) -> AsyncIterator[Site]:
    with coordinator(directory) as cluster:
        made = Site(cluster)
        try:
            yield made
        finally:
            await made.collector.close()
            for name in "abc":
                for process in made.node(
                    name
                ).workers.tars:  # also one that was not read to its end
                    await until(lambda tar=process: tar.poll() is not None, "it has ended")  # type: ignore[misc]


# ---- home


def test_outputs_of_a_job_that_is_over_need_no_other_machine(tmp_path: Path) -> None:
    async def scene() -> None:
        async with site(tmp_path) as here:
            job = here.run()
            here.cluster.end(job)
            await here.says(job, "outputs of b, c brought back, ")
            here.switch_off("b", "c")
            assert await here.pull(job) == {
                "out/which": "a",
                "out/which.b": "b",
                "out/which.c": "c",
                "out/same": "same",
            }

    run(scene())


@pytest.mark.parametrize("ending", ["failed", "cancelled"])
def test_a_job_that_did_not_end_well_has_outputs_too(tmp_path: Path, ending: str) -> None:
    async def scene() -> None:
        async with site(tmp_path) as here:
            job = here.run()
            if ending == "cancelled":
                now = here.cluster.controller.clock()
                here.cluster.controller.ask(e.CancelRequested(now, job, "ada"))
            here.cluster.end(job, code=1)
            assert here.cluster.job(job).state == ending
            await here.says(job, "outputs of b, c brought back")

    run(scene())


def test_outputs_are_the_daemons_alone_and_what_is_here_is_not_copied(tmp_path: Path) -> None:
    async def scene() -> None:
        async with site(tmp_path) as here:
            job = here.run()
            here.cluster.end(job)
            await here.says(job, "brought back")
            folder = here.outputs.directory / str(job)
            assert sorted(path.name for path in folder.iterdir()) == [
                "1.tar",
                "2.tar",
                "collection",
            ]
            assert {stat.S_IMODE(path.stat().st_mode) for path in folder.iterdir()} == {0o600}
            assert stat.S_IMODE(folder.stat().st_mode) == 0o700
            assert stat.S_IMODE(folder.parent.stat().st_mode) == 0o700
            with tarfile.open(folder / "1.tar") as archive:
                assert sorted(archive.getnames()) == ["out/same", "out/which"]

    run(scene())


def test_nothing_is_copied_of_a_job_that_names_nothing_or_ran_here_alone(tmp_path: Path) -> None:
    async def scene() -> None:
        async with site(tmp_path) as here:
            here.cluster.end(here.run(collect=()))
            here.cluster.end(here.run(nodes=1))
            last = here.run()
            here.cluster.end(last)
            await here.says(last, "brought back")  # its turn came after theirs
            assert here.outputs.numbers() == [last]

    run(scene())


def test_a_job_on_another_machine_alone_is_brought_home(tmp_path: Path) -> None:
    async def scene() -> None:
        async with site(tmp_path) as here:
            job = here.run_elsewhere(1)
            here.cluster.end(job)
            await here.says(job, "outputs of b brought back")
            here.switch_off("b")
            assert await here.pull(job) == {"out/which": "b", "out/same": "same"}

    run(scene())


def test_files_that_match_nothing_are_no_refusal(tmp_path: Path) -> None:
    async def scene() -> None:
        async with site(tmp_path) as here:
            job = here.run(collect=("nothing/**",))
            here.cluster.end(job)
            await here.says(job, "no outputs on b, c")
            assert await here.pull(job) == {}
            assert await here.pull(job, "nothing/*") == {}

    run(scene())


# ---- a node that does not answer


def test_a_node_that_is_off_is_asked_when_it_is_heard_and_keeps_its_names(tmp_path: Path) -> None:
    async def scene() -> None:
        async with site(tmp_path) as here:
            job = here.run_elsewhere()
            here.cluster.report(e.WorkersEnded, job, "b", 0, "all ranks ended")
            here.switch_off("b")
            here.cluster.end(job)
            await here.says(job, "outputs of c brought back, ", "; b does not answer")
            here.switch_on("b")
            await here.says(job, "outputs of c, b brought back, ")
            here.switch_off("b", "c")
            found = await here.pull(job)
            assert found == {"out/which": "b", "out/which.c": "c", "out/same": "same"}

    run(scene())


def test_a_node_that_is_heard_and_fails_is_asked_again_after_a_while(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(collect_outputs, "AGAIN_S", 0.05)

    async def scene() -> None:
        async with site(tmp_path) as here:
            here.cluster.dialer.away.add(WHERE["c"])
            job = here.run()
            here.cluster.end(job)
            await here.says(job, "outputs of b brought back", "c does not answer")
            here.cluster.dialer.away.clear()
            await here.says(job, "outputs of b, c brought back")
            assert len(here.story(job)) == 2  # the same is not said twice

    run(scene())


def test_what_is_not_home_yet_comes_from_its_node(tmp_path: Path) -> None:
    async def scene() -> None:
        async with site(tmp_path) as here:
            job = here.run()
            here.cluster.report(e.WorkersEnded, job, "c", 0, "all ranks ended")
            here.cluster.controller.report(e.NodeLeft(here.cluster.controller.clock(), "c"))
            here.cluster.end(job)
            await here.says(job, "c does not answer")
            here.switch_off("b")
            assert (await here.pull(job))["out/which.c"] == "c"
            here.switch_off("c")
            found = await here.pull(job)
            assert found["out/which.b"] == "b"
            assert found["missing-from-c.txt"].startswith("c does not answer")

    run(scene())


def test_a_tar_that_ends_in_the_middle_is_not_kept(tmp_path: Path) -> None:
    async def half(connection: RpcConnection) -> None:
        request = p.decode_ask(await connection.message())
        assert isinstance(request, p.NodePull)
        await connection.send_blob(b"x" * 100)
        await connection.end_blob()
        await connection.say(m.EndOfAnswers())

    async def scene() -> None:
        async with site(tmp_path) as here:
            serve = here.cluster.dialer.serves[WHERE["b"]]
            here.cluster.dialer.serves[WHERE["b"]] = half
            job = here.run()
            here.cluster.end(job)
            await here.says(job, "outputs of c brought", "the answer of b cannot be used: it ended")
            assert not (here.outputs.directory / str(job) / "1.tar").exists()
            here.cluster.dialer.serves[WHERE["b"]] = serve
            here.switch_off("b")
            await until(lambda: "b" not in here.collector._heard, "it is missed")
            here.switch_on("b")
            await here.says(job, "outputs of c, b brought back")

    run(scene())


# ---- bounds


def test_what_is_too_large_is_not_kept_and_the_nodes_still_have_it(tmp_path: Path) -> None:
    async def scene() -> None:
        async with site(tmp_path) as here:
            here.limit = 15_000  # one tar is 10 KiB
            job = here.run()
            here.cluster.end(job)
            await here.says(job, "not brought back: they are more than 14.6 KiB (limits.outputs)")
            assert here.story(job)[-1].endswith("; b, c still have them")
            await until(lambda: not here.collector._tasks, "it is done")
            folder = here.outputs.directory / str(job)
            assert [path.name for path in folder.iterdir()] == ["collection"]
            assert len(await here.pull(job)) == 4
            opened = len(here.cluster.dialer.opened)
            await here.restart()
            here.switch_on("b")
            await until(lambda: "b" in here.collector._heard, "it is heard")
            assert len(here.cluster.dialer.opened) == opened

    run(scene())


def test_a_disk_that_would_be_full_keeps_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(disk_room, "ROOM_BYTES", 1 << 60)
    monkeypatch.setattr(disk_room, "ROOM_SHARE", 2.0)

    async def scene() -> None:
        async with site(tmp_path) as here:
            job = here.run(2)
            here.cluster.end(job)
            await here.says(
                job, "outputs are not brought back yet; those of b cannot be kept: less than"
            )
            folder = here.outputs.directory / str(job)
            await until(lambda: not here.collector._tasks, "it is done")
            assert [path.name for path in folder.iterdir()] == ["collection"]

    run(scene())


def test_two_jobs_are_collected_at_once_and_no_more(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def scene() -> None:
        async with site(tmp_path) as here:
            at_once, most = 0, 0
            gate = asyncio.Event()
            pull = here.collector.node_rpc.pull

            async def slow(node: str, request: p.NodePull) -> AsyncGenerator[bytes, None]:
                nonlocal at_once, most
                at_once += 1
                most = max(most, at_once)
                await gate.wait()
                async for piece in pull(node, request):
                    yield piece
                at_once -= 1

            monkeypatch.setattr(here.collector.node_rpc, "pull", slow)
            jobs = []
            for _ in range(4):
                jobs.append(here.run(2))
                here.cluster.end(jobs[-1])
            await until(lambda: at_once == 2 and bool(here.collector._waiting), "the others wait")
            gate.set()
            for job in jobs:
                await here.says(job, "outputs of b brought back")
            assert most == 2

    run(scene())


# ---- other attempts


def requeue(here: Site, job: int) -> None:
    ended = here.cluster.job(job)
    now = here.cluster.controller.clock()
    here.cluster.controller.ask(e.RequeueRequested(now, job, "ada", ended))


def test_a_new_attempt_takes_the_place_of_the_old_one_when_it_is_over(tmp_path: Path) -> None:
    async def scene() -> None:
        async with site(tmp_path) as here:
            job = here.run()
            here.cluster.end(job)
            await here.says(job, "brought back")
            requeue(here, job)
            here.cluster.prepare(job)
            here.cluster.start(job)
            here.write(job, " again")
            assert (await here.pull(job))["out/which.b"] == "b again"  # it runs: from the nodes
            here.cluster.end(job)
            await until(lambda: len(here.story(job)) == 2, "they are home again")
            here.switch_off("b", "c")
            assert (await here.pull(job))["out/which.b"] == "b again"

    run(scene())


def test_an_attempt_that_never_started_leaves_the_outputs_of_the_one_before(tmp_path: Path) -> None:
    async def scene() -> None:
        async with site(tmp_path) as here:
            job = here.run()
            here.cluster.end(job)
            await here.says(job, "brought back")
            requeue(here, job)
            now = here.cluster.controller.clock()
            here.cluster.controller.ask(e.CancelRequested(now, job, "ada"))
            here.cluster.end(job)
            attempt = here.cluster.job(job).attempt
            assert attempt is not None
            assert (attempt.number, attempt.ordered) == (2, False)
            here.switch_off("b", "c")
            assert (await here.pull(job))["out/which.c"] == "c"
            assert len(here.story(job)) == 1

    run(scene())


def test_a_new_attempt_here_alone_ends_what_was_kept(tmp_path: Path) -> None:
    async def scene() -> None:
        async with site(tmp_path) as here:
            job = here.run_elsewhere(1)
            here.cluster.end(job)
            await here.says(job, "brought back")
            requeue(here, job)
            assert here.names(job) == ("a",)
            here.cluster.start(job)
            here.write(job)
            here.cluster.end(job)
            await until(lambda: here.outputs.numbers() == [], "nothing is kept")
            assert await here.pull(job) == {"out/which": "a", "out/same": "same"}

    run(scene())


# ---- restarts, and jobs that are forgotten


def test_a_job_that_cannot_be_read_keeps_its_outputs_and_stops_no_others(tmp_path: Path) -> None:
    async def scene() -> None:
        async with site(tmp_path) as here:
            job = here.run()
            here.cluster.end(job)
            await here.says(job, "brought back")
            assert here.outputs.numbers() == [job]
            here.cluster.store.db.execute("UPDATE jobs SET body = CAST('{}' AS BLOB)")
            await here.restart()
            assert here.outputs.numbers() == [job]
            other = here.run()
            here.cluster.end(other)
            await here.says(other, "brought back")

    run(scene())


def test_a_daemon_that_comes_back_takes_up_what_was_not_complete(tmp_path: Path) -> None:
    async def scene() -> None:
        async with site(tmp_path) as here:
            await here.collector.close()
            here.cluster.on_change = lambda: None
            never_begun = here.run()
            here.cluster.end(never_begun)
            await here.restart()
            await here.says(never_begun, "outputs of b, c brought back")
            half = here.run()
            here.cluster.report(e.WorkersEnded, half, "c", 0, "all ranks ended")
            here.switch_off("c")
            here.cluster.end(half)
            await here.says(half, "c does not answer")
            (here.outputs.directory / str(half) / ".left").touch()
            await here.restart()
            here.switch_on("c")
            await here.says(half, "outputs of b, c brought back")
            names = sorted(path.name for path in (here.outputs.directory / str(half)).iterdir())
            assert names == ["1.tar", "2.tar", "collection"]
            opened = len(here.cluster.dialer.opened)
            await here.restart()
            here.switch_off("b")
            await until(lambda: here.collector._heard == {"a", "c"}, "it has looked")
            assert len(here.cluster.dialer.opened) == opened  # what is complete is not asked for

    run(scene())


def test_a_job_cancelled_while_it_waits_to_start_again_is_collected(tmp_path: Path) -> None:
    async def scene() -> None:
        async with site(tmp_path) as here:
            job = here.run()
            now = here.cluster.controller.clock()
            here.cluster.controller.report(e.NodeDrained(now, "c", "ada", ""))
            here.cluster.controller.ask(e.RequeueRequested(now, job, "ada"))
            here.cluster.end(job)
            assert here.cluster.job(job).state == "queued"
            here.cluster.controller.ask(e.CancelRequested(now, job, "ada"))
            await here.says(job, "outputs of b, c brought back")

    run(scene())


def test_outputs_go_with_their_job_also_while_they_come(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def scene() -> None:
        async with site(tmp_path) as here:
            done = here.run()
            here.cluster.end(done)
            await here.says(done, "brought back")
            gate = asyncio.Event()

            async def never(node: str, request: p.NodePull) -> AsyncGenerator[bytes, None]:
                yield b"x"
                gate.set()
                await asyncio.Event().wait()

            monkeypatch.setattr(here.collector.node_rpc, "pull", never)
            comes = here.run()
            here.cluster.end(comes)
            await gate.wait()
            for job in (done, comes):
                here.cluster.store.forget([job])
                await here.collector.forget(job)
            assert here.outputs.numbers() == []
            assert here.collector._tasks == {}

    run(scene())


def test_outputs_of_jobs_that_are_no_more_go_at_the_start(tmp_path: Path) -> None:
    async def scene() -> None:
        async with site(tmp_path) as here:
            job = here.run()
            here.cluster.end(job)
            await here.says(job, "brought back")
            here.cluster.store.forget([job])
            await here.restart()
            assert here.outputs.numbers() == []

    run(scene())


def test_a_record_that_cannot_be_read_is_begun_again(tmp_path: Path) -> None:
    async def scene() -> None:
        async with site(tmp_path) as here:
            job = here.run()
            here.cluster.end(job)
            await here.says(job, "brought back")
            await until(lambda: not here.collector._tasks, "it is done")
            (here.outputs.directory / str(job) / "collection").write_bytes(b"{")
            assert here.outputs.of(here.cluster.job(job)) is None
            await here.restart()
            await until(lambda: len(here.story(job)) == 2, "they are home again")

    run(scene())


# ---- pull with globs


def test_globs_ask_the_nodes_which_have_more_than_what_was_collected(tmp_path: Path) -> None:
    async def scene() -> None:
        async with site(tmp_path) as here:
            job = here.run()
            here.cluster.end(job)
            await here.says(job, "brought back")
            assert await here.pull(job, "else") == {"else": "x"}
            here.switch_off("c")
            found = await here.pull(job, "else", "out/wh*")
            note = found.pop("missing-from-c.txt")
            assert "only those are here that were brought back" in note
            assert found == {"else": "x", "out/which": "a", "out/which.b": "b", "out/which.c": "c"}

    run(scene())


# ---- what is said


@pytest.mark.parametrize(
    ("collection", "missing", "text"),
    [
        (
            {"parts": {"b": CollectedPart(3, 12 << 20)}},
            {"c": "c does not answer"},
            "outputs of b brought back, 12 MiB; c does not answer",
        ),
        (
            {
                "parts": {
                    "b": CollectedPart(1, 1024, "some files of b could not be read"),
                    "c": CollectedPart(0, 0),
                }
            },
            {},
            "outputs of b brought back, 1 KiB; some files of b could not be read",
        ),
        ({}, {"b": "b does not answer"}, "outputs are not brought back yet; b does not answer"),
    ],
)
def test_the_story_says_what_is_home(
    collection: dict[str, Any], missing: dict[str, str], text: str
) -> None:
    made = replace(Collection(1, 1, ("a", "b", "c"), "a"), **collection)
    assert sentence(made, missing) == text


# ---- real daemons

WRITES = """
import os, pathlib
pathlib.Path("out").mkdir()
pathlib.Path("out/" + os.environ["RANK"]).write_text("of rank " + os.environ["RANK"])
"""


@pytest.fixture(scope="module")
def cluster() -> Iterator[list[PrivateDaemon]]:
    with private_cluster() as daemons:
        yield daemons


def test_a_machine_that_is_switched_off_after_the_job_does_not_take_its_outputs_along(
    cluster: list[PrivateDaemon],
) -> None:
    a, b, c = cluster
    job = b.submit(WRITES, nodes=3, collect=("out/*",))
    assert b.end_of(job).state == "done"

    wait_until(lambda: "outputs of b, c brought back" in last_line(a, job), 60, "they are home")
    c.stop()
    try:
        a.stop()
        a.start()
        with a.client.pull(job) as blob:
            data = b"".join(iter(lambda: blob.read(1 << 16), b""))
    finally:
        c.start()
    assert unpacked(data) == {f"out/{rank}": f"of rank {rank}" for rank in range(3)}


def test_a_member_that_is_off_when_the_job_ends_is_asked_when_it_is_back(
    cluster: list[PrivateDaemon], tmp_path: Path
) -> None:
    a, _, c = cluster
    go = tmp_path / "go"
    wait = "import sys, time\nwhile not os.path.exists(sys.argv[1]): time.sleep(0.02)\n"
    script = WRITES + "print('written', flush=True)\n" + wait
    job = a.submit(command=("python", "-c", script, str(go)), nodes=3, collect=("out/*",))
    wait_until(lambda: a.output(job) == ["written"] * 3, 60, "all have written")
    c.kill()
    try:
        wait_until(lambda: node_states(a)["c"] == "lost", 60, "c is missed")
        a.client.declare_lost("c")
        assert a.end_of(job).state == "failed"
        missed = "outputs of b brought back"
        wait_until(lambda: missed in last_line(a, job), 60, "it is said who is missing")
        assert last_line(a, job).endswith("c does not answer")
    finally:
        c.start()
    wait_until(lambda: "outputs of b, c brought back" in last_line(a, job), 60, "they are home")
    go.touch()
    c.no_process_is_left()


def last_line(daemon: PrivateDaemon, job: int) -> str:
    return daemon.client.show(job).story[-1].text


def test_outputs_are_pruned_with_their_job(cluster: list[PrivateDaemon]) -> None:
    a, _, _ = cluster
    job = a.submit(WRITES, use=("b",), collect=("out/*",))
    assert a.end_of(job).state == "done"
    wait_until(lambda: "outputs of b brought back" in last_line(a, job), 60, "they are home")
    folder = a.paths.state / "outputs" / str(job)
    assert folder.exists()
    a.paths.config.write_text("[limits]\nkeep = 1\n")
    assert a.process is not None
    a.process.send_signal(signal.SIGHUP)
    wait_until(lambda: "settings read again" in a.said(), 60, "it has read them")
    last = a.submit("pass", use=("b",))
    a.end_of(last)
    wait_until(lambda: not folder.exists(), 60, "they are gone")

    def all_gone() -> bool:
        left = {path.name for daemon in cluster for path in daemon.paths.jobs.glob("[0-9]*")}
        return left <= {str(last)}

    wait_until(all_gone, 60, "the jobs' files are gone everywhere")
    for daemon in cluster:
        daemon.no_process_is_left()
