"""Questions of tests of lossy gradients to all ranks together."""

from __future__ import annotations

from typing import Any

import torch
import torch.distributed as dist

from tests.kit.ranks import Rank


def same_everywhere(values: torch.Tensor) -> None:
    """All ranks have the same bits. A collective call."""
    first = values.clone()
    dist.broadcast(first, 0)
    assert torch.equal(values.view(torch.uint8), first.view(torch.uint8))


def residual_sum(me: Rank, run: Any, hosts: str) -> torch.Tensor:
    """Of all hosts together: each host's first rank gives its own. A collective call."""
    flat = torch.cat([r.flatten() for r in run.state_dict()["residuals"].values()])
    if hosts.index(hosts[me.rank]) != me.rank:
        flat.zero_()
    dist.all_reduce(flat)
    return flat
