"""all_reduce of sparse tensors: what DDP needs for nn.Embedding(sparse=True).

Sums of sparse tensors have entries wherever any rank has one, so nothing is reduced on the way:
every rank gets all ranks' entries (all_gather, padded to the longest) and adds them up itself, in
the order of ranks, so that all get the same bits.
"""

from __future__ import annotations

import numpy as np
import torch

from wiiiiided.backend.collectives.dispatch import all_gather
from wiiiiided.backend.engine.group import Group
from wiiiiided.backend.engine.operation import Plan
from wiiiiided.backend.shm.board import CallSignature
from wiiiiided.backend.shm.kernels import carrier, dtype_name
from wiiiiided.errors import UsageError


def sparse_all_reduce(group: Group, tensor: torch.Tensor, op: str) -> Plan:
    """The plan. The tensor becomes the coalesced sum (or average) of all ranks'."""
    if op not in ("SUM", "AVG"):
        raise UsageError(f"sparse tensors can be reduced with SUM and AVG only, not {op}")
    return _plan(group, tensor, op)


def _plan(group: Group, tensor: torch.Tensor, op: str) -> Plan:
    mine = tensor.detach().cpu().coalesce()
    what = f"all_reduce({op}) of a sparse tensor {list(tensor.shape)} of {dtype_name(tensor.dtype)}"

    counts = [np.zeros(1, np.int64) for _ in range(group.size)]
    count = np.array([mine.indices().shape[1]], np.int64)
    yield from all_gather(group, CallSignature.of(what), count, counts)
    lengths = [int(n[0]) for n in counts]

    parts = []
    for name, entries in (("indices", mine.indices().t()), ("values", mine.values())):
        padded = entries.new_zeros((max(lengths), *entries.shape[1:]))
        padded[: len(entries)] = entries
        gathered = [torch.empty_like(padded) for _ in range(group.size)]
        call = CallSignature.of(f"{what}: {name} of {list(padded.shape)}")
        yield from all_gather(group, call, carrier(padded), [carrier(g) for g in gathered])
        parts.append(torch.cat([g[:n] for g, n in zip(gathered, lengths, strict=True)]))

    total = torch.sparse_coo_tensor(
        parts[0].t(), parts[1], tensor.shape, check_invariants=False
    ).coalesce()
    if op == "AVG":
        total = total / group.size
    with torch.no_grad():
        tensor.copy_(total)  # not detach(): a detached sparse tensor has entries of its own
