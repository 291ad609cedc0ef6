"""Process groups that a run makes for itself; a later run takes over what an earlier one left.

torch and the engine hold on to a group until it is destroyed. Destroying those of a run that is
gone is no way: Python's collector finds it at another moment on each rank, and torch derives the
name of the next group from how many there are. So a group stays, and is used again once it is free
on all of its ranks: its user is gone, nothing is under way in it, and it has not failed.
"""

from __future__ import annotations

import functools
import operator
import weakref
from collections.abc import Sequence
from datetime import timedelta
from typing import Final, NamedTuple

import torch
import torch.distributed as dist

from wiiiiided.backend.engine.group import Group
from wiiiiided.train.small_collectives import all_gather_rows

_MOST: Final = 62  # groups of the same ranks that are looked at: bits of a word


class SideGroup(NamedTuple):
    """A process group that a run has made, and the engine's group behind it."""

    process_group: dist.ProcessGroup
    group: Group


class _UsedGroup(NamedTuple):
    """A group, and what uses it."""

    made: SideGroup
    user: weakref.ref[object]

    @property
    def is_free(self) -> bool:
        """Whether another user may have it, as far as this rank knows."""
        group = self.made.group
        return self.user() is None and not group.queue and group.problem() is None


# By global ranks and timeout. They are made by all of these ranks, so their order is the same.
_made: dict[tuple[tuple[int, ...], float], list[_UsedGroup]] = {}


def side_group(
    user: object, process_group: dist.ProcessGroup, ranks: Sequence[int], group: Group
) -> SideGroup:
    """A group of some ranks of `process_group`, for as long as `user` is there.

    A collective call of all of `process_group`, behind which `group` is.
    """
    members = [dist.get_global_rank(process_group, rank) for rank in ranks]
    known = _made.setdefault((tuple(members), group.timeout_s), [])
    mine = sum(1 << i for i, used in enumerate(known[:_MOST]) if used.is_free)
    told = all_gather_rows(process_group, torch.tensor([mine])).flatten().tolist()
    free = functools.reduce(operator.and_, (told[rank] for rank in ranks))
    at = (free & -free).bit_length() - 1 if free else len(known)
    made = known[at].made if free else _new_group(members, group.timeout_s)
    known[at : at + 1] = [_UsedGroup(made, weakref.ref(user))]
    return made


def _new_group(members: list[int], timeout_s: float) -> SideGroup:
    made = dist.new_group(
        members,
        timeout=timedelta(seconds=timeout_s),
        backend="wiiiiide",
        use_local_synchronization=True,
    )
    return SideGroup(made, made.engine_group)
