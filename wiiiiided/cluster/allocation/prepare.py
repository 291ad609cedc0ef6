"""Preparing an allocation before any rank of its job starts: the archive, and the interpreter.

    is the archive here? ── no ──► fetched from the coordinator, three tries
    which versions has the job's interpreter? ──► it is run once, as the jobs' user, and prints them

torch is not imported for that: its metadata have the version. An answer is kept as long as neither
the interpreter nor a directory of its packages has changed.
"""

from __future__ import annotations

import asyncio
import os
import subprocess
from collections.abc import Awaitable, Callable
from typing import Final

import msgspec

from wiiiiided.cluster.allocation.archive_cache import Archives
from wiiiiided.cluster.allocation.shim_order import HostContext, interpreter_of
from wiiiiided.cluster.allocation.spawn import (
    CANNOT_RUN,
    HELPER_ENV,
    JobAccount,
    end_process,
    ended,
    exec_problem,
    may_pass,
    spawn_named,
)
from wiiiiided.cluster.control.job import Job
from wiiiiided.cluster.shim.access import closed_to
from wiiiiided.cluster.system.file_looks import Unanswered, look
from wiiiiided.domain.json_decoder import json_decoder
from wiiiiided.errors import HostError, UsageError, WiiiiideError
from wiiiiided.log import about, logger

LOOK_WITHIN_S: Final = 20.0
TRIES: Final = 3
AGAIN_S: Final = 1.0
LATER_S: Final = 10.0  # when this machine cannot: an archive is not fetched every second in vain
ANSWER_BYTES: Final = 1 << 16
KEPT: Final = 64  # answers of interpreters

LOOK: Final = """
import importlib.metadata as metadata, json, platform, sys
def version(name):
    try:
        return metadata.version(name)
    except metadata.PackageNotFoundError:
        return ""
print(json.dumps({"python": platform.python_version(), "torch": version("torch"),
    "wiiiiided": version("wiiiiided"), "path": sys.path}))
"""

Fetch = Callable[[str], Awaitable[None]]


class Unprepared(WiiiiideError):
    """An allocation cannot start here; the message says why."""

    def __init__(self, message: str, code: int = 1) -> None:
        super().__init__(message)
        self.code = code


class CoordinatorAway(Unprepared):
    """… because the coordinator cannot be reached: that passes, and is not the job's fault."""


class NodeShortage(Unprepared):
    """… because of this machine: a full disk, no descriptors. That passes too, and is not the job's
    fault; but it takes longer (LATER_S)."""


class InterpreterVersions(msgspec.Struct, frozen=True):
    """The versions that an interpreter has; empty: not installed."""

    python: str
    torch: str = ""
    wiiiiided: str = ""
    path: tuple[str, ...] = ()


_versions = json_decoder(InterpreterVersions)


