"""`wiiiiide submit`: a number on stdout, a sentence on stderr, and the job's code with -f."""

from __future__ import annotations

import io
import os
import signal
import tarfile
from pathlib import Path
from typing import Literal

import msgspec
import pytest

from tests.kit.fake_daemon import FakeConnection, FakeDaemon, ended, line, machine, status, view
from tests.ui.cli.kit import PATIENCE_S, Cli, Program
from wiiiiided.cluster.archive import pack
from wiiiiided.cluster.rpc import messages as m
from wiiiiided.cluster.system import probe
from wiiiiided.domain.metrics import RunForecast
from wiiiiided.domain.node import Node
from wiiiiided.domain.plan import KeptPlan, MachineSet, PlanRow
from wiiiiided.ui.cli import submission

JOB = """
name = "digits"
[run]
command = ["python", "train.py", "--name", "a b"]
env = { LR = "0.1" }
[resources]
workers_per_node = 2
"""


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    made = tmp_path / "job"
    made.mkdir()
    (made / "job.toml").write_text(JOB)
    (made / "train.py").write_text("print(1)")
    return made


@pytest.fixture(autouse=True)
def patient(monkeypatch: pytest.MonkeyPatch) -> None:
    """A daemon that answers has the time for it."""
    monkeypatch.setattr(submission, "ASK_S", PATIENCE_S)
    monkeypatch.setattr(submission, "NODES_S", PATIENCE_S)


