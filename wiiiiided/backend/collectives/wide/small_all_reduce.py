"""Small all_reduces that wait behind one another, coalesced: one step, one frame, one trip.

A rank must not decide alone what it puts together: the others may have queued more, or less. So
every small all_reduce says along with its data how many more its rank has queued behind it, as far
as they fit a slot (on the board to those of its host, in OPEN to the other hosts). Every rank has
every other's number before it is done, so the smallest is known to all: `wide.agreed`. The next
operation in the queue then runs that many as one:

    slot, and payload of OPEN:   │ x of the 1st │ x of the 2nd │ … │   each at a multiple of 64

(in the payload, sums of half precision are float32: see all_reduce)

and says itself how many wait behind the batch. The calls must be the same on all ranks, which their
digests show; where they are not, nothing is done, and one by one the wrong one is found and named.
"""

from __future__ import annotations

from collections.abc import Generator, Sequence
from itertools import islice
from typing import TYPE_CHECKING, Any, Final, NamedTuple

import numpy as np

from wiiiiided.backend.engine.group import Group
from wiiiiided.backend.engine.operation import BatchItem, Wait
from wiiiiided.backend.shm.board import CallSignature
from wiiiiided.backend.shm.slots import SMALL_BYTES, Array

if TYPE_CHECKING:
    from wiiiiided.backend.shm.kernels import Reduction

ALIGN: Final = 64
MOST: Final = 512  # operations in a batch
_BYTE: Final = np.dtype(np.uint8)
_DISSENT: Final = CallSignature(
    "different calls in one batch", 0, CallSignature.of("different calls").raw
)


class _OperationRun(NamedTuple):
    """Operations of one kind that lie beside each other: they are added up as one array."""

    reduction: Reduction
    dtype: np.dtype[Any]
    begin: int
    end: int

    def carried(self, ranks: int) -> np.dtype[Any]:
        return self.reduction.carried(self.dtype, ranks)


def queued_items(group: Group, begin: int) -> int:
    """How many small all_reduces wait in the queue from `begin` on, as far as they fit a slot."""
    queue = group.queue
    if len(queue) <= begin:
        return 0
    count = total = 0
    for op in islice(queue, begin, begin + MOST):
        if op.batch_item is None:
            break
        total += _room(op.batch_item)
        if total > SMALL_BYTES:
            break
        count += 1
    return count


def run_batch(group: Group, first: BatchItem) -> Generator[Wait, None, bool]:
    """Run the operation at the head of the queue with those behind it that all agreed on.

    False: the ranks called different things, and nothing was done.
    """
    wide, team = group.wide, group.team
    assert wide is not None
    count, wide.agreed = wide.agreed, 0
    behind = (op.batch_item for op in islice(group.queue, 1, count))
    items = [first, *(item for item in behind if item is not None)]
    starts, total = _layout(items)
    call, runs = _call_of(items), _runs(items, starts)
    mine = np.zeros(total, np.uint8)
    for start, (*_, x) in zip(starts, items, strict=True):
        mine[start : start + x.nbytes] = x.view(np.uint8)
    same, ahead, sequence = True, queued_items(group, count), wide.begin()
    sums = mine
    if team.size > 1:
        team.parity = parity = team.parity ^ 1
        team.board.announce(call, parity)
        team.board.announce_ahead(parity, ahead)
        slots = [slot[:total] for slot in team.small.next(_BYTE)]
        slots[team.rank][:] = mine
        yield team.arrive()
        same, ahead = team.board.same_calls(call, parity), team.board.least_ahead(parity)
        if same:
            sums = np.empty(_sums_bytes(runs, team.size), np.uint8)
            for run, into in zip(runs, _sums_of(runs, team.size, sums), strict=True):
                parts = [slot[run.begin : run.end].view(run.dtype) for slot in slots]
                run.reduction.partial(parts, into)
    wide.open(sequence, call if same else _DISSENT, sums, ahead)
    yield wide.opened(sequence)
    said = wide.hear(sequence)
    if not same or any(there.digest != call.digest for there in said.values()):
        return False
    wide.agreed = min(ahead, *(there.ahead for there in said.values()))
    by_host = [
        _sums_of(
            runs, len(ranks), sums if h == wide.host else np.frombuffer(said[h].data, np.uint8)
        )
        for h, ranks in enumerate(wide.hosts)
    ]
    results = np.empty(total, np.uint8)
    for run, *parts in zip(runs, *by_host, strict=True):
        run.reduction.final(parts, results[run.begin : run.end].view(run.dtype))
    for start, (*_, x) in zip(starts, items, strict=True):
        x.view(np.uint8)[:] = results[start : start + x.nbytes]
    for _ in items[1:]:
        group.driver.finish_next(group)
    return True


def _room(item: BatchItem) -> int:
    return -(-item.x.nbytes // ALIGN) * ALIGN


def _layout(items: Sequence[BatchItem]) -> tuple[list[int], int]:
    starts, at = [], 0
    for item in items:
        starts.append(at)
        at += _room(item)
    return starts, at


def _runs(items: Sequence[BatchItem], starts: Sequence[int]) -> list[_OperationRun]:
    runs: list[_OperationRun] = []
    for start, item in zip(starts, items, strict=True):
        reduction, dtype = item.reduction, item.x.dtype
        end = start + _room(item)
        if runs and (runs[-1].reduction, runs[-1].dtype) == (reduction, dtype):
            runs[-1] = runs[-1]._replace(end=end)
        else:
            runs.append(_OperationRun(reduction, dtype, start, end))
    return runs


def _sums_bytes(runs: Sequence[_OperationRun], ranks: int) -> int:
    """How much a host with so many ranks sends."""
    return sum(
        (run.end - run.begin) // run.dtype.itemsize * run.carried(ranks).itemsize for run in runs
    )


def _sums_of(runs: Sequence[_OperationRun], ranks: int, payload: Array) -> list[Array]:
    """The sends of a host with so many ranks, run by run."""
    found, at = [], 0
    for run in runs:
        dtype = run.carried(ranks)
        end = at + (run.end - run.begin) // run.dtype.itemsize * dtype.itemsize
        found.append(payload[at:end].view(dtype))
        at = end
    return found


def _call_of(items: Sequence[BatchItem]) -> CallSignature:
    """The batch as a call: equal digests on all ranks if all of its calls are."""
    digests = tuple(item.digest for item in items)
    return CallSignature.of(
        f"{len(items)} small operations as one [{hash(digests) & (2**64 - 1):x}]"
    )
