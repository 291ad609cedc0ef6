"""Metrics of jobs through a real daemon: what is seen while they run, and what stays of them."""

from __future__ import annotations

import contextlib
import math
import sqlite3
import time
from collections.abc import Iterator
from itertools import pairwise
from typing import Any

import pytest

from tests.kit.conditions import wait_until
from tests.kit.daemons import PrivateDaemon, private_daemon
from wiiiiided.cluster.archive.pack import pack
from wiiiiided.cluster.client import DaemonRefused
from wiiiiided.cluster.rpc import messages as m
from wiiiiided.domain.metrics import RunRecord
from wiiiiided.domain.spec import JobSpec, Resources, Restart, Run

# A rank without torch: ten operations a second, half of the time waiting, but rank 1 never waits.
# It ends after so many steps, or when the test puts a file into its working directory.
RANK = """
import os, pathlib, sys, time
from wiiiiided.backend.shm import stats
page = stats.StatsPage(os.environ["WIIIIIDE_STATS"])
rank, step = int(os.environ["RANK"]), 0
while step < STEPS and not pathlib.Path("end").exists():
    time.sleep(0.1)
    page.words[stats.WORLD] = 3
    page.words[stats.OPERATIONS] += 1
    page.words[stats.BYTES] += 1000
    page.words[stats.EXCHANGE_NS] += 60_000_000
    page.words[stats.WAITING_NS] += 50_000_000 if rank != 1 else 0
    page.say(step, 100000, 1.0 / (step + 1), 32)
    step += 1
sys.exit(CODE)
"""


def rank(steps: float = math.inf, code: int = 0) -> str:
    return RANK.replace("STEPS", f"float('{steps}')").replace("CODE", str(code))


@pytest.fixture(scope="module")
def one_daemon() -> Iterator[PrivateDaemon]:
    with private_daemon() as made:
        yield made


@pytest.fixture
def daemon(one_daemon: PrivateDaemon) -> Iterator[PrivateDaemon]:
    """With an empty queue: what a failed test left there is not the next one's affair."""
    yield one_daemon
    for view in one_daemon.client.jobs().jobs:
        one_daemon.client.cancel(view.id, now=True)


def submit_named(daemon: PrivateDaemon, name: str, script: str, **rest: Any) -> int:
    """As PrivateDaemon.submit, with a name of the test's own."""
    spec = JobSpec(name, Run(("python", "-c", script)), Resources(), **rest)
    (daemon.home / "empty").mkdir(exist_ok=True)
    packed = pack(str(daemon.home / "empty"))
    try:
        return daemon.client.submit(spec, packed, {}).id
    finally:
        packed.remove()


def row(snapshot: m.Snapshot, job: int) -> m.JobRow:
    return next(row for row in snapshot.jobs if row.job.id == job)


def let_end(daemon: PrivateDaemon, job: int) -> None:
    (daemon.paths.jobs / str(job) / "files" / "work" / "end").touch()


def snapshots(daemon: PrivateDaemon, every_s: float) -> Iterator[m.Snapshot]:
    connection = daemon.client.watching(every_s)
    try:
        while True:
            answer = connection.answer()
            assert isinstance(answer, m.Snapshot)
            yield answer
    finally:
        connection.close()


def seen(daemon: PrivateDaemon, job: int) -> bool:
    """Whether the daemon knows how far a job is."""
    now = row(daemon.client.snapshot(), job).now
    return now is not None and now.step is not None and now.step > 12


def weighed(daemon: PrivateDaemon, job: int) -> bool:
    """Whether the daemon knows how large a job is."""
    now = row(daemon.client.snapshot(), job).now
    return now is not None and now.memory is not None


def rows(daemon: PrivateDaemon) -> int:
    """How many runs are in the daemon's store."""
    path = daemon.paths.state / "state.sqlite"
    with contextlib.closing(sqlite3.connect(f"file:{path}?mode=ro", uri=True)) as db:
        return int(db.execute("SELECT count(*) FROM runs").fetchone()[0])


def the_run(daemon: PrivateDaemon, job: int) -> RunRecord:
    (run,) = daemon.client.records(job).runs
    return run


def test_an_idle_machine_is_shown_as_it_is(daemon: PrivateDaemon) -> None:
    snapshot = daemon.client.snapshot()
    (node,) = snapshot.nodes
    assert (node.state, node.jobs, node.history) == ("idle", (), ())
    assert node.cpu is not None
    assert node.memory_used is not None
    assert 0 <= node.cpu <= 1
    assert 0 < node.memory_used < 1
    assert node.age_s < 1.5


