"""Tensors and arrays as plain bytes in their own memory, and back, without a copy where possible.

A dense tensor is some order of its dimensions over one run of memory: permuted into that order it
is contiguous, and its bytes can be taken where they lie. Everything else (gaps, expanded or turned
dimensions, lazy conjugates, another device) is copied once, into the same order of dimensions. A
slice therefore carries its own bytes and never those of its storage.
"""

from __future__ import annotations

import functools
import re
from collections.abc import Sequence
from typing import Any, Final

import numpy as np
import torch

from wiiiiided.backend.wire.tensors_format import ALIGN, memory_order
from wiiiiided.errors import HostError

Array = np.ndarray[Any, np.dtype[Any]]
NumpyDtype = np.dtype[Any]
Order = tuple[int, ...]

_QUANTIZED: Final = {torch.qint8, torch.qint32, torch.quint8, torch.quint4x2, torch.quint2x4}
TORCH_DTYPES: Final = {
    str(dtype).removeprefix("torch."): dtype
    for dtype in vars(torch).values()
    if isinstance(dtype, torch.dtype) and dtype not in _QUANTIZED
}
TORCH_NAMES: Final = {dtype: name for name, dtype in TORCH_DTYPES.items()}

# torch cannot copy every dtype it has (int4, for one), but it can copy the bits of any.
_BITS: Final = {1: torch.uint8, 2: torch.int16, 4: torch.int32, 8: torch.int64}

# Booleans, integers, floats, complex, dates and spans of time, strings of a fixed length. Not:
# long doubles, whose bytes differ between machines, and what holds references or fields.
_NUMPY_NAME: Final = re.compile(
    r"[<>|](?:b1|[iu][1248]|f[248]|c8|c16|[SU][1-9][0-9]{0,8}"
    r"|[mM]8(?:\[[0-9]{0,9}(?:Y|M|W|D|h|m|s|ms|us|ns|ps|fs|as)\])?)"
)
_LAST_CODE_POINT: Final = 0x10FFFF


@functools.lru_cache(maxsize=256)
def numpy_dtype(name: str) -> NumpyDtype | None:
    """The dtype of this name, if it is one that travels and this is how numpy writes it."""
    if not _NUMPY_NAME.fullmatch(name):
        return None
    try:
        dtype = np.dtype(name)
    except (TypeError, ValueError):
        return None
    return dtype if dtype.str == name else None


def tensor_problem(tensor: torch.Tensor) -> str:
    """Why a tensor's values cannot be read as plain memory, and what to do; empty if they can."""
    if tensor.is_quantized:
        return "a quantized tensor: send x.dequantize(), or x.int_repr() and its scale"
    if tensor.is_nested:
        return "a nested tensor: send a list of its parts, x.unbind()"
    if tensor.layout is not torch.strided:
        layout = str(tensor.layout).removeprefix("torch.")
        return f"a tensor with layout {layout}: send x.to_dense(), or its indices and values"
    if tensor.device.type == "meta":
        return "a tensor on the device meta: it has no values to send"
    if tensor.numel():
        steps = zip(tensor.shape, tensor.stride(), strict=True)
        last = tensor.storage_offset() + sum((size - 1) * step for size, step in steps)
        if (last + 1) * tensor.element_size() > tensor.untyped_storage().nbytes():
            return (
                "a tensor whose memory has been freed, as FSDP does with its parameters: "
                "send a full state dict"
            )
    return ""


def tensor_memory(tensor: torch.Tensor) -> tuple[memoryview, Order]:
    """The bytes of a tensor that is not empty, and the order of its dimensions in them."""
    with torch.no_grad():
        plain = tensor.detach().resolve_conj().resolve_neg().cpu()
        order = memory_order(plain.shape, plain.stride())
        bits = plain.view(_BITS.get(plain.element_size(), plain.dtype))
        dense = bits.permute(order).contiguous()
        flat = dense.as_strided((dense.numel(),), (1,))  # one element may have any stride
        return flat.view(torch.uint8).numpy().data, order


def array_memory(array: Array) -> tuple[memoryview, Order]:
    """The bytes of an array that is not empty, and the order of its dimensions in them."""
    order = memory_order(array.shape, array.strides)
    flat = np.ascontiguousarray(array.transpose(order)).reshape(-1)
    return flat.view(np.uint8).data, order


def tensor_over(
    memory: memoryview, offset: int, dtype: torch.dtype, sizes: Sequence[int], order: Order
) -> torch.Tensor:
    """A tensor over this memory, which it keeps alive; its storage is its own bytes alone."""
    count = functools.reduce(lambda a, b: a * b, sizes, 1)
    if count == 0:  # through its bits: making an empty complex32 warns
        return torch.empty(sizes, dtype=_BITS.get(dtype.itemsize, dtype)).view(dtype)
    flat = torch.frombuffer(memory, dtype=dtype, count=count, offset=offset)
    return flat.view([sizes[dim] for dim in order]).permute(_inverse(order))


def array_over(
    memory: memoryview, offset: int, dtype: NumpyDtype, sizes: Sequence[int], order: Order
) -> Array:
    """An array over this memory, which it keeps alive."""
    if 0 in sizes:
        return np.empty(sizes, dtype)
    array: Array = np.ndarray([sizes[dim] for dim in order], dtype, memory, offset)
    check_code_points(array)
    return array.transpose(_inverse(order))


def check_code_points(array: Array) -> None:
    """Strings whose characters do not exist: numpy would fail when they are read, much later."""
    if array.dtype.kind == "U":
        codes = array.reshape(-1).view(np.dtype("u4").newbyteorder(array.dtype.byteorder))
        if int(codes.max(initial=0)) > _LAST_CODE_POINT:
            raise HostError(
                "the received bytes are no packed value: an array of strings holds characters "
                "that do not exist"
            )


def scalar_of(raw: bytes | memoryview, dtype: NumpyDtype) -> Any:
    array: Array = np.ndarray((), dtype, raw)
    check_code_points(array)
    return array[()]


def _inverse(order: Order) -> Order:
    return tuple(sorted(range(len(order)), key=order.__getitem__))


def allocate(nbytes: int) -> memoryview:
    """Writable memory that begins at a multiple of 64; its bytes are whatever was there."""
    try:
        block = np.empty(nbytes + ALIGN, np.uint8)
    except (MemoryError, ValueError) as error:
        raise HostError(
            f"no memory for {nbytes:,} bytes of tensors: send the value in parts"
        ) from error
    first = -_address(block) % ALIGN
    return block[first : first + nbytes].data


def usable(memory: memoryview) -> bool:
    """Whether tensors may lie in this memory: writable, and at a multiple of 64."""
    return not memory.readonly and _address(np.frombuffer(memory, np.uint8)) % ALIGN == 0


class _Lent:
    """Memory shown to numpy as writable: torch warns of any other, also when it only reads."""

    def __init__(self, memory: memoryview) -> None:
        self.memory = memory
        self.__array_interface__ = {
            "version": 3,
            "typestr": "|u1",
            "shape": (memory.nbytes,),
            "data": (_address(np.frombuffer(memory, np.uint8)), False),
        }


def bytes_tensor(memory: memoryview) -> torch.Tensor:
    """The memory as a tensor of uint8, to be read only."""
    return torch.from_numpy(np.asarray(_Lent(memory)))


def _address(array: Array) -> int:
    return int(array.__array_interface__["data"][0])
