"""A nest of tensors, arrays and strings as one stretch of bytes, and back. Pure.

    │ column │ column │ … │ head │ 8 bytes: n │      columns at multiples of 64, a head of n bytes

The head says what is where, as nested lists (msgpack):

    ["dict", keys, nodes]   ["tuple", nodes]   ["list", nodes]
    ["tensor" | "array", dtype, shape, offset]
    ["strings", count, bytes, offset]       │ count + 1 offsets of 8 bytes │ the strings, in UTF-8 │
    ["constant", value]

A list of strings is one leaf, not a million; a list of numbers becomes an array. Nothing is
pickled: what is read back is bytes and names of dtypes.

It comes last because memory is taken column by column, and each column's source is let go of
before the next one is copied: a data set is never there twice, only its largest array. An array
that lies in the memory already (`PackingMemory.find`) stays where it is.
"""

from __future__ import annotations

import itertools
import math
from collections import deque
from collections.abc import Callable, Iterable, Sequence
from typing import Any, Final, NamedTuple, Protocol

import msgspec
import numpy as np
import torch
from torch.utils.data import TensorDataset

from wiiiiided.backend.shm.kernels import dtype_name
from wiiiiided.errors import UsageError
from wiiiiided.train.data.columns import Column, Constant, RowRun, StringColumn, StringRun, Tree
from wiiiiided.train.data.file_formats import torch_dtype

Node = list[Any]  # of the head
_WORD: Final = 8
_STRINGS_AT_ONCE: Final = 10_000  # as many are encoded before they are written
_PLAIN: Final = (bool, int, float, str, bytes, type(None))


class PackingMemory(Protocol):
    """Where values are packed: memory that is taken piece by piece."""

    def take(self, nbytes: int) -> tuple[int, Any]:
        """The next piece: its offset, and its bytes (numpy)."""

    def find(self, address: int, nbytes: int) -> int | None:
        """The offset of bytes at this address; None: they lie elsewhere."""


class _PackedPart(NamedTuple):
    """A column that is to be copied."""

    node: Node  # which gets the offset
    nbytes: int
    write: Callable[[Any], None]  # into numpy bytes of that size


class PackedValue:
    """A value all of which can be packed; `write` lays it down."""

    def __init__(self, value: Any, memory: PackingMemory) -> None:
        self._memory = memory
        self._parts: deque[_PackedPart] = deque()
        self._root = self._node(value, "the value")
        self.largest = max((part.nbytes for part in self._parts), default=0)

    def write(self, freed: Callable[[int], None] = lambda nbytes: None) -> None:
        """Lay everything down. Once: `freed` is called after so many bytes were let go of."""
        while self._parts:
            freed(self._lay_down(self._parts.popleft()))
        head = msgspec.msgpack.encode(self._root)
        _, raw = self._memory.take(len(head) + _WORD)
        raw[:-_WORD] = np.frombuffer(head, np.uint8)
        raw[-_WORD:] = np.frombuffer(len(head).to_bytes(_WORD, "little"), np.uint8)

    def _lay_down(self, part: _PackedPart) -> int:
        at, raw = self._memory.take(part.nbytes)
        part.node.append(at)
        if part.nbytes:
            part.write(raw)
        return part.nbytes

    def _placed(self, node: Node, nbytes: int, write: Callable[[Any], None]) -> Node:
        """A node whose column is to be copied."""
        self._parts.append(_PackedPart(node, nbytes, write))
        return node

    def _leaf(
        self, node: Node, nbytes: int, address: int | None, write: Callable[[Any], None]
    ) -> Node:
        """A tensor's or array's node; `address`: of its bytes, if they are all there in order."""
        at = None if address is None else self._memory.find(address, nbytes)
        return self._placed(node, nbytes, write) if at is None else [*node, at]

    def _node(self, value: Any, where: str) -> Node:
        if isinstance(value, TensorDataset):
            value = value.tensors
        if type(value) is dict:
            bad = [key for key in value if not isinstance(key, str | int)]
            if bad:
                raise UsageError(f"{where} has the key {bad[0]!r}: keys are strings or numbers")
            nodes = [self._node(part, f"{where}[{key!r}]") for key, part in value.items()]
            return ["dict", list(value), nodes]
        if type(value) is list and value and all(isinstance(one, str) for one in value):
            return self._strings(value)
        if type(value) is list and value and all(type(one) in (bool, int, float) for one in value):
            value = np.asarray(value)
        if type(value) in (tuple, list):
            nodes = [self._node(part, f"{where}[{k}]") for k, part in enumerate(value)]
            return [type(value).__name__, nodes]
        if isinstance(value, torch.Tensor):
            return self._tensor(value, where)
        if isinstance(value, np.generic):
            value = value.item()
        if isinstance(value, np.ndarray):
            torch_dtype(value.dtype, where)
            array: Any = np.asarray(value)
            is_plain = array.flags.c_contiguous and array.flags.aligned
            address = array.__array_interface__["data"][0] if is_plain else None
            node = ["array", array.dtype.str, list(array.shape)]
            return self._leaf(node, array.nbytes, address, lambda raw: _fill(raw, array))
        if type(value) in _PLAIN and not (type(value) is int and not -(2**63) <= value < 2**63):
            return ["constant", value]
        raise UsageError(
            f"{where} is a {type(value).__name__}: tensors, numpy arrays, lists of strings and "
            "numbers can be shared, in plain dicts, tuples and lists"
        )

    def _tensor(self, value: torch.Tensor, where: str) -> Node:
        what = None
        if value.device.type != "cpu":
            what = f"lies on {value.device}"
        elif value.layout is not torch.strided or value.is_quantized:
            what = f"is {value.layout if value.layout is not torch.strided else 'quantized'}"
        elif type(value) not in (torch.Tensor, torch.nn.Parameter):
            what = f"is a {type(value).__name__}"
        if what is not None:
            raise UsageError(f"{where} {what}: dense CPU tensors can be shared")
        tensor = value.detach()
        is_plain = tensor.is_contiguous() and not tensor.is_conj() and not tensor.is_neg()
        node = ["tensor", dtype_name(tensor.dtype), list(tensor.shape)]
        address = tensor.data_ptr() if is_plain else None
        return self._leaf(node, tensor.nbytes, address, lambda raw: _copy(raw, tensor))

    def _strings(self, value: Sequence[str]) -> Node:
        sizes = [len(one) if one.isascii() else len(_encoded(one)) for one in value]
        head, total = _WORD * (len(sizes) + 1), sum(sizes)

        def write(raw: Any) -> None:
            offsets = raw[:head].view(np.int64)
            offsets[0] = 0
            np.cumsum(sizes, out=offsets[1:])
            at = head
            for some in _batched(value):
                data = np.frombuffer(b"".join(map(_encoded, some)), np.uint8)
                raw[at : at + len(data)] = data
                at += len(data)

        return self._placed(["strings", len(sizes), total], head + total, write)


