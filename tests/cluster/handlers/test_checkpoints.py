"""Before an attempt that follows another, all its nodes get one machine's checkpoints, whole."""

from __future__ import annotations

import asyncio
import contextlib
import io
import os
import signal
import sys
import tarfile
from collections.abc import AsyncGenerator, AsyncIterator
from pathlib import Path
from typing import Any

import pytest

from tests.cluster.connections import FakeNode, run, until
from tests.cluster.control.world import World
from tests.cluster.requesting import Coordinator, coordinator
from tests.kit.conditions import wait_until
from tests.kit.daemons import PrivateDaemon, private_cluster
from wiiiiided.cluster.allocation.archive_cache import Archives
from wiiiiided.cluster.allocation.checkpoints import Placer
from wiiiiided.cluster.allocation.job_dirs import JobDirs
from wiiiiided.cluster.allocation.shim_order import HostContext
from wiiiiided.cluster.allocation.spawn import JobAccount
from wiiiiided.cluster.control import events as e
from wiiiiided.cluster.control.job import Saved
from wiiiiided.cluster.handlers.checkpoints import Checkpoints
from wiiiiided.cluster.handlers.merge_tars import END
from wiiiiided.cluster.handlers.node_rpc import NoAnswer
from wiiiiided.cluster.peering import messages as p
from wiiiiided.cluster.rpc.errors import Refuse
from wiiiiided.cluster.system.settings import Settings
from wiiiiided.domain.spec import Output, Restart
from wiiiiided.errors import HostError

WHERE = {"b": "10.0.0.2", "c": "10.0.0.3"}


def wide(step: int, host: int = 0) -> str:
    return f"ckpt/step-{step:010}.host-{host}.90afb240d9bf7c50.wide"


class Site:
    """A coordinator, and a job on a, b and c whose second attempt is being prepared."""

    def __init__(self, cluster: Coordinator, on: str, named: bool) -> None:
        self.cluster = cluster
        self.limit = 1 << 30
        self.sets = self.new()
        policy = {"restart": Restart(max=9, backoff_s=0.0)}
        output = Output(checkpoints=("ckpt/**",) if named else ())
        self.let_on(on)
        self.job = cluster.submit(nodes=len(on), output=output, policy=policy)

    def let_on(self, names: str) -> None:
        """The next attempt is on these."""
        controller = self.cluster.controller
        for name in "abc":
            rest = () if name in names else ("for the test",)
            kind: Any = e.NodeDrained if rest else e.NodeResumed
            controller.report(kind(controller.clock(), name, "root", *rest))

    def new(self) -> Checkpoints:
        node_rpc = self.cluster.requests.ranks.node_rpc
        directory = self.cluster.archives.directory.with_name("checkpoints")
        made = Checkpoints(directory, node_rpc, self.cluster.controller, lambda: self.limit)
        self.cluster.on_change = made.changed
        made.start()
        return made

    def fail(self, on: str = "abc") -> None:
        """The attempt ends badly, and the next is placed."""
        self.cluster.start(self.job)
        self.let_on(on)
        self.cluster.end(self.job, code=1)
        self.cluster.controller.tick()
        assert self.cluster.job(self.job).state == "starting"

    def node(self, name: str) -> FakeNode:
        found: FakeNode = getattr(self.cluster, name)
        return found

    def give(self, **content: str) -> None:
        """To each node named, a checkpoint that says so much, and what is none."""
        for name, text in content.items():
            self.node(name).give({"ckpt/model": text, "log": "x"}, self.job)

    def save(self, step: int, *names: str) -> None:
        """On each node, as its host of wide.parallel."""
        for name in names:
            self.node(name).give({wide(step): f"{name}'s"}, self.job)

    def switch_off(self, name: str) -> None:
        self.cluster.dialer.away.add(WHERE[name])

    @property
    def attempt(self) -> int:
        attempt = self.cluster.job(self.job).attempt
        assert attempt is not None
        return attempt.number

    async def files(self) -> dict[str, str] | None:
        """What all nodes get; None: each keeps what it has."""
        with open(await self.sets.bring(self.job, self.attempt), "rb") as file:
            content = file.read()
        if not content:
            return None
        with tarfile.open(fileobj=io.BytesIO(content)) as archive:
            return {one.name: archive.extractfile(one).read().decode() for one in archive}  # type: ignore[union-attr]

    def story(self) -> str:
        return [text for _, text in self.cluster.store.story(self.job) if "checkpoints" in text][-1]


