"""From a head to a blueprint: every byte checked, none believed.

A head comes from another process. A breach of a rule is a HostError with one sentence, raised
before any memory is allocated for it; a count is compared with the bytes that are left before it
is followed. Nothing pickled gets past the reader unless the caller allowed it.
"""

from __future__ import annotations

import re
import sys
from typing import Any, Final, NoReturn

from wiiiiided.backend.wire.tensors_build import (
    ArrayPart,
    BlobPart,
    Blueprint,
    BranchPart,
    TensorPart,
    decoded,
)
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
    MAX_COLLISIONS,
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
    damaged,
    extent,
    path_of,
)
from wiiiiided.backend.wire.tensors_memory import TORCH_DTYPES, NumpyDtype, Order, numpy_dtype
from wiiiiided.errors import HostError

_KINDS: Final = {int(kind): kind for kind in TypeTag}
_BLOBS: Final = {
    TypeTag.INT,
    TypeTag.STR,
    TypeTag.BYTES,
    TypeTag.BYTEARRAY,
    TypeTag.PICKLED,
}
_SEQUENCES: Final = {TypeTag.LIST, TypeTag.TUPLE, TypeTag.SIZE}
_KEYS: Final = {
    *_BLOBS,
    TypeTag.NONE,
    TypeTag.FALSE,
    TypeTag.TRUE,
    TypeTag.FLOAT,
    TypeTag.TUPLE,
} - {TypeTag.BYTEARRAY}
_DEVICE: Final = re.compile(r"[a-z][a-z0-9_]{0,31}(?::[0-9]{1,5})?")
_NAME_BYTES: Final = 64  # no dtype and no device has a longer name


