"""The writer's priority: it gives way to training until ranks wait for it."""

from __future__ import annotations

import errno
import os
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.kit.ranks import Rank, run_ranks
from tests.train.checkpoints.trained import (
    Trained,
)
from wiiiiided.train.checkpoints import writer


def test_a_writer_gives_way_until_it_is_told_that_ranks_wait() -> None:
    told, teller = os.pipe()
    mine = os.getpriority(os.PRIO_PROCESS, 0)
    seen: list[tuple[int, bool]] = []

    def pieces() -> Iterator[None]:
        for _ in range(3):
            seen.append(_here())
            yield
        os.write(teller, b"now")
        while seen[-1] != (mine, True):  # the thread goes on until it has heard
            seen.append(_here())
            yield

    def _here() -> tuple[int, bool]:
        is_main = threading.current_thread() is threading.main_thread()
        return os.getpriority(os.PRIO_PROCESS, 0), is_main

    writer.yielding(pieces(), told)
    assert seen[:3] == [(min(mine + writer._NICE, 19), False)] * 3
    assert seen[-1] == (mine, True)
    os.close(told)
    os.close(teller)


def test_a_writer_that_nobody_waits_for_ends_by_itself_and_says_what_went_wrong() -> None:
    told, teller = os.pipe()
    made: list[int] = []

    def pieces() -> Iterator[None]:
        for n in range(5):
            made.append(n)
            yield
        raise OSError(errno.ENOSPC, "No space left on device")

    with pytest.raises(OSError, match="No space left"):
        writer.yielding(pieces(), told)
    assert made == [*range(5)]
    os.close(told)
    os.close(teller)


# A writer that only says what it was told.
_LISTENER = """
import sys
said = sys.stdin.read()
with open(sys.argv[3] + ".told", "w") as file:
    file.write(said)
"""


def _is_told(me: Rank, base: str) -> list[str]:
    listener = Path(base) / "listener.py"
    listener.write_text(_LISTENER)
    writer.__file__ = str(listener)
    trained = Trained(f"{base}/ckpt", save_every=2)
    trained.train(3)  # the writer of step 2 is at work
    trained.run.save()
    return sorted(path.read_text() for path in Path(base).glob("ckpt/*.told"))


def test_a_save_that_ranks_wait_for_tells_the_writer_and_the_one_before_it(tmp_path: Path) -> None:
    assert run_ranks(_is_told, 1, str(tmp_path)) == [["now", "now"]]
