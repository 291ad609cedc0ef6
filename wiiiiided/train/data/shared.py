"""`wide.shared_dataset`: built by one rank of a host, mapped by all ranks of it.

    the first rank of each host    make() ── pack ── check memory ──┐        ── write ──┐
    all ranks of the group                                          tell ── map        meet
                                                                     │
        a failure of any host's make() is told to all: each raises it, none waits

The telling goes over the whole group, so that a data set which cannot be built on one host stops
the ranks of the others too, at this line and with this cause, not later with a lost peer.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final

import numpy as np
import torch.distributed as dist

from wiiiiided.backend.engine.group import Group
from wiiiiided.backend.shm import malloc
from wiiiiided.backend.shm.board import CallSignature
from wiiiiided.backend.shm.segment import Segment
from wiiiiided.errors import UsageError
from wiiiiided.train.agreement import tell_all
from wiiiiided.train.data.columns import ColumnDataset
from wiiiiided.train.data.packing import Node, PackedValue, columns_of, unpacked, values_of
from wiiiiided.train.data.shared_memory import SharedBuffer, check_room
from wiiiiided.train.memory import meet, run_plan

_WHAT: Final = "wide.shared_dataset()"
_WRITTEN: Final = CallSignature.of("the end of wide.shared_dataset()")


class SharedDataset(ColumnDataset):
    """What `make` returned, in shared memory: samples, parts by name, and all of it as `value`."""

    def __init__(self, buffer: SharedBuffer, begin: int, node: Node, where: str = "value") -> None:
        self._buffer, self._begin, self._node = buffer, begin, node
        super().__init__(columns_of(node, buffer.tensor, begin), where)

    @property
    def value(self) -> Any:
        """What `make` returned, where it lies: a change is seen by this process alone."""
        return values_of(self._node, self._buffer.tensor, self._begin)

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
        return SharedDataset(self._buffer, self._begin, node, f"{self._where}[{name!r}]")

    def __reduce__(self) -> tuple[Any, ...]:
        return SharedDataset, (self._buffer, self._begin, self._node, self._where)


def build_alone(make: Callable[[], Any]) -> SharedDataset:
    """Without other ranks: for this process and its DataLoader workers."""
    packed = _packed(make)
    segment = Segment.create("data", packed.nbytes)
    segment.reserve(0, packed.nbytes)
    _write(packed, segment)
    return _dataset(segment)


def build_together(
    make: Callable[[], Any], process_group: dist.ProcessGroup, group: Group
) -> SharedDataset:
    """A collective call: the first rank of each host makes it for all ranks there."""
    team, packed, problem = group.team, None, None
    if team.rank == 0:
        try:
            packed = _packed(make)
        except BaseException as raised:  # an interrupt too: the others wait
            problem = raised
    told = tell_all(process_group, _told(packed, problem))
    if problem is not None:
        raise problem
    for rank, text in enumerate(told):
        if text.startswith("!"):
            raise UsageError(f"rank {rank} could not build the shared data set: {text[1:]}")
    nbytes = int(told[team.ranks[0]])
    made: list[Segment] = []
    call = CallSignature.of(f"{_WHAT} of {nbytes} bytes")
    run_plan(group, _WHAT, team.shared.make_common(call, nbytes, made))
    if packed is not None:
        _write(packed, made[0])
    meet(group, _WRITTEN)
    return _dataset(made[0])


def _write(packed: PackedValue, segment: Segment) -> None:
    packed.write(np.frombuffer(segment.map, np.uint8))
    malloc.give_back()  # what `make` made


def _packed(make: Callable[[], Any]) -> PackedValue:
    packed = PackedValue(make())
    check_room(packed.nbytes)
    return packed


def _told(packed: PackedValue | None, problem: BaseException | None) -> str:
    """To all ranks: how many bytes there are, or what was raised."""
    if problem is not None:
        text = f"!{type(problem).__name__}: {problem}"
        return text.encode(errors="replace").decode()
    return "" if packed is None else str(packed.nbytes)


def _dataset(segment: Segment) -> SharedDataset:
    buffer = SharedBuffer.of(segment)
    node, begin = unpacked(buffer.tensor)
    return SharedDataset(buffer, begin, node)