class TensorReader:
    """Reads one head. Every method checks what it takes and leaves `at` behind it."""

    def __init__(self, head: Any, pickle: bool, limit_bytes: int) -> None:
        size = memoryview(head).nbytes
        if size > HEAD_BYTES:
            damaged(f"a head of {size:,} bytes, more than {HEAD_BYTES:,}")
        self.head = bytes(head)
        self.at = 0
        self._pickle = pickle
        self._limit_bytes = limit_bytes
        self._nodes = 0
        self._arrays = 0
        self._nbytes = 0
        self._spans: list[Span] = []
        self._devices: dict[str, str] = {}
        self._trail: Trail = []

    def blueprint(self) -> Blueprint:
        magic, version, order = PREAMBLE.unpack(self._take(PREAMBLE.size))
        if magic != MAGIC:
            damaged("it does not begin like one")
        if version != VERSION:
            damaged(f"its format has version {version}, this wiiiiided knows {VERSION}")
        if order != (LITTLE if sys.byteorder == "little" else BIG):
            damaged("it comes from a machine of another byte order")
        root = self._node(0)
        if self.at != len(self.head):
            self._bad("bytes after its end")
        return Blueprint(self._nbytes, self._spans, self._devices, root)

    # -- bytes ----

    def _bad(self, problem: str) -> NoReturn:
        damaged(f"{problem} (byte {self.at:,} of {len(self.head):,} of its head)")

    def _take(self, count: int) -> bytes:
        if count > len(self.head) - self.at:
            self._bad("it is cut short")
        self.at += count
        return self.head[self.at - count : self.at]

    def _count(self) -> int:
        number = shift = 0
        while shift < 63:
            byte = self._take(1)[0]
            number |= (byte & 0x7F) << shift
            shift = 63 if byte < 0x80 else shift + 7
        if byte >= 0x80:
            self._bad("a count without end")
        return number

    def _name(self) -> str:
        size = self._count()
        if size > _NAME_BYTES:
            self._bad(f"a name of {size:,} bytes")
        raw = self._take(size)
        if not raw.isascii():
            self._bad("a name that is not ASCII")
        return raw.decode()

    # -- nodes ----

    def _kind(self) -> TypeTag:
        self._nodes += 1
        if self._nodes > MAX_NODES:
            self._bad(f"more than {MAX_NODES:,} parts")
        number = self._take(1)[0]
        kind = _KINDS.get(number)
        if kind is None:
            self._bad(f"a part of unknown kind {number}")
        return kind

    def _node(self, depth: int) -> Any:
        kind = self._kind()
        if kind in _BLOBS:
            return self._blob(kind)
        if kind in _SEQUENCES:
            return self._sequence(kind, depth)
        match kind:
            case TypeTag.DICT | TypeTag.ORDERED_DICT:
                return self._dict(kind, depth)
            case TypeTag.TENSOR:
                return self._tensor()
            case TypeTag.ARRAY:
                return self._array()
            case TypeTag.SCALAR:
                return self._scalar()
        return self._fixed(kind)

    def _fixed(self, kind: TypeTag) -> Any:
        match kind:
            case TypeTag.FLOAT:
                return FLOAT.unpack(self._take(FLOAT.size))[0]
            case TypeTag.COMPLEX:
                return complex(*COMPLEX.unpack(self._take(COMPLEX.size)))
        return {TypeTag.NONE: None, TypeTag.FALSE: False, TypeTag.TRUE: True}[kind]

    def _blob(self, kind: TypeTag) -> Any:
        if kind is TypeTag.PICKLED and not self._pickle:
            raise HostError(
                f"{path_of(self._trail)} was pickled by its sender, and unpickling can run any "
                "code: it is refused unless the receiver passes pickle=True too"
            )
        where = self._raw()
        if not isinstance(where, bytes) or kind in (TypeTag.BYTEARRAY, TypeTag.PICKLED):
            return BlobPart(kind, where)
        try:
            return decoded(kind, where)
        except UnicodeDecodeError:
            self._bad("text that is not UTF-8")

    def _raw(self) -> bytes | Span:
        size = self._count()
        if size <= INLINE_BYTES:
            return self._take(size)
        self._count_array()
        return self._span(size)

    def _depth(self, depth: int) -> int:
        if depth >= MAX_DEPTH:
            self._bad(f"containers more than {MAX_DEPTH} deep")
        return depth + 1

    def _sequence(self, kind: TypeTag, depth: int) -> BranchPart:
        depth = self._depth(depth)
        items = []
        for index in range(self._many(1)):
            self._trail.append(index)
            items.append(self._node(depth))
            self._trail.pop()
        if kind is TypeTag.SIZE and not all(
            type(n) is int and -(2**63) <= n < 2**63 for n in items
        ):
            self._bad("a torch.Size of something else than numbers")
        return BranchPart(kind, items)

    def _many(self, least: int) -> int:
        """A count of parts, each of which takes at least so many bytes of the head."""
        count = self._count()
        if count * least > len(self.head) - self.at:
            self._bad(f"{count:,} parts in the {len(self.head) - self.at:,} bytes that are left")
        return count

    def _dict(self, kind: TypeTag, depth: int) -> BranchPart:
        depth = self._depth(depth)
        keys: list[Any] = []
        items: list[Any] = []
        for _ in range(self._many(2)):
            keys.append(self._key(depth, outer=True))
            self._trail.append((keys[-1],))
            items.append(self._node(depth))
            self._trail.pop()
        self._check_keys(keys)
        return BranchPart(kind, items, keys)

    def _check_keys(self, keys: list[Any]) -> None:
        if len(keys) - len(set(map(hash, keys))) > MAX_COLLISIONS:
            self._bad("a dict whose keys are the same, or made to collide")
        if len(dict.fromkeys(keys)) != len(keys):
            self._bad("a dict has a key twice")

    def _key(self, depth: int, outer: bool) -> Any:
        kind = self._kind()
        if kind not in _KEYS or (kind is TypeTag.PICKLED and not outer):
            self._bad(f"a key of kind {kind.name}")
        if kind is TypeTag.TUPLE:
            depth = self._depth(depth)
            return tuple([self._key(depth, outer=False) for _ in range(self._many(1))])
        before = len(self._spans)
        key = self._blob(kind) if kind in _BLOBS else self._fixed(kind)
        if len(self._spans) > before:
            self._bad("a key that is too long")
        return key

    # -- tensors and arrays ----

    def _tensor(self) -> TensorPart:
        flags, name = self._take(1)[0], self._name()
        dtype = TORCH_DTYPES.get(name)
        if dtype is None:
            self._bad(f"a tensor of unknown dtype {name!r}")
        if flags & ~(GRAD | PARAMETER | DEVICE | ORDER):
            self._bad(f"a tensor with unknown flags {flags}")
        if flags & GRAD and not (dtype.is_floating_point or dtype.is_complex):
            self._bad(f"a tensor of {name} that requires a gradient")
        if flags & DEVICE:
            device = self._name()
            if not _DEVICE.fullmatch(device):
                self._bad(f"a tensor on the device {device!r}")
            self._devices[path_of(self._trail)] = device
        sizes, order, nbytes = self._shape(dtype.itemsize, bool(flags & ORDER))
        return TensorPart(self._span(nbytes)[0], dtype, sizes, order, flags)

    def _array(self) -> ArrayPart:
        flags, dtype = self._take(1)[0], self._numpy_dtype()
        if flags & ~ORDER:
            self._bad(f"an array with unknown flags {flags}")
        sizes, order, nbytes = self._shape(dtype.itemsize, bool(flags & ORDER))
        return ArrayPart(self._span(nbytes)[0], dtype, sizes, order)

    def _scalar(self) -> BlobPart:
        dtype, where = self._numpy_dtype(), self._raw()
        size = len(where) if isinstance(where, bytes) else where[1]
        if size != dtype.itemsize:
            self._bad(f"a number of {dtype} in {size:,} bytes")
        return BlobPart(TypeTag.SCALAR, where, dtype)

    def _numpy_dtype(self) -> NumpyDtype:
        name = self._name()
        dtype = numpy_dtype(name)
        if dtype is None:
            self._bad(f"an array of unknown dtype {name!r}")
        return dtype

    def _shape(self, itemsize: int, ordered: bool) -> tuple[tuple[int, ...], Order, int]:
        """The sizes, the order of the dimensions in memory, and the bytes of all."""
        self._count_array()
        dims = self._take(1)[0]
        if dims > MAX_DIMS:
            self._bad(f"{dims} dimensions")
        sizes = tuple([self._count() for _ in range(dims)])
        nbytes = extent(sizes, itemsize)
        if nbytes is None:
            self._bad(f"a shape beyond all bounds, {sizes}")
        order = tuple(self._take(dims)) if ordered else tuple(range(dims))
        if ordered and sorted(order) != list(range(dims)):
            self._bad(f"dimensions in the order {order}")
        return sizes, order, nbytes

    # -- bounds ----

    def _span(self, nbytes: int) -> Span:
        """The place of the next buffer in the data."""
        if nbytes == 0:
            return 0, 0
        span = (aligned(self._nbytes), nbytes)
        self._nbytes = sum(span)
        if self._nbytes > self._limit_bytes:
            raise HostError(
                f"the value has more than {self._limit_bytes:,} bytes of tensors, the limit of "
                "this receiver: raise limit_bytes, or send it in parts"
            )
        self._spans.append(span)
        return span

    def _count_array(self) -> None:
        self._arrays += 1
        if self._arrays > MAX_BUFFERS:
            self._bad(f"more than {MAX_BUFFERS:,} tensors, arrays and long strings")
