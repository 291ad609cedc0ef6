"""`wiiiiide top` without a screen: once, as JSON, as a picture, into a pipe."""

from __future__ import annotations

import json
import signal
from pathlib import Path
from xml.etree import ElementTree

import pytest

from tests.kit.fake_daemon import FakeConnection, FakeDaemon
from tests.ui.cli.kit import Cli, Complete, Program
from tests.ui.top import snapshots as s
from wiiiiided.cluster.rpc import messages as m
from wiiiiided.text import columns


@pytest.fixture(autouse=True)
def _snapshots(daemon: FakeDaemon) -> None:
    daemon.answers(m.WatchSnapshots, s.three())


def test_a_pipe_gets_one_picture_in_plain_text(program: Program, daemon: FakeDaemon) -> None:
    result = program.run("top")
    assert (result.code, result.err) == (0, "")
    assert "\x1b" not in result.out
    assert "straggler: rank 4 on c" in result.out
    assert "q quit" not in result.out
    assert daemon.asked(m.WatchSnapshots) == [m.WatchSnapshots(1.0, once=True)]


def test_a_pipe_gets_whole_rows(cli: Cli, daemon: FakeDaemon) -> None:
    daemon.answers(m.WatchSnapshots, s.snapshot(s.node(), jobs=(s.queued(18, why="y" * 500),)))
    assert "y" * 500 in cli("top", "--once").out


def test_once_fits_a_terminal(program: Program) -> None:
    shown = program.on_terminal("top", "--once", width=60).out
    assert "\x1b[32m" in shown
    plain = program.on_terminal("top", "--once", width=60, NO_COLOR="1").out
    assert "\x1b" not in plain
    assert max(map(columns, plain.splitlines())) <= 60


def test_a_terminal_whose_cursor_cannot_be_moved_gets_it_once(program: Program) -> None:
    result = program.on_terminal("top", TERM="dumb")
    assert result.code == 0
    assert "\x1b" not in result.out
    assert "total" in result.out


def test_json_once_is_one_object(cli: Cli) -> None:
    found = cli("top", "--json", "--once").json
    assert [node["name"] for node in found["nodes"]] == ["a", "b", "c"]
    assert [row["job"]["id"] for row in found["jobs"]] == [17, 18, 16]
    assert found["jobs"][0]["now"]["straggler"]["node"] == "c"
    assert found["jobs"][1]["now"] is None
    assert '"type"' not in json.dumps(found)


def test_json_is_a_stream_that_outlives_the_daemon(program: Program, daemon: FakeDaemon) -> None:
    told = []

    def push(request: m.WatchSnapshots, link: FakeConnection) -> None:
        told.append(request)
        link.say(s.three())
        if len(told) == 1:
            daemon.restart()
        link.link.recv(1)

    daemon.does(m.WatchSnapshots, push)
    process = program.start("top", "--json", "-i", "500ms")
    assert process.stdout is not None
    assert process.stderr is not None
    for _ in range(2):
        found = json.loads(process.stdout.readline())
        assert found["schema"] == 1
        assert len(found["nodes"]) == 3
    process.send_signal(signal.SIGINT)
    assert process.wait(30) == 130
    assert told == [m.WatchSnapshots(0.5), m.WatchSnapshots(0.5)]
    assert "the daemon is back" in process.stderr.read()


@pytest.mark.parametrize("words", [(), ("--json",), ("--json", "--once"), ("--svg", "x.svg")])
def test_no_daemon_is_code_4(cli: Cli, daemon: FakeDaemon, words: tuple[str, ...]) -> None:
    daemon.stop()
    result = cli("top", *words)
    assert (result.code, result.out) == (4, "")
    assert "no daemon answers" in result.err


@pytest.mark.parametrize("text", ["0", "0.1", "100ms", "61", "2m", "x", "nan", "-1", "inf"])
def test_an_interval_out_of_range_is_usage(cli: Cli, text: str) -> None:
    result = cli("top", "--interval", text)
    assert result.code == 2
    assert "within 0.25 to 60 seconds" in result.err or "is not a duration" in result.err


def test_ascii_is_ascii(cli: Cli) -> None:
    result = cli("top", "--once", "--ascii")
    assert result.out.isascii()
    assert "< slow" in result.out


def test_an_encoding_without_our_signs_gets_ascii(program: Program) -> None:
    result = program.run("top", env={**program.env, "PYTHONIOENCODING": "latin-1"})
    assert "< slow" in result.out
    assert "\\u" not in result.out


def test_a_picture_is_written(cli: Cli, tmp_path: Path) -> None:
    path = tmp_path / "top.svg"
    result = cli("top", "--svg", str(path))
    assert (result.code, result.out, result.err) == (0, "", f"wrote {path}\n")
    assert ElementTree.parse(path).getroot().tag.endswith("svg")
    assert "straggler" in path.read_text()


def test_a_picture_goes_to_stdout_for_a_dash(program: Program) -> None:
    result = program.run("top", "--svg", "-", env={**program.env, "PYTHONIOENCODING": "utf-8"})
    assert (result.code, result.err) == (0, "")
    assert ElementTree.fromstring(result.out).tag.endswith("svg")


def test_a_picture_that_cannot_be_written_is_a_sentence(cli: Cli, tmp_path: Path) -> None:
    result = cli("top", "--svg", str(tmp_path / "no" / "top.svg"))
    assert result.code == 1
    assert "cannot write" in result.err
    assert "Traceback" not in result.err


def test_two_forms_at_once_are_usage(cli: Cli) -> None:
    assert cli("top", "--svg", "x.svg", "--json").code == 2


def test_options_are_completed(complete: Complete) -> None:
    names = {"--once", "--json", "--readonly", "--ascii", "--svg", "--interval"}
    assert names <= set(complete("top", "--"))
