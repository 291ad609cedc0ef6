"""gather, scatter and all_to_all over several hosts: what two ranks have for each other.

Between hosts nothing can be shared or saved: the data goes straight from the one's memory over the
link of the two into the other's. Inside a host it goes through shared memory as ever, while the
wire is busy.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

import numpy as np

from wiiiiided.collectives.local.all_gather import all_gather as local_all_gather
from wiiiiided.collectives.local.all_to_all import all_to_all as local_all_to_all
from wiiiiided.collectives.local.all_to_all import check_counts
from wiiiiided.collectives.local.scatter import scatter as local_scatter
from wiiiiided.collectives.pieces import pieces
from wiiiiided.collectives.wide.all_gather import all_gather
from wiiiiided.collectives.wide.meet import across, meet
from wiiiiided.engine.group import Group
from wiiiiided.engine.operation import Plan
from wiiiiided.engine.wide import Ticket
from wiiiiided.shm.board import Call
from wiiiiided.shm.slots import Array

PIECE_BYTES: Final = 1 << 20
_COUNT: Final = np.dtype(np.int64)


def gather(group: Group, call: Call, x: Array, outputs: Sequence[Array], root: int) -> Plan:
    """The plan. `outputs[r]` of the root becomes rank r's x."""
    sequence = yield from meet(group, call, x, False)
    team, tickets = group.team, _Tickets(group, sequence)
    if group.rank == root:
        for rank in across(group).mustered:
            tickets.receive(rank, outputs[rank])
    elif root not in team.ranks:
        tickets.send(root, x)
    if root in team.ranks:
        yield from local_all_gather(team, call, x, [outputs[r] for r in team.ranks if outputs])
    yield from tickets.wait()


def scatter(group: Group, call: Call, inputs: Sequence[Array], output: Array, root: int) -> Plan:
    """The plan. `inputs[r]` of the root becomes rank r's output."""
    sequence = yield from meet(group, call, output, False)
    team, tickets = group.team, _Tickets(group, sequence)
    if group.rank == root:
        for rank in across(group).mustered:
            tickets.send(rank, inputs[rank])
    elif root not in team.ranks:
        tickets.receive(root, output)
    if root in team.ranks:
        near = [inputs[r] for r in team.ranks if inputs]
        yield from local_scatter(team, call, near, output, team.ranks.index(root))
    yield from tickets.wait()


def all_to_all(group: Group, call: Call, inputs: Sequence[Array], outputs: Sequence[Array]) -> Plan:
    """The plan. `outputs[r]` becomes what rank r has for this one."""
    size = group.size
    mine = np.array([x.size for x in [*inputs, *outputs]], _COUNT)
    rows = [np.empty(2 * size, _COUNT) for _ in range(size)]
    yield from all_gather(group, call, mine, rows)
    table = np.array(rows)
    check_counts(group.membership.name, table[:, :size], table[:, size:])
    team, tickets = group.team, _Tickets(group, across(group).sequence)
    for rank in across(group).mustered:
        tickets.receive(rank, outputs[rank])
    for rank in across(group).mustered:
        tickets.send(rank, inputs[rank])
    near_in, near_out = [inputs[r] for r in team.ranks], [outputs[r] for r in team.ranks]
    yield from local_all_to_all(team, call, near_in, near_out)
    yield from tickets.wait()


class _Tickets:
    """What is on its way between this rank and others in one operation."""

    def __init__(self, group: Group, sequence: int) -> None:
        self._wide, self._sequence = across(group), sequence
        self._tickets: list[Ticket] = []

    def send(self, rank: int, x: Array) -> None:
        for k, (begin, end) in enumerate(pieces(x.size, PIECE_BYTES // x.itemsize)):
            if begin < end:
                self._tickets.append(self._wide.send(rank, self._sequence, 2, k, x[begin:end]))

    def receive(self, rank: int, x: Array) -> None:
        for k, (begin, end) in enumerate(pieces(x.size, PIECE_BYTES // x.itemsize)):
            if begin < end:
                self._tickets.append(self._wide.post(rank, self._sequence, 2, k, x[begin:end]))

    def wait(self) -> Plan:
        if not all(ticket.done for ticket in self._tickets):
            yield self._wide.tickets(self._tickets, "data of other hosts")
