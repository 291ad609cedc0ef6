"""A group's members on this host, and the memory they share.

    Team ── board      which ranks have arrived, what they call, what went wrong
         ── small      two slots of 64 KiB a rank, there from the start
         ── staging    megabytes of larger slots a rank, on first need
         ── shared     tensors that lie in memory of all

Inside a team ranks are *places*: 0 … size-1 in the order of their ranks in the group, so that what
works for a group on one machine works for the part of a larger group that lies on this one.
`ranks[place]` is the rank in the group: what errors, warnings and links go by.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Generator, Sequence
from typing import TYPE_CHECKING

from wiiiiided.backend.engine.operation import Until, Wait, different_calls
from wiiiiided.backend.engine.shared_tensors import Offer, Place, Placement, SharedTensors
from wiiiiided.backend.shm.board import Board, CallSignature, board_bytes
from wiiiiided.backend.shm.segment import Segment
from wiiiiided.backend.shm.slots import (
    SMALL_BYTES,
    SMALL_SLOTS,
    Array,
    Slots,
    slots_bytes,
    staging_shape,
)
from wiiiiided.backend.wire.local_frame import Frame, FrameKind

if TYPE_CHECKING:
    from wiiiiided.backend.engine.group import GroupMembership
    from wiiiiided.backend.engine.local_link import Link
    from wiiiiided.backend.engine.process import RankProcess

BASE_SEGMENT = 0  # segment ids: 0 the board and small slots, 1 staging, 2 … shared tensors
STAGING_SEGMENT = 1


def base_bytes(size: int) -> int:
    """The size of a team's first segment."""
    return board_bytes(size) + slots_bytes(size, SMALL_SLOTS, SMALL_BYTES)


class Team:
    """One member's end of its team."""

    def __init__(
        self,
        process: RankProcess,
        membership: GroupMembership,
        ranks: Sequence[int],
        links: dict[int, Link],
        base: Segment,
    ) -> None:
        self.process = process
        self.name, self.nonce = membership.name, membership.nonce
        self.ranks = list(ranks)
        self.rank, self.size = self.ranks.index(membership.rank), len(ranks)
        self.links = links  # by place
        self.board = Board(base, self.rank, self.size)
        self.small = Slots(base, board_bytes(self.size), self.size, SMALL_SLOTS, SMALL_BYTES)
        self.shared = SharedTensors(self)
        self.parity = 0
        self.staging: Slots | None = None
        self.staging_slots, self.staging_bytes = staging_shape(
            self.size, across=membership.size > self.size
        )
        self._segment_ids = itertools.count(STAGING_SEGMENT + 1)

    # -- steps, for plans ----

    def arrive(self) -> int:
        """My part of a step is done. A plan yields what this returns: it then waits for all."""
        board = self.board
        step = board.arrive()
        if board.to_ring:
            for place in board.to_ring:
                self.links[place].ring()
            board.to_ring.clear()
        return step

    def missing(self, step: int) -> list[int]:
        """The group's ranks that have not arrived at a step."""
        return [self.ranks[place] for place in self.board.missing(step)]

    def open(
        self,
        call: CallSignature,
        x: Array,
        given: Placement,
        large: bool,
        put: Callable[[], None],
    ) -> Generator[Wait, None, list[Array] | None]:
        """The beginning of every collective, up to the first step at which all have arrived.

        `put` lays this rank's first piece into the next slot. Returns all ranks' tensors if they
        can be used where they lie (then nothing was put), else None. On the way: all ranks must
        have called the same, and the large slots are made if this is the first time.
        """
        board = self.board
        place = given.place if isinstance(given, Offer) else given
        self.parity ^= 1
        board.announce(call, self.parity, *place)
        if large and self.staging is None:
            # Verified before any rank waits for memory: a small call sends none.
            yield self.arrive()
            self.verify(call)
            views = yield from self._views(call, x, given)
            if views is not None:
                return views
            yield from self._make_staging()
            put()
            yield self.arrive()
            return None
        if not place[0]:
            put()
        yield self.arrive()
        if not place[0] and board.same_calls(call, self.parity):
            return None
        self.verify(call)
        views = yield from self._views(call, x, given)
        if views is not None:
            return views
        # Some tensors lie in shared memory and some do not: all go the ordinary way, and ranks
        # that have put nothing yet do so now.
        if place[0]:
            put()
        yield self.arrive()
        return None

    def verify(self, call: CallSignature) -> None:
        """Raise Mismatch unless all ranks, which have arrived, have called the same."""
        other = self.board.dissenter(call, self.parity)
        if other >= 0:
            theirs = self.board.call_of(other, self.parity)
            raise different_calls(
                self.name, self.ranks[self.rank], call.text, self.ranks[other], theirs
            )

    def places(self) -> list[Place]:
        """Where all ranks' tensors lie, after all have arrived."""
        return [self.board.place_of(r, self.parity) for r in range(self.size)]

    def _views(
        self, call: CallSignature, x: Array, given: Placement
    ) -> Generator[Wait, None, list[Array] | None]:
        places = self.places()
        if isinstance(given, Offer) and places.count(given.place) == self.size:
            return (yield from self.shared.accept(call, x, given))
        return self.shared.views(places, x.dtype, x.size)

    def _make_staging(self) -> Generator[Wait, None, None]:
        count, slot_bytes = self.staging_slots, self.staging_bytes
        segment = yield from self.obtain(STAGING_SEGMENT, slots_bytes(self.size, count, slot_bytes))
        staging = Slots(segment, 0, self.size, count, slot_bytes)
        staging.reserve(self.rank)
        segment.forget_fd()
        self.staging = staging
        yield self.arrive()  # a rank without memory has failed the group by now

    def next_segment_id(self) -> int:
        """Segments of a team are numbered alike on all ranks."""
        return next(self._segment_ids)

    def obtain(
        self, segment_id: int, nbytes: int, made: Segment | None = None
    ) -> Generator[Wait, None, Segment]:
        """Memory of the whole team: its first makes it, or has made it, and sends it; the others
        wait for it."""
        if self.rank == 0:
            segment = made or Segment.create(f"{self.name}-{segment_id}", nbytes)
            frame = Frame(FrameKind.SEGMENT, self.nonce, segment_id, nbytes)
            for link in self.links.values():
                self.process.send(link, frame, segment.fd)
            return segment
        arrived = self.process.segments
        key = (self.nonce, segment_id)
        first = self.ranks[0]
        yield Until(lambda: key in arrived, lambda: [first], f"shared memory from rank {first}")
        return Segment.attach(arrived.pop(key), nbytes)

    def release(self) -> None:
        """Let go of a closed group's memory: a Work that the program keeps must not hold it."""
        self.staging = None
        self.small.release()
        self.board.release()
