"""A group in this process: its board, its slots, its queue, and what is known of its members.

    Group ── board      who has arrived, what they call, what went wrong     (shared memory)
          ── small      two slots of 64 KiB a rank, there from the start     (shared memory)
          ── staging    3 MiB of larger slots a rank, on first need          (shared memory)
          ── shared     what shared_empty made                               (shared memory)
          ── mailbox    sends and receives                                   (the links)
          ── queue      collectives in the order they were called

Only the driver of the loop touches a group, except for `number`, which any caller uses.
"""

from __future__ import annotations

import itertools
from collections import deque
from collections.abc import Callable, Generator
from dataclasses import dataclass
from typing import TYPE_CHECKING

from wiiiiided import log
from wiiiiided.engine.mailbox import Mailbox
from wiiiiided.engine.operation import Operation, Until, Wait
from wiiiiided.engine.shared import SharedTensors
from wiiiiided.errors import GroupClosed, GroupFailed, Mismatch, PeerLate, PeerLost, WiiiiideError
from wiiiiided.shm.board import Board, Call, Fault, board_bytes
from wiiiiided.shm.segment import Segment
from wiiiiided.shm.slots import (
    SMALL_BYTES,
    SMALL_SLOTS,
    Array,
    Slots,
    slots_bytes,
    staging_shape,
)
from wiiiiided.wire.frame import Frame, Kind

if TYPE_CHECKING:
    from wiiiiided.engine.link import Link
    from wiiiiided.engine.process import Process

BASE_SEGMENT = 0  # segment ids: 0 the board and small slots, 1 staging, 2 … shared tensors
STAGING_SEGMENT = 1


Place = tuple[int, int]  # where a tensor lies: segment id and offset; id 0 is private memory


@dataclass(frozen=True)
class Membership:
    """What a group is: agreed by all members before it exists."""

    name: str
    nonce: int  # random, of this incarnation: in Store keys, segment, frames and errors
    rank: int
    size: int
    timeout_s: float
    world: tuple[int, ...] = ()  # the members' ranks in the whole program; empty: the same


def base_bytes(size: int) -> int:
    """The size of a group's first segment."""
    return board_bytes(size) + slots_bytes(size, SMALL_SLOTS, SMALL_BYTES)


