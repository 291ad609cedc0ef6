"""Shims, started as the daemon starts them, and what they leave behind.

    with Attempt(folder, [sys.executable, "-c", "print(1)"], workers=2) as attempt:
        attempt.start()
        end = attempt.end()                 # exit.json, after the shim has left
        attempt.lines(0)                    # [(at, "out", "1")]

Leaving the block kills what is left of the attempt and fails when there was something: every test
that ends normally must leave nothing.
"""

from __future__ import annotations

import contextlib
import json
import os
import shlex
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from tests.kit.conditions import wait_until
from wiiiiided.cluster.shim import attempt as attempts
from wiiiiided.cluster.shim import lines, processes, protocol

PROGRAM = str(Path(protocol.__file__).with_name("run.py"))
ENVIRONMENT = {
    "PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}",
    "HOME": os.environ.get("HOME", "/"),
}
PATIENCE_S = 60.0


class Attempt:
    """One attempt's directory, and the shims that were started for it."""

    def __init__(self, folder: Path, argv: Sequence[str], **fields: Any) -> None:
        self.folder = folder.resolve()
        self.path = self.folder / str(fields.pop("attempt", 1))
        self.path.mkdir(parents=True)
        workers = fields.pop("workers", 1)
        env = {**ENVIRONMENT, **fields.pop("env", {})}
        standard = {
            "job": 7,
            "attempt": 1,
            "name": "test",
            "work": str(self.folder / "work"),
            "world_size": workers,
            "first_rank": 0,
            "node": "here",
            "grace_s": 2.0,
        }
        self.order = protocol.LaunchOrder(
            argv=list(argv), env=env, workers=workers, **{**standard, **fields}
        )
        self.shims: list[subprocess.Popen[bytes]] = []
        self._listeners: list[Listener] = []

    def __enter__(self) -> Attempt:
        return self

    def __exit__(self, kind: object, *_: object) -> None:
        for listener in self._listeners:
            listener.close()
        if kind is None:  # what has ended its work may still be about to leave
            with contextlib.suppress(AssertionError):
                wait_until(lambda: not self._left(), PATIENCE_S, "all have left")
        left = self._left()
        for shim in self.shims:
            shim.kill()
            shim.wait()
            for stream in (shim.stdin, shim.stdout, shim.stderr):
                if stream is not None:
                    stream.close()
        if left:
            helper("--cleanup", str(self.path))
        assert kind is not None or not left, f"left running: {left}"

    def write_order(self) -> None:
        (self.path / protocol.ORDER).write_bytes(protocol.to_bytes(self.order))

    def start(
        self, *, archive: Path | None = None, secrets: dict[str, str] | None = None
    ) -> subprocess.Popen[bytes]:
        """Start a shim."""
        if not (self.path / protocol.ORDER).exists():
            self.write_order()
        command = [sys.executable, "-I", "-S", PROGRAM, str(self.path)]
        fds = []
        if archive is not None:
            fds.append(os.open(archive, os.O_RDONLY))
            command += ["--archive", str(fds[-1])]
        if secrets is not None:
            fds.append(os.memfd_create("secrets"))
            text = "".join(f"{name}={shlex.quote(value)}\n" for name, value in secrets.items())
            os.write(fds[-1], text.encode())
            command += ["--secrets", str(fds[-1])]
        try:
            shim = subprocess.Popen(
                command,
                pass_fds=fds,
                stdin=subprocess.DEVNULL,
                stdout=subprocess.DEVNULL,
                stderr=subprocess.PIPE,
                start_new_session=True,
            )
        finally:
            for fd in fds:
                os.close(fd)
        self.shims.append(shim)
        return shim

    def run(self, **options: Any) -> protocol.AttemptEnd:
        self.start(**options)
        return self.end()

    def end(self, timeout_s: float = PATIENCE_S) -> protocol.AttemptEnd:
        """How it ended, once all shims have left."""
        for shim in self.shims:
            _, said = shim.communicate(timeout=timeout_s)
            assert not said, said.decode()
        return self.exit()

    def exit(self) -> protocol.AttemptEnd:
        """exit.json, as it is now."""
        directory = attempts.open_directory(str(self.path))
        try:
            value = attempts.read(directory, protocol.EXIT, protocol.AttemptEnd)
        finally:
            os.close(directory)
        assert isinstance(value, protocol.AttemptEnd)
        return value

    def claim(self) -> protocol.ShimClaim:
        wait_until((self.path / protocol.CLAIM).exists, PATIENCE_S, "a claim")
        value = protocol.from_bytes(protocol.ShimClaim, (self.path / protocol.CLAIM).read_bytes())
        assert isinstance(value, protocol.ShimClaim)
        return value

    def listen(self) -> Listener:
        """Connect to the shim's socket."""
        listener = Listener(self.path / self.claim().socket)
        self._listeners.append(listener)
        return listener

    def lines(self, rank: int = 0) -> list[tuple[float, str, str]]:
        """The rank's log, older file first."""
        data = b""
        for name in (f"rank-{rank}.log.1", f"rank-{rank}.log"):
            with contextlib.suppress(FileNotFoundError):
                data += (self.path / name).read_bytes()
        return [lines.parse(line) for line in data.splitlines(keepends=True)]

    def texts(self, rank: int = 0, stream: str = "out") -> list[str]:
        return [text for _, name, text in self.lines(rank) if name == stream]

    def wait_for(self, text: str, rank: int = 0, stream: str = "out") -> None:
        """Until the rank has printed this line."""
        wait_until(
            lambda: text in self.texts(rank, stream), PATIENCE_S, f"{text!r} in the rank's log"
        )

    def _left(self) -> list[int]:
        return self.running() + [shim.pid for shim in self.shims if shim.poll() is None]

    def running(self) -> list[int]:
        """Processes that carry the attempt's mark."""
        mark = f"WIIIIIDE_ATTEMPT_DIR={self.path}".encode()
        return [pid for pid in processes.running() if mark in processes.environment(pid)]


