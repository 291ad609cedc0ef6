"""One attempt from its first process to its last.

    preparing ── unpacked, every rank has begun ──► running ── all ended ─────────┐
        │                                              │                          │
        │ stop, SIGTERM, a rank that cannot start      │ stop, SIGTERM, a rank    │
        ▼                                              ▼ or machine that failed   ▼
    stopping ── a moment, TERM, grace, KILL ──► no process left ──► exit.json ► ended

Nothing of the attempt runs when exit.json appears (`family` knows). The moment is for ranks to end
by themselves, with a better last word than "terminated", when one of them has failed. The first of
several nodes keeps the job's Store: when its own ranks have ended well it stays for the others'.
"""

from __future__ import annotations

import contextlib
import errno
import json
import os
import signal
import time
from dataclasses import asdict, dataclass, field, replace

from wiiiiided.shim import (
    access,
    attempt,
    ending,
    environment,
    family,
    files,
    processes,
    stacks,
    trees,
    unpacking,
)
from wiiiiided.shim.control import Control
from wiiiiided.shim.ending import Exit
from wiiiiided.shim.logs import Log
from wiiiiided.shim.loop import Loop, Timer
from wiiiiided.shim.meeting import Meeting
from wiiiiided.shim.ranks import NOT_PREPARED, Program, Rank, make_files
from wiiiiided.shim.solitude import Solitude

TYPE_CHECKING = False
if TYPE_CHECKING:
    import socket
    from collections.abc import Callable
    from typing import Any

MOMENT_S = 2.0  # for ranks to notice by themselves that one of them failed
STRAY_S = 2.0  # for what the ranks left behind, when they ended by themselves
RETRY_S = 1.0  # when exit.json cannot be written
ROOM_AGAIN_S = 5.0  # when the disk has no room for the working directory
FAILED = 1  # of no rank's doing
TERMINATED = 128 + signal.SIGTERM
LEAVING = "the shim was asked to end (SIGTERM), as when the machine shuts down"
MOST_GRACE_S = 86400.0
REASON_CHARS = 1000


@dataclass(frozen=True)
class Given:
    """What a supervisor is given."""

    order: files.Order
    path: str  # of the attempt, without links in it
    directory: int
    archive: int | None
    secrets: int | None
    descriptors: tuple[int, int]  # limits of a rank; the shim's own is higher


@dataclass(frozen=True)
class Failure:
    """Why the attempt fails: the first cause, whatever follows from it."""

    code: int
    reason: str
    rank: Rank | None = None
    at: float = field(default_factory=time.time)


