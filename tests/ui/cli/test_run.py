"""`wiiiiide run`: a job without a job file, and the job file it would have been."""

from __future__ import annotations

import io
import os
import pwd
import signal
import tarfile
from pathlib import Path
from types import SimpleNamespace

import pytest

from tests.kit.fake_daemon import FakeConnection, FakeDaemon, ended, line, view
from tests.ui.cli.kit import PATIENCE_S, Cli, Program
from tests.ui.cli.test_submit import accepts
from wiiiiided.cluster.rpc import messages as m
from wiiiiided.cluster.system import probe
from wiiiiided.domain.node import Node


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    made = tmp_path / "digits"
    made.mkdir()
    (made / "train.py").write_text("print(1)")
    monkeypatch.chdir(made)
    return made


def follows(daemon: FakeDaemon, code: int = 0) -> None:
    daemon.answers(m.Wait, view(), ended(17, "failed" if code else "done", code), m.EndOfAnswers())
    daemon.answers(m.Logs, m.LogLines((line("hello"),)), m.EndOfAnswers())


def test_it_is_followed_and_ends_with_the_jobs_code(
    cli: Cli, daemon: FakeDaemon, folder: Path
) -> None:
    got = accepts(daemon)
    follows(daemon, 3)
    result = cli("run", "-n", "2", "--nodes", "2-4", "--", "python", "train.py", "-n", "5", "--")
    assert (result.code, result.out) == (3, "0 │ hello\n")
    (request,) = daemon.asked(m.Submit)
    assert request.spec.run.command == ("python", "train.py", "-n", "5", "--")
    assert request.spec.resources.nodes == (2, 4)
    assert (request.spec.name, request.spec.resources.workers_per_node) == ("digits", 2)
    with tarfile.open(fileobj=io.BytesIO(got[0])) as archive:
        assert archive.getnames() == ["train.py"]


def test_options_behind_the_command_are_its_own(cli: Cli, daemon: FakeDaemon, folder: Path) -> None:
    accepts(daemon)
    words = ("run", "-d", "--name", "x", "--set", "policy.priority=80", "python", "train.py", "-d")
    result = cli(*words)
    assert (result.code, result.out) == (0, "17\n")
    (request,) = daemon.asked(m.Submit)
    assert request.spec.run.command == ("python", "train.py", "-d")
    assert (request.spec.name, request.spec.policy.priority) == ("x", 80)
    assert daemon.asked(m.Logs) == []