@contextlib.asynccontextmanager
async def site(directory: Path, on: str = "abc", *, named: bool = True) -> AsyncIterator[Site]:
    with coordinator(directory) as cluster:
        made = Site(cluster, on, named)
        try:
            yield made
        finally:
            await made.sets.close()


def test_the_set_is_that_of_the_machine_that_had_rank_0(tmp_path: Path) -> None:
    async def scene() -> None:
        async with site(tmp_path) as here:
            here.fail()
            here.give(a="40", b="30", c="20")
            both = await asyncio.gather(here.files(), here.files())
            assert both == [{"ckpt/model": "40"}] * 2
            assert "checkpoints of a go to b, c: 1 file, " in here.story()
            here.give(a="50")  # it is the attempt's from then on, also of a coordinator that dies
            await here.sets.close()
            here.sets = here.new()
            assert await here.files() == {"ckpt/model": "40"}
            (path,) = here.sets.directory.iterdir()
            here.fail()
            assert not path.exists()
            assert await here.files() == {"ckpt/model": "50"}

    run(scene())


def test_of_a_machine_that_is_gone_another_is_taken_and_named(tmp_path: Path) -> None:
    async def scene() -> None:
        async with site(tmp_path) as here:
            here.fail()
            here.give(b="30", c="20")
            real = here.sets.node_rpc.pull

            async def pull(node: str, asked: p.NodePull) -> AsyncGenerator[bytes, None]:
                if node == "a":
                    raise NoAnswer("a does not answer")
                async for piece in real(node, asked):
                    yield piece
                    if node == "b":
                        raise NoAnswer("b does not answer")  # in the middle of it

            here.sets.node_rpc.pull = pull  # type: ignore[method-assign]
            assert await here.files() == {"ckpt/model": "20"}
            said = here.story()
            assert "checkpoints of c go to a, b: 1 file" in said
            assert said.endswith("since a does not answer; b does not answer")

    run(scene())


def test_without_any_of_them_the_attempt_fails_with_a_sentence(tmp_path: Path) -> None:
    async def scene() -> None:
        async with site(tmp_path) as here:
            here.fail()
            here.give(a="40")
            here.node("a").job_dirs.mark_placing(here.job, placing=True)
            for name in "bc":
                here.switch_off(name)
            with pytest.raises(HostError) as caught:
                await here.files()
            assert "those on a were being exchanged" in str(caught.value)
            assert "b does not answer" in str(caught.value)
            here.node("a").job_dirs.mark_placing(here.job, placing=False)
            here.limit = 100
            with pytest.raises(
                HostError, match=r"those on a are too large: .* \(limits\.outputs\)"
            ):
                await here.files()
            assert not list(here.sets.directory.glob("*.tar"))

    run(scene())


def test_where_no_machine_has_ever_made_the_directory_the_set_is_empty(tmp_path: Path) -> None:
    async def scene() -> None:
        async with site(tmp_path) as here:
            here.fail()
            fd = await here.sets.bring(here.job, here.attempt)
            with open(fd, "rb") as file:
                assert file.read() == END
            assert "no checkpoints: a, b, c never had its working directory" in here.story()

    run(scene())


def test_an_attempt_that_is_over_meanwhile_needs_none(tmp_path: Path) -> None:
    async def scene() -> None:
        async with site(tmp_path) as here:
            here.fail()
            hangs = asyncio.Event()

            async def pull(node: str, asked: p.NodePull) -> AsyncGenerator[bytes, None]:
                hangs.set()
                await asyncio.sleep(600)
                yield b""

            here.sets.node_rpc.pull = pull  # type: ignore[method-assign]
            waiting = asyncio.ensure_future(here.files())
            await hangs.wait()
            controller = here.cluster.controller
            controller.report(e.CancelRequested(controller.clock(), here.job, "ada"))
            with pytest.raises(HostError, match="not being prepared any more"):
                await waiting
            await until(lambda: not list(here.sets.directory.iterdir()), "nothing is left")

    run(scene())


