"""Carrying out the control plane's actions on this node.

    StartWorkers   a shim, with its order, the archive and the secrets by descriptor
    StopWorkers    told to the shim, which ends everything and verifies it
    SignalWorkers, DumpStacks   told to the shim
    RunNotify      the job's own command, as the jobs' user

Each may come twice (after a crash of the daemon) and then changes nothing.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import shutil
import subprocess
from collections.abc import Callable, Coroutine, Iterator
from typing import Any

from wiiiiided.control import actions as a
from wiiiiided.control import events as e
from wiiiiided.control.job import Hung, Job, Stopping
from wiiiiided.daemon.archives import Archives
from wiiiiided.daemon.order import Surroundings, environment, interpreter, order_for, secret_lines
from wiiiiided.daemon.runs import Runs
from wiiiiided.daemon.settings import Settings
from wiiiiided.daemon.shims import Shim, shim_command
from wiiiiided.daemon.spawn import HELPER_ENV, end_process, ended, spawn
from wiiiiided.domain.layout import Layout
from wiiiiided.jobfile.placeholders import fill
from wiiiiided.log import about, logger
from wiiiiided.shim import files

NOTIFY_WITHIN_S = 60.0
NOTIFY_AT_ONCE = 4  # a cancelled chain of a thousand jobs must not fork a thousand times
TERMINATED = 128 + 15
REASON_CHARS = 1000


class Workers:
    """The shims of this node. Reports events through `report`; looks jobs up through `job`."""

    def __init__(
        self,
        runs: Runs,
        archives: Archives,
        here: Surroundings,
        settings: Callable[[], Settings],
        secrets: Callable[[int], dict[str, str]],
    ) -> None:
        self.runs = runs
        self.archives = archives
        self.here = here
        self.settings = settings
        self.secrets = secrets
        self.report: Callable[[e.AnyEvent], None] = lambda event: None
        self.clock: Callable[[], float] = lambda: 0.0
        self.shims: dict[tuple[int, int], Shim] = {}
        self._tasks: set[asyncio.Task[None]] = set()
        self._notifying = asyncio.Semaphore(NOTIFY_AT_ONCE)

    # ---- actions

    def perform(self, action: a.AnyAction, job: Job) -> None:
        """Do it, or begin to; never blocks, never raises for the job's fault."""
        match action:
            case a.StartWorkers():
                self.start(job, action.attempt, action.layout)
            case a.StopWorkers():
                if shim := self.shims.get((action.id, action.attempt)):
                    shim.stop(action.grace_s, action.reason)
            case a.SignalWorkers():
                if shim := self.shims.get((action.id, action.attempt)):
                    shim.tell({"do": "signal", "signal": action.signal})
            case a.DumpStacks():
                self._spawn_task(self._dump(action.id, action.attempt))
            case a.RunNotify():
                self._spawn_task(self._notify(job, action))
            case a.Tell():
                pass  # the store and the log have it

    def start(self, job: Job, attempt: int, layout: Layout) -> None:
        if (job.id, attempt) in self.shims:
            return
        work = str(self.runs.work(job.id))
        order = order_for(job, attempt, layout, work, self.here, self.settings())
        self._follow(job, attempt, order)

    def adopt(self, job: Job) -> None:
        """After a start of the daemon: find what became of a job that was on this node."""
        assert job.attempt is not None
        number = job.attempt.number
        if self.here.node not in job.attempt.live:
            return
        if job.state == "starting":
            self.start(job, number, job.attempt.layout)
        else:
            self._follow(job, number, None)
        shim = self.shims[job.id, number]
        if isinstance(job.phase, Stopping):
            shim.stop(job.spec.policy.grace_s, job.phase.reason)
        elif isinstance(job.phase, Hung):
            self._spawn_task(self._dump(job.id, number))

    def _follow(self, job: Job, attempt: int, order: files.Order | None) -> None:
        key = (job.id, attempt)
        node = self.here.node

        def started() -> None:
            self.report(e.WorkersStarted(self.clock(), job.id, attempt, node))

        def over(end: files.End) -> None:
            self.shims.pop(key, None)
            # A shim that was told to end by somebody else, as when the machine shuts down: its
            # ranks may have ended well, but not because their work was done.
            lost = end.lost or (bool(end.stopped) and not shim.was_stopped)
            code = min(max(0, end.code), 255) or (TERMINATED if lost else 0)
            reason = plain(end.reason) or "all ranks ended"
            at = end.ended_at or None
            self.report(e.WorkersEnded(self.clock(), *key, node, code, reason, lost, at))

        shim = Shim(self.runs, job.id, attempt, started, over)
        self.shims[key] = shim
        self._spawn_task(self._run(shim, job, order))

    async def _run(self, shim: Shim, job: Job, order: files.Order | None) -> None:
        await shim.follow(order, lambda: self._descriptors(job))

    @contextlib.contextmanager
    def _descriptors(self, job: Job) -> Iterator[dict[str, int]]:
        """What reaches a shim without a name: the archive, and the secrets."""
        fds: dict[str, int] = {}
        try:
            fds["archive"] = self.archives.open(job.archive)
            if secrets := self.secrets(job.id):
                fd = fds["secrets"] = os.memfd_create("wiiiiide-secrets", os.MFD_CLOEXEC)
                os.write(fd, secret_lines(secrets))
                os.lseek(fd, 0, os.SEEK_SET)
                os.fchmod(fd, 0o444)  # ranks open it anew; it has no name to find it by
            yield fds
        finally:
            for fd in fds.values():
                os.close(fd)

    async def _dump(self, number: int, attempt: int) -> None:
        if shim := self.shims.get((number, attempt)):
            await shim.stacks()
        self.report(e.StacksDumped(self.clock(), number, attempt, self.here.node))

    async def _notify(self, job: Job, action: a.RunNotify) -> None:
        fields = {
            "id": str(job.id),
            "name": job.spec.name,
            "state": action.state,
            "code": "" if action.code is None else str(action.code),
            "reason": action.reason,
        }
        argv = fill(job.spec.notify.command, fields)
        python = interpreter(job.spec.run.python, self.here.python)
        env = environment(job, python, self.here)
        async with self._notifying:
            await self._run_notify(job.id, argv, env)

    async def _run_notify(self, number: int, argv: list[str], env: dict[str, str]) -> None:
        try:
            process = spawn(argv, self.here.user, env=env, cwd="/")
        except (OSError, ValueError, subprocess.SubprocessError) as problem:
            text = "job %d: its notify command cannot be started: %s"
            logger.warning(text, number, problem, extra=about(number))
            return
        try:
            code = await asyncio.wait_for(asyncio.shield(ended(process)), NOTIFY_WITHIN_S)
        except TimeoutError:
            end_process(process.pid, self.here.user, group=True)
            code = await ended(process)
        if code:
            text = "job %d: its notify command ended with code %d"
            logger.warning(text, number, code, extra=about(number))

    # ---- helpers that run as the jobs' user

    async def remove(self, number: int) -> None:
        """Delete a job's directory: what the job wrote as the jobs' user, the rest ourselves."""
        directory = self.runs.job(number)
        if not directory.exists():
            return
        command = shim_command("--remove", *map(str, sorted(directory.iterdir())))
        await ended(spawn(command, self.here.user, env=HELPER_ENV))
        shutil.rmtree(directory)

    def tar(self, number: int, globs: tuple[str, ...]) -> subprocess.Popen[bytes]:
        """A process that writes the files matching `globs` as a tar to its stdout."""
        command = shim_command("--tar", str(self.runs.work(number)), *globs)
        return spawn(command, self.here.user, env=HELPER_ENV, stdout=subprocess.PIPE)

    def _spawn_task(self, work: Coroutine[Any, Any, None]) -> None:
        task = asyncio.get_running_loop().create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._finished)

    def _finished(self, task: asyncio.Task[None]) -> None:
        self._tasks.discard(task)
        if not task.cancelled() and (problem := task.exception()) is not None:
            logger.error("a defect while carrying out an action", exc_info=problem)

    async def close(self) -> None:
        """Stop following; the jobs go on."""
        for task in list(self._tasks):
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)


def plain(text: str) -> str:
    """A sentence that a job may have written: one line, printable, of a length one reads."""
    shown = "".join(char if char.isprintable() else "?" for char in text[:REASON_CHARS])
    return shown.encode("utf-8", "replace").decode()
