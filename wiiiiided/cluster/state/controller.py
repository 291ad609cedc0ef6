"""Keeps the state: takes events one at a time through `control/step`, to the disk, to the world.

    event ─► step ─► store (fsync) ─► log, watchers, actions
                       └─ cannot write: the step is undone, nothing happened

A person's request that cannot be stored is refused with the reason. A shim's report is of something
that has happened all the same: it waits in order, storing it is tried again every second, and
`unrecorded` has the jobs as they will be then. A cancel is a request that is never refused. On a
full disk it is stored in the room that is kept for it (state/disk_reserve); where that is not
enough the workers are ended first, and the cancel waits like a report.
"""

from __future__ import annotations

import asyncio
import time
from collections import deque
from collections.abc import Callable, Iterable
from contextlib import suppress

from msgspec.structs import replace

from wiiiiided.cluster.control import events as e
from wiiiiided.cluster.control import node_texts
from wiiiiided.cluster.control.actions import (
    AnyAction,
    PrepareWorkers,
    StartWorkers,
    StopWorkers,
    Tell,
)
from wiiiiided.cluster.control.job import Job, Stopping
from wiiiiided.cluster.control.state import State
from wiiiiided.cluster.control.step import IllegalMove, step
from wiiiiided.cluster.state.store import StateStore, StoreError
from wiiiiided.domain.node import Node
from wiiiiided.domain.states import ENDED, ON_NODES
from wiiiiided.log import about, logger

RETRY_S = 1.0
JUMP_S = 2.0  # the clock against the time since boot: less is a correction, not yet a jump
RESERVE_S = 60.0  # between two looks whether there is room again for the reserve
PUT_OFF_S = 60.0  # a deadline that could not be taken
Perform = Callable[[AnyAction, Job], None]
CancelEvent = e.CancelRequested | e.SweepCancelRequested


def _since_boot() -> float:
    """Read a clock, in seconds, that cannot be set and goes on while the machine sleeps."""
    return time.clock_gettime(time.CLOCK_BOOTTIME)


