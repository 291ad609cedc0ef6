"""all_gather over several hosts: every rank's array to all.

small      a host's arrays travel together with its OPEN: one trip
pipelined  larger: a rank sends its pieces to one *carrier* rank on each other host, which receives
           them into its slot, where all of that host take them: every array crosses once to a host

    slot of a rank:   │ its own piece │ piece of a far rank it carries │ of another … │

In turn i a rank does its part of piece i (put and send it), posts where far pieces i+W go, waits
for those of i-w, and takes piece i-w-a, having waited for all of its host to be done with turn
i-a. All are then done with taking i-2a-w, and W+2a+w slots are enough.
A rank that is alone on its host receives straight into its outputs.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from wiiiiided.backend.collectives.pieces import pieces
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
from wiiiiided.backend.shm.slots import SMALL_BYTES, Array


def all_gather(group: Group, call: CallSignature, x: Array, outputs: Sequence[Array]) -> Plan:
    """The plan. `outputs[r]` becomes rank r's x."""
    most = max(len(ranks) for ranks in remote_members(group).hosts)
    if x.nbytes * most <= SMALL_BYTES:
        return _brief(group, call, x, outputs)
    return _AllGatherPipeline(group, call, x, outputs).plan()


def _brief(group: Group, call: CallSignature, x: Array, outputs: Sequence[Array]) -> Plan:
    team, wide = group.team, remote_members(group)
    slots: list[Array] = []

    def put() -> None:
        slots.extend(team.small.next(x.dtype))
        slots[team.rank][: x.size] = x

    sequence = wide.begin()
    yield from team.open(call, x, (0, 0), False, put)
    here = np.concatenate([slot[: x.size] for slot in slots])
    wide.open(sequence, call, here)
    yield wide.opened(sequence)
    said = wide.take_opens(sequence, call)
    for h, ranks in enumerate(wide.hosts):
        there = here if h == wide.host else np.frombuffer(said[h].data, x.dtype)
        for place, rank in enumerate(ranks):
            outputs[rank][:] = there[place * x.size : (place + 1) * x.size]


class _AllGatherPipeline:
    """One large all_gather under way."""

    def __init__(
        self, group: Group, call: CallSignature, x: Array, outputs: Sequence[Array]
    ) -> None:
        self._group, self._team, self._wide = group, group.team, remote_members(group)
        self._call, self._x, self._outputs = call, x, outputs
        self._alone = group.team.size == 1
        hosts = as_hosts(self._wide.hosts)
        to = carriers(hosts)
        self._targets = list(to[group.rank].values())
        # Which far ranks each rank of this host carries, in the order they lie in its slot.
        host = self._wide.host
        self._carried = {
            rank: [r for r, there in to.items() if there.get(host) == rank] for rank in hosts[host]
        }
        parts = 1 + max(
            sum(there.get(h) == rank for there in to.values())
            for h, ranks in enumerate(hosts)
            for rank in ranks
        )
        self._room = group.team.staging_bytes // x.itemsize // parts
        self._cuts = pieces(x.size, self._room)
        self._slots: dict[int, list[Array]] = {}
        self._tickets: dict[int, list[Ticket]] = {}
        self._sends: list[Ticket] = []
        self._sequence = 0
        self._next = 0  # the first piece whose slots are not taken yet

    def plan(self) -> Plan:
        alone, team, count = self._alone, self._team, len(self._cuts)

        def put() -> None:
            if not alone:
                self._put(0)

        yield from open_collective(
            self._group, self._call, self._x, not alone, put, self._post_first
        )
        a, w = 0 if alone else min(AHEAD, count), min(FLIGHT, count)
        first, board = team.board.step, team.board
        for turn in range(count + a + w):
            if a and turn >= a and board.lagging(first + turn - a) >= 0:
                yield first + turn - a
            if turn + WINDOW < count and not alone:
                self._post(turn + WINDOW)
            if turn < count:
                if turn and not alone:
                    self._put(turn)
                self._send(turn)
            if 0 <= turn - w < count:
                tickets = self._tickets.pop(turn - w)
                if not all(ticket.done for ticket in tickets):
                    yield self._wide.tickets(tickets, "pieces of other hosts")
            if 0 <= turn - w - a < count and not alone:
                self._take(turn - w - a)
            if a and 0 < turn < count + w:
                team.arrive()
        if not all(ticket.done for ticket in self._sends):
            yield self._wide.tickets(self._sends, "the network to take pieces")

    def _slot(self, k: int) -> list[Array]:
        """The slots of piece k: every rank takes them in the same order, some turns ahead."""
        assert self._team.staging is not None
        while self._next <= k:
            self._slots[self._next] = self._team.staging.next(self._x.dtype)
            self._next += 1
        return self._slots[k]

    def _put(self, k: int) -> None:
        begin, end = self._cuts[k]
        self._slot(k)[self._team.rank][: end - begin] = self._x[begin:end]

    def _post_first(self, sequence: int) -> None:
        self._sequence = sequence
        count = len(self._cuts)
        for k in range(count if self._alone else min(WINDOW, count)):
            self._post(k)

    def _post(self, k: int) -> None:
        """Where the pieces go that I carry."""
        begin, end = self._cuts[k]
        tickets = []
        for nth, rank in enumerate(self._carried[self._group.rank], 1):
            if self._alone:
                into = self._outputs[rank][begin:end]
            else:
                into = self._slot(k)[self._team.rank][nth * self._room :][: end - begin]
            tickets.append(self._wide.post(rank, self._sequence, 0, k, into))
        self._tickets[k] = tickets

    def _send(self, k: int) -> None:
        """Send my piece to its carriers on the other hosts."""
        begin, end = self._cuts[k]
        wide, sequence = self._wide, self._sequence
        mine = self._outputs[self._group.rank]
        if mine.ctypes.data != self._x.ctypes.data:
            mine[begin:end] = self._x[begin:end]
        self._sends = [ticket for ticket in self._sends if not ticket.done]
        for rank in self._targets:
            self._sends.append(wide.send(rank, sequence, 0, k, self._x[begin:end]))

    def _take(self, k: int) -> None:
        begin, end = self._cuts[k]
        for place, slot in enumerate(self._slots.pop(k)):
            rank = self._team.ranks[place]
            if rank != self._group.rank:
                self._outputs[rank][begin:end] = slot[: end - begin]
            for nth, far in enumerate(self._carried[rank], 1):
                self._outputs[far][begin:end] = slot[nth * self._room :][: end - begin]