class Supervisor:
    """Runs the attempt; `run` returns when exit.json is written."""

    def __init__(self, given: Given, listener: socket.socket) -> None:
        self._given, self._order = given, given.order
        self._loop = Loop()
        first, mode = given.order.first_rank, given.order.file_mode
        self._ranks = [
            Rank(n, Log(given.directory, f"rank-{n}.log", mode, given.order.log_bytes))
            for n in range(first, first + given.order.workers)
        ]
        self._phase = "preparing"
        self._changed = False
        self._failure: Failure | None = None
        self._stopped = ""  # why it was asked to stop
        self._codes: dict[str, int] = {}  # of ranks, in the order of their ends
        self._termed = False
        self._left_alone = False  # all ranks have ended by themselves
        self._hosting = False  # … and ranks of other nodes use the Store
        self._next_step: Timer | None = None  # to TERM, or to KILL
        self._next_at = 0.0
        self._unpacker: tuple[int, int] | None = None  # pid, pipe
        self._meeting: Meeting | None = None
        self._solitude: Solitude | None = None
        self._was_alone = False  # that is why it was stopped
        self._asking: list[Callable[[bytes], None]] = []  # for stacks, while they are collected
        self._family = family.Family(self._loop, self._ended, self._finish)
        uids = {0, os.geteuid(), given.order.listener_uid}
        self._control = Control(self._loop, listener, uids, self._status, self._obey)
        self._loop.on_signal(signal.SIGTERM, self._leave)
        self._loop.every_round(self._tell)

    def run(self) -> None:
        signal.pthread_sigmask(signal.SIG_UNBLOCK, (signal.SIGTERM,))
        files.keep_room(self._given.directory, self._order.file_mode)
        try:
            if self._order.alone_s > 0:
                self._solitude = Solitude(
                    self._loop, self._order.alone_s, self._stop_alone, self._order.heard_at
                )
            if unpacking.needed(self._order):
                self._unpacker = unpacking.start(self._order, self._given.archive)
            else:
                self._start()
        except OSError as problem:
            self._fail(Failure(NOT_PREPARED, f"the job cannot be started: {problem.strerror}"))
        self._loop.run()

    # ---- the beginning

    def _start(self) -> None:
        if self._given.archive is not None:
            os.close(self._given.archive)
        self._meeting = self._arrange()
        if self._meeting is None:
            return
        secrets = self._given.secrets
        # The shim's descriptor, not one that is passed on: it is there for every process of the
        # job, however it was started, and no number can be mistaken for another file's.
        place = "" if secrets is None else f"/proc/{os.getpid()}/fd/{secrets}"
        for rank in self._ranks:
            env = environment.for_rank(
                self._order, rank.number, self._given.path, self._meeting.port, place
            )
            if not self._make_files(rank):
                del env["WIIIIIDE_STATS"], env["WIIIIIDE_STACKS"]
            argv, work, limits = self._order.argv, self._order.work, self._given.descriptors
            try:
                rank.start(self._loop, Program(argv, env, work, limits), self._reported)
            except OSError as problem:
                sentence = f"rank {rank.number} cannot be started: {problem.strerror}"
                self._fail(Failure(NOT_PREPARED, sentence, rank))
                return
            self._family.watch(rank.pid or 0)
            self._changed = True
        names = [name for rank in self._ranks for name in rank.pipes]
        attempt.write_pipes(self._given.directory, names)

    def _arrange(self) -> Meeting | None:
        note = self._ranks[0].log.note
        try:
            return Meeting(
                self._loop,
                self._order,
                self._given.directory,
                note,
                on_last_guest=self._finish,
                on_silence=self._lose,
            )
        except files.Unreadable as problem:
            self._fail(Failure(NOT_PREPARED, f"the job cannot be started: {problem}"))
            return None

    def _make_files(self, rank: Rank) -> bool:
        try:
            make_files(self._given.directory, rank.number, self._order.file_mode)
        except OSError as problem:  # a full disk: the rank can do without
            rank.log.note(f"no stats and no stacks of this rank: {problem.strerror}")
            return False
        return True

    def _reported(self, rank: Rank, code: int, sentence: str) -> None:
        """A rank runs its program, or cannot."""
        if code:
            self._fail(Failure(code, sentence, rank))
        elif self._phase == "preparing" and all(rank.started for rank in self._ranks):
            self._enter("running")

    def _unpacked(self, code: int) -> None:
        assert self._unpacker is not None
        (_, pipe), self._unpacker = self._unpacker, None
        sentence = os.read(pipe, unpacking.SENTENCE_BYTES).decode("utf-8", "replace")
        os.close(pipe)
        if code == unpacking.NO_ROOM and self._phase == "preparing":
            self._wait_for_room(sentence)
        elif code:
            how = f"unpacking the working directory ended with code {code}"
            self._fail(Failure(NOT_PREPARED, sentence or how))
        elif self._phase == "preparing":
            try:
                self._start()
            except OSError as problem:
                self._fail(Failure(NOT_PREPARED, f"the job cannot be started: {problem.strerror}"))

    _noted = ""  # the sentence about a full disk that its log has

    def _wait_for_room(self, sentence: str) -> None:
        """A full disk is the machine's fault, not the job's."""
        if sentence != self._noted:
            self._noted = sentence
            self._ranks[0].log.note(f"{sentence}; trying again every {ROOM_AGAIN_S:g} s")
        self._loop.after(ROOM_AGAIN_S, self._unpack_again)

    def _unpack_again(self) -> None:
        if self._phase != "preparing":
            self._kill()  # it was stopped, and there is no child whose end would say so
            return
        try:
            self._unpacker = unpacking.start(self._order, self._given.archive)
        except OSError as problem:
            self._fail(Failure(NOT_PREPARED, f"the job cannot be started: {problem.strerror}"))

    # ---- the end

    def _ended(self, batch: list[tuple[int, Exit]]) -> None:
        """Processes have ended: ranks, orphans, the unpacker."""
        ranks = {rank.pid: rank for rank in self._ranks}
        failed = []
        for pid, end in batch:
            if self._unpacker is not None and pid == self._unpacker[0]:
                self._unpacked(end.code)
            elif rank := ranks.get(pid):
                rank.settle(self._loop, self._reported)
                self._note_end(rank, end)
                if end.code:
                    failed.append(rank)
        if failed and self._failure is None and not self._stopped:
            self._failed(failed[0])
        if self._all_ended and not self._termed and not self._left_alone:
            self._left_alone = True
            self._do_in(STRAY_S, self._kill_strays)

    def _note_end(self, rank: Rank, end: Exit) -> None:
        rank.end = end
        if rank.started:
            self._codes[str(rank.number)] = end.code
        self._changed = True

    @property
    def _all_ended(self) -> bool:
        return all(rank.code is not None for rank in self._ranks)

    def _failed(self, rank: Rank) -> None:
        assert rank.end is not None
        self._failure = Failure(rank.end.code, ending.reason(rank.number, rank.end), rank)
        self._enter("stopping")
        self._do_in(MOMENT_S, lambda: self._terminate(self._order.grace_s))

    def _lose(self, sentence: str) -> None:
        """A machine of this job is gone, and ranks wait for those on it: they would for long."""
        if self._phase == "running" and not self._all_ended:
            self._failure = Failure(FAILED, sentence)
            self._enter("stopping")
            self._terminate(self._order.grace_s)

    def _fail(self, failure: Failure) -> None:
        """It cannot begin: all or none."""
        if self._failure is None and not self._stopped:
            self._failure = failure
        self._enter("stopping")
        self._kill()

    def _stop(self, grace_s: float, reason: str, moment: bool = False) -> None:
        if self._phase == "ended":
            return
        if self._failure is None and not self._all_ended and not self._stopped:
            self._stopped = reason
        self._enter("stopping")
        if self._hosting:
            self._finish()
        elif grace_s <= 0:
            self._kill()
        elif not self._termed and moment:
            self._do_in(MOMENT_S, lambda: self._terminate(grace_s))
        elif not self._termed:
            self._terminate(grace_s)
        elif time.monotonic() + grace_s < self._next_at:
            self._do_in(grace_s, self._kill)

    def _stop_alone(self, overdue_s: float) -> None:
        """The share may run elsewhere when its grace is over, whether or not this machine slept
        through a part of it."""
        reason = f"alone for {self._order.alone_s:g} s (policy.stop_alone)"
        grace_s = max(0.0, self._order.grace_s - overdue_s)
        self._solitude = Solitude(self._loop, grace_s, lambda _: self._kill())
        self._stop(grace_s, reason)
        self._was_alone = self._stopped == reason

    def _leave(self) -> None:
        """SIGTERM, as everybody gets it when the machine shuts down: a rank that died of it a
        moment ago has not failed, and one that ended well has not done its work."""
        if self._failure is not None and self._failure.code == TERMINATED:
            self._failure, self._stopped = None, LEAVING
        self._stop(self._order.grace_s, LEAVING)

    def _terminate(self, grace_s: float) -> None:
        self._termed = True
        self._do_in(grace_s, self._kill)
        self._family.terminate()

    def _kill_strays(self) -> None:
        strays = self._family.members()
        for stray in strays[:10]:
            what = f"pid {stray.pid}, {processes.command(stray.pid)}"
            self._ranks[0].log.note(f"killed, as the ranks left it behind: {what}")
        self._kill()

    def _kill(self) -> None:
        self._termed = True
        if self._next_step is not None:
            self._next_step.cancel()
        self._family.kill()

    def _do_in(self, seconds: float, action: Callable[[], None]) -> None:
        """The next step towards the end; it replaces the one that was planned."""
        if self._next_step is not None:
            self._next_step.cancel()
        self._next_at = time.monotonic() + seconds
        self._next_step = self._loop.after(seconds, action)

    def _finish(self) -> None:
        """No process is left. Unless that is the beginning, or ranks elsewhere still need the
        Store, it is the end."""
        if self._phase == "ended" or (self._phase != "stopping" and not self._all_ended):
            return
        if family.has_children():
            return  # a guest left before the ranks here did
        if self._next_step is not None:
            self._next_step.cancel()
        self._hosting = self._phase == "running" and bool(self._meeting and self._meeting.guests)
        if self._hosting:
            return
        for rank in self._ranks:
            rank.finish_log()
        for those in (self._meeting, self._solitude):
            if those is not None:
                those.close()
        self._write(self._verdict())

    def _verdict(self) -> files.End:
        now, failure = time.time(), self._failure
        if failure is not None:
            return replace(self._failed_end(now, failure), failed_at=failure.at)
        code = next(filter(None, self._codes.values()), 0)
        if self._stopped:
            code = code if self._codes else TERMINATED
            why, lost = self._stopped, self._was_alone
            reason = f"stopped: {why}"
            return files.End(now, self._codes, code, reason=reason, stopped=why, lost=lost)
        return files.End(now, self._codes, code)

    def _failed_end(self, now: float, failure: Failure) -> files.End:
        rank = failure.rank
        number = None if rank is None else rank.number
        if rank is None and failure.code == FAILED:
            return files.End(now, self._codes, failure.code, reason=failure.reason)
        if rank is None or not rank.started:  # then none has, as far as the job goes
            return files.End(now, {}, failure.code, number, failure.reason)
        last = list(rank.log.last_errors)
        error = ending.error(self._given.directory, rank.number, last)
        reason = failure.reason
        if why := access.denied(ending.exception(error)):
            reason = f"{reason}; {why}"
        return files.End(now, self._codes, failure.code, number, reason, error=error)

    def _write(self, end: files.End) -> None:
        """Write exit.json, as long as it takes, and leave."""
        try:
            files.write_end(self._given.directory, end, self._order.file_mode)
        except OSError as problem:
            if problem.errno == errno.EISDIR:  # the job's doing; nothing of it runs any more
                with contextlib.suppress(trees.NotRemoved):
                    trees.remove(f"{self._given.path}/{files.EXIT}")
            if not attempt.is_gone(self._given.directory):
                self._enter("ended")
                self._loop.after(RETRY_S, lambda: self._write(end))
                return
        self._enter("ended")
        self._tell()
        self._control.close()
        self._loop.stop()

    # ---- the control socket

    def _enter(self, phase: str) -> None:
        self._phase = phase
        self._changed = True

    def _status(self) -> bytes:
        ranks = [asdict(rank.state) for rank in self._ranks]
        status = {"event": "status", "format": files.FORMAT, "phase": self._phase, "ranks": ranks}
        return json.dumps(status).encode() + b"\n"

    def _tell(self) -> None:
        if self._changed:
            self._changed = False
            self._control.tell(self._status())

    def _obey(self, command: dict[str, Any], answer: Callable[[bytes], None]) -> None:
        match command.get("do"):
            case "stop":
                reason = str(command.get("reason", ""))[:REASON_CHARS] or "no reason was given"
                grace_s = self._grace(command.get("grace_s"))
                self._stop(grace_s, reason, command.get("moment") is True)
            case "signal":
                self._signal(str(command.get("signal")))
            case "stacks":
                self._ask_for_stacks(answer)
            case "heard" if self._solitude is not None:
                self._solitude.heard(command.get("at"))

    def _grace(self, given: object) -> float:
        if isinstance(given, int | float) and given == given:  # a NaN is not itself
            return min(float(given), MOST_GRACE_S)
        return self._order.grace_s

    def _signal(self, name: str) -> None:
        number = signal.Signals.__members__.get(name)
        for rank in self._ranks:
            if number is None or rank.pid is None or rank.ticks is None or rank.code is not None:
                continue
            if processes.catches(rank.pid, number):
                processes.send(processes.Process(rank.pid, os.getpid(), rank.ticks), number)

    def _ask_for_stacks(self, answer: Callable[[bytes], None]) -> None:
        self._asking.append(answer)
        if len(self._asking) == 1:
            states = [rank.state for rank in self._ranks]
            stacks.Round(self._loop, self._given.path, states, self._answer_stacks)

    def _answer_stacks(self, line: bytes) -> None:
        asking, self._asking = self._asking, []
        for answer in asking:
            answer(line)
