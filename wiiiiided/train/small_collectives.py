"""all_gather and broadcast of small things: what ranks must agree on, or know of each other."""

from __future__ import annotations

from typing import Any

import torch
import torch.distributed as dist


def all_gather_rows(group: dist.ProcessGroup, mine: torch.Tensor) -> torch.Tensor:
    """Gather every rank's flat tensor, one row a rank. A collective call."""
    rows = torch.empty(group.size(), mine.numel(), dtype=mine.dtype)
    dist.all_gather(list(rows), mine, group)
    return rows


def broadcast_bytes(group: dist.ProcessGroup, memory: Any, source: int) -> None:
    """Send one rank's bytes to all. Ranks of a host may give one place, and write the same."""
    dist.broadcast(torch.from_numpy(memory), dist.get_global_rank(group, source), group)


def all_gather_text(group: dist.ProcessGroup, text: str) -> list[str]:
    """Gather every rank's text, in the order of ranks. A collective call."""
    raw = text.encode()
    sizes = all_gather_rows(group, torch.tensor([len(raw)])).flatten().tolist()
    padded = torch.zeros(max(1, *sizes), dtype=torch.uint8)
    padded[: len(raw)] = torch.tensor(list(raw), dtype=torch.uint8)
    rows = all_gather_rows(group, padded)
    return [bytes(row[:size].tolist()).decode() for row, size in zip(rows, sizes, strict=True)]
