"""A private daemon for a test: real program, real socket, everything under one short directory.

    with private_daemon() as daemon:
        job = daemon.submit("import os; print(os.environ['RANK'])", workers=2)
        assert daemon.end_of(job).state == "done"

On the way out the daemon is stopped, whatever its jobs left is looked for by their environment, and
a test that left processes behind fails.

    with private_cluster(3) as (a, b, c):          on 127.0.0.2, .3, .4; b and c joined by token
        job = b.submit("…", nodes=3)

All of them are on one machine: a script that wants to be on several hosts sets WIIIIIDE_HOST_ID.
"""

from __future__ import annotations

import contextlib
import os
import random
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from tests.kit.conditions import wait_until
from wiiiiided.cluster.archive.pack import pack
from wiiiiided.cluster.client import Client, ClientError
from wiiiiided.cluster.client.machines import settle
from wiiiiided.cluster.rpc import messages as m
from wiiiiided.config import Paths
from wiiiiided.domain.spec import JobSpec, Output, Policy, Resources, Run
from wiiiiided.domain.states import ENDED

ROOT = Path(__file__).parents[2]
STARTS_WITHIN_S = 60.0
ENDS_WITHIN_S = 60.0


class PrivateDaemon:
    """One daemon and its home. `program` may be a test's own variant of it."""

    def __init__(self, home: Path, program: Sequence[str] | None = None) -> None:
        self.home = home
        self.paths = Paths.private(str(home))
        self.client = Client(self.paths)
        self.program = list(program or (sys.executable, "-m", "wiiiiided.cluster.daemon.main"))
        self.process: subprocess.Popen[bytes] | None = None
        self.log = home / "daemon.log"

    # ---- the program

    def start(self, *, wait: bool = True, **env: str) -> None:
        assert self.process is None
        with self.log.open("ab") as log:
            self.process = subprocess.Popen(
                self.program,
                env={**os.environ, "WIIIIIDE_HOME": str(self.home), **env},
                cwd=ROOT,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
            )
        if wait:
            try:
                wait_until(self.answers, STARTS_WITHIN_S, "the daemon answers")
            except AssertionError as problem:
                raise AssertionError(f"{problem}: {self.said()}") from None

    def answers(self) -> bool:
        assert self.process is not None
        if self.process.poll() is not None:
            raise AssertionError(f"the daemon ended: {self.said()}")
        try:
            return self.client.status().pid == self.process.pid
        except ClientError:
            return False

    def said(self) -> str:
        return self.log.read_text(errors="replace") if self.log.exists() else ""

    def stop(self, number: int = signal.SIGTERM) -> int:
        """End the daemon alone; its jobs go on."""
        assert self.process is not None
        if self.process.poll() is None:
            self.process.send_signal(number)
        code = self.process.wait(timeout=ENDS_WITHIN_S)
        self.process = None
        return code

    def kill(self) -> None:
        self.stop(signal.SIGKILL)

    def close(self) -> None:
        """End everything, by pid, also what a broken shim would have left; nothing stays."""
        if self.process is not None:
            self.process.kill()
            self.process.wait()
        for pid in self.processes():
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        shutil.rmtree(self.home, ignore_errors=True)

    def ended_by_itself(self) -> int:
        assert self.process is not None
        code = self.process.wait(timeout=ENDS_WITHIN_S)
        self.process = None
        return code

    # ---- jobs

    def submit(
        self,
        script: str | None = None,
        *,
        command: Sequence[str] = (),
        workers: int = 1,
        nodes: int = 1,
        use: tuple[str, ...] = (),
        cores: int | None = None,
        python: str | None = None,
        policy: dict[str, Any] | None = None,
        env: dict[str, str] | None = None,
        secrets: dict[str, str] | None = None,
        collect: tuple[str, ...] = (),
        checkpoints: tuple[str, ...] = (),
        hold: bool = False,
        resumes: int | None = None,
        work: Path | None = None,
        **rest: Any,
    ) -> int:
        """Queue a job that runs a line of Python, or a command."""
        argv = tuple(command) or ("python", "-c", script or "")
        spec = JobSpec(
            name="test",
            run=Run(argv, python=python, env=env or {}, pass_env=tuple(secrets or ())),
            resources=Resources(
                (nodes, nodes), workers_per_node=workers, cores_per_worker=cores, use=use
            ),
            policy=Policy(**(policy or {})),
            output=Output(collect, checkpoints=checkpoints),
            **rest,
        )
        empty = self.home / "empty"
        empty.mkdir(exist_ok=True)
        packed = pack(str(work or empty))
        try:
            return self.client.submit(spec, packed, secrets or {}, hold=hold, resumes=resumes).id
        finally:
            packed.remove()

    def view(self, job: int) -> m.JobView:
        return self.client.show(job).job

    def state(self, job: int) -> str:
        return self.view(job).state

    def wait_for(self, job: int, *states: str, within_s: float = ENDS_WITHIN_S) -> m.JobView:
        """Until the job is in one of the states."""
        what = f"job {job} is {' or '.join(states)}"

        def there() -> bool:
            view = self.view(job)
            if view.state in ENDED and view.state not in states:
                raise AssertionError(f"never {what}: {view.state}, {view.why}")
            return view.state in states

        wait_until(there, within_s, what)
        return self.view(job)

    def end_of(self, job: int, within_s: float = ENDS_WITHIN_S) -> m.JobView:
        return self.wait_for(job, *ENDED, within_s=within_s)

    def output(self, job: int, **which: Any) -> list[str]:
        """The lines the ranks wrote to stdout and stderr."""
        return [line.text for line in self.client.logs(job, **which) if line.stream != "note"]

    def pids(self, job: int) -> list[int]:
        return [rank.pid for rank in self.client.show(job).ranks if rank.pid is not None]

    def processes(self) -> list[int]:
        """Everything that belongs to a job of this daemon: shims and what they started."""
        found = []
        jobs = os.fsencode(self.paths.jobs)
        for name in os.listdir("/proc"):
            if not name.isdigit():
                continue
            with contextlib.suppress(OSError):
                about = Path(f"/proc/{name}/cmdline").read_bytes()
                about += Path(f"/proc/{name}/environ").read_bytes()
                if jobs in about:
                    found.append(int(name))
        return found

    def no_process_is_left(self, within_s: float = ENDS_WITHIN_S) -> None:
        try:
            wait_until(lambda: not self.processes(), within_s, "nothing of the jobs runs any more")
        except AssertionError as problem:
            left = self.processes()
            raise AssertionError(f"{problem}: {left}\n{self.said()[-3000:]}") from None


