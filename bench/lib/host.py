"""A daemon of the benchmark's own, under one short directory, of which nothing is left at the end.

Everything goes the way a user's goes: the real program, its socket, and the `wiiiiide` command as
a process.
"""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import termios
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Self

from lib.fleet import FleetError
from lib.machine import ROOT
from lib.proc import mentioning
from wiiiiided.cluster.archive.pack import Packed, pack
from wiiiiided.cluster.client import Client, ClientError
from wiiiiided.cluster.rpc import messages as m
from wiiiiided.config import Paths
from wiiiiided.domain.spec import JobSpec, Policy, Resources, Run
from wiiiiided.domain.states import ENDED

WITHIN_S = 60.0  # for anything: what takes longer is broken
POLL_S = 0.001
SLEEPER = ("python", "-c", "import time; time.sleep(36000)")


def until(condition: Callable[[], bool], what: str) -> None:
    deadline = time.monotonic() + WITHIN_S
    while not condition():
        if time.monotonic() > deadline:
            raise FleetError(f"not within {WITHIN_S:g} s: {what}")
        time.sleep(POLL_S)


def console_script(name: str) -> str:
    """The program that was installed beside this interpreter."""
    path = Path(sys.executable).with_name(name)
    if not path.exists():
        raise FleetError(f"{path.name} is not installed beside {Path(sys.executable).name}")
    return str(path)


class PrivateDaemon:
    """One private daemon. `env` is given to it on top of this process's environment."""

    def __init__(self, **env: str) -> None:
        self.home = Path(tempfile.mkdtemp(prefix="wb"))
        self.paths = Paths.private(str(self.home))
        self.client = Client(self.paths)
        self.env = {**os.environ, "WIIIIIDE_HOME": str(self.home)}
        self.last_id = 0
        self._given = env
        self._process: subprocess.Popen[bytes] | None = None
        self._packed: Packed | None = None
        empty = self.home / "empty"
        empty.mkdir()
        self.empty = str(empty)
        try:
            self.start()
        except BaseException:
            self.close()
            raise

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    # ---- the daemon

    @property
    def pid(self) -> int:
        assert self._process is not None
        return self._process.pid

    def start(self) -> float:
        """How long it took until it answered."""
        begin = time.perf_counter()
        with (self.home / "daemon.log").open("ab") as log:
            self._process = subprocess.Popen(
                [sys.executable, console_script("wiiiiided")],
                env={**self.env, **self._given},
                cwd=ROOT,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
            )
        until(self._answers, "the daemon answers")
        return time.perf_counter() - begin

    def _answers(self) -> bool:
        assert self._process is not None
        if self._process.poll() is not None:
            words = (self.home / "daemon.log").read_text(errors="replace")[-500:]
            raise FleetError(f"the daemon ended with code {self._process.returncode}: {words}")
        try:
            return self.client.status().pid == self.pid
        except ClientError:
            return False

    def stop(self) -> None:
        """The daemon alone; its jobs go on."""
        assert self._process is not None
        self._process.send_signal(signal.SIGTERM)
        self._process.wait(WITHIN_S)

    def close(self) -> None:
        """End everything, by pid; also what a broken shim would have left."""
        if self._process is not None and self._process.poll() is None:
            self._process.kill()
            self._process.wait()
        if self._packed is not None:
            self._packed.remove()
        deadline = time.monotonic() + WITHIN_S
        while (left := mentioning(str(self.paths.jobs))) and time.monotonic() < deadline:
            for pid in left:
                with contextlib.suppress(ProcessLookupError):
                    os.kill(pid, signal.SIGKILL)
            time.sleep(0.02)
        shutil.rmtree(self.home, ignore_errors=True)

    # ---- jobs

    def submit(self, argv: Sequence[str], workers: int = 1, policy: Policy | None = None) -> int:
        """Queue a job that has the node for itself; an empty folder is its working directory."""
        if self._packed is None:
            self._packed = pack(self.empty)
        resources = Resources(workers_per_node=workers)
        spec = JobSpec("bench", Run(tuple(argv)), resources, policy=policy or Policy())
        self.last_id = self.client.submit(spec, self._packed, {}).id
        return self.last_id

    def sleeping(self, workers: int, policy: Policy | None = None) -> int:
        """A job whose ranks are up and do nothing."""
        job = self.submit(SLEEPER, workers, policy)
        until(lambda: len(self.ranks(job)) == workers, "all ranks of a job run")
        return job

    def ranks(self, job: int) -> list[int]:
        """The pids of the job's ranks, once it runs."""
        detail = self.client.show(job)
        if detail.job.state in ENDED:
            raise FleetError(f"job {job} is {detail.job.state}: {detail.job.why}")
        running = detail.job.state == "running"
        return [rank.pid for rank in detail.ranks if running and rank.pid is not None]

    def shim(self, job: int) -> int:
        """The pid of the shim of the job's first attempt."""
        return int(json.loads((self.attempt(job) / "shim.json").read_text())["pid"])

    def attempt(self, job: int) -> Path:
        return self.paths.jobs / str(job) / "1"

    def end_of(self, job: int) -> m.JobView:
        *_, last = self.client.wait(job, WITHIN_S)
        return last

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
