"""The terminal: taken over, written to without ever blocking, and always given back.

    enter   no echo, keys at once, Ctrl-C still a signal (cbreak); the alternate screen, no cursor,
            no wrapping at the edge, pasted text marked
    leave   everything as it was; safe to call twice, and from any way out

Writing goes through a file description of our own that does not block: the shell's would change
for the shell too. A terminal that takes nothing (Ctrl-S, a network that is away) then costs frames,
and not the program: it still hears its signals.
"""

from __future__ import annotations

import contextlib
import os
import select
import signal
import termios
import time
from collections.abc import Sequence

ALTERNATE, MAIN = "\x1b[?1049h", "\x1b[?1049l"
HIDE, SHOW = "\x1b[?25l", "\x1b[?25h"
CUT, WRAP = "\x1b[?7l", "\x1b[?7h"
MARK_PASTES, PLAIN_PASTES = "\x1b[?2004h", "\x1b[?2004l"
CLEAR, RESET = "\x1b[2J", "\x1b[0m"
# A terminal that knows these shows nothing between them: no frame is seen half drawn.
TOGETHER, SHOWN = "\x1b[?2026h", "\x1b[?2026l"

LAST_WORDS_S = 0.5  # for a terminal that takes nothing: then it is left as it is
USUAL_SIZE = (80, 24)  # of a terminal that does not know its own


class Terminal:
    """Keys come from `keys_fd`; frames go to `screen_fd`."""

    def __init__(self, keys_fd: int, screen_fd: int) -> None:
        self.keys_fd = keys_fd
        self._given = screen_fd
        self.fd = _own(screen_fd)
        self._saved: list[object] | None = None
        self._pending = b""
        self._shown: list[str] = []

    def close(self) -> None:
        if self.fd != self._given:
            os.close(self.fd)

    @property
    def busy(self) -> bool:
        """Whether a frame is still on its way."""
        return bool(self._pending)

    def size(self) -> tuple[int, int]:
        """Columns and lines."""
        try:
            columns, lines = os.get_terminal_size(self._given)
        except OSError:
            return USUAL_SIZE
        return columns or USUAL_SIZE[0], lines or USUAL_SIZE[1]

    def enter(self) -> None:
        if self._saved is None:
            self._saved = list(termios.tcgetattr(self.keys_fd))
        mode = termios.tcgetattr(self.keys_fd)
        mode[3] &= ~(termios.ECHO | termios.ICANON)
        mode[6][termios.VMIN], mode[6][termios.VTIME] = 1, 0
        termios.tcsetattr(self.keys_fd, termios.TCSANOW, mode)
        self._pending = b""
        self._put(ALTERNATE + HIDE + CUT + MARK_PASTES + RESET + CLEAR)
        self.forget()

    def leave(self) -> None:
        """Give it back. Codes that it does not take within LAST_WORDS_S are not sent."""
        if self._saved is None:
            return
        saved, self._saved = self._saved, None
        # In the background a program that sets the terminal is stopped: not on its way out.
        before = signal.signal(signal.SIGTTOU, signal.SIG_IGN)
        try:
            with contextlib.suppress(OSError, termios.error):
                self._last_words(SHOWN + RESET + PLAIN_PASTES + WRAP + SHOW + MAIN)
            with contextlib.suppress(OSError, termios.error):
                termios.tcsetattr(self.keys_fd, termios.TCSANOW, saved)  # type: ignore[arg-type]
        finally:
            signal.signal(signal.SIGTTOU, before)

    def forget(self) -> None:
        """Write the next frame whole: the screen's content is not known any more."""
        self._shown = []

    def show(self, rows: Sequence[str], encoding: str) -> None:
        """Write the rows that have changed; not while `busy`: the frame would be torn."""
        whole = len(self._shown) != len(rows)
        changed = [
            f"\x1b[{number};1H\x1b[2K{row}"
            for number, row in enumerate(rows, 1)
            if whole or self._shown[number - 1] != row
        ]
        self._shown = list(rows)
        if changed:
            text = TOGETHER + (CLEAR if whole else "") + "".join(changed) + SHOWN
            self._put(text, encoding)

    def flush(self) -> None:
        """Write as much as the terminal takes now."""
        while self._pending:
            try:
                self._pending = self._pending[os.write(self.fd, self._pending) :]
            except BlockingIOError:
                return

    def _put(self, text: str, encoding: str = "ascii") -> None:
        self._pending += text.encode(encoding, "replace")
        self.flush()

    def _last_words(self, text: str) -> None:
        self._put(text)
        deadline = time.monotonic() + LAST_WORDS_S
        while self._pending and (left := deadline - time.monotonic()) > 0:
            select.select([], [self.fd], [], left)
            self.flush()


def _own(fd: int) -> int:
    """A descriptor of our own for the terminal; where it has no name here, the given one."""
    try:
        return os.open(os.ttyname(fd), os.O_WRONLY | os.O_NONBLOCK | os.O_NOCTTY | os.O_CLOEXEC)
    except OSError:
        return fd