def test_a_machine_on_which_it_runs_gives_no_checkpoints(tmp_path: Path) -> None:
    async def scene() -> None:
        async with site(tmp_path) as here:
            here.give(a="40")
            a = here.node("a")
            a.workers.shims[here.job, 1] = object()
            asked = p.NodePull(here.job, ("ckpt/**",), checkpoints=True)
            with pytest.raises(Refuse, match="still runs on a"):
                async for _ in a.allocations.pull(asked):
                    pass

    run(scene())


# ---- files of wide.parallel


def test_a_machine_that_was_away_still_has_what_counts_when_it_is_back(tmp_path: Path) -> None:
    async def scene() -> None:
        async with site(tmp_path, "a", named=False) as here:
            here.fail(on="b")
            here.save(500, "a")
            here.node("a").workers.shims[here.job, 1] = object()  # it answers, and can give none
            assert await here.files() is None
            without = "begins without checkpoints of wide.parallel, if there are any"
            why = f"something of job {here.job} still runs on a"
            assert here.story() == f"{without}: {why}"
            here.fail(on="c")
            here.save(20, "b")
            here.node("a").workers.shims.clear()
            assert await here.files() == {wide(500): "a's"}
            assert "checkpoints of a go to c: 1 file" in here.story()
            here.fail(on="a")  # before c has placed them
            told = here.story()
            assert await here.files() is None  # a has the newest itself
            assert here.story() == told
            here.fail(on="a")
            here.switch_off("b")
            assert await here.files() is None
            said = here.story()
            assert said.startswith("goes on from the checkpoints on a: b does not answer"), said

    run(scene())


def test_a_machine_that_was_only_among_the_last_ones_need_not_have_the_files(
    tmp_path: Path,
) -> None:
    async def scene() -> None:
        async with site(tmp_path, "ab", named=False) as here:
            here.save(500, "a")
            here.save(480, "b")  # its disk was full then
            here.fail(on="bc")
            assert await here.files() == {wide(500): "a's"}
            assert "checkpoints of a go to b, c: 1 file" in here.story()
            here.fail(on="bc")
            here.save(500, "b")
            assert await here.files() is None  # nothing is newer than what b has

    run(scene())


def test_the_newest_step_of_each_folder_is_sent_alone(tmp_path: Path) -> None:
    async def scene() -> None:
        async with site(tmp_path, "a", named=False) as here:
            other = {f"x[1]*?/{Path(wide(step)).name}": "x" * 900 for step in (40, 50)}
            here.node("a").give({wide(step): "y" * 900 for step in (300, 400)}, here.job)
            here.node("a").give({**other, wide(400, 1): "z"}, here.job)
            here.fail(on="b")
            here.limit = 12_000  # a tar has whole blocks, and ends with 10 kB
            files = await here.files()
            assert files is not None
            assert sorted(files) == sorted([wide(400), wide(400, 1), [*other][1]])
            here.fail(on="b")
            here.limit = 1000
            with pytest.raises(
                HostError, match=r"more than .* \(limits\.outputs\), to be raised on"
            ):
                await here.files()

    run(scene())


def test_where_the_newest_is_gone_before_it_is_sent_what_the_nodes_have_stays(
    tmp_path: Path,
) -> None:
    async def scene() -> None:
        async with site(tmp_path, "ab", named=False) as here:
            here.save(500, "a")
            here.save(480, "b")
            here.fail(on="bc")
            real = here.sets.node_rpc.pull

            async def pull(node: str, asked: p.NodePull) -> AsyncGenerator[bytes, None]:
                if node == "a" and not asked.names:
                    raise NoAnswer("a does not answer")
                async for piece in real(node, asked):
                    yield piece

            here.sets.node_rpc.pull = pull  # type: ignore[method-assign]
            assert await here.files() is None
            assert here.story() == "goes on from the checkpoints on b: a does not answer"

    run(scene())


def test_an_exchange_that_was_cut_short_keeps_no_file_of_wide_parallel_back(
    tmp_path: Path,
) -> None:
    async def scene() -> None:
        async with site(tmp_path, "a", named=False) as here:
            here.save(500, "a")
            here.node("a").job_dirs.mark_placing(here.job, placing=True)
            here.fail(on="b")
            assert await here.files() == {wide(500): "a's"}

    run(scene())


