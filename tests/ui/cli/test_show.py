"""`wiiiiide show`: one page about a job."""

from __future__ import annotations

from msgspec.structs import replace

from tests.kit.fake_daemon import FakeDaemon, ended, view
from tests.ui.cli.kit import Cli, Program
from tests.ui.report.runs import rank, run
from wiiiiided.cluster.rpc import messages as m
from wiiiiided.domain.metrics import RunForecast
from wiiiiided.text import columns

SPEC = {
    "name": "digits",
    "run": {"command": ["python", "train.py", "--name", "a b"], "env": {"LR": "0.1"}},
    "policy": {"priority": 80, "restart": {}},
}


def detail(job: m.JobView, error: str = "", *, story: str = "was submitted by ada") -> m.JobDetail:
    ranks = (
        m.RankView(0, "a", 4711, "running"),
        m.RankView(1, "a", None, "ended", 137),
    )
    return m.JobDetail(job, SPEC, ranks, (m.StoryLine(1_000_000.0, story),), "/jobs/17", error)


def test_facts_ranks_and_story(cli: Cli, daemon: FakeDaemon) -> None:
    daemon.answers(m.Show, detail(view()))
    result = cli("show", "17")
    lines = result.out.splitlines()
    assert lines[0] == "job 17: digits"
    assert "  state      running on a" in lines
    assert "  owner      ada, priority 50" in lines
    assert "  command    python train.py --name 'a b'" in lines
    assert "  directory  /jobs/17" in lines
    assert "  workers    2 on a" in lines
    assert '  run.env.LR = "0.1"' in lines
    assert "  policy.priority = 80" in lines
    assert "    0  a  running  pid 4711" in lines
    assert "    1  a  ended  exit code 137 (SIGKILL)" in lines
    assert lines[-1].endswith("  was submitted by ada")
    assert "error" not in lines
    assert (result.code, result.err) == (0, "")


def test_of_a_job_that_waits_when_it_starts(cli: Cli, daemon: FakeDaemon) -> None:
    waits = view(state="queued", starts_at=1.0, starts="starts in about 12 min")
    daemon.answers(m.Show, detail(waits))
    assert "  starts     in about 12 min" in cli("show", "17").out.splitlines()


def test_names_of_nodes_are_padded(cli: Cli, daemon: FakeDaemon) -> None:
    ranks = (m.RankView(0, "a", 1, "running"), m.RankView(1, "gpu-9", 2, "running"))
    daemon.answers(m.Show, replace(detail(view()), ranks=ranks))
    lines = cli("show", "17").out.splitlines()
    assert "    0  a      running  pid 1" in lines
    assert "    1  gpu-9  running  pid 2" in lines


def test_a_failed_job_shows_its_end_and_error(cli: Cli, daemon: FakeDaemon) -> None:
    job = ended(17, "failed", 1, why="rank 1 ended with code 1")
    daemon.answers(m.Show, detail(job, "Traceback …\n  File\n\nValueError: \x1b[31mno\n"))
    out = cli("show", "17").out
    assert "after 3m10s, exit code 1\n" in out
    assert out.endswith("error\n  Traceback …\n    File\n  \n  ValueError: \\x1b[31mno\n")


def test_untrusted_text_is_harmless(cli: Cli, daemon: FakeDaemon) -> None:
    nasty = "[red]x\x1b[2J\nforged: line"
    job = view(name=nasty, owner=nasty, why=nasty)
    daemon.answers(m.Show, detail(job, story=nasty))
    out = cli("show", "17").out
    assert "\x1b" not in out
    assert not any(line.startswith("forged") for line in out.splitlines())


def test_json_has_everything(cli: Cli, daemon: FakeDaemon) -> None:
    daemon.answers(m.Show, detail(view(), "boom"))
    found = cli("show", "17", "--json").json
    assert found["job"]["id"] == 17
    assert "type" not in found["job"]
    assert found["spec"] == SPEC
    assert found["ranks"][1] == {"rank": 1, "node": "a", "pid": None, "state": "ended", "code": 137}
    assert found["story"] == [{"at": 1_000_000.0, "text": "was submitted by ada"}]
    assert (found["directory"], found["error"]) == ("/jobs/17", "boom")


def test_no_such_job(cli: Cli, daemon: FakeDaemon) -> None:
    daemon.answers(m.Show, m.Refusal(6, "there is no job 9", "wiiiiide ps -a lists them"))
    assert cli("show", "9").code == 6


