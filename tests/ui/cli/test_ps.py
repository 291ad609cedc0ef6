"""`wiiiiide ps`: every width, no surprise in any cell."""

from __future__ import annotations

import json
import time

import pytest

from tests.kit.fake_daemon import FakeConnection, FakeDaemon, ended, view
from tests.ui.cli.kit import Cli, Program
from wiiiiided.cluster.rpc import messages as m
from wiiiiided.text import columns
from wiiiiided.ui.cli.commands import ps

NASTY = "[red]x\x1b[2J\n\u202e漢字e\u0301"


def jobs() -> m.JobList:
    now = time.time()
    return m.JobList(
        (
            view(17, started_at=now - 130, submitted_at=now - 200),
            view(
                18,
                state="queued",
                name="language-model",
                started_at=None,
                attempt=0,
                submitted_at=now - 7300,
                why="waits for a, which runs job 17; 2 jobs ahead of it",
            ),
            view(19, state="held", name=NASTY, owner=NASTY, why=NASTY, submitted_at=now - 5),
        )
    )


def test_jobs_are_listed_with_all_that_matters(
    cli: Cli, daemon: FakeDaemon, monkeypatch: pytest.MonkeyPatch
) -> None:
    now = time.time()
    monkeypatch.setattr(time, "time", lambda: now)  # it stands still: seconds are shown
    daemon.answers(m.ListJobs, jobs())
    result = cli("ps")
    heading, first, second, _ = result.out.splitlines()
    assert heading.split() == ["ID", "NAME", "STATE", "OWNER", "WORKERS", "TRY", "TIME", "WHY"]
    assert first.split()[:7] == ["17", "digits", "running", "ada", "2", "1/4", "2m10s"]
    assert first.endswith("runs on a")
    assert second.split()[:7] == ["18", "language-model", "queued", "ada", "2", "-", "2h01m"]
    assert second.endswith("2 jobs ahead of it")
    assert (result.code, result.err) == (0, "")
    assert daemon.requests == [m.ListJobs(0)]


def test_all_of_them_are_in_the_order_of_their_numbers(cli: Cli, daemon: FakeDaemon) -> None:
    told = (ended(12), ended(9), view(8), view(10, state="queued", priority=90), view(7))
    daemon.answers(m.ListJobs, m.JobList(told))
    rows = cli("ps", "-a").out.splitlines()[1:]
    assert [row.split()[0] for row in rows] == ["7", "8", "9", "10", "12"]
    listed = cli("ps", "--all", "--json").json["jobs"]
    assert [job["id"] for job in listed] == [7, 8, 9, 10, 12]
    rows = cli("ps").out.splitlines()[1:]
    assert [row.split()[0] for row in rows] == ["12", "9", "8", "10", "7"]


def test_one_machines_view_is_marked_as_such(cli: Cli, daemon: FakeDaemon) -> None:
    partial = "the coordinator a does not answer; b tells of its own jobs only"
    alone = m.JobList((view(17),), partial)

    def listed(_: m.ListJobs, link: FakeConnection) -> None:
        link.say(m.Notice(partial))
        link.say(alone)

    daemon.does(m.ListJobs, listed)
    result = cli("ps")
    assert result.err == f"wiiiiide: {partial}\n"
    assert result.out.splitlines()[1].split()[0] == "17"
    assert json.loads(cli("ps", "--json").out)["partial"] == partial


@pytest.mark.parametrize("width", [80, 120])
def test_what_a_running_job_uses_is_listed(
    program: Program, daemon: FakeDaemon, width: int
) -> None:
    running = view(17, started_at=time.time() - 130, cpu=1.94, memory=3_300_000_000)
    daemon.answers(
        m.ListJobs, m.JobList((running, view(18, state="queued", name="language-model")))
    )
    shown = program.on_terminal("ps", width=width, NO_COLOR="1").out
    heading, rule, first, second = shown.splitlines()
    assert set(rule) == {"─"}
    assert heading.split()[-4:] == ["CPU", "MEM", "TIME", "WHY"]
    assert first.split()[-6:-4] == ["1.9", "3.1G"]
    assert second.split()[-6:-4] == ["-", "-"]


