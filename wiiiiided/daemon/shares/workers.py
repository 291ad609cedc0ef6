"""Carrying out the control plane's actions on this node.

    PrepareWorkers the archive and the interpreter are looked at, checkpoints placed; nothing starts
    StartWorkers   a shim, with its order, the archive and the secrets by descriptor
    StopWorkers    told to the shim, which ends everything and verifies it
    SignalWorkers, DumpStacks   told to the shim
    RunNotify      the job's own command, as the jobs' user

Each may come twice (after a crash of a daemon, after a link that broke) and then changes nothing;
what is known is reported again. A share goes

    prepare ─► prepared ─► start ─► started ─► ended           each reported; any of them may end it

and is in `following` from its start to its end. What a node must know of it besides is kept in its
job's directory (job.json): a node whose coordinator is away goes on looking after it.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import shutil
import subprocess
from collections.abc import Callable, Coroutine, Iterable, Iterator, Mapping
from typing import Any

import msgspec
from msgspec.structs import replace

from wiiiiided.control import actions as a
from wiiiiided.control import events as e
from wiiiiided.control.job import Hung, Job, Running, Starting, Stopping
from wiiiiided.daemon.settings import Settings
from wiiiiided.daemon.shares.archives import Archives
from wiiiiided.daemon.shares.cancellations import Cancellations, Cancelled
from wiiiiided.daemon.shares.checkpoints import Placer
from wiiiiided.daemon.shares.notices import Notices
from wiiiiided.daemon.shares.order import Surroundings, order_for, secret_lines
from wiiiiided.daemon.shares.prepare import (
    AGAIN_S,
    CANNOT_RUN,
    LATER_S,
    Hindered,
    NotYet,
    Preparer,
    Unprepared,
    Versions,
)
from wiiiiided.daemon.shares.runs import Runs
from wiiiiided.daemon.shares.shims import FORFEITED, Shim, shim_command
from wiiiiided.daemon.shares.spawn import HELPER_ENV, ended, may_pass, spawn
from wiiiiided.domain.codes import TERMINATED
from wiiiiided.errors import HostError
from wiiiiided.log import about, logger
from wiiiiided.peering.messages import Assignment
from wiiiiided.shim import files
from wiiiiided.shim.ending import exception
from wiiiiided.shm import stats
from wiiiiided.text import plain
from wiiiiided.trust.request import self_signed

LOOK_EVERY_S = 0.05
ROOM_AGAIN_S = 5.0
HEARD_S = 5.0  # between two words to the shims of when the coordinator was heard
UNKNOWN = "the queue does not know this attempt any more"

Key = tuple[int, int]  # job, attempt
_job = msgspec.json.Decoder(Job).decode
_encode = msgspec.json.Encoder().encode


class Workers:
    """The shims of this node. Reports events through `report`."""

    def __init__(
        self,
        runs: Runs,
        archives: Archives,
        here: Surroundings,
        settings: Callable[[], Settings],
        preparer: Preparer,
    ) -> None:
        self.runs = runs
        self.archives = archives
        self.here = here
        self.settings = settings
        self.preparer = preparer
        self.placer = Placer(runs, archives, here, settings)
        self.report: Callable[[e.AnyEvent], None] = lambda event: None
        self.clock: Callable[[], float] = lambda: 0.0
        self.shims: dict[Key, Shim] = {}
        self.following: dict[Key, Job] = {}
        self.heard_at = 0.0  # the coordinator, by CLOCK_BOOTTIME; 0: not yet
        self._started: set[Key] = set()
        self._forsaken: set[Key] = set()  # ended by this node, which was not asked to
        self._superseded: set[Key] = set()  # … and of another job than the one of that number now
        self._later: dict[Key, asyncio.Task[None]] = {}  # that wait for another to end
        self._preparing: dict[Key, asyncio.Task[None]] = {}
        self._prepared: dict[Key, e.WorkersPrepared] = {}
        self._tasks: set[asyncio.Task[None]] = set()
        self._notices = Notices(here)
        self.cancellations = Cancellations(runs)

    # ---- actions

    def perform(self, action: a.AnyAction, given: Assignment) -> None:
        """Do it, or begin to; never blocks, never raises for the job's fault."""
        job = given.job
        match action:
            case a.PrepareWorkers():
                self.prepare(given, action.attempt)
            case a.StartWorkers():
                self.start(given, action.attempt)
            case a.StopWorkers():
                self.stop(job, action.attempt, action.grace_s, action.reason, action.moment)
            case a.SignalWorkers():
                if shim := self.shims.get((action.id, action.attempt)):
                    shim.tell({"do": "signal", "signal": action.signal})
            case a.DumpStacks():
                self._spawn_task(self._dump(action.id, action.attempt))
            case a.RunNotify():
                self._spawn_task(self._notices.run(job, action))
            case a.Tell():
                pass  # the store and the log have it

    def prepare(self, given: Assignment, attempt: int) -> None:
        key = (given.job.id, attempt)
        if self._has_begun(key, given.job):
            self._say_again(key)
        elif key in self._prepared:
            self._soon(replace(self._prepared[key], at=self.clock()))
        elif key not in self._preparing:
            task = self._preparing[key] = self._spawn_task(self._prepare(given.job, attempt))
            task.add_done_callback(lambda _: self._preparing.pop(key, None))

    def start(self, given: Assignment, attempt: int) -> None:
        key = (given.job.id, attempt)
        self._prepared.pop(key, None)
        if self._has_begun(key, given.job):
            self._say_again(key)
            return
        if key in self.shims:
            if key not in self._later:
                task = self._later[key] = self._spawn_task(self._start_later(given, attempt))
                task.add_done_callback(lambda _: self._later.pop(key, None))
            return
        assert given.job.attempt is not None
        layout = given.job.attempt.layout
        work = str(self.runs.work(given.job.id))

        def order() -> files.Order:
            return order_for(
                given.job,
                attempt,
                layout,
                work,
                here=self.here,
                settings=self.settings(),
                doors=given.doors,
            )

        self._follow(given, attempt, order)

    def stop(
        self, job: Job, attempt: int, grace_s: float, reason: str, moment: bool = False
    ) -> None:
        """End a share, whatever there is of it; what never began never will."""
        key = (job.id, attempt)
        if task := self._preparing.get(key):
            task.cancel()
        self._prepared.pop(key, None)
        if later := self._later.get(key):
            # It waits for one of that number that the queue forgot, and has not begun.
            later.cancel()
            self._soon(e.WorkersEnded(self.clock(), *key, self.here.node, 0, FORFEITED))
            return
        if key not in self.shims:
            self._follow(Assignment(job, ""), attempt, None)
        self.following[key] = job
        self.shims[key].stop(grace_s, reason, moment)

    def cancel(self, job: Job, by: str, now: bool) -> None:
        """Cancelled by a person here while the coordinator is away: it is told when it is heard.
        OSError: it cannot be kept; the share ends all the same."""
        assert job.attempt is not None
        number, at = job.attempt.number, self.clock()
        try:
            one = Cancelled(job.id, number, job.submitted_at, by, now, at)
            self.cancellations.keep(one)
        finally:
            self._end_cancelled((job.id, number))

    def was_cancelled(self, key: Key) -> bool:
        one = self.cancellations.untold.get(key[0])
        return one is not None and one.attempt == key[1]

    def is_here(self, key: Key) -> bool:
        """Whether something of that share runs here, or is about to."""
        return key in self.shims or key in self._preparing or key in self._prepared

    def _end_cancelled(self, key: Key) -> None:
        job, one = self.following.get(key) or self.kept(key[0]), self.cancellations.untold[key[0]]
        if job is not None and self.is_here(key):
            grace_s = 0.0 if one.now else job.spec.policy.grace_s
            self.stop(job, key[1], grace_s, f"cancelled by {one.by}")

    def adopt(self, given: Assignment) -> None:
        """Find what became of a share of a job's latest attempt, and do what its phase says."""
        job, attempt = given.job, given.job.attempt
        assert attempt is not None
        if self.here.node not in attempt.live:
            return
        key = (job.id, attempt.number)
        if isinstance(job.phase, Starting):
            if not attempt.ordered:
                self.prepare(given, attempt.number)
            else:
                self.start(given, attempt.number)
            return
        if key in self.shims:
            self._say_again(key)
        elif isinstance(job.phase, Stopping):
            self.stop(job, attempt.number, _grace_s(job), job.phase.reason)
            return
        else:
            self._follow(given, attempt.number, None)
        self.following[key] = job
        if isinstance(job.phase, Stopping):
            self.shims[key].stop(_grace_s(job), job.phase.reason)
        elif isinstance(job.phase, Hung):
            self._spawn_task(self._dump(job.id, attempt.number))

    # ---- what this node has, against what the queue believes

    def find(self) -> int:
        """Follow every share that this node's files say may run; how many. Where there is an order
        and no claim nobody has begun: the coordinator says whether somebody still is to."""
        self._find((files.ORDER, files.CLAIM), set())
        self.cancellations.read()
        for key in [key for key in self.shims if self.was_cancelled(key)]:
            self._end_cancelled(key)
        return len(self.shims)

    def _find(
        self, marks: tuple[str, ...], but: set[Key], latest: Mapping[int, int] | None = None
    ) -> None:
        for number in self.runs.numbers():
            if latest and number in latest and not self.runs.began(number, latest[number] + 1):
                continue
            job = self.kept(number)
            if job is None or job.attempt is None:
                continue
            key = (number, job.attempt.number)
            if key in but or key in self.shims or self.here.node not in job.attempt.nodes:
                continue
            found = all(self._has(key, mark) for mark in marks)
            if found and not self._has(key, files.EXIT):
                self._follow(Assignment(job, ""), job.attempt.number, None)

    def reconcile(
        self,
        given: Iterable[Assignment],
        others: Iterable[Key] = (),
        reason: str = UNKNOWN,
        grace: bool = False,
        latest: Mapping[int, int] | None = None,
    ) -> None:
        """What the queue believes to be here: make it so. What it does not know ends, for that
        `reason`; `others` are attempts that it knows and of which nothing more can be read.
        Without a grace: it counts as ended already, and may have begun again elsewhere.
        `latest` attempts of all jobs of the queue, where those are known, spare reading their
        files: only what is later can be unknown."""
        known = set(others)
        for one in given:
            if one.job.attempt is not None:
                known.add((one.job.id, one.job.attempt.number))
                self._adopt(one)
        self._find((files.ORDER,), known, latest)  # also a shim that has not claimed yet
        for key in {*self.shims, *self._preparing, *self._prepared} - known:
            self.end(key, reason, grace)

    def decline(self, number: int, attempt: int, why: str) -> None:
        """An attempt of which this node cannot know all: a share that never began never will."""
        text = f"{self.here.node} declines it: {why}"
        logger.error("job %d: %s", number, plain(text), extra=about(number))
        self.never((number, attempt), text)

    def never(self, key: Key, why: str) -> None:
        """A share that cannot begin has ended, unless it began before."""
        if key not in self.shims and not self._has(key, files.ORDER):
            self._soon(e.WorkersEnded(self.clock(), *key, self.here.node, 1, plain(why)))

    def _adopt(self, given: Assignment) -> None:
        """One that cannot be adopted must keep neither the daemon from starting nor a link from
        standing."""
        try:
            self.adopt(given)
        except Exception as problem:
            job = given.job
            logger.exception("a defect while adopting job %d", job.id, extra=about(job.id))
            assert job.attempt is not None
            self.never((job.id, job.attempt.number), f"a defect kept it from starting: {problem!r}")

    def end(self, key: Key, reason: str, grace: bool) -> None:
        """End a share of which only this node knows."""
        if task := self._preparing.get(key):
            task.cancel()
        self._prepared.pop(key, None)
        if (shim := self.shims.get(key)) and not shim.was_stopped:
            self._forsaken.add(key)
            shim.stop(self.following[key].spec.policy.grace_s if grace else 0.0, reason)

    def kept(self, number: int) -> Job | None:
        """A job whose share was given to this node, as it was then."""
        try:
            data = self.runs.kept(number)
            return None if data is None else _job(data)
        except (OSError, HostError, msgspec.DecodeError):
            return None

    def archives_kept(self) -> set[str]:
        """Archives of jobs that have files here, or are to have."""
        jobs = (self.kept(number) for number in self.runs.numbers())
        return {job.archive for job in (*jobs, *self.following.values()) if job is not None}

    def heard(self, at: float) -> None:
        """The coordinator was heard then, by CLOCK_BOOTTIME: shims that end alone need to know."""
        self.heard_at = at
        for shim in self.shims.values():
            shim.heard(at)

    def _has(self, key: Key, name: str) -> bool:
        try:
            return self.runs.read(*key, name) is not None
        except (OSError, HostError):
            return True  # something is there: following it finds out what

    # ---- the way of a share

    async def _prepare(self, job: Job, attempt: int) -> None:
        key, node = (job.id, attempt), self.here.node
        try:
            with self.archives.pinned(job.archive):
                found, note = await self._at_last(key, job)
        except Unprepared as problem:
            text, cannot_run = plain(str(problem)), problem.code == CANNOT_RUN
            ended = e.WorkersEnded(self.clock(), *key, node, problem.code, text, idle=cannot_run)
            self.report(ended)
            return
        except OSError as problem:
            text = f"its directory cannot be made: {problem.strerror}"
            self.report(e.WorkersEnded(self.clock(), *key, node, 1, text))
            return
        except Exception as problem:  # nobody else would ever say that this share cannot start
            logger.exception("a defect while preparing job %d", job.id, extra=about(job.id))
            text = plain(f"it cannot be prepared: {problem}")
            self.report(e.WorkersEnded(self.clock(), *key, node, 1, text))
            return
        event = e.WorkersPrepared(
            self.clock(),
            *key,
            node,
            python=plain(found.python),
            torch=plain(found.torch),
            wiiiiided=plain(found.wiiiiided),
            note=plain(note),
        )
        self._prepared[key] = event
        self.report(event)

    async def _at_last(self, key: Key, job: Job) -> tuple[Versions, str]:
        """All that the share needs, however long this machine cannot (a full disk): that is not
        charged to the job. A stop cancels it."""
        said = ""
        while True:
            try:
                await self._make_room(key, job)
                found = await self._looked_at(job)
                note = await self._placed(key, job)
                self.runs.keep(job.id, _encode(job))
                return found, note
            except Hindered as problem:
                said = _waits(job, str(problem), said)
            except OSError as problem:
                if not may_pass(problem):
                    raise
                text = f"it cannot be prepared on {self.here.node} now: {problem.strerror}"
                said = _waits(job, text, said)
            await asyncio.sleep(LATER_S)

    async def _looked_at(self, job: Job) -> Versions:
        while True:
            try:
                return await self.preparer.prepare(job)
            except NotYet:
                await asyncio.sleep(AGAIN_S)

    async def _placed(self, key: Key, job: Job) -> str:
        """With the checkpoints that all its nodes get; what was changed here for them."""
        if job.attempt is None or not job.attempt.checkpoints_from:
            return ""
        await self._until_alone(key, job)
        while True:
            try:
                return await self.placer.place(job, key[1])
            except NotYet:
                await asyncio.sleep(AGAIN_S)

    async def _until_alone(self, key: Key, job: Job) -> None:
        """Until nothing of the job's earlier attempts runs here, nor of another job that had its
        number. There may be: somebody vouched that this machine was lost, and it was not; the
        coordinator was restored from an old copy, and gives numbers anew."""
        while before := [other for other in self.shims if self._is_before(other, key, job)]:
            for other in before:
                if other == key:
                    self._superseded.add(other)
                self.end(other, UNKNOWN, grace=False)
            await asyncio.sleep(LOOK_EVERY_S)

    async def _make_room(self, key: Key, job: Job) -> None:
        """For files: those of a forgotten attempt go, those of another job are somebody's work."""
        kept = self.kept(job.id)
        if kept is None or not is_another(kept, job):
            return
        if kept.submitted_at != job.submitted_at:
            text = "job %d: files of another job of that number are kept in %s"
            logger.warning(text, job.id, self.runs.set_aside(job.id), extra=about(job.id))
        else:
            text = "job %d: files of attempts that the queue does not remember are removed"
            logger.warning(text, job.id, extra=about(job.id))
            await self.remove(job.id, key[1])

    async def _have_room(self, key: Key, job: Job, shim: Shim) -> None:
        await self._until_alone(key, job)
        while not shim.was_stopped:
            try:
                await self._make_room(key, job)
                return
            except OSError as problem:
                text = "job %d: what an earlier job of that number left cannot be removed: %s"
                logger.warning(text, job.id, problem, extra=about(job.id))
                await asyncio.sleep(ROOM_AGAIN_S)

    def _is_before(self, other: Key, key: Key, job: Job) -> bool:
        return other[0] == key[0] and (other < key or is_another(self.following[other], job))

    def _has_begun(self, key: Key, job: Job) -> bool:
        """It is followed, and is of this very job."""
        return key in self.shims and not is_another(self.following[key], job)

    async def _start_later(self, given: Assignment, attempt: int) -> None:
        await self._until_alone((given.job.id, attempt), given.job)
        self.start(given, attempt)

    def _say_again(self, key: Key) -> None:
        if key in self._started:
            self._soon(e.WorkersStarted(self.clock(), *key, self.here.node))

    def _soon(self, event: e.AnyEvent) -> None:
        """Report it, but not from inside of who is just deciding something."""
        asyncio.get_running_loop().call_soon(lambda: self.report(event))

    def _follow(
        self, given: Assignment, attempt: int, order: Callable[[], files.Order] | None
    ) -> None:
        job = given.job
        key = (job.id, attempt)
        node = self.here.node
        secrets = dict(given.secrets)

        def started() -> None:
            secrets.clear()
            self._started.add(key)
            now = self.clock()
            if isinstance(self.following[key].phase, Starting):
                self.following[key] = replace(self.following[key], phase=Running(now))
            self.report(e.WorkersStarted(now, job.id, attempt, node))

        def over(end: files.End) -> None:
            self.shims.pop(key, None)
            self.following.pop(key, None)
            self._started.discard(key)
            forsaken = key in self._forsaken
            self._forsaken.discard(key)
            if key in self._superseded:
                self._superseded.discard(key)
                return  # whoever asks for that number now means another job
            # A shim that was told to end by somebody else, as when the machine shuts down: its
            # ranks may have ended well, but not because their work was done.
            asked = shim.was_stopped and not forsaken
            lost = end.lost or (bool(end.stopped) and not asked) or (forsaken and not end.codes)
            code = min(max(0, end.code), 255) or (TERMINATED if lost else 0)
            if asked and end.reason == FORFEITED and not end.codes:
                code = 0  # it never began: not the share to blame
            reason = plain((not end.codes and missing) or end.reason) or "all ranks ended"
            self.report(
                e.WorkersEnded(
                    *(self.clock(), *key, node, code, reason, lost),
                    ended_at=end.ended_at or None,
                    failed_at=end.failed_at or None,
                    error=plain(exception(end.error)),
                    idle=bool(code) and not self._has_worked(job, attempt),
                )
            )

        shim = Shim(self.runs, job.id, attempt, started, over)
        shim.heard_at = lambda: self.heard_at
        self.shims[key] = shim
        self.following[key] = job
        missing = ""

        async def run() -> None:
            nonlocal missing
            with self.archives.pinned(job.archive):
                made: files.Order | None = None
                if order is not None:
                    made, missing = await self._ordered(key, job, shim, order)
                await shim.follow(made, lambda: self._descriptors(given, attempt, secrets))

        self._spawn_task(run())

    def _has_worked(self, job: Job, attempt: int) -> bool:
        """Whether a rank here has finished an operation or said a step, as its page has it."""
        shares = job.attempt.layout.shares if job.attempt is not None else ()
        ranks = (rank for share in shares if share.node == self.here.node for rank in share.ranks)
        for rank in ranks:
            try:
                page = self.runs.read(job.id, attempt, f"stats-{rank}") or b""
            except (OSError, HostError):
                return True  # it cannot be told: then it was no false start
            if stats.has_worked(page):
                return True
        return False

    async def _ordered(
        self, key: Key, job: Job, shim: Shim, order: Callable[[], files.Order]
    ) -> tuple[files.Order | None, str]:
        """What its shim is to do, once all is here that it needs; else why it never will. Nobody
        else looks after this share: whatever is raised here is waited out, or its end."""
        said = ""
        while not shim.was_stopped:
            try:
                await self._have_room(key, job, shim)
                missing = await self._fetched(job, shim)
                if missing:
                    return None, missing
                made = order()
                if made.encrypt and not made.node_index:
                    await self._certify(*key)
                return made, ""
            except Exception as problem:
                if not may_pass(problem):
                    logger.exception("a defect while starting job %d", job.id, extra=about(job.id))
                    return None, plain(f"a defect kept it from being started: {problem!r}")
                why = getattr(problem, "strerror", None) or problem
                said = _waits(job, f"it cannot be started on {self.here.node} now: {why}", said)
            await shim.while_wanted(asyncio.sleep(LATER_S))
        return None, said

    async def _certify(self, number: int, attempt: int) -> None:
        """A certificate for the Store of this attempt, as shims have no means to make one."""
        pem = await asyncio.to_thread(self_signed)  # the first one loads megabytes of code
        self.runs.make(number, attempt)
        self.runs.write(number, attempt, files.PEM, pem.encode())

    async def _fetched(self, job: Job, shim: Shim) -> str:
        """Have the archive here; else why not. A stop ends it at once, however large it is."""
        missing = ""
        while not self.archives.has(job.archive) and not shim.was_stopped:
            try:
                await shim.while_wanted(self.preparer.get(job))
            except NotYet as problem:
                missing = str(problem)
                await shim.while_wanted(asyncio.sleep(AGAIN_S))
            except Hindered as problem:
                missing = _waits(job, str(problem), missing)
                await shim.while_wanted(asyncio.sleep(LATER_S))
            except Unprepared as problem:
                return str(problem)
        return missing if shim.was_stopped else ""

    @contextlib.contextmanager
    def _descriptors(
        self, given: Assignment, attempt: int, secrets: dict[str, str]
    ) -> Iterator[dict[str, int]]:
        """What a shim must find when it begins, and what reaches it without a name: the archive,
        and the secrets."""
        job = given.job
        fds: dict[str, int] = {}
        if given.key:
            self.runs.write(job.id, attempt, files.KEY, bytes.fromhex(given.key))
        self.runs.keep(job.id, _encode(job))
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

    async def _dump(self, number: int, attempt: int) -> None:
        if shim := self.shims.get((number, attempt)):
            await shim.stacks()
        self.report(e.StacksDumped(self.clock(), number, attempt, self.here.node))

    # ---- helpers that run as the jobs' user

    async def remove(self, number: int, attempts_from: int = 0) -> None:
        """Delete a job's directory, or its attempts from that number on: what the job wrote as the
        jobs' user, the rest ourselves."""
        directory = self.runs.job(number)
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

    def tar(self, number: int, globs: tuple[str, ...]) -> subprocess.Popen[bytes]:
        """A process that writes the files matching `globs` as a tar to its stdout."""
        command = shim_command("--tar", str(self.runs.work(number)), *globs)
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
        """Stop following; the jobs go on."""
        for task in list(self._tasks):
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)


def _waits(job: Job, why: str, said: str) -> str:
    """Say in the log what a job waits for here, unless that was `said`; what it is."""
    if why != said:
        text = "job %d waits: %s; trying again every %g s"
        logger.warning(text, job.id, why, LATER_S, extra=about(job.id))
    return why


def _grace_s(job: Job) -> float:
    now = isinstance(job.phase, Stopping) and job.phase.now
    return 0.0 if now else job.spec.policy.grace_s


def is_another(kept: Job, job: Job) -> bool:
    """Whether what is kept here under that number is of another job, or of attempts that the queue
    does not remember."""
    if kept.submitted_at != job.submitted_at:
        return True
    old, new = kept.attempt, job.attempt
    if old is None or new is None:
        return False
    return old.number > new.number or (old.number == new.number and old.placed_at != new.placed_at)