def test_an_interrupt_detaches_and_says_how_to_cancel(
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
    process = program.start("run", "python", "train.py", cwd=folder)
    assert process.stdout is not None
    assert process.stdout.readline() == "0 │ hello\n"
    process.send_signal(signal.SIGINT)
    _, err = process.communicate(timeout=PATIENCE_S)
    assert process.returncode == 130
    assert "detached; job 17 goes on" in err
    assert "wiiiiide cancel 17 ends it" in err
    assert daemon.asked(m.Cancel) == []


def test_every_problem_names_the_word_it_came_from(
    cli: Cli, daemon: FakeDaemon, folder: Path
) -> None:
    words = ("-n", "x", "--nodes", "0", "--name", " ", "--set", "policy.priorty=1")
    result = cli("run", *words, "--", "python", "tarin.py")
    assert (result.code, result.out) == (3, "")
    assert [text.split(": ")[:2] for text in result.err.splitlines()] == [
        ["wiiiiide run", "run.command[1]"],
        ["-n x", "resources.workers_per_node"],
        ["--nodes 0", "resources.nodes"],
        ["--name  ", "name"],
        ["--set policy.priorty=1", "policy.priorty"],
    ]
    assert daemon.requests == []
    assert cli("run", "--json", "pyhton").json["problems"][0]["key"] == "run.command[0]"
    assert cli("run", "-n", "2").code == 2
    accepts(daemon)
    noted = cli("run", "-d", "no-such-program-here")
    assert noted.code == 0
    assert 'note: wiiiiide run: run.command[0]: "no-such-program-here" is not in PATH' in noted.err


def test_a_dry_run_queues_nothing(
    cli: Cli, daemon: FakeDaemon, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(probe, "this_node", lambda: Node("a", 4, 1 << 30))
    daemon.stop()
    result = cli("run", "--dry-run", "-n", "2", "python", "train.py")
    assert result.code == 0
    assert "wiiiiide run: ok; nothing was queued. It would be" in result.out
    assert "ranks 0-1 on a (4 cores claimed): python train.py" in result.out


# ---- --save


def test_the_file_that_is_saved_is_the_same_job(cli: Cli, daemon: FakeDaemon, folder: Path) -> None:
    accepts(daemon)
    words = ("-n", "2", "--set", "run.env.LR=0.1", "--set", "policy.max_time=5m")
    command = ("--", "python", "train.py", 'a "b"')
    result = cli("run", *words, "--save", "job.toml", *command)
    assert (result.code, result.out) == (0, "")
    assert "wiiiiide submit -f job.toml queues it" in result.err
    assert daemon.requests == []
    assert cli("check", "job.toml").code == 0
    assert cli("submit", "job.toml").code == 0
    assert cli("run", "-d", *words, *command).code == 0
    saved, direct = daemon.asked(m.Submit)
    assert saved.spec == direct.spec


def test_a_saved_file_elsewhere_leads_back_to_the_folder(cli: Cli, folder: Path) -> None:
    assert cli("run", "--save", "../other.toml", "python", "train.py").code == 0
    assert 'workdir = "digits"' in (folder.parent / "other.toml").read_text()
    assert cli("check", "../other.toml").code == 0


def test_what_cannot_be_saved_is_a_sentence(cli: Cli, folder: Path) -> None:
    alone = cli("run", "--force", "python", "train.py")
    assert (alone.code, "--force is for --save FILE" in alone.err) == (2, True)
    inside = cli("run", "--save", ".", "python", "train.py")
    assert (inside.code, ". is a folder" in inside.err) == (1, True)


def test_no_file_is_replaced_without_being_told(cli: Cli, folder: Path) -> None:
    (folder / "job.toml").write_text("mine")
    words = ("run", "--save", "job.toml", "python", "train.py")
    result = cli(*words)
    assert (result.code, (folder / "job.toml").read_text()) == (1, "mine")
    assert "job.toml is there already; --force replaces it" in result.err
    assert cli(*words[:1], "--force", *words[1:]).code == 0
    assert "train.py" in (folder / "job.toml").read_text()
    assert "cannot write" in cli("run", "--save", "no/such.toml", "python", "train.py").err
    assert cli("run", "--save", "x.toml", "python", "tarin.py").code == 3
    assert not (folder / "x.toml").exists()


# ---- what is shipped


@pytest.mark.parametrize("place", ["home", "home/..", "/"])
def test_a_home_is_not_shipped(
    cli: Cli, daemon: FakeDaemon, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, place: str
) -> None:
    (tmp_path / "home").mkdir()
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    monkeypatch.chdir(tmp_path / place)
    result = cli("run", "true")
    assert result.code == 3
    assert "it is not shipped as a whole" in result.err
    assert "--no-ship runs without" in result.err
    assert daemon.requests == []


def test_the_home_of_another_is_not_shipped_either(
    cli: Cli, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(pwd, "getpwuid", lambda uid: SimpleNamespace(pw_dir=str(folder)))
    assert f"{folder} is a home directory" in cli("run", "python", "train.py").err


def test_a_folder_at_home_is_shipped(
    cli: Cli, daemon: FakeDaemon, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    accepts(daemon)
    monkeypatch.setenv("HOME", str(folder.parent))
    assert cli("run", "-d", "python", "train.py").code == 0


def test_without_shipping_the_folder_is_an_empty_one(
    cli: Cli, daemon: FakeDaemon, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    got = accepts(daemon)
    monkeypatch.setenv("HOME", str(folder))
    result = cli("run", "-d", "--no-ship", "python", "/srv/train.py")
    assert (result.code, result.err) == (0, "job 17 (digits): runs on a\n")
    with tarfile.open(fileobj=io.BytesIO(got[0])) as archive:
        assert archive.getnames() == []
    refused = cli("run", "--no-ship", "python", "train.py")
    assert refused.code == 3
    assert "with --no-ship the ranks start in an empty folder" in refused.err
    assert "ships     nothing" in cli("run", "--dry-run", "--no-ship", "true").out
    assert cli("run", "--no-ship", "--save", "job.toml", "true").code == 2
    assert os.listdir(folder) == ["train.py"]
