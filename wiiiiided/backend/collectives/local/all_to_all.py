"""all_to_all: every rank has an array for every other; sizes may differ from pair to pair.

first step   every rank writes how much it sends to and expects from each rank; each rank checks
             the whole table, so that a disagreement is an error on all, with both sides
then         pieces: a slot is divided evenly, one part for each destination
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from wiiiiided.backend.collectives.local.relay import relay, room
from wiiiiided.backend.engine.host_team import Team
from wiiiiided.backend.engine.operation import Plan
from wiiiiided.backend.shm.board import CallSignature
from wiiiiided.backend.shm.slots import Array
from wiiiiided.errors import Mismatch

_COUNT = np.dtype(np.int64)


def all_to_all(
    team: Team, call: CallSignature, inputs: Sequence[Array], outputs: Sequence[Array]
) -> Plan:
    """The plan. `outputs[r]` becomes what rank r has for this one."""
    me, size = team.rank, team.size
    table: list[Array] = []

    def put_counts() -> None:
        table.extend(team.small.next(_COUNT))
        table[me][:size] = [x.size for x in inputs]
        table[me][size : 2 * size] = [x.size for x in outputs]

    yield from team.open(call, table_key, (0, 0), False, put_counts)
    sends = np.array([slot[:size] for slot in table])
    expects = np.array([slot[size : 2 * size] for slot in table])
    check_counts(team.name, sends, expects)

    largest = int(sends.max()) * outputs[0].itemsize
    large, room_elements = room(team, outputs[0], largest * size)
    most = max(1, room_elements // size)
    count = max(1, -(-int(sends.max()) // most))

    def put(k: int, slots: list[Array]) -> None:
        for r, x in enumerate(inputs):
            part = x[k * most : (k + 1) * most]
            if r != me and part.size:
                slots[me][r * most : r * most + part.size] = part

    def take(k: int, slots: list[Array]) -> None:
        for r, output in enumerate(outputs):
            part = output[k * most : (k + 1) * most]
            if not part.size:
                continue
            part[:] = (
                inputs[me][k * most : (k + 1) * most]
                if r == me
                else slots[r][me * most : me * most + part.size]
            )

    yield from relay(team, call, outputs[0], (0, 0), large, count, put, take)


table_key = np.empty(0, _COUNT)


def check_counts(name: str, sends: Array, expects: Array) -> None:
    """Raise unless `sends[r, q]`, what rank r has for q, is what q expects: `expects[q, r]`."""
    wrong = np.argwhere(sends != expects.T)
    if len(wrong):
        source, to = wrong[0]
        raise Mismatch(
            f"all_to_all in group {name}: rank {source} sends {sends[source, to]} "
            f"elements to rank {to}, which expects {expects[to, source]}"
        )
