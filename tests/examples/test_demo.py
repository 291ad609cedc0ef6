"""`make demo`: it runs to its end, and however it ends, nothing of it is left."""

from __future__ import annotations

import codecs
import contextlib
import fcntl
import os
import pty
import re
import signal
import struct
import subprocess
import sys
import termios
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.kit.conditions import wait_until
from wiiiiided.cluster.client import Client, ClientError
from wiiiiided.config import Paths

ROOT = Path(__file__).parents[2]
SIZES = {"COLUMNS", "LINES"}
DEMO = (sys.executable, "examples/language-model/demo.py")
ENDS_WITHIN_S = 240.0  # five jobs one after the other, on a machine with other work
LONG = ("--steps", "5000")


class Demo:
    """The running program; `screen` is everything it has written so far."""

    def __init__(
        self, process: subprocess.Popen[bytes], output: int, mode: list[Any] | None
    ) -> None:
        self.process = process
        self.output = output
        self.mode = mode  # of the terminal, before anything was started on it
        self.screen = ""
        self._reader = threading.Thread(target=self._read)
        self._reader.start()

    def _read(self) -> None:
        decode = codecs.getincrementaldecoder("utf-8")("replace").decode
        with contextlib.suppress(OSError):  # a terminal that no process writes to any more
            while data := os.read(self.output, 65536):
                self.screen += decode(data)

    def shows(self, words: str) -> None:
        def is_there() -> bool:
            assert words in self.screen or self.process.poll() is None, self.screen
            return words in self.screen

        wait_until(is_there, ENDS_WITHIN_S, f"the demo shows {words!r}")

    def end(self) -> int:
        code = self.process.wait(ENDS_WITHIN_S)
        self._reader.join()
        return code

    @property
    def home(self) -> Path:
        found = re.search(r"WIIIIIDE_HOME=(/tmp/wiiiiide-demo-\w+)", self.screen)
        assert found, self.screen
        return Path(found[1])

    @property
    def client(self) -> Client:
        return Client(Paths.private(str(self.home)))

    def processes(self) -> list[str]:
        """Everything that knows of the demo's directory: daemon, shims, ranks."""
        mark = os.fsencode(self.home)
        found = []
        for directory in Path("/proc").glob("[0-9]*"):
            with contextlib.suppress(OSError):
                words = (directory / "cmdline").read_bytes()
                if mark in words or mark in (directory / "environ").read_bytes():
                    found.append(f"{directory.name} {words!r}")
        return found

    def has_left_nothing(self) -> None:
        assert not self.processes()
        assert not self.home.exists()


def demo_directories() -> set[str]:
    return {name for name in os.listdir("/tmp") if name.startswith("wiiiiide-demo-")}


@contextlib.contextmanager
def demo(*options: str, terminal: int | None = None) -> Iterator[Demo]:
    """The demo with its output in a pipe, or on a terminal that has a size."""
    reading, writing = os.pipe() if terminal is None else pty.openpty()
    mode = None
    if terminal is not None:
        mode = termios.tcgetattr(writing)
        fcntl.ioctl(writing, termios.TIOCSWINSZ, struct.pack("HHHH", 24, terminal, 0, 0))
    # The size is the terminal's: a worker of the test run may have been given one of its own.
    inherited = {name: word for name, word in os.environ.items() if name not in SIZES}
    process = subprocess.Popen(
        [*DEMO, *options],
        cwd=ROOT,
        env={**inherited, "TERM": "xterm-256color"},
        stdin=subprocess.DEVNULL if terminal is None else writing,
        stdout=writing,
        stderr=writing,
        start_new_session=True,
        preexec_fn=None if terminal is None else take_terminal,
    )
    os.close(writing)
    running = Demo(process, reading, mode)
    try:
        yield running
    finally:
        if process.poll() is None:
            process.terminate()
        running.end()
        os.close(reading)


def take_terminal() -> None:
    """In the child: the terminal's Ctrl-C is for this session."""
    fcntl.ioctl(0, termios.TIOCSCTTY, 0)


