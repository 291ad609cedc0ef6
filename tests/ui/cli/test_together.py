"""The command and the real daemon together, as a person uses them."""

from __future__ import annotations

import json
import os
import signal
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.kit.daemons import PrivateDaemon, private_daemon
from tests.ui.cli.kit import PATIENCE_S, Program

SCRIPT = """
import os, sys, time
rank = os.environ["RANK"]
os.makedirs("runs", exist_ok=True)
open(f"runs/{rank}.txt", "w").write(rank)
print(f"hello from {rank}", flush=True)  # in one piece: a line may be shown before its end
while "wait" in sys.argv and not os.path.exists("go"):
    time.sleep(0.01)
print(f"bye from {rank}", flush=True)
sys.exit(3 if "fail" in sys.argv and rank == "1" else 0)
"""

JOB = """
name = "digits"
[run]
command = ["python", "train.py"]
[resources]
workers_per_node = 2
[output]
collect = ["runs/**"]
"""


@pytest.fixture
def real() -> Iterator[PrivateDaemon]:
    with private_daemon() as daemon:
        yield daemon


@pytest.fixture
def wiiiiide(real: PrivateDaemon) -> Iterator[Program]:
    made = Program(str(real.home))
    yield made
    made.close()


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    (tmp_path / "job.toml").write_text(JOB)
    (tmp_path / "train.py").write_text(SCRIPT)
    return tmp_path


def words(*more: str) -> tuple[str, str]:
    return "--set", "run.command=" + json.dumps(["python", "train.py", *more])


def go(real: PrivateDaemon, job: int) -> None:
    """Let the job's workers end."""
    script = next(Path(real.client.show(job).directory).rglob("train.py"))
    script.with_name("go").touch()


def test_a_job_from_its_submission_to_its_files(
    real: PrivateDaemon, wiiiiide: Program, folder: Path
) -> None:
    submitted = wiiiiide.run("submit", str(folder), *words("wait"))
    assert (submitted.code, submitted.out) == (0, "1\n")
    real.wait_for(1, "running")
    assert wiiiiide.run("why", "1").out.startswith("runs on ")
    assert wiiiiide.run("ps").out.splitlines()[1].split()[:3] == ["1", "digits", "running"]
    go(real, 1)
    assert wiiiiide.run("wait", "1", "--timeout", "60s").code == 0
    lines = wiiiiide.run("logs", "1").out.splitlines()
    assert sorted(lines) == [
        "0 │ bye from 0",
        "0 │ hello from 0",
        "1 │ bye from 1",
        "1 │ hello from 1",
    ]
    pulled = wiiiiide.run("pull", "1", cwd=folder)
    assert pulled.out == "job-1/runs/0.txt\njob-1/runs/1.txt\n"
    assert (folder / "job-1/runs/1.txt").read_text() == "1"
    assert "exit code 0" in wiiiiide.run("show", "1").out
    assert wiiiiide.run("ps", "--json").json == {"jobs": []}
    assert [job["id"] for job in wiiiiide.run("history", "--json").json["jobs"]] == [1]


def test_following_ends_with_the_code_of_the_rank_that_failed(
    wiiiiide: Program, folder: Path
) -> None:
    result = wiiiiide.run("submit", "-f", str(folder), *words("fail"))
    assert result.code == 3
    assert "1 │ bye from 1" in result.out.splitlines()
    assert "failed: rank 1 ended with exit code 3" in result.err


def test_a_script_runs_without_a_job_file(
    real: PrivateDaemon, wiiiiide: Program, folder: Path
) -> None:
    os.unlink(folder / "job.toml")
    run = ("run", "-n", "2", "--", "python", "train.py")
    result = wiiiiide.run(*run, "fail", cwd=folder)
    assert result.code == 3
    assert {"0 │ hello from 0", "1 │ bye from 1"} <= set(result.out.splitlines())
    assert "failed: rank 1 ended with exit code 3" in result.err
    assert real.view(1).name == folder.name
    process = wiiiiide.start(*run, "wait", cwd=folder)
    assert process.stdout is not None
    process.stdout.readline()
    process.send_signal(signal.SIGINT)
    assert process.wait(PATIENCE_S) == 130
    real.wait_for(2, "running")
    assert wiiiiide.run("cancel", "2").code == 0
    look = ("-c", "import os; print(os.listdir())")
    empty = wiiiiide.run("run", "--no-ship", "--", "python", *look, cwd=folder)
    assert (empty.code, empty.out) == (0, "0 │ []\n")


def test_a_killed_daemon_does_not_disturb_a_client_that_follows(
    real: PrivateDaemon, wiiiiide: Program, folder: Path
) -> None:
    process = wiiiiide.start("submit", "-f", str(folder), *words("wait"))
    assert process.stdout is not None
    first = [process.stdout.readline() for _ in range(2)]
    assert sorted(first) == ["0 │ hello from 0\n", "1 │ hello from 1\n"]
    real.kill()
    real.start()
    go(real, 1)
    out, err = process.communicate(timeout=PATIENCE_S)
    assert (process.returncode, sorted(out.splitlines())) == (
        0,
        ["0 │ bye from 0", "1 │ bye from 1"],
    )
    assert "the daemon is back" in err


