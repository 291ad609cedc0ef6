"""Where output goes, and in which colours."""

from __future__ import annotations

import io

import pytest

from wiiiiided.config import colour_count, colour_wanted
from wiiiiided.ui.cli import screen


class Terminal(io.StringIO):
    encoding = "ascii"

    def isatty(self) -> bool:
        return True


@pytest.mark.parametrize(
    ("env", "wanted"),
    [
        ({"TERM": "xterm"}, True),
        ({"TERM": "xterm", "NO_COLOR": ""}, True),
        ({"TERM": "xterm", "NO_COLOR": "1"}, False),
        ({"TERM": "dumb"}, False),
        ({}, False),
    ],
)
def test_colours_are_wanted_where_nothing_says_no(env: dict[str, str], wanted: bool) -> None:
    assert colour_wanted(env) is wanted


def test_paint_is_for_terminals_only(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TERM", "xterm")
    monkeypatch.delenv("NO_COLOR", raising=False)
    assert screen.paint("x", screen.RED, Terminal()) == "\x1b[31mx\x1b[0m"
    assert screen.paint("x", None, Terminal()) == "x"
    assert screen.paint("x", screen.RED, io.StringIO()) == "x"


def test_the_width_is_what_the_environment_says(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "71")
    assert screen.width() == 71


def test_words_are_cleaned_line_by_line(capsys: pytest.CaptureFixture[str]) -> None:
    screen.say("one\x1b\ntwo")
    assert capsys.readouterr() == ("", "one\\x1b\ntwo\n")


def test_json_is_ascii_whatever_is_in_it(capsys: pytest.CaptureFixture[str]) -> None:
    screen.put_json({"text": "\x1b\u202eü\udcff"})
    assert capsys.readouterr().out == ('{"schema": 1, "text": "\\u001b\\u202e\\u00fc\\udcff"}\n')


def test_what_a_terminal_cannot_print_is_known() -> None:
    assert screen.can_print("|", Terminal())
    assert not screen.can_print("│", Terminal())


@pytest.mark.parametrize(
    ("environ", "count"),
    [
        ({"TERM": "xterm"}, 16),
        ({"TERM": "xterm-256color"}, 256),
        ({"TERM": "xterm", "COLORTERM": "truecolor"}, 1 << 24),
        ({"TERM": "xterm-256color", "NO_COLOR": "1"}, 0),
        ({"TERM": "dumb", "COLORTERM": "truecolor"}, 0),
    ],
)
def test_colours_are_counted_from_what_the_terminal_says(
    environ: dict[str, str], count: int
) -> None:
    assert colour_count(environ) == count
