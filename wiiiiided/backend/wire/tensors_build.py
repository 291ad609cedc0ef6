"""The blueprint of a checked head, and the value made of it over received memory.

A blueprint is a tree: numbers, short strings and the like are there already; tensors, arrays and
long strings know their place in the data; containers hold the rest. Nothing is unpickled before
`build`.
"""

from __future__ import annotations

from collections import OrderedDict
from dataclasses import dataclass
from pickle import loads
from typing import Any, Final

import torch

from wiiiiided.backend.wire.tensors_format import GRAD, PARAMETER, Span, TypeTag, damaged
from wiiiiided.backend.wire.tensors_memory import (
    NumpyDtype,
    Order,
    allocate,
    array_over,
    scalar_of,
    tensor_over,
    usable,
)
from wiiiiided.errors import HostError, UsageError, WiiiiideError

# A part of a value that needs its memory, or must be made anew each time; else it is there already.


@dataclass(frozen=True, slots=True, eq=False)
class BlobPart:
    kind: TypeTag
    where: bytes | Span
    dtype: NumpyDtype | None = None  # of a SCALAR

    def build(self, memory: memoryview) -> Any:
        raw: bytes | memoryview
        if isinstance(self.where, bytes):
            raw = self.where
        else:
            raw = memory[self.where[0] : sum(self.where)]
        return scalar_of(raw, self.dtype) if self.dtype is not None else decoded(self.kind, raw)


@dataclass(frozen=True, slots=True, eq=False)
class TensorPart:
    offset: int
    dtype: torch.dtype
    sizes: tuple[int, ...]
    order: Order
    flags: int

    def build(self, memory: memoryview) -> torch.Tensor:
        tensor = tensor_over(memory, self.offset, self.dtype, self.sizes, self.order)
        grad = bool(self.flags & GRAD)
        if self.flags & PARAMETER:
            return torch.nn.Parameter(tensor, requires_grad=grad)
        return tensor.requires_grad_(grad)


@dataclass(frozen=True, slots=True, eq=False)
class ArrayPart:
    offset: int
    dtype: NumpyDtype
    sizes: tuple[int, ...]
    order: Order

    def build(self, memory: memoryview) -> Any:
        return array_over(memory, self.offset, self.dtype, self.sizes, self.order)


@dataclass(frozen=True, slots=True, eq=False)
class BranchPart:
    kind: TypeTag
    items: list[Any]
    keys: list[Any] | None = None

    def build(self, memory: memoryview) -> Any:
        items = [_built(item, memory) for item in self.items]
        if self.keys is None:
            return _SEQUENCE_OF[self.kind](items)
        made = zip((_built(key, memory) for key in self.keys), items, strict=True)
        found = OrderedDict(made) if self.kind is TypeTag.ORDERED_DICT else dict(made)
        if len(found) != len(items):
            damaged("a dict has a pickled key twice")
        return found


_SEQUENCE_OF: Final[dict[TypeTag, Any]] = {
    TypeTag.LIST: lambda items: items,
    TypeTag.TUPLE: tuple,
    TypeTag.SIZE: torch.Size,
}


_PARTS: Final = (BlobPart, TensorPart, ArrayPart, BranchPart)


def _built(part: Any, memory: memoryview) -> Any:
    return part.build(memory) if isinstance(part, _PARTS) else part


def decoded(kind: TypeTag, raw: bytes | memoryview) -> Any:
    match kind:
        case TypeTag.INT:
            return int.from_bytes(raw, "little", signed=True)
        case TypeTag.STR:
            return str(raw, "utf-8", "surrogatepass")
        case TypeTag.BYTES:
            return bytes(raw)
        case TypeTag.BYTEARRAY:
            return bytearray(raw)
        case _:
            return loads(raw)


@dataclass(frozen=True)
class Blueprint:
    """A checked head: how much memory its value needs, and how to make the value over it."""

    nbytes: int
    spans: list[Span]  # where each buffer stands in the data
    devices: dict[str, str]  # path of a tensor → where it was, for those that were not on the CPU
    _root: Any

    def allocate(self) -> memoryview:
        """Memory for the data, aligned as `build` needs it."""
        return allocate(self.nbytes)

    def build(self, memory: Any) -> Any:
        """The value, over the received data.

        The memory must be writable, begin at a multiple of 64 and have at least `nbytes` bytes.
        Tensors and arrays are made over it and keep it alive, all of it: a caller that writes to it
        writes to them. Everything else is copied out.
        """
        view = _flat(memory)
        if view.nbytes < self.nbytes:
            raise UsageError(f"{view.nbytes:,} bytes are given for {self.nbytes:,} of data")
        if self.nbytes and not usable(view):
            raise UsageError(
                "tensors need writable memory that begins at a multiple of 64: use allocate()"
            )
        try:
            with torch.inference_mode(False), torch.no_grad():
                return _built(self._root, view)
        except WiiiiideError:
            raise
        except Exception as error:  # a pickled leaf may raise anything
            raise HostError(
                f"the received value cannot be made: {type(error).__name__}: {error}"
            ) from error


def _flat(memory: Any) -> memoryview:
    view = memoryview(memory)
    if not view.nbytes:
        return memoryview(b"")
    if not view.c_contiguous:
        raise UsageError("the memory of a value must be in one piece")
    return view.cast("B")


def usable_memory(data: Any, blueprint: Blueprint) -> memoryview:
    """The data as memory that can be built over: itself where it can be used, else a copy."""
    view = _flat(data)
    if view.nbytes != blueprint.nbytes:
        damaged(f"its head promises {blueprint.nbytes:,} bytes of data, {view.nbytes:,} came")
    if not view.nbytes or usable(view):
        return view
    copy = blueprint.allocate()
    copy[:] = view
    return copy
