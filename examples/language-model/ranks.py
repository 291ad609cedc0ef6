"""Start the ranks of one run, read what they report, and leave none of them behind.

The ranks are started directly and not by torchrun: each has its own stderr to quote when it dies,
its own exit code, and nothing stands between Ctrl-C and its end. They find each other through a
file in a directory of their own, so no port can be taken by somebody else.
"""

import json
import os
import selectors
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from types import FrameType, TracebackType
from typing import IO, Any

WORLD = 2
TICK_S = 0.1
STALL_S = 90.0  # generous: the first import of torch from a cold disk can take half a minute
LEAVE_S = 10.0
TERMINATE_S = 2.0
QUOTED_LINES = 8
TRAIN = Path(__file__).with_name("train.py")
STOP_SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)


class Stopped(Exception):
    """Somebody asked the demo to end."""


class RankFailed(Exception):
    """A rank ended when it should not have, or the ranks stopped reporting."""

    def __init__(self, sentence: str, last_lines: list[str]) -> None:
        super().__init__(sentence)
        self.last_lines = last_lines


class StopRequest:
    """Remembers a signal until it is convenient to act on it.

    An exception out of a signal handler can strike between starting a rank and noting its pid,
    and that rank would stay. A flag that every tick looks at cannot.
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


class Ranks:
    """The processes of one run, as a context: they are gone when it is left, however it is."""

    def __init__(self, backend: str, arguments: list[str], stop: StopRequest) -> None:
        self.backend = backend
        self.arguments = arguments
        self.stop = stop
        self.processes: list[subprocess.Popen[bytes]] = []
        self.last_step = 0
        self.finished = False
        self.directory = tempfile.TemporaryDirectory(
            prefix="wiiiiide-demo-", ignore_cleanup_errors=True
        )

    def __enter__(self) -> "Ranks":
        try:
            for rank in range(WORLD):
                self.processes.append(self.spawn(rank))
        except BaseException:
            self.close()
            raise
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        value: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()

    def spawn(self, rank: int) -> subprocess.Popen[bytes]:
        environment = dict(os.environ)
        environment.update(
            RANK=str(rank),
            LOCAL_RANK=str(rank),
            WORLD_SIZE=str(WORLD),
            LOCAL_WORLD_SIZE=str(WORLD),
            OMP_NUM_THREADS="1",  # as torchrun does: ranks are what shares the cores
        )
        # Gloo otherwise looks up the host name, which on some machines leads nowhere.
        environment.setdefault("GLOO_SOCKET_IFNAME", "lo")
        rendezvous = f"file://{self.directory.name}/rendezvous"
        command = [sys.executable, str(TRAIN), "--json-progress", "--rendezvous", rendezvous]
        command += ["--backend", self.backend, *self.arguments]
        with self.stderr_file(rank).open("wb") as stderr:
            return subprocess.Popen(
                command,
                env=environment,
                stdin=subprocess.DEVNULL,
                stdout=subprocess.PIPE if rank == 0 else stderr,
                stderr=stderr,
            )

    def stderr_file(self, rank: int) -> Path:
        return Path(self.directory.name, f"rank{rank}.err")

    def events(self) -> Iterator[dict[str, Any] | None]:
        """Events in order, and None whenever a tick passes without one.

        Raises Stopped or RankFailed; returns when all ranks have ended well.
        """
        pipe = self.processes[0].stdout
        assert pipe is not None
        os.set_blocking(pipe.fileno(), False)
        heard = time.monotonic()
        with selectors.DefaultSelector() as selector:
            selector.register(pipe, selectors.EVENT_READ)
            pending = b""
            while True:
                ready = selector.select(TICK_S)
                self.stop.check()
                chunk = read_available(pipe) if ready else None
                if chunk == b"":
                    break
                *lines, pending = (pending + (chunk or b"")).split(b"\n")
                for event in filter(None, map(parse, lines)):
                    heard = time.monotonic()
                    self.note(event)
                    yield event
                if not lines:
                    yield None
                self.check_ranks()
                if time.monotonic() - heard > STALL_S:
                    raise self.failure(0, f"has reported nothing for {STALL_S:.0f} seconds")
        self.wait_for_end()

    def note(self, event: dict[str, Any]) -> None:
        self.last_step = event.get("step", self.last_step)
        self.finished = self.finished or event["event"] == "end"

    def check_ranks(self) -> None:
        """Raise if a rank has failed. One killed by a signal is named before one that noticed."""
        codes = {rank: process.poll() for rank, process in enumerate(self.processes)}
        failed = {rank: code for rank, code in codes.items() if code}
        if not failed:
            return
        self.stop.check()  # Ctrl-C reaches the ranks too: their end is then no news
        rank, code = min(failed.items(), key=lambda item: item[1] > 0)
        raise self.failure(rank, describe_end(code))

    def wait_for_end(self) -> None:
        """Rank 0 has closed its stdout: all ranks should end now, and by themselves."""
        deadline = time.monotonic() + LEAVE_S
        while any(process.poll() is None for process in self.processes):
            self.stop.check()
            self.check_ranks()
            if time.monotonic() > deadline:
                late = [r for r, process in enumerate(self.processes) if process.poll() is None]
                raise self.failure(late[0], f"did not end within {LEAVE_S:.0f} seconds of the run")
            time.sleep(0.02)
        self.check_ranks()
        if not self.finished:
            raise self.failure(0, "ended before its run was complete")

    def failure(self, rank: int, what: str) -> RankFailed:
        where = f"after step {self.last_step}" if self.last_step else "before the first step"
        text = self.stderr_file(rank).read_text(errors="replace")
        lines = [line.rstrip() for line in text.splitlines() if line.strip()]
        sentence = f"Rank {rank} of the {self.backend} run {what}, {where}."
        return RankFailed(sentence, lines[-QUOTED_LINES:])

    def close(self) -> None:
        """End whatever still runs: first asked, then made to."""
        for process in self.processes:
            if process.poll() is None:
                process.terminate()
        deadline = time.monotonic() + TERMINATE_S
        for process in self.processes:
            try:
                process.wait(max(0.0, deadline - time.monotonic()))
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()
            if process.stdout is not None:
                process.stdout.close()
        self.directory.cleanup()


def read_available(pipe: IO[bytes]) -> bytes:
    """What the pipe holds now; empty when the other end is closed."""
    return os.read(pipe.fileno(), 65536)


def parse(line: bytes) -> dict[str, Any] | None:
    """One event, or nothing for a line that some library printed in between."""
    try:
        value = json.loads(line)
    except ValueError:
        return None
    return value if isinstance(value, dict) and "event" in value else None


def describe_end(code: int) -> str:
    if code > 0:
        return f"ended with exit code {code}"
    try:
        return f"was killed by {signal.Signals(-code).name}"
    except ValueError:
        return f"was killed by signal {-code}"
