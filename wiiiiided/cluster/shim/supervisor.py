"""One attempt from its first process to its last: the I/O around `phases`.

    order ─► unpack ─► start ranks ─► drain their output ─► TERM … KILL ─► exit.json

No process of the attempt is left when exit.json appears (`descendants`). When a rank has failed,
the others have a moment to end by themselves, with a better error than "terminated". The first of
several nodes has the job's Store: when its own ranks have ended well it stays for the others'.
"""

from __future__ import annotations

import contextlib
import errno
import os
import signal
import time
from dataclasses import dataclass, replace

from wiiiiided.cluster.shim import (
    access,
    attempt,
    descendants,
    environment,
    exit_reason,
    file_trees,
    phases,
    processes,
    protocol,
    stacks,
    workdir,
)
from wiiiiided.cluster.shim.control import Control
from wiiiiided.cluster.shim.control_lines import (
    HeardCommand,
    ShimStatus,
    SignalCommand,
    StacksCommand,
    StopCommand,
)
from wiiiiided.cluster.shim.exit_reason import Exit
from wiiiiided.cluster.shim.logs import RankLogWriter
from wiiiiided.cluster.shim.loop import ShimLoop, Timer
from wiiiiided.cluster.shim.orphan_timeout import OrphanTimeout
from wiiiiided.cluster.shim.phases import Failure, StopRequest
from wiiiiided.cluster.shim.ranks import NOT_PREPARED, Program, Rank, make_files
from wiiiiided.cluster.shim.store_route import StoreRoute

TYPE_CHECKING = False
if TYPE_CHECKING:
    import socket
    from collections.abc import Callable

    from wiiiiided.cluster.shim.control_lines import ShimCommand

MOMENT_S = 2.0  # for ranks to notice by themselves that one of them failed
STRAY_S = 2.0  # for the ranks' other processes, when all ranks ended by themselves
RETRY_S = 1.0  # when exit.json cannot be written
ROOM_AGAIN_S = 5.0  # when the disk has no room for the working directory
FAILED = 1  # the code of a failure that no rank caused
LEAVING = StopRequest("the shim was asked to end (SIGTERM), as when the machine shuts down")
MOST_GRACE_S = 86400.0
REASON_CHARS = 1000


@dataclass(frozen=True)
class ShimArguments:
    """The arguments of a supervisor."""

    order: protocol.LaunchOrder
    path: str  # of the attempt's directory, without links in it
    directory: int
    archive: int | None
    secrets: int | None
    descriptors: tuple[int, int]  # a rank's limits; the shim's own is higher


