"""What takes long is drawn for terminals, after a second, and gone at the end."""

from __future__ import annotations

import io

import pytest

from tests.kit.conditions import wait_until
from wiiiiided.ui.cli import progress

PATIENCE_S = 30.0


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


def on_terminal(monkeypatch: pytest.MonkeyPatch, slow_s: float = 0.0) -> Terminal:
    """Not a fixture: pytest puts its own stderr in place between those and the test."""
    monkeypatch.setenv("TERM", "xterm")
    monkeypatch.setenv("NO_COLOR", "1")
    monkeypatch.setenv("COLUMNS", "100")
    monkeypatch.setattr("sys.stderr", made := Terminal())
    monkeypatch.setattr(progress, "SLOW_S", slow_s)
    return made


def test_bytes_are_counted(monkeypatch: pytest.MonkeyPatch) -> None:
    terminal = on_terminal(monkeypatch)
    with progress.counted("sending the folder [red]\x1b") as tell:
        tell(2 << 20, 4 << 20)
        wait_until(lambda: "2.0/4.0 MiB" in terminal.getvalue(), PATIENCE_S, "a bar")
    assert "sending the folder [red]\\x1b" in terminal.getvalue()
    assert terminal.getvalue().endswith("\x1b[2K")  # it is gone


def test_of_an_unknown_number_of_bytes_there_is_no_share(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    terminal = on_terminal(monkeypatch)
    with progress.counted("pulling job 17") as tell:
        tell(3 << 20, 0)
        wait_until(lambda: "3.0/? MiB" in terminal.getvalue(), PATIENCE_S, "a bar")


def test_what_is_done_within_a_second_is_not_drawn(monkeypatch: pytest.MonkeyPatch) -> None:
    terminal = on_terminal(monkeypatch, slow_s=3600.0)
    with progress.counted("sending") as tell:
        tell(1, 2)
    with progress.waiting("joining"):
        pass
    assert terminal.getvalue() == ""


def test_what_is_no_terminal_gets_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("sys.stderr", shown := io.StringIO())
    monkeypatch.setattr(progress, "SLOW_S", 0.0)
    with progress.counted("sending") as tell:
        tell(1, 2)
    with progress.waiting("joining"):
        pass
    assert shown.getvalue() == ""


def test_what_says_nothing_until_it_is_done_shows_the_seconds(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    terminal = on_terminal(monkeypatch)
    with progress.waiting("joining the cluster"):
        wait_until(
            lambda: "joining the cluster 0:00:0" in terminal.getvalue(), PATIENCE_S, "a line"
        )
    shown = terminal.getvalue()
    assert shown.endswith("\x1b[2K")
    assert terminal.getvalue() == shown
