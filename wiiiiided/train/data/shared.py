"""`wide.shared_dataset`: built by one rank of a host, mapped by all ranks of it.

    the first rank of each host    make() ── pack ──┐
    all ranks of the group                          tell ── map
                                                     │
        a failure of any host's make() is told to all: each raises it, none waits

A `make` that takes a parameter gets `empty`, and fills the shared memory itself. The result of
any other is copied there array by array, and each is freed before the next one is copied.

The telling goes over the whole group, so that a data set which cannot be built on one host stops
the ranks of the others too, at this line and with this cause, not later with a lost peer.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable
from typing import Any, Final

import torch.distributed as dist

from wiiiiided.backend.engine.group import Group
from wiiiiided.backend.shm import malloc
from wiiiiided.backend.shm.board import CallSignature
from wiiiiided.backend.shm.segment import Segment
from wiiiiided.errors import UsageError
from wiiiiided.train.data.columns import ColumnDataset
from wiiiiided.train.data.packing import Node, PackedValue, columns_of, unpacked, values_of
from wiiiiided.train.data.shared_memory import GrowingMemory, SharedBuffer, check_room
from wiiiiided.train.memory import run_plan
from wiiiiided.train.small_collectives import all_gather_text

_WHAT: Final = "wide.shared_dataset()"
_GIVEN_BACK: Final = 16 << 20  # bytes: freed memory goes back to the kernel when it is so much

Make = Callable[..., Any]  # without a parameter, or with one: `GrowingMemory.empty`


class SharedDataset(ColumnDataset):
    """The result of `make` in shared memory: samples, parts by name, and all of it as `value`."""

    def __init__(self, buffer: SharedBuffer, node: Node, where: str = "value") -> None:
        self._buffer, self._node = buffer, node
        super().__init__(columns_of(node, buffer.tensor), where)

    @property
    def value(self) -> Any:
        """The result of `make`, where it lies: a change is seen by this process alone."""
        return values_of(self._node, self._buffer.tensor)

    def __getitem__(self, which: Any) -> Any:
        if isinstance(which, str):
            return self._part(which)
        return super().__getitem__(which)

    def _part(self, name: str) -> Any:
        """A dict's part of that name: a data set, or the value of what has no samples."""
        kind, *rest = self._node
        if kind != "dict" or name not in rest[0]:
            has = f"the parts {', '.join(map(repr, rest[0]))}" if kind == "dict" else "no parts"
            raise UsageError(f"{self._where} has no part {name!r}; it has {has}")
        node = rest[1][rest[0].index(name)]
        if node[0] == "constant":
            return node[1]
        return SharedDataset(self._buffer, node, f"{self._where}[{name!r}]")

    def __reduce__(self) -> tuple[Any, ...]:
        return SharedDataset, (self._buffer, self._node, self._where)


def build_alone(make: Make) -> SharedDataset:
    """Build a data set without other ranks, for this process and its DataLoader workers."""
    return _dataset(_built(make))


def build_together(make: Make, process_group: dist.ProcessGroup, group: Group) -> SharedDataset:
    """A collective call: the first rank of each host makes it for all ranks there."""
    team, built, problem = group.team, None, None
    if team.rank == 0:
        try:
            built = _built(make)
        except BaseException as raised:  # an interrupt too: the others wait
            problem = raised
    told = all_gather_text(process_group, _told(built, problem))
    if problem is not None:
        try:
            raise problem
        finally:
            problem = None  # its traceback has this frame: together they would keep what was made
    for rank, text in enumerate(told):
        if text.startswith("!"):
            raise UsageError(f"rank {rank} could not build the shared data set: {text[1:]}")
    nbytes = int(told[team.ranks[0]])
    mapped: list[Segment] = []
    call = CallSignature.of(f"{_WHAT} of {nbytes} bytes")
    run_plan(group, _WHAT, team.shared.hand_over(call, nbytes, built, mapped))
    return _dataset(mapped[0])


def _built(make: Make) -> Segment:
    memory = GrowingMemory()
    # No name here for what `make` returns: it would keep all of it until the end.
    packed = PackedValue(_made(make, memory), memory)
    check_room(packed.largest)
    kept = 0

    def freed(nbytes: int) -> None:
        nonlocal kept
        kept += nbytes
        if kept >= _GIVEN_BACK:
            malloc.give_back()
            kept = 0

    packed.write(freed)
    malloc.give_back()
    return memory.seal()


def _made(make: Make, memory: GrowingMemory) -> Any:
    try:
        parameters = list(inspect.signature(make).parameters.values())
    except ValueError:  # a function of C that does not say
        parameters = []
    takes_one = any(
        one.default is one.empty and one.kind in (one.POSITIONAL_ONLY, one.POSITIONAL_OR_KEYWORD)
        for one in parameters
    )
    return make(memory.empty) if takes_one else make()


def _told(built: Segment | None, problem: BaseException | None) -> str:
    """The text for all ranks: how many bytes there are, or what was raised."""
    if problem is not None:
        text = f"!{type(problem).__name__}: {problem}"
        return text.encode(errors="replace").decode()
    return "" if built is None else str(built.nbytes)


def _dataset(segment: Segment) -> SharedDataset:
    buffer = SharedBuffer.of(segment)
    return SharedDataset(buffer, unpacked(buffer.tensor))
