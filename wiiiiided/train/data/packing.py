"""A nest of tensors, arrays and strings as one stretch of bytes, and back. Pure.

    │ 8 bytes: n │ n bytes: head │ column │ column │ …      (each begins at a multiple of 64)

The head says what was where, as nested lists (msgpack); offsets count from the first column:

    ["dict", keys, nodes]   ["tuple", nodes]   ["list", nodes]
    ["tensor" | "array", dtype, shape, offset]
    ["strings", count, offset, bytes]       │ count + 1 offsets of 8 bytes │ the strings, in UTF-8 │
    ["constant", value]

A list of strings is one leaf, not a million; a list of numbers becomes an array. Nothing is
pickled: what is read back is bytes and names of dtypes.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Iterable, Sequence
from typing import Any, Final, NamedTuple

import msgspec
import numpy as np
import torch
from torch.utils.data import TensorDataset

from wiiiiided.errors import UsageError
from wiiiiided.train.data.columns import Column, Constant, RowRun, StringColumn, StringRun, Tree
from wiiiiided.train.data.file_formats import torch_dtype
from wiiiiided.train.layout import aligned

Node = list[Any]  # of the head
_WORD: Final = 8
_STRINGS_AT_ONCE: Final = 10_000  # as many are encoded before they are written
_PLAIN: Final = (bool, int, float, str, bytes, type(None))


class _PackedPart(NamedTuple):
    """A column, and where it goes."""

    at: int
    nbytes: int
    write: Callable[[Any], None]  # into numpy bytes of that size


class PackedValue:
    """A value that is known to fit, with the bytes it takes; `write` lays it down."""

    def __init__(self, value: Any) -> None:
        self._parts: list[_PackedPart] = []
        self._end = 0
        self._head = msgspec.msgpack.encode(self._node(value, "the value"))
        self._begin = aligned(_WORD + len(self._head))
        self.nbytes = self._begin + self._end

    def write(self, memory: Any) -> None:
        """Lay everything into numpy bytes. Once: what is written is let go of."""
        memory[:_WORD] = np.frombuffer(len(self._head).to_bytes(_WORD, "little"), np.uint8)
        memory[_WORD : _WORD + len(self._head)] = np.frombuffer(self._head, np.uint8)
        while self._parts:
            part = self._parts.pop()
            if part.nbytes:
                begin = self._begin + part.at
                part.write(memory[begin : begin + part.nbytes])

    def _place(self, nbytes: int, write: Callable[[Any], None]) -> int:
        at = self._end
        self._parts.append(_PackedPart(at, nbytes, write))
        self._end = aligned(at + nbytes)
        return at

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
            at = self._place(array.nbytes, lambda raw: _fill(raw, array))
            return ["array", array.dtype.str, list(array.shape), at]
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
        at = self._place(tensor.numel() * tensor.element_size(), lambda raw: _copy(raw, tensor))
        return ["tensor", str(tensor.dtype).removeprefix("torch."), list(tensor.shape), at]

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

        return ["strings", len(sizes), self._place(head + total, write), total]


def unpacked(memory: torch.Tensor) -> tuple[Node, int]:
    """The head's node, and where the columns begin, of bytes that `PackedValue.write` wrote."""
    raw = memory.numpy()
    size = int.from_bytes(raw[:_WORD].tobytes(), "little")
    return msgspec.msgpack.decode(raw[_WORD : _WORD + size].tobytes()), aligned(_WORD + size)


def columns_of(node: Node, memory: torch.Tensor, begin: int) -> Tree:
    """The columns and constants of a node."""
    match node:
        case ["dict", keys, nodes]:
            parts = (columns_of(one, memory, begin) for one in nodes)
            return dict(zip(keys, parts, strict=True))
        case ["tuple", nodes]:
            return tuple(columns_of(one, memory, begin) for one in nodes)
        case ["list", nodes]:
            return [columns_of(one, memory, begin) for one in nodes]
        case ["strings", count, at, nbytes]:
            raw = memory.numpy()[begin + at :]
            head = _WORD * (count + 1)
            return StringColumn([StringRun(raw[:head].view(np.int64), raw[head : head + nbytes])])
        case ["constant", value]:
            return Constant(value)
    whole = _whole(node, memory, begin)
    if not node[2]:
        return Constant(whole)
    dtype = whole.dtype if isinstance(whole, torch.Tensor) else torch.from_numpy(whole).dtype
    return Column(memory, [RowRun(begin + node[3], node[2][0])], dtype, node[2][1:])


def values_of(node: Node, memory: torch.Tensor, begin: int) -> Any:
    """What was packed, its tensors, arrays and strings where they lie in the memory."""
    match node:
        case ["dict", keys, nodes]:
            return {
                key: values_of(one, memory, begin) for key, one in zip(keys, nodes, strict=True)
            }
        case ["tuple", nodes]:
            return tuple(values_of(one, memory, begin) for one in nodes)
        case ["list", nodes]:
            return [values_of(one, memory, begin) for one in nodes]
        case ["strings", *_]:
            return columns_of(node, memory, begin)
        case ["constant", value]:
            return value
    value = _whole(node, memory, begin)
    if isinstance(value, np.ndarray):
        value.flags.writeable = False
    return value


def _whole(node: Node, memory: torch.Tensor, begin: int) -> Any:
    """The tensor or array of a leaf."""
    kind, name, shape, at = node
    if kind == "tensor":
        dtype = getattr(torch, name)
        nbytes = math.prod(shape) * dtype.itemsize
        return memory[begin + at : begin + at + nbytes].view(dtype).view(shape)
    nbytes = math.prod(shape) * np.dtype(name).itemsize
    return memory.numpy()[begin + at : begin + at + nbytes].view(np.dtype(name)).reshape(shape)


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