def test_settings_are_told_as_a_job_file_has_them(cli: Cli, daemon: FakeDaemon) -> None:
    spec = {
        "name": "digits",
        "run": {"command": ["x"]},
        "resources": {"min_memory": 8 << 30, "nodes": [2, 4]},
        "policy": {
            "max_time_s": 28800.0,
            "hang_timeout_s": 5.0,
            "restart": {"max": 2, "backoff_s": 1.0},
            "from_the_future": [1],
        },
    }
    daemon.answers(m.Show, m.JobDetail(view(), spec, (), (), "/jobs/17"))
    out = cli("show", "17").out
    settings = out.partition("settings\n")[2].splitlines()
    assert settings == [
        '  resources.min_memory = "8GiB"',
        '  resources.nodes = "2-4"',
        '  policy.max_time = "8h"',
        '  policy.hang_timeout = "5s"',
        "  policy.restart.max = 2",
        '  policy.restart.backoff = "1s"',
        "  policy.from_the_future = [1]",
    ]


def test_metrics_of_the_latest_attempt(cli: Cli, daemon: FakeDaemon) -> None:
    daemon.answers(m.Show, replace(detail(view()), run=run(2, points=())))
    lines = cli("show", "17").out.splitlines()
    start = lines.index("metrics of attempt 2")
    assert lines[start + 1] == "  steps      1,000 of 1,000, 10/s, start-up included"
    assert "  loss       0.412 at last" in lines
    assert lines[start - 1] == ""


def test_a_run_that_goes_on_has_metrics_so_far(cli: Cli, daemon: FakeDaemon) -> None:
    daemon.answers(m.Show, replace(detail(view()), run=run(ended_at=None, points=())))
    assert "metrics of attempt 1 so far\n" in cli("show", "17").out


def test_what_is_not_measured_is_said_and_a_lost_loss_too(cli: Cli, daemon: FakeDaemon) -> None:
    gloo = run(points=(), ranks=(rank(measured=False, diverged=True),))
    daemon.answers(m.Show, replace(detail(view()), run=gloo))
    out = cli("show", "17").out
    assert "  loss       nan at last (0.412 before)\n" in out
    assert "  time       exchange and waiting are not measured: " in out
    assert "%" not in out
    assert "travelled" not in out


def test_a_reason_does_not_repeat_the_state(cli: Cli, daemon: FakeDaemon) -> None:
    daemon.answers(m.Show, detail(ended(17, "cancelled", None, why="cancelled by root")))
    assert "  state      cancelled by root\n" in cli("show", "17").out


def test_a_run_that_counted_nothing_has_no_metrics(cli: Cli, daemon: FakeDaemon) -> None:
    daemon.answers(m.Show, replace(detail(view()), run=run(points=(), ranks=())))
    assert "metrics" not in cli("show", "17").out


def test_a_queued_job_says_what_it_may_need(cli: Cli, daemon: FakeDaemon) -> None:
    forecast = RunForecast(3, "3 earlier runs:\x1b[2J 2 GiB a rank", 2 << 30, (60.0, 90.0), 0)
    daemon.answers(m.Show, replace(detail(view(state="queued")), forecast=forecast))
    assert "  expects    3 earlier runs:\\x1b[2J 2 GiB a rank\n" in cli("show", "17").out


def test_json_has_the_metrics_and_the_forecast(cli: Cli, daemon: FakeDaemon) -> None:
    told = replace(detail(view()), run=run(points=()), forecast=RunForecast(0, "no earlier runs"))
    daemon.answers(m.Show, told)
    found = cli("show", "17", "--json").json
    assert found["run"]["ranks"][0]["totals"]["loss"] == 0.412
    assert found["forecast"]["text"] == "no earlier runs"


def test_a_terminal_gets_frames_in_which_nothing_is_markup(
    program: Program, daemon: FakeDaemon
) -> None:
    daemon.answers(m.Show, detail(view(name="[bold]digits"), "ValueError: [/red] no \x1b[2J"))
    for width in (40, 60, 80, 120):
        shown = program.on_terminal("show", "17", width=width, NO_COLOR="1").out.splitlines()
        assert shown[0].startswith("╭─ job 17: [bold]digits ─")
        assert {columns(row) for row in shown} == {width}
        assert any("ValueError: [/red] no \\x1b[2J" in row for row in shown)


def test_a_title_too_long_for_its_frame_stands_above_it(
    program: Program, daemon: FakeDaemon
) -> None:
    daemon.answers(m.Show, detail(view(name="digits-" * 8)))
    shown = program.on_terminal("show", "17", width=50, NO_COLOR="1").out.splitlines()
    assert shown[0] == f"job 17: {'digits-' * 8}"
    assert shown[1] == f"╭{'─' * 48}╮"
