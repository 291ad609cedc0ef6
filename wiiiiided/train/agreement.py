"""Ranks tell each other small things, in the order of ranks: what must agree, or be known."""

from __future__ import annotations

from typing import Any

import torch
import torch.distributed as dist


def gather(group: dist.ProcessGroup, mine: torch.Tensor) -> torch.Tensor:
    """Every rank's flat tensor, one row a rank. A collective call."""
    rows = torch.empty(group.size(), mine.numel(), dtype=mine.dtype)
    dist.all_gather(list(rows), mine, group)
    return rows


def spread(group: dist.ProcessGroup, memory: Any, source: int) -> None:
    """One rank's bytes to all. Ranks of a host may give one place: they write the same to it."""
    dist.broadcast(torch.from_numpy(memory), dist.get_global_rank(group, source), group)


def tell_all(group: dist.ProcessGroup, text: str) -> list[str]:
    """Every rank's text. A collective call."""
    raw = text.encode()
    sizes = gather(group, torch.tensor([len(raw)])).flatten().tolist()
    padded = torch.zeros(max(1, *sizes), dtype=torch.uint8)
    padded[: len(raw)] = torch.tensor(list(raw), dtype=torch.uint8)
    rows = gather(group, padded)
    return [bytes(row[:size].tolist()).decode() for row, size in zip(rows, sizes, strict=True)]
