"""The driver of the loop: begin operations, resume plans, sleep, look for the late.

    submitted ─► _admit ─► _begin ─► _advance: resume every plan whose wait is over ─► finish
                                       │ no peer arrived
                                       └► spin, as long as that pays ─► _sleep ─► _advance

Everything here runs in one thread at a time, the driver's (engine.loop says which), so
there is no lock in this module. Nothing blocks on one operation: a plan that must wait says for
what, and the others go on, so two groups used in opposite order on two ranks cannot deadlock.

Sleeping. Where one operation inside this host is all there is to wait for: first on the board
(`Board.sleep`), from which the last to arrive wakes all at once; sockets are not looked at
meanwhile, so for FUTEX_NS only. Then, or with more to wait for: say on the board which rank we
wait for (`doze`), look once more, and sleep in epoll. A peer that arrives and finds us dozing
rings the link.
"""

from __future__ import annotations

import contextvars
import time
from collections import deque
from collections.abc import Callable
from os import sched_yield
from typing import TYPE_CHECKING, Final

import numpy as np

from wiiiiided import log
from wiiiiided.backend.engine.operation import NOT_STARTED, Operation, Plan, Until, Wait
from wiiiiided.backend.engine.spin_budget import SpinBudget
from wiiiiided.backend.shm import stats
from wiiiiided.backend.shm.board import Board, fence
from wiiiiided.errors import WiiiiideError

if TYPE_CHECKING:
    from wiiiiided.backend.engine.group import Group
    from wiiiiided.backend.engine.poller import EpollPoller
    from wiiiiided.config import Config

# The most passes before sleeping (a pass is 0.2 to 0.4 µs). With a core for each rank, spinning
# through a peer's copy of a piece beats a sleep. With more ranks than cores each pass yields the
# core to a peer.
SPINS: Final = 400
SPINS_CROWDED: Final = 8

# Sockets are looked at this often while there is always something to do in memory.
PASSES_PER_POLL: Final = 64
AGAIN_NS: Final = 60_000_000_000  # between two warnings of the same ranks
SOCKETS_NS: Final = 50_000_000  # how often sockets are looked at between short operations
FUTEX_NS: Final = 100_000_000  # a death during it is seen so much later; 1 s is promised
PATROL_S: Final = 1.0  # how often the late and the lost are looked for while we wait


