"""One rank of one test: sets up what the suite expects of its process and runs the test there."""

from __future__ import annotations

import contextlib
import faulthandler
import logging
import multiprocessing
import os
import signal
import sys
from pathlib import Path

# How the server asks a rank that hangs for its stacks.
SHOW_STACKS = signal.SIGUSR1


def main(rank: int, ranks: int, hosts: int, test: str, folder: Path) -> None:
    """Run `test` and exit as the suite exits; what is printed goes to `output(folder, rank)`."""
    if hosts > 1:  # neighbours lie apart: ranks 0 and 2 against rank 1
        os.environ["WIIIIIDE_HOST_ID"] = f"host{rank % hosts}"
    log = os.open(output(folder, rank), os.O_WRONLY | os.O_CREAT | os.O_APPEND)
    os.dup2(log, 1)
    os.dup2(log, 2)
    faulthandler.enable()
    faulthandler.register(SHOW_STACKS)
    os.environ["WORLD_SIZE"] = str(ranks)
    os.environ["TEMP_DIR"] = str(folder)

    from torch.testing._internal import common_distributed

    from tests.conformance import suite  # loaded already, in the process this one is a fork of

    # The suite reports a failure twice, through a pipe and, with a prefix to every line, through
    # a logger. The first is for reading.
    logging.getLogger(common_distributed.__name__).setLevel(logging.CRITICAL)
    ours, theirs = multiprocessing.Pipe()
    try:
        suite.run(rank, test, folder, theirs)
    finally:
        theirs.close()
        with contextlib.suppress(EOFError):
            print(ours.recv(), file=sys.stderr)
        sys.stdout.flush()
        sys.stderr.flush()


def prepare(folder: Path) -> None:
    """Make the folders and the file the suite's ranks meet in."""
    for name in ("barrier", "test_dir", "init_dir"):
        (folder / name).mkdir(parents=True)
    (folder / "store").touch()


def output(folder: Path, rank: int) -> Path:
    """Where `rank` prints."""
    return folder / f"rank{rank}.log"
