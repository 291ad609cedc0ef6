"""One attempt on this node, from its order to its end: start a shim, or find the one that runs.

    no claim        start one. If another has just claimed, ours leaves and the other is followed
    claim, alive    connect to its socket; it reports what happens      (a restarted daemon adopts)
    claim, ended    read exit.json                                     (it ended meanwhile)
    claim, dead     cleanup: kill what is left, verify, write exit.json  (the shim was killed)
    other boot      nothing of it can run                              (the machine restarted)

A claim is pid + start time + boot id: a reused pid is never taken for the shim. An end is reported
only when nothing of the attempt runs any more. The files are the job's to write: of an attempt that
an earlier daemon began, whatever is left is killed before its end is believed.
"""

from __future__ import annotations

import asyncio
import contextlib
import errno
import logging
import os
import subprocess
import sys
from collections.abc import Callable, Coroutine
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

from wiiiiided.cluster.allocation.job_dirs import JobDirs
from wiiiiided.cluster.allocation.lifecycle import FORFEITED
from wiiiiided.cluster.allocation.spawn import (
    HELPER_ENV,
    end_process,
    ended,
    may_pass,
    readable,
    spawn,
)
from wiiiiided.cluster.shim import protocol
from wiiiiided.cluster.shim.control_lines import (
    HeardCommand,
    RankStacks,
    RankState,
    ShimStatus,
    StacksCommand,
    StacksReport,
    StopCommand,
    read_report,
)
from wiiiiided.errors import HostError
from wiiiiided.log import about, logger

if TYPE_CHECKING:
    from wiiiiided.cluster.shim.control_lines import ShimCommand

RUN = str(Path(protocol.__file__).with_name("run.py"))
CLAIM_WITHIN_S = 60.0  # a loaded machine may take long to start a process; this long is a defect
STACKS_WITHIN_S = 10.0
AGAIN_S = 3.0  # after a failure of this machine that may pass
ENFORCE_S = 30.0  # beyond its grace: a shim that has not ended everything by then never will
ENFORCE_AGAIN_S = 5.0
NO_PROCESS = {errno.ESRCH, errno.EINVAL, errno.ENOENT}  # 0, -1 and a thread's id are no pid
Descriptors = Callable[[], contextlib.AbstractContextManager[dict[str, int]]]
Result = TypeVar("Result")
UNREADABLE = "unreadable"  # stands for the boot id of a claim that a job has overwritten


def shim_command(*arguments: str) -> list[str]:
    """The shim's program: isolated from the user's Python, without site-packages."""
    return [sys.executable, "-I", "-S", RUN, *arguments]


