"""`wiiiiide wait`: the job's own code, or 124."""

from __future__ import annotations

import signal
import subprocess
import time

import pytest

from tests.kit.conditions import wait_until
from tests.kit.fake_daemon import FakeConnection, FakeDaemon, ended, view
from tests.ui.cli.kit import PATIENCE_S, Cli, Program
from wiiiiided.cluster.rpc import messages as m


def _knows(daemon: FakeDaemon, *jobs: int) -> None:
    def why(request: m.Why, link: FakeConnection) -> None:
        known = m.JobReason(request.id, "running", "runs on a")
        link.say(known if request.id in jobs else m.Refusal(6, f"there is no job {request.id}"))

    daemon.does(m.Why, why)


def _ends(daemon: FakeDaemon, codes: dict[int, tuple[str, int | None]]) -> None:
    _knows(daemon, *codes)

    def wait(request: m.Wait, link: FakeConnection) -> None:
        state, code = codes[request.id]
        link.say(view(request.id), ended(request.id, state, code, why="why"), m.EndOfAnswers())

    daemon.does(m.Wait, wait)


@pytest.mark.parametrize(
    ("state", "code", "expected"),
    [
        ("done", 0, 0),
        ("done", None, 0),
        ("failed", 3, 3),
        ("failed", 137, 137),
        ("cancelled", None, 1),
        ("cancelled", 143, 143),
    ],
)
def test_it_ends_with_the_jobs_code(
    cli: Cli, daemon: FakeDaemon, state: str, code: int | None, expected: int
) -> None:
    _ends(daemon, {17: (state, code)})
    result = cli("wait", "17")
    assert (result.code, result.out) == (expected, "")
    assert result.err.startswith(f"job 17 (digits) {state}: why")


def test_several_give_the_first_bad_code_in_the_order_of_their_numbers(
    cli: Cli, daemon: FakeDaemon
) -> None:
    _ends(daemon, {17: ("done", 0), 18: ("failed", 9), 19: ("failed", 4)})
    assert cli("wait", "19", "17", "18").code == 9
    assert [request.id for request in daemon.asked(m.Wait)] == [17, 18, 19]


def test_a_timeout_ends_it_with_124(
    cli: Cli, daemon: FakeDaemon, monkeypatch: pytest.MonkeyPatch
) -> None:
    clock = time.monotonic

    def wait(request: m.Wait, link: FakeConnection) -> None:
        if request.id == 17:
            link.say(ended(17), m.EndOfAnswers())
            return
        link.say(view(request.id))
        monkeypatch.setattr(time, "monotonic", lambda: clock() + 3600.0)
        with pytest.raises(EOFError):
            link.frame()

    daemon.does(m.Wait, wait)
    _knows(daemon, 17, 18, 19)
    result = cli("wait", "17", "18", "19", "--timeout", "50m")
    assert result.code == 124
    assert result.err.endswith("wiiiiide: the time is up; not over: 18, 19\n")


def test_json_has_the_jobs_and_the_code(cli: Cli, daemon: FakeDaemon) -> None:
    _ends(daemon, {17: ("done", 0), 18: ("failed", 9)})
    result = cli("wait", "17", "18", "--json")
    assert result.json["code"] == result.code == 9
    assert [(job["id"], job["code"]) for job in result.json["jobs"]] == [(17, 0), (18, 9)]
    assert result.err == ""


def test_a_timeout_that_is_none_is_usage(cli: Cli) -> None:
    assert cli("wait", "17", "--timeout", "soon").code == 2


def test_no_such_job(cli: Cli, daemon: FakeDaemon) -> None:
    daemon.answers(m.Wait, m.Refusal(6, "there is no job 9"))
    assert cli("wait", "9").code == 6


def test_one_that_does_not_exist_is_told_before_the_others_are_waited_for(
    cli: Cli, daemon: FakeDaemon
) -> None:
    _ends(daemon, {17: ("done", 0)})
    result = cli("wait", "17", "999")
    assert (result.code, result.err) == (6, "wiiiiide: there is no job 999\n")
    assert daemon.asked(m.Wait) == []


def test_an_interrupt_says_that_the_job_goes_on(program: Program, daemon: FakeDaemon) -> None:
    def stay(_: m.Wait, link: FakeConnection) -> None:
        link.say(view())
        with pytest.raises(EOFError):
            link.frame()

    daemon.does(m.Wait, stay)
    process: subprocess.Popen[str] = program.start("wait", "17")
    wait_until(lambda: bool(daemon.asked(m.Wait)), PATIENCE_S, "it waits")
    process.send_signal(signal.SIGINT)
    out, err = process.communicate(timeout=PATIENCE_S)
    assert (process.returncode, out) == (130, "")
    assert err == "wiiiiide: stopped waiting; the jobs go on\n"


def test_a_good_end_is_short(cli: Cli, daemon: FakeDaemon) -> None:
    daemon.answers(m.Wait, ended(), m.EndOfAnswers())
    assert cli("wait", "17").err == "job 17 (digits) done after 3m10s\n"