def test_a_job_is_watched_and_its_straggler_named_in_one_line(daemon: PrivateDaemon) -> None:
    job = daemon.submit(rank(), workers=3)
    now = None
    for snapshot in snapshots(daemon, 0.5):
        now = row(snapshot, job).now
        if now is not None and now.straggler is not None:
            break
    assert (snapshot.every_s, now.total, len(now.ranks)) == (0.5, 100000, 3)
    assert now.straggler.rank == 1
    assert now.straggler.why.startswith(f"rank 1 on {snapshot.cluster} costs +")
    assert now.rates.samples is not None
    assert now.rates.steps is not None
    assert 0 < now.rates.samples < 32 * 3 * 15
    assert 0 < now.rates.steps < 15
    assert 0 < now.rates.waiting < 0.6
    assert now.eta_s is not None
    assert now.memory is not None
    assert now.memory > 3 << 20
    (node,) = snapshot.nodes
    assert (node.state, node.unit, node.jobs) == ("ok", "samples/s", (job,))
    assert 2 <= len(node.history) <= 60
    let_end(daemon, job)
    daemon.end_of(job)
    lines = [line for line in daemon.said().splitlines() if "step time" in line]
    assert len(lines) == 1
    assert f"job {job} (test): rank 1 on" in lines[0]
    record = the_run(daemon, job)
    assert record.ranks[1].straggled_s > 0
    assert record.ranks[0].straggled_s == 0


@pytest.mark.parametrize("every_s", [0.0, 0.2, 61.0, -1.0])
def test_watching_too_often_or_too_seldom_is_refused(daemon: PrivateDaemon, every_s: float) -> None:
    connection = daemon.client.watching(every_s)
    with pytest.raises(DaemonRefused, match=r"from 0.25 to 60 s are possible") as caught:
        connection.answer()
    connection.close()
    assert caught.value.code == 2


def test_a_very_short_job_is_recorded_from_birth_to_end(daemon: PrivateDaemon) -> None:
    job = daemon.submit(rank(steps=3), workers=2)
    daemon.end_of(job)
    run = the_run(daemon, job)
    assert (run.state, run.code, run.workers, run.attempt) == ("done", 0, 2, 1)
    assert [found.totals.operations for found in run.ranks] == [3, 3]
    assert [found.totals.step for found in run.ranks] == [2, 2]
    assert run.points
    samples = sum(p.span * (p.rates.samples or 0) for p in run.points)
    assert 0 < samples <= 2 * 3 * 32 * 1.5
    assert run.ended_at is not None
    assert run.ended_at >= run.started_at


def test_a_job_without_metrics_has_a_record_that_says_so(daemon: PrivateDaemon) -> None:
    job = daemon.submit("print('nothing to count')")
    daemon.end_of(job)
    run = the_run(daemon, job)
    assert run.state == "done"
    # What the kernel says of its processes is there, if there was time to ask; nothing else is.
    assert not any(kept.totals.measured or kept.totals.step for kept in run.ranks)
    assert not any(point.rates.measured for point in run.points)


def test_every_attempt_has_a_record_with_its_end(daemon: PrivateDaemon) -> None:
    policy = {"restart": Restart(max=1, backoff_s=0.1)}
    job = daemon.submit(rank(steps=2, code=5), policy=policy)
    daemon.end_of(job)
    runs = daemon.client.records(job).runs
    assert [(run.attempt, run.state, run.code) for run in runs] == [
        (1, "failed", 5),
        (2, "failed", 5),
    ]


def test_a_cancelled_and_a_requeued_attempt_say_so(daemon: PrivateDaemon) -> None:
    job = daemon.submit(rank(), policy={"grace_s": 1.0})
    daemon.wait_for(job, "running")
    daemon.client.requeue(job)
    wait_until(lambda: daemon.view(job).attempt == 2, 30, "the second attempt")
    daemon.wait_for(job, "running")
    daemon.client.cancel(job)
    runs = daemon.client.records(job).runs
    assert [run.state for run in runs] == ["requeued", "cancelled"]


