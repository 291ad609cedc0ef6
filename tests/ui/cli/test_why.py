"""`wiiiiide why`: exactly one sentence."""

from __future__ import annotations

from tests.kit.fake_daemon import FakeDaemon
from tests.ui.cli.kit import Cli
from wiiiiided.cluster.rpc import messages as m

SENTENCE = "waits for 2 nodes; 1 of 3 is free (a, b run job 16)"


def test_the_sentence_is_all_there_is_on_stdout(cli: Cli, daemon: FakeDaemon) -> None:
    daemon.answers(m.Why, m.JobReason(17, "queued", SENTENCE))
    result = cli("why", "17")
    assert (result.code, result.out, result.err) == (0, SENTENCE + "\n", "")
    assert daemon.requests == [m.Why(17)]


def test_json_has_the_state_too(cli: Cli, daemon: FakeDaemon) -> None:
    daemon.answers(m.Why, m.JobReason(17, "queued", SENTENCE))
    expected = {"id": 17, "state": "queued", "why": SENTENCE, "error": "", "starts": ""}
    expected["problem"] = ""
    assert cli("why", "17", "--json").json == expected


def test_a_daemon_that_has_no_room_on_its_disk_says_so(cli: Cli, daemon: FakeDaemon) -> None:
    daemon.answers(m.Why, m.JobReason(17, "queued", SENTENCE, problem="the disk is full"))
    daemon.answers(m.ListJobs, m.JobList((), problem="the disk is full"))
    result = cli("why", "17")
    assert (result.out, result.err) == (SENTENCE + "\n", "the daemon says: the disk is full\n")
    assert "the daemon says: the disk is full\n" in cli("ps").err


def test_a_sentence_with_escape_codes_is_harmless(cli: Cli, daemon: FakeDaemon) -> None:
    daemon.answers(m.Why, m.JobReason(17, "failed", "rank 0 said \x1b[2J\nand more"))
    assert cli("why", "17").out == "rank 0 said \\x1b[2J\\x0aand more\n"


def test_when_a_job_starts_is_said_behind_why_it_waits(cli: Cli, daemon: FakeDaemon) -> None:
    waits, starts = "waits for a, which runs job 3", "starts within 2 h"
    daemon.answers(m.Why, m.JobReason(17, "queued", waits, starts=starts))
    assert cli("why", "17").out == f"{waits}; {starts}\n"
    assert cli("why", "17", "--json").json["starts"] == starts


def test_a_job_that_is_not_there_ends_with_the_daemons_code(cli: Cli, daemon: FakeDaemon) -> None:
    daemon.answers(m.Why, m.Refusal(6, "there is no job 99", "wiiiiide ps -a lists them"))
    result = cli("why", "99")
    assert (result.code, result.out) == (6, "")
    assert result.err == "wiiiiide: there is no job 99\nwiiiiide ps -a lists them\n"


def test_what_is_no_number_is_refused_without_asking(cli: Cli, daemon: FakeDaemon) -> None:
    for text in ("x", "-1", "1.5", "0x11", "9" * 30, "", "１"):
        result = cli("why", "--", text)
        assert result.code == 2, text
        assert "is not the number of a job" in result.err
    assert daemon.requests == []
