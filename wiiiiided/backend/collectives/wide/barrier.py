"""The beginning of every collective across hosts, and those that are nothing else: the barriers.

The rule of all pieces: **a piece finds its place posted when it comes**. A link carries all groups,
and one that had to wait for a place would hold up what others need to get on, their OPEN even: two
groups in opposite order on two ranks could then wait for each other for ever. So

- what a rank receives straight into its own arrays is all posted before it arrives in its team;
- what goes through rings and slots is posted WINDOW pieces ahead, from then on. No rank sends
  further ahead than that: in a turn it ends piece k-w, for which it needs a piece of every other
  host, and the ranks of a host are at most a turns apart; so a rank that sends piece k has heard
  from a host all of whose ranks are at turn k-w-2a-1 at least.

(net.frames stops a link for a frame without a place nevertheless: slower, but nothing is lost.)
"""

from __future__ import annotations

from collections.abc import Callable, Generator
from typing import Final

import numpy as np

from wiiiiided.backend.engine.group import Group
from wiiiiided.backend.engine.operation import Plan, Until, Wait
from wiiiiided.backend.engine.remote_members import RemoteMembers
from wiiiiided.backend.shm.board import CallSignature
from wiiiiided.backend.shm.slots import Array

_EMPTY = np.empty(0, np.uint8)

AHEAD: Final = 2  # a: turns that ranks of a host may be apart
FLIGHT: Final = 4  # w: pieces on the wire in each direction (bench/two_hosts.py)
WINDOW: Final = FLIGHT + 2 * AHEAD + 2  # pieces posted before their turn


def _nothing() -> None:
    pass


def _post_nothing(_: int) -> None:
    pass


def open_collective(
    group: Group,
    call: CallSignature,
    x: Array,
    large: bool,
    put: Callable[[], None] = _nothing,
    post: Callable[[int], None] = _post_nothing,
) -> Generator[Wait, None, int]:
    """Wait until all ranks of all hosts have called this; returns the operation's number.

    First the ranks of this host: `put` lays the first piece in place for them, `post(number)` posts
    where the first pieces of other hosts go: before I arrive, because a rank beside me speaks for
    me too. With `large` the team's large slots are there by then.
    """
    wide = remote_members(group)
    sequence = wide.sequence + 1

    def lay() -> None:
        put()
        post(wide.begin())

    yield from group.team.open(call, x, (0, 0), large, lay)
    wide.open(sequence, call)
    yield wide.opened(sequence)
    wide.take_opens(sequence, call)
    return sequence


def remote_members(group: Group) -> RemoteMembers:
    """The members on other hosts, of a group that has some."""
    assert group.wide is not None
    return group.wide


def barrier(group: Group, call: CallSignature) -> Plan:
    """Done when all ranks have called it."""
    yield from open_collective(group, call, _EMPTY, False)


def monitored_barrier(group: Group) -> Plan:
    """Done when all have entered; words of its own, so that giving up leaves the group whole."""
    wide, team = remote_members(group), group.team
    number = team.board.enter_monitored_barrier()
    for link in team.links.values():
        link.ring()
    wide.enter_monitored_barrier(number)

    def missing() -> list[int]:
        near = [team.ranks[place] for place in team.board.not_in_monitored_barrier(number)]
        return sorted([*near, *(r for r, last in wide.barriers_entered.items() if last < number)])

    yield Until(lambda: not missing(), missing, "the monitored barrier")
