"""A host's shared memory for training: control words, weights, and the rows of gradients.

    │ control                                     │ weights │ rows for place 0 │ for place 1 │ …
      began, completed, left, loads, fresh, waits, pauses: a word for each place
      progress: a word that ranks sleep on (asynchronous updates)
      records, even and odd: of each place the words and presence bytes that ranks tell each other

A rank lays what another rank updates into its row there; `layout` draws rows.

A *place* is a rank's number among those of its host. Every word has one writer. Records come in
two copies because a rank may write its next one while a slower rank still reads this one; it
cannot be two ahead, since all meet between two records.

A step is one operation of the group's board with two barriers (`StepBarrier`):

    a rank that updates       arrive ── wait for all ── average, update ── arrive ── wait for all
    one that has no part      arrive ─ arrive ───────────────────────────────────── wait for all

The second kind sleeps once. Of ten ranks that train a small model nine are of it.

Torn steps. A rank writes `began = n` before it meets the others for step n, and `completed = n`
after its last weight. A weight is written only after all have met: so if all have begun step n and
not all have completed it, the weights may be neither those of step n-1 nor those of step n,
whatever ended the step: an exception, a Ctrl-C, a SIGKILL. If one has not begun, they are whole.
It may still begin, and find all others in the barrier, after one of them has left it with an error
and looks at the weights: that one has written `left = n` first, and a rank that has met the others
writes no weight of a step that one has left. Each writes its word before it reads the other's.

Forked children (a DataLoader's workers) map the same memory; in them it is mapped anew as private
memory that is copied page by page when it is written. So a child's writes stay its own, and a
child that never looks at the weights costs nothing. (Copying all weights into every child was the
alternative: 200 MB a worker for 50 M parameters.)
"""

from __future__ import annotations

import ctypes
import mmap
import os
import sys
import threading
import weakref
from collections.abc import Callable, Sequence
from typing import Any, Final, NamedTuple

import numpy as np
import torch

from wiiiiided.backend.collectives.local.barrier import barrier
from wiiiiided.backend.engine.group import Group
from wiiiiided.backend.engine.operation import Operation, Plan
from wiiiiided.backend.shm.board import CallSignature
from wiiiiided.backend.shm.futex import FutexWord
from wiiiiided.backend.shm.segment import Segment
from wiiiiided.errors import HostError, PeerLost, UsageError
from wiiiiided.train.layout import Row, aligned, offsets

_MAP_FIXED: Final = 0x10  # Linux's number; Python's mmap module has no name for it
WORDS: Final = 8  # int64 words at the head of a record
_COUNTERS: Final = 8  # rows of words; the last one is `progress`

Bytes = np.ndarray[Any, np.dtype[np.uint8]]
Words = np.ndarray[Any, np.dtype[np.int64]]


class Record(NamedTuple):
    """A rank's record at a barrier: words, and a byte for each parameter."""

    words: Words
    present: Bytes


def run_plan(group: Group, name: str, plan: Plan, nbytes: int = 0) -> None:
    """Run a blocking operation of the group; raises what it failed with."""
    seq = group.number()

    def make() -> Operation:
        return Operation(group, name, nbytes, plan, seq=seq)

    problem = group.problem()
    if problem is not None:
        raise group.error_for(make(), problem)
    op = group.loop.run_inline(group, plan, nbytes, make)
    if op is not None and op.error is not None:
        raise op.error


def host_barrier(group: Group, call: CallSignature) -> None:
    """Wait until all ranks of this host have called the same."""
    run_plan(group, call.text, barrier(group.team, call))


class StepBarrier:
    """The two barriers of a step. No other operation of the group may come between them."""

    def __init__(self, group: Group, call: CallSignature) -> None:
        self._group, self._team, self._call = group, group.team, call

    def enter(self) -> None:
        """Wait until all ranks of this host have begun the step; `leave` must follow."""
        run_plan(self._group, self._call.text, self._enter())

    def leave(self) -> None:
        """Wait until all other ranks have done their parts, as this one has."""
        run_plan(self._group, self._call.text, self._leave())

    def pass_by(self) -> None:
        """Enter and leave at once, for a rank that has no part."""
        self._group.number()  # the numbers of operations stay the same on all ranks
        run_plan(self._group, self._call.text, self._pass_by())

    def _announce(self) -> None:
        team = self._team
        team.parity ^= 1
        team.board.announce(self._call, team.parity)

    def _verify(self) -> None:
        if not self._team.board.same_calls(self._call, self._team.parity):
            self._team.verify(self._call)

    def _enter(self) -> Plan:
        self._announce()
        yield self._team.arrive()
        self._verify()

    def _leave(self) -> Plan:
        yield self._team.arrive()

    def _pass_by(self) -> Plan:
        self._announce()
        self._team.arrive()
        yield self._team.arrive()
        self._verify()


