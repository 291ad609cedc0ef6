"""The progress loop: one per process, it moves the operations of all groups. Here: who drives it.

Whoever holds `_driving` is the *driver*: it alone touches operations, boards, links and mailboxes.

    a blocking call      drives the loop itself, in the caller's thread: no hand-over
    an async call        is submitted; a background thread drives while anything is under way
    waiting for a Work   takes the wheel if it is free, else sleeps until the driver is done

When nothing is under way nobody polls anything: an idle group costs no CPU. A death is then noticed
when the next operation begins; until then there is nobody it could hurt.

Lost wake-ups: a thread appends what it wants done before it looks whether somebody drives; a
driver that steps down looks for such things after it has released the wheel. One sees the other.
"""

from __future__ import annotations

import inspect
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Final

import torch

from wiiiiided import log
from wiiiiided.engine.driver import Driver
from wiiiiided.engine.operation import NOT_STARTED, Operation, Plan, Wait
from wiiiiided.shm import stats
from wiiiiided.shm.board import fence

if TYPE_CHECKING:
    from wiiiiided.config import Config
    from wiiiiided.engine.group import Group


# How a lock is taken without waiting so that Ctrl-C cannot come between taking it and knowing it:
# list.extend(map(lock.acquire, NOT_BLOCKING)) is one call for the interpreter, and it looks for
# interrupts only between calls. The release stands in the finally itself for the same reason.
NOT_BLOCKING: Final = (False,)

SPARE_THREADS: Final = 1  # parked threads that are kept although one would do
CLOSE_S: Final = 2.0


