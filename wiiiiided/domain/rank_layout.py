"""Which ranks of an attempt run on which node, in an order that groups a host's ranks.

nodes      a          b
ranks      0 1 2      3 4
local      0 1 2      0 1
"""

from __future__ import annotations

import msgspec


class AllocationSpec(msgspec.Struct, frozen=True):
    """The part of an attempt that one node runs."""

    node: str
    index: int  # of the node in the attempt: torchrun's GROUP_RANK
    first_rank: int
    workers: int
    cores: int  # claimed on that node

    @property
    def ranks(self) -> range:
        return range(self.first_rank, self.first_rank + self.workers)


class Layout(msgspec.Struct, frozen=True):
    """All allocations of an attempt, in rank order."""

    allocations: tuple[AllocationSpec, ...] = msgspec.field(name="shares")  # as they are stored

    @property
    def world_size(self) -> int:
        return sum(allocation.workers for allocation in self.allocations)

    def on(self, node: str) -> AllocationSpec:
        """The allocation of a node that is part of the attempt."""
        return next(one for one in self.allocations if one.node == node)
