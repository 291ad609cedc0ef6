"""all_reduce and reduce over several hosts.

    small      up to 64 KiB: reduce inside the host as `local` does, then every rank sends its
               host's sum along with OPEN and adds up what the others sent: one trip over the wire
    pipelined  larger: pieces, each in four or five phases, several pieces in each phase at once

        A  put       lay the others' parts of my piece into my slot; post where answers go
        B  reduce    my parts of the piece, over the ranks of this host; send the sums
        C  combine   what the other hosts sent with my sum: the result of what is mine
                     (if split, see `exchange_plan`: and send it back to them)
        E  collect   results of the other hosts' shares (if split)
        D  take      the results of the other ranks of this host, out of their slots

    In turn i a rank does A of piece i, B of i-a, C of i-a-w, E of i-a-w-v, D of i-2a-w-v, having
    waited for all of its host to be done with turn i-a. So the adds of a piece, the wire and the
    copies of others overlap, and w pieces are on the wire in each direction. When I am at turn i
    all are done with turn i-a, hence with D of piece i-3a-w-v: that many slots are enough.

    A piece's parts lie where they belong:

        slot of place 1, piece k:  │ its input for place 0 │ RESULT of 1 │ its input for place 2 │

Split, the exchange between hosts is a reduce-scatter and an all-gather: it carries the bytes of a
ring all-reduce in two trips over the wire, where a ring of H hosts takes 2(H-1).

Each level adds in the order of ranks, then of hosts, and every element is added up by one rank (two
hosts: by two, with the same operands in the same order): the bits are the same everywhere, whatever
came first. Half precision is rounded once, at the very end: a host's sum goes to the others in
float32, unless it is a single rank's, and the result comes back in half precision.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np

from wiiiiided.backend.collectives.pieces import pieces
from wiiiiided.backend.collectives.wide.barrier import (
    AHEAD,
    FLIGHT,
    WINDOW,
    open_collective,
    remote_members,
)
from wiiiiided.backend.collectives.wide.exchange_plan import PieceExchange, as_hosts, exchange
from wiiiiided.backend.collectives.wide.small_all_reduce import queued_items, run_batch
from wiiiiided.backend.engine.group import Group
from wiiiiided.backend.engine.operation import BatchItem, Plan, Wait
from wiiiiided.backend.engine.remote_members import Ticket
from wiiiiided.backend.shm.board import CallSignature
from wiiiiided.backend.shm.kernels import Reduction
from wiiiiided.backend.shm.slots import SMALL_BYTES, SMALL_SLOTS, Array


def all_reduce(
    group: Group, call: CallSignature, x: Array, reduction: Reduction, root: int = -1
) -> Plan:
    """The plan. `root` ≥ 0: only that rank gets the result, the others' arrays are not changed."""
    if x.nbytes <= SMALL_BYTES:
        wanted = root in (-1, group.rank)
        return SmallWideAllReduce(group, call, reduction, x.dtype, x.size).plan(x, wanted)
    return _AllReducePipeline(group, call, x, reduction, root).plan()


class SmallWideAllReduce:
    """A small all_reduce, made ready once for all calls of its kind.

    Those that are queued behind one another travel together (see `small_all_reduce`).
    """

    def __init__(
        self,
        group: Group,
        call: CallSignature,
        reduction: Reduction,
        dtype: np.dtype[Any],
        count: int,
    ) -> None:
        self._group, self._wide, self._call = group, remote_members(group), call
        self._reduction, self._dtype, self._count = reduction, dtype, count
        self._carried = [reduction.carried(dtype, len(ranks)) for ranks in self._wide.hosts]
        self._turns = [[slot[:count] for slot in turn] for turn in group.team.small.turns(dtype)]
        self._mine = [turn[group.team.rank] for turn in self._turns]

    def batch_item(self, x: Array) -> BatchItem:
        """One call as a batch needs it."""
        return BatchItem(self._reduction, self._call.digest, x)

    def plan(self, x: Array, wanted: bool = True) -> Plan:
        """One call. Without `wanted` the result is for others."""
        team, wide, call = self._group.team, self._wide, self._call
        if wide.agreed and (yield from run_batch(self._group, self.batch_item(x))):
            return
        ahead, sequence = queued_items(self._group, 1), wide.begin()
        if team.size > 1:
            team.parity = parity = team.parity ^ 1
            team.board.announce(call, parity)
            team.board.announce_ahead(parity, ahead)
            turn = team.small.turn % SMALL_SLOTS
            team.small.turn += 1
            self._mine[turn][:] = x
            yield team.arrive()
            if not team.board.same_calls(call, parity):
                team.verify(call)
            ahead = team.board.least_ahead(parity)
            mine = np.empty(self._count, self._carried[wide.host])
            self._reduction.partial(self._turns[turn], mine)
        else:
            mine = x
        wide.open(sequence, call, mine, ahead)
        yield wide.opened(sequence)
        said = wide.take_opens(sequence, call)
        wide.agreed = min(ahead, *(there.ahead for there in said.values()))
        if wanted:
            sums = [
                mine if h == wide.host else np.frombuffer(said[h].data, dtype)
                for h, dtype in enumerate(self._carried)
            ]
            if mine is x:  # only the first may be the result, or with two the second
                sums[wide.host] = x.copy()
            self._reduction.final(sums, x)


