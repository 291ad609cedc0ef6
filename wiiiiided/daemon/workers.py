"""Carrying out the control plane's actions on this node.

    StartWorkers   a shim, with its order, the archive and the secrets by descriptor
    StopWorkers    told to the shim, which ends everything and verifies it
    SignalWorkers, DumpStacks   told to the shim
    RunNotify      the job's own command, as the jobs' user

Each may come twice (after a crash of the daemon) and then changes nothing.
"""

from __future__ import annotations

import asyncio
import os
import shutil
import subprocess
from collections.abc import Callable, Coroutine
from typing import Any

from wiiiiided.control import actions as a
from wiiiiided.control import events as e
from wiiiiided.control.job import Hung, Job, Stopping
from wiiiiided.daemon.archives import Archives
from wiiiiided.daemon.order import Surroundings, environment, interpreter, order_for, secret_lines
from wiiiiided.daemon.runs import Runs
from wiiiiided.daemon.settings import Settings
from wiiiiided.daemon.shims import Shim, shim_command
from wiiiiided.daemon.spawn import ended, spawn
from wiiiiided.domain.layout import Layout
from wiiiiided.jobfile.placeholders import fill
from wiiiiided.log import logger
from wiiiiided.shim import files

NOTIFY_WITHIN_S = 60.0
HELPER_ENV = {"PATH": "/usr/bin:/bin", "LANG": "C.UTF-8"}


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
            reason = end.reason or "all ranks ended"
            self.report(e.WorkersEnded(self.clock(), *key, node, end.code, reason[:1000], end.lost))

        shim = Shim(self.runs, job.id, attempt, started, over)
        self.shims[key] = shim
        self._spawn_task(self._run(shim, job, order))

    async def _run(self, shim: Shim, job: Job, order: files.Order | None) -> None:
        fds: dict[str, int] = {}
        if order is not None:
            try:
                fds = self._descriptors(job)
            except OSError as problem:
                reason = f"its archive cannot be opened: {problem.strerror}"
                shim.on_ended(files.End(self.clock(), {}, 1, reason=reason))
                return
        await shim.follow(order, fds)

    def _descriptors(self, job: Job) -> dict[str, int]:
        """What reaches a shim without a name: the archive, and the secrets."""
        fds = {"archive": self.archives.open(job.archive)}
        if secrets := self.secrets(job.id):
            fd = os.memfd_create("wiiiiide-secrets", os.MFD_CLOEXEC)
            os.write(fd, secret_lines(secrets))
            os.lseek(fd, 0, os.SEEK_SET)
            os.fchmod(fd, 0o444)  # ranks open it anew, and it is ours; it has no name to find it by
            fds["secrets"] = fd
        return fds

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
        try:
            process = spawn(argv, self.here.user, env=env, cwd="/")
        except (OSError, ValueError, subprocess.SubprocessError) as problem:
            logger.warning("job %d: its notify command cannot be started: %s", job.id, problem)
            return
        try:
            code = await asyncio.wait_for(asyncio.shield(ended(process)), NOTIFY_WITHIN_S)
        except TimeoutError:
            self._kill(process)
            code = await ended(process)
        if code:
            logger.warning("job %d: its notify command ended with code %d", job.id, code)

    def _kill(self, process: subprocess.Popen[bytes]) -> None:
        """End a process of the jobs' user and its session; as that user, since we may not."""
        group = f"kill -KILL -{process.pid}"
        spawn(["/bin/sh", "-c", group], self.here.user, env=HELPER_ENV).wait()

    # ---- helpers that run as the jobs' user

    async def remove(self, number: int) -> None:
        """Delete a job's directory: what the job wrote as the jobs' user, the rest ourselves."""
        directory = self.runs.job(number)
        if not directory.exists():
            return
        for path in sorted(directory.iterdir()):
            command = shim_command("--remove", str(path))
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
