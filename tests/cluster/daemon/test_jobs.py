"""Jobs through a real daemon and a real shim, as a client sees them."""

from __future__ import annotations

import os
import signal
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.kit.conditions import wait_until
from tests.kit.daemons import PrivateDaemon, private_daemon
from wiiiiided.cluster.client import DaemonRefused
from wiiiiided.cluster.shim.protocol import start_ticks
from wiiiiided.domain.spec import Notify, Restart

FOREVER = "import time; print('up', flush=True)\nwhile True: time.sleep(60)"


@pytest.fixture(scope="module")
def daemon() -> Iterator[PrivateDaemon]:
    with private_daemon() as made:
        yield made


def alive(pid: int) -> bool:
    """It runs; a zombie that was not reaped does not."""
    return start_ticks(pid) is not None


def running(daemon: PrivateDaemon, job: int) -> list[int]:
    """Wait until a FOREVER job has spoken; its pids."""
    daemon.wait_for(job, "running")
    wait_until(lambda: "up" in daemon.output(job), 30, "the first rank speaks")
    return daemon.pids(job)


def test_a_job_runs_as_its_ranks_and_is_done(daemon: PrivateDaemon) -> None:
    script = (
        "import os; e = os.environ; "
        "print(e['RANK'], e['WORLD_SIZE'], e['LOCAL_RANK'], e['OMP_NUM_THREADS'])"
    )
    job = daemon.submit(script, workers=2)
    view = daemon.end_of(job)
    assert (view.state, view.code, view.workers) == ("done", 0, 2)
    threads = max(1, len(os.sched_getaffinity(0)) // 2)
    assert sorted(daemon.output(job)) == [f"0 2 0 {threads}", f"1 2 1 {threads}"]
    story = [line.text for line in daemon.client.show(job).story]
    assert story[0].startswith("submitted by ")
    assert story[-1] == "done"


def test_a_failing_rank_is_named_with_its_code_and_last_words(daemon: PrivateDaemon) -> None:
    script = (
        "import os, sys, time\nif os.environ['RANK'] == '1':\n"
        "    print('no such file', file=sys.stderr); sys.exit(3)\ntime.sleep(600)"
    )
    job = daemon.submit(script, workers=2, policy={"grace_s": 1.0})
    view = daemon.end_of(job)
    assert (view.state, view.code) == ("failed", 3)
    assert "rank 1" in view.why
    detail = daemon.client.show(job)
    assert "no such file" in detail.error
    assert {rank.rank: rank.code for rank in detail.ranks}[1] == 3


def test_the_second_waits_with_a_reason_and_then_runs(daemon: PrivateDaemon) -> None:
    first = daemon.submit(FOREVER)
    second = daemon.submit("print('second')")
    assert f"job {first}" in daemon.view(second).why
    assert daemon.state(second) == "queued"
    daemon.client.cancel(first)
    assert daemon.end_of(second).state == "done"


def test_jobs_after_another_run_in_order(daemon: PrivateDaemon, tmp_path: Path) -> None:
    first = daemon.submit("print('one')", hold=True)
    second = daemon.submit("print('two')", policy={"after": (first,)})
    assert daemon.view(second).why == f"waits for job {first} (held)"
    daemon.client.release(first)
    assert daemon.end_of(second).state == "done"
    ended = [daemon.view(job).ended_at for job in (first, second)]
    assert ended == sorted(ended)  # type: ignore[type-var]


def test_a_job_after_one_that_failed_is_refused_or_cancelled(daemon: PrivateDaemon) -> None:
    first = daemon.submit("raise SystemExit(1)", hold=True)
    second = daemon.submit("print(2)", policy={"after": (first,)})
    daemon.client.release(first)
    assert daemon.end_of(second).state == "cancelled"
    with pytest.raises(DaemonRefused, match="would never run") as caught:
        daemon.submit("print(3)", policy={"after": (first,)})
    assert caught.value.code == 7
    with pytest.raises(DaemonRefused, match="no job 99999") as caught:
        daemon.submit("print(3)", policy={"after": (99999,)})
    assert caught.value.code == 6


def test_what_can_never_run_here_is_refused(daemon: PrivateDaemon) -> None:
    with pytest.raises(DaemonRefused, match="cores") as caught:
        daemon.submit("print(1)", cores=4000)
    assert caught.value.code == 7


def test_restarts_are_counted_and_the_working_directory_stays(daemon: PrivateDaemon) -> None:
    script = (
        "import os, pathlib; n = int(os.environ['TORCHELASTIC_RESTART_COUNT'])\n"
        "marks = sorted(p.name for p in pathlib.Path('.').glob('mark-*')); print(n, marks)\n"
        "pathlib.Path(f'mark-{n}').touch(); raise SystemExit(0 if n == 2 else 5 + n)"
    )
    restart = Restart(max=3, backoff_s=0.1)
    job = daemon.submit(script, policy={"restart": restart})
    view = daemon.end_of(job)
    assert (view.state, view.attempt, view.attempts) == ("done", 3, 4)
    assert daemon.output(job) == ["2 ['mark-0', 'mark-1']"]
    assert daemon.output(job, attempt=1) == ["0 []"]


def test_cancel_returns_when_nothing_runs_any_more(daemon: PrivateDaemon) -> None:
    script = (
        "import signal, subprocess, sys, time\n"
        "signal.signal(signal.SIGTERM, signal.SIG_IGN)\n"
        "child = 'import os, signal, time; os.setsid(); '\n"
        "child += 'signal.signal(signal.SIGTERM, signal.SIG_IGN); time.sleep(600)'\n"
        "children = [subprocess.Popen([sys.executable, '-c', child]) for _ in range(3)]\n"
        "print('up', *(c.pid for c in children), flush=True)\ntime.sleep(600)"
    )
    job = daemon.submit(script, policy={"grace_s": 0.5})
    wait_until(lambda: bool(daemon.output(job)), 30, "the children are up")
    pids = [int(word) for word in daemon.output(job)[0].split()[1:]] + daemon.pids(job)
    assert len(pids) == 4
    assert daemon.client.cancel(job).state == "cancelled"
    assert not [pid for pid in pids if alive(pid)]


def test_cancel_now_does_not_wait_for_the_grace(daemon: PrivateDaemon) -> None:
    script = "import signal; signal.signal(signal.SIGTERM, signal.SIG_IGN)\n" + FOREVER
    job = daemon.submit(script, policy={"grace_s": 3600.0})
    pids = running(daemon, job)
    assert daemon.client.cancel(job, now=True).state == "cancelled"
    assert not [pid for pid in pids if alive(pid)]


def test_max_time_warns_ranks_that_catch_the_signal_and_ends_with_124(
    daemon: PrivateDaemon,
) -> None:
    script = (
        "import signal, sys, time\n"
        "signal.signal(signal.SIGUSR1, lambda *_: print('warned', flush=True))\n"
        "print('up', flush=True)\nwhile True: time.sleep(60)"
    )
    # Time to begin to listen before the warning, and to say so before the end.
    policy = {"max_time_s": 12.0, "warn_before_s": 6.0, "grace_s": 1.0}
    job = daemon.submit(script, policy=policy)
    view = daemon.end_of(job)
    assert (view.state, view.code) == ("failed", 124)
    assert "warned" in daemon.output(job)


def test_a_hang_leaves_stacks_and_follows_the_policy(daemon: PrivateDaemon) -> None:
    script = (
        "import os, threading\nfrom wiiiiided.torch import progress\nprogress(1)\n"
        "def stuck_here(): threading.Event().wait()\nstuck_here()"
    )
    policy = {"hang_timeout_s": 1.5, "restart": Restart(max=1, on=("hang",), backoff_s=0.1)}
    job = daemon.submit(script, policy={**policy, "grace_s": 1.0})
    view = daemon.end_of(job, within_s=100)
    assert (view.state, view.attempt) == ("failed", 2)
    assert "made no progress" in view.why
    (dump,) = daemon.client.stacks(job)
    assert "stuck_here" in dump.text


def test_a_job_that_never_reported_progress_is_not_called_hung(daemon: PrivateDaemon) -> None:
    job = daemon.submit("import time; time.sleep(3)", policy={"hang_timeout_s": 1.0})
    assert daemon.end_of(job).state == "done"


def test_stacks_of_a_running_job(daemon: PrivateDaemon) -> None:
    job = daemon.submit(f"def deep(): exec({FOREVER!r})\ndeep()", workers=2)
    running(daemon, job)
    wait_until(lambda: len(daemon.output(job)) == 2, 30, "both ranks speak")
    dumps = daemon.client.stacks(job)
    assert [dump.rank for dump in dumps] == [0, 1]
    assert all("deep" in dump.text for dump in dumps)
    assert daemon.state(job) == "running"
    daemon.client.cancel(job, now=True)


def test_requeue_runs_it_once_more(daemon: PrivateDaemon) -> None:
    job = daemon.submit("print('again')")
    daemon.end_of(job)
    assert daemon.client.requeue(job).state in ("queued", "starting")
    wait_until(lambda: daemon.view(job).attempt == 2, 30, "a second attempt")
    assert daemon.end_of(job).state == "done"
    assert daemon.output(job) == ["again"]


def test_hold_of_a_running_job_is_refused_in_words(daemon: PrivateDaemon) -> None:
    job = daemon.submit(FOREVER)
    running(daemon, job)
    with pytest.raises(DaemonRefused, match=f"job {job} is running: hold changes nothing"):
        daemon.client.hold(job)
    daemon.client.cancel(job, now=True)


def test_secrets_reach_the_rank_and_no_other_process(daemon: PrivateDaemon) -> None:
    value = "s3cret-value-7731"
    script = "import os, time; print('up', os.environ['TOKEN'][::-1], flush=True); time.sleep(600)"
    job = daemon.submit(script, secrets={"TOKEN": value})
    wait_until(lambda: bool(daemon.output(job)), 30, "the rank speaks")
    assert daemon.output(job) == [f"up {value[::-1]}"]
    pids = [*daemon.processes(), daemon.client.status().pid]
    shown = [Path(f"/proc/{pid}/{name}") for pid in pids for name in ("cmdline", "environ")]
    assert not [path for path in shown if value.encode() in path.read_bytes()]
    assert value not in repr(daemon.client.show(job))
    assert value not in daemon.said()
    daemon.client.cancel(job, now=True)
    for path in daemon.paths.jobs.rglob("*"):
        if path.is_file():
            assert value.encode() not in path.read_bytes(), path


def test_the_working_directory_is_shipped_and_results_come_back(
    daemon: PrivateDaemon, tmp_path: Path
) -> None:
    (tmp_path / "data").mkdir()
    (tmp_path / "data" / "in.txt").write_text("42")
    script = (
        "import pathlib; n = int(pathlib.Path('data/in.txt').read_text())\n"
        "pathlib.Path('runs').mkdir(); pathlib.Path('runs/out.txt').write_text(str(n + 1))"
    )
    job = daemon.submit(script, work=tmp_path, collect=("runs/**",))
    assert daemon.end_of(job).state == "done"
    from wiiiiided.cluster.archive.unpack import unpack

    target = tmp_path / "pulled"
    with daemon.client.pull(job) as blob:
        unpack(blob, target, limit_bytes=1 << 20, limit_files=10)
    assert [p.relative_to(target) for p in target.rglob("*") if p.is_file()] == [
        Path("runs/out.txt")
    ]
    assert (target / "runs" / "out.txt").read_text() == "43"
    assert not (tmp_path / "runs").exists()  # it ran in its own copy


def test_a_killed_rank_is_known_at_once_and_named(daemon: PrivateDaemon) -> None:
    job = daemon.submit(FOREVER, workers=2, policy={"grace_s": 1.0})
    pids = running(daemon, job)
    os.kill(pids[1], signal.SIGKILL)
    view = daemon.end_of(job)
    assert (view.state, view.code) == ("failed", 137)
    assert "rank 1" in view.why
    assert "SIGKILL" in view.why


def test_a_command_that_does_not_exist_is_a_sentence(daemon: PrivateDaemon) -> None:
    """And is tried once more at most, whatever the policy allows, and without waiting."""
    again = {"restart": Restart(max=9, backoff_s=600.0)}
    job = daemon.submit(command=["no-such-program-here", "x"], policy=again)
    view = daemon.end_of(job)
    assert (view.state, view.code, view.attempt) == ("failed", 127, 2)
    assert "no-such-program-here" in view.why
    assert "not started again: it ended the same way twice" in view.why


def test_a_job_that_fails_says_what_was_raised_and_is_not_started_for_ever(
    daemon: PrivateDaemon,
) -> None:
    script = "raise ValueError('shapes \x1b[31mdo not match\\nat all')"
    again = {"restart": Restart(max=9, backoff_s=600.0)}
    view = daemon.end_of(daemon.submit(script, policy=again))
    assert (view.state, view.attempt) == ("failed", 2)
    assert view.error == "ValueError: shapes do not match"
    assert view.why.startswith(f"rank 0 ended with exit code 1: {view.error}; not started again")
    reason = daemon.client.why(view.id)
    assert (reason.why, reason.error) == (view.why, view.error)
    story = [line.text for line in daemon.client.show(view.id).story]
    assert any(line.endswith(f"{view.error}; restart 1 of 9 at once") for line in story)


def test_notify_runs_the_jobs_command(daemon: PrivateDaemon, tmp_path: Path) -> None:
    mark = tmp_path / "mark"
    notify = Notify(("sh", "-c", f'echo "$0" "$1" > {mark}', "{id}", "{state}"), ("failed",))
    job = daemon.submit("raise SystemExit(9)", notify=notify)
    daemon.end_of(job)
    wait_until(lambda: mark.exists() and bool(mark.read_text()), 30, "the command has run")
    assert mark.read_text().split() == [str(job), "failed"]


def test_logs_follow_through_attempts_to_the_end(daemon: PrivateDaemon) -> None:
    script = (
        "import os, time; n = os.environ['TORCHELASTIC_RESTART_COUNT']\n"
        "for i in range(5): print(n, i, flush=True); time.sleep(0.02)\n"
        "raise SystemExit(1 - int(n))"
    )
    job = daemon.submit(script, policy={"restart": Restart(max=1, backoff_s=0.1)})
    lines = [item.text for item in daemon.client.follow(job) if hasattr(item, "text")]
    assert [line for line in lines if line[:1] in "01"] == [
        f"{n} {i}" for n in (0, 1) for i in range(5)
    ]


def test_waiting_sees_every_state(daemon: PrivateDaemon) -> None:
    job = daemon.submit("print(1)", hold=True)
    watching = daemon.client.wait(job)
    assert next(watching).state == "held"
    daemon.client.release(job)
    states = [view.state for view in watching]
    assert states[-1] == "done"
    assert set(states) <= {"queued", "starting", "running", "done"}