def test_show_has_the_metrics_without_their_points(daemon: PrivateDaemon) -> None:
    job = daemon.submit(rank())
    wait_until(lambda: seen(daemon, job), 30, "the job is seen")
    run = daemon.client.show(job).run
    assert run is not None
    assert run.points == ()
    assert run.ranks[0].totals.operations > 0
    assert (run.state, run.ended_at) == ("", None)
    assert daemon.client.show(job).forecast is None
    let_end(daemon, job)
    daemon.end_of(job)
    ended = daemon.client.show(job).run
    assert ended is not None
    assert (ended.state, ended.points) == ("done", ())


def test_what_a_job_may_need_comes_from_earlier_ones_of_its_name(daemon: PrivateDaemon) -> None:
    assert daemon.client.predict("letters").runs == 0
    assert daemon.client.predict("letters").text.startswith('no earlier run named "letters"')
    for code in (0, 3, 0):
        job = submit_named(daemon, "letters", rank(code=code))
        wait_until(lambda number=job: weighed(daemon, number), 60, "its memory is known")
        let_end(daemon, job)
        daemon.end_of(job)
    found = daemon.client.predict("letters")
    assert (found.runs, found.wire_bytes) == (2, 0)
    assert found.memory is not None
    assert found.memory > 1 << 20
    assert found.time_s is not None
    assert 0 < found.time_s[0] <= found.time_s[1]
    blocker = daemon.submit(rank())
    waiting = submit_named(daemon, "letters", "pass")
    assert daemon.client.show(waiting).forecast == found
    daemon.client.cancel(waiting)
    assert daemon.client.show(waiting).forecast is None
    daemon.client.cancel(blocker)


@pytest.mark.parametrize("name", ["", "x" * 65, "a\nb"])
def test_a_name_that_is_none_is_refused(daemon: PrivateDaemon, name: str) -> None:
    with pytest.raises(DaemonRefused, match="a job's name has 1 to 64"):
        daemon.client.predict(name)


def believed(daemon: PrivateDaemon, job: int) -> bool:
    """Whether anything but what the kernel says of its processes is shown."""
    now = row(daemon.client.snapshot(), job).now
    return now is not None and (now.rates.measured or now.step is not None)


def test_a_page_that_lies_disturbs_no_other_rank(daemon: PrivateDaemon) -> None:
    script = (
        "import os, time\npath = os.environ['WIIIIIDE_STATS']\n"
        "from wiiiiided.backend.shm import stats\n"
        "open(path + '.new', 'w').close()\n"  # no sample is taken before it lies
        "page = stats.StatsPage(path + '.new')\n"
        "page.words[stats.OPERATIONS] = -1\nos.rename(path + '.new', path)\n"
        "page.use_codec('\\x1b[2J', 'evil')\nprint('up', flush=True)\n"
        "import pathlib\nwhile not pathlib.Path('half').exists(): time.sleep(0.05)\n"
        "os.truncate(path, 10)\nprint('cut', flush=True)\n"
        "while not pathlib.Path('end').exists(): time.sleep(0.05)\n"
    )
    job = daemon.submit(script)
    wait_until(lambda: "up" in daemon.output(job), 30, "the page lies")
    assert not believed(daemon, job)
    (daemon.paths.jobs / str(job) / "files" / "work" / "half").touch()
    wait_until(lambda: "cut" in daemon.output(job), 30, "the page is cut")
    assert not believed(daemon, job)
    let_end(daemon, job)
    assert daemon.end_of(job).state == "done"
    for kept in the_run(daemon, job).ranks:  # what the kernel says of it, if there was time to ask
        assert (kept.totals.operations, kept.totals.codec, kept.totals.measured) == (0, "", False)
    assert "defect" not in daemon.said()


@pytest.mark.parametrize("way", ["stop", "kill"])
def test_a_record_goes_on_after_the_daemon_was_away(way: str) -> None:
    with private_daemon() as daemon:
        job = daemon.submit(rank())
        wait_until(lambda: seen(daemon, job), 30, "the job is seen")
        if way == "kill":  # a daemon that has no time to write: wait for what it wrote before
            wait_until(lambda: rows(daemon) == 1, 30, "it was written down")
        before = the_run(daemon, job)
        getattr(daemon, way)()
        daemon.start()
        wait_until(lambda: seen(daemon, job), 30, "the job is seen again")
        let_end(daemon, job)
        daemon.end_of(job)
        after = the_run(daemon, job)
    assert after.started_at == before.started_at
    assert 0 < after.observed_s < (after.ended_at or 0.0) - after.started_at + 0.5
    ends = [(point.at - point.span, point.at) for point in after.points]
    assert all(abs(begin - end) < 0.05 for (_, end), (begin, _) in pairwise(ends))  # no hole
    assert ends[-1][1] == pytest.approx((after.ended_at or 0.0) - after.started_at, abs=2.0)
    assert after.ranks[0].totals.operations > before.ranks[0].totals.operations


