"""One attempt on this node, from its order to its end: start a shim, or find the one that runs.

    no claim        start one. If another of ours has just claimed, ours leaves and we follow it
    claim, alive    connect to its socket; it tells what happens       (a restarted daemon adopts)
    claim, ended    read exit.json                                     (it ended meanwhile)
    claim, dead     sweep: kill what is left, verify, write exit.json  (the shim was killed)
    other boot      nothing of it can run                              (the machine restarted)

A claim is pid + start time + boot id: a reused pid is never taken for the shim. An end is reported
only when nothing of the attempt runs any more.
"""

from __future__ import annotations

import asyncio
import contextlib
import errno
import json
import logging
import os
import subprocess
import sys
from collections.abc import Callable, Coroutine
from dataclasses import replace
from pathlib import Path
from typing import Any

from wiiiiided.daemon.shares.runs import Runs
from wiiiiided.daemon.shares.spawn import (
    HELPER_ENV,
    end_process,
    ended,
    may_pass,
    readable,
    spawn,
)
from wiiiiided.errors import HostError
from wiiiiided.log import about, logger
from wiiiiided.shim import files

RUN = str(Path(files.__file__).with_name("run.py"))
CLAIM_WITHIN_S = 60.0  # a loaded machine may take long to start a process; this long is a defect
STACKS_WITHIN_S = 10.0
AGAIN_S = 3.0  # after what this machine could not do just now
ENFORCE_S = 30.0  # beyond its grace: a shim that has not ended everything by then never will
ENFORCE_AGAIN_S = 5.0
NO_PROCESS = {errno.ESRCH, errno.EINVAL, errno.ENOENT}  # 0, -1 and a thread's number name none
Descriptors = Callable[[], contextlib.AbstractContextManager[dict[str, int]]]
FORFEITED = "it was stopped before it began"
UNREADABLE = "unreadable"  # the boot id of a claim that a job has spoiled: only a sweep can tell


def shim_command(*arguments: str) -> list[str]:
    """The shim's program: isolated from the user's Python, without site-packages."""
    return [sys.executable, "-I", "-S", RUN, *arguments]


