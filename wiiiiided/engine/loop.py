"""The progress loop: one per process, it moves the operations of all groups.

Whoever holds `_driving` is the *driver*: it alone touches operations, boards, links and mailboxes.

    a blocking call      drives the loop itself, in the caller's thread: no hand-over, no second thread
    an async call        is submitted; the background thread drives while anything is under way
    waiting for a Work   takes the wheel if it is free, else sleeps until the driver is done with it

Nothing in the loop blocks on one operation: a plan that must wait says for what, and the loop goes
on with the others, so two groups used in opposite order on two ranks cannot deadlock.

Waiting. First a short spin over the words of the board. Then sleep: say on the board whom we wait for
(`doze`), look once more, and sleep in epoll on links, pidfds and our own eventfd: whoever arrives
and finds us dozing rings the link. Sockets to other machines can join the same epoll.

When nothing is under way nobody polls anything: an idle group costs no CPU. A death is then noticed
when the next operation begins; until then there is nobody it could hurt.
"""

from __future__ import annotations

import contextvars
import os
import select
import threading
import time
from collections import deque
from collections.abc import Callable
from os import sched_yield
from typing import TYPE_CHECKING, Final

import numpy as np
import torch

from wiiiiided import log
from wiiiiided.engine.operation import NOT_STARTED, Operation, Plan
from wiiiiided.errors import WiiiiideError
from wiiiiided.shm import stats
from wiiiiided.shm.board import fence

if TYPE_CHECKING:
    from wiiiiided.config import Config
    from wiiiiided.engine.group import Group

# How many empty passes before sleeping (a pass is about 0.4 µs; bench/spin.py). With a core for each
# rank, spinning through a peer's copy of 1 MiB beats a sleep. With more ranks than cores each pass
# yields the core. The background thread shares its core with the training: it hardly spins.
SPINS: Final = 400
SPINS_CROWDED: Final = 30
SPINS_BACKGROUND: Final = 40

# Sockets are looked at this often while there is always something to do in memory.
PASSES_PER_POLL: Final = 64
PATROL_S: Final = 1.0  # how often the late and the lost are looked for while we wait


