"""Before an attempt that follows another: this node gets the checkpoints that all its nodes get.

    bring ──► a tar, whole ──► mark ──► helper, as the jobs' user (shim/checkpoints) ──► no mark

`bring` is the coordinator's own gathering (`answers/checkpoints`), or a member's way to it
(`cluster/fetch`). A node is not prepared before its set is whole: what fails here fails the attempt
before any rank has begun.
"""

from __future__ import annotations

import asyncio
import json
import os
import subprocess
from collections.abc import Awaitable, Callable
from dataclasses import asdict

import msgspec

from wiiiiided.control.job import Job
from wiiiiided.daemon.settings import Settings
from wiiiiided.daemon.shares.archives import Archives
from wiiiiided.daemon.shares.order import Surroundings
from wiiiiided.daemon.shares.prepare import Hindered, NotYet, Unprepared, output_of, passes
from wiiiiided.daemon.shares.runs import Runs
from wiiiiided.daemon.shares.shims import shim_command
from wiiiiided.daemon.shares.spawn import HELPER_ENV, end_process, ended, may_pass, spawn
from wiiiiided.errors import WiiiiideError
from wiiiiided.shim.checkpoints import ASIDE, Placing
from wiiiiided.shim.unpacking import NO_ROOM
from wiiiiided.text import plain

Bring = Callable[[int, int], Awaitable[int]]  # job, attempt → a descriptor of the tar


class Placed(msgspec.Struct, frozen=True):
    """What the helper says."""

    placed: int
    moved: int


class Placer:
    """Of one node. Without `bring` this machine is alone, and needs nobody's."""

    def __init__(
        self,
        runs: Runs,
        archives: Archives,
        here: Surroundings,
        settings: Callable[[], Settings],
        bring: Bring | None = None,
    ) -> None:
        self.bring = bring
        self._runs = runs
        self._archives = archives
        self._here = here
        self._settings = settings

    async def place(self, job: Job, attempt: int) -> str:
        """What was changed here, a sentence; empty: nothing had to be. Unprepared: why not."""
        source = await self._brought(job, attempt)
        try:
            self._runs.make(job.id, attempt)
            archive = self._archives.open(job.archive)
            try:
                self._runs.mark_placing(job.id, placing=True)
                found = await self._exchange(job, attempt, source, archive)
                self._runs.mark_placing(job.id, placing=False)
            finally:
                os.close(archive)
        finally:
            os.close(source)
        if not found.moved:
            return ""
        aside = self._runs.job(job.id) / "files" / f"{ASIDE}{attempt}"
        files = "file that differs was" if found.moved == 1 else "files that differ were"
        return f"{found.moved} {files} moved to {aside}"

    async def _brought(self, job: Job, attempt: int) -> int:
        try:
            if self.bring is None:
                raise Unprepared("this machine is alone, and cannot ask another")
            return await self.bring(job.id, attempt)
        except (WiiiiideError, OSError, EOFError, TimeoutError, msgspec.DecodeError) as problem:
            why = str(getattr(problem, "strerror", None) or problem or "no answer")
            text = f"its checkpoints cannot be had: {why}"
            if may_pass(problem):
                raise Hindered(f"{text} (on {self._here.node})") from None
            raise (NotYet if passes(problem) else Unprepared)(text) from problem

    async def _exchange(self, job: Job, attempt: int, source: int, archive: int) -> Placed:
        settings = self._settings()
        given = Placing(
            work=str(self._runs.work(job.id)),
            attempt=attempt,
            patterns=list(job.spec.output.checkpoints),
            limit_bytes=settings.outputs_bytes,
            limit_files=settings.archive_files,
            archive_bytes=settings.archive_bytes,
            archive_files=settings.archive_files,
            file_mode=self._here.user.file_mode,
        )
        command = shim_command("--place", json.dumps(asdict(given)), str(source), str(archive))
        user = self._here.user
        fds = (source, archive)
        process = spawn(command, user, env=HELPER_ENV, fds=fds, stdout=subprocess.PIPE)
        try:
            said = await output_of(process)
            code = await asyncio.shield(ended(process))
        finally:
            if process.poll() is None:
                end_process(process.pid, user, group=True)
                await asyncio.shield(ended(process))
        if code:
            words = plain(said.decode("utf-8", "replace").strip()) or f"code {code}"
            text = f"its checkpoints cannot be placed on {self._here.node}: {words}"
            raise (Hindered if code == NO_ROOM else Unprepared)(text)
        return msgspec.json.decode(said, type=Placed)
