"""Before a later attempt of a job, or one that goes on from another job: every node of it gets the
same checkpoints.

    bring ──► a tar, whole ──► mark ──► helper, as the jobs' user (shim/checkpoints) ──► no mark
          └─► no byte: the job goes on from what its nodes have

`bring` gathers the checkpoints on the coordinator (`handlers/checkpoints`), and fetches them from
there on a member (`membership/fetch`). A node is not prepared before its set is whole: a failure
here fails the attempt before any rank has begun.
"""

from __future__ import annotations

import json
import os
import subprocess
from collections.abc import Awaitable, Callable
from dataclasses import asdict, dataclass

import msgspec

from wiiiiided.cluster.allocation.archive_cache import Archives
from wiiiiided.cluster.allocation.job_dirs import JobDirs
from wiiiiided.cluster.allocation.prepare import (
    CoordinatorAway,
    NodeShortage,
    Unprepared,
    output_and_code,
    passes,
)
from wiiiiided.cluster.allocation.shim_order import HostContext
from wiiiiided.cluster.allocation.shim_process import shim_command
from wiiiiided.cluster.allocation.spawn import HELPER_ENV, may_pass, spawn
from wiiiiided.cluster.control.job import Job
from wiiiiided.cluster.shim.checkpoints import ASIDE, Placing
from wiiiiided.cluster.shim.workdir import NO_ROOM
from wiiiiided.cluster.system.settings import Settings
from wiiiiided.domain.checkpoint_files import checkpoint_globs
from wiiiiided.domain.json_decoder import json_decoder
from wiiiiided.errors import WiiiiideError
from wiiiiided.text import plain

Bring = Callable[[int, int], Awaitable[int]]  # job, attempt → a descriptor of the tar


class Placed(msgspec.Struct, frozen=True):
    """The helper's answer."""

    placed: int
    moved: int


_placed = json_decoder(Placed)


@dataclass(frozen=True)
class Placer:
    """Places checkpoints on this node. Without `bring` this machine is alone and needs none."""

    job_dirs: JobDirs
    archives: Archives
    here: HostContext
    settings: Callable[[], Settings]
    bring: Bring | None

    async def place(self, job: Job, attempt: int) -> str:
        """Place the job's checkpoints; a sentence about what was moved aside, or "". Unprepared:
        why that failed."""
        source = await self._brought(job, attempt)
        try:
            if not os.fstat(source).st_size:
                return ""
            self.job_dirs.make(job.id, attempt)
            archive = self.archives.open(job.archive)
            try:
                self.job_dirs.mark_placing(job.id, placing=True)
                found = await self._exchange(job, attempt, source, archive)
                self.job_dirs.mark_placing(job.id, placing=False)
            finally:
                os.close(archive)
        finally:
            os.close(source)
        if not found.moved:
            return ""
        aside = self.job_dirs.job(job.id) / "files" / f"{ASIDE}{attempt}"
        files = "file that differs was" if found.moved == 1 else "files that differ were"
        return f"{found.moved} {files} moved to {aside}"

    def _other(self, job: Job) -> int | None:
        """The job that it goes on from, where that is another."""
        saved = job.attempt.saved if job.attempt is not None else None
        return saved.job if saved is not None and saved.job != job.id else None

    def _has_own(self, job: Job, other: int) -> bool:
        """Whether the other job was on this machine, and nothing of a set cut short is there."""
        asked = job.attempt.checkpoints_from if job.attempt is not None else ()
        if self.here.node not in asked or self.job_dirs.is_placing(other):
            return False
        return self.job_dirs.work(other).is_dir()

    async def _brought(self, job: Job, attempt: int) -> int:
        try:
            if self.bring is None:
                raise Unprepared("this machine is alone, and cannot ask another")
            return await self.bring(job.id, attempt)
        except (WiiiiideError, OSError, EOFError, TimeoutError, msgspec.DecodeError) as problem:
            why = str(getattr(problem, "strerror", None) or problem or "no answer")
            text = f"its checkpoints cannot be had: {why}"
            if may_pass(problem):
                raise NodeShortage(f"{text} (on {self.here.node})") from None
            raise (CoordinatorAway if passes(problem) else Unprepared)(text) from problem

    async def _exchange(self, job: Job, attempt: int, source: int, archive: int) -> Placed:
        settings, other = self.settings(), self._other(job)
        given = Placing(
            work=str(self.job_dirs.work(job.id)),
            attempt=attempt,
            patterns=list(checkpoint_globs(job.spec.output)),
            limit_bytes=settings.outputs_bytes,
            limit_files=settings.archive_files,
            archive_bytes=settings.archive_bytes,
            archive_files=settings.archive_files,
            file_mode=self.here.user.file_mode,
            is_other=other is not None,
            other=str(self.job_dirs.work(other)) if other and self._has_own(job, other) else "",
        )
        command = shim_command("--place", json.dumps(asdict(given)), str(source), str(archive))
        user = self.here.user
        fds = (source, archive)
        process = spawn(command, user, env=HELPER_ENV, fds=fds, stdout=subprocess.PIPE)
        said, code = await output_and_code(process, user)
        if code:
            words = plain(said.decode("utf-8", "replace").strip()) or f"code {code}"
            text = f"its checkpoints cannot be placed on {self.here.node}: {words}"
            raise (NodeShortage if code == NO_ROOM else Unprepared)(text)
        return _placed(said)
