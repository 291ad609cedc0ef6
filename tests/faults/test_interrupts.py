"""Ctrl-C at any moment: the driver's lock is never lost, and every operation that fails says so."""

from __future__ import annotations

import contextlib
import os
import signal
import sys
import threading
import time
from datetime import timedelta
from types import FrameType

import torch
import torch.distributed as dist

from tests.kit.conditions import wait_until
from tests.kit.ranks import Outcome, Rank, note, run_ranks, watch_ranks
from wiiiiided.backend.shm.board import fence
from wiiiiided.errors import UsageError, WiiiiideError
from wiiiiided.torch import links


def _interrupt_often(me: Rank) -> int:
    """A rank alone, interrupted all the time; every call must end, in a result or an error."""
    stop = threading.Event()
    body, calling = sys._getframe(), False

    def hit(_: int, frame: FrameType | None) -> None:
        if calling and frame is not body:  # what hits this function itself is no call's business
            raise KeyboardInterrupt

    def shoot() -> None:
        while not stop.wait(0.002):
            os.kill(os.getpid(), signal.SIGINT)

    shooter = threading.Thread(target=shoot)
    x = torch.ones(4)
    interrupts = 0
    signal.signal(signal.SIGINT, hit)
    shooter.start()
    until = time.monotonic() + 3.0
    while time.monotonic() < until:
        calling = True
        try:
            dist.all_reduce(x)
        except KeyboardInterrupt:
            interrupts += 1
        except WiiiiideError:  # the interrupt hit a plan, and the group with it
            break
    calling = False
    stop.set()
    shooter.join()
    return interrupts


def test_a_rank_that_is_interrupted_again_and_again_can_still_destroy_its_group() -> None:
    for outcome in watch_ranks(_interrupt_often, 1):
        assert outcome.exit_code == 0, outcome.trace or outcome.error
        assert outcome.value is not None, outcome.trace
        assert outcome.value > 0


def _leaves_from_a_handler(me: Rank) -> None:
    def handle(number: int, frame: FrameType | None) -> None:
        note("handler")
        dist.destroy_process_group()
        sys.exit(3)

    signal.signal(signal.SIGTERM, handle)
    x = torch.ones(1000)
    note("ready")
    while True:
        dist.all_reduce(x)
        x.fill_(1)


class Terminator:
    """Sends SIGTERM to all ranks, again and again, once they are in their loop."""

    def __call__(self, outcomes: list[Outcome], elapsed_s: float) -> None:
        if all(outcome.notes for outcome in outcomes):
            for outcome in outcomes:
                if len(outcome.notes) < 2 and outcome.exit_code is None:
                    with contextlib.suppress(ProcessLookupError):
                        os.kill(outcome.pid, signal.SIGTERM)


def test_a_signal_handler_may_leave_the_group_in_the_middle_of_a_call() -> None:
    for outcome in watch_ranks(_leaves_from_a_handler, 2, during=Terminator()):
        assert outcome.error == "SystemExit: 3", (outcome.error, outcome.trace)


def _looks_from_a_handler(me: Rank) -> float:
    store = dist.distributed_c10d._get_default_store()
    x = torch.ones(1000)
    if me.rank == 1:
        said = store.get("refused")  # late until then
        assert b"a signal handler cannot call the backend" in said
        dist.all_reduce(x)
        return x.sum().item()

    def handle(number: int, frame: FrameType | None) -> None:
        try:
            links()
            signal.setitimer(signal.ITIMER_REAL, 0.05)  # it came before the call
        except UsageError as error:
            store.set("refused", str(error))

    signal.signal(signal.SIGALRM, handle)
    signal.setitimer(signal.ITIMER_REAL, 0.05)
    dist.all_reduce(x)
    return x.sum().item()


def test_another_call_of_a_signal_handler_is_refused_and_the_interrupted_one_goes_on() -> None:
    assert run_ranks(_looks_from_a_handler, 2) == [2000.0] * 2


def test_a_fence_interrupted_between_its_halves_works_again() -> None:
    from wiiiiided.backend.shm import board

    board._fence_lock.release()  # what an interrupt leaves behind
    fence()
    fence()
    assert board._fence_lock.locked()


def _mismatch_before_many(me: Rank) -> int:
    works = []
    first = torch.ones(4 if me.rank == 0 else 5)
    works.append(dist.all_reduce(first, async_op=True))
    works += [dist.all_reduce(torch.ones(4), async_op=True) for _ in range(2000)]
    failed = 0
    for work in works:
        assert work is not None
        try:
            work.wait(timedelta(seconds=20))
        except WiiiiideError:
            failed += 1
    return failed


def test_everything_queued_behind_a_mismatch_fails_however_much_it_is() -> None:
    assert run_ranks(_mismatch_before_many, 2, timeout_s=60) == [2001, 2001]


def _give_up_a_send(me: Rank) -> float:
    """Rank 0 offers a message, gives up, and sends another: the receiver gets the other."""
    if me.rank == 0:
        process_group = dist.group.WORLD
        assert process_group is not None
        lost = process_group.send([torch.zeros(100_000)], 1, 7)
        group = process_group.engine_group  # type: ignore[attr-defined]
        wait_until(lambda: lost._op.begun_ns > 0, 30, "the message is offered")
        group.loop.call(lambda: group.give_up(lost._op))
        try:
            lost.wait()
            raise AssertionError("the send must have given up")
        except WiiiiideError:
            pass
        dist.barrier()
        dist.send(torch.full((100_000,), 5.0), 1, tag=7)
        return 5.0
    dist.barrier()
    x = torch.empty(100_000)
    dist.recv(x, 0, tag=7)
    return float(x[-1])


def test_a_send_that_gave_up_leaves_the_way_free_for_the_next() -> None:
    assert run_ranks(_give_up_a_send, 2) == [5.0, 5.0]


def _close_in_mid_transfer(me: Rank) -> float:
    """A group is destroyed while a large message is on the lane that another group uses too."""
    other = dist.new_group([0, 1])
    big = torch.ones(1_000_000)
    if me.rank == 0:
        works = [dist.isend(big, 1, group=other) for _ in range(3)]
        dist.barrier()
        dist.destroy_process_group(other)
        assert works
        dist.send(torch.full((1_000_000,), 3.0), 1)
        return 3.0
    work = dist.irecv(torch.empty(1_000_000), 0, group=other)
    dist.barrier()
    dist.destroy_process_group(other)
    assert work is not None
    x = torch.empty(1_000_000)
    dist.recv(x, 0)
    return float(x[-1])


def test_a_group_closed_in_mid_transfer_leaves_the_lane_to_the_others() -> None:
    for _ in range(3):
        assert run_ranks(_close_in_mid_transfer, 2) == [3.0, 3.0]
