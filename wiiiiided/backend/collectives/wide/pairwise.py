"""gather, scatter and all_to_all over several hosts: what two ranks have for each other.

Between hosts nothing can be shared or saved: the data goes straight from the one's memory over the
link of the two into the other's. Inside a host it goes through shared memory as ever, while the
wire is busy.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

import numpy as np

from wiiiiided.backend.collectives.local.all_gather import all_gather as local_all_gather
from wiiiiided.backend.collectives.local.all_to_all import all_to_all as local_all_to_all
from wiiiiided.backend.collectives.local.all_to_all import check_counts
from wiiiiided.backend.collectives.local.scatter import scatter as local_scatter
from wiiiiided.backend.collectives.pieces import pieces
from wiiiiided.backend.collectives.wide.all_gather import all_gather
from wiiiiided.backend.collectives.wide.barrier import open_collective, remote_members
from wiiiiided.backend.engine.group import Group
from wiiiiided.backend.engine.operation import Plan, Until
from wiiiiided.backend.engine.remote_members import Ticket
from wiiiiided.backend.shm.board import CallSignature
from wiiiiided.backend.shm.slots import Array

PIECE_BYTES: Final = 1 << 20
OUTSTANDING: Final = 16  # pieces on their way out at a time
_COUNT: Final = np.dtype(np.int64)


def gather(
    group: Group, call: CallSignature, x: Array, outputs: Sequence[Array], root: int
) -> Plan:
    """The plan. `outputs[r]` of the root becomes rank r's x."""
    team, tickets = group.team, _Tickets(group)
    if group.rank == root:
        for rank in remote_members(group).barriers_entered:
            tickets.receive(rank, outputs[rank])
    elif root not in team.ranks:
        tickets.send(root, x)
    yield from open_collective(group, call, x, False, post=tickets.post)
    tickets.pump()
    if root in team.ranks:
        yield from local_all_gather(team, call, x, [outputs[r] for r in team.ranks if outputs])
    yield from tickets.wait()


def scatter(
    group: Group, call: CallSignature, inputs: Sequence[Array], output: Array, root: int
) -> Plan:
    """The plan. `inputs[r]` of the root becomes rank r's output."""
    team, tickets = group.team, _Tickets(group)
    if group.rank == root:
        for rank in remote_members(group).barriers_entered:
            tickets.send(rank, inputs[rank])
    elif root not in team.ranks:
        tickets.receive(root, output)
    yield from open_collective(group, call, output, False, post=tickets.post)
    tickets.pump()
    if root in team.ranks:
        near = [inputs[r] for r in team.ranks if inputs]
        yield from local_scatter(team, call, near, output, team.ranks.index(root))
    yield from tickets.wait()


def all_to_all(
    group: Group, call: CallSignature, inputs: Sequence[Array], outputs: Sequence[Array]
) -> Plan:
    """The plan. `outputs[r]` becomes what rank r has for this one."""
    size, tickets = group.size, _Tickets(group)
    for rank in remote_members(group).barriers_entered:
        tickets.receive(rank, outputs[rank])
        tickets.send(rank, inputs[rank])
    yield from open_collective(group, call, outputs[0], False, post=tickets.post)
    # Sizes may differ from pair to pair: every rank sees all of them before anything is sent.
    mine = np.array([x.size for x in [*inputs, *outputs]], _COUNT)
    rows = [np.empty(2 * size, _COUNT) for _ in range(size)]
    yield from all_gather(group, call, mine, rows)
    table = np.array(rows)
    check_counts(group.membership.name, table[:, :size], table[:, size:])
    tickets.pump()
    team = group.team
    near_in, near_out = [inputs[r] for r in team.ranks], [outputs[r] for r in team.ranks]
    yield from local_all_to_all(team, call, near_in, near_out)
    yield from tickets.wait()


class _Tickets:
    """The pieces between this rank and others in one operation, a few at a time."""

    def __init__(self, group: Group) -> None:
        self._wide, self._sequence = remote_members(group), 0
        self._out: list[tuple[int, int, Array]] = []  # rank, number of the piece, data
        self._in: list[tuple[int, int, Array]] = []
        self._coming: list[Ticket] = []
        self._going: list[Ticket] = []

    def send(self, rank: int, x: Array) -> None:
        self._out += [(rank, k, part) for k, part in _parts(x)]

    def receive(self, rank: int, x: Array) -> None:
        self._in += [(rank, k, part) for k, part in _parts(x)]

    def post(self, sequence: int) -> None:
        """Post a place for every piece to come, before any peer is told that we are here."""
        self._sequence = sequence
        # Taken from the end: in the order of pieces, not of ranks, so that all are served at once.
        self._out.sort(key=lambda item: -item[1])
        self._coming = [self._wide.post(rank, sequence, 2, k, part) for rank, k, part in self._in]

    def pump(self) -> None:
        """Send more while few pieces are on their way: each may be an encoded copy."""
        self._going = [ticket for ticket in self._going if not ticket.done]
        while self._out and len(self._going) < OUTSTANDING:
            rank, k, part = self._out.pop()
            self._going.append(self._wide.send(rank, self._sequence, 2, k, part))

    def wait(self) -> Plan:
        """Wait until every send and receive is done."""
        self.pump()
        while self._going:
            if not any(ticket.done for ticket in self._going):
                yield self._one_of(self._going)
            self.pump()
        if not all(ticket.done for ticket in self._coming):
            yield self._wide.tickets(self._coming, "data of other hosts")

    def _one_of(self, going: list[Ticket]) -> Until:
        return Until(
            lambda: any(ticket.done for ticket in going),
            lambda: sorted({ticket.peer for ticket in going}),
            "the network to take data",
        )


def _parts(x: Array) -> list[tuple[int, Array]]:
    cuts = pieces(x.size, PIECE_BYTES // x.itemsize)
    return [(k, x[begin:end]) for k, (begin, end) in enumerate(cuts) if begin < end]