class Controller:
    """The only writer of this daemon's state. `clock` is seconds since 1970; `steady` goes on at
    the same pace, and no person sets it."""

    def __init__(
        self,
        store: StateStore,
        heard: list[Node],
        perform: Perform,
        on_change: Callable[[], None],
        *,
        clock: Callable[[], float] = time.time,
        steady: Callable[[], float] = _since_boot,
    ) -> None:
        self.store = store
        self.perform = perform
        self.on_change = on_change
        self.problem = ""  # a sentence while the state cannot be written
        self.unrecorded: dict[int, Job] = {}  # jobs as they are, though the disk does not say so
        self.clock = clock
        self._steady = steady
        jobs = store.live()
        # Of the other members nothing was heard yet, whatever they were before. A clock that went
        # back while no daemon ran is reported as a jump, and moves this time like all others.
        since = max(self.clock(), self.latest(jobs))
        self.state = State(heard, jobs, store.nodes(), since)
        self._ahead = self.clock() - self._steady()
        self._watchers: dict[int, set[asyncio.Event]] = {}
        self._reports: deque[e.AnyEvent] = deque()
        self._alarm: asyncio.TimerHandle | None = None

    # ---- events in

    def ask(self, event: e.AnyEvent, secrets: dict[str, str] | None = None) -> None:
        """A person's request. StoreError: it did not happen. A caller that reads the state to
        decide on the event calls `catch_up` before."""
        self.catch_up()
        self._apply(event, secrets)
        self._set_alarm()

    def catch_up(self) -> None:
        """Store the reports that wait, and a change of the clock, which came before; StoreError:
        they cannot be stored yet."""
        self._drain()
        if self._reports:
            raise StoreError(self.problem)

    def end(self, event: CancelEvent) -> None:
        """A person's wish to end jobs, always: recorded when this returns, or waiting for room with
        the workers being ended all the same (`unrecorded`)."""
        try:
            self.ask(event)
            return
        except StoreError:
            if self.store.reserve.release():
                with suppress(StoreError):
                    self.ask(event)
                    return
        wanted = event.jobs if isinstance(event, e.SweepCancelRequested) else (event.id,)
        if not any(_same(event, other) for other in self._reports):
            jobs = [self.state.jobs[number] for number in wanted if number in self.state.jobs]
            if all(job.state in ON_NODES for job in jobs):
                self._reports.append(event)
            else:  # before an end that waits as well would let it start
                self._reports.appendleft(event)
        changed, actions = self._foreseen()
        for action in actions:
            if isinstance(action, StopWorkers) and action.id in wanted:
                self._perform(action, changed[action.id])
        self._drain()

    def _foreseen(self) -> tuple[dict[int, Job], list[AnyAction]]:
        """The state as all reports will make it, and the actions then."""
        actions: list[AnyAction] = []
        try:
            for event in self._reports:
                with suppress(Exception):  # `_drain` drops it, and says so
                    actions += step(self.state, event)
            return dict(self.state.touched), actions
        finally:
            self.state.rollback()

    @property
    def trouble(self) -> str:
        """A sentence while the state cannot be written, or the disk leaves no room for it."""
        return self.problem or self.store.reserve.trouble

    def report(self, event: e.AnyEvent) -> None:
        """An event that has happened already: it is kept until it can be stored."""
        self._reports.append(event)
        self._drain()

    def tick(self) -> None:
        """Time has come for something, or a write is to be tried again."""
        self._alarm = None
        self.store.reserve.keep()
        if not self._reports:
            self._reports.append(e.Ticked(self.clock()))
        self._drain()

    def _drain(self) -> None:
        self._mind_the_clock()
        while self._reports:
            event = self._reports[0]
            before = self.state.jobs.get(getattr(event, "id", None) or 0)
            try:
                self._apply(event)
            except StoreError as problem:
                if self._ends_what_was_cancelled(event) and self.store.reserve.release():
                    continue
                if str(problem) != self.problem:
                    logger.error("%s; trying again every second", problem)
                self.problem = str(problem)
                break
            except Exception:
                # One report that cannot be taken must not keep all others from being stored.
                extra = about(getattr(event, "id", None))
                logger.exception("a defect: %r was dropped", event, extra=extra)
            self._reports.popleft()
            if isinstance(event, e.Ticked):
                self._still_due(event, before)
        self._tell_unrecorded()
        self._set_alarm()

    def _ends_what_was_cancelled(self, event: e.AnyEvent) -> bool:
        job = self.state.jobs.get(getattr(event, "id", None) or 0)
        cancelled = job is not None and isinstance(job.phase, Stopping)
        return cancelled and job.phase.cause == "cancel"  # type: ignore[union-attr]

    def _tell_unrecorded(self) -> None:
        before, self.unrecorded = self.unrecorded, self._foreseen()[0] if self._reports else {}
        for number in self.unrecorded:
            for watcher in self._watchers.get(number, ()):
                watcher.set()
        if before != self.unrecorded:
            self.on_change()

    def _still_due(self, tick: e.Ticked, before: Job | None) -> None:
        """Jobs that are due after a tick all the same: each by itself, since one that raises undoes
        the step of all; and one that a tick of its own left as it was, later."""
        for job in self.state.due(tick.at):
            if tick.id is None:
                self._reports.append(e.Ticked(tick.at, job.id))
            elif job is before:
                text = "job %d: its deadline cannot be taken; again in %g s"
                logger.error(text, job.id, PUT_OFF_S, extra=about(job.id))
                self.state.put_off(job, tick.at + PUT_OFF_S)

    def _apply(self, event: e.AnyEvent, secrets: dict[str, str] | None = None) -> None:
        try:
            actions = step(self.state, event)
            changed = self._store(event, actions, secrets)
        except IllegalMove:
            self.state.rollback()
            extra = about(getattr(event, "id", None))
            logger.exception("a defect: %r was ignored. %s", event, self._story(event), extra=extra)
            return
        except BaseException:
            self.state.rollback()
            raise
        stands = self.state.node_table.changed()
        self.state.committed()
        if stands and (text := node_texts.told(event)):
            logger.info("%s", text)
        self._done(changed, actions, getattr(event, "rank", None))
        if changed or stands:
            self.on_change()

    def _store(
        self, event: e.AnyEvent, actions: list[AnyAction], secrets: dict[str, str] | None
    ) -> dict[int, Job]:
        changed = dict(self.state.touched)
        rows = self.state.node_table.touched()
        if changed or rows:
            lines = [action for action in actions if isinstance(action, Tell)]
            self.store.commit(changed.values(), lines, event, _kept(event, secrets or {}), rows)
            self.problem = ""
        return changed

    def _done(
        self, changed: dict[int, Job], actions: list[AnyAction], rank: int | None = None
    ) -> None:
        for action in actions:
            if isinstance(action, Tell):
                job = changed[action.id]
                extra = about(job.id, rank, job.attempt.nodes if job.attempt is not None else ())
                logger.info("job %d (%s): %s", job.id, job.name, action.text, extra=extra)
            else:
                self._perform(action, changed[action.id])
        for number in changed:
            for watcher in self._watchers.get(number, ()):
                watcher.set()

    def _perform(self, action: AnyAction, job: Job) -> None:
        """Have an action carried out. One that fails must not keep the others of its gang from
        being told."""
        try:
            self.perform(action, job)
        except Exception as problem:
            logger.exception("a defect while carrying out %s", action, extra=about(job.id))
            if isinstance(action, PrepareWorkers | StartWorkers):
                why = f"a defect kept it from being started: {problem!r}"
                allocation = (action.id, action.attempt, action.node)
                ended = e.WorkersEnded(self.clock(), *allocation, 1, why)
                asyncio.get_running_loop().call_soon(self.report, ended)

    def tell(self, job: Job, text: str) -> None:
        """A line for the job's story and the log about work that no event stands for."""
        logger.info("job %d (%s): %s", job.id, job.spec.name, text, extra=about(job.id))
        try:
            self.store.tell(Tell(job.id, self.clock(), text))
        except StoreError as problem:
            logger.warning("%s", problem, extra=about(job.id))

    def _story(self, event: e.AnyEvent) -> str:
        number = getattr(event, "id", None)
        return "" if number is None else f"job {number}: {self.store.story(number)}"

    # ---- time

    @staticmethod
    def latest(jobs: Iterable[Job]) -> float:
        """When the state last changed, by the clock of then."""
        return max((job.phase.since for job in jobs), default=0.0)

    def _mind_the_clock(self) -> None:
        """A person may have set it: what is due in a minute stays due in a minute. Corrections add
        up until they are a jump."""
        ahead = self.clock() - self._steady()
        jump = ahead - self._ahead
        if abs(jump) > JUMP_S:
            self._ahead = ahead
            logger.warning("the clock was set by %+.0f s; deadlines move with it", jump)
            self._reports.appendleft(e.ClockJumped(self.clock(), jump))

    def _set_alarm(self) -> None:
        if self._alarm is not None:
            self._alarm.cancel()
            self._alarm = None
        due = self.state.next_deadline()
        wait_s = 3600.0 if self.store.reserve.is_kept else RESERVE_S
        if self._reports:
            wait_s = RETRY_S
        elif due is not None:
            wait_s = min(wait_s, max(0.0, due - self.clock()) + 0.001)
        elif self.store.reserve.is_kept:
            return
        self._alarm = asyncio.get_running_loop().call_later(wait_s, self.tick)

    def close(self) -> None:
        if self._alarm is not None:
            self._alarm.cancel()

    # ---- looking

    def is_over(self, job: Job) -> bool:
        """Whether no process of the job runs any more, nor will by itself, recorded or not."""
        ahead = self.unrecorded.get(job.id, job)
        return ahead.state in ENDED

    def job(self, number: int) -> Job | None:
        """A job, over or not."""
        return self.state.jobs.get(number) or self.store.job(number)

    def watch(self, number: int) -> asyncio.Event:
        """An event that is set at every change of that job; give it back with `unwatch`."""
        watcher = asyncio.Event()
        self._watchers.setdefault(number, set()).add(watcher)
        return watcher

    def unwatch(self, number: int, watcher: asyncio.Event) -> None:
        watchers = self._watchers.get(number, set())
        watchers.discard(watcher)
        if not watchers:
            self._watchers.pop(number, None)


def _kept(event: e.AnyEvent, secrets: dict[str, str]) -> dict[int, dict[str, str]]:
    """The values of run.pass_env that are stored, by the job that was submitted."""
    match event:
        case e.JobSubmitted(id=number) if secrets:
            return {number: secrets}
        case e.SweepSubmitted(jobs=jobs) if secrets:
            named = ((job.id, job.spec.run.pass_env) for job in jobs)
            return {
                number: {name: secrets[name] for name in names if name in secrets}
                for number, names in named
            }
        case _:
            return {}


def _same(one: CancelEvent, other: e.AnyEvent) -> bool:
    """Whether a cancel is one that waits already, said once more at another time."""
    return type(one) is type(other) and one == replace(other, at=one.at)
