"""A daemon whose shims wait until a test lets them begin.

    python -m tests.cluster.daemon.slow_shims

For what can happen between the start of a shim and its claim.

    with may_begin(daemon.home): …      those that wait, and those to come
"""

from __future__ import annotations

import contextlib
import os
import sys
from collections.abc import Iterator
from pathlib import Path

from wiiiiided.cluster.allocation import shim_process
from wiiiiided.cluster.daemon import main

GATE = "may-begin"  # a FIFO: to open it for reading waits until it is open for writing

real = shim_process.shim_command


def slow(*arguments: str) -> list[str]:
    if arguments[0].startswith("--"):
        return real(*arguments)
    command = real(*arguments)
    gate = f"{os.environ['WIIIIIDE_HOME']}/{GATE}"
    # The words stay those of a shim, so that a test finds it; no other process has them meanwhile.
    return ["/bin/sh", "-c", ': < "$0"; exec "$@"', gate, *command]


@contextlib.contextmanager
def may_begin(home: Path) -> Iterator[None]:
    held = os.open(home / GATE, os.O_RDWR)
    try:
        yield
    finally:
        os.close(held)


if __name__ == "__main__":
    with contextlib.suppress(FileExistsError):
        os.mkfifo(f"{os.environ['WIIIIIDE_HOME']}/{GATE}")
    shim_process.shim_command = slow
    sys.exit(main.main([]))
