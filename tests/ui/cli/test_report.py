"""`wiiiiide report`: on a terminal, in a file, as JSON; and what can be in the way of a file."""

from __future__ import annotations

import os
import re
import stat
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from tests.kit.fake_daemon import FakeDaemon
from tests.ui.cli.kit import Cli, Program
from tests.ui.report import strategies
from tests.ui.report.runs import diverged, hostile, records, restarted, run, unmeasured
from wiiiiided.cluster.rpc import messages as m
from wiiiiided.text import columns
from wiiiiided.ui.cli import text_charts
from wiiiiided.ui.cli.report_lines import BoldLine, ReportStyle, lines


@pytest.fixture
def told(daemon: FakeDaemon) -> m.JobRecords:
    daemon.answers(m.GetRecords, restarted())
    return restarted()


def test_the_terminal_shows_all_sections(cli: Cli, daemon: FakeDaemon, told: m.JobRecords) -> None:
    result = cli("report", "17")
    out = result.out.splitlines()
    assert out[0] == "job 17: digits"
    assert "  loss       0.412 at last" in out
    sections = [line for line in out[1:] if line and not line.startswith((" ", "RANK"))]
    assert [each for each in sections if each.isascii() and "MiB" not in each] == [
        *("loss", "samples/s", "memory", "attempts and stragglers", "attempts"),
        "time of attempt 2",
        *("batches of attempt 2", "sent to other hosts", "ranks of attempt 2", "story"),
    ]
    assert any(line.startswith("  rank 4 c  █") and line.endswith("91 · 8 · 1 %") for line in out)
    assert any(
        line.startswith("    1  ") and line.endswith(", 40s: failed, exit code 137 (SIGKILL)")
        for line in out
    )
    assert (result.code, result.err) == (0, "")
    assert daemon.asked(m.GetRecords) == [m.GetRecords(17)]


def test_what_was_not_sampled_is_blank(told: m.JobRecords) -> None:
    chart = list(lines(told, ReportStyle(80)))
    floor = next(line for line in chart if line.lstrip().startswith("0 │"))
    parts = floor.partition("│")[2].split()
    assert len(parts) == 3  # attempt 1, attempt 2 before the gap, and behind it
    assert all(set(part) <= set(text_charts.BLOCKS.levels) for part in parts)


@pytest.mark.parametrize("width", [40, 80, 120])
def test_all_charts_over_time_have_the_same_margins(told: m.JobRecords, width: int) -> None:
    drawn = list(lines(told, ReportStyle(width)))
    sides = {line.index("│") for line in drawn if "│" in line}
    floors = {(line.index("└"), columns(line)) for line in drawn if "└" in line}
    axes = {line for line in drawn if re.fullmatch(r" +0( +[0-9hms]+)+", line)}
    attempts = next(line for line in drawn if line.startswith("  attempt "))
    assert len(sides) == len(floors) == len(axes) == 1
    assert {side for side, _ in floors} == sides
    assert attempts.index("1") == axes.pop().index("0") == sides.pop() + 1
    assert columns(attempts) == floors.pop()[1]  # the last attempt ends where the axis ends


def test_without_a_group_of_the_backend_only_what_the_script_said_is_shown() -> None:
    out = "\n".join(lines(unmeasured(), ReportStyle(100)))
    assert out.count("exchange and waiting are not measured: the job uses no group of") == 1
    for wrong in ("compute", "EXCHANGE", "travelled", "straggler", "slowest", "SENT", "operation"):
        assert wrong not in out, wrong
    for kept in ("samples/s", "memory", "STEPS", "LOSS", "batches"):
        assert kept in out, kept


def test_a_loss_that_is_no_number_is_loud() -> None:
    drawn = list(lines(diverged(), ReportStyle(100)))
    loud = [str(line) for line in drawn if isinstance(line, BoldLine)]
    assert "  loss       nan at last (0.412 before)" in loud
    assert any(line.startswith("  from 2.302 to nan (0.4") for line in drawn)
    assert any(line.startswith("   1  a") and " nan " in line for line in drawn)


def test_ascii_is_ascii(cli: Cli, told: m.JobRecords) -> None:
    out = cli("report", "17", "--ascii").out
    assert out.isascii()
    assert "##" in out


def test_a_terminal_without_utf_8_gets_ascii(
    program: Program, daemon: FakeDaemon, told: m.JobRecords
) -> None:
    env = {**program.env, "PYTHONIOENCODING": "latin-1", "PYTHONUTF8": "0"}
    result = program.run("report", "17", env=env, encoding="latin-1")
    assert result.code == 0
    assert result.out.isascii()
    assert "\\u" not in result.out


@pytest.mark.parametrize("width", [60, 80, 120])
def test_a_terminal_gets_a_frame_around_each_section(
    program: Program, daemon: FakeDaemon, told: m.JobRecords, width: int
) -> None:
    shown = program.on_terminal("report", "17", width=width, NO_COLOR="1").out.splitlines()
    assert {columns(row) for row in shown} == {width}
    assert any(row.startswith("╭─ story ─") for row in shown)


def test_a_narrow_terminal_gets_no_wrapped_line(
    program: Program, daemon: FakeDaemon, told: m.JobRecords
) -> None:
    shown = program.on_terminal("report", "17", width=40, NO_COLOR="1").out.splitlines()
    assert max(map(columns, shown)) <= 40
    assert "RANK  NODE  COMPUTE  EXCHANGE  WAITING" in shown


