"""The beginning of every collective across hosts, and those that are nothing else: the barriers."""

from __future__ import annotations

from collections.abc import Callable, Generator

import numpy as np

from wiiiiided.engine.group import Group
from wiiiiided.engine.operation import Plan, Until, Wait
from wiiiiided.engine.wide import Wide
from wiiiiided.shm.board import Call
from wiiiiided.shm.slots import Array

_EMPTY = np.empty(0, np.uint8)


def _nothing() -> None:
    pass


def meet(
    group: Group, call: Call, x: Array, large: bool, put: Callable[[], None] = _nothing
) -> Generator[Wait, None, int]:
    """Wait until all ranks of all hosts have called this; returns the operation's number.

    First the ranks of this host: `put` lays the first piece in place for them. With `large` the
    team's large slots are there afterwards.
    """
    wide = across(group)
    yield from group.team.open(call, x, (0, 0), large, put)
    sequence = wide.begin()
    wide.open(sequence, call)
    yield wide.opened(sequence)
    wide.take_opens(sequence, call)
    return sequence


def across(group: Group) -> Wide:
    """The group's way to other hosts, which it has."""
    assert group.wide is not None
    return group.wide


def barrier(group: Group, call: Call) -> Plan:
    """Done when all ranks have called it."""
    yield from meet(group, call, _EMPTY, False)


def monitored_barrier(group: Group) -> Plan:
    """Done when all have entered; words of its own, so that giving up leaves the group whole."""
    wide, team = across(group), group.team
    number = team.board.muster()
    for link in team.links.values():
        link.ring()
    wide.muster(number)

    def missing() -> list[int]:
        near = [team.ranks[place] for place in team.board.unmustered(number)]
        return sorted([*near, *(r for r, last in wide.mustered.items() if last < number)])

    yield Until(lambda: not missing(), missing, "the monitored barrier")
