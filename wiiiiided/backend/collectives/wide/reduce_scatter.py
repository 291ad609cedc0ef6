"""reduce_scatter over several hosts: rank r gets the reduction of every rank's r-th array.

small      an all_reduce of all of it, of which each rank keeps its own
pipelined  larger: for a far rank r one rank of this host (r's counterpart by place) adds up what
           this host has for r and sends it; r adds up the hosts' sums. Half an all_reduce's bytes

    slot of a rank:   │ its input for rank 0 │ for rank 1 │ …      what others of its host add up

In turn i a rank puts piece i, adds up piece i-a and sends it, and ends piece i-a-w, having
waited for all of its host to be done with turn i-a: all have then read i-2a, and 2a slots are
enough.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from wiiiiided.backend.collectives.pieces import pieces
from wiiiiided.backend.collectives.wide.all_reduce import SmallWideAllReduce
from wiiiiided.backend.collectives.wide.barrier import (
    AHEAD,
    FLIGHT,
    WINDOW,
    open_collective,
    remote_members,
)
from wiiiiided.backend.collectives.wide.exchange_plan import as_hosts, carriers
from wiiiiided.backend.engine.group import Group
from wiiiiided.backend.engine.operation import Plan
from wiiiiided.backend.engine.remote_members import Ticket
from wiiiiided.backend.shm.board import CallSignature
from wiiiiided.backend.shm.kernels import Reduction
from wiiiiided.backend.shm.slots import SMALL_BYTES, Array


def reduce_scatter(
    group: Group, call: CallSignature, inputs: Sequence[Array], output: Array, reduction: Reduction
) -> Plan:
    """The plan."""
    if output.nbytes * group.size <= SMALL_BYTES:
        return _brief(group, call, inputs, output, reduction)
    return _ReduceScatterPipeline(group, call, inputs, output, reduction).plan()


def _brief(
    group: Group, call: CallSignature, inputs: Sequence[Array], output: Array, reduction: Reduction
) -> Plan:
    whole = np.concatenate(inputs)
    yield from SmallWideAllReduce(group, call, reduction, whole.dtype, whole.size).plan(whole)
    begin = sum(x.size for x in inputs[: group.rank])
    output[:] = whole[begin : begin + output.size]


class _ReduceScatterPipeline:
    """One large reduce_scatter under way."""

    def __init__(
        self,
        group: Group,
        call: CallSignature,
        inputs: Sequence[Array],
        output: Array,
        reduction: Reduction,
    ) -> None:
        self._group, self._team, self._wide = group, group.team, remote_members(group)
        self._call, self._inputs, self._reduction = call, inputs, reduction
        self._output = output
        # An output that is part of an input may not change before that is sent.
        overlap = any(np.may_share_memory(x, output) for x in inputs)
        self._into = np.empty_like(output) if overlap else output
        self._alone = group.team.size == 1
        hosts = as_hosts(self._wide.hosts)
        to, host, me = carriers(hosts), self._wide.host, group.rank
        # The rank here that adds up this host's input for rank r: r itself, if it is here.
        self._adder = [r if r in hosts[host] else to[r][host] for r in range(group.size)]
        self._far = [r for r in range(group.size) if self._adder[r] == me and r != me]
        self._sources = to[me]  # by host: the rank that sends me its host's sum
        # Half precision is summed in float32 and rounded at the end alone (see all_reduce).
        self._carried = [reduction.carried(output.dtype, len(ranks)) for ranks in hosts]
        self._room = max(1, group.team.staging_bytes // output.itemsize // group.size)
        self._cuts = pieces(output.size, self._room)
        self._ahead = 0 if self._alone else min(AHEAD, len(self._cuts))
        self._flight = min(FLIGHT, len(self._cuts))
        self._slots: dict[int, list[Array]] = {}
        self._incoming: dict[int, list[Ticket]] = {}
        self._outgoing: dict[int, list[Ticket]] = {}
        self._sequence = 0

    def _make_buffers(self) -> None:
        """Rings: my host's sums for me and the far ranks I serve; what other hosts send me."""
        self._ring = self._ahead + self._flight + 1
        self._posts = min(WINDOW, len(self._cuts)) + self._ring
        rows, others = 1 + len(self._far), len(self._sources)
        dtype = self._carried[self._wide.host]
        sums = self._wide.buffer("sums", self._ring * rows * self._room * dtype.itemsize)
        self._sums = sums.view(dtype).reshape(self._ring, rows, self._room)
        row = self._room * max(dtype.itemsize for dtype in self._carried)
        heard = self._wide.buffer("heard", self._posts * others * row)
        self._heard = heard.reshape(self._posts, others, row)

    def plan(self) -> Plan:
        self._make_buffers()  # here: a rank without memory for it fails the group, not only itself
        alone, team, count = self._alone, self._team, len(self._cuts)

        def put() -> None:
            if not alone:
                self._put(0)

        yield from open_collective(
            self._group, self._call, self._output, not alone, put, self._post_first
        )
        a, w = self._ahead, self._flight
        first, board = team.board.step, team.board
        for turn in range(count + a + w):
            if a and a <= turn < count + a and board.lagging(first + turn - a) >= 0:
                yield first + turn - a
            if turn + WINDOW < count:
                self._post(turn + WINDOW)
            if 0 < turn < count and not alone:
                self._put(turn)
            if 0 <= turn - a < count:
                self._add_up(turn - a)
            if a and 0 < turn < count + a:
                team.arrive()
            if 0 <= (k := turn - a - w) < count:
                tickets = self._incoming.pop(k) + self._outgoing.pop(k)
                if not all(ticket.done for ticket in tickets):
                    yield self._wide.tickets(tickets, "pieces of other hosts")
                self._end(k)
        if self._into is not self._output:
            self._output[:] = self._into

    def _put(self, k: int) -> None:
        begin, end = self._cuts[k]
        assert self._team.staging is not None
        slots = self._slots[k] = self._team.staging.next(self._output.dtype)
        mine = slots[self._team.rank]
        for r, x in enumerate(self._inputs):
            if self._adder[r] != self._group.rank:
                mine[r * self._room :][: end - begin] = x[begin:end]

    def _post_first(self, sequence: int) -> None:
        self._sequence = sequence
        for k in range(min(WINDOW, len(self._cuts))):
            self._post(k)

    def _post(self, k: int) -> None:
        self._incoming[k] = [
            self._wide.post(rank, self._sequence, 0, k, self._heard_of(k, nth, host))
            for nth, (host, rank) in enumerate(self._sources.items())
        ]

    def _heard_of(self, k: int, nth: int, host: int) -> Array:
        """Where another host's sum of a piece is received."""
        (begin, end), dtype = self._cuts[k], self._carried[host]
        return self._heard[k % self._posts, nth, : (end - begin) * dtype.itemsize].view(dtype)

    def _add_up(self, k: int) -> None:
        """Make this host's sums for me and for the far ranks I serve, and send the latter."""
        sums = self._sums[k % self._ring]
        if not self._alone:
            self._sum_of(k, self._group.rank, sums[0])
        sent = []
        for nth, rank in enumerate(self._far, 1):
            begin, end = self._cuts[k]
            part = self._inputs[rank][begin:end]
            if not self._alone:
                self._sum_of(k, rank, sums[nth])
                part = sums[nth][: end - begin]
            sent.append(self._wide.send(rank, self._sequence, 0, k, part))
        self._outgoing[k] = sent

    def _sum_of(self, k: int, rank: int, into: Array) -> None:
        begin, end = self._cuts[k]
        here = slice(rank * self._room, rank * self._room + end - begin)
        parts = [
            self._inputs[rank][begin:end] if place == self._team.rank else slot[here]
            for place, slot in enumerate(self._slots[k])
        ]
        self._reduction.partial(parts, into[: end - begin])

    def _end(self, k: int) -> None:
        begin, end = self._cuts[k]
        heard = iter(self._heard_of(k, nth, h) for nth, h in enumerate(self._sources))
        mine = self._sums[k % self._ring][0] if not self._alone else self._inputs[self._group.rank]
        own = mine[: end - begin] if not self._alone else mine[begin:end]
        parts = [own if h == self._wide.host else next(heard) for h in range(len(self._wide.hosts))]
        self._reduction.final(parts, self._into[begin:end])
        self._slots.pop(k, None)
