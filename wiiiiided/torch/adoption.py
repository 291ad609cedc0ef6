"""Stock DDP and FSDP2 in shared memory: their buffers come to lie where collectives need no copy.

    DDP     its reducer owns the buckets, and asks only a backend written in C++ for their memory.
            So a bucket that is exchanged for the second time (after the first iteration all are
            rebuilt) is *moved*: the segment's memory is swapped under its storage, and every view
            of it, the gradients included, follows.
    FSDP2   asks the group for its buffers, if a program lets it, and gives them back each step.
            They come from a pool that grows while training: a buffer for which the pool has no
            room is private, and the collective that uses it brings the pool one more.

Both are agreed upon inside the collective (`Offer`): ranks that do not agree, and machines on which
it cannot be, go on as without. WIIIIIDE_ADOPT=off turns it off.
"""

# `_swap_data_ptr_` is not in torch's stubs.
# mypy: disable-error-code="attr-defined"

from __future__ import annotations

import heapq
import sys
import weakref

import torch

from wiiiiided.backend.engine.shared_tensors import PRIVATE, Offer, Placement
from wiiiiided.backend.shm import stats
from wiiiiided.backend.shm.slots import Array
from wiiiiided.backend.shm.stats import StatsPage

# Below this a call's fixed cost is what it takes, not its copies (bench/one_host.py).
LEAST_BYTES = 256 * 1024
_TRIES = 3  # offers of one bucket that another rank did not match
_MOST_SEEN = 256  # buckets remembered: a model has a few dozen
_MOST_BUFFERS = 4  # of one size: what FSDP2 has under way at once, when it prefetches

_CAN_SWAP = hasattr(torch.UntypedStorage, "_swap_data_ptr_")


class Adoption:
    """The tensors a group of one host moves into shared memory by itself."""

    def __init__(self, allowed: bool, page: StatsPage) -> None:
        self.allowed = allowed
        self._page = page
        self._seen: dict[tuple[int, int], int] = {}  # (address, bytes) → calls with a private one
        self._wanted: dict[int, int] = {}  # address → bytes of buffers for which the pool was empty
        self._made: dict[int, int] = {}  # bytes → buffers of the pool
        self._free: dict[int, list[tuple[int, Array]]] = {}  # bytes → heap of (number, memory)

    # -- DDP ----

    def bucket(self, tensor: torch.Tensor, nbytes: int) -> Placement:
        """An offer for a private tensor that is to be reduced, if it is a bucket of DDP's."""
        if nbytes < LEAST_BYTES or not (self.allowed and _CAN_SWAP and _called_by_autograd()):
            return PRIVATE
        storage = tensor.untyped_storage()
        if tensor.storage_offset() or storage.nbytes() != nbytes:
            return PRIVATE
        # A numpy array, or another process, has the memory and would not follow: torch marks both.
        if not storage.resizable() or storage.is_shared():
            return PRIVATE
        key = (storage.data_ptr(), nbytes)
        if len(self._seen) >= _MOST_SEEN:
            self._seen.clear()
        calls = self._seen[key] = self._seen.get(key, 0) + 1
        if not 1 < calls <= 1 + _TRIES:
            return PRIVATE
        before: list[torch.UntypedStorage] = []  # the collective's plan still points there

        def move(mine: Array) -> None:
            moved = torch.from_numpy(mine).untyped_storage()
            moved.copy_(storage)
            storage._swap_data_ptr_(moved)
            before.append(moved)
            self._seen.pop(key, None)
            self._adopted(nbytes)

        return Offer(nbytes, move, moves=True)

    # -- FSDP2 ----

    def allocate(self, count: int, dtype: torch.dtype) -> torch.Tensor:
        """Memory for a buffer: from the pool, or private if there is none."""
        nbytes = count * dtype.itemsize
        free = self._free.get(nbytes)
        if not free:
            tensor = torch.empty(count, dtype=dtype)
            if nbytes >= LEAST_BYTES and self._made.get(nbytes, 0) < _MOST_BUFFERS:
                if len(self._wanted) >= _MOST_SEEN:
                    self._wanted.clear()
                self._wanted[tensor.data_ptr()] = nbytes
            return tensor
        # The same one on all ranks, if all have it: else they could not use it in place. A heap is
        # changed in one go: the progress thread may be giving a buffer back just now.
        number, mine = heapq.heappop(free)
        lent = mine[:]
        # torch keeps `lent` as long as a tensor lies there.
        weakref.finalize(lent, heapq.heappush, free, (number, mine))
        return torch.from_numpy(lent).view(dtype)

    def buffer(self, tensor: torch.Tensor) -> Placement:
        """An offer for a private tensor that is to be gathered or scattered, if it lies in a
        buffer for which the pool was empty."""
        if not self._wanted:
            return PRIVATE
        nbytes = self._wanted.pop(tensor.untyped_storage().data_ptr(), 0)
        if not nbytes or self._made.get(nbytes, 0) >= _MOST_BUFFERS:
            return PRIVATE

        def keep(mine: Array) -> None:
            self._made[nbytes] = self._made.get(nbytes, 0) + 1
            heapq.heappush(self._free.setdefault(nbytes, []), (self._made[nbytes], mine))
            self._adopted(nbytes)

        return Offer(nbytes, keep, moves=False)

    def release(self) -> None:
        """Let go of a group that is closed."""
        self._free.clear()
        self._wanted.clear()

    def _adopted(self, nbytes: int) -> None:
        self._page.words[stats.ADOPTED] += 1
        self._page.words[stats.ADOPTED_BYTES] += nbytes


def _called_by_autograd() -> bool:
    """Whether C++ called the group's method from inside a backward pass: that is DDP's reducer.

    A tensor that a program hands over itself is not ours to move: its storage could not be resized
    any more.
    """
    try:
        caller = sys._getframe(3)  # of the group's method: this one is called by `bucket`
    except ValueError:  # a thread of C++'s own
        return True
    return caller.f_globals.get("__name__") == "torch.autograd.graph"
