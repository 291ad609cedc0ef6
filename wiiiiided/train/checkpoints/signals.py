"""Signals that ask for a checkpoint: the job's warning that its time is nearly over, and SIGTERM.

    warn_signal   save, and go on
    SIGTERM       save, then end as SIGTERM ends a process
                  (again, after more than 2 s: end at once, for a process that makes no more steps;
                  a shim and a torchrun below it both send one, at the same time)

A handler only notes what was asked for: the ranks agree in their next step, and save after it. A
handler of the script's own is respected. It is called when the signal comes, and then it is the
script that ends the process or does not; a signal that it ignores stays ignored, and one that is
caught outside of Python stays as it is. A handler that it installs after its first step replaces
this one.

A forked child inherits handlers, and no run: there a signal does what it did before.
"""

from __future__ import annotations

import os
import signal
import threading
import time
from collections.abc import Callable
from types import FrameType
from typing import Any, Final

_AGAIN_S: Final = 2.0


class StopSignals:
    """The requests of signals to one run."""

    def __init__(self, warn_signal: str, say: Callable[[str], None]) -> None:
        """Installs nothing yet."""
        self._warning, self._say = signal.Signals[warn_signal], say
        self._pid = os.getpid()
        self._before: dict[int, Any] = {}  # handlers of the script
        self._is_listening = self._is_ended = False
        self._first_s: float | None = None  # when the first SIGTERM came
        self.asked = ""  # the signal for which no checkpoint has been made yet

    def listen(self) -> None:
        """Install the handlers, once, where that is possible: on the main thread."""
        if self._is_listening:
            return
        self._is_listening = True
        if threading.current_thread() is not threading.main_thread():
            names = " and ".join({self._warning.name: 0, "SIGTERM": 0})
            self._say(f"steps are not made on the main thread: {names} save nothing")
            return
        for number in {self._warning, signal.SIGTERM}:
            before = signal.getsignal(number)
            if before not in (None, signal.SIG_IGN):
                self._before[number] = before
                signal.signal(number, self._note)

    def forget(self) -> None:
        """Put back what was there, unless the script has put another handler there since."""
        if threading.current_thread() is threading.main_thread():
            for number, before in self._before.items():
                if signal.getsignal(number) == self._note:
                    signal.signal(number, before)
        self._before.clear()

    def saved(self, step: int) -> None:
        """All hosts have tried to write a checkpoint, after which this rank may have to end."""
        asked, self.asked = self.asked, ""
        if asked and not self._is_ended:
            self._say(f"{asked}: saved after step {step}")
        elif asked:
            self._say(f"{asked}: saved after step {step}, and this rank ends")
            self._end(signal.SIGTERM)

    def _note(self, number: int, frame: FrameType | None) -> None:
        if os.getpid() != self._pid:
            self._pass_on(number, frame)
            return
        now = time.monotonic()
        is_again = self._first_s is not None and now - self._first_s > _AGAIN_S
        self.asked = signal.Signals(number).name
        if self._script_has(number):
            self._before[number](number, frame)
        elif number == signal.SIGTERM and is_again:
            self._end(number)
        elif number == signal.SIGTERM:
            self._first_s = self._first_s or now
            self._is_ended = self._warning != signal.SIGTERM

    def _script_has(self, number: int) -> bool:
        before = self._before[number]
        return callable(before) and before is not signal.default_int_handler

    def _pass_on(self, number: int, frame: FrameType | None) -> None:
        if callable(before := self._before.get(number)):
            before(number, frame)
        else:
            self._end(number)

    def _end(self, number: int) -> None:
        """End this process as the signal would have."""
        signal.signal(number, signal.SIG_DFL)
        os.kill(os.getpid(), number)
