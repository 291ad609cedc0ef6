"""Carrying out the control plane's actions on this node.

    PrepareWorkers the archive is fetched, the interpreter examined, checkpoints are placed
    StartWorkers   a shim, with its order, the archive and the secrets by descriptor
    StopWorkers    passed to the shim, which ends every process and verifies that
    SignalWorkers, DumpStacks   passed to the shim
    RunNotify      the job's own command, as the jobs' user

The I/O around `lifecycle.step`: orders, files and shims become its events, and its actions are
performed here. Only `_take` changes an allocation.

    perform, reconcile, find ─┐                           ┌─► a task that prepares
    a preparation that ended ─┼─► _take ─► step ─► _do ───┼─► a shim to follow, to stop
    a shim that began, ended ─┘                           └─► report, to the control plane

All that a daemon needs of an allocation after a crash is in the job's directory (job.json), so that
it can look after it without its coordinator.
"""

from __future__ import annotations

import asyncio
import shutil
import subprocess
from collections.abc import Callable, Coroutine, Iterable, Mapping
from typing import Any, assert_never

import msgspec
from msgspec.structs import replace

from wiiiiided.backend.shm import stats
from wiiiiided.cluster.allocation.archive_cache import Archives
from wiiiiided.cluster.allocation.cancellations import Cancellations, Cancelled
from wiiiiided.cluster.allocation.checkpoints import Bring, Placer
from wiiiiided.cluster.allocation.job_dirs import JobDirs
from wiiiiided.cluster.allocation.launcher import Launcher, encode_job
from wiiiiided.cluster.allocation.lifecycle import (
    UNKNOWN,
    Allocation,
    AllocationAction,
    AllocationEvent,
    CancelPreparation,
    Follow,
    NumberReused,
    PreparationDone,
    PreparationFailed,
    Prepare,
    PrepareOrdered,
    ReportEvent,
    RunningFound,
    ShimEnded,
    ShimStarted,
    StartOrdered,
    StopOrdered,
    StopShim,
    UnknownFound,
    is_another,
    step,
)
from wiiiiided.cluster.allocation.notify_hook import NotifyHook
from wiiiiided.cluster.allocation.prepare import (
    AGAIN_S,
    LATER_S,
    CoordinatorAway,
    InterpreterVersions,
    NodeShortage,
    Preparer,
    Unprepared,
    log_wait,
)
from wiiiiided.cluster.allocation.shim_order import HostContext
from wiiiiided.cluster.allocation.shim_process import Shim, shim_command
from wiiiiided.cluster.allocation.spawn import CANNOT_RUN, HELPER_ENV, ended, may_pass, spawn
from wiiiiided.cluster.control import actions as a
from wiiiiided.cluster.control import events as e
from wiiiiided.cluster.control.job import AttemptKey, Hung, Job, Starting, Stopping
from wiiiiided.cluster.peering.messages import Assignment
from wiiiiided.cluster.shim import protocol
from wiiiiided.cluster.shim.control_lines import SignalCommand
from wiiiiided.cluster.system.settings import Settings
from wiiiiided.domain.json_decoder import json_decoder
from wiiiiided.errors import HostError
from wiiiiided.log import about, logger
from wiiiiided.text import plain

LOOK_EVERY_S = 0.05
ROOM_AGAIN_S = 5.0
HEARD_S = 5.0  # between two messages to the shims of when the coordinator was heard

_job = json_decoder(Job)