class Group:
    """One member's end of a group."""

    def __init__(
        self, process: Process, membership: Membership, links: dict[int, Link], base: Segment
    ) -> None:
        self.process = process
        self.loop = process.loop
        self.membership = membership
        self.rank, self.size = membership.rank, membership.size
        self.timeout_s = membership.timeout_s
        self.links = links
        self.board = Board(base, self.rank, self.size)
        self.small = Slots(base, board_bytes(self.size), self.size, SMALL_SLOTS, SMALL_BYTES)
        self.shared = SharedTensors(self)
        self.mailbox = Mailbox(self)
        self.queue: deque[Operation] = deque()
        self.gone: dict[int, str] = {}  # members that will never arrive again, and how they went
        self.parity = 0
        self.who = f"rank {self.rank} pid {process.card.pid} group {membership.name}"
        self.staging: Slots | None = None
        self.staging_slots, self.staging_bytes = staging_shape(self.size)
        self._fault: BaseException | None = None
        self._numbers = itertools.count(1)
        self._segment_ids = itertools.count(STAGING_SEGMENT + 1)

    def number(self) -> int:
        """The sequence number of the next call."""
        return next(self._numbers)

    # -- steps, for plans ----

    def arrive(self) -> int:
        """My part of a step is done. A plan yields what this returns: it then waits for all."""
        board = self.board
        step = board.arrive()
        if board.to_ring:
            for rank in board.to_ring:
                self.links[rank].ring()
            board.to_ring.clear()
        return step

    def open(
        self, call: Call, x: Array, place: Place, large: bool, put: Callable[[], None]
    ) -> Generator[Wait, None, list[Array] | None]:
        """The beginning of every collective, up to the first step at which all have arrived.

        `put` lays this rank's first piece into the next slot. Returns all ranks' tensors if they
        can be used where they lie (then nothing was put), else None. On the way: everyone must
        have called the same, and the large slots are made if this is the first time.
        """
        board = self.board
        self.parity ^= 1
        board.announce(call, self.parity, *place)
        if large and self.staging is None:
            # Verified before anyone waits for memory: who called something small sends none.
            yield self.arrive()
            self.verify(call)
            views = self._views(x)
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
        views = self._views(x)
        if views is not None:
            return views
        # Some tensors lie in shared memory and some do not: all go the ordinary way, and those
        # who had put nothing yet do so now.
        if place[0]:
            put()
        yield self.arrive()
        return None

    def verify(self, call: Call) -> None:
        """All have arrived: everyone must have called the same."""
        other = self.board.dissenter(call, self.parity)
        if other >= 0:
            raise Mismatch(
                f"the ranks of group {self.membership.name} called different operations: "
                f"rank {self.rank} {call.text}; "
                f"rank {other} {self.board.call_of(other, self.parity)}"
            )

    def _views(self, x: Array) -> list[Array] | None:
        places = [self.board.place_of(r, self.parity) for r in range(self.size)]
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
        """Segments of a group are numbered alike on all ranks."""
        return next(self._segment_ids)

    def obtain(self, segment_id: int, nbytes: int) -> Generator[Wait, None, Segment]:
        """Memory of the whole group: rank 0 makes it and sends it, the others wait for it."""
        if self.rank == 0:
            segment = Segment.create(f"{self.membership.name}-{segment_id}", nbytes)
            frame = Frame(Kind.SEGMENT, self.membership.nonce, segment_id, nbytes)
            for link in self.links.values():
                self.process.send(link, frame, segment.fd)
            return segment
        arrived = self.process.segments
        key = (self.membership.nonce, segment_id)
        yield Until(lambda: key in arrived, lambda: [0], "shared memory from rank 0")
        return Segment.attach(arrived.pop(key), nbytes)

    @property
    def closed(self) -> bool:
        """Destroyed here, or belonging to the process that forked this one."""
        return isinstance(self._fault, GroupClosed)

    # -- faults ----

    def problem(self) -> BaseException | None:
        """Why no operation can begin, or None."""
        return self._fault

    def fail(self, op: Operation | None, error: BaseException) -> None:
        """An operation of mine failed: write the cause down for all, and fail what is queued."""
        if self._fault is None:
            mismatch = isinstance(error, Mismatch)
            if mismatch or not isinstance(error, GroupFailed):
                text = str(error) if mismatch else self._failure_text(op, error)
                self.board.record("mismatch" if mismatch else "failed", self.rank, text)
            # A rank's own error is its own to see; the others see what it wrote down.
            self._fault = (
                error
                if isinstance(error, WiiiiideError)
                else GroupFailed(self._failure_text(op, error))
            )
            self._tell_all()
        if op is not None and not op.done:
            self.loop.finish(op, error)
        self.loop.fail_group(self, self._fault)

    def member_gone(self, rank: int, how: str) -> None:
        """A member's process ended ("died"), or it left the group ("left")."""
        if rank in self.gone or self._fault is not None:
            return
        self.gone[rank] = how
        if how == "died":
            # Written down even if I need nothing of it now: who waits for a rank that gave up
            # because of this death must find the death, not that rank.
            self.board.record("died", rank, f"{self._member(rank)} died")
        self.mailbox.lose(rank)

    def lose_missing(self, op: Operation) -> bool:
        """If the operation waits for a member that is gone, fail the group."""
        lost = [rank for rank in op.missing() if rank in self.gone]
        if not lost:
            return False
        rank = min(lost, key=lambda r: self.gone[r] != "died")
        self.lose(op, rank)
        return True

    def lose(self, op: Operation, rank: int) -> None:
        """An operation needs a rank that is gone: fail the group, with the first cause known."""
        if self.gone[rank] == "died":
            text = f"{self._member(rank)} died"
        else:
            text = f"{self._member(rank)} left the group while others needed it"
        self._fail_with(op, "died" if self.gone[rank] == "died" else "left", rank, text)

    def give_up(self, op: Operation) -> None:
        """The timeout has passed."""
        missing = op.missing()
        text = (
            f"{self._members(missing)} did not arrive before the timeout of {op.timeout_s:g} s; "
            f"rank {self.rank} waited in {op}. It may be stopped, stuck, or never have called this"
        )
        if op.harmless:
            self.mailbox.withdraw(op)
            self.loop.finish(op, PeerLate(f"group {self.membership.name}: {text}"))
            return
        self._fail_with(op, "late", missing[0] if missing else -1, text)

    def adopt(self) -> None:
        """A peer says that a fault is written down: report the same."""
        fault = self.board.cause()
        if fault is not None and self._fault is None:
            self._fault = self._error_from(fault, None)
            self.loop.fail_group(self, self._fault)

    def _fail_with(self, op: Operation, kind: str, culprit: int, text: str) -> None:
        self.board.record(kind, culprit, text)  # unless someone wrote down a cause before me
        cause = self.board.cause()
        assert cause is not None
        self._fault = self._error_from(cause, op)
        self._tell_all()
        log.warn(self.who, str(self._fault))
        self.loop.fail_group(self, self._fault)

    def _tell_all(self) -> None:
        frame = Frame(Kind.FAULT, self.membership.nonce)
        for link in self.links.values():
            self.process.send(link, frame)

    def error_for(self, op: Operation, cause: BaseException) -> BaseException:
        """The cause, as the error of one operation: each gets an exception of its own."""
        kind = type(cause) if isinstance(cause, WiiiiideError) else GroupFailed
        return kind(f"{op}: {cause}" if op.name not in str(cause) else str(cause))

    def _error_from(self, fault: Fault, op: Operation | None) -> WiiiiideError:
        if fault.kind == "mismatch":
            return Mismatch(fault.text)
        kinds = {"died": PeerLost, "left": PeerLost, "late": PeerLate, "failed": GroupFailed}
        seen = f", first seen by rank {fault.seen_by}" if fault.seen_by != self.rank else ""
        return kinds[fault.kind](self._sentence(fault.text + seen, op))

    def _sentence(self, text: str, op: Operation | None = None) -> str:
        m = self.membership
        during = f" (noticed here in {op})" if op is not None and str(op) not in text else ""
        return (
            f"group {m.name} [{m.nonce:016x}]: {text}{during}. Destroy the group and make a new one"
        )

    def _failure_text(self, op: Operation | None, error: BaseException) -> str:
        where = f" in {op}" if op is not None else ""
        return f"{self._member(self.rank)} failed{where}: {type(error).__name__}: {error}"

    def _member(self, rank: int) -> str:
        pid = self.process.card.pid if rank == self.rank else self.links[rank].pid
        world = self.membership.world
        if world and world[rank] != rank:
            return f"rank {rank} (global rank {world[rank]}, pid {pid})"
        return f"rank {rank} (pid {pid})"

    def _members(self, ranks: list[int]) -> str:
        return ", ".join(self._member(r) for r in ranks) or "a rank"

    def stall_text(self, op: Operation, now_ns: int) -> str:
        """The warning of a stall: who is missing, and what the others wait in."""
        waited = (now_ns - op.begun_ns) / 1e9
        what = f" ({op.wait.what})" if isinstance(op.wait, Until) else ""
        return (
            f"{op} has waited {waited:.0f} s for {self._members(op.missing())}{what}; "
            f"giving up after {op.timeout_s:g} s"
        )

    def abandon(self) -> None:
        """In a forked child: the group lives in the parent, and cannot be used here."""
        self._fault = GroupClosed(
            f"group {self.membership.name} belongs to the process that forked this one; a forked "
            "child (a DataLoader worker, say) cannot use it. Make a group of its own there"
        )

    # -- end ----

    def close(self) -> None:
        """Leave: fail what is under way here, tell the others, let go of the memory."""
        if self.closed:
            return
        self._fault = GroupClosed(f"group {self.membership.name} was destroyed in this process")
        self.loop.fail_group(self, self._fault)
        frame = Frame(Kind.LEAVE, self.membership.nonce)
        for link in self.links.values():
            self.process.send(link, frame)
        log.tell(self.who, "left")
        self.process.forget(self)
        # A Work that the program keeps holds the group; it must not hold the memory too.
        self.staging = None
        self.small.release()
        self.board.release()