def unpacked(memory: torch.Tensor) -> Node:
    """The head's node, of bytes that `PackedValue.write` wrote."""
    raw = memory.numpy()
    size = int.from_bytes(raw[-_WORD:].tobytes(), "little")
    node: Node = msgspec.msgpack.decode(raw[-_WORD - size : -_WORD].tobytes())
    return node


def columns_of(node: Node, memory: torch.Tensor) -> Tree:
    """The columns and constants of a node."""
    match node:
        case ["dict", keys, nodes]:
            parts = (columns_of(one, memory) for one in nodes)
            return dict(zip(keys, parts, strict=True))
        case ["tuple", nodes]:
            return tuple(columns_of(one, memory) for one in nodes)
        case ["list", nodes]:
            return [columns_of(one, memory) for one in nodes]
        case ["strings", count, nbytes, at]:
            raw = memory.numpy()[at:]
            head = _WORD * (count + 1)
            return StringColumn([StringRun(raw[:head].view(np.int64), raw[head : head + nbytes])])
        case ["constant", value]:
            return Constant(value)
    whole = _whole(node, memory)
    if not node[2]:
        return Constant(whole)
    dtype = whole.dtype if isinstance(whole, torch.Tensor) else torch.from_numpy(whole).dtype
    return Column(memory, [RowRun(node[3], node[2][0])], dtype, node[2][1:])


def values_of(node: Node, memory: torch.Tensor) -> Any:
    """The nest that was packed, its tensors, arrays and strings where they lie in the memory."""
    match node:
        case ["dict", keys, nodes]:
            return {key: values_of(one, memory) for key, one in zip(keys, nodes, strict=True)}
        case ["tuple", nodes]:
            return tuple(values_of(one, memory) for one in nodes)
        case ["list", nodes]:
            return [values_of(one, memory) for one in nodes]
        case ["strings", *_]:
            return columns_of(node, memory)
        case ["constant", value]:
            return value
    value = _whole(node, memory)
    if isinstance(value, np.ndarray):
        value.flags.writeable = False
    return value


def _whole(node: Node, memory: torch.Tensor) -> Any:
    """The tensor or array of a leaf."""
    kind, name, shape, at = node
    if kind == "tensor":
        dtype = getattr(torch, name)
        nbytes = math.prod(shape) * dtype.itemsize
        return memory[at : at + nbytes].view(dtype).view(shape)
    nbytes = math.prod(shape) * np.dtype(name).itemsize
    return memory.numpy()[at : at + nbytes].view(np.dtype(name)).reshape(shape)


def _copy(raw: Any, tensor: torch.Tensor) -> None:
    torch.from_numpy(raw).view(tensor.dtype).view(tensor.shape).copy_(tensor)


def _fill(raw: Any, array: Any) -> None:
    raw.view(array.dtype).reshape(array.shape)[...] = array


def _encoded(text: str) -> bytes:
    return text.encode("utf-8", "surrogatepass")


def _batched(value: Iterable[str]) -> Iterable[list[str]]:
    left = iter(value)
    while some := list(itertools.islice(left, _STRINGS_AT_ONCE)):
        yield some
