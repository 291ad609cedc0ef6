"""From a value to a head and the memory of its tensors.

Types are matched exactly: a subclass may mean more than its base carries, so it is refused with the
path that leads to it and a word on what to send instead.
"""

from __future__ import annotations

import sys
from collections import OrderedDict
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pickle import dumps
from typing import Any, Final, NoReturn

import numpy as np
import torch

from wiiiiided.backend.wire.tensors_format import (
    BIG,
    COMPLEX,
    DEVICE,
    FLOAT,
    GRAD,
    HEAD_BYTES,
    INLINE_BYTES,
    LITTLE,
    MAGIC,
    MAX_BUFFERS,
    MAX_BYTES,
    MAX_DEPTH,
    MAX_DIMS,
    MAX_NODES,
    ORDER,
    PARAMETER,
    PREAMBLE,
    VERSION,
    Span,
    Trail,
    TypeTag,
    aligned,
    count_bytes,
    extent,
    path_of,
)
from wiiiiided.backend.wire.tensors_memory import (
    TORCH_NAMES,
    Array,
    Order,
    allocate,
    array_memory,
    numpy_dtype,
    tensor_memory,
    tensor_problem,
)
from wiiiiided.errors import UsageError

_PICKLE_HINT: Final = "leave it out, or pass pickle=True on both sides"

# Advice for a type that does not travel; the first that fits.
_ADVICE: Final[tuple[tuple[type | tuple[type, ...], str], ...]] = (
    (torch.Tensor, "send the plain tensors it is made of"),
    (np.ndarray, "send numpy.asarray(x)"),
    (dict, "send dict(x)"),
    (list, "send list(x)"),
    (tuple, "send tuple(x), or x._asdict() of a named tuple"),
    ((set, frozenset), "send sorted(x) or list(x)"),
    ((int, float, complex, str, bytes, bytearray), "send the plain value it stands for"),
)


@dataclass(frozen=True)
class PackedTensors:
    """A value ready to travel: a small head, and its tensors' own memory.

    The buffers are not copies: do not change the value before they have been sent, or written.
    """

    head: bytes
    buffers: list[memoryview]
    spans: list[Span]  # where each buffer stands in the data
    nbytes: int  # of the data: the buffers, each at a multiple of 64

    def join(self) -> memoryview:
        """The data in one piece of memory: a copy, for a caller that cannot gather."""
        data = allocate(self.nbytes)
        end = 0
        for (offset, nbytes), buffer in zip(self.spans, self.buffers, strict=True):
            data[end:offset] = bytes(offset - end)
            end = offset + nbytes
            data[offset:end] = buffer
        return data


