"""Waiting for something to become true, with a deadline, instead of sleeping."""

from __future__ import annotations

import time
from collections.abc import Callable


def wait_until(
    condition: Callable[[], bool], timeout_s: float, what: str, every_s: float = 0.005
) -> None:
    """Return as soon as `condition()` is true; fail the test when time is up.

    The last look begins after the deadline: if this process itself stood still, it may be true now.
    """
    deadline = time.monotonic() + timeout_s
    while True:
        late = time.monotonic() > deadline
        if condition():
            return
        if late:
            raise AssertionError(f"not within {timeout_s:g} s: {what}")
        time.sleep(every_s)
