"""Pytest's end: starts the server, asks it for one test at a time, and takes it down again."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import tempfile
from multiprocessing import Pipe
from pathlib import Path
from typing import Any

from tests.conformance import settings
from tests.conformance.outcome import Outcome
from tests.conformance.verdicts import Census

_STOP_SECONDS = 10.0


class Client:
    """A running server. Closing it leaves no process and no file."""

    def __init__(self) -> None:
        # Short, since the fork server's socket lies in it and the length of that path is limited.
        self._folder = tempfile.TemporaryDirectory(prefix="wc-")
        folder = Path(self._folder.name)
        self._log = folder / "server.log"
        self._connection, theirs = Pipe()
        with theirs, self._log.open("wb") as log:
            self._server = subprocess.Popen(
                [
                    sys.executable,
                    "-m",
                    "tests.conformance.server",
                    str(theirs.fileno()),
                    str(folder),
                ],
                # The folder `python -m` imports from: the project, never tests/, whose folders
                # have names such as torch.
                cwd=settings.ROOT,
                env=settings.environment(folder),
                pass_fds=[theirs.fileno()],
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                # A process group of its own holds the server, the fork server and the ranks.
                start_new_session=True,
            )
        self.census: Census = self._receive(settings.START_SECONDS)

    def run(self, test: str, hosts: int = 1) -> Outcome:
        """Run one test of the suite, its ranks spread over so many hosts."""
        outcome: Outcome = self._receive(settings.TEST_SECONDS + 30, after_sending=(test, hosts))
        return outcome

    def _receive(self, seconds: float, *, after_sending: tuple[str, int] | None = None) -> Any:
        try:
            if after_sending is not None:
                self._connection.send(after_sending)
            if not self._connection.poll(seconds):
                raise TimeoutError(f"no answer after {seconds:.0f} s")
            return self._connection.recv()
        except BaseException as problem:
            # Interrupted, too: an answer that comes later must not be taken for the next one.
            said = self._log.read_text(errors="replace").strip()
            self.close()
            if isinstance(problem, EOFError | OSError):
                raise RuntimeError(f"the server failed ({problem!r}):\n{said}") from None
            raise

    @property
    def closed(self) -> bool:
        """Whether the server is gone."""
        return self._connection.closed

    def close(self) -> None:
        """Hang up, which ends the server; end by force what is left of its process group."""
        if self.closed:
            return
        self._connection.close()
        try:
            self._server.wait(_STOP_SECONDS)
        except subprocess.TimeoutExpired:
            pass
        try:
            os.killpg(self._server.pid, signal.SIGKILL)
        except ProcessLookupError:
            pass
        self._server.wait()
        self._folder.cleanup()

    def __enter__(self) -> Client:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()
