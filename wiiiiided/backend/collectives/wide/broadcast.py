"""broadcast over several hosts: the root's array to all.

small      the ranks of the root's host send it along with their OPEN: one trip
pipelined  larger: a chain of hosts, beginning with the root's: each passes a piece on while it
           receives the next, so every link carries the array once, whatever the number of hosts

    root ──► host 1, carrier of piece k ──► host 2, carrier of piece k ──► …
               └► its slot, where its host takes it

Pieces are carried in turn by the ranks of a host, each over its own connections, and received
straight into the carrier's array: all of them are posted before it says OPEN, because its
reads must never wait for what it passes on. In turn i the root puts and sends piece i, a carrier
waits for piece i-w, passes it on and puts it, and all take piece i-w-a, having waited for their
host to be done with turn i-a. Slots: 2a+w.
"""

from __future__ import annotations

import numpy as np

from wiiiiided.backend.collectives.pieces import pieces
from wiiiiided.backend.collectives.wide.barrier import (
    AHEAD,
    FLIGHT,
    open_collective,
    remote_members,
)
from wiiiiided.backend.engine.group import Group
from wiiiiided.backend.engine.operation import Plan
from wiiiiided.backend.engine.remote_members import Ticket
from wiiiiided.backend.shm.board import CallSignature
from wiiiiided.backend.shm.slots import SMALL_BYTES, Array


def broadcast(group: Group, call: CallSignature, x: Array, root: int) -> Plan:
    """The plan."""
    if x.nbytes <= SMALL_BYTES:
        return _brief(group, call, x, root)
    return _BroadcastPipeline(group, call, x, root).plan()


def _brief(group: Group, call: CallSignature, x: Array, root: int) -> Plan:
    team, wide = group.team, remote_members(group)
    home = next(h for h, ranks in enumerate(wide.hosts) if root in ranks)
    slots: list[Array] = []

    def put() -> None:
        slots.extend(team.small.next(x.dtype))
        if group.rank == root:
            slots[team.rank][: x.size] = x

    sequence = wide.begin()
    yield from team.open(call, x, (0, 0), False, put)
    here = slots[team.ranks.index(root)][: x.size].copy() if home == wide.host else None
    wide.open(sequence, call, here)
    yield wide.opened(sequence)
    said = wide.take_opens(sequence, call)
    if group.rank != root:
        x[:] = np.frombuffer(said[home].data, x.dtype) if here is None else here


class _BroadcastPipeline:
    """One large broadcast under way."""

    def __init__(self, group: Group, call: CallSignature, x: Array, root: int) -> None:
        self._group, self._team, self._wide = group, group.team, remote_members(group)
        self._call, self._x, self._root = call, x, root
        self._alone = group.team.size == 1
        hosts = self._wide.hosts
        home = next(h for h, ranks in enumerate(hosts) if root in ranks)
        chain = [(home + n) % len(hosts) for n in range(len(hosts))]
        at = chain.index(self._wide.host)
        self._before = hosts[chain[at - 1]] if at else None
        self._after = hosts[chain[at + 1]] if at + 1 < len(chain) else None
        self._home = home
        self._cuts = pieces(x.size, group.team.staging_bytes // x.itemsize)
        self._slots: dict[int, list[Array]] = {}
        self._incoming: dict[int, Ticket] = {}
        self._passed: dict[int, Ticket] = {}
        self._sequence = 0

    def plan(self) -> Plan:
        alone, team, count = self._alone, self._team, len(self._cuts)

        def put() -> None:
            if not alone:
                self._put(0)

        yield from open_collective(self._group, self._call, self._x, not alone, put, self._post)
        a, w = 0 if alone else min(AHEAD, count), min(FLIGHT, count)
        first, board = team.board.step, team.board
        for turn in range(count + a + w):
            if a and turn >= a and board.lagging(first + turn - a) >= 0:
                yield first + turn - a
            if turn < count:
                if turn and not alone:
                    self._put(turn)
                if self._group.rank == self._root:
                    self._send_on(turn)
            if (incoming := self._incoming.pop(turn - w, None)) is not None:
                if not incoming.done:
                    yield self._wide.tickets([incoming], "a piece of another host")
                self._pass_on(turn - w)
            if 0 <= (k := turn - w - a) < count:
                passed = self._passed.pop(k, None)
                if passed is not None and not passed.done:
                    yield self._wide.tickets([passed], "the network to take a piece")
                if not alone:
                    self._take(k)
            if a and 0 < turn < count + w:
                team.arrive()

    def _put(self, k: int) -> None:
        begin, end = self._cuts[k]
        assert self._team.staging is not None
        slots = self._slots[k] = self._team.staging.next(self._x.dtype)
        if self._group.rank == self._root:
            slots[self._team.rank][: end - begin] = self._x[begin:end]

    def _post(self, sequence: int) -> None:
        """Where the pieces go that I carry."""
        self._sequence, before = sequence, self._before
        if before is None:
            return
        for k, (begin, end) in enumerate(self._cuts):
            if self._carrier(k) == self._group.rank:
                # In the root's host the root itself sends; in the others, the carrier.
                source = self._root if self._root in before else before[k % len(before)]
                self._incoming[k] = self._wide.post(source, sequence, 0, k, self._x[begin:end])

    def _pass_on(self, k: int) -> None:
        self._send_on(k)
        begin, end = self._cuts[k]
        if not self._alone:
            self._slots[k][self._team.rank][: end - begin] = self._x[begin:end]

    def _send_on(self, k: int) -> None:
        if self._after is not None:
            begin, end = self._cuts[k]
            to = self._after[k % len(self._after)]
            self._passed[k] = self._wide.send(to, self._sequence, 0, k, self._x[begin:end])

    def _take(self, k: int) -> None:
        begin, end = self._cuts[k]
        slots, carrier = self._slots.pop(k), self._carrier(k)
        if self._group.rank != carrier:
            self._x[begin:end] = slots[self._team.ranks.index(carrier)][: end - begin]

    def _carrier(self, k: int) -> int:
        """The rank of this host that has piece k first."""
        if self._wide.host == self._home:
            return self._root
        return self._team.ranks[k % self._team.size]
