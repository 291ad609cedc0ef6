"""A DataLoader's worker outlives the SIGTERM that ends its job, until its rank has saved.

The end of a job is a SIGTERM to all its processes. A worker that died of it would take its rank
along, in the middle of a step: torch raises in the rank as soon as a worker is gone. So a worker
takes SIGTERM from its own rank alone (a DataLoader ends a worker so that hangs), and goes when its
rank goes. The signal is blocked from its first instruction on: it inherits that from its rank.
"""

from __future__ import annotations

import contextlib
import multiprocessing
import os
import signal
import threading
from collections.abc import Callable, Iterator
from typing import Final

_LOOK_S: Final = 1.0  # between two looks at the rank


@contextlib.contextmanager
def starting_workers() -> Iterator[None]:
    """Hold back SIGTERM while a rank starts its workers; it comes afterwards."""
    before = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGTERM})
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


def begin_worker(given: Callable[[int], None] | None, number: int) -> None:
    """Begin a worker, before its first batch; `given`: the script's own worker_init_fn."""
    threading.Thread(target=_end_with_rank, daemon=True, name="wiiiiide-worker").start()
    if given is not None:
        given(number)


def _end_with_rank() -> None:
    rank = multiprocessing.parent_process()
    while rank is not None and rank.is_alive():
        came = signal.sigtimedwait({signal.SIGTERM}, _LOOK_S)
        if came is not None and came.si_pid == rank.pid:
            break
    os._exit(0)
