"""Requests that may take long, each in a thread: connecting, cancelling. The loop goes on.

    run("watch", function) ──thread──► result or ClientError ──► queue, and a byte into the pipe
                                                                  └──► the loop: `done()`

A daemon may be stuck for half a minute before it is known to be; a job may use all its grace period
to end. Threads are daemonic: when the screen closes, it does not wait for them.
"""

from __future__ import annotations

import contextlib
import os
import queue
import threading
from collections.abc import Callable
from typing import NamedTuple

from wiiiiided.cluster.client import ClientError

AT_ONCE = 16  # requests under way; more are refused


class Done(NamedTuple):
    name: str
    result: object  # the function's result, or its ClientError


class BackgroundRequests:
    """Runs requests, each in a thread; `wake_fd` gets a byte when one is done."""

    def __init__(self, wake_fd: int) -> None:
        self._wake_fd = wake_fd
        self._done: queue.SimpleQueue[Done] = queue.SimpleQueue()
        self._under_way: set[str] = set()
        self._lock = threading.Lock()
        self._closed = False

    def close(self) -> None:
        """Write no more to `wake_fd`: the loop has ended."""
        with self._lock:
            self._closed = True

    def run(self, name: str, function: Callable[[], object]) -> bool:
        """Begin a request; False when one of this name, or too many, are under way."""
        if name in self._under_way or len(self._under_way) >= AT_ONCE:
            return False
        self._under_way.add(name)
        threading.Thread(target=self._go, args=(name, function), daemon=True).start()
        return True

    def done(self) -> list[Done]:
        found = []
        with contextlib.suppress(queue.Empty):
            while True:
                found.append(self._done.get_nowait())
        self._under_way -= {each.name for each in found}
        return found

    def _go(self, name: str, function: Callable[[], object]) -> None:
        try:
            result = function()
        except ClientError as problem:
            result = problem
        except Exception as problem:  # a bug, but not one to lose the screen for
            result = ClientError(f"{type(problem).__name__}: {problem}")
        self._done.put(Done(name, result))
        with self._lock, contextlib.suppress(BlockingIOError):  # full: the loop will wake anyway
            if not self._closed:
                os.write(self._wake_fd, b"\0")