class Supervisor:
    """Runs the attempt; `run` returns when exit.json is written."""

    def __init__(self, given: ShimArguments, listener: socket.socket) -> None:
        self._given, self._order = given, given.order
        self._loop = ShimLoop()
        first, mode = given.order.first_rank, given.order.file_mode
        self._ranks = [
            Rank(n, RankLogWriter(given.directory, f"rank-{n}.log", mode, given.order.log_bytes))
            for n in range(first, first + given.order.workers)
        ]
        self._phase: phases.Phase = phases.RanksPreparing()
        self._changed = False  # since the last status line
        self._codes: dict[str, int] = {}  # of ranks, in the order of their ends
        self._next_step: Timer | None = None  # SIGTERM, or SIGKILL
        self._unpacker: tuple[int, int] | None = None  # pid, pipe
        self._store_route: StoreRoute | None = None
        self._orphan_timeout: OrphanTimeout | None = None
        self._asking: list[Callable[[bytes], None]] = []  # get the stacks that are being collected
        self._descendants = descendants.Family(self._loop, self._ended, self._finish)
        uids = {0, os.geteuid(), given.order.listener_uid}
        self._control = Control(self._loop, listener, uids, self._status, self._obey)
        self._loop.on_signal(signal.SIGTERM, self._leave)
        self._loop.every_round(self._tell)

    def run(self) -> None:
        signal.pthread_sigmask(signal.SIG_UNBLOCK, (signal.SIGTERM,))
        protocol.keep_room(self._given.directory, self._order.file_mode)
        try:
            if self._order.alone_s > 0:
                self._orphan_timeout = OrphanTimeout(
                    self._loop, self._order.alone_s, self._stop_alone, self._order.heard_at
                )
            if workdir.needed(self._order):
                self._unpacker = workdir.start(self._order, self._given.archive)
            else:
                self._start()
        except OSError as problem:
            self._fail(NOT_PREPARED, f"the job cannot be started: {problem.strerror}")
        self._loop.run()

    # ---- the beginning

    def _start(self) -> None:
        if self._given.archive is not None:
            os.close(self._given.archive)
        self._store_route = self._arrange()
        if self._store_route is None:
            return
        secrets = self._given.secrets
        # The shim's descriptor, not an inherited one: every process of the job can open it, however
        # it was started, and no number can be mistaken for another file's.
        place = "" if secrets is None else f"/proc/{os.getpid()}/fd/{secrets}"
        for rank in self._ranks:
            env = environment.for_rank(
                self._order, rank.number, self._given.path, self._store_route.port, place
            )
            if not self._make_files(rank):
                del env["WIIIIIDE_STATS"], env["WIIIIIDE_STACKS"]
            argv, work, limits = self._order.argv, self._order.work, self._given.descriptors
            try:
                rank.start(self._loop, Program(argv, env, work, limits), self._reported)
            except OSError as problem:
                sentence = f"rank {rank.number} cannot be started: {problem.strerror}"
                self._fail(NOT_PREPARED, sentence, rank)
                return
            self._descendants.watch(rank.pid or 0)
            self._changed = True
        names = [name for rank in self._ranks for name in rank.pipes]
        attempt.write_pipes(self._given.directory, names)

    def _arrange(self) -> StoreRoute | None:
        note = self._ranks[0].log.note
        try:
            return StoreRoute(
                self._loop,
                self._order,
                self._given.directory,
                note,
                on_last_remote=self._finish,
                on_silence=self._lose,
            )
        except protocol.UnreadableFile as problem:
            self._fail(NOT_PREPARED, f"the job cannot be started: {problem}")
            return None

    def _make_files(self, rank: Rank) -> bool:
        try:
            make_files(self._given.directory, rank.number, self._order.file_mode)
        except OSError as problem:  # a full disk: the rank runs without them
            rank.log.note(f"no stats and no stacks of this rank: {problem.strerror}")
            return False
        return True

    def _reported(self, rank: Rank, code: int, sentence: str) -> None:
        """A rank has begun its program, or cannot."""
        if code:
            self._fail(code, sentence, rank)
        elif self._is_preparing and all(rank.started for rank in self._ranks):
            self._enter(phases.RanksRunning())

    def _unpacked(self, code: int) -> None:
        assert self._unpacker is not None
        (_, pipe), self._unpacker = self._unpacker, None
        sentence = os.read(pipe, workdir.SENTENCE_BYTES).decode("utf-8", "replace")
        os.close(pipe)
        if code == workdir.NO_ROOM and isinstance(self._phase, phases.RanksPreparing):
            self._wait_for_room(self._phase, sentence)
        elif code:
            how = f"unpacking the working directory ended with code {code}"
            self._fail(NOT_PREPARED, sentence or how)
        elif self._is_preparing:
            try:
                self._start()
            except OSError as problem:
                self._fail(NOT_PREPARED, f"the job cannot be started: {problem.strerror}")

    def _wait_for_room(self, phase: phases.RanksPreparing, sentence: str) -> None:
        """A full disk is the machine's fault, not the job's."""
        if sentence != phase.noted:
            self._enter(phases.RanksPreparing(noted=sentence))
            self._ranks[0].log.note(f"{sentence}; trying again every {ROOM_AGAIN_S:g} s")
        self._loop.after(ROOM_AGAIN_S, self._unpack_again)

    def _unpack_again(self) -> None:
        if not self._is_preparing:
            self._kill()  # it was stopped, and there is no child whose end would lead on
            return
        try:
            self._unpacker = workdir.start(self._order, self._given.archive)
        except OSError as problem:
            self._fail(NOT_PREPARED, f"the job cannot be started: {problem.strerror}")

    # ---- the end

    def _ended(self, batch: list[tuple[int, Exit]]) -> None:
        """Processes have ended: ranks, orphans, the unpacker."""
        ranks = {rank.pid: rank for rank in self._ranks}
        failed = []
        for pid, end in batch:
            if self._unpacker is not None and pid == self._unpacker[0]:
                self._unpacked(end.code)
            elif rank := ranks.get(pid):
                rank.read_start_report(self._loop, self._reported)
                self._note_end(rank, end)
                if end.code:
                    failed.append(rank)
        if failed:
            self._failed(failed[0])
        # In this order: when all end at once because one has failed, that one is the cause.
        if self._all_ended and self._enter(phases.all_ranks_ended(self._phase)):
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
        sentence = exit_reason.reason(rank.number, rank.end)
        failure = Failure(rank.end.code, sentence, time.time(), rank)
        if self._enter(phases.rank_failed(self._phase, failure)):
            self._do_in(MOMENT_S, lambda: self._terminate(self._order.grace_s))

    def _lose(self, sentence: str) -> None:
        """A machine of this job is gone, and ranks here would wait long for its ranks."""
        if isinstance(self._phase, phases.RanksRunning):
            self._enter(phases.RanksStopping(Failure(FAILED, sentence, time.time())))
            self._terminate(self._order.grace_s)

    def _fail(self, code: int, sentence: str, rank: Rank | None = None) -> None:
        """The attempt cannot begin: all ranks or none, so those that run are killed at once."""
        self._enter(phases.rank_failed(self._phase, Failure(code, sentence, time.time(), rank)))
        self._kill()

    def _stop(self, grace_s: float, cause: StopRequest, ranks_end_first: bool = False) -> None:
        before = self._phase
        self._enter(phases.stop_asked(before, cause))
        if isinstance(before, phases.StoreHosting):
            self._finish()  # no process is left whose end would lead there
        elif not isinstance(self._phase, phases.RanksStopping):
            return  # it is over
        elif grace_s <= 0:
            self._kill()
        elif self._phase.progress != "termed":
            if ranks_end_first:
                self._do_in(MOMENT_S, lambda: self._terminate(grace_s))
            else:
                self._terminate(grace_s)
        elif self._next_step is not None and time.monotonic() + grace_s < self._next_step.at:
            self._do_in(grace_s, self._kill)  # a second stop can shorten the grace, not prolong it

    def _stop_alone(self, overdue_s: float) -> None:
        """Its ranks may run elsewhere when the grace is over, whether or not this machine slept
        through a part of it."""
        reason = f"alone for {self._order.alone_s:g} s (policy.stop_alone)"
        grace_s = max(0.0, self._order.grace_s - overdue_s)
        self._orphan_timeout = OrphanTimeout(self._loop, grace_s, lambda _: self._kill())
        self._stop(grace_s, StopRequest(reason, alone=True))

    def _leave(self) -> None:
        """SIGTERM, which every process gets when the machine shuts down: a rank that died of it a
        moment ago has not failed, and one that ended with 0 has not done its work."""
        self._enter(phases.excused(self._phase, LEAVING))
        self._stop(self._order.grace_s, LEAVING)

    def _terminate(self, grace_s: float) -> None:
        self._enter(phases.terminated(self._phase))
        self._do_in(grace_s, self._kill)
        self._descendants.terminate()

    def _kill_strays(self) -> None:
        strays = self._descendants.members()
        for stray in strays[:10]:
            what = f"pid {stray.pid}, {processes.command(stray.pid)}"
            self._ranks[0].log.note(f"killed, as the ranks left it behind: {what}")
        self._kill()

    def _kill(self) -> None:
        self._enter(phases.terminated(self._phase))
        if self._next_step is not None:
            self._next_step.cancel()
        self._descendants.kill()

    def _do_in(self, seconds: float, action: Callable[[], None]) -> None:
        """The next step towards the end; it replaces the one that was planned."""
        if self._next_step is not None:
            self._next_step.cancel()
        self._next_step = self._loop.after(seconds, action)

    def _finish(self) -> None:
        """End, when no process is left, unless the attempt is only beginning or ranks elsewhere
        still need the Store."""
        if isinstance(
            self._phase, phases.RanksPreparing | phases.RanksRunning | phases.AttemptOver
        ):
            return
        if descendants.has_children():
            return  # the last remote client left before the ranks here ended
        if self._next_step is not None:
            self._next_step.cancel()
        if not isinstance(self._phase, phases.RanksStopping) and self._has_remote_clients:
            self._enter(phases.StoreHosting())
            return
        for rank in self._ranks:
            rank.finish_log()
        for those in (self._store_route, self._orphan_timeout):
            if those is not None:
                those.close()
        self._write(self._verdict())

    @property
    def _has_remote_clients(self) -> bool:
        return self._store_route is not None and self._store_route.remote_clients > 0

    def _verdict(self) -> protocol.AttemptEnd:
        now = time.time()
        cause = self._phase.cause if isinstance(self._phase, phases.RanksStopping) else None
        if isinstance(cause, Failure):
            return replace(self._failed_end(now, cause), failed_at=cause.at)
        code = next(filter(None, self._codes.values()), 0)
        if cause is None:
            return protocol.AttemptEnd(now, self._codes, code)
        return protocol.AttemptEnd(
            *(now, self._codes, code if self._codes else phases.TERMINATED),
            reason=f"stopped: {cause.reason}",
            stopped=cause.reason,
            lost=cause.alone,
        )

    def _failed_end(self, now: float, failure: Failure) -> protocol.AttemptEnd:
        rank = failure.rank
        number = None if rank is None else rank.number
        if rank is None and failure.code == FAILED:
            return protocol.AttemptEnd(now, self._codes, failure.code, reason=failure.reason)
        if rank is None or not rank.started:  # then the job has not begun
            return protocol.AttemptEnd(now, {}, failure.code, number, failure.reason)
        last = list(rank.log.last_errors)
        error = exit_reason.error(self._given.directory, rank.number, last)
        reason = failure.reason
        if why := access.denied(exit_reason.exception(error)):
            reason = f"{reason}; {why}"
        return protocol.AttemptEnd(now, self._codes, failure.code, number, reason, error=error)

    def _write(self, end: protocol.AttemptEnd) -> None:
        """Write exit.json, however long that takes, and stop the loop."""
        try:
            protocol.write_end(self._given.directory, end, self._order.file_mode)
        except OSError as problem:
            if problem.errno == errno.EISDIR:  # the job made a directory of that name; it has ended
                with contextlib.suppress(file_trees.NotRemoved):
                    file_trees.remove(f"{self._given.path}/{protocol.EXIT}")
            if not attempt.is_gone(self._given.directory):
                self._enter(phases.AttemptOver())
                self._loop.after(RETRY_S, lambda: self._write(end))
                return
        self._enter(phases.AttemptOver())
        self._tell()
        self._control.close()
        self._loop.stop()

    # ---- the control socket

    def _enter(self, phase: phases.Phase) -> bool:
        """Change the phase; whether it is another than before."""
        self._changed = self._changed or phase.word != self._phase.word
        before, self._phase = self._phase, phase
        return phase != before

    @property
    def _is_preparing(self) -> bool:
        return isinstance(self._phase, phases.RanksPreparing)

    def _status(self) -> bytes:
        return ShimStatus(self._phase.word, tuple(rank.state for rank in self._ranks)).line()

    def _tell(self) -> None:
        if self._changed:
            self._changed = False
            self._control.tell(self._status())

    def _obey(self, command: ShimCommand, answer: Callable[[bytes], None]) -> None:
        match command:
            case StopCommand(given_s, reason, ranks_end_first):
                grace_s = self._order.grace_s if given_s is None else min(given_s, MOST_GRACE_S)
                reason = reason[:REASON_CHARS] or "no reason was given"
                self._stop(grace_s, StopRequest(reason), ranks_end_first)
            case SignalCommand(name):
                self._signal(name)
            case StacksCommand():
                self._ask_for_stacks(answer)
            case HeardCommand(at) if self._orphan_timeout is not None:
                self._orphan_timeout.heard(at)

    def _signal(self, name: str) -> None:
        number = signal.Signals.__members__.get(name)
        for rank in self._ranks:
            if number is None or rank.pid is None or rank.ticks is None or rank.code is not None:
                continue
            if processes.catches(rank.pid, number):
                processes.send(processes.ProcessEntry(rank.pid, os.getpid(), rank.ticks), number)

    def _ask_for_stacks(self, answer: Callable[[bytes], None]) -> None:
        self._asking.append(answer)
        if len(self._asking) == 1:
            states = [rank.state for rank in self._ranks]
            stacks.Round(self._loop, self._given.path, states, self._answer_stacks)

    def _answer_stacks(self, line: bytes) -> None:
        asking, self._asking = self._asking, []
        for answer in asking:
            answer(line)
