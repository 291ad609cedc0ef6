"""The progress loop, an event loop: one per process, for all groups. Here: which thread drives.

The thread that holds `_driving` drives: it alone touches operations, boards, links and mailboxes.

    a blocking call      drives the loop itself, in the caller's thread: no hand-over
    an async call        is submitted; a background thread drives while anything is under way
    waiting for a Work   drives if no other thread does, else sleeps until the driver is done

When nothing is under way no thread polls: an idle group costs no CPU. A death is then noticed when
the next operation begins; until then no caller waits for the dead rank.

Lost wake-ups: a thread appends what it wants done before it looks whether a thread drives; a
driver that steps down looks for such things after it has released `_driving`. One sees the other.

A signal handler runs in the middle of a call, in its thread: a call that it makes would wait for
the thread it interrupts. So a thread marks itself before it tries to drive, and such a call is
refused; leaving a group (`destroy_process_group`) is done by the driver when the handler is over.
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
from wiiiiided.backend.engine.driver import Driver
from wiiiiided.backend.engine.operation import Operation, Plan
from wiiiiided.errors import UsageError

if TYPE_CHECKING:
    from wiiiiided.backend.engine.group import Group


# How a lock is taken without waiting so that Ctrl-C cannot come between taking it and knowing it:
# list.extend(map(lock.acquire, NOT_BLOCKING)) is one call for the interpreter, and it looks for
# interrupts only between calls. The release stands in the finally itself for the same reason.
NOT_BLOCKING: Final = (False,)

_REENTERED: Final = (
    "a signal handler cannot call the backend while the call that it interrupted has not returned: "
    "set a flag in the handler, and look at it after the call (destroy_process_group may be called)"
)
SPARE_THREADS: Final = 1  # parked threads that are kept although one would do
CLOSE_S: Final = 2.0


class ProgressLoop:
    """Which thread drives, the background threads, and what other threads may call."""

    def __init__(self, driver: Driver) -> None:
        self._driver = driver
        self._closing = False
        self._driving = threading.Lock()
        self._callers: set[int] = set()  # threads that drive, or are about to try
        self._in_background = False  # the thread that drives is one of ours
        self._park = threading.Lock()  # held: background threads sleep on it
        self._park.acquire()
        self._pool = threading.Lock()
        self._parked = 0
        self._threads: set[threading.Thread] = set()
        self._have_a_follower()

    def is_inside(self) -> bool:
        """Whether this thread drives already: a signal handler has interrupted it."""
        # A mark alone may be left over from Ctrl-C between a release and its removal.
        marked = threading.get_ident() in self._callers
        return marked and self._driving.locked() and not self._in_background

    def _refuse_inside(self) -> int:
        """Raise if this thread drives already; returns its number."""
        if self.is_inside():
            raise UsageError(_REENTERED)
        return threading.get_ident()

    # -- operations ----

    def run(self, op: Operation) -> None:
        """Run a blocking call: it is done, or has failed, when this returns."""
        self._refuse_inside()  # before it is queued
        self.submit(op)
        self.wait(op)

    def run_inline(
        self, group: Group, plan: Plan, nbytes: int, make: Callable[[], Operation]
    ) -> Operation | None:
        """A blocking collective, the short way: None when it is done.

        If nothing else is under way and no peer is later than one spin, there is no need for an
        Operation, a queue or a look at the links: that was 11 of a small all_reduce's 29 µs
        (docs/lab-log.md). Otherwise `make` gives the Operation, and it goes on as any other.
        """
        me, taken = self._refuse_inside(), list[bool]()
        try:
            self._callers.add(me)
            taken.extend(map(self._driving.acquire, NOT_BLOCKING))
            if taken[0]:
                op = self._driver.run_inline(group, plan, nbytes, make)
            else:
                op = make()
                self._driver.submit(op)
        except BaseException as error:
            self._rescue(group, plan, error)
            raise
        finally:
            if taken and taken[0]:
                self._driving.release()
                self._callers.discard(me)
                self._step_down()
            else:
                self._callers.discard(me)
                self._wake_driver()
        if op is not None and not op.done:
            self.wait(op)
        return op

    def _rescue(self, group: Group, plan: Plan, error: BaseException) -> None:
        """Ctrl-C between starting a plan and queueing it: no thread would go on with it. Say so."""
        started = inspect.getgeneratorstate(plan) == inspect.GEN_SUSPENDED
        if started and not any(op.plan is plan for op in group.queue):
            group.fail(None, error)

    def submit(self, op: Operation) -> None:
        """Queue an operation; it moves in the background, or in the thread that waits for it."""
        self._driver.submit(op)
        self._wake_driver()

    def wait(self, op: Operation, timeout_s: float = threading.TIMEOUT_MAX) -> bool:
        """Wait until it is done, driving if no other thread does; False when time is up."""
        until = time.monotonic() + timeout_s
        while not op.done:
            left = until - time.monotonic()
            if left <= 0:
                return False
            me, taken = self._refuse_inside(), list[bool]()
            try:
                self._callers.add(me)
                taken.extend(map(self._driving.acquire, NOT_BLOCKING))
                if taken[0]:
                    self._driver.drive(op, until)
            finally:
                if taken and taken[0]:
                    self._driving.release()
                    self._callers.discard(me)
                    self._step_down()
                self._callers.discard(me)
            if not taken[0]:
                op.sleep_until_done(left)
        return True

    # -- set-up and end ----

    def call(self, action: Callable[[], None]) -> None:
        """Have a short action run by the driver: set-up and tear-down of groups and links."""
        me, ran = self._refuse_inside(), threading.Event()
        problems: list[BaseException] = []

        def task() -> None:
            try:
                action()
            except BaseException as problem:
                problems.append(problem)  # the caller's, not the driver's
            finally:
                ran.set()

        self._driver.soon(task)
        while not ran.is_set():
            taken: list[bool] = []
            try:
                self._callers.add(me)
                taken.extend(map(self._driving.acquire, NOT_BLOCKING))
                if taken[0]:
                    self._driver.run_tasks()
            finally:
                if taken and taken[0]:
                    self._driving.release()
                    self._callers.discard(me)
                    self._step_down()
                self._callers.discard(me)
            if not taken[0]:
                self._wake_driver()
                ran.wait(0.1)
        if problems:
            raise problems[0]

    def attend(self, ready: Callable[[], bool], timeout_s: float) -> bool:
        """Let the links do their work until `ready`; False when time is up. For set-up only."""
        me, driver = self._refuse_inside(), self._driver
        until = time.monotonic() + timeout_s
        while not ready():
            left = until - time.monotonic()
            if left <= 0:
                return False
            taken: list[bool] = []
            try:
                self._callers.add(me)
                taken.extend(map(self._driving.acquire, NOT_BLOCKING))
                if taken[0] and not driver.begun() and not ready():
                    driver.attend(left)
            finally:
                if taken and taken[0]:
                    self._driving.release()
                    self._callers.discard(me)
                    self._step_down()
                self._callers.discard(me)
            if not taken[0] or driver.begun():
                self._wake_driver()  # the driver, now or soon, looks at the links too
                time.sleep(min(left, 0.0005))
        return True

    def look(self) -> None:
        """Look at the links now, if no other thread does: what has come, which peer is gone."""
        me, taken = threading.get_ident(), list[bool]()
        try:
            taken.extend(map(self._driving.acquire, NOT_BLOCKING))
            if taken[0]:
                self._callers.add(me)
                self._driver.poller.poll(0.0)
        finally:
            if taken and taken[0]:
                self._driving.release()
                self._callers.discard(me)
                self._step_down()

    @contextmanager
    def final_drive(self, timeout_s: float) -> Iterator[None]:
        """Run the body as the driver, at the very end, or without if that takes too long."""
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
            self._driver.stop()
        try:
            self._wake_driver()
            self._unpark()
            for thread in threads:
                thread.join(CLOSE_S)  # one may be in a callback of the program's
        finally:
            self._driver.poller.close()

    def abandon(self) -> None:
        """Let go of the descriptors in a forked child; the loop lives on in the parent."""
        self._driver.abandon()

    # -- the driver's lock ----

    def _step_down(self) -> None:
        """`_driving` is released: leave what is under way to the background, run callbacks.

        Callbacks may take their time, wait for other operations or make calls of their own, so
        another thread must be able to drive meanwhile.
        """
        completed = self._driver.completed
        if self._driver.begun():
            self._unpark()
        if not completed:
            return
        if threading.current_thread() in self._threads:
            self._have_a_follower()
        while completed:
            try:
                op = completed.popleft()
            except IndexError:
                break
            op.run_callbacks()

    def _wake_driver(self) -> None:
        self._driver.wake()
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
        while not self._closing and self._driver.begun() and self._driving.acquire(blocking=False):
            try:
                self._in_background = True
                self._driver.drive(None)
            except Exception as problem:
                self._collapse(problem)
            finally:
                self._in_background = False
                self._driving.release()
                self._step_down()

    def _collapse(self, problem: Exception) -> None:
        """A mistake of ours in the background: fail what is under way rather than hang."""
        log.logger.exception("the progress loop failed; please report this")
        self._driver.fail_all(problem)