class MappedMemory:
    """Memory that every rank of this host maps whole."""

    def __init__(self, group: Group, what: str, nbytes: int) -> None:
        made: list[Segment] = []
        call = CallSignature.of(f"{what} of {nbytes} bytes")
        run_plan(group, what, group.team.shared.make_common(call, nbytes, made))
        self.segment = made[0]
        self.bytes: Bytes = np.frombuffer(self.segment.map, np.uint8, nbytes)
        _private_after_fork(self)

    def tensor(self, offset: int, count: int, dtype: torch.dtype) -> torch.Tensor:
        """A flat tensor with a storage of its own: saving it saves no more than it."""
        if not count:
            return torch.empty(0, dtype=dtype)
        raw = np.frombuffer(self.segment.map, np.uint8, count * dtype.itemsize, offset)
        with torch.inference_mode(False):
            return torch.from_numpy(raw).view(dtype)

    def make_private(self) -> None:
        """Put a forked child's own memory behind the same addresses."""
        address = self.bytes.__array_interface__["data"][0]
        libc = ctypes.CDLL(None, use_errno=True)
        libc.mmap.restype = ctypes.c_void_p
        libc.mmap.argtypes = [ctypes.c_void_p, ctypes.c_size_t, *[ctypes.c_int] * 3, ctypes.c_long]
        flags = mmap.MAP_PRIVATE | _MAP_FIXED
        access = mmap.PROT_READ | mmap.PROT_WRITE
        at = libc.mmap(address, self.segment.nbytes, access, flags, self.segment.fd, 0)
        if at != address:
            raise HostError(
                f"a forked child cannot have memory of its own: errno {ctypes.get_errno()}"
            )


_in_children: weakref.WeakSet[MappedMemory] = weakref.WeakSet()
_registered: list[Callable[[], None]] = []


def _private_after_fork(memory: MappedMemory) -> None:
    _in_children.add(memory)
    if not _registered:
        os.register_at_fork(after_in_child=_make_all_private)
        _registered.append(_make_all_private)


def _make_all_private() -> None:
    try:
        for memory in list(_in_children):
            memory.make_private()
    except HostError as problem:  # what a hook raises is only printed: the child would go on
        print(f"wiiiiide: {problem}", file=sys.stderr, flush=True)
        os._exit(1)