class Workers:
    """The allocations of this node. Events for the control plane go to `report`; without `bring`
    this machine is alone, and no other has checkpoints for it."""

    def __init__(
        self,
        job_dirs: JobDirs,
        archives: Archives,
        here: HostContext,
        settings: Callable[[], Settings],
        preparer: Preparer,
        *,
        bring: Bring | None,
        report: Callable[[e.AnyEvent], None],
        clock: Callable[[], float],
    ) -> None:
        self.job_dirs = job_dirs
        self.archives = archives
        self.here = here
        self.settings = settings
        self.preparer = preparer
        self.clock = clock
        self.shims: dict[AttemptKey, Shim] = {}  # those of `_allocations` that are followed
        self.cancellations = Cancellations(job_dirs)
        self._report = report
        self._placer = Placer(job_dirs, archives, here, settings, bring)
        self._launcher = Launcher(job_dirs, archives, here, settings, preparer)
        self._allocations: dict[AttemptKey, Allocation] = {}
        self._preparing: dict[AttemptKey, asyncio.Task[None]] = {}
        self._heard_at = 0.0  # when the coordinator was heard last, by CLOCK_BOOTTIME; 0: not yet
        self._tasks: set[asyncio.Task[None]] = set()
        self._notify_hook = NotifyHook(here)

    @property
    def following(self) -> dict[AttemptKey, Job]:
        """The jobs whose shims are followed, as the coordinator last sent them."""
        return {key: one.shim.job for key, one in self._allocations.items() if one.shim is not None}

    # ---- around the state machine

    def _take(self, key: AttemptKey, event: AllocationEvent, *, ordered: bool = False) -> None:
        """Apply an event to an allocation, and perform the actions. `ordered`: the control plane is
        the caller and in the middle of a step, so reports to it wait until that has returned."""
        before = self._allocations.get(key) or Allocation(key, self.here.node)
        after, actions = step(before, event, self.clock())
        # Stored before anything is performed: a report may come back at once as the next order.
        if after.stage == "absent":
            self._allocations.pop(key, None)
        else:
            self._allocations[key] = after
        if after.shim is None:
            self.shims.pop(key, None)
        for action in actions:
            self._do(key, action, ordered)

    def _do(self, key: AttemptKey, action: AllocationAction, ordered: bool) -> None:
        match action:
            case Prepare(job):
                task = self._preparing[key] = self._spawn_task(self._prepare(key, job))
                task.add_done_callback(lambda task: self._forget_preparing(key, task))
            case CancelPreparation():
                if preparing := self._preparing.get(key):
                    preparing.cancel()
            case Follow(given, starts):
                self._follow(key, given, starts)
            case StopShim(grace_s, reason, ranks_end_first):
                self.shims[key].stop(grace_s, reason, ranks_end_first)
            case ReportEvent(event) if ordered:
                asyncio.get_running_loop().call_soon(self._report, event)
            case ReportEvent(event):
                self._report(event)
            case _:
                assert_never(action)

    def _forget_preparing(self, key: AttemptKey, task: asyncio.Task[None]) -> None:
        if self._preparing.get(key) is task:  # not the task of another job with the same number
            del self._preparing[key]

    # ---- actions of the control plane

    def perform(self, action: a.AnyAction, given: Assignment) -> None:
        """Perform an action, or begin to; never blocks, never raises for the job's fault."""
        job = given.job
        match action:
            case a.PrepareWorkers():
                self.prepare(given, action.attempt)
            case a.StartWorkers():
                self.start(given, action.attempt)
            case a.StopWorkers():
                self.stop(
                    job, action.attempt, action.grace_s, action.reason, action.ranks_end_first
                )
            case a.SignalWorkers():
                if shim := self.shims.get((action.id, action.attempt)):
                    shim.tell(SignalCommand(action.signal))
            case a.DumpStacks():
                self._spawn_task(self._dump(action.id, action.attempt))
            case a.RunNotify():
                self._spawn_task(self._notify_hook.run(job, action))
            case a.Tell():
                pass  # the store and the log have it

    def prepare(self, given: Assignment, attempt: int) -> None:
        self._take((given.job.id, attempt), PrepareOrdered(given.job), ordered=True)

    def start(self, given: Assignment, attempt: int) -> None:
        self._take((given.job.id, attempt), StartOrdered(given), ordered=True)

    def stop(
        self, job: Job, attempt: int, grace_s: float, reason: str, ranks_end_first: bool = False
    ) -> None:
        """End an allocation at any stage; one that never began never will."""
        event = StopOrdered(job, grace_s, reason, ranks_end_first)
        self._take((job.id, attempt), event, ordered=True)

    def cancel(self, job: Job, by: str, now: bool) -> None:
        """A person here cancels a job while the coordinator is away, which learns of it later.
        OSError: no file has it; the allocation ends all the same."""
        assert job.attempt is not None
        number, at = job.attempt.number, self.clock()
        try:
            one = Cancelled(job.id, number, job.submitted_at, by, now, at)
            self.cancellations.keep(one)
        finally:
            self._end_cancelled((job.id, number))

    def was_cancelled(self, key: AttemptKey) -> bool:
        one = self.cancellations.untold.get(key[0])
        return one is not None and one.attempt == key[1]

    def is_here(self, key: AttemptKey) -> bool:
        """Whether ranks of that attempt run here, or are about to."""
        return key in self._allocations

    def _end_cancelled(self, key: AttemptKey) -> None:
        job, one = self.following.get(key) or self.kept(key[0]), self.cancellations.untold[key[0]]
        if job is not None and self.is_here(key):
            grace_s = 0.0 if one.now else job.spec.policy.grace_s
            self.stop(job, key[1], grace_s, f"cancelled by {one.by}")

    def adopt(self, given: Assignment) -> None:
        """Take over the allocation of a job's latest attempt as it is found here, and do what the
        job's phase demands."""
        job, attempt = given.job, given.job.attempt
        assert attempt is not None
        if self.here.node not in attempt.live:
            return  # its end is recorded: nothing that files here say can change that
        key = (job.id, attempt.number)
        match job.phase:
            case Starting() if attempt.ordered:
                self.start(given, attempt.number)
            case Starting():
                self.prepare(given, attempt.number)
            case Stopping(reason=reason, now=now):
                # A stop begins to follow what is not followed yet, if only to take its claim. A
                # followed allocation learns first how the queue sees the job.
                if self._allocations.get(key, Allocation(key, "")).is_of(job):
                    self._take(key, RunningFound(job), ordered=True)
                self.stop(job, attempt.number, 0.0 if now else job.spec.policy.grace_s, reason)
            case _:
                self._take(key, RunningFound(job), ordered=True)
                if isinstance(job.phase, Hung):  # the daemon may have died before it had them
                    self._spawn_task(self._dump(job.id, attempt.number))

    # ---- this node's allocations against the queue's

    def find(self) -> int:
        """Follow every shim that may run according to this node's files; how many. An order without
        a claim is of a shim that has not begun: the coordinator decides whether it shall."""
        self._find((protocol.ORDER, protocol.CLAIM), set())
        # Cancelled here while the coordinator was away; the daemon may have died before the stop.
        self.cancellations.read()
        for key in [key for key in self.shims if self.was_cancelled(key)]:
            self._end_cancelled(key)
        return len(self.shims)

    def _find(
        self, marks: tuple[str, ...], but: set[AttemptKey], latest: Mapping[int, int] | None = None
    ) -> None:
        for number in self.job_dirs.numbers():
            # One look for a directory instead of a file read for each job there ever was.
            if latest and number in latest and not self.job_dirs.began(number, latest[number] + 1):
                continue
            job = self.kept(number)
            if job is None or job.attempt is None:
                continue
            key = (number, job.attempt.number)
            if key in but or key in self.shims or self.here.node not in job.attempt.nodes:
                continue
            # With an end it needs no looking after: the queue asks for that, if it lacks it.
            found = all(self._has(key, mark) for mark in marks)
            if found and not self._has(key, protocol.EXIT):
                self._take(key, RunningFound(job), ordered=True)

    def reconcile(
        self,
        given: Iterable[Assignment],
        others: Iterable[AttemptKey] = (),
        reason: str = UNKNOWN,
        grace: bool = False,
        latest: Mapping[int, int] | None = None,
    ) -> None:
        """Bring this node's allocations in line with the queue's. Those that the queue does not
        know end, for that `reason`, without a grace, as they may have begun again elsewhere;
        `others` are attempts that it knows and of which no more can be decoded. `latest`, the
        latest attempt of every job of the queue, spares reading files: only later ones can be
        unknown."""
        known = set(others)
        for one in given:
            if one.job.attempt is not None:
                known.add((one.job.id, one.job.attempt.number))
                self._adopt(one)
        self._find((protocol.ORDER,), known, latest)  # also shims that have not claimed yet
        for key in self._allocations.keys() - known:
            self._end(key, reason, grace)

    def decline(self, number: int, attempt: int, why: str) -> None:
        """Refuse an attempt that this node cannot decode: one that never began never will."""
        text = f"{self.here.node} declines it: {why}"
        logger.error("job %d: %s", number, plain(text), extra=about(number))
        self.never((number, attempt), text)

    def never(self, key: AttemptKey, why: str) -> None:
        """Report the end of an allocation that cannot begin, unless it began before."""
        if key not in self.shims and not self._has(key, protocol.ORDER):
            event = e.WorkersEnded(self.clock(), *key, self.here.node, 1, plain(why))
            self._do(key, ReportEvent(event), ordered=True)

    def _adopt(self, given: Assignment) -> None:
        """Adopt an allocation. A defect with one job keeps neither the daemon from starting nor the
        link to the coordinator from working."""
        try:
            self.adopt(given)
        except Exception as problem:
            job = given.job
            logger.exception("a defect while adopting job %d", job.id, extra=about(job.id))
            assert job.attempt is not None
            self.never((job.id, job.attempt.number), f"a defect kept it from starting: {problem!r}")

    def _end(self, key: AttemptKey, reason: str, grace: bool) -> None:
        """End an allocation that the queue does not know."""
        job = self.following.get(key)
        grace_s = job.spec.policy.grace_s if grace and job is not None else 0.0
        self._take(key, UnknownFound(reason, grace_s), ordered=True)

    def kept(self, number: int) -> Job | None:
        """A job that this node got an allocation of, as it was then."""
        try:
            data = self.job_dirs.kept(number)
            return None if data is None else _job(data)
        except (OSError, HostError, msgspec.DecodeError):
            return None

    def archives_kept(self) -> set[str]:
        """Archives of jobs that have files here, or will have."""
        jobs = (self.kept(number) for number in self.job_dirs.numbers())
        return {job.archive for job in (*jobs, *self.following.values()) if job is not None}

    def heard(self, at: float) -> None:
        """Tell the shims when the coordinator was heard, by CLOCK_BOOTTIME: without word of it for
        too long they end."""
        self._heard_at = at
        for shim in self.shims.values():
            shim.heard(at)

    def _has(self, key: AttemptKey, name: str) -> bool:
        try:
            return self.job_dirs.read(*key, name) is not None
        except (OSError, HostError):
            return True  # a file is there that cannot be read: following the shim finds out more

    # ---- preparing

    async def _prepare(self, key: AttemptKey, job: Job) -> None:
        self._take(key, await self._preparation(key, job))

    async def _preparation(self, key: AttemptKey, job: Job) -> PreparationDone | PreparationFailed:
        try:
            with self.archives.pinned(job.archive):
                found, note = await self._at_last(key, job)
            return PreparationDone(found.python, found.torch, found.wiiiiided, note)
        except Unprepared as problem:
            return PreparationFailed(problem.code, str(problem), idle=problem.code == CANNOT_RUN)
        except OSError as problem:
            return PreparationFailed(1, f"its directory cannot be made: {problem.strerror}")
        except Exception as problem:  # nothing else would report that it cannot start
            logger.exception("a defect while preparing job %d", job.id, extra=about(job.id))
            return PreparationFailed(1, f"it cannot be prepared: {problem}")

    async def _at_last(self, key: AttemptKey, job: Job) -> tuple[InterpreterVersions, str]:
        """Get everything that the allocation needs, however long this machine cannot (a full disk):
        that is not charged to the job. A stop cancels it."""
        said = ""
        while True:
            try:
                await self._make_room(key, job)
                found = await self._looked_at(job)
                note = await self._placed(key, job)
                # Last: it says whose files these are, which _make_room has to know until then.
                self.job_dirs.keep(job.id, encode_job(job))
                return found, note
            except NodeShortage as problem:
                said = log_wait(job, str(problem), said)
            except OSError as problem:
                if not may_pass(problem):
                    raise
                text = f"it cannot be prepared on {self.here.node} now: {problem.strerror}"
                said = log_wait(job, text, said)
            await asyncio.sleep(LATER_S)

    async def _looked_at(self, job: Job) -> InterpreterVersions:
        while True:
            try:
                return await self.preparer.prepare(job)
            except CoordinatorAway:
                await asyncio.sleep(AGAIN_S)

    async def _placed(self, key: AttemptKey, job: Job) -> str:
        """Place the checkpoints that all nodes of the job get; which files were moved aside."""
        if job.attempt is None or not job.attempt.checkpoints_from:
            return ""
        await self._until_alone(key, job)
        while True:
            try:
                return await self._placer.place(job, key[1])
            except CoordinatorAway:
                await asyncio.sleep(AGAIN_S)

    async def _until_alone(self, key: AttemptKey, job: Job) -> None:
        """Wait until no earlier attempt of the job runs here, nor another job that had its number.
        Both are possible: a person declared this machine lost, and it was not; the coordinator
        was restored from an old copy, and gives numbers anew."""
        while before := [other for other in self.shims if self._is_before(other, key, job)]:
            for other in before:
                event = NumberReused() if other == key else UnknownFound(UNKNOWN, grace_s=0.0)
                self._take(other, event)
            # Looked at again: what has been told to end is followed to its end elsewhere.
            await asyncio.sleep(LOOK_EVERY_S)

    def _is_before(self, other: AttemptKey, key: AttemptKey, job: Job) -> bool:
        mine = self._allocations[other]
        return other[0] == key[0] and (other < key or not mine.is_of(job))

    async def _make_room(self, key: AttemptKey, job: Job) -> None:
        """Remove files of attempts that the queue has forgotten; set those of another job aside, as
        they may be wanted."""
        kept = self.kept(job.id)
        if kept is None or not is_another(kept, job):
            return
        if kept.submitted_at != job.submitted_at:
            text = "job %d: files of another job of that number are kept in %s"
            logger.warning(text, job.id, self.job_dirs.set_aside(job.id), extra=about(job.id))
        else:
            text = "job %d: files of attempts that the queue does not remember are removed"
            logger.warning(text, job.id, extra=about(job.id))
            await self.remove(job.id, key[1])

    # ---- following

    def _follow(self, key: AttemptKey, given: Assignment, starts: bool) -> None:
        # In one place, which is emptied as soon as the shim has them: a daemon runs for months.
        secrets = dict(given.secrets)

        def started() -> None:
            secrets.clear()  # the ranks have them
            self._take(key, ShimStarted())

        shim = self.shims[key] = Shim(self.job_dirs, *key, started, lambda: self._heard_at)
        self._spawn_task(self._run(shim, replace(given, secrets={}), secrets, starts))

    async def _run(
        self, shim: Shim, given: Assignment, secrets: dict[str, str], starts: bool
    ) -> None:
        """Make a shim's order, and follow the shim to its end."""
        key, job = (shim.job, shim.attempt), given.job
        order, missing = None, ""
        # Kept as long as it may be wanted: a start that fails is tried again, for hours if need be.
        with self.archives.pinned(job.archive):
            if starts:
                order, missing = await self._ordered(key, given, shim)
            end = await shim.follow(
                order, lambda: self._launcher.descriptors(given, shim.attempt, secrets)
            )
        self._take(key, ShimEnded(end, missing, self._has_worked(job, shim.attempt)))

    async def _ordered(
        self, key: AttemptKey, given: Assignment, shim: Shim
    ) -> tuple[protocol.LaunchOrder | None, str]:
        """The shim's order, once everything it needs is here; else None and why there never will be
        one. Nothing else looks after this allocation: an error is waited out, or is its end."""
        said, job = "", given.job
        while not shim.was_stopped:
            try:
                await self._have_room(key, job, shim)
                return await self._launcher.order(given, shim)
            except Exception as problem:
                if not may_pass(problem):
                    logger.exception("a defect while starting job %d", job.id, extra=about(job.id))
                    return None, plain(f"a defect kept it from being started: {problem!r}")
                why = getattr(problem, "strerror", None) or problem
                said = log_wait(job, f"it cannot be started on {self.here.node} now: {why}", said)
            await shim.while_wanted(asyncio.sleep(LATER_S))
        return None, said

    async def _have_room(self, key: AttemptKey, job: Job, shim: Shim) -> None:
        await self._until_alone(key, job)
        while not shim.was_stopped:
            try:
                await self._make_room(key, job)
                return
            except OSError as problem:
                text = "job %d: the files of an earlier job of that number cannot be removed: %s"
                logger.warning(text, job.id, problem, extra=about(job.id))
                await asyncio.sleep(ROOM_AGAIN_S)

    def _has_worked(self, job: Job, attempt: int) -> bool:
        """Whether the stats page of a rank here has a finished operation, or a step."""
        parts = job.attempt.layout.allocations if job.attempt is not None else ()
        ranks = (rank for part in parts if part.node == self.here.node for rank in part.ranks)
        for rank in ranks:
            try:
                page = self.job_dirs.read(job.id, attempt, f"stats-{rank}") or b""
            except (OSError, HostError):
                return True  # unknown: then the attempt is not taken for one that did nothing
            if stats.has_worked(page):
                return True
        return False

    async def _dump(self, number: int, attempt: int) -> None:
        # Said also where nothing runs any more: a hung attempt ends when every node has spoken.
        if shim := self.shims.get((number, attempt)):
            await shim.stacks()
        self._report(e.StacksDumped(self.clock(), number, attempt, self.here.node))

    # ---- helpers that run as the jobs' user

    async def remove(self, number: int, attempts_from: int = 0) -> None:
        """Delete a job's directory, or its attempts from that number on: a helper deletes what the
        job wrote, as the jobs' user, and this process the rest."""
        directory = self.job_dirs.job(number)
        if not directory.exists():
            return
        inside = sorted(path for path in directory.iterdir() if path.is_dir())
        if attempts_from:
            numbered = [path for path in inside if path.name.isdecimal()]
            inside = [path for path in numbered if int(path.name) >= attempts_from]
        command = shim_command("--remove", *map(str, inside))
        await ended(spawn(command, self.here.user, env=HELPER_ENV))
        for path in inside if attempts_from else [directory]:
            if path.exists():
                shutil.rmtree(path)

    def tar(
        self, number: int, globs: tuple[str, ...], names: bool = False
    ) -> subprocess.Popen[bytes]:
        """A process that writes the files matching `globs` as a tar to its stdout; `names`: without
        their content."""
        command = shim_command(
            "--names" if names else "--tar", str(self.job_dirs.work(number)), *globs
        )
        return spawn(command, self.here.user, env=HELPER_ENV, stdout=subprocess.PIPE)

    def _spawn_task(self, work: Coroutine[Any, Any, None]) -> asyncio.Task[None]:
        task = asyncio.get_running_loop().create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._finished)
        return task

    def _finished(self, task: asyncio.Task[None]) -> None:
        self._tasks.discard(task)
        if not task.cancelled() and (problem := task.exception()) is not None:
            logger.error("a defect while carrying out an action", exc_info=problem)

    async def close(self) -> None:
        """Stop following; the jobs go on, since shims are no children of these tasks."""
        for task in list(self._tasks):
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
