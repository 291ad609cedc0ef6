"""A group in this process: its team, its way to other hosts, its queue, what is known of members.

    Group ── team       the members on this host                             (shared memory)
          ── wide       the members on other hosts, if there are any         (the wide links)
          ── mailbox    sends and receives                                   (the links)
          ── queue      collectives in the order they were called

Only the driver of the loop touches a group, except for `number`, which any caller uses.
"""

from __future__ import annotations

import itertools
import time
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from wiiiiided import log
from wiiiiided.backend.codec.interface import PieceInfo
from wiiiiided.backend.engine.fault_payload import cause_bytes
from wiiiiided.backend.engine.host_team import Team
from wiiiiided.backend.engine.local_link import Link
from wiiiiided.backend.engine.mailbox import Mailbox
from wiiiiided.backend.engine.operation import Operation, Until
from wiiiiided.backend.engine.remote_members import RemoteMembers
from wiiiiided.backend.net.link import WideLink
from wiiiiided.backend.net.tuning import SILENT_AFTER_S
from wiiiiided.backend.shm import stats
from wiiiiided.backend.shm.board import FAULT_KINDS, Fault
from wiiiiided.backend.wire.header import Header
from wiiiiided.backend.wire.local_frame import Frame, FrameKind
from wiiiiided.errors import GroupClosed, GroupFailed, Mismatch, PeerLate, PeerLost, WiiiiideError

if TYPE_CHECKING:
    from wiiiiided.backend.engine.process import RankProcess

AnyLink = Link | WideLink
UNMET_NS: Final = 500_000_000
HELD_NS: Final = 250_000_000  # a wait that is worth telling those beside me
NAMED: Final = 6  # members in one sentence: a fault on the board has room for so many


@dataclass(frozen=True)
class GroupMembership:
    """The definition of a group: agreed by all members before it exists."""

    name: str
    nonce: int  # random, of this incarnation: in Store keys, segment, frames and errors
    rank: int
    size: int
    timeout_s: float
    world: tuple[int, ...] = ()  # the members' ranks in the whole program; empty: the same
    generation: int = 1  # which incarnation of its name this is: in every frame between hosts