class Preparer:
    """Prepares this node. `fetch` brings an archive from the coordinator; None: all are here."""

    def __init__(self, archives: Archives, here: HostContext, fetch: Fetch | None = None) -> None:
        self._archives = archives
        self._here = here
        self._fetch = fetch
        self._fetching: dict[str, asyncio.Lock] = {}
        self._kept: dict[str, tuple[tuple[int, ...], InterpreterVersions]] = {}

    async def prepare(self, job: Job) -> InterpreterVersions:
        """Get everything an allocation of this job needs, or raise Unprepared."""
        if not job.archive or self._archives.has(job.archive):
            return await self.versions(job)
        looking = asyncio.ensure_future(self.versions(job))
        try:
            await self.get(job)
            return await looking
        finally:
            looking.cancel()
            await asyncio.gather(looking, return_exceptions=True)

    # ---- the archive

    async def get(self, job: Job) -> None:
        """Get the archive; two jobs that need the same one fetch it once."""
        lock = self._fetching.setdefault(job.archive, asyncio.Lock())
        async with lock:
            if not self._archives.has(job.archive):
                await self._get(job)
        self._fetching.pop(job.archive, None)

    async def _get(self, job: Job) -> None:
        for number in range(1, TRIES + 1):
            try:
                if self._fetch is None:
                    raise Unprepared("its working directory is not on this machine any more")
                await self._fetch(job.archive)
                return
            except (WiiiiideError, OSError, EOFError, TimeoutError, RuntimeError) as problem:
                if may_pass(problem):
                    raise self._shortage("its working directory cannot be kept", problem) from None
                if type(problem) is RuntimeError:  # a defect; WiiiiideErrors are RuntimeErrors too
                    raise
                if number == TRIES or self._fetch is None:
                    text = f"its working directory cannot be fetched: {problem or 'no answer'}"
                    raise (CoordinatorAway if passes(problem) else Unprepared)(text) from problem
                text = "job %d: its working directory cannot be fetched now: %s"
                logger.warning(text, job.id, problem, extra=about(job.id))
                await asyncio.sleep(AGAIN_S)

    def _shortage(self, what: str, problem: BaseException) -> NodeShortage:
        why = getattr(problem, "strerror", None) or problem
        return NodeShortage(f"{what} on {self._here.node} now: {why}")

    # ---- the interpreter

    async def versions(self, job: Job) -> InterpreterVersions:
        """The job's interpreter's contents, from an earlier look where nothing has changed."""
        try:
            return await self._versions(await interpreter_of(job, self._here))
        except Unanswered as problem:
            raise Unprepared(f"its interpreter {problem}", CANNOT_RUN) from None

    async def _versions(self, python: str) -> InterpreterVersions:
        kept = self._kept.get(python)
        if kept is not None and kept[0] == await self._marks(python, kept[1].path):
            return kept[1]
        found = await self._look(python)
        marks = await self._marks(python, found.path)
        if marks:
            if len(self._kept) >= KEPT:
                self._kept.pop(next(iter(self._kept)))
            self._kept[python] = marks, found
        return found

    async def _look(self, python: str) -> InterpreterVersions:
        command = [python, "-I", "-c", LOOK]
        env = {**HELPER_ENV, "HOME": self._here.user.home}
        try:
            process = spawn_named(command, self._here.user, env=env, stdout=subprocess.PIPE)
        except (OSError, ValueError, subprocess.SubprocessError) as problem:
            raise await self._cannot_run(python, problem) from None
        try:
            async with asyncio.timeout(LOOK_WITHIN_S):
                said, code = await output_and_code(process, self._here.user)
        except TimeoutError:
            text = f"its interpreter {python} did not say its version within {LOOK_WITHIN_S:g} s"
            raise Unprepared(text, CANNOT_RUN) from None
        if failed := exec_problem(said, code):
            raise await self._cannot_run(python, failed)
        try:
            return _versions(said)
        except msgspec.DecodeError:
            why = await self._closed(python) or "is it a Python?"
            text = f"its interpreter {python} does not work (code {code}): {why}"
            raise Unprepared(text, CANNOT_RUN) from None

    async def _cannot_run(self, python: str, problem: Exception) -> Unprepared:
        if may_pass(problem):
            return self._shortage(f"its interpreter {python} cannot be run", problem)
        why = await self._closed(python) or getattr(problem, "strerror", None) or problem
        return Unprepared(f"its interpreter {python} cannot be run: {why}", CANNOT_RUN)

    async def _closed(self, python: str) -> str:
        """Which directory keeps the jobs' user from the interpreter, if one does."""
        user = self._here.user
        return await look(python, closed_to, user.name, python) if user.other else ""

    async def _marks(self, python: str, path: tuple[str, ...]) -> tuple[int, ...]:
        if python == self._here.python:  # no job named these paths
            return _marks(python, path)
        return await look(python, _marks, python, path)


def passes(problem: Exception) -> bool:
    """Whether a fetch got no whole answer: else it was refused, or this machine cannot keep it."""
    if isinstance(problem, OSError):
        return isinstance(problem, ConnectionError | TimeoutError)
    return not isinstance(problem, HostError | UsageError | Unprepared)


def log_wait(job: Job, why: str, said: str) -> str:
    """Log why a job waits here, unless that was `said` last; the reason, to pass next time."""
    if why != said:
        text = "job %d waits: %s; trying again every %g s"
        logger.warning(text, job.id, why, LATER_S, extra=about(job.id))
    return why


async def output_and_code(process: subprocess.Popen[bytes], user: JobAccount) -> tuple[bytes, int]:
    """The output of a process of the jobs' user, and its exit code. Where the caller is cancelled
    meanwhile, the process is killed with its group."""
    try:
        return await _output(process), await asyncio.shield(ended(process))
    finally:
        if process.poll() is None:
            end_process(process.pid, user, group=True)
            await asyncio.shield(ended(process))


async def _output(process: subprocess.Popen[bytes]) -> bytes:
    """The output of a process; nothing, where that is ANSWER_BYTES or more."""
    assert process.stdout is not None
    reader = asyncio.StreamReader(limit=ANSWER_BYTES)
    loop = asyncio.get_running_loop()
    pipe, _ = await loop.connect_read_pipe(
        lambda: asyncio.StreamReaderProtocol(reader), process.stdout
    )
    try:
        await reader.readexactly(ANSWER_BYTES)
        return b""
    except asyncio.IncompleteReadError as short:
        return short.partial
    finally:
        pipe.close()


def _marks(python: str, path: tuple[str, ...]) -> tuple[int, ...]:
    """Say when the interpreter and its packages were last changed; empty: that cannot be known."""
    found = []
    try:
        found.append(os.stat(python).st_mtime_ns)
    except OSError:
        return ()
    for directory in path:
        try:
            found.append(os.stat(directory).st_mtime_ns)
        except PermissionError:
            return ()
        except OSError:
            found.append(0)
    return tuple(found)