@pytest.mark.timeout(300)
def test_the_demo_runs_to_its_end_and_leaves_nothing() -> None:
    with demo("--steps", "4", "--ways", "parallel", "gloo") as running:
        assert running.end() == 0, running.screen
        running.has_left_nothing()
    screen = running.screen
    for command in ("wiiiiided &", "wiiiiide submit examples/language-model/job.toml"):
        assert f"$ {command}" in screen
    assert "job 2 (language-model): waits for" in screen
    assert re.search(r"closing loss( +[\d.]+){2}", screen)
    last = " ".join(screen.split("# rank 1, after step 25")[1].split())
    assert "Rank 1 of job 4 was killed after step 25; the daemon started the job again" in last
    assert re.search(r"it went on after step [12]0, its last checkpoint", last)
    assert "each of the 20,000 samples of the epoch counted once" in last
    assert "all 40 losses are equal to the last bit to those of job 3" in last
    assert "wiiiiide service install" in screen
    assert "\x1b" not in screen, "a pipe gets no colours"
    assert max(map(len, screen.splitlines())) <= 110


@pytest.mark.soak
@pytest.mark.timeout(300)
def test_the_demo_draws_on_a_narrow_terminal() -> None:
    columns = 60
    with demo("--steps", "4", "--ways", "parallel", "ddp", terminal=columns) as running:
        assert running.end() == 0, running.screen
        running.has_left_nothing()
    plain = re.sub(r"\x1b\[[\d;?]*[a-zA-Z]", "", running.screen).replace("\r", "\n")
    assert "job 1: done" in plain
    assert "job 2: queued" in plain
    assert "job 4: backoff" in plain
    assert max(map(len, plain.splitlines())) <= columns


MOMENTS = ["$ export", "$ wiiiiide submit", "job 1 runs on"]


@pytest.mark.parametrize("moment", MOMENTS)
def test_ctrl_c_at_any_moment_leaves_nothing(moment: str) -> None:
    with demo(*LONG) as running:
        running.shows(moment)
        os.killpg(running.process.pid, signal.SIGINT)  # as a terminal does: to the whole group
        assert running.end() == 130
        running.has_left_nothing()
    *_, last = running.screen.splitlines()
    assert last == "Stopped: jobs cancelled, daemon stopped, nothing is left."
    assert "Traceback" not in running.screen


def test_ctrl_c_while_the_demo_is_loading_leaves_nothing() -> None:
    before = demo_directories()
    with demo(*LONG) as running:
        maps = Path(f"/proc/{running.process.pid}/maps")
        wait_until(lambda: "msgspec" in maps.read_text(), ENDS_WITHIN_S, "its modules")
        os.killpg(running.process.pid, signal.SIGINT)
        assert running.end() == 130
    assert "Traceback" not in running.screen
    assert demo_directories() <= before


def test_a_typed_ctrl_c_gives_the_terminal_back_as_it_was() -> None:
    with demo(*LONG, terminal=80) as running:
        running.shows("job 1: training")
        wait_until(
            lambda: termios.tcgetattr(running.output) != running.mode,
            ENDS_WITHIN_S,
            "keys are not echoed",
        )
        os.write(running.output, b"\x03")
        assert running.end() == 130
        assert termios.tcgetattr(running.output) == running.mode
        running.has_left_nothing()
        assert "job 1: stopped" in running.screen
        assert running.screen.rstrip().endswith("nothing is left.")


def kill_a_rank(running: Demo) -> None:
    pid = running.client.show(1).ranks[1].pid
    assert pid is not None
    os.kill(pid, signal.SIGKILL)


def kill_the_daemon(running: Demo) -> None:
    os.kill(running.client.status().pid, signal.SIGKILL)


def cancel_the_job(running: Demo) -> None:
    with contextlib.suppress(ClientError):  # the daemon may go before it has answered
        running.client.cancel(1, now=True)


@pytest.mark.parametrize(
    ("act", "sentence"),
    [
        (kill_a_rank, r"Job 1, with wide.parallel, failed after step \d+: rank 1 .*SIGKILL"),
        (kill_the_daemon, r"The daemon was killed by SIGKILL\.\n(    .*\n)+    .*job 2 \(l"),
        (cancel_the_job, r"Job 1, with wide.parallel, was cancelled after step \d+:"),
    ],
    ids=["rank", "daemon", "cancel"],
)
def test_what_goes_wrong_is_said_in_a_sentence(act: Callable[[Demo], None], sentence: str) -> None:
    with demo(*LONG) as running:
        running.shows("wide.parallel      20/5000")
        act(running)
        assert running.end() == 1
        running.has_left_nothing()
    assert re.search(sentence, running.screen), running.screen
    assert "Traceback" not in running.screen.split("after step")[0]