@settings(
    deadline=None,
    max_examples=60,
    suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large],
)
@given(strategies.records, st.one_of(st.none(), st.integers(40, 250)), st.booleans())
def test_any_records_fit_any_width(made: m.JobRecords, width: int | None, ascii_only: bool) -> None:
    look = ReportStyle(width, text_charts.ASCII if ascii_only else text_charts.BLOCKS)
    for line in lines(made, look):
        assert width is None or columns(line) <= width
        assert not set("\n\r\x1b\u202e\t") & set(line)
        assert line.isascii() or not ascii_only


def test_without_figures_it_says_so(cli: Cli, daemon: FakeDaemon) -> None:
    daemon.answers(m.GetRecords, records(attempt=0, started_at=None))
    result = cli("report", "17")
    assert result.code == 0
    assert "This job has not run: there are no metrics." in result.out
    assert "was submitted by ada" in result.out


def test_json_has_everything(cli: Cli, told: m.JobRecords) -> None:
    found = cli("report", "17", "--json").json
    assert found["job"]["id"] == 17
    assert "type" not in found["job"]
    assert [each["attempt"] for each in found["runs"]] == [1, 2]
    assert len(found["runs"][0]["points"]) == 40
    assert found["story"][0]["text"] == "was submitted by ada"


def test_a_page_goes_to_a_file_whole_and_readable(
    cli: Cli, told: m.JobRecords, tmp_path: Path
) -> None:
    file = tmp_path / "run.html"
    file.write_text("old")
    umask = os.umask(0o022)
    try:
        result = cli("report", "17", "-o", str(file))
    finally:
        os.umask(umask)
    assert (result.code, result.out) == (0, "")
    assert "open it in any browser" in result.err
    text = file.read_text()
    assert text.startswith("<!DOCTYPE html>")
    assert text.endswith("</html>")
    assert stat.S_IMODE(file.stat().st_mode) == 0o644
    assert os.listdir(tmp_path) == ["run.html"]


def test_a_dash_is_stdout(cli: Cli, told: m.JobRecords) -> None:
    result = cli("report", "17", "-o", "-")
    assert result.out.startswith("<!DOCTYPE html>")
    assert result.err == ""


def test_a_link_stays_and_the_file_behind_it_is_replaced(
    cli: Cli, told: m.JobRecords, tmp_path: Path
) -> None:
    (tmp_path / "real.html").write_text("old")
    (tmp_path / "link.html").symlink_to("real.html")
    assert cli("report", "17", "-o", str(tmp_path / "link.html")).code == 0
    assert (tmp_path / "link.html").is_symlink()
    assert (tmp_path / "real.html").read_text().startswith("<!DOCTYPE")


def test_what_is_no_file_is_not_touched(
    cli: Cli, daemon: FakeDaemon, told: m.JobRecords, tmp_path: Path
) -> None:
    pipe = tmp_path / "pipe"
    os.mkfifo(pipe)
    for place, words in (
        (str(tmp_path), "is a folder; name a file"),
        (str(tmp_path / "none" / "run.html"), "there is no folder"),
        (str(pipe), "is no plain file"),
        ("/dev/null", "is no plain file"),
        (str(tmp_path / ("n" * 300)), "too long"),
    ):
        result = cli("report", "17", "-o", place)
        assert result.code == 1, place
        assert words in result.err
        assert "bug" not in result.err
    assert daemon.requests == []  # it is seen before the daemon is asked
    assert stat.S_ISFIFO(pipe.stat().st_mode)
    assert os.listdir(tmp_path) == ["pipe"]


def test_a_full_disk_leaves_the_old_file(
    cli: Cli, told: m.JobRecords, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    file = tmp_path / "run.html"
    file.write_text("old")

    def full(fd: int) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("os.fsync", full)
    result = cli("report", "17", "-o", str(file))
    assert result.code == 1
    assert "cannot write" in result.err
    assert "No space left" in result.err
    assert file.read_text() == "old"
    assert os.listdir(tmp_path) == ["run.html"]


def test_usage_mistakes(cli: Cli, daemon: FakeDaemon) -> None:
    assert cli("report", "x").code == 2
    assert cli("report", "17", "-o", "").code == 2
    both = cli("report", "17", "--json", "-o", "run.html")
    assert both.code == 2
    assert "exclude each other" in both.err
    assert daemon.requests == []


def test_no_such_job(cli: Cli, daemon: FakeDaemon) -> None:
    daemon.answers(m.GetRecords, m.Refusal(6, "there is no job 9", "wiiiiide ps -a lists them"))
    assert cli("report", "9").code == 6


def test_hostile_text_is_harmless(cli: Cli, daemon: FakeDaemon) -> None:
    daemon.answers(m.GetRecords, hostile())
    out = cli("report", "17").out
    assert not set("\x1b\u202e\x00") & set(out)
    assert len(out) < 30_000


def test_many_attempts_say_which_is_shown(cli: Cli, daemon: FakeDaemon) -> None:
    daemon.answers(m.GetRecords, records(*[run(n) for n in range(1, 31)]))
    out = cli("report", "17").out
    assert "time of attempt 30" in out