class Shim:
    """Follows one attempt. Reports through two callbacks, each called once at most."""

    def __init__(
        self,
        runs: Runs,
        job: int,
        attempt: int,
        on_started: Callable[[], None],
        on_ended: Callable[[files.End], None],
    ) -> None:
        self.runs = runs
        self.job = job
        self.attempt = attempt
        self.on_started = on_started
        self.on_ended = on_ended
        self.heard_at: Callable[[], float] = lambda: 0.0  # the coordinator, by CLOCK_BOOTTIME
        self.ranks: list[dict[str, Any]] = []  # of the last status: rank, pid, ticks, code
        self._started = False
        self._writer: asyncio.StreamWriter | None = None
        self._waiting: list[dict[str, Any]] = []  # commands from before the connection
        self._stop: dict[str, Any] = {}  # the latest order to end
        self._stopped = asyncio.Event()  # there is one
        self._claim: files.Claim | None = None  # of the shim that is being followed
        self._over = False
        self._enforcer: asyncio.TimerHandle | None = None
        self._stacks: list[asyncio.Future[list[dict[str, Any]]]] = []
        self._log = logging.LoggerAdapter(logger, about(job))

    def __str__(self) -> str:
        return f"job {self.job} attempt {self.attempt}"

    # ---- following

    async def follow(self, order: files.Order | None, descriptors: Descriptors) -> None:
        """Until it is over. Without an order nothing is started: what never began never will."""
        while True:
            try:
                end = await self._follow(order, descriptors)
                break
            except Exception:
                # Out of descriptors, a file that cannot be read now: the job is still there, and
                # nobody else looks after it.
                self._log.exception("%s: following it failed; again in %g s", self, AGAIN_S)
                await asyncio.sleep(AGAIN_S)
        self._over = True
        if self._enforcer is not None:
            self._enforcer.cancel()
        self._fail_stacks()
        self.on_ended(end)

    async def _follow(self, order: files.Order | None, descriptors: Descriptors) -> files.End:
        # A claim comes first: whoever lives and holds it has the last word, whatever its job wrote.
        claim: files.Claim | files.End | None = self.claim()
        if claim is None and (end := self.end()) is not None:
            return end
        if claim is None:
            starts = order is not None and not self._stop
            claim = await self._start(order, descriptors) if order and starts else self._forfeit()
        if isinstance(claim, files.End):
            return claim
        if not claim.boot_id:
            return _never(FORFEITED)
        if claim.boot_id not in (files.boot_id(), UNREADABLE):
            return self.end() or _lost("the machine restarted while it ran")
        while True:
            await self._listen(claim)
            if (end := self.end()) is not None:
                return end
            await self._sweep()  # also when the job has spoiled its record

    async def _start(self, order: files.Order, descriptors: Descriptors) -> files.Claim | files.End:
        """Start a shim and wait for a claim: its own, or another's that was faster."""
        process = await self._launched(order, descriptors)
        if isinstance(process, str):
            return self._forfeit(process)
        reaped = asyncio.ensure_future(ended(process))
        _keep(reaped)
        for _ in range(int(CLAIM_WITHIN_S / 0.005)):
            if (claim := self.claim()) is not None:
                return claim
            if reaped.done():
                # A late shim of an earlier daemon may still come: the claim is taken first.
                found = self._forfeit()
                return _stillborn(reaped.result()) if isinstance(found, files.End) else found
            await asyncio.sleep(0.005)
        return self._forfeit(f"its shim did not begin within {CLAIM_WITHIN_S:g} s")

    async def _launched(
        self, order: files.Order, descriptors: Descriptors
    ) -> subprocess.Popen[bytes] | str:
        """A shim, or the reason why there never will be one."""
        said = ""
        while not self._stop:
            try:
                self.runs.make(self.job, self.attempt)
                # It may be long since this share was ordered: who starts it late is alone for long.
                order = replace(order, heard_at=self.heard_at())
                self.runs.write(self.job, self.attempt, files.ORDER, files.to_bytes(order))
                with descriptors() as fds:
                    return self._launch(fds)
            except OSError as problem:
                if not may_pass(problem):
                    return f"it cannot be started: {problem.strerror} ({problem.filename})"
                # The machine's fault, not the job's: it waits until there is room again.
                reason = f"cannot be started now: {problem.strerror}"
                if reason != said:
                    self._log.warning("%s %s; trying again every %g s", self, reason, AGAIN_S)
                said = reason
                await self.while_wanted(asyncio.sleep(AGAIN_S))
        return FORFEITED

    def _launch(self, fds: dict[str, int]) -> subprocess.Popen[bytes]:
        options = [text for name, fd in fds.items() for text in (f"--{name}", str(fd))]
        directory = str(self.runs.attempt(self.job, self.attempt))
        return spawn(
            shim_command(directory, *options),
            self.runs.user,
            env=HELPER_ENV,
            fds=list(fds.values()),
        )

    def _forfeit(self, reason: str = FORFEITED) -> files.Claim | files.End:
        """Take the claim ourselves, so that no late shim can begin what is over; or find who has
        it."""
        try:
            try:
                self.runs.make(self.job, self.attempt)
            except OSError as problem:
                if not self._goes_without_room(problem):
                    raise
            directory = self.runs.open_attempt(self.job, self.attempt)
        except FileNotFoundError:
            return _never(reason)  # without a directory nobody can claim it
        try:
            self._take(directory)
        except FileExistsError:
            return self.claim() or _never(reason)
        finally:
            os.close(directory)
        return _never(reason)

    def _take(self, directory: int) -> None:
        """Claim it for nobody; FileExistsError when somebody has it."""
        name = f".forfeit.{os.getpid()}"
        mode = self.runs.user.file_mode
        try:
            claim = files.Claim(0, 0, "", "")
            files.write_durably(directory, name, files.to_bytes(claim), mode)
            os.link(name, files.CLAIM, src_dir_fd=directory, dst_dir_fd=directory)
        except OSError as problem:
            if not self._goes_without_room(problem):
                raise
            # An empty file takes no room, and keeps shims away as well as any other.
            flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC
            os.close(os.open(files.CLAIM, flags, mode, dir_fd=directory))

    def _goes_without_room(self, problem: OSError) -> bool:
        """Whoever stops it need not wait for a disk that is full. Who wants it to run does: what
        cannot be written here kept its shim from beginning, and both are tried again."""
        return self.was_stopped and may_pass(problem)

    async def _listen(self, claim: files.Claim) -> None:
        """Hear what the shim says until its process has ended."""
        try:
            pidfd = os.pidfd_open(claim.pid)
        except (ValueError, OverflowError):
            return
        except OSError as problem:
            if problem.errno in NO_PROCESS:
                return
            raise
        try:
            if files.start_ticks(claim.pid) != claim.ticks:
                return  # another process has that number now
            self._claim = claim
            gone = asyncio.ensure_future(readable(pidfd))
            try:
                while not gone.done():
                    talk = asyncio.ensure_future(self._talk(claim))
                    await asyncio.wait({talk, gone}, return_when=asyncio.FIRST_COMPLETED)
                    if not talk.done():
                        await asyncio.wait({talk}, timeout=1.0)  # its last words
                        talk.cancel()
                    await asyncio.gather(talk, return_exceptions=True)
                    if not gone.done():
                        await asyncio.wait({gone}, timeout=0.2)
            finally:
                gone.cancel()
        finally:
            self._claim = None
            os.close(pidfd)

    async def _talk(self, claim: files.Claim) -> None:
        """One connection, until it ends."""
        if claim.format != files.FORMAT:
            if not self._started:
                text = "%s: its shim is of format %d, this daemon knows %d; it goes on unheard"
                self._log.warning(text, self, claim.format, files.FORMAT)
                self._started = True
                self.on_started()
            return
        try:
            reader, writer = await self._connect(os.path.basename(claim.socket))
        except OSError:
            return
        self._writer = writer
        try:
            # A stop is said on every connection: the last one may have broken under it.
            for command in [*self._waiting, *([self._stop] if self._stop else [])]:
                writer.write(_line(command))
            self._waiting.clear()
            while line := await reader.readline():
                self._heard(json.loads(line))
        except ConnectionError:
            pass  # it ended with something of ours unread
        except (OSError, ValueError, RecursionError, AttributeError, TypeError) as problem:
            self._log.warning("%s: its shim said something odd: %s", self, problem)
        finally:
            self._writer = None
            writer.close()

    async def _connect(self, name: str) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
        # Through the directory's descriptor: the path itself may be longer than a socket's may be.
        directory = self.runs.open_attempt(self.job, self.attempt)
        try:
            path = f"/proc/self/fd/{directory}/{name}"
            return await asyncio.open_unix_connection(path, limit=files.LINE_BYTES)
        finally:
            os.close(directory)

    def _heard(self, said: dict[str, Any]) -> None:
        if said.get("event") == "status":
            before = self.ranks
            self.ranks = [rank for rank in said.get("ranks", []) if isinstance(rank, dict)]
            self._tell_changes(before)
            if said.get("phase") != "preparing" and not self._started and _any_pid(self.ranks):
                self._started = True
                self.on_started()
        elif said.get("event") == "stacks":
            for waiting in self._stacks:
                if not waiting.done():
                    waiting.set_result(list(said.get("dumps", [])))
            self._stacks.clear()

    def _tell_changes(self, before: list[dict[str, Any]]) -> None:
        """Birth and death of each rank, in the verbose tier: the job's own story has the rest."""
        if not logger.isEnabledFor(logging.DEBUG):
            return
        known = {str(rank.get("rank")): rank for rank in before}
        for rank in self.ranks:
            old, number = known.get(str(rank.get("rank")), {}), rank.get("rank")
            extra = about(self.job, number if isinstance(number, int) else None)
            for key, text in (("pid", "runs as pid"), ("code", "ended with code")):
                if isinstance(rank.get(key), int) and old.get(key) != rank[key]:
                    logger.debug("%s: rank %s %s %d", self, number, text, rank[key], extra=extra)

    @property
    def over(self) -> set[int]:
        """Ranks that have ended. A status may be of the job's making: what is no number is none."""
        ended = (rank.get("rank") for rank in self.ranks if rank.get("code") is not None)
        return {number for number in ended if isinstance(number, int)}

    async def _sweep(self) -> None:
        """The shim is dead and left no end: its sweeper kills what is left and writes one."""
        self._log.warning("%s: its shim was killed; ending what it left", self)
        directory = str(self.runs.attempt(self.job, self.attempt))
        try:
            process = spawn(shim_command("--sweep", directory), self.runs.user, env=HELPER_ENV)
            code = await ended(process)
        except OSError as problem:
            code = -1
            self._log.warning("%s: the sweeper cannot be started: %s", self, problem)
        if self.end() is None:
            self._log.warning("%s: the sweeper ended with code %d; again in 5 s", self, code)
            await asyncio.sleep(5.0)

    # ---- commands

    def tell(self, command: dict[str, Any]) -> None:
        """Now, or as soon as the shim is connected."""
        if self._writer is not None:
            self._writer.write(_line(command))
        else:
            self._waiting.append(command)

    def heard(self, at: float) -> None:
        """The coordinator was heard then. Nothing is kept for later: it is the time that counts,
        and a shim that does not read must not fill this process with old news."""
        if self._writer is None or self._writer.transport.get_write_buffer_size():
            return
        self._writer.write(_line({"do": "heard", "at": at}))

    def stop(self, grace_s: float, reason: str, moment: bool = False) -> None:
        """The shim ends everything; one that does not is ended itself some time later."""
        self._stop = {"do": "stop", "grace_s": grace_s, "reason": reason, "moment": moment}
        self._stopped.set()
        if self._writer is not None:
            self._writer.write(_line(self._stop))
        self._enforce_in(grace_s + ENFORCE_S)

    def _enforce_in(self, wait_s: float) -> None:
        """Then, or earlier if that was said before: who is told twice has not more time."""
        loop = asyncio.get_running_loop()
        at = loop.time() + wait_s
        if self._enforcer is not None:
            at = min(at, self._enforcer.when())
            self._enforcer.cancel()
        self._enforcer = loop.call_at(at, self._enforce)

    def _enforce(self) -> None:
        """A shim that is stopped, stuck or spoiled by its job: the sweeper does the rest. Again and
        again until it is over: a machine that cannot kill it now may in a moment."""
        self._enforcer = None
        if self._over:
            return
        self._enforce_in(ENFORCE_AGAIN_S)
        claim = self._claim
        if claim is None or files.start_ticks(claim.pid) != claim.ticks:
            return
        self._log.warning("%s: its shim did not end it in time; killing the shim", self)
        try:
            end_process(claim.pid, self.runs.user)
        except OSError as problem:
            text = "%s: its shim cannot be killed now: %s; again in %g s"
            self._log.warning(text, self, problem.strerror, ENFORCE_AGAIN_S)

    @property
    def was_stopped(self) -> bool:
        """Whether this daemon asked for its end."""
        return bool(self._stop)

    async def while_wanted(self, work: Coroutine[Any, Any, None]) -> None:
        """Do it, or as much of it as can be done before this share is to end."""
        doing = asyncio.ensure_future(work)
        stopped = asyncio.ensure_future(self._stopped.wait())
        try:
            await asyncio.wait({doing, stopped}, return_when=asyncio.FIRST_COMPLETED)
        finally:
            doing.cancel()
            stopped.cancel()
            await asyncio.gather(doing, stopped, return_exceptions=True)
        if not doing.cancelled():
            doing.result()

    async def stacks(self) -> list[dict[str, Any]]:
        """The stacks of all ranks; an empty list when the shim does not answer."""
        waiting: asyncio.Future[list[dict[str, Any]]] = asyncio.get_running_loop().create_future()
        self._stacks.append(waiting)
        self.tell({"do": "stacks"})
        try:
            return await asyncio.wait_for(waiting, STACKS_WITHIN_S)
        except TimeoutError:
            return []

    def _fail_stacks(self) -> None:
        for waiting in self._stacks:
            if not waiting.done():
                waiting.set_result([])
        self._stacks.clear()

    # ---- files

    def claim(self) -> files.Claim | None:
        """Who has the attempt. One that cannot be read is a claim all the same: nothing starts."""
        try:
            data = self.runs.read(self.job, self.attempt, files.CLAIM)
            return None if data is None else files.from_bytes(files.Claim, data)
        except (files.Unreadable, HostError):
            return files.Claim(0, 0, UNREADABLE, "")

    def end(self) -> files.End | None:
        """How it ended, if that can be read."""
        try:
            data = self.runs.read(self.job, self.attempt, files.EXIT)
            return None if data is None else files.from_bytes(files.End, data)
        except (files.Unreadable, HostError):
            return None


def _never(reason: str) -> files.End:
    return files.End(0.0, {}, 1, reason=reason)


def _stillborn(code: int) -> files.End:
    """A shim that was killed says nothing about the job; one that gave up does."""
    reason = f"its shim ended with code {code} before it began"
    return _lost(reason) if code < 0 else _never(reason)


def _lost(reason: str) -> files.End:
    return files.End(0.0, {}, 1, reason=reason, lost=True)


def _any_pid(ranks: list[dict[str, Any]]) -> bool:
    return any(rank.get("pid") for rank in ranks)


def _line(command: dict[str, Any]) -> bytes:
    return json.dumps(command).encode() + b"\n"


_reapers: set[asyncio.Future[int]] = set()


def _keep(future: asyncio.Future[int]) -> None:
    """The loop holds tasks weakly: keep the one that reaps a shim until it has."""
    _reapers.add(future)
    future.add_done_callback(_reapers.discard)
