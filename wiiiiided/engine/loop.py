"""The progress loop: one per process, it moves the operations of all groups. Here: who drives it.

Whoever holds `_driving` is the *driver*: it alone touches operations, boards, links and mailboxes.

    a blocking call      drives the loop itself, in the caller's thread: no hand-over
    an async call        is submitted; the background thread drives while anything is under way
    waiting for a Work   takes the wheel if it is free, else sleeps until the driver is done

When nothing is under way nobody polls anything: an idle group costs no CPU. A death is then noticed
when the next operation begins; until then there is nobody it could hurt.

Lost wake-ups: a thread appends what it wants done before it looks whether somebody drives; a
driver that steps down looks for such things after it has released the wheel. One sees the other.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from typing import TYPE_CHECKING

import torch

from wiiiiided import log
from wiiiiided.engine.driver import Driver
from wiiiiided.engine.operation import NOT_STARTED, Operation, Plan, Wait
from wiiiiided.shm import stats
from wiiiiided.shm.board import fence

if TYPE_CHECKING:
    from wiiiiided.config import Config
    from wiiiiided.engine.group import Group


class Loop(Driver):
    """The driver's seat, the background thread, and what other threads may call."""

    def __init__(self, config: Config, page: stats.StatsPage) -> None:
        super().__init__(config, page)
        self._driving = threading.Lock()
        self._park = threading.Lock()
        self._park.acquire()
        self._thread = threading.Thread(target=self._background, name="wiiiiide", daemon=True)
        self._thread.start()

    # -- operations ----

    def run(self, op: Operation) -> None:
        """A blocking call: done (or failed) when this returns."""
        if not self._begun() and self._driving.acquire(blocking=False):
            try:
                self._admit(op)
                self._drive(op)
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
        busy = self.active or self.messages or self._submitted or self._tasks
        if busy or not self._driving.acquire(blocking=False):
            late = make()
            self.submit(late)
            self.wait(late)
            return late
        try:
            op = self._sprint(group, plan, nbytes, make)
            if op is None or op.done:
                return op
            begun_ns = op.begun_ns
            self._admit(op)
            op.begun_ns = begun_ns
            self._drive(op, asleep=True)
        finally:
            self._step_down()
        if not op.done:
            self.wait(op)
        return op

    def _sprint(
        self, group: Group, plan: Plan, nbytes: int, make: Callable[[], Operation]
    ) -> Operation | None:
        """As far as it goes without sleeping: None when done, else the Operation that is left."""
        lagging, send, words = group.board.lagging, self._in_context, self.page.words
        begun, waited, in_plan = time.monotonic_ns(), 0, True
        wait: Wait = NOT_STARTED
        try:
            while True:
                in_plan = True
                wait = send(plan.send, None)
                in_plan = False
                if not isinstance(wait, int):
                    if not wait.ready():
                        break
                elif lagging(wait) >= 0:
                    since = time.monotonic_ns()
                    arrived = self._spin(lagging, wait)
                    waited += time.monotonic_ns() - since
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
            if self._driving.acquire(blocking=False):
                try:
                    self._drive(op, until)
                finally:
                    self._step_down()
            else:
                op.sleep_until_done(left)
        return True

    # -- set-up and end ----

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
                    self.watch.poll(left)
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
        self.watch.close()

    def abandon(self) -> None:
        """In a forked child: let go of the descriptors; the loop lives on in the parent."""
        for op in [*self.active, *self.messages, *self._submitted]:
            op.finish(op.group.problem())
        self.watch.close()

    # -- the wheel ----

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
            self.watch.nudge()
        if not self._driving.locked():
            self._unpark()

    def _unpark(self) -> None:
        try:
            self._park.release()
        except RuntimeError:
            pass  # awake already

    def _background(self) -> None:
        torch.set_grad_enabled(False)
        while True:
            self._park.acquire()
            if self._closing:
                return
            while not self._closing and self._begun() and self._driving.acquire(blocking=False):
                try:
                    self._drive(None)
                except Exception as problem:
                    self._collapse(problem)
                finally:
                    self._step_down()

    def _collapse(self, problem: Exception) -> None:
        """A mistake of ours in the background: fail what is under way rather than hang."""
        log.logger.exception("the progress loop failed; please report this")
        for group in {op.group for op in [*self.active, *self.messages]}:
            group.fail(None, problem)
