"""What daemons and shims say to each other, byte for byte as earlier versions say it."""

from __future__ import annotations

import json

import pytest

from wiiiiided.cluster.shim.control_lines import (
    HeardCommand,
    RankStacks,
    RankState,
    ShimStatus,
    SignalCommand,
    StacksCommand,
    StacksReport,
    StopCommand,
    read_command,
    read_report,
)

COMMANDS = {
    StopCommand(10.0, "cancelled by ada"): (
        b'{"do": "stop", "grace_s": 10.0, "reason": "cancelled by ada", "moment": false}\n'
    ),
    SignalCommand("SIGUSR1"): b'{"do": "signal", "signal": "SIGUSR1"}\n',
    StacksCommand(): b'{"do": "stacks"}\n',
    HeardCommand(1234.5): b'{"do": "heard", "at": 1234.5}\n',
}
REPORTS = {
    ShimStatus("running", (RankState(0, 123, 4567), RankState(1, code=137))): (
        b'{"event": "status", "format": 1, "phase": "running", "ranks": '
        b'[{"rank": 0, "pid": 123, "ticks": 4567, "code": null}, '
        b'{"rank": 1, "pid": null, "ticks": null, "code": 137}]}\n'
    ),
    StacksReport((RankStacks(0, 123, "line 1 ü"),)): (
        '{"event": "stacks", "dumps": [{"rank": 0, "pid": 123, "text": "line 1 ü"}]}\n'.encode()
    ),
}


def test_commands_are_what_they_were() -> None:
    for command, line in COMMANDS.items():
        assert command.line() == line
        assert read_command(line) == command


def test_reports_are_what_they_were() -> None:
    for report, line in REPORTS.items():
        assert report.line() == line
        assert read_report(line) == report


@pytest.mark.parametrize("line", [b"", b"x", b"[]", b"5", b"null", b"[" * 5000])
def test_a_line_that_is_no_object_is_refused(line: bytes) -> None:
    for read in (read_command, read_report):
        with pytest.raises(ValueError):
            read(line)


def test_a_line_of_a_later_version_is_passed_over() -> None:
    assert read_command(b'{"do": "dance"}') is None
    assert read_report(b'{"event": "dance"}') is None


@pytest.mark.parametrize("number", ["null", '"10"', "NaN", "[]", "1" + "0" * 400])
def test_a_time_that_is_none_is_as_if_it_were_not_there(number: str) -> None:
    said = f'{{"do": "stop", "grace_s": {number}, "reason": "x"}}'.encode()
    assert read_command(said) == StopCommand(None, "x")
    assert read_command(f'{{"do": "heard", "at": {number}}}'.encode()) == HeardCommand(None)


def test_of_a_forged_report_only_numbers_count() -> None:
    ranks = [5, {"pid": 1}, {"rank": 2, "pid": "x", "code": []}, {"rank": 3, "code": 1}]
    found = read_report(json.dumps({"event": "status", "ranks": ranks}).encode())
    assert found == ShimStatus("", (RankState(2), RankState(3, code=1)))
    dumps = [None, {"rank": None, "pid": "?", "text": 3}]
    stacks = read_report(json.dumps({"event": "stacks", "dumps": dumps}).encode())
    assert stacks == StacksReport((RankStacks(-1, None, ""),))
    assert read_report(b'{"event": "status", "ranks": 5}') == ShimStatus("", ())
