"""Sweeps on the command line: queued with one word, and one id for everything after that."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.kit.fake_daemon import FakeConnection, FakeDaemon, ended, view
from tests.ui.cli.kit import PATIENCE_S, Cli, Complete, Program
from tests.ui.report.runs import rank, run
from wiiiiided.cluster.rpc import messages as m
from wiiiiided.domain.metrics import RunForecast
from wiiiiided.ui.cli import submission

JOB = 'name = "digits"\n[run]\ncommand = ["python", "train.py"]\n'
LR, SEED = ("--sweep", "run.env.LR=0.1,0.01"), ("--sweep", "run.env.SEED=1..3")


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    (tmp_path / "job.toml").write_text(JOB)
    (tmp_path / "train.py").write_text("print(1)")
    return tmp_path


@pytest.fixture(autouse=True)
def patient(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(submission, "ASK_S", PATIENCE_S)
    monkeypatch.setattr(submission, "NODES_S", PATIENCE_S)


def accepts(daemon: FakeDaemon) -> list[bytes]:
    got: list[bytes] = []

    def take(request: m.SubmitSweep, link: FakeConnection) -> None:
        link.say(m.SendArchive())
        got.append(link.blob())
        numbers = tuple(range(12, 12 + len(request.jobs)))
        link.say(m.Swept(12, numbers, "is being started on a", "starts within 2 h"))

    daemon.does(m.SubmitSweep, take)
    return got


def member(job: int, **changes: object) -> m.JobView:
    setting = {"run.env.SEED": str(job - 11)}
    return view(job, sweep="s12", setting=setting, name=f"digits SEED={job - 11}", **changes)


def over(job: int, state: str = "done", code: int | None = 0) -> m.JobView:
    return member(job, state=state, code=code, ended_at=1_000_200.0, why=state)


def has_sweep(daemon: FakeDaemon, *jobs: m.JobView) -> None:
    def listed(request: m.ListJobs, link: FakeConnection) -> None:
        known = request.sweep == 12
        link.say(
            m.JobList(jobs) if known or not request.sweep else m.Refusal(6, "there is no sweep")
        )

    daemon.does(m.ListJobs, listed)


# ---- submit


def test_the_id_is_all_there_is_on_stdout_and_the_folder_is_sent_once(
    cli: Cli, daemon: FakeDaemon, folder: Path
) -> None:
    got = accepts(daemon)
    result = cli("submit", str(folder), *LR, *SEED, "--set", "policy.priority=80", "--after", "3")
    assert (result.code, result.out) == (0, "s12\n")
    assert result.err.splitlines() == [
        "sent 10 KiB",
        "sweep s12 (digits): jobs 12 to 17; job 12 is being started on a; job 17 starts within 2 h",
    ]
    assert len(got) == 1
    (request,) = daemon.asked(m.SubmitSweep)
    assert [job.setting for job in request.jobs][1] == {"run.env.LR": "0.1", "run.env.SEED": "2"}
    assert [job.spec.run.env for job in request.jobs][1] == {"LR": "0.1", "SEED": "2"}
    assert {(j.spec.policy.priority, j.spec.policy.after) for j in request.jobs} == {(80, (3,))}


def test_on_a_terminal_what_to_do_next_is_said(
    program: Program, daemon: FakeDaemon, folder: Path
) -> None:
    accepts(daemon)
    shown = program.on_terminal("submit", str(folder), *SEED, width=200).out
    assert "sweep s12 (digits): jobs 12 to 14; job 12 is being started on a; job 14 " in shown
    assert "wiiiiide ps s12 lists them, wiiiiide report s12 compares them" in shown


def test_a_sweep_as_json(cli: Cli, daemon: FakeDaemon, folder: Path) -> None:
    accepts(daemon)
    assert cli("submit", str(folder), "--sweep", "run.env.LR=1,2", "--json", "--hold").json == {
        "sweep": "s12",
        "name": "digits",
        "jobs": [
            {"id": 12, "setting": {"run.env.LR": "1"}},
            {"id": 13, "setting": {"run.env.LR": "2"}},
        ],
        "why": "is being started on a",
        "starts": "starts within 2 h",
        "sent_bytes": 10240,
    }
    assert daemon.asked(m.SubmitSweep)[0].hold


def test_a_dry_run_lists_the_jobs_and_queues_none(
    cli: Cli, daemon: FakeDaemon, folder: Path
) -> None:
    daemon.answers(m.Predict, m.Predicted(RunForecast(0, "nothing is known")))
    result = cli("submit", str(folder), *LR, *SEED, "--dry-run")
    lines = result.out.splitlines()
    assert result.code == 0
    assert lines[0].endswith("job.toml: ok; nothing was queued. It would be 6 jobs, the first")
    assert lines[-7:] == [
        "jobs",
        "  digits LR=0.1 SEED=1",
        "  digits LR=0.1 SEED=2",
        "  digits LR=0.1 SEED=3",
        "  digits LR=0.01 SEED=1",
        "  digits LR=0.01 SEED=2",
        "  digits LR=0.01 SEED=3",
    ]
    found = cli("submit", str(folder), *LR, "--dry-run", "--json").json
    assert [job["setting"] for job in found["jobs"]] == [
        {"run.env.LR": "0.1"},
        {"run.env.LR": "0.01"},
    ]
    assert found["jobs"][1]["job"]["run"]["env"] == {"LR": "0.01"}
    assert daemon.asked(m.SubmitSweep) == []


def test_a_dry_run_that_can_never_run_says_so(cli: Cli, folder: Path) -> None:
    result = cli("submit", str(folder), "--sweep", "resources.nodes=1,9", "--dry-run")
    assert (result.code, "the job needs 9 nodes" in result.err) == (7, True)


def test_what_is_wrong_is_listed_as_for_set(cli: Cli, daemon: FakeDaemon, folder: Path) -> None:
    words = ("--sweep", "policy.priority=1,900", "--sweep", "run.envv=3", "--set", "nosuch=1")
    result = cli("submit", str(folder), *words)
    assert (result.code, result.out) == (3, "")
    told = sorted(line.partition(": ")[0] for line in result.err.splitlines())
    assert told == ["--set nosuch=1", "--sweep policy.priority=900", "--sweep run.envv=3"]
    found = cli("submit", str(folder), "--json", "--sweep", "x").json
    assert found["problems"][0]["message"] == "is not key=value,value"
    assert daemon.requests == []


def test_checkpoints_of_another_are_for_one_job(cli: Cli, daemon: FakeDaemon, folder: Path) -> None:
    result = cli("submit", "--resume", "3", str(folder), *SEED)
    assert (result.code, "share no checkpoints" in result.err) == (2, True)
    assert daemon.requests == []


def test_following_is_for_one_job(cli: Cli, daemon: FakeDaemon, folder: Path) -> None:
    result = cli("submit", "-f", str(folder), *SEED)
    assert (result.code, "-f follows one job" in result.err) == (2, True)
    assert daemon.requests == []


def test_a_sweep_too_large_for_a_request_is_refused_here(
    cli: Cli, daemon: FakeDaemon, folder: Path
) -> None:
    big = ("--set", "run.env.BIG=" + "x" * 30_000, "--sweep", "run.env.N=1..100")
    result = cli("submit", str(folder), *big)
    assert (result.code, "more than one request can hold" in result.err) == (3, True)
    assert daemon.requests == []


def test_a_job_may_come_after_a_sweep(cli: Cli, daemon: FakeDaemon, folder: Path) -> None:
    has_sweep(daemon, over(12), member(13), member(14))
    daemon.answers(m.Submit, m.Submitted(20, "waits"))
    assert cli("submit", str(folder), "--after", "7,s12").code == 0
    assert daemon.asked(m.Submit)[0].spec.policy.after == (7, 12, 13, 14)
    assert cli("submit", str(folder), "--after", "s13").code == 6


# ---- ps


def test_ps_of_a_sweep_lists_all_its_jobs(cli: Cli, daemon: FakeDaemon) -> None:
    has_sweep(daemon, over(12), member(13), member(14, state="queued", why="waits"))
    heading, *rows = cli("ps", "s12").out.splitlines()
    assert heading.split()[:3] == ["ID", "SWEEP", "NAME"]
    assert [row.split()[:5] for row in rows] == [
        ["12", "s12", "digits", "SEED=1", "done"],
        ["13", "s12", "digits", "SEED=2", "running"],
        ["14", "s12", "digits", "SEED=3", "queued"],
    ]
    assert daemon.requests == [m.ListJobs(sweep=12)]
    found = cli("ps", "s12", "--state", "queued", "--name", "digits", "--json").json["jobs"]
    assert [(job["id"], job["sweep"], job["setting"]) for job in found] == [
        (14, "s12", {"run.env.SEED": "3"})
    ]
    assert cli("ps", "s99").code == 6
    assert cli("ps", "12").code == 2


def test_an_older_daemon_that_lists_something_else_is_not_believed(
    cli: Cli, daemon: FakeDaemon
) -> None:
    daemon.answers(m.ListJobs, m.JobList((view(),)))
    assert cli("ps", "s12").code == 4
    daemon.answers(m.ListJobs, m.JobList(()))
    assert cli("ps", "s12").code == 4


# ---- wait


def test_wait_ends_with_the_worst_code_of_a_sweep(cli: Cli, daemon: FakeDaemon) -> None:
    views = {12: over(12, "failed", 3), 13: over(13), 14: over(14, "failed", 137)}
    has_sweep(daemon, *views.values())
    daemon.does(m.Wait, lambda request, link: link.say(views[request.id], m.EndOfAnswers()))
    result = cli("wait", "s12")
    assert (result.code, result.err.splitlines()[-1]) == (137, "1 done, 2 failed")
    assert [request.id for request in daemon.asked(m.Wait)] == [12, 13, 14]
    assert daemon.asked(m.Why) == []
    found = cli("wait", "s12", "--json").json
    assert (found["code"], [job["id"] for job in found["jobs"]]) == (137, [12, 13, 14])
    views[14] = over(14, "cancelled", None)
    views[12] = over(12)
    assert cli("wait", "s12").code == 1
    assert cli("wait", "s99").code == 6


# ---- cancel


def test_cancel_says_how_many(cli: Cli, daemon: FakeDaemon) -> None:
    gone = [over(13, "cancelled", None), over(14, "cancelled", None)]
    has_sweep(daemon, over(12), *gone)
    daemon.answers(m.CancelSweep, *gone, m.EndOfAnswers())
    result = cli("cancel", "s12", "--now")
    assert (result.code, result.err) == (0, "sweep s12 (digits): 2 cancelled; 1 done before\n")
    assert daemon.asked(m.CancelSweep) == [m.CancelSweep(12, True)]
    daemon.answers(m.CancelSweep, m.EndOfAnswers())
    result = cli("cancel", "s12")
    assert result.code == 1
    assert result.err == "wiiiiide: sweep s12 (digits) is over already: 1 done, 2 cancelled\n"


def test_one_refusal_for_another_users_sweep_and_the_others_are_cancelled(
    cli: Cli, daemon: FakeDaemon
) -> None:
    daemon.answers(m.CancelSweep, m.Refusal(5, "job 12 is ada's; eve may not change it"))
    daemon.answers(m.Cancel, ended(17, "cancelled", None))
    result = cli("cancel", "17", "s12")
    assert result.code == 5
    assert result.err.count("may not change it") == 1
    assert "job 17 (digits) cancelled" in result.err


def test_a_cancel_outlives_a_restart_of_the_daemon(cli: Cli, daemon: FakeDaemon) -> None:
    gone = [over(12, "cancelled", None), over(13, "cancelled", None)]
    has_sweep(daemon, *gone)

    def first(request: m.CancelSweep, link: FakeConnection) -> None:
        link.say(gone[0])
        daemon.answers(m.CancelSweep, gone[1], m.EndOfAnswers())
        daemon.restart()

    daemon.does(m.CancelSweep, first)
    result = cli("cancel", "s12")
    assert result.code == 0
    assert "sweep s12 (digits): 2 cancelled" in result.err


# ---- report


@pytest.fixture
def ran(daemon: FakeDaemon) -> None:
    """Job 12 and 13 ran, job 14 waits."""
    has_sweep(daemon, over(12), member(13), member(14, state="queued", attempt=0))
    views = {12: over(12), 13: member(13)}

    def told(request: m.GetRecords, link: FakeConnection) -> None:
        made = run(ranks=(rank(0, loss=request.id / 10),), job=request.id)
        link.say(m.JobRecords(views[request.id], (), (made,)))

    daemon.does(m.GetRecords, told)


def test_a_report_compares_the_jobs_of_a_sweep(cli: Cli, daemon: FakeDaemon, ran: None) -> None:
    lines = cli("report", "s12").out.splitlines()
    assert lines[0] == "sweep s12: digits"
    assert lines[1].split(None, 1) == ["jobs", "3: 1 queued, 1 running, 1 done"]
    assert lines[3].split(None, 1) == ["smallest", "1.2 at last: job 12, SEED=1"]
    table = [line.split() for line in lines[lines.index("") + 1 :] if line.endswith(("s", "–"))]
    assert table[-3:] == [
        ["a", "12", "1", "done", "1,000", "1.2", "0.4135", "1m40s"],
        ["b", "13", "2", "running", "1,000", "1.3", "0.4135", "1m40s"],
        ["14", "3", "queued", *"––––"],
    ]
    assert [request.id for request in daemon.asked(m.GetRecords)] == [12, 13]


def test_a_report_of_a_sweep_as_page_and_json(
    cli: Cli, daemon: FakeDaemon, ran: None, tmp_path: Path
) -> None:
    file = tmp_path / "sweep.html"
    result = cli("report", "s12", "-o", str(file))
    assert (result.code, result.out) == (0, "")
    assert "<h1>sweep s12: digits</h1>" in file.read_text()
    found = cli("report", "s12", "--json").json
    assert found["sweep"] == "s12"
    assert [(one["job"]["id"], one["loss"]) for one in found["jobs"]] == [
        (12, 1.2),
        (13, 1.3),
        (14, None),
    ]
    assert found["jobs"][0]["said"][0] == [10, 1.0, pytest.approx(2.302, abs=0.001)]
    assert cli("report", "s99").code == 6


# ---- hold, release, requeue; and those about one job


@pytest.mark.parametrize(
    ("word", "kind", "changed"),
    [("hold", m.Hold, [14]), ("release", m.Release, [15]), ("requeue", m.Requeue, [13, 16])],
)
def test_a_change_is_for_those_jobs_that_it_can_change(
    cli: Cli, daemon: FakeDaemon, word: str, kind: type, changed: list[int]
) -> None:
    has_sweep(
        *(daemon, member(12), over(13, "failed", 1), member(14, state="queued")),
        *(member(15, state="held"), over(16, "cancelled", None), over(17)),
    )
    daemon.does(kind, lambda request, link: link.say(member(request.id)))
    assert cli(word, "s12").code == 0
    assert [request.id for request in daemon.asked(kind)] == changed
    has_sweep(daemon, member(12), over(13))
    result = cli(word, "s12")
    assert result.code == 1
    assert "s12 has no job that this would change: 1 running, 1 done" in result.err


@pytest.mark.parametrize("word", ["logs", "why", "show", "pull", "stacks"])
def test_what_is_about_one_job_says_how_to_find_it(cli: Cli, daemon: FakeDaemon, word: str) -> None:
    result = cli(word, "s12")
    assert result.code == 2
    assert "s12 is a sweep, and this is about one job" in " ".join(result.err.split())
    assert daemon.requests == []


def test_show_has_the_setting(cli: Cli, daemon: FakeDaemon) -> None:
    daemon.answers(m.Show, m.JobDetail(member(13), {}, (), (), ""))
    assert "  sweep      s12: run.env.SEED = 2" in cli("show", "13").out.splitlines()


def test_sweeps_are_completed(complete: Complete, daemon: FakeDaemon) -> None:
    has_sweep(daemon, view(3), member(12), member(13))

    assert complete("wait", "") == ["3", "12", "13", "s12"]
    assert complete("ps", "") == ["s12"]
    assert complete("report", "s") == ["s12"]
    assert complete("logs", "") == ["3", "12", "13"]
    assert complete("submit", "--after", "s") == ["s12"]
