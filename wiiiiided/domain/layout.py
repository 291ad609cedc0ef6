"""Who sits where: the ranks of one attempt on its nodes, in an order that groups a host's ranks.

nodes      a          b
ranks      0 1 2      3 4
local      0 1 2      0 1
"""

from __future__ import annotations

import msgspec


class Share(msgspec.Struct, frozen=True):
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
    """All shares of an attempt, in rank order."""

    shares: tuple[Share, ...]

    @property
    def world_size(self) -> int:
        return sum(share.workers for share in self.shares)

    def on(self, node: str) -> Share:
        """The share of a node that is part of it."""
        return next(share for share in self.shares if share.node == node)
