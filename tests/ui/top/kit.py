"""`wiiiiide top` as it runs: a daemon that pushes snapshots, and a terminal to look at.

with Screen(daemon.home, tmp_path) as screen:
    screen.shows("samples/s")
    screen.types("q")
    assert screen.ended() == 0
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import pty
import select
import signal
import struct
import subprocess
import sys
import termios
from pathlib import Path
from typing import Any

import pyte

from tests.kit.conditions import wait_until
from tests.kit.fake_daemon import FakeConnection, FakeDaemon
from wiiiiided.cluster.rpc import messages as m
from wiiiiided.text import columns
from wiiiiided.ui.top.paint import texts
from wiiiiided.ui.top.terminal import SHOWN, TOGETHER
from wiiiiided.ui.top.ui import Scene
from wiiiiided.ui.top.view import view

PATIENCE_S = 30.0
SESSION = str(Path(__file__).parent / "session.py")
PROGRAM = ("-m", "wiiiiided.ui.cli.main", "top")
END = b"\x1b[0m" * 8  # changes nothing that is seen


def drawn(scene: Scene, width: int, height: int) -> list[str]:
    """The screen as plain text, a line each, without the blanks at their ends."""
    return [line.rstrip() for line in whole(scene, width, height)]


def whole(scene: Scene, width: int, height: int) -> list[str]:
    """The same with all blanks; on paper as many lines as there are."""
    size = None if scene.ui.once else height
    return texts(view(scene, width, height), width, size, scene.ui.ascii)


class Pushing(FakeDaemon):
    """Pushes `shown`, whatever it is by then, to every client that watches."""

    def __init__(self, shown: m.Snapshot) -> None:
        super().__init__()
        self.shown = shown
        self.does(m.WatchSnapshots, self._push)

    def _push(self, request: m.WatchSnapshots, connection: FakeConnection) -> None:
        connection.link.settimeout(min(request.every_s, 0.1))  # tests have no second to lose
        while True:
            connection.say(self.shown)
            if request.once:
                return
            with contextlib.suppress(TimeoutError):
                if not connection.link.recv(1):
                    return


class Screen:
    """The program on a terminal of its own. On the way out it is ended, and the terminal closed."""

    def __init__(
        self,
        home: str,
        directory: Path,
        *words: str,
        size: tuple[int, int] = (100, 24),
        program: tuple[str, ...] = PROGRAM,
        **env: str,
    ) -> None:
        self.ours, self.theirs = pty.openpty()
        self._picture = pyte.Screen(*size)
        self._stream = pyte.ByteStream(self._picture)
        self.raw = b""
        self._fed = 0  # how much of it is in the picture
        self._resize(*size)
        self.before = termios.tcgetattr(self.theirs)
        self._pid_file = directory / "pid"
        kept = {k: v for k, v in os.environ.items() if k not in ("NO_COLOR", "COLUMNS")}
        self._session = subprocess.Popen(
            [sys.executable, SESSION, str(self._pid_file), sys.executable, *program, *words],
            env={**kept, "WIIIIIDE_HOME": home, "TERM": "xterm", "TZ": "UTC", **env},
            stdin=self.theirs,
            stdout=self.theirs,
            stderr=self.theirs,
            start_new_session=True,
        )
        wait_until(self._pid_file.exists, PATIENCE_S, "the program is started")
        self.pid = int(self._pid_file.read_text())

    def __enter__(self) -> Screen:
        return self

    def __exit__(self, *problem: object) -> None:
        if self._session.poll() is None:
            with contextlib.suppress(ProcessLookupError):
                os.kill(self.pid, signal.SIGKILL)
        self._session.wait(PATIENCE_S)
        for fd in (self.ours, self.theirs):
            with contextlib.suppress(OSError):
                os.close(fd)

    # ---- what a person does

    def types(self, text: str) -> None:
        os.write(self.ours, text.encode())

    def resize(self, width: int, height: int) -> None:
        self._picture.resize(height, width)
        self._resize(width, height)

    def _resize(self, width: int, height: int) -> None:
        fcntl.ioctl(self.ours, termios.TIOCSWINSZ, struct.pack("HHHH", height, width, 0, 0))

    # ---- what a person sees

    def look(self) -> list[str]:
        """The lines on the screen now. As on a terminal that knows the marks around a frame, one
        that has come in part is not seen: the program may be held up in the middle of it."""
        while select.select([self.ours], [], [], 0)[0]:
            try:
                self.raw += os.read(self.ours, 1 << 16)
            except OSError:  # no process has the other end any more
                break
        begun, whole = (self.raw.rfind(mark.encode()) for mark in (TOGETHER, SHOWN))
        until = max(self._fed, begun) if begun > whole else len(self.raw)
        self._stream.feed(self.raw[self._fed : until])
        self._fed = until
        return [line.rstrip() for line in self._picture.display]

    @property
    def text(self) -> str:
        return "\n".join(self.look())

    def shows(self, text: str) -> None:
        try:
            wait_until(lambda: text in self.text, PATIENCE_S, f"the screen shows {text!r}")
        except AssertionError as problem:
            raise AssertionError(f"{problem}\n{self.text}") from None

    def hides(self, text: str) -> None:
        wait_until(lambda: text not in self.text, PATIENCE_S, f"{text!r} is not shown any more")

    def fits(self, width: int, height: int) -> bool:
        lines = self.look()
        return len(lines) == height and all(columns(line) <= width for line in lines)

    # ---- what became of it

    def ended(self) -> int:
        """Its code; 128 + signal. All that it still said has been read then."""

        def over() -> bool:
            self.look()
            return self._session.poll() is not None

        wait_until(over, PATIENCE_S, "the program ends")
        # The kernel hands on what is written in its own time, but in order.
        if select.select([], [self.theirs], [], 0)[1]:  # not if it was held by Ctrl-S
            os.write(self.theirs, END)
            wait_until(lambda: bool(self.look()) and END in self.raw, PATIENCE_S, "all output")
            self.raw = self.raw.replace(END, b"")
            self._fed = min(self._fed, len(self.raw))
        return self._session.returncode

    @property
    def restored(self) -> bool:
        """Whether the terminal is as it was: its settings, its main screen, its cursor."""
        self.look()
        return termios.tcgetattr(self.theirs) == self.before and all(
            self.raw.rfind(back) > self.raw.rfind(taken)
            for taken, back in (
                (b"\x1b[?1049h", b"\x1b[?1049l"),
                (b"\x1b[?25l", b"\x1b[?25h"),
                (b"\x1b[?7l", b"\x1b[?7h"),
                (b"\x1b[?2004h", b"\x1b[?2004l"),
            )
        )

    @property
    def taken(self) -> bool:
        """Whether keys come at once and are not shown."""
        mode: list[Any] = termios.tcgetattr(self.theirs)
        return not mode[3] & (termios.ECHO | termios.ICANON)

    def state(self) -> str:
        """Of the process: R, S, T for stopped."""
        return Path(f"/proc/{self.pid}/stat").read_text().rpartition(")")[2].split()[0]
