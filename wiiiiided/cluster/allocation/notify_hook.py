"""The job's own command at a change of its state: run as the jobs' user, on the owner's machine.

    notify.command ─► {id} {name} {state} {code} {reason} filled in ─► a process, a minute at most

Nothing waits for it, and how it ends changes nothing: a failure is a line in the log.
"""

from __future__ import annotations

import asyncio
import subprocess
from collections import Counter
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from wiiiiided.cluster.allocation.shim_order import HostContext, environment, interpreter_of
from wiiiiided.cluster.allocation.spawn import end_process, ended, spawn_named
from wiiiiided.cluster.control.actions import RunNotify
from wiiiiided.cluster.control.job import Job, Owner
from wiiiiided.cluster.system.file_looks import Unanswered
from wiiiiided.domain.limits import MAX_TEXT
from wiiiiided.domain.placeholders import TooLong, fill
from wiiiiided.log import about, logger

WITHIN_S = 60.0
AT_ONCE = 16  # a cancelled chain of a thousand jobs must not fork a thousand times
OF_ONE_USER = 2  # of these: the others' commands do not wait for a slow one a thousand times


class NotifyHook:
    """Runs the notify commands of this node's jobs."""

    def __init__(self, here: HostContext) -> None:
        self._here = here
        self._running = asyncio.Semaphore(AT_ONCE)
        self._users: dict[Owner, asyncio.Semaphore] = {}
        self._waiting: Counter[Owner] = Counter()  # or running

    async def run(self, job: Job, action: RunNotify) -> None:
        fields = {
            "id": str(job.id),
            "name": job.name,
            "state": action.state,
            "code": "" if action.code is None else str(action.code),
            "reason": action.reason,
        }
        try:
            argv = fill(job.spec.notify.command, fields, MAX_TEXT)
        except TooLong as problem:
            text = "job %d: its notify command is not run: filled in, %s"
            logger.warning(text, job.id, problem, extra=about(job.id))
            return
        try:
            python = await interpreter_of(job, self._here)
        except (Unanswered, OSError):  # it is only for PATH, and the command may tell of just that
            python = self._here.python
        env = environment(job, python, self._here)
        async with self._turn(job.owner), self._running:
            await self._run(job.id, argv, env)

    @asynccontextmanager
    async def _turn(self, owner: Owner) -> AsyncIterator[None]:
        """Wait until the owner has fewer commands running than one user may have."""
        turn = self._users.setdefault(owner, asyncio.Semaphore(OF_ONE_USER))
        self._waiting[owner] += 1
        try:
            async with turn:
                yield
        finally:
            self._waiting[owner] -= 1
            if not self._waiting[owner]:
                del self._waiting[owner], self._users[owner]

    async def _run(self, number: int, argv: list[str], env: dict[str, str]) -> None:
        try:
            process = spawn_named(argv, self._here.user, env=env)
        except (OSError, ValueError, subprocess.SubprocessError) as problem:
            text = "job %d: its notify command cannot be started: %s"
            logger.warning(text, number, problem, extra=about(number))
            return
        try:
            code = await asyncio.wait_for(asyncio.shield(ended(process)), WITHIN_S)
        except TimeoutError:
            end_process(process.pid, self._here.user, group=True)
            code = await ended(process)
        if code:
            text = "job %d: its notify command ended with code %d"
            logger.warning(text, number, code, extra=about(number))
