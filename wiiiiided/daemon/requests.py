"""What each request of a client does. Changes go through the Keeper, views come from `views`.

Rights: whoever reaches the socket may look and submit; a job's owner may change it; root and the
daemon's own user may change everything.
"""

from __future__ import annotations

import asyncio
import os
from collections.abc import Callable, Iterator
from dataclasses import dataclass

from wiiiiided import __version__
from wiiiiided.control import events as e
from wiiiiided.control.job import Job, Owner
from wiiiiided.control.place import NeverRuns, plan
from wiiiiided.daemon import views
from wiiiiided.daemon.api import Caller, Conversation, Refuse
from wiiiiided.daemon.archives import Archives
from wiiiiided.daemon.figures import Figures
from wiiiiided.daemon.keeper import Keeper
from wiiiiided.daemon.runs import Runs
from wiiiiided.daemon.settings import Settings
from wiiiiided.daemon.spawn import ended
from wiiiiided.daemon.store import StoreError
from wiiiiided.daemon.tail import Tail, ranks_of
from wiiiiided.daemon.workers import Workers
from wiiiiided.domain.limits import problems_of
from wiiiiided.domain.node import Node
from wiiiiided.domain.states import ENDED, MOVES
from wiiiiided.errors import HostError, UsageError
from wiiiiided.shim import files
from wiiiiided.wire import messages as m

FAILED, USAGE, INVALID, NOT_ALLOWED, NO_SUCH, NEVER = 1, 2, 3, 5, 6, 7
BATCH_CHARS = 1 << 18  # of log lines in one message; JSON may make each six bytes
LINE_OVERHEAD = 80
SECRET_BYTES = 1 << 18
UPLOADS = 4  # at once: each may be half a gigabyte
STORY_LINES = 1000  # that are shown of a job's story
PIECE_WITHIN_S = 30.0  # a client that was stopped must not keep the others from uploading


@dataclass(frozen=True)
class Identity:
    """What the daemon says of itself."""

    mode: str
    node: Node
    started_at: float
    state_directory: str


