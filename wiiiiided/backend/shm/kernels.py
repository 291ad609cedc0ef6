"""The arithmetic of reductions, on arrays that may lie in shared memory.

A tensor travels as its *carrier*: a flat numpy array over the tensor's own memory. numpy does the
work where it can, for three reasons measured on the way here: a small numpy call costs 0.4 µs
against torch's 1.3, it never starts a second pool of OpenMP threads beside the training's own, and
it is not held up by autograd's rules (inference tensors, leaves that require gradients).
numpy has no bfloat16 and no float8, and its float16 is slow: those are carried as integers (or
float16) and summed by torch in float32, block by block, rounded once.

Bit-identity: a result is computed by one rank and copied, or by all ranks with the same calls on
the same values in the order of ranks; never in the order of arrival.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, Final, NamedTuple

import numpy as np
import torch

from wiiiiided.backend.shm.slots import Array
from wiiiiided.errors import UsageError

# torch splits a kernel over threads above 32,768 elements; below, a block is one thread's, and its
# float32 sum (128 KiB) stays in the L2 cache.
BLOCK: Final = 32768


def dtype_name(dtype: torch.dtype) -> str:
    """The name without `torch.` in front: `float32`."""
    return str(dtype).removeprefix("torch.")


_NATIVE: Final = {
    torch.float32: np.float32,
    torch.float64: np.float64,
    torch.float16: np.float16,
    torch.int8: np.int8,
    torch.uint8: np.uint8,
    torch.bool: np.bool_,
    torch.int16: np.int16,
    torch.int32: np.int32,
    torch.int64: np.int64,
    torch.uint16: np.uint16,
    torch.uint32: np.uint32,
    torch.uint64: np.uint64,
    torch.complex64: np.complex64,
    torch.complex128: np.complex128,
}

# dtypes numpy does not have: the integer that carries them.
_CARRIED: Final = {
    torch.bfloat16: np.uint16,
    torch.complex32: np.uint32,
    torch.float8_e4m3fn: np.uint8,
    torch.float8_e4m3fnuz: np.uint8,
    torch.float8_e5m2: np.uint8,
    torch.float8_e5m2fnuz: np.uint8,
    torch.float8_e8m0fnu: np.uint8,
}
_TYPESTR: Final = {dtype: np.dtype(t).str for dtype, t in [*_NATIVE.items(), *_CARRIED.items()]}

# A dtype's code in frames is its index here.
DTYPE_NAMES: Final = [dtype_name(dtype) for dtype in [*_NATIVE, *_CARRIED]]

# Summed in a wider dtype and rounded once.
_WIDENED: Final = {
    torch.float16: torch.float32,
    torch.bfloat16: torch.float32,
    torch.float8_e4m3fn: torch.float32,
    torch.float8_e4m3fnuz: torch.float32,
    torch.float8_e5m2: torch.float32,
    torch.float8_e5m2fnuz: torch.float32,
    torch.float8_e8m0fnu: torch.float32,
    torch.complex32: torch.complex64,
}

_NUMPY_OPS: Final[dict[str, Callable[..., Any]]] = {
    "SUM": np.add,
    "AVG": np.add,
    "PREMUL_SUM": np.add,
    "PRODUCT": np.multiply,
    "MIN": np.minimum,
    "MAX": np.maximum,
    "BAND": np.bitwise_and,
    "BOR": np.bitwise_or,
    "BXOR": np.bitwise_xor,
}
_TORCH_OPS: Final[dict[str, Callable[..., Any]]] = {
    "SUM": torch.add,
    "AVG": torch.add,
    "PREMUL_SUM": torch.add,
    "PRODUCT": torch.mul,
    "MIN": torch.minimum,
    "MAX": torch.maximum,
}

Combine = Callable[[Sequence[Array], Array], None]


class _Memory:
    """A tensor's memory as numpy likes to be told of it.

    Not Tensor.numpy(): that marks the storage as not resizable for ever, and FSDP resizes.
    """

    __slots__ = ("__array_interface__", "tensor")

    def __init__(self, tensor: torch.Tensor, typestr: str, count: int) -> None:
        self.tensor = tensor  # keeps the memory as long as an array uses it
        self.__array_interface__ = {
            "data": (tensor.data_ptr(), False),
            "shape": (count,),
            "typestr": typestr,
            "version": 3,
        }


def carrier(tensor: torch.Tensor) -> Array:
    """The memory of a dense, contiguous CPU tensor as a flat array; writes go to the tensor."""
    typestr = _TYPESTR.get(tensor.dtype)
    if typestr is None:
        raise UsageError(
            f"tensors of {dtype_name(tensor.dtype)} cannot be exchanged; convert them first"
        )
    count = tensor.numel()
    if not count:
        return np.empty(0, typestr)
    return np.asarray(_Memory(tensor, typestr, count))


def dtype_code(dtype: torch.dtype) -> int:
    """The number a dtype has in frames."""
    return DTYPE_NAMES.index(dtype_name(dtype))


class Reduction(NamedTuple):
    """A reduction in two levels: `partial` inside a host, `final` over the hosts' results.

    A group on one host needs `final` alone. They differ for AVG, which divides once, at the end.
    """

    partial: Combine
    final: Combine
    unrounded: np.dtype[Any] | None = None  # of partial results that are wider than the tensors

    def carried(self, dtype: np.dtype[Any], ranks: int) -> np.dtype[Any]:
        """The dtype in which a host of so many ranks sends its partial sums."""
        return dtype if ranks == 1 or self.unrounded is None else self.unrounded


def reduction(op: str, dtype: torch.dtype, ranks: int) -> Reduction:
    """The reduction `op` over so many ranks in all."""
    partial = "SUM" if op == "AVG" else op
    final = combiner(op, dtype, ranks)
    rounds = dtype in _WIDENED and op not in ("MIN", "MAX")
    return Reduction(
        final if partial == op else combiner(partial, dtype, ranks),
        final,
        np.dtype(_NATIVE[_WIDENED[dtype]]) if rounds else None,
    )


def combiner(op: str, dtype: torch.dtype, ranks: int) -> Combine:
    """The function that reduces one array of each rank, in order, into `out`.

    `out` may be the first of the arrays, or with two the second, but no other: that would be
    overwritten before it is read. Arrays summed in a wider dtype may also come, and go, in that.
    """
    problem = _impossible(op, dtype)
    if problem:
        raise UsageError(problem)
    if dtype in _WIDENED:
        return _widened(op, dtype, ranks)
    ufunc = _NUMPY_OPS[op]
    finish = _averaging(dtype, ranks) if op == "AVG" else None

    def combine(arrays: Sequence[Array], out: Array) -> None:
        if len(arrays) == 1:
            out[...] = arrays[0]
        else:
            ufunc(arrays[0], arrays[1], out)
            for array in arrays[2:]:
                ufunc(out, array, out)
        if finish is not None:
            finish(out)

    return combine


def _impossible(op: str, dtype: torch.dtype) -> str | None:
    """Why this pair has no meaning, as a sentence, or None."""
    name = dtype_name(dtype)
    if op not in _NUMPY_OPS:
        return f"the reduction {op} is not supported; use one of {', '.join(_NUMPY_OPS)}"
    if op in ("BAND", "BOR", "BXOR") and (dtype.is_floating_point or dtype.is_complex):
        return f"{op} works on bits and needs an integer or bool tensor, not {name}"
    if op in ("MIN", "MAX") and dtype.is_complex:
        return f"{op} needs an order, and {name} numbers have none"
    if op in ("AVG", "PREMUL_SUM") and dtype is torch.bool:
        return f"{op} of {name} has no meaning; use SUM (or), PRODUCT (and), or convert to float"
    if dtype not in _NATIVE and dtype not in _CARRIED:
        return f"tensors of {name} cannot be reduced; convert them first"
    return None


def _averaging(dtype: torch.dtype, ranks: int) -> Callable[[Array], None]:
    if dtype.is_floating_point or dtype.is_complex:

        def divide(out: Array) -> None:
            np.true_divide(out, ranks, out=out)

    else:

        def divide(out: Array) -> None:  # integers: towards zero, as NCCL does
            np.subtract(out, np.fmod(out, ranks), out=out)
            np.floor_divide(out, ranks, out=out)

    return divide


def _widened(op: str, dtype: torch.dtype, ranks: int) -> Combine:
    wide, torch_op = _WIDENED[dtype], _TORCH_OPS[op]
    unrounded = np.dtype(_NATIVE[wide])

    def tensor_of(array: Array) -> torch.Tensor:
        tensor = torch.from_numpy(array)
        return tensor if array.dtype == unrounded else tensor.view(dtype)

    def combine(arrays: Sequence[Array], out: Array) -> None:
        tensors = [tensor_of(array) for array in arrays]
        target = tensor_of(out)
        for at in range(0, out.size, BLOCK):
            block = slice(at, at + BLOCK)
            total = tensors[0][block].to(wide, copy=True)
            for tensor in tensors[1:]:
                torch_op(total, tensor[block].to(wide), out=total)
            if op == "AVG":
                total /= ranks
            target[block].copy_(total)

    return combine