def test_where_the_job_file_names_files_of_wide_parallel_the_newest_step_counts(
    tmp_path: Path,
) -> None:
    async def scene() -> None:
        async with site(tmp_path) as here:
            here.fail()
            here.save(20, "a", "c")
            here.save(500, "b")
            assert await here.files() == {wide(500): "b's"}
            here.fail(on="bca")
            for name in "abc":
                here.node(name).job_dirs.mark_placing(here.job, placing=True)
            with pytest.raises(HostError, match="those on a were being exchanged"):
                await here.files()

    run(scene())


def test_named_files_of_an_earlier_attempt_do_not_undo_what_a_later_one_has_done(
    tmp_path: Path,
) -> None:
    async def scene() -> None:
        async with site(tmp_path, "a") as here:
            here.fail(on="b")
            here.give(a="20", b="30")
            here.save(20, "a")
            here.fail(on="c")
            here.switch_off("b")
            with pytest.raises(HostError, match="b does not answer"):
                await here.files()
            (here.node("a").job_dirs.work(here.job) / wide(20)).unlink()
            here.cluster.dialer.away.clear()
            assert await here.files() == {"ckpt/model": "30"}
            here.fail(on="a")
            here.give(c="40")
            assert await here.files() == {"ckpt/model": "40"}
            here.fail(on="a")
            told = here.story()
            assert await here.files() is None  # its own, as rank 0 was on it
            assert here.story() == told

    run(scene())


# ---- placing them on a node


def placer(folder: Path, name: str, content: dict[str, str] | None) -> tuple[Placer, JobDirs]:
    """On a node, for which that set is there; None: it is to keep what it has."""
    job_dirs, archives = JobDirs(folder / "jobs", JobAccount.this()), Archives(folder / "archives")
    here = HostContext(name, JobAccount.this(), sys.executable, {}, os.getuid())

    async def bring(job: int, attempt: int) -> int:
        path = folder / "set.tar"
        path.touch()
        if content is not None:
            with tarfile.open(path, "w", format=tarfile.PAX_FORMAT) as archive:
                for one, text in content.items():
                    entry = tarfile.TarInfo(one)
                    entry.size = len(text)
                    archive.addfile(entry, io.BytesIO(text.encode()))
        return os.open(path, os.O_RDONLY)

    with tarfile.open(archives.path("0" * 64), "w"):
        pass
    return Placer(job_dirs, archives, here, Settings, bring), job_dirs


def placed(job_dirs: JobDirs, job: int) -> dict[str, str]:
    work = job_dirs.work(job)
    return {str(one.relative_to(work)): one.read_text() for one in work.rglob("*.wide")}


def write(job_dirs: JobDirs, job: int, name: str) -> None:
    (job_dirs.work(job) / "ckpt").mkdir(parents=True)
    (job_dirs.work(job) / name).write_text("its own")


def test_where_nothing_is_sent_a_node_keeps_what_it_has(tmp_path: Path) -> None:
    async def scene() -> None:
        world = World()
        job = world.job(world.submit(resumes=Saved(17, ("a",))))
        made, job_dirs = placer(tmp_path, "a", None)
        write(job_dirs, job.id, wide(500))
        assert await made.place(job, 1) == ""
        assert placed(job_dirs, job.id) == {wide(500): "its own"}

    run(scene())


@pytest.mark.parametrize(
    ("nodes", "placing", "expected"),
    [
        (("b", "a"), False, {wide(500, 1): "its own"}),
        (("b",), False, {wide(500): "b's"}),  # another cluster's job 17 may have been here
        (("b", "a"), True, {wide(500): "b's"}),
    ],
)
def test_a_node_of_the_other_job_takes_its_own_files_of_the_newest_step(
    nodes: tuple[str, ...], placing: bool, expected: dict[str, str], tmp_path: Path
) -> None:
    async def scene() -> None:
        world = World()
        job = world.job(world.submit(resumes=Saved(17, nodes)))
        made, job_dirs = placer(tmp_path, "a", {wide(500): "b's"})
        write(job_dirs, 17, wide(500, 1))
        job_dirs.mark_placing(17, placing=placing)
        assert await made.place(job, 1) == ""
        assert placed(job_dirs, job.id) == expected
        assert placed(job_dirs, 17) == {wide(500, 1): "its own"}

    run(scene())


