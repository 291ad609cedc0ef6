"""The needs of a shim that is to begin: the archive, its order, a certificate, secrets.

A passing trouble of this machine (a full disk, no descriptors, the coordinator away) is waited
out, as long as the allocation is not stopped: that is not the job's fault.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
from collections.abc import Callable, Iterator
from dataclasses import dataclass

import msgspec

from wiiiiided.cluster.allocation.archive_cache import Archives
from wiiiiided.cluster.allocation.job_dirs import JobDirs
from wiiiiided.cluster.allocation.prepare import (
    AGAIN_S,
    LATER_S,
    CoordinatorAway,
    NodeShortage,
    Preparer,
    Unprepared,
    log_wait,
)
from wiiiiided.cluster.allocation.shim_order import (
    HostContext,
    interpreter_of,
    order_for,
    secret_lines,
)
from wiiiiided.cluster.allocation.shim_process import Shim
from wiiiiided.cluster.control.job import Job
from wiiiiided.cluster.peering.messages import Assignment
from wiiiiided.cluster.shim import protocol
from wiiiiided.cluster.system.file_looks import Unanswered
from wiiiiided.cluster.system.settings import Settings
from wiiiiided.cluster.trust.signing_request import self_signed

encode_job = msgspec.json.Encoder().encode


@dataclass(frozen=True)
class Launcher:
    """Makes what the shims of this node begin with."""

    job_dirs: JobDirs
    archives: Archives
    here: HostContext
    settings: Callable[[], Settings]
    preparer: Preparer

    async def order(self, given: Assignment, shim: Shim) -> tuple[protocol.LaunchOrder | None, str]:
        """The shim's order, once everything that the ranks need is here; else None and the reason
        why it never will be. OSError: not now."""
        missing = await self._fetched(given.job, shim)
        if missing:
            return None, missing
        try:
            python = await shim.while_wanted(interpreter_of(given.job, self.here))
        except Unanswered as problem:
            return None, f"its interpreter {problem}"
        if python is None:
            return None, ""
        assert given.job.attempt is not None
        order = order_for(
            given.job,
            shim.attempt,
            given.job.attempt.layout,
            str(self.job_dirs.work(given.job.id)),
            here=self.here,
            settings=self.settings(),
            endpoints=given.endpoints,
            python=python,
        )
        if order.encrypt and not order.node_index:
            await self._certify(given.job.id, shim.attempt)
        return order, ""

    async def _fetched(self, job: Job, shim: Shim) -> str:
        """Fetch the archive; the reason where that failed. A stop ends the fetch at once."""
        missing = ""
        while not self.archives.has(job.archive) and not shim.was_stopped:
            try:
                await shim.while_wanted(self.preparer.get(job))
            except CoordinatorAway as problem:
                missing = str(problem)
                await shim.while_wanted(asyncio.sleep(AGAIN_S))
            except NodeShortage as problem:
                missing = log_wait(job, str(problem), missing)
                await shim.while_wanted(asyncio.sleep(LATER_S))
            except Unprepared as problem:
                return str(problem)
        return missing if shim.was_stopped else ""

    async def _certify(self, number: int, attempt: int) -> None:
        """Make a certificate for the Store of this attempt: shims have no library for that."""
        pem = await asyncio.to_thread(self_signed)  # the first one loads megabytes of code
        self.job_dirs.make(number, attempt)
        self.job_dirs.write(number, attempt, protocol.PEM, pem.encode())

    @contextlib.contextmanager
    def descriptors(
        self, given: Assignment, attempt: int, secrets: dict[str, str]
    ) -> Iterator[dict[str, int]]:
        """Write the files that a shim needs when it begins; the descriptors that it inherits: the
        archive and the secrets, which have no path that a job could open."""
        job = given.job
        fds: dict[str, int] = {}
        if given.key:
            self.job_dirs.write(job.id, attempt, protocol.KEY, bytes.fromhex(given.key))
        self.job_dirs.keep(job.id, encode_job(job))
        try:
            fds["archive"] = self.archives.open(job.archive)
            if secrets:
                fd = fds["secrets"] = os.memfd_create("wiiiiide-secrets", os.MFD_CLOEXEC)
                os.write(fd, secret_lines(secrets))
                os.lseek(fd, 0, os.SEEK_SET)
                os.fchmod(fd, 0o444)  # ranks open it anew; it has no name to find it by
            yield fds
        finally:
            for fd in fds.values():
                os.close(fd)