class Group:
    """One member's end of a group."""

    def __init__(
        self,
        process: RankProcess,
        membership: GroupMembership,
        links: dict[int, AnyLink],
        team: Team,
        hosts: Sequence[Sequence[int]] = ((),),
    ) -> None:
        self.process = process
        self.loop, self.driver = process.loop, process.driver
        self.membership = membership
        self.rank, self.size = membership.rank, membership.size
        self.timeout_s = membership.timeout_s
        self.links = links
        self.team = team
        self.wide = RemoteMembers(self, hosts) if len(hosts) > 1 else None
        self.mailbox = Mailbox(self)
        self.queue: deque[Operation] = deque()
        self.gone: dict[int, str] = {}  # members that will never arrive again, and how they went
        self.who = f"rank {self.rank} pid {process.card.pid} group {membership.name}"
        self._fault: BaseException | None = None
        # Where in the stats page waiting for each member is counted.
        world = membership.world or range(membership.size)
        self.wait_words = [stats.PEERS_AT + min(rank, stats.PEERS - 1) for rank in world]
        self.warned_of: frozenset[int] = frozenset()  # the late ranks of the last stall warning
        self.warned_ns = 0
        self._death_ns = 0  # when the last member died, as far as is known here
        self._numbers = itertools.count(1)

    def number(self) -> int:
        """The sequence number of the next call."""
        return next(self._numbers)

    @property
    def closed(self) -> bool:
        """Destroyed here, or belonging to the process that forked this one."""
        return isinstance(self._fault, GroupClosed)

    # -- to other hosts ----

    def header(self, kind: FrameKind, sequence: int = 0) -> Header:
        """The header of a frame that this rank sends in this group."""
        m = self.membership
        return Header(
            kind, group=m.nonce, generation=m.generation, source=self.rank, sequence=sequence
        )

    def send_far(self, to: int, header: Header, payload: bytes = b"") -> None:
        """Send a frame of this group to a rank on another host."""
        link = self.links[to]
        assert isinstance(link, WideLink)
        link.send(header, payload)
        self.driver.page.words[stats.WIRE_OUT_RAW] += len(payload)
        mesh = self.process.mesh
        (mesh.push_watch if header.kind == FrameKind.FAULT else mesh.push)(link)

    def send_piece(
        self, to: int, header: Header, data: memoryview, info: PieceInfo, then: Callable[[], None]
    ) -> None:
        """Send a piece of an operation to a rank on another host."""
        link = self.links[to]
        assert isinstance(link, WideLink)
        link.send_data(header, data, info, then)
        self.driver.page.words[stats.WIRE_OUT_RAW] += len(data)
        self.process.mesh.push(link)

    def tell_coding(self, to: int, summary: str) -> None:
        """How gradients travel to a rank on another host: what `links()` says of it."""
        link = self.links[to]
        assert isinstance(link, WideLink)
        link.gradients = summary

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
                self.team.board.record("mismatch" if mismatch else "failed", self.rank, text)
            # A rank's own error is its own to see; the others see what it wrote down.
            self._fault = (
                error
                if isinstance(error, WiiiiideError)
                else GroupFailed(self._failure_text(op, error))
            )
            self._let_go()
            self._tell_all()
        if op is not None and not op.done:
            self.driver.finish(op, error)
        self.driver.fail_group(self, self._fault)

    def member_gone(self, rank: int, how: str) -> None:
        """A member's process ended ("died"), or it left the group ("left")."""
        if rank in self.gone or self._fault is not None:
            return
        self.gone[rank] = how
        if how != "left":
            # Written down even if I need nothing of it now: a rank that waits for one that gave up
            # because of this death must find the death, not that rank.
            self.team.board.record("died", rank, self._death(rank, how))
            self._death_ns = time.monotonic_ns()
        self.mailbox.lose(rank)

    def lose_missing(self, op: Operation) -> bool:
        """Fail the group if the operation waits for a member that is gone; whether it does."""
        lost = [rank for rank in op.missing() if rank in self.gone]
        if not lost:
            return False
        rank = min(lost, key=lambda r: self.gone[r] == "left")
        self.lose(op, rank)
        return True

    def lose_unmet(self, op: Operation, now_ns: int) -> bool:
        """Fail the group if a member died before all hosts met for a collective: they never will.

        It may wait for another rank, which computes and knows nothing of it. Not at once:
        a rank done with the operation may end while a word of its host is on its way to me.
        """
        dead = next((rank for rank, how in self.gone.items() if how != "left"), -1)
        if self.wide is None or dead < 0 or not op.collective or op.harmless:
            return False
        if self.wide.met_ns >= op.begun_ns or now_ns - self._death_ns < UNMET_NS:
            return False
        self.lose(op, dead)
        return True

    def lose(self, op: Operation, rank: int) -> None:
        """An operation needs a rank that is gone: fail the group, with the first cause known."""
        how = self.gone[rank]
        kind = "left" if how == "left" else "died"
        self._fail_with(op, kind, rank, self._death(rank, how))

    def _death(self, rank: int, how: str) -> str:
        """How a member went, in words."""
        if how == "left":
            return f"{self._member(rank)} left the group while others needed it"
        if how == "silent":
            return (
                f"{self._member(rank)} is lost: its machine has not answered for "
                f"{SILENT_AFTER_S} s (no power, no network, or a firewall that drops)"
            )
        return f"{self._member(rank)} died"

    def give_up(self, op: Operation) -> None:
        """Fail an operation whose timeout has passed."""
        missing = op.missing()
        text = (
            f"{self._late(op)} did not arrive before the timeout of {op.timeout_s:g} s; "
            f"rank {self.rank} waited in {op}. It may be stopped, stuck, or never have called this"
        )
        if op.harmless:
            self.mailbox.withdraw(op)
            self.driver.finish(op, PeerLate(f"group {self.membership.name}: {text}"))
            return
        self._fail_with(op, "late", missing[0] if missing else -1, text)

    def adopt(self) -> None:
        """A peer says that a fault is written down: report the same."""
        fault = self.team.board.cause()
        if fault is not None and self._fault is None:
            self._fault = self._error_from(fault, None)
            self._let_go()
            self._tell_far()  # a peer that sees me leave must have the cause from me
            self.driver.fail_group(self, self._fault)

    def adopt_far(self, cause: tuple[str, int, str, int]) -> None:
        """A member on another host says what went wrong: write it down here too, report it."""
        if self._fault is not None:
            return
        kind, culprit, text, seen_by = cause
        if kind not in FAULT_KINDS:
            kind = "failed"
        if kind != "mismatch" and "first seen by" not in text:
            text += f", first seen by rank {seen_by}"
        self.team.board.record(kind, culprit, text)
        self.adopt()

    def _fail_with(self, op: Operation, kind: str, culprit: int, text: str) -> None:
        self.team.board.record(kind, culprit, text)  # unless a rank wrote down a cause before me
        cause = self.team.board.cause()
        assert cause is not None
        self._fault = self._error_from(cause, op)
        self._let_go()
        self._tell_all()
        log.warn(self.who, str(self._fault))
        self.driver.fail_group(self, self._fault)

    def _let_go(self) -> None:
        """Keep what is on its way between hosts off the memory of this group, which is over."""
        if self.wide is not None:
            self.wide.release()
            self.process.mesh.divert(self.membership.nonce)
            for rank in self.wide.barriers_entered:
                self.process.lanes(self.links[rank]).withdraw(self.membership.nonce)

    def _tell_all(self) -> None:
        """Tell all members of the failure. Those of this host read its cause on the board."""
        frame = Frame(FrameKind.FAULT, self.membership.nonce)
        for link in self.team.links.values():
            self.process.send(link, frame)
        self._tell_far()

    def _tell_far(self) -> None:
        cause = self.team.board.cause()
        if self.wide is None or cause is None:
            return
        seen_by = self.team.ranks[cause.seen_by]
        payload = cause_bytes(cause.kind, cause.culprit, cause.text, seen_by)
        header = self.header(FrameKind.FAULT)
        for rank in self.wide.barriers_entered:
            self.send_far(rank, header, payload)

    def error_for(self, op: Operation, cause: BaseException) -> BaseException:
        """The cause, as the error of one operation: each gets an exception of its own."""
        kind = type(cause) if isinstance(cause, WiiiiideError) else GroupFailed
        return kind(f"{op}: {cause}" if op.name not in str(cause) else str(cause))

    def _error_from(self, fault: Fault, op: Operation | None) -> WiiiiideError:
        if fault.kind == "mismatch":
            return Mismatch(fault.text)
        kinds = {"died": PeerLost, "left": PeerLost, "late": PeerLate, "failed": GroupFailed}
        seen_by = self.team.ranks[fault.seen_by]
        known = seen_by == self.rank or "first seen by" in fault.text
        seen = "" if known else f", first seen by rank {seen_by}"
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
        peer = self.process.card if rank == self.rank else self.links[rank].peer
        where = f"pid {pid} on {peer.host}" if self.wide is not None else f"pid {pid}"
        world = self.membership.world
        if world and world[rank] != rank:
            return f"rank {rank} (global rank {world[rank]}, {where})"
        return f"rank {rank} ({where})"

    def _late(self, op: Operation) -> str:
        """The ranks an operation waits for, in the end.

        A rank beside me says on the board if a rank of another host keeps it. A rank of another
        host may be kept by one beside it, and cannot say so: then it is one of them.
        """
        missing = op.missing()
        if self.wide is None or not op.collective or op.harmless:
            return self._members(missing)
        causes = sorted({self._kept_by(rank) for rank in missing})
        suspects = self.wide.with_mates(causes)
        more = f" and {len(suspects) - NAMED} more" if len(suspects) > NAMED else ""
        text = self._members(suspects[:NAMED]) + more
        return text if suspects == causes else f"one or more of {text}"

    def _kept_by(self, rank: int) -> int:
        if rank not in self.team.ranks:
            return rank
        far = self.team.board.held(self.team.ranks.index(rank))
        return rank if far < 0 else far

    def tell_mates(self, op: Operation, now_ns: int) -> None:
        """Let the ranks that wait for me know, now and then, that I wait for another host."""
        if self.wide is None or op.harmless or now_ns - (op.waited_ns or now_ns) < HELD_NS:
            return
        if isinstance(op.wait, Until):
            far = [rank for rank in op.missing() if rank not in self.team.ranks]
            if far:
                self.team.board.hold(far[0])

    def _members(self, ranks: list[int]) -> str:
        return ", ".join(self._member(r) for r in ranks) or "a rank"

    def stall_text(self, op: Operation, now_ns: int) -> str:
        """The warning of a stall: which ranks are missing, and what the others wait in."""
        waited = (now_ns - (op.waited_ns or op.begun_ns)) / 1e9
        what = f" ({op.wait.what})" if isinstance(op.wait, Until) else ""
        return (
            f"{op} has waited {waited:.0f} s for {self._late(op)}{what}; "
            f"giving up after {op.timeout_s:g} s"
        )

    def abandon(self) -> None:
        """Make the group unusable in a forked child: it lives in the parent."""
        self._fault = GroupClosed(
            f"group {self.membership.name} belongs to the process that forked this one; a forked "
            "child (a DataLoader worker, say) cannot use it. Make a group of its own there"
        )

    # -- end ----

    def close(self) -> None:
        """Leave: fail what is under way here, tell the others, let go of the memory."""
        if self.closed:
            return
        failed = self._fault is not None
        self._fault = GroupClosed(f"group {self.membership.name} was destroyed in this process")
        self.driver.fail_group(self, self._fault)
        frame = Frame(FrameKind.LEAVE, self.membership.nonce)
        for link in self.team.links.values():
            self.process.send(link, frame)
        if self.wide is not None:
            # A failed group has told the others why, on the connection for that: a good-bye on this
            # one could overtake it, and they would blame me.
            for rank in () if failed else self.wide.barriers_entered:
                self.send_far(rank, self.header(FrameKind.LEAVE))
            self.wide.release()
        log.tell(self.who, "left")
        self.process.forget(self)
        self.team.release()