class _AllReducePipeline:
    """One large all_reduce under way."""

    def __init__(
        self, group: Group, call: CallSignature, x: Array, reduction: Reduction, root: int
    ) -> None:
        self._group, self._wide, self._team = group, remote_members(group), group.team
        self._call, self._x, self._reduction = call, x, reduction
        self._alone = group.team.size == 1
        self._cuts = pieces(x.size, group.team.staging_bytes // x.itemsize)
        self._hosts = as_hosts(self._wide.hosts)
        self._wanted = root in (-1, group.rank)
        # Hosts that need the result: all, or the root's.
        self._needing = {h for h, ranks in enumerate(self._hosts) if root < 0 or root in ranks}
        count = len(self._cuts)
        self._ahead = 0 if self._alone else min(AHEAD, count)
        self._flight = min(FLIGHT, count)
        self._carried = [reduction.carried(x.dtype, len(ranks)) for ranks in self._hosts]
        self._split = len(self._hosts) > 2 or any(dtype != x.dtype for dtype in self._carried)
        self._back = self._flight if self._split else 0
        self._slots: dict[int, list[Array]] = {}
        self._incoming: dict[int, list[Ticket]] = {}
        self._outgoing: dict[int, list[Ticket]] = {}
        self._collected: dict[int, list[Ticket]] = {}
        self._sequence = 0

    def _make_buffers(self) -> None:
        """Rings for local sums and for what the other hosts send of my part."""
        largest = self._cuts[0][1] - self._cuts[0][0]
        self._ring = self._ahead + self._flight + 1
        self._posts = min(WINDOW, len(self._cuts)) + self._ring
        if not self._alone:
            dtype = self._carried[self._wide.host]
            raw = self._wide.buffer("sums", self._ring * largest * dtype.itemsize)
            self._sums = raw.view(dtype).reshape(self._ring, largest)
        # Rounded to whole cache lines, a share of the last, smaller piece can be the larger one.
        owns = [self._exchange(k).own for k in (0, len(self._cuts) - 1)]
        self._part = max(high - low for low, high in owns)
        others = len(self._hosts) - 1
        row = self._part * max(dtype.itemsize for dtype in self._carried)
        raw = self._wide.buffer("heard", self._posts * others * row)
        self._heard = raw.reshape(self._posts, others, row)

    def _exchange(self, k: int) -> PieceExchange:
        begin, end = self._cuts[k]
        return self._exchange_of(end - begin, self._wide.place)

    def _exchange_of(self, count: int, place: int) -> PieceExchange:
        return exchange(count, self._hosts, self._wide.host, place, self._split)

    def plan(self) -> Plan:
        self._make_buffers()  # here: a rank without memory for it fails the group, not only itself

        def put() -> None:
            if not self._alone:
                self._put(0)

        yield from open_collective(
            self._group, self._call, self._x, not self._alone, put, self._post_first
        )
        a, w, v, count = self._ahead, self._flight, self._back, len(self._cuts)
        first, board = self._team.board.step, self._team.board
        for turn in range(count + 2 * a + w + v):
            if a and turn >= a and board.lagging(first + turn - a) >= 0:
                yield first + turn - a
            if turn + WINDOW < count:
                self._post(turn + WINDOW)
            if turn < count:
                if turn and not self._alone:
                    self._put(turn)
                self._post_results(turn)
            if 0 <= turn - a < count:
                self._reduce(turn - a)
            if 0 <= (k := turn - a - w) < count:
                yield from self._await(self._incoming.pop(k), "pieces of other hosts")
                yield from self._await(self._outgoing.pop(k), "the network to take pieces")
                self._combine(k)
            if v and 0 <= (k := turn - a - w - v) < count:
                yield from self._await(self._collected.pop(k), "results of other hosts")
                yield from self._await(self._outgoing.pop(k, []), "the network to take results")
            if 0 <= (k := turn - 2 * a - w - v) < count and not self._alone:
                self._take(k)
            if a and 0 < turn < count + a + w + v:
                self._team.arrive()

    def _await(self, tickets: list[Ticket], what: str) -> Iterator[Wait]:
        for ticket in tickets:
            if not ticket.done:
                yield self._wide.tickets(tickets, what)
                return

    # -- the phases ----

    def _put(self, k: int) -> None:
        """A: lay down the parts that the other ranks of this host reduce."""
        begin, end = self._cuts[k]
        assert self._team.staging is not None
        slots = self._slots[k] = self._team.staging.next(self._x.dtype)
        mine, piece = slots[self._team.rank], self._x[begin:end]
        for place in range(self._team.size):
            if place != self._team.rank:
                for low, high in self._exchange_of(end - begin, place).mine:
                    mine[low:high] = piece[low:high]

    def _post_first(self, sequence: int) -> None:
        self._sequence = sequence
        for k in range(min(WINDOW, len(self._cuts))):
            self._post(k)

    def _post(self, k: int) -> None:
        """Where the others' sums of my part go."""
        work = self._exchange(k)
        base = work.own[0]
        self._incoming[k] = [
            self._wide.post(
                part.rank, self._sequence, 0, k,
                self._heard_of(k, part.host)[part.begin - base : part.end - base],
            )
            for part in work.receives
        ]  # fmt: skip

    def _post_results(self, k: int) -> None:
        """Where results of the other hosts go. They need my sum, which I have not sent yet."""
        results = self._exchange(k).results if self._wide.host in self._needing else ()
        into = self._result(k)
        self._collected[k] = [
            self._wide.post(part.rank, self._sequence, 1, k, into[part.begin : part.end])
            for part in results
        ]

    def _reduce(self, k: int) -> None:
        """B: reduce my parts over the ranks of this host, and send the sums to the other hosts."""
        begin, end = self._cuts[k]
        work, piece = self._exchange(k), self._x[begin:end]
        sums = piece
        if not self._alone:
            sums, me, slots = self._sums[k % self._ring], self._team.rank, self._slots[k]
            for low, high in work.mine:
                if low < high:
                    parts = [
                        piece[low:high] if place == me else slot[low:high]
                        for place, slot in enumerate(slots)
                    ]
                    self._reduction.partial(parts, sums[low:high])
        self._outgoing[k] = [
            self._wide.send(part.rank, self._sequence, 0, k, sums[part.begin : part.end])
            for part in work.sends
        ]

    def _combine(self, k: int) -> None:
        """C: make the result of my part from the hosts' sums."""
        work, wide = self._exchange(k), self._wide
        low, high = work.own
        if low == high or not (self._back or wide.host in self._needing):
            return  # two hosts, and no rank here wants it: what the other sent only kept us in step
        begin, end = self._cuts[k]
        piece = self._x[begin:end]
        mine = piece[low:high] if self._alone else self._sums[k % self._ring][low:high]
        parts = [
            mine if h == wide.host else self._heard_of(k, h)[: high - low]
            for h in range(len(self._hosts))
        ]
        # The result goes to where it can stay until it is sent.
        if not self._alone:
            result = self._slots[k][self._team.rank][low:high]
            self._reduction.final(parts, result)
            if self._wanted:
                piece[low:high] = result
        elif self._wanted and (wide.host == 0 or len(parts) == 2) and high - low > 1:
            # One of the operands, but one that may be the result. Not of a single element: numpy
            # rounds a complex product in place there as nowhere else, and so would one host alone.
            result = mine
            self._reduction.final(parts, result)
        else:
            result = piece[low:high] if self._wanted else np.empty_like(mine)
            parts[wide.host] = mine.copy()
            self._reduction.final(parts, result)
        if self._back:
            self._outgoing[k] = [
                wide.send(
                    part.rank, self._sequence, 1, k, result[part.begin - low : part.end - low]
                )
                for part in work.returns
                if part.host in self._needing
            ]

    def _take(self, k: int) -> None:
        """D: copy the results of this host's ranks out of their slots (mine: what hosts sent)."""
        slots = self._slots.pop(k)
        if not self._wanted:
            return
        begin, end = self._cuts[k]
        piece = self._x[begin:end]
        own = self._exchange(k).own
        for place, slot in enumerate(slots):
            for low, high in self._exchange_of(end - begin, place).mine:
                if (low, high) != own:
                    piece[low:high] = slot[low:high]

    def _result(self, k: int) -> Array:
        """Where results of other hosts' shares are received: my slot, or my own array."""
        if not self._alone:
            return self._slots[k][self._team.rank]
        begin, end = self._cuts[k]
        return self._x[begin:end]

    def _heard_of(self, k: int, host: int) -> Array:
        """Where another host's sums of my part of a piece are received."""
        row: Array = self._heard[k % self._posts, host if host < self._wide.host else host - 1]
        dtype = self._carried[host]
        return row[: self._part * dtype.itemsize].view(dtype)