class Loop(Driver):
    """The driver's seat, the background thread, and what other threads may call."""

    def __init__(self, config: Config, page: stats.StatsPage) -> None:
        super().__init__(config, page)
        self._driving = threading.Lock()
        self._park = threading.Lock()  # held: background threads sleep on it
        self._park.acquire()
        self._pool = threading.Lock()
        self._parked = 0
        self._threads: set[threading.Thread] = set()
        self._have_a_follower()

    # -- operations ----

    def run(self, op: Operation) -> None:
        """A blocking call: done (or failed) when this returns."""
        self.submit(op)
        self.wait(op)

    def sprint(
        self, group: Group, plan: Plan, nbytes: int, make: Callable[[], Operation]
    ) -> Operation | None:
        """A blocking collective, the short way: None when it is done.

        If nothing else is under way and no peer is later than one spin, there is no need for an
        Operation, a queue or a look at the links: that was 11 of a small all_reduce's 29 µs
        (docs/lab-log.md). Otherwise `make` gives the Operation, and it goes on as any other.
        """
        taken: list[bool] = []
        try:
            taken.extend(map(self._driving.acquire, NOT_BLOCKING))
            if taken[0] and not (self.active or self.messages or self._submitted or self._tasks):
                op = self._sprint(group, plan, nbytes, make)
                if op is not None and not op.done:
                    begun_ns = op.begun_ns
                    self._admit(op)
                    op.begun_ns = self._under_way_ns = begun_ns
                    self._drive(op, asleep=True)
            else:
                op = make()
                self._submitted.append(op)
        except BaseException as error:
            self._rescue(group, plan, error)
            raise
        finally:
            if taken and taken[0]:
                self._driving.release()
                self._step_down()
            else:
                self._wake_driver()
        if op is not None and not op.done:
            self.wait(op)
        return op

    def _rescue(self, group: Group, plan: Plan, error: BaseException) -> None:
        """Ctrl-C between starting a plan and queueing it: nobody would go on with it. Say so."""
        started = inspect.getgeneratorstate(plan) == inspect.GEN_SUSPENDED
        if started and not any(op.plan is plan for op in group.queue):
            group.fail(None, error)

    def _sprint(
        self, group: Group, plan: Plan, nbytes: int, make: Callable[[], Operation]
    ) -> Operation | None:
        """As far as it goes without sleeping: None when done, else the Operation that is left."""
        lagging, send, words = group.team.board.lagging, self._in_context, self.page.words
        begun, waited, in_plan = time.monotonic_ns(), 0, True
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
                    arrived = self._spin(lagging, wait)
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
            taken: list[bool] = []
            try:
                taken.extend(map(self._driving.acquire, NOT_BLOCKING))
                if taken[0]:
                    self._drive(op, until)
            finally:
                if taken and taken[0]:
                    self._driving.release()
                    self._step_down()
            if not taken[0]:
                op.sleep_until_done(left)
        return True

    # -- set-up and end ----

    def call(self, action: Callable[[], None]) -> None:
        """Have a short action run by the driver: set-up and tear-down of groups and links."""
        ran = threading.Event()
        problems: list[BaseException] = []

        def task() -> None:
            try:
                action()
            except BaseException as problem:
                problems.append(problem)  # the caller's, not the driver's
            finally:
                ran.set()

        self._tasks.append(task)
        while not ran.is_set():
            taken: list[bool] = []
            try:
                taken.extend(map(self._driving.acquire, NOT_BLOCKING))
                if taken[0]:
                    self._run_tasks()
            finally:
                if taken and taken[0]:
                    self._driving.release()
                    self._step_down()
            if not taken[0]:
                self._wake_driver()
                ran.wait(0.1)
        if problems:
            raise problems[0]

    def attend(self, ready: Callable[[], bool], timeout_s: float) -> bool:
        """Let the links do their work until `ready`; False when time is up. For set-up only."""
        until = time.monotonic() + timeout_s
        while not ready():
            left = until - time.monotonic()
            if left <= 0:
                return False
            taken: list[bool] = []
            try:
                taken.extend(map(self._driving.acquire, NOT_BLOCKING))
                if taken[0] and not self._begun() and not ready():
                    self._asleep = True
                    if not self._begun():
                        self.watch.poll(left)
            finally:
                if taken and taken[0]:
                    self._asleep = False
                    self._driving.release()
                    self._step_down()
            if not taken[0] or self._begun():
                self._wake_driver()  # someone drives, or is to: it looks at the links too
                time.sleep(min(left, 0.0005))
        return True

    @contextmanager
    def wheel(self, timeout_s: float) -> Iterator[None]:
        """At the very end: the wheel if it can be had in time; what follows is done anyway."""
        taken = self._driving.acquire(timeout=timeout_s)
        try:
            yield
        finally:
            if taken:
                self._driving.release()

    def close(self) -> None:
        """End the background threads and give every descriptor back."""
        with self._pool:  # from here on no thread is begun, and every one that was can be joined
            threads = self._threads - {threading.current_thread()}
            self._closing = True
        try:
            self._wake_driver()
            self._unpark()
            for thread in threads:
                thread.join(CLOSE_S)  # one may be in a callback of the program's
        finally:
            self.watch.close()

    def abandon(self) -> None:
        """In a forked child: let go of the descriptors; the loop lives on in the parent."""
        waiting = [*self.active, *self.messages, *self._submitted]
        queued = [op for group in {op.group for op in waiting} for op in group.queue]
        for op in [*waiting, *queued]:
            if not op.done:
                op.finish(op.group.problem())
        self.watch.close()

    # -- the wheel ----

    def _step_down(self) -> None:
        """The wheel is free: leave what is under way to the background, and tell who is to be told.

        Callbacks may take their time, wait for other operations or make calls of their own, so
        somebody else must be able to drive meanwhile.
        """
        if self._begun():
            self._unpark()
        if not self._completed:
            return
        if threading.current_thread() in self._threads:
            self._have_a_follower()
        while self._completed:
            try:
                op = self._completed.popleft()
            except IndexError:
                break
            assert op.on_done is not None
            op.on_done(op)

    def _wake_driver(self) -> None:
        if self._asleep:
            self.watch.nudge()
        if not self._driving.locked():
            self._unpark()

    def _unpark(self) -> None:
        try:
            self._park.release()
        except RuntimeError:
            pass  # awake already

    def _have_a_follower(self) -> None:
        """A background thread is about to run callbacks: another one must be parked."""
        with self._pool:
            if self._parked or self._closing:
                return
            thread = threading.Thread(target=self._background, name="wiiiiide", daemon=True)
            thread.start()  # inside the lock: `close` joins what is listed
            self._threads.add(thread)
            self._parked += 1

    def _background(self) -> None:
        torch.set_grad_enabled(False)
        while True:
            self._park.acquire()
            with self._pool:
                self._parked -= 1
            if not self._closing:
                self._drive_in_background()
            with self._pool:
                if self._closing or self._parked > SPARE_THREADS:
                    self._threads.discard(threading.current_thread())
                    break
                self._parked += 1
        self._unpark()  # at the end the next one, to end too; else harmless

    def _drive_in_background(self) -> None:
        while not self._closing and self._begun() and self._driving.acquire(blocking=False):
            try:
                self._drive(None)
            except Exception as problem:
                self._collapse(problem)
            finally:
                self._driving.release()
                self._step_down()

    def _collapse(self, problem: Exception) -> None:
        """A mistake of ours in the background: fail what is under way rather than hang."""
        log.logger.exception("the progress loop failed; please report this")
        for group in {op.group for op in [*self.active, *self.messages]}:
            group.fail(None, problem)