@contextlib.contextmanager
def private_daemon(
    *, start: bool = True, program: Sequence[str] | None = None
) -> Iterator[PrivateDaemon]:
    home = Path(tempfile.mkdtemp(prefix="wd"))
    daemon = PrivateDaemon(home, program)
    try:
        if start:
            daemon.start()
        yield daemon
        if daemon.process is not None:
            daemon.stop()
        daemon.no_process_is_left()  # a helper of the daemon's may end a moment after it
    finally:
        daemon.close()


# ---- several of them


def free_port(address: str) -> int:
    """A port that stays free while no process listens on it: no connection gets one of these."""
    while True:
        port = random.randrange(20_000, 32_000)
        with socket.socket() as trial, contextlib.suppress(OSError):
            trial.bind((address, port))
            return port


def make_cluster(daemons: Sequence[PrivateDaemon], cluster: str = "lab") -> None:
    """The first becomes the coordinator, the others join it as b, c, d, …"""
    first, *others = daemons
    first.client.init(cluster, "127.0.0.2", free_port("127.0.0.2"))
    settle(first.client.status, "coordinator")
    for number, daemon in enumerate(others, 3):
        join_cluster(first, daemon, "abcdefgh"[number - 2], f"127.0.0.{number}")


def join_cluster(first: PrivateDaemon, daemon: PrivateDaemon, name: str, address: str) -> None:
    daemon.client.join(invitation(first, name, address))
    settle(daemon.client.status, "member")


def invitation(first: PrivateDaemon, name: str, address: str) -> m.Join:
    """The request of a machine that is to join, with a token that was just made."""
    token = first.client.create_token()
    host, _, port = token.address.rpartition(":")
    return m.Join(host, int(port), token.token, name, address, free_port(address))


def node_states(daemon: PrivateDaemon) -> dict[str, str]:
    return {view.node.name: view.state for view in daemon.client.nodes().nodes}


@contextlib.contextmanager
def private_cluster(number: int = 3) -> Iterator[list[PrivateDaemon]]:
    with contextlib.ExitStack() as stack:
        daemons = [stack.enter_context(private_daemon()) for _ in range(number)]
        make_cluster(daemons)
        yield daemons
