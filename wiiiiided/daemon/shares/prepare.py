"""Getting ready for a share before any of its gang starts: the archive, and what is installed here.

    is the archive here? ── no ──► fetched from the coordinator, three tries
    which versions has the job's interpreter? ──► asked of itself, once, as the jobs' user

torch is not imported for that: its metadata say which it is. An answer is kept as long as neither
the interpreter nor a directory of its packages has changed.
"""

from __future__ import annotations

import asyncio
import os
import subprocess
from collections.abc import Awaitable, Callable
from typing import Final

import msgspec

from wiiiiided.control.job import Job
from wiiiiided.daemon.shares.archives import Archives
from wiiiiided.daemon.shares.order import Surroundings, interpreter
from wiiiiided.daemon.shares.spawn import HELPER_ENV, end_process, ended, may_pass, spawn
from wiiiiided.errors import HostError, UsageError, WiiiiideError
from wiiiiided.log import about, logger
from wiiiiided.shim.access import closed_to

LOOK_WITHIN_S: Final = 20.0
TRIES: Final = 3
AGAIN_S: Final = 1.0
LATER_S: Final = 10.0  # when this machine cannot: an archive is not fetched every second in vain
ANSWER_BYTES: Final = 1 << 16
KEPT: Final = 64  # answers of interpreters
CANNOT_RUN: Final = 126  # as a shell has it

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
    """A share cannot start here, and the sentence says why."""

    def __init__(self, message: str, code: int = 1) -> None:
        super().__init__(message)
        self.code = code


class NotYet(Unprepared):
    """… because the coordinator is not reached: that passes, and is not the job's fault."""


class Hindered(Unprepared):
    """… because of what this machine cannot do just now: a full disk, no descriptors. That passes
    too, and is not the job's fault; but it takes longer (LATER_S)."""


class Versions(msgspec.Struct, frozen=True):
    """What an interpreter has; empty: it has none."""

    python: str
    torch: str = ""
    wiiiiided: str = ""
    path: tuple[str, ...] = ()


class Preparer:
    """Of one node. `fetch` brings an archive from the coordinator; None: all are here."""

    def __init__(self, archives: Archives, here: Surroundings, fetch: Fetch | None = None) -> None:
        self._archives = archives
        self._here = here
        self._fetch = fetch
        self._fetching: dict[str, asyncio.Lock] = {}
        self._kept: dict[str, tuple[tuple[int, ...], Versions]] = {}

    async def prepare(self, job: Job) -> Versions:
        """Everything a share of this job needs, or Unprepared."""
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
        """Have the archive; two jobs that need the same one fetch it once."""
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
                    raise self._hindered("its working directory cannot be kept", problem) from None
                if type(problem) is RuntimeError:  # a defect; WiiiiideErrors are RuntimeErrors too
                    raise
                if number == TRIES or self._fetch is None:
                    text = f"its working directory cannot be fetched: {problem or 'no answer'}"
                    raise (NotYet if passes(problem) else Unprepared)(text) from problem
                text = "job %d: its working directory cannot be fetched now: %s"
                logger.warning(text, job.id, problem, extra=about(job.id))
                await asyncio.sleep(AGAIN_S)

    def _hindered(self, what: str, problem: BaseException) -> Hindered:
        why = getattr(problem, "strerror", None) or problem
        return Hindered(f"{what} on {self._here.node} now: {why}")

    # ---- the interpreter

    async def versions(self, job: Job) -> Versions:
        """What the job's interpreter has."""
        python = interpreter(job.spec.run.python, self._here.python)
        kept = self._kept.get(python)
        if kept is not None and kept[0] == _marks(python, kept[1].path):
            return kept[1]
        found = await self._look(python)
        marks = _marks(python, found.path)
        if marks:
            if len(self._kept) >= KEPT:
                self._kept.pop(next(iter(self._kept)))
            self._kept[python] = marks, found
        return found

    async def _look(self, python: str) -> Versions:
        command = [python, "-I", "-c", LOOK]
        env = {**HELPER_ENV, "HOME": self._here.user.home}
        try:
            process = spawn(command, self._here.user, env=env, stdout=subprocess.PIPE)
        except (OSError, ValueError, subprocess.SubprocessError) as problem:
            if may_pass(problem):
                raise self._hindered(f"its interpreter {python} cannot be run", problem) from None
            why = getattr(problem, "strerror", None) or problem
            why = self._closed(python) or why
            raise Unprepared(f"its interpreter {python} cannot be run: {why}", CANNOT_RUN) from None
        try:
            async with asyncio.timeout(LOOK_WITHIN_S):
                said = await output_of(process)
                code = await asyncio.shield(ended(process))
        except TimeoutError:
            text = f"its interpreter {python} did not say its version within {LOOK_WITHIN_S:g} s"
            raise Unprepared(text, CANNOT_RUN) from None
        finally:
            if process.poll() is None:
                end_process(process.pid, self._here.user, group=True)
                await asyncio.shield(ended(process))
        try:
            return msgspec.json.decode(said, type=Versions)
        except msgspec.DecodeError:
            why = self._closed(python) or "is it a Python?"
            text = f"its interpreter {python} does not work (code {code}): {why}"
            raise Unprepared(text, CANNOT_RUN) from None

    def _closed(self, python: str) -> str:
        """Which directory keeps the jobs' user from the interpreter, if one does."""
        return closed_to(self._here.user.name, python) if self._here.user.other else ""


def passes(problem: Exception) -> bool:
    """Nobody answered, or not to the end; else it was a no, or this machine cannot keep it."""
    if isinstance(problem, OSError):
        return isinstance(problem, ConnectionError | TimeoutError)
    return not isinstance(problem, HostError | UsageError | Unprepared)


async def output_of(process: subprocess.Popen[bytes]) -> bytes:
    """What a process prints, so many bytes of it."""
    assert process.stdout is not None
    reader = asyncio.StreamReader(limit=ANSWER_BYTES)
    loop = asyncio.get_running_loop()
    pipe, _ = await loop.connect_read_pipe(
        lambda: asyncio.StreamReaderProtocol(reader), process.stdout
    )
    try:
        await reader.readexactly(ANSWER_BYTES)
        return b""  # that much is no answer
    except asyncio.IncompleteReadError as short:
        return short.partial
    finally:
        pipe.close()


def _marks(python: str, path: tuple[str, ...]) -> tuple[int, ...]:
    """When the interpreter and its packages were changed last; empty: nobody can tell."""
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
