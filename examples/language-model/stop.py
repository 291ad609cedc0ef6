"""How the demo ends before its end: on request, or because something broke."""

import signal
from types import FrameType

STOP_SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)


class Stopped(Exception):
    """The demo was asked to end."""


class Failed(Exception):
    """One sentence about what broke, and the last lines of the process."""

    def __init__(self, sentence: str, last_lines: list[str]) -> None:
        super().__init__(sentence)
        self.last_lines = last_lines


class StopRequest:
    """Remembers a signal until it is convenient to act on it.

    An exception out of a signal handler can strike between starting a process and noting its pid,
    and that process would stay. A flag that every tick looks at cannot.
    """

    def __init__(self) -> None:
        self.signal: int | None = None
        for number in STOP_SIGNALS:
            signal.signal(number, self.remember)

    def remember(self, number: int, _frame: FrameType | None) -> None:
        self.signal = self.signal or number

    def check(self) -> None:
        if self.signal is not None:
            raise Stopped
