"""A job that begins with another's checkpoints: whose, from where, and why not."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from tests.cluster.connections import run
from tests.cluster.control.world import spec
from tests.cluster.handlers.test_submissions import DATA, EVE, digest, keep
from tests.cluster.requesting import ADA, ROOT, Coordinator, coordinator
from tests.kit.conditions import wait_until
from tests.kit.daemons import PrivateDaemon, private_cluster, private_daemon
from wiiiiided.cluster.client.errors import DaemonRefused
from wiiiiided.cluster.control.job import Saved
from wiiiiided.cluster.handlers.checkpoint_search import holders
from wiiiiided.cluster.rpc import messages as m
from wiiiiided.cluster.shim.checkpoints import newest_steps
from wiiiiided.cluster.shim.collect_files import matcher
from wiiiiided.domain.checkpoint_files import WIDE_FILES
from wiiiiided.domain.exit_codes import FAILED, NO_SUCH, NOT_ALLOWED
from wiiiiided.domain.spec import Output, Restart

MODEL = "90afb240d9bf7c50"


def name(step: int, host: int = 0) -> str:
    return f"ckpt/step-{step:010}.host-{host}.{MODEL}.wide"


def over(cluster: Coordinator, code: int = 1, nodes: int = 1) -> int:
    """A job of ada's that has ended."""
    job = cluster.submit(nodes=nodes)
    cluster.start(job)
    cluster.end(job, code=code)
    return job


def resuming(job: int, **given: Any) -> m.SubmitResuming:
    made = spec(**given)
    return m.SubmitResuming(made, digest(DATA), len(DATA), hold=True, resumes=job)


def test_the_names_that_the_trainer_gives_are_those_that_the_daemon_looks_for() -> None:
    from wiiiiided.train.checkpoints.file import FileHead

    assert name(120, 3) == f"ckpt/{FileHead(120, 3, 4, 8, MODEL).name(MODEL)}"
    is_wanted = matcher([WIDE_FILES])
    assert is_wanted(name(120))
    assert is_wanted(name(7).removeprefix("ckpt/"))
    assert not is_wanted(name(120) + ".damaged")
    assert newest_steps([name(7), "log", name(120, 3), name(999) + ".5.tmp"]) == (120,)
    of_two = [name(7), name(900), f"tuned/{name(3)}", f"tuned/{name(40)}"]
    assert newest_steps(of_two) == (900, 40)
    assert newest_steps(["log"]) == ()


def test_a_job_goes_on_from_one_of_its_owner_that_is_over(tmp_path: Path) -> None:
    async def scene() -> None:
        with coordinator(tmp_path) as cluster:
            keep(cluster)
            job = over(cluster)
            cluster.a.give({name(7): "x"}, job)
            for caller in (ADA, ROOT):
                answer = await cluster.one(resuming(job), caller)
                made = cluster.job(answer.id)
                assert made.resumes == Saved(job, ("a",))
            story = cluster.store.story(answer.id)
            assert story[0][1] == f"submitted by root, goes on from job {job}, held"

    run(scene())


def test_why_it_cannot_is_said_before_anything_is_queued(tmp_path: Path) -> None:
    async def scene() -> None:
        with coordinator(tmp_path) as cluster:
            keep(cluster)
            job, live = over(cluster), cluster.submit()
            cluster.start(live)
            held = m.Submit(spec(), digest(DATA), len(DATA), hold=True)
            never = (await cluster.one(held, ADA)).id
            await cluster.one(m.Cancel(never))
            first = cluster.store.next_id()

            async def refusal(number: int, caller: Any = ADA, **given: Any) -> tuple[int, str]:
                said = await cluster.one(resuming(number, **given), caller)
                assert isinstance(said, m.Refusal), said
                return said.code, said.message

            no_file = f"no file in its working directory matches {WIDE_FILES}"
            none = f"job {job} has no checkpoints: {no_file}"
            cluster.a.give({"log": "x"}, job)
            assert await refusal(job) == (FAILED, none)
            cluster.a.give({name(7): "x"}, job)
            no_such = none.replace(WIDE_FILES, "best/*.pt")
            named = Output(checkpoints=("best/*.pt",))
            assert await refusal(job, output=named) == (FAILED, no_such)
            assert await refusal(999) == (NO_SUCH, "there is no job 999")
            not_hers = f"job {job} is ada's; eve may not go on from it"
            assert await refusal(job, EVE) == (NOT_ALLOWED, not_hers)
            running = f"job {live} is running: another goes on from it when it is over"
            assert await refusal(live) == (FAILED, running)
            assert (await refusal(never))[1] == f"job {never} has no checkpoints: it never ran"
            assert cluster.store.next_id() == first

    run(scene())


