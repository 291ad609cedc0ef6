"""Arguments of the process group, made ready for a plan: checked, named, cut and packed."""

# torch's stubs do not know the attributes of its ReduceOp.
# mypy: disable-error-code="attr-defined"

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import torch
import torch.distributed as dist

from wiiiiided.backend.engine.operation import Plan
from wiiiiided.backend.shm.kernels import dtype_name
from wiiiiided.backend.shm.slots import Array
from wiiiiided.errors import UsageError
from wiiiiided.torch.flat import CopyBack, flatten, flatten_each

Tensors = Sequence[torch.Tensor]

# By number: hashing torch's enum costs 0.5 µs more.
_OPS: Mapping[str, Any] = dist.ReduceOp.RedOpType.__members__
_OP_NAMES = {int(op): name for name, op in _OPS.items()}

# Coalesced tensors are packed into one exchange while they are together no larger than this.
PACK_BYTES = 4 * 1024 * 1024


def describe(name: str, dtype: torch.dtype | None, count: int, op: str, root: int) -> str:
    text = name + (f"({op})" if op else "")
    if count >= 0:
        text += f" of {count} elements"
    if dtype is not None:
        text += f" of {dtype_name(dtype)}"
    return text + (f" with root {root}" if root >= 0 else "")


def only(tensors: Any) -> Any:
    """The one element of a list of one, which is how torch passes a tensor."""
    if len(tensors) != 1:
        raise UsageError(f"one tensor a rank is exchanged at a time here; got {len(tensors)}")
    return tensors[0]


def reduction(op: Any, tensors: Tensors) -> tuple[str, Any]:
    """The name of a reduction, and the factor of PREMUL_SUM, which must suit the tensors."""
    kind: Any = op.op if isinstance(op, dist.ReduceOp) else op
    name = _OP_NAMES[int(kind)]
    if name != "PREMUL_SUM":
        return name, None
    factor = op.__getstate__()[1]
    for tensor in tensors:
        if not torch.can_cast(torch.result_type(tensor, factor), tensor.dtype):
            raise UsageError(
                f"PREMUL_SUM cannot multiply {dtype_name(tensor.dtype)} by {factor}: "
                "the product has another dtype"
            )
    return name, factor


def scaled(arrays: Sequence[tuple[Array, torch.dtype]], factor: Any, plan: Plan) -> Plan:
    """PREMUL_SUM: multiply this rank's arrays before the sum."""
    for x, dtype in arrays:
        torch.from_numpy(x).view(dtype).mul_(factor)
    yield from plan


def one_by_one(plans: list[Plan]) -> Plan:
    """Several plans as one, in order."""
    if len(plans) == 1:
        return plans[0]

    def sequence() -> Plan:
        for plan in plans:
            yield from plan

    return sequence()


def split(x: Array, parts: int) -> list[Array]:
    n = x.size // parts
    return [x[i * n : (i + 1) * n] for i in range(parts)]


def split_rows(
    which: str, x: Array, tensor: torch.Tensor, sizes: Sequence[int], parts: int
) -> list[Array]:
    rows = tensor.shape[0] if tensor.dim() else 1
    if not sizes:
        if rows % parts:
            raise UsageError(
                f"all_to_all_single without split sizes needs an {which} whose first dimension "
                f"divides by {parts}; it is {rows}"
            )
        sizes = [rows // parts] * parts
    if len(sizes) != parts or sum(sizes) != rows:
        raise UsageError(
            f"the {which} split sizes of all_to_all_single must be {parts} numbers that add up to "
            f"{rows}, its first dimension; got {list(sizes)}"
        )
    row = x.size // rows if rows else 0
    ends = np.cumsum([0, *sizes]) * row
    return [x[int(ends[i]) : int(ends[i + 1])] for i in range(parts)]


def packed(tensors: Tensors, copy_backs: list[CopyBack]) -> list[tuple[Array, torch.dtype]]:
    """Coalesced tensors as arrays to exchange: small ones of one dtype together in one."""
    tensors = list(tensors)
    total = sum(t.numel() * t.element_size() for t in tensors)
    one_kind = len({(t.dtype, t.device) for t in tensors}) == 1
    if len(tensors) < 2 or total > PACK_BYTES or not one_kind:
        return [(flatten(t, copy_backs), t.dtype) for t in tensors]
    arrays = flatten_each(tensors, copy_backs)
    packed = np.concatenate(arrays)

    def unpack() -> None:
        at = 0
        for array in arrays:
            array[:] = packed[at : at + array.size]
            at += array.size

    copy_backs.insert(0, unpack)  # before copies back from these arrays
    return [(packed, tensors[0].dtype)]