def test_an_interrupt_leaves_the_job_alone_until_it_is_cancelled(
    real: PrivateDaemon, wiiiiide: Program, folder: Path
) -> None:
    process: subprocess.Popen[str] = wiiiiide.start("submit", "-f", str(folder), *words("wait"))
    assert process.stdout is not None
    process.stdout.readline()
    process.send_signal(signal.SIGINT)
    assert process.wait(PATIENCE_S) == 130
    real.wait_for(1, "running")  # a rank may write before all of them are known to run
    pids = real.pids(1)
    assert len(pids) == 2
    assert wiiiiide.run("cancel", "1").code == 0
    assert not [pid for pid in pids if os.path.exists(f"/proc/{pid}")]
    assert wiiiiide.run("wait", "1").code != 0


def test_the_queue_is_changed_by_its_commands(
    real: PrivateDaemon, wiiiiide: Program, folder: Path
) -> None:
    assert wiiiiide.run("submit", str(folder), "--hold").out == "1\n"
    after = wiiiiide.run("submit", str(folder), "--after", "1", "--name", "later")
    assert after.out == "2\n"
    assert "waits for job 1" in after.err
    assert wiiiiide.run("hold", "2").code == 0
    assert wiiiiide.run("release", "1", "2").code == 0
    assert wiiiiide.run("wait", "1", "2", "--timeout", "60s").code == 0
    assert wiiiiide.run("requeue", "1").code == 0
    real.end_of(1)
    assert real.view(1).attempt == 2
    assert wiiiiide.run("submit", str(folder), "--hold").out == "3\n"
    assert wiiiiide.run("submit", str(folder), "--after", "3").out == "4\n"
    cancelled = wiiiiide.run("cancel", "3", "4")
    assert cancelled.code == 0
    said = [line.split(" by ")[0] for line in cancelled.err.splitlines()]
    assert said == ["job 3 (digits) cancelled", "job 4 (digits) cancelled"]
    assert wiiiiide.run("show", "99").code == 6
    assert wiiiiide.run("submit", str(folder), "--set", "resources.nodes=3").code == 7


SWEPT = """
import os, sys, time
if os.environ["LR"] == "0.01" and os.environ["SEED"] == "1" and "wait" not in sys.argv:
    from wiiiiided.torch import progress  # in one only: it takes its time
    progress(3, total=3, loss=0.25)
print("LR", os.environ["LR"], "SEED", os.environ["SEED"], flush=True)
while "wait" in sys.argv:
    time.sleep(0.05)
sys.exit(int(os.environ["SEED"]) - 1)
"""


def test_a_sweep_from_its_submission_to_its_report(
    real: PrivateDaemon, wiiiiide: Program, folder: Path
) -> None:
    (folder / "train.py").write_text(SWEPT)
    sweep = ("--sweep", "run.env.LR=0.1,0.01", "--sweep", "run.env.SEED=1,3")
    alone = ("--set", "resources={ cores_per_worker = 1 }")
    submitted = wiiiiide.run("submit", str(folder), *sweep, *alone)
    assert (submitted.code, submitted.out) == (0, "s1\n")
    for job in (1, 2, 3, 4):
        real.end_of(job)
    waited = wiiiiide.run("wait", "s1", "--timeout", "60s")
    assert (waited.code, waited.err.splitlines()[-1]) == (2, "2 done, 2 failed")
    listed = wiiiiide.run("ps", "s1", "--json").json["jobs"]
    assert [(job["name"], job["state"], job["code"]) for job in listed] == [
        ("digits LR=0.1 SEED=1", "done", 0),
        ("digits LR=0.1 SEED=3", "failed", 2),
        ("digits LR=0.01 SEED=1", "done", 0),
        ("digits LR=0.01 SEED=3", "failed", 2),
    ]
    assert wiiiiide.run("logs", "3", "--grep", "^LR").out == "0 │ LR 0.01 SEED 1\n"
    report = wiiiiide.run("report", "s1", "--json").json["jobs"]
    assert [(job["job"]["id"], job["loss"]) for job in report] == [
        (3, 0.25),
        (1, None),
        (2, None),
        (4, None),
    ]
    assert wiiiiide.run("submit", str(folder), *sweep, *alone, *words("wait")).out == "s5\n"
    real.wait_for(5, "running")
    real.kill()
    real.start()
    cancelled = wiiiiide.run("cancel", "s5", "--now")
    assert (cancelled.code, cancelled.err) == (0, "sweep s5 (digits): 4 cancelled\n")
    left = wiiiiide.run("ps", "--state", "cancelled", "--json").json["jobs"]
    assert {job["id"] for job in left} == {5, 6, 7, 8}


def test_when_a_queued_job_starts_is_known_from_earlier_runs(
    real: PrivateDaemon, wiiiiide: Program, folder: Path
) -> None:
    wiiiiide.run("submit", str(folder), *words("wait"))
    real.wait_for(1, "running")
    unknown = wiiiiide.run("submit", str(folder), *words("wait"), "--set", "policy.max_time=2h")
    reason = 'job 1 has no max_time, and no earlier run named "digits" is done'
    assert f"; when it starts is not known: {reason}\n" in unknown.err
    third = wiiiiide.run("submit", str(folder))
    assert reason in third.err
    go(real, 1)
    real.wait_for(2, "running")
    # The second has begun, and a run of the name is done: it may take as long, or its max_time.
    waits = wiiiiide.run("ps", "--json").json["jobs"][1]
    assert waits["starts"].startswith(("starts in about ", "starts within ", "starts at any"))
    assert waits["starts_at"] is not None
    assert wiiiiide.run("why", "3").out.strip().rpartition("; ")[2].startswith("starts ")
    assert "  starts     " in wiiiiide.run("show", "3").out
    assert wiiiiide.run("ps").out.splitlines()[0].split()[-2:] == ["STARTS", "WHY"]
    go(real, 2)
    assert real.end_of(3).starts == ""
