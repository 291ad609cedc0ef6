"""The line about what takes long: for terminals, after a second, gone at the end."""

from __future__ import annotations

import io
import re
from types import SimpleNamespace

import pytest

from tests.kit.conditions import wait_until
from wiiiiided.cli import progress

WIPE = "\r\x1b[K"
PATIENCE_S = 30.0


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


def on_terminal(monkeypatch: pytest.MonkeyPatch) -> Terminal:
    """Not a fixture: pytest puts its own stderr in place between those and the test."""
    monkeypatch.setattr("sys.stderr", made := Terminal())
    return made


def clock(monkeypatch: pytest.MonkeyPatch, *times: float) -> None:
    now = iter(times)
    # Only its own: a thread that an earlier test left must not take these times away.
    monkeypatch.setattr(progress, "time", SimpleNamespace(monotonic=lambda: next(now)))


def test_bytes_are_told_after_a_second_and_not_too_often(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    terminal = on_terminal(monkeypatch)
    clock(monkeypatch, 0.0, 0.5, 1.5, 1.55, 2.0)
    with progress.counted("sending the folder") as tell:
        for part in (1, 2, 3, 4):
            tell(part << 20, 4 << 20)
    assert terminal.getvalue().split(WIPE) == [
        "",
        "sending the folder: 2.0 MiB of 4.0 MiB, 50 %",
        "sending the folder: 4.0 MiB of 4.0 MiB, 100 %",
        "",
    ]


def test_of_an_unknown_number_of_bytes_there_is_no_share(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    terminal = on_terminal(monkeypatch)
    clock(monkeypatch, 0.0, 2.0)
    with progress.counted("pulling job \x1b17") as tell:
        tell(3 << 20, 0)
    assert terminal.getvalue().split(WIPE) == ["", "pulling job \\x1b17: 3.0 MiB so far", ""]


def test_what_is_no_terminal_gets_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("sys.stderr", shown := io.StringIO())
    clock(monkeypatch, 0.0, 2.0)
    with progress.counted("sending") as tell:
        tell(1, 2)
    with progress.waiting("joining"):
        pass
    assert shown.getvalue() == ""


def test_what_says_nothing_until_it_is_done_shows_the_seconds(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    terminal = on_terminal(monkeypatch)
    for name in ("SLOW_S", "REDRAW_S"):
        monkeypatch.setattr(progress, name, 0.0)
    monkeypatch.setattr(progress, "TICK_S", 0.01)
    with progress.waiting("joining the cluster"):
        wait_until(
            lambda: re.search(r"joining the cluster: \d+s\Z", terminal.getvalue()) is not None,
            PATIENCE_S,
            "a line",
        )
    shown = terminal.getvalue()
    assert shown.endswith(WIPE)
    assert terminal.getvalue() == shown