class Writer:
    """Writes one value; `trail` says where in it the writer is."""

    def __init__(self, pickle: bool) -> None:
        order = LITTLE if sys.byteorder == "little" else BIG
        self.head = bytearray(PREAMBLE.pack(MAGIC, VERSION, order))
        self.buffers: list[memoryview] = []
        self.spans: list[Span] = []
        self.nbytes = 0
        self._pickle = pickle
        self._nodes = 0
        self._arrays = 0
        self._trail: Trail = []
        self._open: list[int] = []  # ids of the containers around this place

    def packed(self) -> PackedTensors:
        self._check_bounds()
        return PackedTensors(bytes(self.head), self.buffers, self.spans, self.nbytes)

    def write(self, value: Any) -> None:
        self._count_node()
        write = _WRITERS.get(type(value))
        if write is not None:
            write(self, value)
        elif isinstance(value, np.generic):
            self._scalar(value)
        else:
            self._foreign(value, _advice(value))

    # -- leaves ----

    def _kind(self, kind: TypeTag) -> None:
        self.head.append(kind)

    def _bool(self, value: bool) -> None:
        self._kind(TypeTag.TRUE if value else TypeTag.FALSE)

    def _none(self, value: None) -> None:
        self._kind(TypeTag.NONE)

    def _int(self, value: int) -> None:
        raw = value.to_bytes(value.bit_length() // 8 + 1, "little", signed=True)
        self._blob(TypeTag.INT, raw)

    def _float(self, value: float) -> None:
        self._kind(TypeTag.FLOAT)
        self.head += FLOAT.pack(value)

    def _complex(self, value: complex) -> None:
        self._kind(TypeTag.COMPLEX)
        self.head += COMPLEX.pack(value.real, value.imag)

    def _str(self, value: str) -> None:
        self._blob(TypeTag.STR, value.encode("utf-8", "surrogatepass"))

    def _bytes(self, value: bytes) -> None:
        self._blob(TypeTag.BYTES, value)

    def _bytearray(self, value: bytearray) -> None:
        self._blob(TypeTag.BYTEARRAY, value)

    def _blob(self, kind: TypeTag, raw: bytes | bytearray) -> None:
        self._kind(kind)
        self._raw(raw)

    def _raw(self, raw: bytes | bytearray) -> None:
        self.head += count_bytes(len(raw))
        if len(raw) <= INLINE_BYTES:
            self.head += raw
        else:
            self._count_array()
            self._buffer(memoryview(raw))

    def _name(self, name: str) -> None:
        self.head += count_bytes(len(name)) + name.encode("ascii")

    def _foreign(self, value: Any, problem: str) -> None:
        """Write a value that does not travel as it is: pickled, if the caller allowed it."""
        if not self._pickle:
            self._refuse(f"is {problem}")
        self._blob(TypeTag.PICKLED, self._pickled(value, problem))

    def _pickled(self, value: Any, problem: str) -> bytes:
        try:
            return dumps(value, protocol=5)
        except Exception as error:
            self._refuse(f"is {problem}. It cannot be pickled either: {error}", error)

    # -- containers ----

    def _sequence(self, kind: TypeTag, values: Sequence[Any]) -> None:
        self._enter(kind, values)
        for index, value in enumerate(values):
            self._trail.append(index)
            self.write(value)
            self._trail.pop()
        self._open.pop()

    def _list(self, value: list[Any]) -> None:
        self._sequence(TypeTag.LIST, value)

    def _tuple(self, value: tuple[Any, ...]) -> None:
        self._sequence(TypeTag.TUPLE, value)

    def _size(self, value: torch.Size) -> None:
        self._sequence(TypeTag.SIZE, [int(number) for number in value])

    def _dict(self, value: dict[Any, Any]) -> None:
        self._enter(TypeTag.ORDERED_DICT if type(value) is OrderedDict else TypeTag.DICT, value)
        for key, item in value.items():
            self._key(key)
            self._trail.append((key,))
            self.write(item)
            self._trail.pop()
        self._open.pop()

    def _key(self, key: Any) -> None:
        """Write a whole key into the head: the receiver checks all before it takes the data."""
        if _plain_key(key, MAX_DEPTH - len(self._open)):
            start = len(self.buffers)
            self.write(key)
            if len(self.buffers) > start:
                self._refuse(f"has a key of more than {INLINE_BYTES:,} bytes: shorten it")
            return
        problem = f"{_named(type(key))}: keys are str, int, float, bool, None, bytes or tuples"
        if not self._pickle:
            self._refuse(f"has a key that is {problem} of these; change it")
        self._count_node()
        raw = self._pickled(key, f"a dict with a key that is {problem}")
        if len(raw) > INLINE_BYTES:
            self._refuse(f"has a key of more than {INLINE_BYTES:,} bytes, pickled: shorten it")
        self._blob(TypeTag.PICKLED, raw)

    def _enter(self, kind: TypeTag, container: Any) -> None:
        if id(container) in self._open:
            around = path_of(self._trail[: self._open.index(id(container))])
            self._refuse(f"is {around} again: a value that contains itself cannot be sent")
        if len(self._open) >= MAX_DEPTH:
            self._refuse(f"lies {MAX_DEPTH} containers deep, more than can be sent: flatten it")
        self._open.append(id(container))
        self._kind(kind)
        self.head += count_bytes(len(container))

    # -- tensors and arrays ----

    def _tensor(self, tensor: torch.Tensor) -> None:
        memory: memoryview | None = None
        order: Order = ()
        try:
            problem = tensor_problem(tensor)
            if not problem and tensor.numel():
                memory, order = tensor_memory(tensor)
        except Exception as error:  # inside torch's transforms a tensor has no memory of its own
            problem = f"a tensor whose memory cannot be read: {error}"
        if problem:
            self._foreign(tensor, problem)
            return
        device = "" if tensor.is_cpu else str(tensor.device)
        flags = (GRAD if tensor.requires_grad else 0) | (DEVICE if device else 0)
        flags |= PARAMETER if type(tensor) is torch.nn.Parameter else 0
        name, itemsize = TORCH_NAMES[tensor.dtype], tensor.element_size()
        self._head_of(TypeTag.TENSOR, flags, name, device, (tensor.shape, itemsize, order))
        if memory is not None:
            self._buffer(memory)

    def _array(self, array: Array) -> None:
        if numpy_dtype(array.dtype.str) is None:
            self._foreign(array, _dtype_problem("an array", array.dtype))
            return
        memory, order = array_memory(array) if array.size else (None, ())
        shape = (array.shape, array.itemsize, order)
        self._head_of(TypeTag.ARRAY, 0, array.dtype.str, "", shape)
        if memory is not None:
            self._buffer(memory)

    def _scalar(self, value: np.generic) -> None:
        array = np.asarray(value)
        if type(value) is not array.dtype.type or numpy_dtype(array.dtype.str) is None:
            self._foreign(value, _dtype_problem("a numpy scalar", array.dtype))
            return
        self._kind(TypeTag.SCALAR)
        self._name(array.dtype.str)
        self._raw(array.tobytes())

    def _head_of(
        self, kind: TypeTag, flags: int, dtype: str, device: str, shape: tuple[Any, int, Order]
    ) -> None:
        sizes, itemsize, order = shape
        if extent(sizes, itemsize) is None:
            self._refuse(
                f"has the shape {list(sizes)}: at most {MAX_DIMS} dimensions and "
                f"{MAX_BYTES:,} bytes can be sent"
            )
        self._count_array()
        natural = order in ((), tuple(range(len(sizes))))
        self.head += bytes((kind, flags | (0 if natural else ORDER)))
        self._name(dtype)
        if device:
            self._name(device)
        self.head.append(len(sizes))
        for size in sizes:
            self.head += count_bytes(size)
        if not natural:
            self.head += bytes(order)

    # -- bounds ----

    def _buffer(self, memory: memoryview) -> None:
        offset = aligned(self.nbytes)
        self.buffers.append(memory)
        self.spans.append((offset, memory.nbytes))
        self.nbytes = offset + memory.nbytes

    def _count_node(self) -> None:
        self._nodes += 1
        self._check_bounds()

    def _check_bounds(self) -> None:
        if self._nodes > MAX_NODES or len(self.head) > HEAD_BYTES:
            self._refuse(
                f"is too much: at most {MAX_NODES:,} parts with {HEAD_BYTES >> 20} MiB of names "
                "and numbers can be sent. Make tensors of long lists, or send several values"
            )

    def _count_array(self) -> None:
        self._arrays += 1
        if self._arrays > MAX_BUFFERS:
            self._refuse(
                f"is too much: at most {MAX_BUFFERS:,} tensors, arrays and long strings can be "
                "sent at once. Stack tensors, or send several values"
            )

    def _refuse(self, problem: str, cause: Exception | None = None) -> NoReturn:
        raise UsageError(f"{path_of(self._trail)} {problem}") from cause


_PLAIN_KEYS: Final = frozenset({str, int, float, bool, type(None), bytes})


def _plain_key(key: Any, depth: int) -> bool:
    if type(key) is tuple and depth > 0:
        return all(_plain_key(part, depth - 1) for part in key)
    return type(key) in _PLAIN_KEYS


def _named(kind: type) -> str:
    name = kind.__name__
    return f"{'an' if name[:1].lower() in 'aeiou' else 'a'} {name}"


def _advice(value: Any) -> str:
    fitting = (text for base, text in _ADVICE if isinstance(value, base))
    advice = next(fitting, "only plain values, tensors and arrays travel; convert it")
    return f"{_named(type(value))}: {advice}, {_PICKLE_HINT}"


def _dtype_problem(what: str, dtype: np.dtype[Any]) -> str:
    if dtype.names is not None:
        return f"{what} with fields: send its fields one by one, {_PICKLE_HINT}"
    return f"{what} of dtype {dtype}, which does not travel: convert it, {_PICKLE_HINT}"


_WRITERS: Final[dict[type, Callable[[Writer, Any], None]]] = {
    type(None): Writer._none,
    bool: Writer._bool,
    int: Writer._int,
    float: Writer._float,
    complex: Writer._complex,
    str: Writer._str,
    bytes: Writer._bytes,
    bytearray: Writer._bytearray,
    list: Writer._list,
    tuple: Writer._tuple,
    dict: Writer._dict,
    OrderedDict: Writer._dict,
    torch.Size: Writer._size,
    torch.Tensor: Writer._tensor,
    torch.nn.Parameter: Writer._tensor,
    np.ndarray: Writer._array,
}