def test_the_machine_with_the_newest_step_gives_them(tmp_path: Path) -> None:
    async def scene() -> None:
        with coordinator(tmp_path) as cluster:
            keep(cluster)
            job = over(cluster, nodes=3)
            cluster.a.give({name(7): "x"}, job)
            cluster.c.give({name(7, 2): "x", name(40, 2): "x"}, job)
            node_rpc = cluster.requests.ranks.node_rpc
            found = await holders(node_rpc, {"b"}, Saved(job, ("a", "b"), ("c",)), (WIDE_FILES,))
            assert found.nodes == ("c", "a")
            assert found.missing == {"b": "b does not answer"}
            cluster.dialer.away |= {"10.0.0.2", "10.0.0.3"}
            assert isinstance(await cluster.one(resuming(job), ADA), m.Submitted)
            (cluster.a.job_dirs.work(job) / name(7)).unlink()
            said = await cluster.one(resuming(job), ADA)
            assert said.message.startswith(f"the checkpoints of job {job} cannot be had: b does")

    run(scene())


# ---- real daemons

# Goes on from the newest file that there is, as run.resume() would, and saves the next one.
SAVES = f"""
import pathlib, sys, time
found = sorted(str(path) for path in pathlib.Path("ckpt").glob("*.wide"))
print(found, flush=True)
step = int(found[-1][10:20]) + 10 if found else 10
pathlib.Path("ckpt").mkdir(exist_ok=True)
pathlib.Path("ckpt/step-%010d.host-0.{MODEL}.wide" % step).write_text("x" * step)
while len(sys.argv) > 1 and not pathlib.Path(sys.argv[1]).exists(): time.sleep(0.02)
sys.exit(len(sys.argv) > 1)
"""


def found(daemon: PrivateDaemon, job: int, **which: Any) -> list[str]:
    lines = daemon.output(job, **which)
    return json.loads(lines[-1].replace("'", '"')) if lines else ["nothing yet"]


def test_on_a_machine_alone_a_job_begins_with_anothers_and_leaves_them_as_they_are() -> None:
    with private_daemon() as daemon:
        first = daemon.submit(SAVES)
        assert daemon.end_of(first).state == "done"
        second = daemon.submit(SAVES, resumes=first)
        assert daemon.end_of(second).state == "done", daemon.view(second).why
        assert found(daemon, first) == []
        assert found(daemon, second) == [name(10)]
        own = daemon.paths.jobs / str(first) / "files" / "work" / "ckpt"
        assert [path.name for path in own.iterdir()] == [name(10).removeprefix("ckpt/")]
        daemon.client.requeue(second)
        wait_until(lambda: daemon.view(second).attempt == 2, 30, "it is tried again")
        assert daemon.end_of(second).state == "done"
        assert found(daemon, second) == [name(10), name(20)]
        with daemon.client.pull(second, ["ckpt/**"]) as blob:
            assert name(30).encode() in blob.read(1 << 20)
        empty = daemon.submit("print()")
        daemon.end_of(empty)
        with pytest.raises(DaemonRefused, match=f"job {empty} has no checkpoints: no file in its"):
            daemon.submit(SAVES, resumes=empty)


def test_a_job_is_not_pruned_while_another_waits_to_begin_with_its_checkpoints() -> None:
    with private_daemon(start=False) as daemon:
        daemon.paths.config.write_text("[limits]\nkeep = 1\n")
        daemon.start()
        first = daemon.submit(SAVES)
        assert daemon.end_of(first).state == "done"
        waiting = daemon.submit(SAVES, resumes=first, hold=True)
        between = [daemon.submit("print()") for _ in range(2)]
        daemon.end_of(between[-1])

        def kept() -> set[str]:
            return {path.name for path in daemon.paths.jobs.iterdir()}

        wait_until(lambda: str(between[0]) not in kept(), 30, "what nothing waits for is pruned")
        assert str(first) in kept()
        assert daemon.view(first).state == "done"
        daemon.client.release(waiting)
        assert daemon.end_of(waiting).state == "done", daemon.view(waiting).why
        assert found(daemon, waiting) == [name(10)]
        wait_until(lambda: kept() == {str(waiting)}, 30, "nothing waits for the first any more")


def test_files_follow_a_job_to_another_machine_and_into_another_job(tmp_path: Path) -> None:
    go = tmp_path / "go"
    with private_cluster(2) as (a, b):
        own = a.client.status().node.name
        policy = {"restart": Restart(max=1, backoff_s=0.5)}
        job = a.submit(command=("python", "-c", SAVES, str(go)), policy=policy, cores=1)
        wait_until(lambda: found(a, job) == [], 30, "it has begun")
        assert a.view(job).nodes == (own,)
        a.client.drain(own, "for the test")
        go.touch()
        view = a.end_of(job)
        assert (view.state, view.attempt, view.nodes) == ("failed", 2, ("b",)), view
        assert found(a, job) == [name(10)]
        a.client.resume(own)
        story = [line.text for line in a.client.show(job).story]
        assert any(text.startswith(f"checkpoints of {own} go to b: 1 file") for text in story)

        both = b.submit(SAVES, nodes=2, resumes=job)
        assert b.end_of(both).state == "done", b.view(both).why
        assert b.output(both) == [str([name(20)])] * 2