def test_a_run_that_ended_while_no_daemon_was_there_has_its_end() -> None:
    with private_daemon() as daemon:
        job = daemon.submit(rank())
        wait_until(lambda: seen(daemon, job), 30, "the job is seen")
        daemon.stop()
        let_end(daemon, job)
        exit_file = daemon.paths.jobs / str(job) / "1" / "exit.json"
        wait_until(exit_file.exists, 30, "the shim has written the end")
        daemon.start()
        assert daemon.end_of(job).state == "done"
        run = the_run(daemon, job)
    assert (run.state, run.code) == ("done", 0)
    assert run.ranks[0].totals.step is not None
    assert run.ranks[0].totals.step + 1 == run.ranks[0].totals.operations


def test_a_rank_that_sleeps_is_the_straggler_of_real_training(daemon: PrivateDaemon) -> None:
    script = (
        "import os, pathlib, time, torch, torch.distributed as dist, wiiiiided.torch as wide\n"
        "dist.init_process_group('wiiiiide')\n"
        "model = torch.nn.parallel.DistributedDataParallel(torch.nn.Linear(8, 8))\n"
        "optimizer = torch.optim.SGD(model.parameters(), lr=0.01)\n"
        "step, end = 0, torch.zeros(1)\n"
        "while not end.item():\n"
        "    if dist.get_rank() == 0: time.sleep(0.05)\n"
        "    loss = model(torch.ones(4, 8)).square().mean()\n"
        "    optimizer.zero_grad(); loss.backward(); optimizer.step()\n"
        "    wide.progress(step, total=10**6, loss=loss.detach(), samples=4)\n"
        "    step += 1\n"
        "    end.fill_(pathlib.Path('end').exists())\n"
        "    dist.all_reduce(end, op=dist.ReduceOp.MAX)\n"
        "dist.destroy_process_group()\n"
    )
    job = daemon.submit(script, workers=2)
    deadline = time.monotonic() + 120
    for snapshot in snapshots(daemon, 0.5):
        found = row(snapshot, job)
        assert found.job.state in ("starting", "running"), found.job.why
        late = found.now.straggler if found.now is not None else None
        # The other rank may have been held up for a moment, and is late then, too.
        if late is not None and late.rank == 0 and late.behind > 0.2:
            break
        assert time.monotonic() < deadline, f"it is not named: {late}"
    assert found.now.loss is not None
    let_end(daemon, job)
    assert daemon.end_of(job).state == "done"
    record = the_run(daemon, job)
    assert record.ranks[1].totals.waiting_s > record.ranks[0].totals.waiting_s
    assert record.points[-1].loss is not None


# It reports nothing: no group, no progress. A child of its own burns a core.
SILENT = """
import pathlib, subprocess, sys, time
held = bytearray(b"x" * (64 << 20))
child = subprocess.Popen([sys.executable, "-c", "while True: pass"])
while not pathlib.Path("end").exists():
    time.sleep(0.1)
child.kill()
"""


def test_what_ranks_use_is_known_of_jobs_that_say_nothing(daemon: PrivateDaemon) -> None:
    job = daemon.submit(SILENT, workers=2)

    def listed() -> m.JobView:
        return next(view for view in daemon.client.jobs().jobs if view.id == job)

    wait_until(lambda: (listed().cpu or 0) > 0.2, 60, "its child's work is seen")
    assert (listed().memory or 0) > 2 * (64 << 20)
    now = row(daemon.client.snapshot(), job).now
    assert now is not None
    assert (now.step, now.rates.measured, len(now.ranks)) == (None, False, 2)
    assert all((rank.memory or 0) > 64 << 20 for rank in now.ranks)
    let_end(daemon, job)
    daemon.end_of(job)
    run = the_run(daemon, job)
    assert [rank.totals.measured for rank in run.ranks] == [False, False]
    assert all((rank.totals.cpu_s or 0) > 0 for rank in run.ranks)
    assert all((rank.memory_peak or 0) > 64 << 20 for rank in run.ranks)
    assert listed_not(daemon, job)


def listed_not(daemon: PrivateDaemon, job: int) -> bool:
    """What is over uses nothing."""
    return all(view.cpu is None for view in daemon.client.jobs(ended=50).jobs if view.id == job)