def test_untrusted_text_is_harmless(cli: Cli, daemon: FakeDaemon) -> None:
    daemon.answers(m.ListJobs, jobs())
    row = cli("ps").out.splitlines()[3]
    assert "[red]x\\x1b[2J\\x0a\\u202e漢字" in row
    assert "\x1b" not in row


@pytest.mark.parametrize("width", [40, 41, 50, 60, 79, 80, 100, 132, 250])
def test_no_row_is_wider_than_the_screen(
    cli: Cli, daemon: FakeDaemon, monkeypatch: pytest.MonkeyPatch, width: int
) -> None:
    daemon.answers(m.ListJobs, jobs())
    monkeypatch.setenv("COLUMNS", str(width))
    lines = cli("ps").out.splitlines()
    assert len(lines) == 4
    assert all(columns(line) <= width for line in lines)
    assert [line.split()[0] for line in lines] == ["ID", "17", "18", "19"]
    assert "running" in lines[1]


def test_a_narrow_screen_keeps_what_matters_most(
    cli: Cli, daemon: FakeDaemon, monkeypatch: pytest.MonkeyPatch
) -> None:
    daemon.answers(m.ListJobs, m.JobList(jobs().jobs[:2]))
    headings = {}
    for width in (40, 60, 80, 120):
        monkeypatch.setenv("COLUMNS", str(width))
        headings[width] = cli("ps").out.splitlines()[0].split()
    assert headings[40] == ["ID", "NAME", "STATE", "TIME"]
    assert headings[60] == ["ID", "NAME", "STATE", "TIME", "WHY"]
    assert headings[80] == ["ID", "NAME", "STATE", "OWNER", "WORKERS", "TIME", "WHY"]
    assert len(headings[120]) == 8


def test_no_jobs_are_said_on_stderr(cli: Cli, daemon: FakeDaemon) -> None:
    daemon.answers(m.ListJobs, m.JobList(()))
    result = cli("ps")
    assert (result.code, result.out) == (0, "")
    assert result.err == "no jobs; wiiiiide ps -a shows ended ones\n"
    assert "wiiiiide submit" in cli("ps", "-a").err


def test_all_asks_for_ended_ones_too(cli: Cli, daemon: FakeDaemon) -> None:
    daemon.answers(m.ListJobs, m.JobList((ended(16, started_at=1_000_100.0), view())))
    lines = cli("ps", "--all").out.splitlines()
    assert lines[1].split()[:7] == ["16", "digits", "done", "ada", "2", "1/4", "1m40s"]
    assert daemon.asked(m.ListJobs)[0].ended > 0


@pytest.mark.parametrize("option", [(), ("--json",)])
def test_all_says_when_not_all_are_listed(
    cli: Cli, daemon: FakeDaemon, monkeypatch: pytest.MonkeyPatch, option: tuple[str, ...]
) -> None:
    monkeypatch.setattr(ps, "ENDED", 2)
    daemon.answers(m.ListJobs, m.JobList((ended(15), ended(16), view())))
    assert cli("ps", "-a", *option).err == ""
    daemon.answers(m.ListJobs, m.JobList((ended(14), ended(15), ended(16), view())))
    result = cli("ps", "-a", *option)
    assert result.err == (
        "the latest 2 that are over are listed, and there are more; "
        "wiiiiide history -n N lists so many\n"
    )
    if option:
        assert [job["id"] for job in result.json["jobs"]] == [15, 16, 17]
    else:
        assert [line.split()[0] for line in result.out.splitlines()[1:]] == ["15", "16", "17"]
    assert daemon.asked(m.ListJobs)[0].ended == 3


def test_json_has_every_field(cli: Cli, daemon: FakeDaemon) -> None:
    daemon.answers(m.ListJobs, m.JobList((view(17, name=NASTY),)))
    (job,) = cli("ps", "--json").json["jobs"]
    assert job["name"] == NASTY
    assert set(job) == {
        *("id", "name", "state", "owner", "priority", "submitted_at", "started_at", "ended_at"),
        *("attempt", "attempts", "nodes", "workers", "code", "why", "error", "sweep", "setting"),
        *("cpu", "memory", "starts_at", "starts", "apart"),
    }