class HostMemory:
    """The memory of one `Parallel` on this host."""

    def __init__(self, group: Group, sizes: list[int], rows: Sequence[Row]) -> None:
        """`sizes`: the parameters' bytes; `rows`: by place. A collective call of the host."""
        self._group = group
        self.place, self.places = group.team.rank, group.team.size
        self.offsets, self.area_bytes = offsets(sizes)
        self._record_bytes = aligned(WORDS * 8 + len(sizes))
        self._records_at = _COUNTERS * aligned(8 * self.places)
        self._weights_at = self._records_at + 2 * self.places * self._record_bytes
        self._rows, total = self._place_rows(rows, self._weights_at + self.area_bytes)
        self.mapped = MappedMemory(group, "memory of wide.parallel", total)
        words = self.mapped.bytes[: self._records_at].view(np.int64).reshape(_COUNTERS, -1)
        (
            self.began,
            self.completed,
            self._loaded,
            self.left,
            self._fresh,
            self.waits,
            self.pauses,
        ) = (row[: self.places] for row in words[: _COUNTERS - 1])
        at = (_COUNTERS - 1) * aligned(8 * self.places)
        self.progress = FutexWord(self.mapped.segment.map, at)
        self._order = threading.Lock()
        self._records = [
            [self._record(p, r, len(sizes)) for r in range(self.places)] for p in (0, 1)
        ]
        self._tables = [self._table(parity) for parity in (0, 1)]
        self._mine = [table[self.place] for table in self._tables]
        self._parity = 0

    def _place_rows(self, rows: Sequence[Row], at: int) -> tuple[list[list[tuple[int, int]]], int]:
        """Where each row begins and ends: [place that updates][place that it comes from]."""
        found: list[list[tuple[int, int]]] = []
        for owner, row in enumerate(rows):
            found.append([])
            for sender in range(self.places):
                nbytes = row.staged_bytes if sender == owner else row.nbytes
                found[-1].append((at, at + nbytes))
                at += nbytes
        return found, at

    def _record(self, parity: int, place: int, count: int) -> Record:
        at = self._records_at + (parity * self.places + place) * self._record_bytes
        raw = self.mapped.bytes[at : at + self._record_bytes]
        return Record(raw[: WORDS * 8].view(np.int64), raw[WORDS * 8 : WORDS * 8 + count])

    def _table(self, parity: int) -> Bytes:
        """All records of one parity, one row a place."""
        size = self.places * self._record_bytes
        at = self._records_at + parity * size
        return self.mapped.bytes[at : at + size].reshape(self.places, -1)

    # -- where things lie ----

    def weight(self, parameter: int, count: int, dtype: torch.dtype) -> torch.Tensor:
        """A parameter's weights, flat."""
        return self.mapped.tensor(self._weights_at + self.offsets[parameter], count, dtype)

    def row(self, owner: int, sender: int) -> torch.Tensor:
        """The gradients, as bytes, that `sender` has of what `owner` updates."""
        begin, end = self._rows[owner][sender]
        return self.mapped.tensor(begin, end - begin, torch.uint8)

    def weights(self) -> Bytes:
        """All weights as bytes."""
        return self.mapped.bytes[self._weights_at : self._weights_at + self.area_bytes]

    # -- records ----

    def write_record(self, words: Words, present: Bytes) -> None:
        """Write this rank's record for the next barrier; it stays until the one after."""
        self._parity ^= 1
        mine = self._records[self._parity][self.place]
        mine.words[:] = words
        mine.present[:] = present

    def records(self) -> list[Record]:
        """The records of this host's ranks, in order of places; they have met."""
        return self._records[self._parity]

    def all_alike(self) -> bool:
        """Whether all ranks have told the same."""
        # As bytes: a tenth of what comparing arrays takes.
        mine: bytes = self._mine[self._parity].tobytes()
        told: bytes = self._tables[self._parity].tobytes()
        return told == mine * self.places

    # -- torn steps ----

    def begin(self, step: int) -> None:
        """Note that this rank enters the barrier of a step; with the last one's number: none."""
        self.began[self.place] = step

    def leave(self, step: int) -> None:
        """Note that an error has ended this rank's barrier: none that begins the step may write."""
        self.left[self.place] = step
        self.fence()  # written before `whole` reads what has begun

    def check_left(self, step: int) -> None:
        """Raise if a rank has left a step since all met for it. Else this rank may write."""
        self.fence()
        if int(self.left.max()) == step:
            rank = self._group.team.ranks[int(self.left.argmax())]
            raise PeerLost(f"rank {rank} left optimizer.step() number {step} with an error")

    def fence(self) -> None:
        """Writes before it are seen before reads after it: a lock orders memory."""
        with self._order:
            pass

    def complete(self, step: int) -> None:
        """Note that this rank's weights of that step are written."""
        self.completed[self.place] = step

    def mark_fresh(self, step: int) -> None:
        """Note that in that step this rank's optimizer has made state that is not shared yet."""
        self._fresh[self.place] = step

    def is_fresh(self, step: int) -> bool:
        """Whether any rank's optimizer has, after the next barrier."""
        marked: list[int] = self._fresh.tolist()
        return step in marked

    def whole(self) -> None:
        """Raise if a step was interrupted here."""
        step = int(self.began.min())
        if step > int(self.completed.min()):
            place = int(self.completed.argmin())
            rank = self._group.team.ranks[place]
            raise UsageError(
                f"step {step} was interrupted before rank {rank} had written its part of the "
                "weights: they are neither those before the step nor those after it, and are not "
                "given out. Go on from the last checkpoint"
            )

    # -- loading ----

    def begin_load(self) -> None:
        """Note that this rank begins to load weights, so that others need not wonder."""
        self._loaded[self.place] |= 1  # odd: it is loading

    def end_load(self) -> None:
        """Note that this rank has loaded weights."""
        self._loaded[self.place] = (self._loaded[self.place] | 1) + 1

    @property
    def is_loading(self) -> bool:
        """Whether a rank of this host is loading weights."""
        return bool((self._loaded & 1).any())

    def loads(self) -> bytes:
        """How often each rank of this host has loaded weights."""
        counts: bytes = self._loaded.tobytes()
        return counts
