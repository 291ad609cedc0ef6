"""`wiiiiide history`: how jobs ended."""

from __future__ import annotations

from tests.kit.fake_daemon import FakeDaemon, ended
from tests.ui.cli.kit import Cli
from wiiiiided.cluster.rpc import messages as m


def test_ended_jobs_have_duration_and_code(cli: Cli, daemon: FakeDaemon) -> None:
    killed = ended(18, "failed", 137, why="rank 1 was killed by SIGKILL")
    never = ended(19, "cancelled", None, started_at=None, attempt=0, why="cancelled by ada")
    daemon.answers(m.ListHistory, m.JobList((never, killed, ended(17))))
    lines = cli("history").out.splitlines()
    assert lines[0].split() == [
        *("ID", "NAME", "STATE", "CODE", "TIME", "ENDED", "OWNER", "TRY", "WHY")
    ]
    assert lines[1].split()[:5] == ["19", "digits", "cancelled", "-", "-"]
    assert lines[2].split()[:6] == ["18", "digits", "failed", "137", "(SIGKILL)", "3m10s"]
    assert lines[2].endswith("rank 1 was killed by SIGKILL")
    assert lines[3].split()[:5] == ["17", "digits", "done", "0", "3m10s"]
    assert daemon.requests == [m.ListHistory(50)]


def test_the_number_of_jobs_is_passed_on(cli: Cli, daemon: FakeDaemon) -> None:
    daemon.answers(m.ListHistory, m.JobList(()))
    assert cli("history", "-n", "3").code == 0
    assert cli("history", "-n", "x").code == 2
    assert daemon.requests == [m.ListHistory(3)]


def test_without_any_it_says_so(cli: Cli, daemon: FakeDaemon) -> None:
    daemon.answers(m.ListHistory, m.JobList(()))
    result = cli("history")
    assert (result.out, result.err) == (
        "",
        "no job has ended yet; wiiiiide ps lists those under way\n",
    )


def test_json(cli: Cli, daemon: FakeDaemon) -> None:
    daemon.answers(m.ListHistory, m.JobList((ended(17),)))
    (job,) = cli("history", "--json").json["jobs"]
    assert (job["id"], job["code"], job["ended_at"]) == (17, 0, 1_000_200.0)


def test_none_at_all_is_no_claim_that_none_has_ended(cli: Cli, daemon: FakeDaemon) -> None:
    daemon.answers(m.ListHistory, m.JobList((ended(),)))
    result = cli("history", "-n", "0")
    assert (result.code, result.out, result.err) == (0, "", "")
    assert cli("history", "-n", "0", "--json").json == {"jobs": []}