# ---- real daemons

# What most scripts do: rank 0 saves, every rank loads what is there. One machine has a set of its
# own, of other files too.
IDIOM = """
import os, pathlib, signal, sys, time
rank, attempt = os.environ["RANK"], int(os.environ["TORCHELASTIC_RESTART_COUNT"])
found = {str(p): p.read_text() for p in sorted(pathlib.Path("ckpt").rglob("*")) if p.is_file()}
print(attempt, found, flush=True)
pathlib.Path("ckpt/more").mkdir(parents=True, exist_ok=True)
if rank == "0":
    pathlib.Path("ckpt/model").write_text("%d steps" % (attempt * 100 + 100))
    pathlib.Path("ckpt/more/state").write_text("of rank 0")
if rank == "2" and not attempt:
    pathlib.Path("ckpt/model").write_text("7 steps")
    pathlib.Path("ckpt/other").symlink_to("/etc/passwd")
while not os.path.exists(sys.argv[1] + str(attempt)): time.sleep(0.02)
os.kill(os.getpid(), signal.SIGKILL if attempt < 2 else 0)
"""


def test_every_rank_loads_what_rank_0_saved_whichever_machine_dies_meanwhile(
    tmp_path: Path,
) -> None:
    with private_cluster(3) as (a, b, c):
        policy = {"restart": Restart(max=5, backoff_s=2.0), "grace_s": 1.0}
        job = b.submit(
            command=("python", "-c", IDIOM, str(tmp_path / "go")),
            nodes=3,
            policy=policy,
            checkpoints=("ckpt/**",),
        )
        loaded = {attempt: loads(a, job, attempt) for attempt in go_on(a, job, tmp_path, 0)}
        assert loaded[1] == ["0 {}"] * 3
        story = [line.text for line in a.client.show(job).story]
        said = f"checkpoints of {a.client.status().node.name} go to b, c: 2 files"
        assert any(said in text for text in story), story
        aside = c.paths.jobs / str(job) / "files" / "aside-2"
        assert f"on c 2 files that differ were moved to {aside}" in story
        assert (aside / "ckpt" / "model").read_text() == "7 steps"
        assert os.readlink(aside / "ckpt" / "other") == "/etc/passwd"

        # The next time the coordinator dies while the nodes are being given theirs.
        (tmp_path / "go1").touch()
        wait_until(lambda: a.state(job) == "backoff", 60, "it is to start again")
        assert b.process is not None
        b.process.send_signal(signal.SIGSTOP)
        try:
            wait_until(lambda: a.state(job) in ("starting", "queued"), 60, "it is prepared")
            a.kill()
            a.start()
        finally:
            b.process.send_signal(signal.SIGCONT)
        (tmp_path / "go2").touch()
        view = a.end_of(job)
        assert view.state == "done", view.why
        saved = "{'ckpt/model': '200 steps', 'ckpt/more/state': 'of rank 0'}"
        assert loads(a, job, view.attempt) == [f"2 {saved}"] * 3
        assert not list(a.paths.state.joinpath("checkpoints").iterdir())
        for daemon in (a, b, c):
            daemon.no_process_is_left()


def go_on(a: PrivateDaemon, job: int, folder: Path, attempt: int) -> list[int]:
    """Let an attempt fail, and the next one load."""
    wait_until(lambda: len(loads(a, job, attempt + 1)) == 3, 60, "all have loaded")
    (folder / f"go{attempt}").touch()
    wait_until(lambda: len(loads(a, job, attempt + 2)) == 3, 60, "all have loaded again")
    saved = "{'ckpt/model': '100 steps', 'ckpt/more/state': 'of rank 0'}"
    assert loads(a, job, attempt + 2) == [f"{attempt + 1} {saved}"] * 3
    return [attempt + 1, attempt + 2]


def loads(a: PrivateDaemon, job: int, attempt: int) -> list[Any]:
    try:
        return a.output(job, attempt=attempt)
    except Exception:
        return []
