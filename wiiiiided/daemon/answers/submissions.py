"""Submitting: a spec that is checked again, an archive that is asked for if it is not here yet."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

from wiiiiided.control import events as e
from wiiiiided.control.job import Owner
from wiiiiided.control.place import NeverRuns, plan
from wiiiiided.daemon.answers.jobs import Jobs
from wiiiiided.daemon.conversation.refusal import Refuse
from wiiiiided.daemon.conversation.talk import Talk
from wiiiiided.daemon.settings import Settings
from wiiiiided.daemon.shares.archives import PIECE_WITHIN_S, Archives
from wiiiiided.domain.codes import FAILED, INVALID, NEVER
from wiiiiided.domain.limits import problems_of
from wiiiiided.errors import UsageError
from wiiiiided.wire import messages as m

SECRET_BYTES = 1 << 18
UPLOADS = 4  # at once: each may be half a gigabyte


class Submissions:
    """New jobs."""

    def __init__(self, jobs: Jobs, archives: Archives, settings: Callable[[], Settings]) -> None:
        self.jobs = jobs
        self.archives = archives
        self.settings = settings
        self._uploads = asyncio.Semaphore(UPLOADS)

    async def submit(self, talk: Talk, request: m.Submit) -> None:
        self.check(request)
        with self.archives.pinned(request.archive):
            if not self.archives.has(request.archive):
                await self.receive(talk, request)
            self.check(request)  # an upload takes its time: the others may have moved
            number = self._store(talk, request)
        found = self.jobs.view(self.jobs.find(number))
        await talk.say(m.Submitted(number, found.why))

    def _store(self, talk: Talk, request: m.Submit) -> int:
        caller, keeper = talk.caller, self.jobs.keeper
        self.jobs.catch_up()
        number = keeper.store.next_id()
        owner = Owner(caller.node or self.jobs.own, caller.uid, caller.user)
        waits_for = self.jobs.dependencies(request.spec.policy.after)
        spec, archive, hold = request.spec, request.archive, request.hold
        event = e.JobSubmitted(keeper.clock(), number, spec, owner, archive, waits_for, hold)
        self.jobs.ask(event, request.secrets)
        return number

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
        state = self.jobs.keeper.state
        if len(state.jobs) >= self.settings().queue:
            raise Refuse(FAILED, f"the queue is full: {self.settings().queue} jobs are not over")
        try:
            plan(request.spec, list(state.nodes.values()))
        except NeverRuns as never:
            raise Refuse(NEVER, str(never)) from never
        self.archives.path(request.archive)
        self.jobs.dependencies(request.spec.policy.after)

    async def receive(self, talk: Talk, request: m.Submit) -> None:
        limit = self.settings().archive_limit
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
