"""What takes long is drawn for terminals, after a second, and gone at the end."""

from __future__ import annotations

import io
from pathlib import Path
from typing import Any

import pytest

from tests.kit.conditions import wait_until
from tests.kit.fake_daemon import FakeConnection, FakeDaemon, ended, machine
from tests.ui.cli.kit import Cli
from wiiiiided.cluster.rpc import messages as m
from wiiiiided.ui.cli import loaded_job, progress
from wiiiiided.ui.cli.commands import doctor

PATIENCE_S = 30.0


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


def on_terminal(monkeypatch: pytest.MonkeyPatch, slow_s: float = 0.0) -> Terminal:
    """Not a fixture: pytest puts its own stderr in place between those and the test."""
    monkeypatch.setenv("TERM", "xterm")
    monkeypatch.setenv("NO_COLOR", "1")
    monkeypatch.setenv("COLUMNS", "100")
    monkeypatch.setattr("sys.stderr", made := Terminal())
    monkeypatch.setattr(progress, "SLOW_S", slow_s)
    return made


def test_bytes_are_counted(monkeypatch: pytest.MonkeyPatch) -> None:
    terminal = on_terminal(monkeypatch)
    with progress.counted("sending the folder [red]\x1b") as tell:
        tell(2 << 20, 4 << 20)
        wait_until(lambda: "2.0/4.0 MiB" in terminal.getvalue(), PATIENCE_S, "a bar")
    assert "sending the folder [red]\\x1b" in terminal.getvalue()
    assert terminal.getvalue().endswith("\x1b[2K")  # it is gone


def test_of_an_unknown_number_of_bytes_there_is_no_share(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    terminal = on_terminal(monkeypatch)
    with progress.counted("pulling job 17") as tell:
        tell(3 << 20, 0)
        wait_until(lambda: "3.0/? MiB" in terminal.getvalue(), PATIENCE_S, "a bar")


def test_what_is_done_within_a_second_is_not_drawn(monkeypatch: pytest.MonkeyPatch) -> None:
    terminal = on_terminal(monkeypatch, slow_s=3600.0)
    with progress.counted("sending") as tell:
        tell(1, 2)
    with progress.waiting("joining"):
        pass
    assert terminal.getvalue() == ""


def test_what_is_no_terminal_gets_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("sys.stderr", shown := io.StringIO())
    monkeypatch.setattr(progress, "SLOW_S", 0.0)
    with progress.counted("sending") as tell:
        tell(1, 2)
    with progress.waiting("joining"):
        pass
    assert shown.getvalue() == ""


def test_what_says_nothing_until_it_is_done_shows_the_seconds(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    terminal = on_terminal(monkeypatch)
    with progress.waiting("joining the cluster"):
        wait_until(
            lambda: "joining the cluster 0:00:0" in terminal.getvalue(), PATIENCE_S, "a line"
        )
    shown = terminal.getvalue()
    assert shown.endswith("\x1b[2K")
    assert terminal.getvalue() == shown


@pytest.mark.parametrize(
    ("words", "request_type", "answers", "shown"),
    [
        (("wait", "17"), m.Wait, (ended(), m.EndOfAnswers()), "waiting for job 17"),
        (("stacks", "17"), m.Stacks, (m.StackDumps(()),), "asking the workers of job 17"),
        (("renew",), m.Renew, (m.ClusterView("lab", "member", "b"),), "asking the coordinator"),
        (("nodes", "remove", "b"), m.RemoveNode, (machine("b"),), "taking b out of the cluster"),
        (("nodes", "lost", "b"), m.DeclareLost, (machine("b"),), "declaring b lost"),
    ],
)
def test_a_command_whose_answer_takes_long_shows_what_it_waits_for(
    cli: Cli,
    daemon: FakeDaemon,
    monkeypatch: pytest.MonkeyPatch,
    words: tuple[str, ...],
    request_type: type,
    answers: tuple[Any, ...],
    shown: str,
) -> None:
    terminal = on_terminal(monkeypatch)

    def answer(_: Any, link: FakeConnection) -> None:
        wait_until(lambda: shown in terminal.getvalue(), PATIENCE_S, "a line")
        link.say(*answers)

    daemon.does(request_type, answer)
    assert cli(*words).code == 0


def test_a_large_folder_is_said_to_be_looked_at(
    cli: Cli, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    terminal, real = on_terminal(monkeypatch), loaded_job.survey

    def slow(directory: Path) -> Any:
        wait_until(lambda: "looking at the folder" in terminal.getvalue(), PATIENCE_S, "a line")
        return real(directory)

    monkeypatch.setattr(loaded_job, "survey", slow)
    (tmp_path / "job.toml").write_text('[run]\ncommand = ["true"]\n')
    assert cli("check", str(tmp_path / "job.toml")).code == 0


def test_other_machines_that_do_not_answer_are_waited_for_in_sight(
    cli: Cli, daemon: FakeDaemon, monkeypatch: pytest.MonkeyPatch
) -> None:
    terminal = on_terminal(monkeypatch)

    def slow(*_: Any) -> list[Any]:
        text = "connecting to the other machines"
        wait_until(lambda: text in terminal.getvalue(), PATIENCE_S, "a line")
        return []

    monkeypatch.setattr(doctor, "peers", slow)
    cli("doctor", "--peers")
    assert daemon.asked(m.ListNodes)
    assert not daemon.problems
