"""`wiiiiide cancel`: over means over."""

from __future__ import annotations

import signal

import msgspec
import pytest

from tests.kit.conditions import wait_until
from tests.kit.fake_daemon import FakeConnection, FakeDaemon, ended, status
from tests.ui.cli.kit import PATIENCE_S, Cli, Program
from wiiiiided.cluster.rpc import messages as m


def test_it_says_what_happened(cli: Cli, daemon: FakeDaemon) -> None:
    daemon.answers(m.Cancel, ended(17, "cancelled", None, why="cancelled by ada"))
    result = cli("cancel", "17")
    assert (result.code, result.out) == (0, "")
    assert result.err == "job 17 (digits) cancelled by ada; it ran for 3m10s\n"
    assert daemon.requests == [m.Cancel(17, False)]


def test_a_job_that_never_started_has_no_duration(cli: Cli, daemon: FakeDaemon) -> None:
    job = ended(17, "cancelled", None, why="left the queue", started_at=None)
    daemon.answers(m.Cancel, job)
    assert cli("cancel", "17").err == "job 17 (digits) cancelled: left the queue\n"


@pytest.mark.parametrize("words", [("cancel", "0"), ("cancel", "s0"), ("ps", "s0"), ("show", "0")])
def test_no_job_and_no_sweep_has_the_number_0(
    cli: Cli, daemon: FakeDaemon, words: tuple[str, str]
) -> None:
    result = cli(*words)
    assert (result.code, daemon.requests) == (2, [])
    assert f"'{words[1]}' is no" in result.err


def test_now_is_passed_on(cli: Cli, daemon: FakeDaemon) -> None:
    daemon.answers(m.Cancel, ended(17, "cancelled", 137))
    assert cli("cancel", "--now", "17").code == 0
    assert daemon.requests == [m.Cancel(17, True)]


def test_several_are_cancelled_even_if_one_is_refused(cli: Cli, daemon: FakeDaemon) -> None:
    def cancel(request: m.Cancel, link: FakeConnection) -> None:
        if request.id == 9:
            link.say(m.Refusal(5, "job 9 is grace's"))
        else:
            link.say(ended(request.id, "cancelled", None))

    daemon.does(m.Cancel, cancel)
    result = cli("cancel", "17", "9", "18")
    assert result.code == 5
    assert [line.split()[:2] for line in result.err.splitlines()] == [
        ["job", "17"],
        ["wiiiiide:", "job"],
        ["job", "18"],
    ]


def test_a_long_grace_is_explained_on_a_terminal(program: Program, daemon: FakeDaemon) -> None:
    def cancel(request: m.Cancel, link: FakeConnection) -> None:
        wait_until(lambda: "--now" in program.shown, PATIENCE_S, "it says what it waits for")
        link.say(ended(17, "cancelled", None))

    daemon.does(m.Cancel, cancel)
    shown = program.on_terminal("cancel", "17").out
    assert "waiting for the workers to end by themselves; cancel --now kills them" in shown
    assert "job 17 (digits) cancelled" in shown


def test_a_coordinator_that_is_away_is_what_is_waited_for(
    program: Program, daemon: FakeDaemon
) -> None:
    def cancel(_: m.Cancel, link: FakeConnection) -> None:
        link.say(m.Notice("waiting up to 30 s for the coordinator a"))
        wait_until(lambda: bool(daemon.asked(m.GetStatus)), PATIENCE_S, "whether it is the workers")
        link.say(m.Refusal(4, "the coordinator a does not answer"))

    away = msgspec.structs.replace(status(), problem="the coordinator a does not answer")
    daemon.answers(m.GetStatus, away)
    daemon.does(m.Cancel, cancel)
    result = program.on_terminal("cancel", "17")
    assert result.code == 4
    assert "wiiiiide: waiting up to 30 s for the coordinator a" in result.out
    assert "workers" not in result.out


def test_an_interrupt_says_that_the_stop_goes_on(program: Program, daemon: FakeDaemon) -> None:
    def stay(_: m.Cancel, link: FakeConnection) -> None:
        with pytest.raises(EOFError):
            link.frame()

    daemon.does(m.Cancel, stay)
    process = program.start("cancel", "17")
    wait_until(lambda: bool(daemon.asked(m.Cancel)), PATIENCE_S, "it waits")
    process.send_signal(signal.SIGINT)
    _, err = process.communicate(timeout=PATIENCE_S)
    assert process.returncode == 130
    assert err == "wiiiiide: stopped waiting; the jobs are being ended all the same\n"