@pytest.fixture
def node(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(probe, "this_node", lambda: Node("a", 4, 1 << 30))


def accepts(daemon: FakeDaemon, why: str = "runs on a") -> list[bytes]:
    got: list[bytes] = []

    def take(_: m.Submit, link: FakeConnection) -> None:
        link.say(m.SendArchive())
        got.append(link.blob())
        link.say(m.Submitted(17, why))

    daemon.does(m.Submit, take)
    return got


# ---- what is said


@pytest.mark.parametrize("problem", ["the coordinator a does not answer", "the disk is full"])
def test_a_trouble_of_the_daemons_is_said_once(
    cli: Cli, daemon: FakeDaemon, folder: Path, problem: str
) -> None:
    daemon.answers(m.GetStatus, msgspec.structs.replace(status(), problem=problem))
    daemon.answers(m.Submit, m.Refusal(4, "the coordinator a does not answer"))
    result = cli("submit", str(folder / "job.toml"))
    assert result.code == 4
    assert result.err.count(problem) == 1
    assert result.err.count("the coordinator a does not answer") == 1


def test_the_number_is_all_there_is_on_stdout(cli: Cli, daemon: FakeDaemon, folder: Path) -> None:
    got = accepts(daemon)
    result = cli("submit", str(folder / "job.toml"))
    assert (result.code, result.out, result.err) == (
        0,
        "17\n",
        "sent 10 KiB\njob 17 (digits): runs on a\n",
    )
    with tarfile.open(fileobj=io.BytesIO(got[0])) as archive:
        assert archive.getnames() == ["job.toml", "train.py"]
    (request,) = daemon.asked(m.Submit)
    assert request.spec.run.command == ("python", "train.py", "--name", "a b")
    assert (request.secrets, request.hold) == ({}, False)


def test_a_job_that_goes_on_from_another_is_asked_for_as_such(
    cli: Cli, daemon: FakeDaemon, folder: Path, node: None
) -> None:
    refusal = m.Refusal(1, "job 3 has no checkpoints: it never ran")
    daemon.answers(m.SubmitResuming, refusal)
    result = cli("submit", str(folder), "--resume", "3")
    assert (result.code, "it never ran" in result.err) == (1, True)
    assert [request.resumes for request in daemon.asked(m.SubmitResuming)] == [3]
    for text, said in (("s3", "s3 is a sweep"), ("0", "'0' is not the number of a job")):
        bad = cli("submit", str(folder), "--resume", text)
        assert (bad.code, said in bad.err) == (2, True)


def test_what_was_queued_is_known_where_stdout_is_full(
    program: Program, daemon: FakeDaemon, folder: Path
) -> None:
    accepts(daemon)
    with open("/dev/full", "w") as full:
        result = program.run("submit", str(folder), stdout=full)
    assert result.code == 1
    assert "job 17 (digits)" in result.err
    assert "cannot write the output: No space left on device" in result.err


def test_on_a_terminal_it_is_friendly(program: Program, daemon: FakeDaemon, folder: Path) -> None:
    accepts(daemon, "waits for a \x1b[2J")
    shown = program.on_terminal("submit", str(folder)).out
    assert shown == "sent 10 KiB\njob 17 (digits): waits for a \\x1b[2J\n"


def test_json_has_the_number(cli: Cli, daemon: FakeDaemon, folder: Path) -> None:
    accepts(daemon)
    result = cli("submit", "--json", str(folder))
    made = {"id": 17, "name": "digits", "why": "runs on a", "starts": "", "sent_bytes": 10240}
    assert (result.json, result.err) == (made, "")


@pytest.mark.parametrize(
    ("role", "who"), [("alone", "the daemon has"), ("member", "the coordinator has")]
)
def test_what_is_there_already_is_not_sent_again(
    cli: Cli, daemon: FakeDaemon, folder: Path, role: Literal["alone", "member"], who: str
) -> None:
    daemon.answers(m.GetStatus, msgspec.structs.replace(status(), role=role))
    daemon.answers(m.Submit, m.Submitted(17, "runs on a"))
    said = cli("submit", str(folder)).err.splitlines()
    assert said == [f"nothing sent: {who} the folder already", "job 17 (digits): runs on a"]
    assert cli("submit", "--json", str(folder)).json["sent_bytes"] == 0


def test_a_folder_stands_for_its_job_file(
    cli: Cli, daemon: FakeDaemon, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    accepts(daemon)
    monkeypatch.chdir(folder)
    assert [cli("submit", words).code for words in (".", "job.toml", str(folder))] == [0, 0, 0]


def test_the_working_directory_is_relative_to_the_job_file(
    cli: Cli, daemon: FakeDaemon, folder: Path
) -> None:
    (folder / "src").mkdir()
    (folder / "src" / "train.py").write_text("")
    got = accepts(daemon)
    assert cli("submit", str(folder), "--set", "run.workdir=src").code == 0
    with tarfile.open(fileobj=io.BytesIO(got[0])) as archive:
        assert archive.getnames() == ["train.py"]


def test_notes_of_the_packing_are_said(cli: Cli, daemon: FakeDaemon, folder: Path) -> None:
    accepts(daemon)
    os.mkfifo(folder / "pipe")
    assert cli("submit", str(folder)).err.startswith("note: 'pipe' is no file")


def test_no_archive_is_left_behind(
    cli: Cli, daemon: FakeDaemon, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    import tempfile

    monkeypatch.setattr(tempfile, "tempdir", str(folder.parent))
    before = sorted(os.listdir(folder.parent))
    accepts(daemon)
    assert cli("submit", str(folder)).code == 0
    daemon.answers(m.Submit, m.Refusal(7, "it needs 3 nodes"))
    assert cli("submit", str(folder)).code == 7
    assert sorted(os.listdir(folder.parent)) == before


def test_when_it_starts_is_said_and_why_that_is_not_known(
    cli: Cli, daemon: FakeDaemon, folder: Path
) -> None:
    waits = "waits for a, which runs job 3"
    for starts in ("starts in about 12 min", "when it starts is not known: job 3 has no max_time"):
        daemon.answers(m.Submit, m.Submitted(17, waits, starts))
        assert cli("submit", str(folder)).err.splitlines()[-1] == (
            f"job 17 (digits): {waits}; {starts}"
        )
        assert cli("submit", "--json", str(folder)).json["starts"] == starts


# ---- options


def test_options_change_the_job(cli: Cli, daemon: FakeDaemon, folder: Path) -> None:
    accepts(daemon)
    words = ("--after", "12", "--after", "13,14", "--hold", "--name", "17")
    sets = ("--set", "run.env.LR=0.2", "--set", "policy.priority=80")
    assert cli("submit", str(folder), *words, *sets).code == 0
    (request,) = daemon.asked(m.Submit)
    assert request.spec.policy.after == (12, 13, 14)
    assert request.spec.policy.priority == 80
    assert request.spec.name == "17"
    assert request.spec.run.env == {"LR": "0.2"}
    assert request.hold


def test_after_adds_to_what_the_file_says(cli: Cli, daemon: FakeDaemon, folder: Path) -> None:
    accepts(daemon)
    assert cli("submit", str(folder), "--set", "policy.after=[3, 12]", "--after", "12").code == 0
    assert daemon.asked(m.Submit)[0].spec.policy.after == (3, 12)


@pytest.mark.parametrize("words", [("--after", "x"), ("--bogus",), ()])
def test_options_that_make_no_sense_are_usage(
    cli: Cli, daemon: FakeDaemon, words: tuple[str, ...], folder: Path
) -> None:
    assert cli("submit", *([str(folder), *words] if words else [])).code == 2
    assert daemon.requests == []


# ---- what is wrong


def test_every_problem_of_the_file_is_listed(cli: Cli, daemon: FakeDaemon, folder: Path) -> None:
    (folder / "job.toml").write_text(JOB + "worker_per_node = 2\n[policy]\npriority = 900\n")
    result = cli("submit", str(folder))
    assert (result.code, result.out) == (3, "")
    assert len(result.err.splitlines()) == 2
    assert f"{folder}/job.toml:8: resources.worker_per_node" in result.err
    assert daemon.requests == []


def test_problems_as_json(cli: Cli, folder: Path) -> None:
    result = cli("submit", "--json", str(folder), "--set", "nonsense=1")
    assert result.code == 3
    assert result.json["ok"] is False
    assert result.json["problems"][0]["key"] == "nonsense"


def test_a_file_that_is_not_there(cli: Cli, tmp_path: Path) -> None:
    result = cli("submit", str(tmp_path / "no.toml"))
    assert result.code == 3
    assert "no such file" in result.err
    assert "no such file" in cli("submit", str(tmp_path)).err


def test_a_folder_that_cannot_be_shipped(cli: Cli, daemon: FakeDaemon, folder: Path) -> None:
    (folder / "data").symlink_to("/srv/data")
    result = cli("submit", str(folder))
    assert result.code == 3
    assert "'data' is a link to '/srv/data'" in result.err
    assert ".wiiiiideignore" in result.err
    assert daemon.asked(m.Submit) == []


def test_passed_variables_travel_apart(
    cli: Cli, daemon: FakeDaemon, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    accepts(daemon)
    monkeypatch.setenv("TOKEN", "s3cret")
    assert cli("submit", str(folder), "--set", 'run.pass_env=["TOKEN"]').code == 0
    (request,) = daemon.asked(m.Submit)
    assert request.secrets == {"TOKEN": "s3cret"}
    assert "s3cret" not in str(request.spec)


def test_a_passed_variable_that_is_not_set_is_refused(
    cli: Cli, daemon: FakeDaemon, folder: Path
) -> None:
    result = cli("submit", str(folder), "--set", 'run.pass_env=["NOT_SET_1", "NOT_SET_2"]')
    assert result.code == 3
    assert "run.pass_env names NOT_SET_1, NOT_SET_2, which are not set here" in result.err
    assert daemon.requests == []


def test_the_daemons_refusal_has_its_own_code(cli: Cli, daemon: FakeDaemon, folder: Path) -> None:
    daemon.answers(m.Submit, m.Refusal(7, "the job needs 3 nodes, 1 of 1 fits"))
    result = cli("submit", str(folder))
    assert (result.code, result.out) == (7, "")


def test_without_a_daemon_nothing_is_packed(
    cli: Cli, daemon: FakeDaemon, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(pack, "pack", None)
    daemon.stop()
    assert cli("submit", str(folder)).code == 4


# ---- -f


def test_following_shows_the_log_and_ends_with_the_jobs_code(
    cli: Cli, daemon: FakeDaemon, folder: Path
) -> None:
    accepts(daemon, "waits for a")
    queued = view(state="queued", why="waits for a")
    over = ended(17, "failed", 143, why="rank 0 was killed by SIGTERM")
    daemon.answers(m.Wait, queued, view(), over, m.EndOfAnswers())
    daemon.answers(m.Logs, m.LogLines((line("hello"),)), m.EndOfAnswers())
    result = cli("submit", "-f", str(folder))
    assert (result.code, result.out) == (143, "0 │ hello\n")
    assert result.err.splitlines() == [
        "sent 10 KiB",
        "job 17 (digits): waits for a",
        "job 17 (digits): runs on a",
        "job 17 (digits) failed: rank 0 was killed by SIGTERM; it ran for 3m10s",
    ]


def test_following_as_json_is_a_stream_of_objects(
    cli: Cli, daemon: FakeDaemon, folder: Path
) -> None:
    accepts(daemon)
    daemon.answers(m.Wait, ended(), m.EndOfAnswers())
    daemon.answers(m.Logs, m.LogLines((line("hello"),)), m.EndOfAnswers())
    first, second, third = cli("submit", "-f", "--json", str(folder)).jsons
    assert (first["id"], second["text"], third["job"]["code"]) == (17, "hello", 0)


def test_an_interrupt_detaches_and_says_how_to_go_on(
    program: Program, daemon: FakeDaemon, folder: Path
) -> None:
    def stay(*first: m.Answer):  # type: ignore[no-untyped-def]
        def handler(_: object, link: FakeConnection) -> None:
            link.say(*first)
            with pytest.raises(EOFError):
                link.frame()

        return handler

    accepts(daemon)
    daemon.does(m.Wait, stay(view()))
    daemon.does(m.Logs, stay(m.LogLines((line("hello"),))))
    process = program.start("submit", "-f", str(folder))
    assert process.stdout is not None
    assert process.stdout.readline() == "0 │ hello\n"
    process.send_signal(signal.SIGINT)
    out, err = process.communicate(timeout=PATIENCE_S)
    assert (process.returncode, out) == (130, "")
    assert err.endswith(
        "detached; job 17 goes on. wiiiiide logs -f 17 shows it again, wiiiiide cancel 17 ends it\n"
    )
    assert daemon.asked(m.Cancel) == []


# ---- --dry-run


@pytest.mark.usefixtures("node")
def test_a_dry_run_says_what_would_run_where(
    cli: Cli, daemon: FakeDaemon, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TOKEN", "s3cret")
    daemon.stop()
    result = cli("submit", "--dry-run", str(folder), "--set", 'run.pass_env=["TOKEN"]')
    assert (result.code, result.err) == (0, "")
    lines = result.out.splitlines()
    assert lines[0].endswith("job.toml: ok; nothing was queued. It would be")
    assert "  runs      ranks 0-1 on a (4 cores claimed): python train.py --name 'a b'" in lines
    assert any(text.startswith("  ships     2 files, ") for text in lines)
    assert "  sets      LR" in lines
    assert "  passes    TOKEN" in lines
    assert "s3cret" not in result.out
    assert daemon.requests == []


FORECAST = RunForecast(3, "the last 3 runs took 4m\x1b to 5m", 1 << 30, (240.0, 300.0), 0)


@pytest.mark.usefixtures("node")
def test_a_dry_run_says_what_earlier_runs_needed(
    cli: Cli, daemon: FakeDaemon, folder: Path
) -> None:
    daemon.answers(m.Predict, m.Predicted(FORECAST))
    result = cli("submit", "--dry-run", str(folder))
    assert (result.code, result.err) == (0, "")
    assert result.out.splitlines()[-1] == "  expects   the last 3 runs took 4m\\x1b to 5m"
    assert daemon.requests == [m.ListNodes(), m.Predict("digits")]
    found = cli("submit", "--dry-run", "--json", str(folder), "--name", "other").json
    assert found["forecast"] == {
        "runs": 3,
        "text": FORECAST.text,
        "memory": 1 << 30,
        "time_s": [240.0, 300.0],
        "wire_bytes": 0,
    }
    assert daemon.requests[-1] == m.Predict("other")


@pytest.mark.usefixtures("node")
def test_a_dry_run_without_a_daemon_expects_nothing(
    cli: Cli, daemon: FakeDaemon, folder: Path
) -> None:
    daemon.stop()
    unknown = "  expects   no daemon answers: the needs of earlier runs are not known"
    assert cli("submit", "--dry-run", str(folder)).out.splitlines()[-1] == unknown
    result = cli("submit", "--dry-run", "--json", str(folder))
    assert (result.code, result.json["forecast"]) == (0, None)


@pytest.mark.usefixtures("node")
def test_a_dry_run_does_not_wait_for_a_daemon_that_is_stuck(
    cli: Cli, daemon: FakeDaemon, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def stuck(_: object, link: FakeConnection) -> None:
        with pytest.raises(EOFError):
            link.frame()

    monkeypatch.setattr(submission, "ASK_S", 0.05)
    daemon.does(m.Predict, stuck)
    result = cli("submit", "--dry-run", str(folder))
    assert result.code == 0
    assert "no daemon answers: the needs" in result.out


@pytest.mark.usefixtures("node")
def test_a_dry_run_with_a_daemon_that_refuses_says_so(
    cli: Cli, daemon: FakeDaemon, folder: Path
) -> None:
    daemon.answers(m.Predict, m.Refusal(2, "does not understand the request"))
    result = cli("submit", "--dry-run", str(folder))
    assert result.code == 0
    assert "the needs of earlier runs are not known: does not understand" in result.out


@pytest.mark.usefixtures("node")
def test_a_dry_run_as_json(cli: Cli, folder: Path) -> None:
    found = cli("submit", "--dry-run", "--json", str(folder)).json
    assert found["shares"] == [{"node": "a", "index": 0, "first_rank": 0, "workers": 2, "cores": 4}]
    assert found["ships"]["files"] == 2
    assert found["job"]["name"] == "digits"


@pytest.mark.usefixtures("node")
def test_a_dry_run_of_what_can_never_run_here(cli: Cli, folder: Path) -> None:
    result = cli("submit", "--dry-run", str(folder), "--set", "resources.min_cores=64")
    assert (result.code, result.out) == (7, "")
    assert "it can never run on this machine alone: the job needs 1 node" in result.err


def cluster(*nodes: Node) -> m.NodeList:
    return m.NodeList("lab", tuple(machine(node.name, node=node) for node in nodes))


def test_a_dry_run_plans_over_all_machines(cli: Cli, daemon: FakeDaemon, folder: Path) -> None:
    daemon.answers(m.ListNodes, cluster(Node("a", 4, 1 << 30), Node("b", 8, 1 << 30)))
    words = ("submit", "--dry-run", str(folder), "--set", "resources.nodes=all")
    shares = cli(*words, "--json").json["shares"]
    assert [(one["node"], one["first_rank"]) for one in shares] == [("a", 0), ("b", 2)]
    result = cli(*words, "--set", "resources.min_cores=64")
    assert result.code == 7
    assert "it can never run on the cluster lab: the job needs 1 node, 0 of 2 fit" in result.err


@pytest.mark.usefixtures("node")
def test_a_dry_run_says_when_the_machines_are_not_known(
    cli: Cli, daemon: FakeDaemon, folder: Path
) -> None:
    daemon.answers(m.ListNodes, m.Refusal(4, "the coordinator b does not answer"))
    result = cli("submit", "--dry-run", str(folder))
    assert (result.code, "ranks 0-1 on a" in result.out) == (0, True)
    assert result.err == "note: planned for this machine alone: the others are not known\n"
    assert "runs are not known: the coordinator b does not answer" in result.out
    assert daemon.asked(m.Predict) == []


@pytest.mark.usefixtures("node")
def test_a_dry_run_does_not_wait_long_for_the_machines(
    cli: Cli, daemon: FakeDaemon, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def stuck(_: object, link: FakeConnection) -> None:
        with pytest.raises(EOFError):
            link.frame()

    monkeypatch.setattr(submission, "NODES_S", 0.05)
    daemon.does(m.ListNodes, stuck)
    result = cli("submit", "--dry-run", str(folder))
    assert result.code == 0
    assert result.err.startswith("note: planned for this machine alone")


@pytest.mark.usefixtures("node")
def test_a_dry_run_has_the_same_refusals(cli: Cli, folder: Path) -> None:
    assert cli("submit", "--dry-run", str(folder), "--set", "x=1").code == 3
    assert cli("submit", "--dry-run", str(folder), "--set", 'run.pass_env=["NOT_SET"]').code == 3


def test_both_amounts_of_memory_have_their_unit(cli: Cli, folder: Path, node: None) -> None:
    words = ("--set", "resources.min_memory=900GiB")
    result = cli("submit", "--dry-run", str(folder), *words)
    assert result.code == 7
    assert "a has 1 GiB of memory, the job needs 900 GiB" in result.err


@pytest.mark.parametrize("name", ["🚀 lift-off", 'a "quoted" \\ name', "Zoë", "17"])
def test_a_name_is_kept_as_it_is(cli: Cli, daemon: FakeDaemon, folder: Path, name: str) -> None:
    accepts(daemon)
    assert cli("submit", str(folder), "--name", name).code == 0
    assert cli("submit", str(folder), "--set", f"name={name}").code == 0
    assert [request.spec.name for request in daemon.asked(m.Submit)] == [name, name]


KEPT = KeptPlan(
    1.0,
    "0" * 16,
    (PlanRow(("a",), 1, "exact", 190.0), PlanRow(("a", "b", "c"), 1, "exact", 61.0)),
    sets=(MachineSet(3, 48.0, 0.084, 0.084, {"exact": 0.7, "int8": 0.05}),),
)


@pytest.mark.parametrize(
    ("found", "said"),
    [
        (m.Predicted(RunForecast(0, ""), KEPT), "note: wiiiiide plan found one machine faster"),
        (m.Predicted(RunForecast(0, ""), msgspec.structs.replace(KEPT, gradients="int8")), ""),
        (
            m.Predicted(
                RunForecast(0, ""), KEPT, others=(msgspec.structs.replace(KEPT, gradients="int8"),)
            ),
            "note: wiiiiide plan found one machine faster",
        ),
        (
            m.Predicted(RunForecast(2, ""), None, {1: 190.0, 3: 61.0}),
            "note: an earlier run on one machine made 190 samples/s, one on 3 machines 61",
        ),
        (m.Predicted(RunForecast(0, "")), ""),
        (m.Refusal(2, "does not understand the request"), ""),
    ],
)
def test_a_plan_or_a_run_that_found_fewer_machines_faster_is_told(
    cli: Cli, daemon: FakeDaemon, folder: Path, found: m.Answer, said: str
) -> None:
    accepts(daemon)
    daemon.answers(m.Predict, found)
    shown = cli("submit", str(folder), "--set", "resources.nodes=3")
    assert (shown.code, shown.out) == (0, "17\n")
    assert [line for line in shown.err.splitlines() if "machine" in line] == [
        line for line in shown.err.splitlines() if said and line.startswith(said)
    ]
    assert not said or said in shown.err
    daemon.requests.clear()
    cli("submit", str(folder))  # one machine: there is nothing to ask
    assert daemon.asked(m.Predict) == []


@pytest.mark.parametrize(
    "fourth", [machine("d", state="drained"), machine("d", state="lost"), machine("other")]
)
def test_all_machines_are_those_that_a_plan_would_try(
    cli: Cli, daemon: FakeDaemon, folder: Path, fourth: m.NodeView
) -> None:
    accepts(daemon)
    daemon.answers(m.Predict, m.Predicted(RunForecast(0, ""), KEPT))
    views = (*map(machine, "abc"), fourth)
    daemon.answers(m.ListNodes, m.NodeList("lab", views))
    words = ("--set", "resources.nodes=all", "--set", 'resources.avoid=["other"]')
    shown = cli("submit", str(folder), *words)
    assert shown.code == 0, shown.err
    assert "wiiiiide plan found one machine faster than 3 machines" in shown.err