class Shim:
    """Follows one attempt. `on_started` is called once at most; `heard_at` is when the coordinator
    was heard last, by CLOCK_BOOTTIME."""

    def __init__(
        self,
        job_dirs: JobDirs,
        job: int,
        attempt: int,
        on_started: Callable[[], None],
        heard_at: Callable[[], float],
    ) -> None:
        self.job_dirs = job_dirs
        self.job = job
        self.attempt = attempt
        self._on_started = on_started
        self._heard_at = heard_at
        self.ranks: tuple[RankState, ...] = ()  # of the last status
        self._started = False
        self._writer: asyncio.StreamWriter | None = None
        self._waiting: list[ShimCommand] = []  # commands from before the connection
        self._stop: StopCommand | None = None  # the latest order to end
        self._stopped = asyncio.Event()  # set with it
        self._claim: protocol.ShimClaim | None = None  # of the shim that is being followed
        self._over = False
        self._enforcer: asyncio.TimerHandle | None = None
        self._stacks: list[asyncio.Future[tuple[RankStacks, ...]]] = []
        self._log = logging.LoggerAdapter(logger, about(job))

    def __str__(self) -> str:
        return f"job {self.job} attempt {self.attempt}"

    # ---- following

    async def follow(
        self, order: protocol.LaunchOrder | None, descriptors: Descriptors
    ) -> protocol.AttemptEnd:
        """Follow the attempt until its end, and return that. Without an order nothing is started:
        an attempt that never began never will."""
        adopted = self.job_dirs.began(self.job, self.attempt)
        while True:
            try:
                end = await self._follow(order, descriptors)
                if adopted:
                    await self._kill_rest()
                break
            except Exception:
                adopted = True  # the files are read anew, and the job may have changed them
                # Out of descriptors, a file that cannot be read now: the job is still there, and
                # nothing else looks after it.
                self._log.exception("%s: following it failed; again in %g s", self, AGAIN_S)
                await asyncio.sleep(AGAIN_S)
        self._over = True
        if self._enforcer is not None:
            self._enforcer.cancel()
        self._answer_stacks(())
        return end

    async def _follow(
        self, order: protocol.LaunchOrder | None, descriptors: Descriptors
    ) -> protocol.AttemptEnd:
        # The claim first: while the shim that has it lives, no end that a job wrote counts.
        claim: protocol.ShimClaim | protocol.AttemptEnd | None = self.claim()
        if claim is None and (end := self.end()) is not None:
            return end
        if claim is None:
            starts = order is not None and not self._stop
            claim = await self._start(order, descriptors) if order and starts else self._forfeit()
        if isinstance(claim, protocol.AttemptEnd):
            return claim
        if not claim.boot_id:
            return _never(FORFEITED)
        if claim.boot_id not in (protocol.boot_id(), UNREADABLE):
            return self.end() or _lost("the machine restarted while it ran")
        while True:
            await self._listen(claim)
            if (end := self.end()) is not None:
                return end
            await self._clean_up()  # also where the job has overwritten exit.json

    async def _start(
        self, order: protocol.LaunchOrder, descriptors: Descriptors
    ) -> protocol.ShimClaim | protocol.AttemptEnd:
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
                # A late shim of an earlier daemon may still claim: this daemon does so first.
                found = self._forfeit()
                return (
                    _stillborn(reaped.result()) if isinstance(found, protocol.AttemptEnd) else found
                )
            await asyncio.sleep(0.005)
        return self._forfeit(f"its shim did not begin within {CLAIM_WITHIN_S:g} s")

    async def _launched(
        self, order: protocol.LaunchOrder, descriptors: Descriptors
    ) -> subprocess.Popen[bytes] | str:
        """A shim, or the reason why there never will be one."""
        said = ""
        while not self._stop:
            try:
                self.job_dirs.make(self.job, self.attempt)
                # The order may be old: a shim that starts late counts its time alone from then.
                order = replace(order, heard_at=self._heard_at())
                self.job_dirs.write(
                    self.job, self.attempt, protocol.ORDER, protocol.to_bytes(order)
                )
                with descriptors() as fds:
                    return self._launch(fds)
            except OSError as problem:
                if not may_pass(problem):
                    return f"it cannot be started: {problem.strerror} ({problem.filename})"
                # The machine's fault, not the job's: the allocation waits.
                reason = f"cannot be started now: {problem.strerror}"
                if reason != said:
                    self._log.warning("%s %s; trying again every %g s", self, reason, AGAIN_S)
                said = reason
                await self.while_wanted(asyncio.sleep(AGAIN_S))
        return FORFEITED

    def _launch(self, fds: dict[str, int]) -> subprocess.Popen[bytes]:
        options = [text for name, fd in fds.items() for text in (f"--{name}", str(fd))]
        directory = str(self.job_dirs.attempt(self.job, self.attempt))
        return spawn(
            shim_command(directory, *options),
            self.job_dirs.user,
            env=HELPER_ENV,
            fds=list(fds.values()),
        )

    def _forfeit(self, reason: str = FORFEITED) -> protocol.ShimClaim | protocol.AttemptEnd:
        """Take the claim, so that no late shim begins an attempt that is over; or return the claim
        of the shim that has it."""
        try:
            try:
                self.job_dirs.make(self.job, self.attempt)
            except OSError as problem:
                if not self._goes_without_room(problem):
                    raise
            directory = self.job_dirs.open_attempt(self.job, self.attempt)
        except FileNotFoundError:
            return _never(reason)  # without a directory no shim can claim it
        try:
            self._take(directory)
        except FileExistsError:
            return self.claim() or _never(reason)
        finally:
            os.close(directory)
        return _never(reason)

    def _take(self, directory: int) -> None:
        """Claim the attempt for no process; FileExistsError when a shim has it."""
        name = f".forfeit.{os.getpid()}"
        mode = self.job_dirs.user.file_mode
        try:
            claim = protocol.ShimClaim(0, 0, "", "")
            protocol.write_durably(directory, name, protocol.to_bytes(claim), mode)
            os.link(name, protocol.CLAIM, src_dir_fd=directory, dst_dir_fd=directory)
        except OSError as problem:
            if not self._goes_without_room(problem):
                raise
            # An empty file takes no room, and keeps shims away as well as any other.
            flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC
            os.close(os.open(protocol.CLAIM, flags, mode, dir_fd=directory))

    def _goes_without_room(self, problem: OSError) -> bool:
        """A stop need not wait for room on a full disk. A start does: the shim could not begin
        without that room either, and both are tried again."""
        return self.was_stopped and may_pass(problem)

    async def _listen(self, claim: protocol.ShimClaim) -> None:
        """Read what the shim reports until its process has ended."""
        try:
            pidfd = os.pidfd_open(claim.pid)
        except (ValueError, OverflowError):
            return
        except OSError as problem:
            if problem.errno in NO_PROCESS:
                return
            raise
        try:
            if protocol.start_ticks(claim.pid) != claim.ticks:
                return  # another process has that pid now
            self._claim = claim
            gone = asyncio.ensure_future(readable(pidfd))
            try:
                while not gone.done():
                    connection = asyncio.ensure_future(self._serve_connection(claim))
                    await asyncio.wait({connection, gone}, return_when=asyncio.FIRST_COMPLETED)
                    if not connection.done():
                        await asyncio.wait({connection}, timeout=1.0)  # for its last lines
                        connection.cancel()
                    await asyncio.gather(connection, return_exceptions=True)
                    if not gone.done():
                        await asyncio.wait({gone}, timeout=0.2)
            finally:
                gone.cancel()
        finally:
            self._claim = None
            os.close(pidfd)

    async def _serve_connection(self, claim: protocol.ShimClaim) -> None:
        """One connection to the shim, until it ends."""
        if claim.format != protocol.FORMAT:
            if not self._started:
                text = "%s: its shim is of format %d, this daemon knows %d; it goes on unheard"
                self._log.warning(text, self, claim.format, protocol.FORMAT)
                self._started = True
                self._on_started()
            return
        try:
            reader, writer = await self._connect(os.path.basename(claim.socket))
        except OSError:
            return
        self._writer = writer
        try:
            # A stop is repeated on every connection: the last one may have broken before.
            for command in [*self._waiting, *([self._stop] if self._stop else [])]:
                writer.write(command.line())
            self._waiting.clear()
            while line := await reader.readline():
                self._heard(read_report(line))
        except ConnectionError:
            pass  # the shim ended and left a command unread
        except (OSError, ValueError) as problem:
            self._log.warning("%s: its shim said something odd: %s", self, problem)
        finally:
            self._writer = None
            writer.close()

    async def _connect(self, name: str) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
        # Through the directory's descriptor: the full path may be too long for a socket's.
        directory = self.job_dirs.open_attempt(self.job, self.attempt)
        try:
            path = f"/proc/self/fd/{directory}/{name}"
            return await asyncio.open_unix_connection(path, limit=protocol.LINE_BYTES)
        finally:
            os.close(directory)

    def _heard(self, said: ShimStatus | StacksReport | None) -> None:
        match said:
            case ShimStatus(phase, ranks):
                before, self.ranks = self.ranks, ranks
                self._tell_changes(before)
                begun = phase != "preparing" and any(rank.pid for rank in ranks)
                if begun and not self._started:
                    self._started = True
                    self._on_started()
            case StacksReport(dumps):
                self._answer_stacks(dumps)

    def _tell_changes(self, before: tuple[RankState, ...]) -> None:
        """Log each rank's start and end at debug level: the job's history has the rest."""
        if not logger.isEnabledFor(logging.DEBUG):
            return
        known = {rank.rank: rank for rank in before}
        for rank in self.ranks:
            number, old = rank.rank, known.get(rank.rank, RankState(rank.rank))
            for text, now, was in (
                ("runs as pid", rank.pid, old.pid),
                ("ended with code", rank.code, old.code),
            ):
                if now is not None and now != was:
                    extra = about(self.job, number)
                    logger.debug("%s: rank %d %s %d", self, number, text, now, extra=extra)

    @property
    def over(self) -> set[int]:
        """Ranks that have ended."""
        return {rank.rank for rank in self.ranks if rank.code is not None}

    async def _clean_up(self) -> None:
        """The shim is dead and left no exit.json: a cleanup kills its processes and writes one."""
        self._log.warning("%s: its shim was killed; ending what it left", self)
        code = await self._helper("--cleanup")
        if self.end() is None:
            self._log.warning("%s: its cleanup ended with code %d; again in 5 s", self, code)
            await asyncio.sleep(5.0)

    async def _kill_rest(self) -> None:
        """Kill what still runs of the attempt: files that say it is over may be forged."""
        while code := await self._helper("--kill"):
            self._log.warning("%s: what is left cannot be ended, code %d; again in 5 s", self, code)
            await asyncio.sleep(5.0)

    async def _helper(self, what: str) -> int:
        """The exit code of a helper for this attempt; -1: it cannot be started."""
        directory = str(self.job_dirs.attempt(self.job, self.attempt))
        try:
            process = spawn(shim_command(what, directory), self.job_dirs.user, env=HELPER_ENV)
        except OSError as problem:
            self._log.warning("%s: its helper cannot be started: %s", self, problem)
            return -1
        return await ended(process)

    # ---- commands

    def tell(self, command: ShimCommand) -> None:
        """Send a command now, or as soon as the shim is connected."""
        if self._writer is not None:
            self._writer.write(command.line())
        else:
            self._waiting.append(command)

    def heard(self, at: float) -> None:
        """Tell the shim when the coordinator was heard. Not kept for later: the next time replaces
        it, and a shim that does not read must not fill this process with old ones."""
        if self._writer is None or self._writer.transport.get_write_buffer_size():
            return
        self._writer.write(HeardCommand(at).line())

    def stop(self, grace_s: float, reason: str, ranks_end_first: bool = False) -> None:
        """Tell the shim to end everything; a shim that does not is killed some time later."""
        self._stop = StopCommand(grace_s, reason, ranks_end_first)
        self._stopped.set()
        if self._writer is not None:
            self._writer.write(self._stop.line())
        self._enforce_in(grace_s + ENFORCE_S)

    def _enforce_in(self, wait_s: float) -> None:
        """Kill the shim after that time, or at an earlier one set before: a second stop gives no
        more time."""
        loop = asyncio.get_running_loop()
        at = loop.time() + wait_s
        if self._enforcer is not None:
            at = min(at, self._enforcer.when())
            self._enforcer.cancel()
        self._enforcer = loop.call_at(at, self._enforce)

    def _enforce(self) -> None:
        """Kill a shim that is stopped, stuck or spoiled by its job; the cleanup does the rest.
        Tried until the attempt is over: a machine that cannot kill it now may in a moment."""
        self._enforcer = None
        if self._over:
            return
        self._enforce_in(ENFORCE_AGAIN_S)
        claim = self._claim
        if claim is None or protocol.start_ticks(claim.pid) != claim.ticks:
            return
        self._log.warning("%s: its shim did not end it in time; killing the shim", self)
        try:
            end_process(claim.pid, self.job_dirs.user)
        except OSError as problem:
            text = "%s: its shim cannot be killed now: %s; again in %g s"
            self._log.warning(text, self, problem.strerror, ENFORCE_AGAIN_S)

    @property
    def was_stopped(self) -> bool:
        """Whether this daemon has told it to end."""
        return self._stop is not None

    async def while_wanted(self, work: Coroutine[Any, Any, Result]) -> Result | None:
        """Run `work`, and cancel it when the allocation is told to end: None."""
        doing = asyncio.ensure_future(work)
        stopped = asyncio.ensure_future(self._stopped.wait())
        try:
            await asyncio.wait({doing, stopped}, return_when=asyncio.FIRST_COMPLETED)
        finally:
            doing.cancel()
            stopped.cancel()
            await asyncio.gather(doing, stopped, return_exceptions=True)
        return None if doing.cancelled() else doing.result()

    async def stacks(self) -> tuple[RankStacks, ...]:
        """The stacks of all ranks; none when the shim does not answer."""
        waiting: asyncio.Future[tuple[RankStacks, ...]]
        waiting = asyncio.get_running_loop().create_future()
        self._stacks.append(waiting)
        self.tell(StacksCommand())
        try:
            return await asyncio.wait_for(waiting, STACKS_WITHIN_S)
        except TimeoutError:
            return ()

    def _answer_stacks(self, dumps: tuple[RankStacks, ...]) -> None:
        for waiting in self._stacks:
            if not waiting.done():
                waiting.set_result(dumps)
        self._stacks.clear()

    # ---- files

    def claim(self) -> protocol.ShimClaim | None:
        """The claim of the attempt. One that cannot be read is a claim too: nothing starts."""
        try:
            data = self.job_dirs.read(self.job, self.attempt, protocol.CLAIM)
            return None if data is None else protocol.from_bytes(protocol.ShimClaim, data)
        except (protocol.UnreadableFile, HostError):
            return protocol.ShimClaim(0, 0, UNREADABLE, "")

    def end(self) -> protocol.AttemptEnd | None:
        """How it ended, if that can be read."""
        try:
            data = self.job_dirs.read(self.job, self.attempt, protocol.EXIT)
            return None if data is None else protocol.from_bytes(protocol.AttemptEnd, data)
        except (protocol.UnreadableFile, HostError):
            return None


def _never(reason: str) -> protocol.AttemptEnd:
    return protocol.AttemptEnd(0.0, {}, 1, reason=reason)


def _stillborn(code: int) -> protocol.AttemptEnd:
    """A shim that was killed says nothing about the job; one that gave up does."""
    reason = f"its shim ended with code {code} before it began"
    return _lost(reason) if code < 0 else _never(reason)


def _lost(reason: str) -> protocol.AttemptEnd:
    return protocol.AttemptEnd(0.0, {}, 1, reason=reason, lost=True)


_reapers: set[asyncio.Future[int]] = set()


def _keep(future: asyncio.Future[int]) -> None:
    """The loop holds tasks weakly: keep the one that reaps a shim until it has."""
    _reapers.add(future)
    future.add_done_callback(_reapers.discard)
