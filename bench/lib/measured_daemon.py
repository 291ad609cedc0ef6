"""A daemon of the benchmark's own, under one short directory, of which nothing is left at the end.

Everything goes the way a user's goes: the real program, its socket, and the `wiiiiide` command as
a process.
"""

from __future__ import annotations

import contextlib
import json
import os
import subprocess
import sys
import tempfile
import termios
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Self

from lib.fleet import FleetError
from tests.kit.conditions import wait_until
from tests.kit.daemons import PrivateDaemon
from wiiiiided.cluster.archive.pack import Packed, pack
from wiiiiided.domain.spec import JobSpec, Policy, Resources, Run

WITHIN_S = 60.0  # for anything: what takes longer is broken
POLL_S = 0.001
SLEEPER = ("python", "-c", "import time; time.sleep(36000)")


def until(condition: Callable[[], bool], what: str) -> None:
    wait_until(condition, WITHIN_S, what, POLL_S)


def console_script(name: str) -> str:
    """The program that was installed beside this interpreter."""
    path = Path(sys.executable).with_name(name)
    if not path.exists():
        raise FleetError(f"{path.name} is not installed beside {Path(sys.executable).name}")
    return str(path)


class MeasuredDaemon(PrivateDaemon):
    """The installed program. `env` is given to it on top of this process's environment."""

    def __init__(self, **env: str) -> None:
        program = (sys.executable, console_script("wiiiiided"))
        super().__init__(Path(tempfile.mkdtemp(prefix="wb")), program)
        self.env = {**os.environ, "WIIIIIDE_HOME": str(self.home)}
        self.last_id = 0
        self._given = env
        self._packed: Packed | None = None

    def __enter__(self) -> Self:
        try:
            self.start_timed()
        except BaseException:
            self.close()
            raise
        return self

    def __exit__(self, *_: object) -> None:
        if self._packed is not None:
            self._packed.remove()
        self.close()

    @property
    def pid(self) -> int:
        assert self.process is not None
        return self.process.pid

    def start_timed(self) -> float:
        """How long it took until it answered."""
        begin = time.perf_counter()
        self.start(wait=False, **self._given)
        until(self.answers, "the daemon answers")
        return time.perf_counter() - begin

    # ---- jobs

    def queue(self, argv: Sequence[str], workers: int = 1, policy: Policy | None = None) -> int:
        """A job that has the node for itself; an empty folder, packed once, is where it works."""
        if self._packed is None:
            empty = self.home / "empty"
            empty.mkdir()
            self._packed = pack(str(empty))
        resources = Resources(workers_per_node=workers)
        spec = JobSpec("bench", Run(tuple(argv)), resources, policy=policy or Policy())
        self.last_id = self.client.submit(spec, self._packed, {}).id
        return self.last_id

    def sleeping(self, workers: int, policy: Policy | None = None) -> int:
        """A job whose ranks are up and do nothing."""
        job = self.queue(SLEEPER, workers, policy)
        self.wait_for(job, "running")
        until(lambda: len(self.pids(job)) == workers, "all ranks of a job run")
        return job

    def shim(self, job: int) -> int:
        """The pid of the shim of the job's first attempt."""
        return int(json.loads((self.attempt(job) / "shim.json").read_text())["pid"])

    def attempt(self, job: int) -> Path:
        return self.paths.jobs / str(job) / "1"

    def cancel(self, job: int) -> None:
        self.client.cancel(job, now=True)

    # ---- the command

    def command(self, *words: str, terminal: bool = False) -> float:
        """How long a `wiiiiide` process takes that writes to a pipe, or to a terminal."""
        argv = [sys.executable, console_script("wiiiiide"), *words]
        return on_terminal(argv, self.env) if terminal else timed(argv, self.env)


def timed(argv: Sequence[str], env: dict[str, str]) -> float:
    """How long a process takes that must end well."""
    begin = time.perf_counter()
    done = subprocess.run(argv, env=env, capture_output=True, text=True, timeout=WITHIN_S)
    seconds = time.perf_counter() - begin
    if done.returncode:
        shown = " ".join([Path(argv[1]).name, *argv[2:]])
        raise FleetError(f"{shown} ended with code {done.returncode}: {done.stderr.strip()[-500:]}")
    return seconds


def on_terminal(argv: Sequence[str], env: dict[str, str]) -> float:
    """The same of a process that may draw: its output goes to a terminal of 100 columns."""
    ours, theirs = os.openpty()
    termios.tcsetwinsize(theirs, (40, 100))
    with open(ours, "rb", buffering=0) as screen:
        begin = time.perf_counter()
        process = subprocess.Popen(argv, env=env | {"TERM": "xterm-256color"}, stdout=theirs)
        os.close(theirs)
        with contextlib.suppress(OSError):  # EIO: the process has closed the terminal
            while screen.read(1 << 16):
                pass
        code = process.wait(WITHIN_S)
        seconds = time.perf_counter() - begin
    if code:
        raise FleetError(f"{' '.join(argv[2:])} ended with code {code} on a terminal")
    return seconds