class Loop:
    """The operations under way in this process and what moves them."""

    def __init__(self, config: Config, page: stats.StatsPage) -> None:
        self.config = config
        self.page = page
        self.crowded = False  # more ranks on this machine than cores
        self.active: list[Operation] = []  # collectives at the head of their group's queue
        self.messages: set[Operation] = set()  # sends and receives that wait for a frame
        self._submitted: deque[Operation] = deque()
        self._completed: deque[Operation] = deque()  # done, with somebody to be told
        self._tasks: deque[Callable[[], None]] = deque()  # short actions for the driver
        self._driving = threading.Lock()
        self._asleep = False
        self._closing = False
        self._patrol_at = 0.0
        # Plans run with numpy's floating-point warnings off: infinities are the user's business.
        # Entering a context costs 0.1 µs, np.errstate 1.1.
        context = contextvars.Context()
        context.run(np.seterr, all="ignore")
        self._sender = context.run
        self._handlers: dict[int, Callable[[int], None]] = {}
        self._epoll = select.epoll()
        self._nudge = os.eventfd(0, os.EFD_NONBLOCK | os.EFD_CLOEXEC)
        self.watch(self._nudge, lambda _: self._clear_nudge())
        self._park = threading.Lock()
        self._park.acquire()
        self._thread = threading.Thread(target=self._background, name="wiiiiide", daemon=True)
        self._thread.start()

    # -- what other threads call ------------------------------------------------------------------

    def run(self, op: Operation) -> None:
        """A blocking call: done (or failed) when this returns."""
        if not self._begun() and self._driving.acquire(blocking=False):
            try:
                self._admit(op)
                self._drive(op, self._spins())
            finally:
                self._step_down()
        else:
            self.submit(op)
        if not op.done:
            self.wait(op)

    def sprint(
        self, group: Group, plan: Plan, nbytes: int, make: Callable[[], Operation]
    ) -> Operation | None:
        """A blocking collective, the short way: None when it is done.

        If nothing else is under way and no peer is later than one spin, there is no need for an
        Operation, a queue or a look at the links: it is worth 5 µs of a small all_reduce's 20
        (bench/one_host.py). Otherwise `make` gives the Operation, and it goes on as any other.
        """
        if self._begun() or not self._driving.acquire(blocking=False):
            op = make()
            self.submit(op)
            self.wait(op)
            return op
        begun = time.monotonic_ns()
        waited = 0
        lagging, send, words = group.board.lagging, self._sender, self.page.words
        try:
            while True:
                wait = send(plan.send, None)
                if wait.__class__ is int:
                    if lagging(wait) >= 0:
                        since = time.monotonic_ns()
                        left, crowded = self._spins(), self.crowded
                        while lagging(wait) >= 0 and left:
                            left -= 1
                            if crowded:
                                sched_yield()
                        waited += time.monotonic_ns() - since
                        if not left:
                            break
                    fence()
                elif not wait.ready():
                    break
            op = make()
            op.wait = wait
            words[stats.WAITING_NS] += waited
            self._admit(op)
            op.begun_ns = begun
            self._drive(op, self._spins())
        except StopIteration:
            words[stats.OPERATIONS] += 1
            words[stats.BYTES] += nbytes
            words[stats.EXCHANGE_NS] += time.monotonic_ns() - begun
            words[stats.WAITING_NS] += waited
            return None
        except BaseException as error:
            op = make()
            group.fail(op, error)
            if not isinstance(error, Exception):
                raise
            return op
        finally:
            self._step_down()
        if not op.done:
            self.wait(op)
        return op

    def submit(self, op: Operation) -> None:
        """Queue an operation; it moves in the background, or in the thread that waits for it."""
        self._submitted.append(op)
        self._wake_driver()

    def wait(self, op: Operation, timeout_s: float = threading.TIMEOUT_MAX) -> bool:
        """Until it is done, driving if nobody else does; False when time is up."""
        until = time.monotonic() + timeout_s
        while not op.done:
            left = until - time.monotonic()
            if left <= 0:
                return False
            if self._driving.acquire(blocking=False):
                try:
                    self._drive(op, self._spins(), until)
                finally:
                    self._step_down()
            else:
                op.sleep_until_done(left)
        return True

    def call(self, action: Callable[[], None]) -> None:
        """Have a short action run by the driver: set-up and tear-down of groups and links."""
        ran = threading.Event()

        def task() -> None:
            try:
                action()
            finally:
                ran.set()

        self._tasks.append(task)
        while not ran.is_set():
            if self._driving.acquire(blocking=False):
                try:
                    self._run_tasks()
                finally:
                    self._step_down()
            else:
                self._wake_driver()
                ran.wait(0.1)

    def attend(self, ready: Callable[[], bool], timeout_s: float) -> bool:
        """Let the links do their work until `ready`; False when time is up. For set-up only."""
        until = time.monotonic() + timeout_s
        while not ready():
            left = until - time.monotonic()
            if left <= 0:
                return False
            if self._begun() or not self._driving.acquire(blocking=False):
                self._wake_driver()  # someone drives: it looks at the links too
                time.sleep(min(left, 0.0005))
                continue
            try:
                self._asleep = True
                if not self._begun():
                    self._poll(left)
            finally:
                self._asleep = False
                self._step_down()
        return True

    def close(self) -> None:
        """End the background thread and give every descriptor back."""
        self._closing = True
        self._wake_driver()
        self._unpark()
        if self._thread is not threading.current_thread():
            self._thread.join()
        self._epoll.close()
        os.close(self._nudge)

    def abandon(self) -> None:
        """In a forked child: let go of the descriptors; the loop lives on in the parent."""
        self._epoll.close()
        os.close(self._nudge)

    # -- descriptors (driver only) ------------------------------------------------------------------

    def watch(self, fd: int, handler: Callable[[int], None]) -> None:
        """Call `handler(events)` when fd is readable."""
        self._handlers[fd] = handler
        self._epoll.register(fd, select.EPOLLIN)

    def watch_writes(self, fd: int, wanted: bool) -> None:
        """Also (or no longer) call it when fd is writable."""
        self._epoll.modify(fd, select.EPOLLIN | (select.EPOLLOUT if wanted else 0))

    def unwatch(self, fd: int) -> None:
        if self._handlers.pop(fd, None) is not None:
            self._epoll.unregister(fd)

    # -- what groups and mailboxes call (driver only) -------------------------------------------------

    def finish(self, op: Operation, error: BaseException | None = None) -> None:
        """An operation is over: count it, wake who waits, let the group's next one begin."""
        if op.done:
            return
        if error is None and op.settles:
            try:
                for settle in op.settles:
                    settle()
            except Exception as problem:
                error = problem
        now, words = time.monotonic_ns(), self.page.words
        words[stats.FAILED if error else stats.OPERATIONS] += 1
        words[stats.BYTES] += op.nbytes
        if op.begun_ns:
            words[stats.EXCHANGE_NS] += now - op.begun_ns
        if op.waited_ns:
            words[stats.WAITING_NS] += now - op.waited_ns
            op.waited_ns = 0
        op.finish(error)
        if op.on_done is not None:
            self._completed.append(op)
        if not op.collective:
            self.messages.discard(op)
            return
        queue = op.group.queue
        if queue and queue[0] is op:
            queue.popleft()
            if op in self.active:
                self.active.remove(op)
            if queue:
                self._begin(queue[0])

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

    # -- driving --------------------------------------------------------------------------------------

    def _drive(self, until: Operation | None, spins: int, deadline: float = float("inf")) -> None:
        """Move everything until the operation is done (None: until nothing is under way)."""
        empty = passes = 0
        while not until.done if until is not None else self._begun():
            if self._tasks:
                self._run_tasks()
            if self._submitted:
                self._admit(self._submitted.popleft())
                continue
            if self._completed:
                return  # they are told with the wheel released
            if self._advance():
                empty = 0
                passes += 1
                if passes % PASSES_PER_POLL == 0:
                    self._poll(0.0)
                    if time.monotonic() >= self._patrol_at:
                        self._patrol()
                continue
            empty += 1
            if empty < spins:
                if self.messages:
                    self._poll(0.0)
                elif self.crowded:
                    sched_yield()
                continue
            if until is None and self._closing:
                return
            if time.monotonic() >= deadline:
                return
            self._sleep(deadline)
            empty = 0

    def _advance(self) -> bool:
        """One pass over the collectives: resume every plan whose wait is over."""
        moved = False
        for op in self.active:
            wait = op.wait
            group = op.group
            if wait.__class__ is int:
                late = group.board.lagging(wait)
                if late >= 0:
                    if not op.waited_ns:
                        op.waited_ns = time.monotonic_ns()
                    if group.gone and group.lose_missing(op):
                        return True
                    continue
            elif not wait.ready():  # type: ignore[union-attr]
                if not op.waited_ns:
                    op.waited_ns = time.monotonic_ns()
                if group.gone and group.lose_missing(op):
                    return True
                continue
            if op.waited_ns:
                self.page.words[stats.WAITING_NS] += time.monotonic_ns() - op.waited_ns
                op.waited_ns = 0
            moved = True
            fence()
            self._resume(op)
            if op.done:
                return True  # `active` has changed
        return moved

    def _resume(self, op: Operation) -> None:
        try:
            assert op.plan is not None
            op.wait = self._sender(op.plan.send, None)
        except StopIteration:
            self.finish(op)
        except WiiiiideError as error:
            op.group.fail(op, error)
        except BaseException as error:
            op.group.fail(op, error)
            if not isinstance(error, Exception):
                raise  # Ctrl-C inside a plan: the group is lost, and says so, but we do stop

    def _admit(self, op: Operation) -> None:
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
        self._patrol_at = min(self._patrol_at, op.warn_ns / 1e9, op.deadline_ns / 1e9)
        if op.collective:
            self.active.append(op)
            if op.wait == NOT_STARTED:
                self._resume(op)
            return
        self.messages.add(op)
        try:
            assert op.begin is not None
            op.begin(op)
        except WiiiiideError as error:
            self.finish(op, error)

    # -- sleeping -------------------------------------------------------------------------------------

    def _sleep(self, deadline: float) -> None:
        now = time.monotonic()
        if now >= self._patrol_at:
            self._patrol()
        dozing = []
        try:
            for op in self.active:
                wait = op.wait
                if not isinstance(wait, int):
                    if wait.ready():
                        return
                    continue
                board = op.group.board
                late = board.lagging(wait)
                if late < 0:
                    return
                board.doze(late)
                dozing.append(board)
                if board.lagging(wait) != late:
                    return
            self._asleep = True
            if not (self._submitted or self._completed or self._tasks):
                self._poll(max(0.0, min(self._patrol_at, deadline) - now))
        finally:
            self._asleep = False
            for board in dozing:
                board.wake()

    def _poll(self, timeout_s: float) -> None:
        for fd, events in self._epoll.poll(timeout_s):
            handler = self._handlers.get(fd)
            if handler is not None:
                handler(events)

    def _patrol(self) -> None:
        """Warn of the late, give up on the too late; runs about once a second while waiting."""
        now = time.monotonic_ns()
        next_ns = now + int(PATROL_S * 1e9)
        for op in [*self.active, *self.messages]:
            if op.done:
                continue
            if now >= op.deadline_ns:
                op.group.give_up(op)
                continue
            if now >= op.warn_ns:
                log.warn(op.group.who, op.group.stall_text(op, now))
                op.warn_ns = now + 6 * int(self.config.stall_warning_s * 1e9)
            next_ns = min(next_ns, op.deadline_ns, op.warn_ns)
        self._patrol_at = next_ns / 1e9

    # -- the wheel ------------------------------------------------------------------------------------

    def _begun(self) -> bool:
        return bool(self.active or self.messages or self._submitted or self._tasks)

    def _run_tasks(self) -> None:
        while self._tasks:
            self._tasks.popleft()()

    def _spins(self) -> int:
        if self.config.spin == "never":
            return 1
        return SPINS_CROWDED if self.crowded and self.config.spin == "auto" else SPINS

    def _step_down(self) -> None:
        """Release the wheel; tell who is to be told; leave the rest to the background thread."""
        self._driving.release()
        while self._completed:
            try:
                op = self._completed.popleft()
            except IndexError:
                break
            assert op.on_done is not None
            op.on_done(op)
        if self.active or self._submitted or self.messages or self._tasks:
            self._unpark()

    def _wake_driver(self) -> None:
        if self._asleep:
            try:
                os.eventfd_write(self._nudge, 1)
            except OSError:
                pass
        if not self._driving.locked():
            self._unpark()

    def _unpark(self) -> None:
        try:
            self._park.release()
        except RuntimeError:
            pass  # awake already

    def _clear_nudge(self) -> None:
        try:
            os.eventfd_read(self._nudge)
        except BlockingIOError:
            pass

    def _background(self) -> None:
        torch.set_grad_enabled(False)
        while True:
            self._park.acquire()
            if self._closing:
                return
            while self._begun() and self._driving.acquire(blocking=False):
                try:
                    self._drive(None, 1 if self.config.spin == "never" else SPINS_BACKGROUND)
                except Exception as problem:
                    self._collapse(problem)
                finally:
                    self._step_down()
                if self._closing:
                    return

    def _collapse(self, problem: Exception) -> None:
        """A mistake of ours in the background: fail what is under way rather than hang."""
        log.logger.exception("the progress loop failed; please report this")
        for group in {op.group for op in [*self.active, *self.messages]}:
            group.fail(None, problem)