class Listener:
    """The daemon's end of a shim's socket."""

    def __init__(self, path: Path) -> None:
        self._socket = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        self._socket.settimeout(PATIENCE_S)
        directory = os.open(path.parent, os.O_RDONLY)
        try:
            self._socket.connect(f"/proc/self/fd/{directory}/{path.name}")
        finally:
            os.close(directory)
        self._file = self._socket.makefile("rb")

    def close(self) -> None:
        self._file.close()
        self._socket.close()

    def send(self, **command: Any) -> None:
        self._socket.sendall(json.dumps(command).encode() + b"\n")

    def next(self) -> dict[str, Any] | None:
        """The next line; None when the shim has closed the connection."""
        line = self._file.readline()
        return json.loads(line) if line else None

    def until(self, wanted: Callable[[dict[str, Any]], bool]) -> dict[str, Any]:
        """The first line that is wanted."""
        deadline = time.monotonic() + PATIENCE_S
        while (line := self.next()) is not None and time.monotonic() < deadline:
            if wanted(line):
                return line
        raise AssertionError("the shim did not say it")

    def phase(self, phase: str) -> dict[str, Any]:
        return self.until(lambda line: line.get("phase") == phase)

    def stacks(self) -> dict[int, str]:
        """By rank."""
        self.send(do="stacks")
        answer = self.until(lambda line: line["event"] == "stacks")
        return {dump["rank"]: dump["text"] for dump in answer["dumps"]}


def helper(*arguments: str) -> subprocess.CompletedProcess[bytes]:
    """One of the program's other modes."""
    command = [sys.executable, "-I", "-S", PROGRAM, *arguments]
    return subprocess.run(command, capture_output=True, timeout=PATIENCE_S, check=False)


def is_running(pid: int) -> bool:
    return protocol.start_ticks(pid) is not None


def kill(pid: int) -> None:
    os.kill(pid, signal.SIGKILL)