class Requests:
    """Answers clients."""

    def __init__(
        self,
        keeper: Keeper,
        workers: Workers,
        runs: Runs,
        archives: Archives,
        identity: Identity,
        settings: Callable[[], Settings],
        figures: Figures,
    ) -> None:
        self.keeper = keeper
        self.workers = workers
        self.runs = runs
        self.archives = archives
        self.identity = identity
        self.settings = settings
        self.figures = figures
        self._uploads = asyncio.Semaphore(UPLOADS)

    async def handle(self, talk: Conversation, request: m.Request) -> None:
        """One request, to its end."""
        match request:
            case m.Submit():
                await self.submit(talk, request)
            case m.Wait():
                await self.wait(talk, request)
            case m.Logs():
                await self.logs(talk, request)
            case m.Cancel():
                await self.cancel(talk, request)
            case m.Stacks():
                await talk.say(await self.stacks(request.id))
            case m.Pull():
                await self.pull(talk, request)
            case m.Watch():
                await self.figures.watch(talk, request)
            case _:
                await talk.say(self.answer(talk.caller, request))

    def answer(self, caller: Caller, request: m.Request) -> m.Answer:
        """Requests that are answered at once."""
        match request:
            case m.List(ended=number):
                ended = reversed(self.keeper.store.ended(min(number, 100_000)))
                live = sorted(self.keeper.state.jobs.values(), key=views.list_order)
                return m.Jobs(tuple(self.view(job) for job in (*ended, *live)))
            case m.History(limit=limit):
                ended_jobs = self.keeper.store.ended(min(limit, 100_000))
                return m.Jobs(tuple(self.view(job) for job in ended_jobs))
            case m.Show(id=number):
                return self.show(self.find(number))
            case m.Why(id=number):
                job = self.find(number)
                return m.Reason(job.id, job.state, self.view(job).why)
            case m.Hold() | m.Release() | m.Requeue():
                return self.change(caller, request)
            case m.Status():
                return self.status()
            case m.Records(id=number):
                job = self.find(number)
                return m.JobRecords(self.view(job), self.story(job), self.figures.runs(job.id))
            case m.Predict(name=name):
                return m.Predicted(self.figures.forecast(name))
            case _:
                raise Refuse(USAGE, f"{type(request).__name__} is not a request")

    # ---- looking

    def view(self, job: Job) -> m.JobView:
        return views.view(self.keeper.state, job, self.keeper.clock())

    def find(self, number: int) -> Job:
        job = self.keeper.job(number) if 0 < number < 1 << 62 else None
        if job is None:
            raise Refuse(NO_SUCH, f"there is no job {number}", "wiiiiide ps -a lists them")
        return job

    def show(self, job: Job) -> m.JobDetail:
        end = self.end_of(job)
        shim = self.workers.shims.get((job.id, job.attempt.number)) if job.attempt else None
        told = shim.ranks if shim is not None else []
        codes = end.codes if end is not None else {}
        waits = job.attempt is None and job.state not in ENDED
        return m.JobDetail(
            job=self.view(job),
            spec=views.spec_for_people(job),
            ranks=views.ranks(job, told, codes),
            story=self.story(job),
            directory=str(self.runs.job(job.id)),
            error=end.error[:65536] if end is not None else "",
            run=self.figures.run(job.id),
            forecast=self.figures.forecast(job.spec.name) if waits else None,
        )

    def story(self, job: Job) -> tuple[m.StoryLine, ...]:
        lines = self.keeper.store.story(job.id)[-STORY_LINES:]
        return tuple(m.StoryLine(at, text) for at, text in lines)

    def end_of(self, job: Job) -> files.End | None:
        """What the latest attempt's shim wrote at its end."""
        if job.attempt is None:
            return None
        try:
            data = self.runs.read(job.id, job.attempt.number, files.EXIT)
            found: files.End | None = files.from_bytes(files.End, data) if data else None
            return found
        except (OSError, HostError, files.Unreadable):
            return None

    def status(self) -> m.DaemonStatus:
        return m.DaemonStatus(
            version=__version__,
            pid=os.getpid(),
            mode=self.identity.mode,  # type: ignore[arg-type]
            node=self.identity.node,
            started_at=self.identity.started_at,
            state_directory=self.identity.state_directory,
            jobs_directory=str(self.runs.root),
            job_user=self.runs.user.name,
            counts=views.count_states(self.keeper.state),
            problem=self.keeper.problem,
        )

    # ---- changing

    def change(self, caller: Caller, request: m.Hold | m.Release | m.Requeue) -> m.JobView:
        """hold, release, requeue: refused in a sentence where the table has no such move."""
        job = self.owned(caller, request.id)
        now, by = self.keeper.clock(), caller.user
        event: e.AnyEvent
        match request:
            case m.Hold():
                event = e.HoldRequested(now, job.id, by)
            case m.Release():
                event = e.ReleaseRequested(now, job.id, by)
            case m.Requeue():
                over = job.state in ENDED
                waits_for = self.dependencies(job.spec.policy.after) if over else ()
                event = e.RequeueRequested(now, job.id, by, job if over else None, waits_for)
        if type(event).__name__ not in MOVES[job.state]:
            verb = type(request).__name__.lower()
            raise Refuse(FAILED, f"job {job.id} is {job.state}: {verb} changes nothing there")
        self.ask(event)
        return self.view(self.find(job.id))

    def owned(self, caller: Caller, number: int) -> Job:
        job = self.find(number)
        if not caller.admin and caller.uid != job.owner.uid:
            raise Refuse(
                NOT_ALLOWED,
                f"job {number} is {job.owner.user}'s; {caller.user} may not change it",
                "root may",
            )
        return job

    def ask(self, event: e.AnyEvent, secrets: dict[str, str] | None = None) -> None:
        try:
            self.keeper.ask(event, secrets)
        except StoreError as problem:
            raise Refuse(FAILED, f"{problem}; nothing was changed") from problem

    async def cancel(self, talk: Conversation, request: m.Cancel) -> None:
        """Answered when the job is really over."""
        job = self.owned(talk.caller, request.id)
        if job.state in ENDED:
            raise Refuse(FAILED, f"job {job.id} is over already: {self.view(job).why}")
        now = self.keeper.clock()
        watcher = self.keeper.watch(job.id)
        try:
            self.ask(e.CancelRequested(now, job.id, talk.caller.user, request.now))
            while (job := self.find(request.id)).state not in ENDED:
                await watcher.wait()
                watcher.clear()
        finally:
            self.keeper.unwatch(request.id, watcher)
        await talk.say(self.view(job))

    async def wait(self, talk: Conversation, request: m.Wait) -> None:
        watcher = self.keeper.watch(request.id)
        try:
            while True:
                job = self.find(request.id)
                await talk.say(self.view(job))
                if job.state in ENDED:
                    break
                await watcher.wait()
                watcher.clear()
        finally:
            self.keeper.unwatch(request.id, watcher)
        await talk.say(m.End())

    # ---- submitting

    async def submit(self, talk: Conversation, request: m.Submit) -> None:
        self.check(request)
        with self.archives.pinned(request.archive):
            if not self.archives.has(request.archive):
                await self.receive(talk, request)
            self.check(request)  # an upload takes its time: the others may have moved
            keeper = self.keeper
            number = keeper.store.next_id()
            owner = Owner(self.identity.node.name, talk.caller.uid, talk.caller.user)
            waits_for = self.dependencies(request.spec.policy.after)
            spec, archive, hold = request.spec, request.archive, request.hold
            event = e.JobSubmitted(keeper.clock(), number, spec, owner, archive, waits_for, hold)
            self.ask(event, request.secrets)
        await talk.say(m.Submitted(number, self.view(self.find(number)).why))

    def check(self, request: m.Submit) -> None:
        """A client has checked the file; what a hostile one sends is checked again here."""
        problems = problems_of(request.spec)
        extra = set(request.secrets) - set(request.spec.run.pass_env)
        if extra:
            problems.append(f"secrets that run.pass_env does not name: {sorted(extra)}")
        if sum(map(len, request.secrets.values())) > SECRET_BYTES:
            problems.append(f"secrets of more than {SECRET_BYTES} bytes")
        if problems:
            raise Refuse(INVALID, "; ".join(problems))
        if len(self.keeper.state.jobs) >= self.settings().queue:
            raise Refuse(FAILED, f"the queue is full: {self.settings().queue} jobs are not over")
        try:
            plan(request.spec, list(self.keeper.state.nodes.values()))
        except NeverRuns as never:
            raise Refuse(NEVER, str(never)) from never
        self.archives.path(request.archive)
        self.dependencies(request.spec.policy.after)

    def dependencies(self, after: tuple[int, ...]) -> tuple[int, ...]:
        """The jobs it must wait for. One that is over and was not done is a refusal."""
        waits_for = []
        for number in dict.fromkeys(after):
            other = self.find(number)
            if other.state not in ENDED:
                waits_for.append(number)
            elif other.state != "done":
                text = f"job {number} is {other.state}: a job after it would never run"
                raise Refuse(NEVER, text, f"wiiiiide requeue {number} runs it again")
        return tuple(waits_for)

    async def receive(self, talk: Conversation, request: m.Submit) -> None:
        limit = self.settings().archive_bytes + self.settings().archive_files * 1024
        if request.archive_bytes > limit:
            raise Refuse(INVALID, f"the working directory is larger than {limit} bytes")
        async with self._uploads:
            try:
                with self.archives.receive(request.archive, limit) as upload:
                    await talk.say(m.SendArchive())
                    async for piece in talk.blob(PIECE_WITHIN_S):
                        upload.take(piece)
                    # Half a gigabyte takes a slow disk longer than the watchdog waits.
                    await asyncio.to_thread(upload.finish)
            except TimeoutError as problem:
                text = f"the working directory stopped arriving for {PIECE_WITHIN_S:g} s"
                raise Refuse(FAILED, f"{text}; nothing was queued") from problem
            except UsageError as problem:
                raise Refuse(INVALID, str(problem)) from problem
            except OSError as problem:
                if problem.filename is None and problem.errno is None:
                    raise
                text = f"the working directory cannot be stored: {problem.strerror}"
                raise Refuse(FAILED, f"{text}; nothing was queued") from problem

    # ---- what the ranks wrote

    async def logs(self, talk: Conversation, request: m.Logs) -> None:
        job = self.find(request.id)
        if request.follow and request.attempt is None:
            await self.follow(talk, request)
        else:
            latest = job.attempt.number if job.attempt is not None else 0
            attempt = latest if request.attempt is None else request.attempt
            tail = Tail(self.runs, job, attempt, request.ranks, request.tail)
            await self.send_lines(talk, tail.more())
        await talk.say(m.End())

    async def follow(self, talk: Conversation, request: m.Logs) -> None:
        """All that is written, attempt after attempt, until the job is over."""
        tail: Tail | None = None
        watcher = self.keeper.watch(request.id)
        try:
            while True:
                job = self.find(request.id)
                if job.attempt is not None and (tail is None or tail.attempt != job.attempt.number):
                    if tail is not None:  # the rest of the attempt before
                        await self.send_lines(talk, tail.more())
                    lines = None if tail is not None else request.tail
                    tail = Tail(self.runs, job, job.attempt.number, request.ranks, lines)
                if tail is not None:
                    await self.send_lines(talk, tail.more())
                if job.state in ENDED:
                    return
                # Files have no bell that works everywhere; while somebody looks, look often.
                try:
                    async with asyncio.timeout(0.1 if tail is not None else None):
                        await watcher.wait()
                    watcher.clear()
                except TimeoutError:
                    pass
        finally:
            self.keeper.unwatch(request.id, watcher)

    async def send_lines(self, talk: Conversation, lines: Iterator[m.LogLine]) -> None:
        """In messages of a bounded size; others have their turn between two of them."""
        batch: list[m.LogLine] = []
        size = 0
        for line in lines:
            batch.append(line)
            size += len(line.text) + LINE_OVERHEAD
            if size > BATCH_CHARS:
                await talk.say(m.LogLines(tuple(batch)))
                await asyncio.sleep(0)  # a fast reader never makes `say` wait
                batch, size = [], 0
        if batch:
            await talk.say(m.LogLines(tuple(batch)))

    async def stacks(self, number: int) -> m.StackDumps:
        job = self.find(number)
        shim = self.workers.shims.get((job.id, job.attempt.number)) if job.attempt else None
        if shim is None:
            return self.written_stacks(job)
        dumps = await shim.stacks()
        if not dumps:
            raise Refuse(FAILED, f"the shim of job {number} gave no stacks")
        return m.StackDumps(tuple(_dump(dump) for dump in dumps[:4096]))

    def written_stacks(self, job: Job) -> m.StackDumps:
        """Those of the latest attempt that wrote any: a hang leaves them behind."""
        for attempt in range(job.attempt.number if job.attempt is not None else 0, 0, -1):
            found = []
            for rank in ranks_of(self.runs, job, attempt):
                try:
                    data = self.runs.read(job.id, attempt, f"stacks-{rank}")
                except (OSError, HostError):
                    continue
                if data:
                    found.append(m.StackDump(rank, None, data.decode(errors="replace")))
            if found:
                return m.StackDumps(tuple(found))
        raise Refuse(FAILED, f"job {job.id} is {job.state}: it has no running ranks and no stacks")

    async def pull(self, talk: Conversation, request: m.Pull) -> None:
        job = self.find(request.id)
        globs = request.globs or job.spec.output.collect
        if not globs:
            text = f"job {job.id} names no output.collect"
            raise Refuse(USAGE, text, f"say which files: wiiiiide pull {job.id} 'runs/**'")
        if not self.runs.job(job.id).exists():
            raise Refuse(FAILED, f"job {job.id} has no files: it never ran, or they were pruned")
        process = self.workers.tar(job.id, tuple(globs))
        assert process.stdout is not None
        loop = asyncio.get_running_loop()
        reader = asyncio.StreamReader()
        pipe, _ = await loop.connect_read_pipe(
            lambda: asyncio.StreamReaderProtocol(reader), process.stdout
        )
        try:
            while piece := await reader.read(1 << 17):
                await talk.send_blob(piece)
        finally:
            pipe.close()  # a tar that nobody reads any more ends by SIGPIPE
            code = await asyncio.shield(ended(process))
        await talk.end_blob()
        if code:
            raise Refuse(FAILED, f"the files of job {job.id} could not all be read (code {code})")
        await talk.say(m.End())


def _dump(dump: dict[str, object]) -> m.StackDump:
    rank, pid, text = dump.get("rank"), dump.get("pid"), dump.get("text")
    return m.StackDump(
        rank if isinstance(rank, int) else -1,
        pid if isinstance(pid, int) else None,
        text[: 1 << 18] if isinstance(text, str) else "",
    )