class Driver:
    """The operations under way in this process and what moves them."""

    def __init__(self, config: Config, page: stats.StatsPage, poller: EpollPoller) -> None:
        self.config = config
        self.page = page
        self.poller = poller
        self.active: list[Operation] = []  # collectives at the head of their group's queue
        self.messages: set[Operation] = set()  # sends and receives that wait for a frame
        self.unsent: set[int] = set()  # links whose socket is full: the driver must see it drain
        self._submitted: deque[Operation] = deque()
        self.completed: deque[Operation] = deque()  # done, with a callback to run
        self._tasks: deque[Callable[[], None]] = deque()  # short actions for the driver
        self._patrols: list[Callable[[], None]] = []
        self.asleep = False
        self.asleep_on: Board | None = None
        self._closing = False
        self._patrol_at = 0.0
        self._sockets_at = 0
        # Time with an operation under way, and with one waiting, is counted once, however many do.
        self._under_way = self._under_way_ns = 0
        self._waiters = self._waiters_ns = 0
        self._late = 0  # the place that the last spin waited for
        # Plans run with numpy's floating-point warnings off: infinities are the user's business.
        # Entering a context costs 0.02 µs, np.errstate 1.1.
        context = contextvars.Context()
        context.run(np.seterr, all="ignore")
        self._in_context = context.run
        self.set_ranks(1, 1)

    def set_ranks(self, ranks: int, cores: int) -> None:
        """How many ranks there are for how many cores: with more ranks, each pass yields."""
        self._crowded = ranks > cores
        most = {"auto": SPINS_CROWDED if self._crowded else SPINS, "always": SPINS, "never": 1}
        # Learned apart: the background thread shares its core with the training, a caller does not.
        self._budget = SpinBudget(most[self.config.spin])
        self._background_budget = SpinBudget(most[self.config.spin])

    def add_patrol(self, patrol: Callable[[], None]) -> None:
        """Call this about once a second, while this thread drives and waits."""
        self._patrols.append(patrol)

    # -- the life of an operation ----

    def submit(self, op: Operation) -> None:
        """Queue an operation; any thread may."""
        self._submitted.append(op)

    def finish(self, op: Operation, error: BaseException | None = None) -> None:
        """An operation is over: count it, wake its waiters, let the group's next one begin."""
        if op.done:
            return
        if error is None and op.copy_backs:
            try:
                for copy_back in op.copy_backs:
                    copy_back()
            except Exception as problem:
                error = problem
        now, words = time.monotonic_ns(), self.page.words
        words[stats.FAILED if error else stats.OPERATIONS] += 1
        words[stats.BYTES] += op.nbytes
        if op.waited_ns:
            self._waited(op, now)
        if op.begun_ns:
            self._under_way -= 1
            if not self._under_way:
                words[stats.EXCHANGE_NS] += now - self._under_way_ns
        op.finish(error)
        if op.callbacks:
            self.completed.append(op)
        if not op.collective:
            self.messages.discard(op)
            return
        queue = op.group.queue
        if queue and queue[0] is op:
            queue.popleft()
            if op in self.active:
                self.active.remove(op)
            if queue and op.group.problem() is None:  # else they are failed, not begun
                self._begin(queue[0])

    def finish_next(self, group: Group) -> None:
        """The operation behind the head of a group's queue was done along with it."""
        op = group.queue[1]
        del group.queue[1]
        self.finish(op)

    def fail_group(self, group: Group, error: BaseException) -> None:
        """Everything queued or under way in a group fails with the cause."""
        for op in [op for op in self.messages if op.group is group]:
            self.finish(op, group.error_for(op, error))
        queue = list(group.queue)
        group.queue.clear()
        for op in queue:
            if op in self.active:
                self.active.remove(op)
            self.finish(op, group.error_for(op, error))

    # -- a blocking collective, the short way ----

    def run_inline(
        self, group: Group, plan: Plan, nbytes: int, make: Callable[[], Operation]
    ) -> Operation | None:
        """Run a plan now, if nothing else is under way: None when done, else its Operation."""
        if self.active or self.messages or self._submitted or self._tasks:
            self._submitted.append(queued := make())
            return queued
        op = self._start_inline(group, plan, nbytes, make)
        if op is not None and not op.done:
            begun_ns = op.begun_ns
            self._admit(op)
            op.begun_ns = self._under_way_ns = begun_ns
            self.drive(op, asleep=True)
        return op

    def _start_inline(
        self, group: Group, plan: Plan, nbytes: int, make: Callable[[], Operation]
    ) -> Operation | None:
        """Run a plan as far as it goes without sleeping; None when done, else the Operation."""
        lagging, send, words = group.team.board.lagging, self._in_context, self.page.words
        begun, waited, in_plan = time.monotonic_ns(), 0, True
        if begun >= self._sockets_at:  # a stream of short operations never sleeps in epoll
            self._sockets_at = begun + SOCKETS_NS
            self.poller.poll(0.0)
        wait: Wait = NOT_STARTED
        try:
            while True:
                in_plan = True
                wait = send(plan.send, None)
                in_plan = False
                if not isinstance(wait, int):
                    if wait.ready():
                        continue  # no memory of others is read for it: no fence is needed
                    late = next(iter(wait.missing()), -1)
                    since = time.monotonic_ns()
                    arrived = self._spin_far(group, wait)
                    spent = time.monotonic_ns() - since
                    waited += spent
                    if late >= 0:
                        words[group.wait_words[late]] += spent
                    if not arrived:
                        break
                elif (late := lagging(wait)) >= 0:
                    self._late, since = late, time.monotonic_ns()
                    arrived = self._spin(lagging, wait) or self._sleep_on(group.team.board, wait)
                    spent = time.monotonic_ns() - since
                    waited += spent
                    words[group.wait_words[group.team.ranks[self._late]]] += spent
                    if not arrived:
                        break
                fence()
        except StopIteration:
            words[stats.OPERATIONS] += 1
            words[stats.BYTES] += nbytes
            words[stats.EXCHANGE_NS] += time.monotonic_ns() - begun
            words[stats.WAITING_NS] += waited
            return None
        except BaseException as error:
            op = make()
            op.wait = wait
            if in_plan:
                group.fail(op, error)
            else:  # Ctrl-C while we waited: the operation goes on in the background
                self._admit(op)
            if not isinstance(error, Exception):
                raise
            return op
        words[stats.WAITING_NS] += waited
        op = make()
        op.wait, op.begun_ns = wait, begun
        return op

    def fail_all(self, error: BaseException) -> None:
        """Fail every group that has something under way, with this cause."""
        for group in {op.group for op in [*self.active, *self.messages]}:
            group.fail(None, error)

    def stop(self) -> None:
        """Have the background wait no more for what is under way: the end is near."""
        self._closing = True

    def abandon(self) -> None:
        """End, in a forked child, what is under way, and let go of the descriptors."""
        waiting = [*self.active, *self.messages, *self._submitted]
        queued = [op for group in {op.group for op in waiting} for op in group.queue]
        for op in [*waiting, *queued]:
            if not op.done:
                op.finish(op.group.problem())
        self.poller.close()

    # -- moving ----

    def drive(
        self, until: Operation | None, deadline: float = float("inf"), *, asleep: bool = False
    ) -> None:
        """Move everything until the operation is done (None: until nothing is under way).

        With `asleep` the first wait does not spin: the caller has done that already.
        """
        budget = self._budget if until is not None else self._background_budget
        allowed = 1 if asleep else budget.passes()
        empty = passes = 0
        while not until.done if until is not None else self.begun():
            if self._tasks:
                self.run_tasks()
                continue
            if self._submitted:
                self._admit(self._submitted.popleft())
                continue
            if self.completed:
                return  # callbacks run with the wheel released
            if self._advance():
                if empty > 1:
                    budget.paid(empty)
                    allowed = budget.passes()
                empty = 0
                passes += 1
                if passes % PASSES_PER_POLL == 0 or self._far():
                    self.poller.poll(0.0)
                    if time.monotonic() >= self._patrol_at:
                        self._patrol()
                continue
            empty += 1
            far = self._far()
            # A socket wakes us from sleep. Spinning keeps a peer from its core, and in the
            # background the program's own thread from the interpreter.
            if empty < allowed and not (far and (self._crowded or until is None)):
                if self.messages or far:
                    self.poller.poll(0.0)
                elif self._crowded:
                    sched_yield()
                continue
            if until is None and self._closing:
                return
            if time.monotonic() >= deadline:
                return
            if empty > 1:
                budget.in_vain()
            self._sleep(deadline)
            empty, allowed = 0, budget.passes()

    def _far(self) -> bool:
        """Whether an operation is under way whose data comes through sockets."""
        for op in self.active:  # noqa: SIM110 - polled: a generator costs more
            if op.group.wide is not None:
                return True
        return False

    def _advance(self) -> bool:
        """One pass over the collectives: resume every plan whose wait is over."""
        moved = False
        for op in self.active:
            wait = op.wait
            group = op.group
            if wait.__class__ is int:
                late = group.team.board.lagging(wait)
                if late >= 0:
                    op.late = group.team.ranks[late]
                    if not op.waited_ns:
                        self._waits(op)
                    if group.gone and group.lose_missing(op):
                        return True
                    continue
            elif not wait.ready():  # type: ignore[union-attr]
                if not op.waited_ns:
                    op.late = next(iter(op.missing()), -1)
                    self._waits(op)
                if group.gone and group.lose_missing(op):
                    return True
                continue
            if op.waited_ns:
                self._waited(op, time.monotonic_ns())
            moved = True
            fence()
            self._resume(op)
            if op.done:
                return True  # `active` has changed
        return moved

    def _waits(self, op: Operation) -> None:
        """An operation begins to wait."""
        op.waited_ns = now = time.monotonic_ns()
        if not self._waiters:
            self._waiters_ns = now
        self._waiters += 1

    def _waited(self, op: Operation, now: int) -> None:
        """A wait is over: count it, and for which rank it was."""
        words = self.page.words
        self._waiters -= 1
        if not self._waiters:
            words[stats.WAITING_NS] += now - self._waiters_ns
        if op.late >= 0:
            words[op.group.wait_words[op.late]] += now - op.waited_ns
        op.waited_ns = 0

    def _resume(self, op: Operation) -> None:
        try:
            assert op.plan is not None
            op.wait = self._in_context(op.plan.send, None)
        except StopIteration:
            self.finish(op)
        except WiiiiideError as error:
            op.group.fail(op, error)
        except BaseException as error:
            op.group.fail(op, error)
            if not isinstance(error, Exception):
                raise  # Ctrl-C inside a plan: the group is lost, and says so, but we do stop

    def _admit(self, op: Operation) -> None:
        if op.done:
            return  # its group was closed before its turn came
        if op.collective:
            op.group.queue.append(op)
            if len(op.group.queue) == 1:
                self._begin(op)
        else:
            self._begin(op)

    def _begin(self, op: Operation) -> None:
        problem = op.group.problem()
        if problem is not None:
            self.finish(op, op.group.error_for(op, problem))
            return
        op.start_clock(self.config.stall_warning_s)
        if not self._under_way:
            self._under_way_ns = op.begun_ns
        self._under_way += 1
        self._patrol_at = min(self._patrol_at, op.warn_ns / 1e9, op.deadline_ns / 1e9)
        if op.collective:
            self.active.append(op)
            if op.wait == NOT_STARTED:
                self._resume(op)
            return
        self.messages.add(op)
        self._waits(op)  # a message does nothing else: frames from its peer complete it
        try:
            assert op.begin is not None
            op.begin(op)
        except Exception as error:  # whatever it is, an operation that has begun must end
            self.finish(op, error)

    def soon(self, task: Callable[[], None]) -> None:
        """Have the driver do something as soon as it is done with what it is doing."""
        self._tasks.append(task)

    def begun(self) -> bool:
        return bool(self.active or self.messages or self._submitted or self._tasks or self.unsent)

    def run_tasks(self) -> None:
        while self._tasks:
            self._tasks.popleft()()

    # -- waiting ----

    def _spin(self, lagging: Callable[[int], int], step: int) -> bool:
        """Watch one step for as long as spinning pays; whether all have arrived."""
        budget = self._budget
        allowed = left = budget.passes()
        crowded = self._crowded
        while left:
            if crowded:
                sched_yield()
            late = lagging(step)
            if late < 0:
                budget.paid(allowed - left)
                return True
            self._late = late
            left -= 1
        budget.in_vain()
        return False

    def _sleep_on(self, board: Board, step: int) -> bool:
        """Sleep on a step of one board; whether all have arrived."""
        if not board.sleeps:
            return False
        self.asleep_on = board
        try:
            until = time.monotonic_ns() + FUTEX_NS
            while not (self._submitted or self._tasks):
                late = board.sleep(step, FUTEX_NS)
                if late < 0:
                    return True
                self._late = late
                if time.monotonic_ns() >= until:
                    break
        finally:
            self.asleep_on = None
        return False

    def wake(self) -> None:
        """Wake the driver, which has something to do. Any thread may call it."""
        if self.asleep:
            self.poller.nudge()
        board = self.asleep_on
        if board is not None:
            board.nudge()

    def _spin_far(self, group: Group, wait: Until) -> bool:
        """Look at the sockets for as long as spinning pays; whether the wait is over."""
        budget = self._budget
        allowed = left = budget.passes()
        while left:
            if self._crowded:  # the peer we wait for may need this core
                sched_yield()
            self.poller.poll(0.0)
            if self._tasks:
                self.run_tasks()
            if wait.ready():
                budget.paid(allowed - left)
                return True
            if group.problem() is not None:
                return False
            left -= 1
        budget.in_vain()
        return False

    def attend(self, timeout_s: float) -> None:
        """Sleep until a link has something to do, or something is submitted."""
        try:
            self.asleep = True
            if not self.begun():
                self.poller.poll(timeout_s)
        finally:
            self.asleep = False

    def _sleep(self, deadline: float) -> None:
        now = time.monotonic()
        if now >= self._patrol_at:
            self._patrol()
            return  # it may have ended what we wait for
        dozing = []
        try:
            for op in self.active:
                wait = op.wait
                if not isinstance(wait, int):
                    if wait.ready():
                        return
                    continue
                board = op.group.team.board
                late = board.lagging(wait)
                if late < 0:
                    return
                board.doze(late)
                dozing.append(board)
                if board.lagging(wait) != late:
                    return
            self.asleep = True
            if not (self._submitted or self.completed or self._tasks):
                self.poller.poll(max(0.0, min(self._patrol_at, deadline) - now))
        finally:
            self.asleep = False
            for board in dozing:
                board.wake()

    def _patrol(self) -> None:
        """Warn of the late, give up on the too late; runs about once a second while waiting."""
        now = time.monotonic_ns()
        self._count(now)
        next_ns = now + int(PATROL_S * 1e9)
        for op in [*self.active, *self.messages]:
            if op.done:
                continue
            if op.group.gone and op.group.lose_unmet(op, now):
                continue
            op.group.tell_mates(op, now)
            if now >= op.deadline_ns:
                op.group.give_up(op)
                continue
            if now >= op.warn_ns:
                self._warn(op, now)
            next_ns = min(next_ns, op.deadline_ns, op.warn_ns)
        for patrol in self._patrols:
            patrol()
        self._patrol_at = next_ns / 1e9

    def _count(self, now: int) -> None:
        """Bring the page up to date in the middle of a long operation: `top` may be reading it."""
        words = self.page.words
        if self._under_way:
            words[stats.EXCHANGE_NS] += now - self._under_way_ns
            self._under_way_ns = now
        if self._waiters:
            words[stats.WAITING_NS] += now - self._waiters_ns
            self._waiters_ns = now

    def moved(self, op: Operation) -> None:
        """A part of a large message has crossed: its stall would begin now."""
        op.warn_ns = time.monotonic_ns() + int(self.config.stall_warning_s * 1e9)

    def _warn(self, op: Operation, now: int) -> None:
        """Name the missing ranks, unless the operation moved lately: a slow link is no stall."""
        warn_after = int(self.config.stall_warning_s * 1e9)
        if op.collective and now < (op.waited_ns or now) + warn_after:
            op.warn_ns = (op.waited_ns or now) + warn_after
            return
        op.warn_ns = now + 6 * warn_after
        group, late = op.group, frozenset(op.missing())
        # Ranks that are late at every step are named once, and then now and then.
        if late == group.warned_of and now < group.warned_ns + AGAIN_NS:
            return
        group.warned_of, group.warned_ns = late, now
        log.warn(group.who, group.stall_text(op, now))