def test_json_without_jobs_is_an_empty_list(cli: Cli, daemon: FakeDaemon) -> None:
    daemon.answers(m.ListJobs, m.JobList(()))
    result = cli("ps", "--json")
    assert (result.json, result.err) == ({"jobs": []}, "")


def test_a_terminal_gets_colours_unless_it_wants_none(program: Program, daemon: FakeDaemon) -> None:
    daemon.answers(m.ListJobs, m.JobList((view(),)))
    coloured = program.on_terminal("ps", width=100).out
    assert "\x1b[32mrunning" in coloured
    for env in ({"NO_COLOR": "1"}, {"TERM": "dumb"}):
        plain = program.on_terminal("ps", width=100, **env).out
        assert "\x1b" not in plain
        assert "running" in plain


def test_rows_fit_a_narrow_terminal(program: Program, daemon: FakeDaemon) -> None:
    daemon.answers(m.ListJobs, jobs())
    shown = program.on_terminal("ps", width=44, NO_COLOR="1").out
    assert len(shown.splitlines()) == 5
    assert max(map(columns, shown.splitlines())) <= 44


def test_a_pipe_gets_whole_rows(program: Program, daemon: FakeDaemon) -> None:
    daemon.answers(m.ListJobs, m.JobList((view(why="y" * 500),)))
    assert "y" * 500 in program.run("ps").out


def test_starts_are_shown_where_one_is_known(cli: Cli, daemon: FakeDaemon) -> None:
    reason = "when it starts is not known: job 17 has no max_time"
    waits = view(18, state="queued", starts=reason)
    known = view(19, state="queued", starts_at=1.0, starts="starts in about 12 min")
    daemon.answers(m.ListJobs, m.JobList((view(), waits)))
    assert "STARTS" not in cli("ps").out
    daemon.answers(m.ListJobs, m.JobList((view(), waits, known)))
    heading, first, second, third = cli("ps").out.splitlines()
    place = heading.index("STARTS")
    assert [row[place:].split("  ")[0] for row in (first, second, third)] == [
        *("-", "-", "in about 12 min")
    ]
    assert cli("ps", "--json").json["jobs"][1]["starts"] == reason


# ---- which jobs


def test_jobs_are_chosen_by_state_and_name(cli: Cli, daemon: FakeDaemon) -> None:
    daemon.answers(m.ListJobs, jobs())

    def found(*words: str) -> list[int]:
        return [job["id"] for job in cli("ps", "--json", *words).json["jobs"]]

    assert found("--state", "running,queued") == [17, 18]
    assert found("--state", "held", "--state", "queued") == [18, 19]
    assert found("--name", "digits") == [17]
    assert found("--name", "*-[lm]odel", "--state", "queued") == [18]
    assert found("--name", "DIGITS") == []
    assert daemon.requests == [m.ListJobs(0)] * 5
    nothing = cli("ps", "--name", "nothing")
    assert (nothing.code, nothing.out) == (0, "")
    assert nothing.err == "no job is as asked for; wiiiiide ps lists all\n"


def test_a_state_of_the_end_looks_at_what_is_over(cli: Cli, daemon: FakeDaemon) -> None:
    daemon.answers(m.ListJobs, m.JobList((ended(3, "failed", 1), ended(4), *jobs().jobs)))
    listed = cli("ps", "--state", "failed,running", "--json").json["jobs"]
    assert [job["id"] for job in listed] == [3, 17]
    assert daemon.requests == [m.ListJobs(1001)]


def test_an_unknown_state_is_refused_with_those_there_are(cli: Cli, daemon: FakeDaemon) -> None:
    result = cli("ps", "--state", "running,runing")
    assert result.code == 2
    assert "--state 'runing' is none of held, queued, starting, running" in result.err
    assert daemon.requests == []
