"""Tensors that lie in shared memory: how a plan finds them, and how they come to lie there.

    segment of one shared_empty call:   │ rank 0's tensor │ rank 1's tensor │ …   (page-aligned)

Every rank maps all of it and owns one part. When all ranks pass tensors out of the same segment
(the whole tensor or any contiguous part of it), collectives work on them where they lie: nothing is
copied in or out. If any rank passes something else, all take the ordinary way, which always works.

`shared_empty` makes such tensors for a program that asks. One that does not ask may pass, with a
private tensor, an *offer*: all ranks that call a collective see on the board whether all offer the
same, and then make the segment inside that call. No rank ever waits for one that does not offer.
"""

from __future__ import annotations

import weakref
from collections.abc import Callable, Generator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from wiiiiided.backend.engine.operation import Wait
from wiiiiided.backend.shm.board import CallSignature
from wiiiiided.backend.shm.segment import Segment, page_up
from wiiiiided.backend.shm.slots import Array
from wiiiiided.errors import HostError

if TYPE_CHECKING:
    from wiiiiided.backend.engine.host_team import Team


Place = tuple[int, int]  # where a tensor lies: segment id and offset; id 0 is private memory
PRIVATE: Place = (0, 0)
_OFFERED = 1  # in place of a segment id (it is the staging's, where no tensor lies)
_NOTHING = np.empty(0, np.uint8)


@dataclass(frozen=True)
class _Area:
    bytes: Array  # the whole segment
    stride: int  # from one rank's part to the next
    start: int  # where my part begins in my address space
    end: int


@dataclass(frozen=True)
class Offer:
    """A private tensor whose owner would rather have shared memory, if all ranks would.

    `take` gets this rank's part of the new segment. With `moves` the tensor lies there when it
    returns, contents and all, and the call goes on in place; without, the part is for later calls.
    """

    nbytes: int
    take: Callable[[Array], None]
    moves: bool

    @property
    def place(self) -> Place:
        """The words on the board: equal on all ranks if they offer the same."""
        return _OFFERED, self.nbytes << 1 | self.moves


Placement = Place | Offer


class SharedTensors:
    """The shared tensors of a team that are still alive here."""

    def __init__(self, team: Team) -> None:
        self._team = team
        self._areas: dict[int, _Area] = {}

    @property
    def empty(self) -> bool:
        """Whether no shared tensor is alive here (the usual case)."""
        return not self._areas

    def place(self, address: int, nbytes: int) -> tuple[int, int]:
        """(segment id, offset in my part) of memory at `address`; id 0: it is not shared."""
        if not self._areas:
            return PRIVATE
        # A copy of the items: a tensor may be collected, and its area dropped, at any time.
        for segment_id, area in self._areas.copy().items():
            if area.start <= address and address + nbytes <= area.end:
                return segment_id, address - area.start
        return PRIVATE

    def views(
        self, places: list[tuple[int, int]], dtype: np.dtype[Any], count: int
    ) -> list[Array] | None:
        """All ranks' tensors in place, if they lie in one segment; else None, on every rank alike.

        A rank that announced the segment has a tensor in it, so it has it mapped.
        """
        segment_id = places[0][0]
        if segment_id in (0, _OFFERED) or any(place[0] != segment_id for place in places):
            return None
        area = self._areas[segment_id]
        nbytes = count * dtype.itemsize
        return [
            area.bytes[rank * area.stride + offset :][:nbytes].view(dtype)
            for rank, (_, offset) in enumerate(places)
        ]

    def accept(
        self, call: CallSignature, x: Array, offer: Offer
    ) -> Generator[Wait, None, list[Array] | None]:
        """All ranks offer the same: make the segment. Returns their tensors if they lie there now.

        A rank without memory for its part says so before any rank has taken its own: then all
        stay where they are.
        """
        team = self._team
        segment_id = team.next_segment_id()
        stride = page_up(offer.nbytes)
        segment = yield from team.obtain(segment_id, stride * team.size)
        place = offer.place
        try:
            segment.reserve(team.rank * stride, stride)
        except HostError:
            place = PRIVATE
        segment.forget_fd()
        team.parity ^= 1
        team.board.announce(call, team.parity, *place)
        yield team.arrive()
        if PRIVATE in team.places():
            return None
        offer.take(self._adopt(segment_id, segment, stride)[: offer.nbytes])
        if not offer.moves:
            return None
        yield team.arrive()  # all have moved
        return self.views([(segment_id, 0)] * team.size, x.dtype, x.size)

    def make(
        self, call: CallSignature, nbytes: int, into: list[Array]
    ) -> Generator[Wait, None, None]:
        """The plan of shared_empty: appends my part, as bytes, to `into`."""
        team = self._team
        yield from team.open(call, _NOTHING, (0, 0), False, lambda: None)
        segment_id = team.next_segment_id()
        stride = page_up(max(nbytes, 1))
        segment = yield from team.obtain(segment_id, stride * team.size)
        segment.reserve(team.rank * stride, stride)
        segment.forget_fd()
        mine = self._adopt(segment_id, segment, stride)
        yield team.arrive()  # a rank without memory has failed the team by now
        into.append(mine[:nbytes])

    def make_common(
        self, call: CallSignature, nbytes: int, into: list[Segment]
    ) -> Generator[Wait, None, None]:
        """The plan of memory that is not cut in parts: every rank of the host maps and writes all.

        Each reserves an equal stretch, so too little memory is an error on every rank. The
        descriptor stays open: a forked child maps the memory anew, as its own.
        """
        team = self._team
        yield from team.open(call, _NOTHING, (0, 0), False, lambda: None)
        stride = page_up(-(-nbytes // team.size))
        segment = yield from team.obtain(team.next_segment_id(), stride * team.size)
        segment.reserve(team.rank * stride, stride)
        yield team.arrive()
        into.append(segment)

    def hand_over(
        self, call: CallSignature, nbytes: int, made: Segment | None, into: list[Segment]
    ) -> Generator[Wait, None, None]:
        """The plan of memory that the host's first rank has made and written: the others map it."""
        team = self._team
        yield from team.open(call, _NOTHING, (0, 0), False, lambda: None)
        segment = yield from team.obtain(team.next_segment_id(), nbytes, made)
        yield team.arrive()
        into.append(segment)

    def _adopt(self, segment_id: int, segment: Segment, stride: int) -> Array:
        whole = np.frombuffer(segment.map, np.uint8)
        mine = np.frombuffer(segment.map, np.uint8, stride, self._team.rank * stride)
        start = mine.__array_interface__["data"][0]
        self._areas[segment_id] = _Area(whole, stride, start, start + stride)
        # The tensor's storage keeps `mine`; when the last view of it is gone, so is the area.
        weakref.finalize(mine, self._areas.pop, segment_id, None)
        return mine
