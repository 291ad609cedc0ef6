"""Where the columns of a file lie: its head is read, its data are not.

    .npy           │ magic, version │ head: dtype, shape, order │ data │
    .npz           │ zip: for each array │ local head, name │ a .npy, stored │ … │ directory │
    .safetensors   │ 8 bytes: n │ n bytes of JSON: dtype, shape, begin and end of each │ data │
    Arrow IPC      │ record batches, each with its buffers: a run of every column │ … │

A .safetensors head is so simple that the package of that name is not needed. Of Arrow, pyarrow
reads the heads, and tells for each buffer the address to which it has mapped the file: buffers that
lie elsewhere have been decompressed, and a file that would have to be decompressed is refused.
"""

from __future__ import annotations

import io
import json
import math
import zipfile
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import IO, Any, Final

import numpy as np
import torch

from wiiiiided.errors import UsageError
from wiiiiided.train.data.columns import AnyColumn, Column, RowRun, StringColumn, StringRun, Tree

_SAFETENSORS: Final = {
    "F64": torch.float64,
    "F32": torch.float32,
    "F16": torch.float16,
    "BF16": torch.bfloat16,
    "I64": torch.int64,
    "I32": torch.int32,
    "I16": torch.int16,
    "I8": torch.int8,
    "U64": torch.uint64,
    "U32": torch.uint32,
    "U16": torch.uint16,
    "U8": torch.uint8,
    "BOOL": torch.bool,
    "C64": torch.complex64,
    "F8_E4M3": torch.float8_e4m3fn,
    "F8_E5M2": torch.float8_e5m2,
}
_ARROW: Final = {
    "int8": torch.int8,
    "int16": torch.int16,
    "int32": torch.int32,
    "int64": torch.int64,
    "uint8": torch.uint8,
    "uint16": torch.uint16,
    "uint32": torch.uint32,
    "uint64": torch.uint64,
    "halffloat": torch.float16,
    "float": torch.float32,
    "double": torch.float64,
}
numpy_format: Any = np.lib.format  # untyped
_LOCAL_HEAD: Final = 30  # bytes of a zip member's own head, before its name
_HEAD_LIMIT: Final = 100 << 20  # what the safetensors format allows


def torch_dtype(dtype: np.dtype[Any], where: str) -> torch.dtype:
    """torch's name for numpy's; raises where torch has none."""
    try:
        return torch.from_numpy(np.empty(0, dtype)).dtype
    except (TypeError, ValueError):
        order = dtype.newbyteorder("=")
        hint = f"; convert it: array.astype({order.name!r})" if order != dtype else ""
        raise UsageError(f"{where} is of {dtype}, which torch has no dtype for{hint}") from None


# -- numpy ----


def npy(path: Path, memory: torch.Tensor) -> Tree:
    """The one column of a .npy file."""
    with path.open("rb") as file:
        return _array(file, 0, memory, path.name)


def npz(path: Path, memory: torch.Tensor) -> Tree:
    """The columns of a .npz file, by name."""
    found: dict[str, AnyColumn] = {}
    with path.open("rb") as file:
        try:
            members = zipfile.ZipFile(file).infolist()
        except zipfile.BadZipFile as problem:
            raise UsageError(f"{path.name} is not a .npz file: {problem}") from None
        for member in members:
            where = f"{path.name}[{member.filename.removesuffix('.npy')!r}]"
            if member.compress_type != zipfile.ZIP_STORED:
                raise UsageError(
                    f"{where} is compressed and cannot be mapped: write the file anew with "
                    "numpy.savez in place of numpy.savez_compressed"
                )
            file.seek(member.header_offset)
            head = file.read(_LOCAL_HEAD)
            names = int.from_bytes(head[26:28], "little") + int.from_bytes(head[28:30], "little")
            begin = member.header_offset + _LOCAL_HEAD + names
            file.seek(begin)
            name = member.filename.removesuffix(".npy")
            found[name] = _array(_ZipMember(file, member.file_size), begin, memory, where)
    return found


class _ZipMember(io.RawIOBase):
    """A file-like view of so many bytes of a file, from where it stands."""

    def __init__(self, file: IO[bytes], nbytes: int) -> None:
        self._file, self._left, self._read = file, nbytes, 0

    def read(self, size: int = -1, /) -> bytes:
        """The next bytes."""
        size = self._left if size < 0 else min(size, self._left)
        raw = self._file.read(size)
        self._left -= len(raw)
        self._read += len(raw)
        return raw

    def tell(self) -> int:
        """How many have been read."""
        return self._read


def _array(file: Any, begin: int, memory: torch.Tensor, where: str) -> Column:
    """A .npy file, or one inside another that begins there."""
    try:
        version = numpy_format.read_magic(file)
        read = {
            (1, 0): numpy_format.read_array_header_1_0,
            (2, 0): numpy_format.read_array_header_2_0,
        }[version]
        shape, fortran, dtype = read(file)
    except (ValueError, KeyError) as problem:
        raise UsageError(f"{where} is not a .npy file that can be mapped: {problem}") from None
    if dtype.hasobject:
        raise UsageError(f"{where} holds Python objects, which cannot be mapped")
    if fortran and len(shape) > 1:
        raise UsageError(
            f"{where} is stored column by column (Fortran order), where a sample lies strewn "
            "about: save numpy.ascontiguousarray(array)"
        )
    return _column(memory, begin + file.tell(), torch_dtype(dtype, where), shape, where)


def _column(
    memory: torch.Tensor, at: int, dtype: torch.dtype, shape: Iterable[int], where: str
) -> Column:
    """A column in one run; its head is not believed."""
    sizes = tuple(shape)
    if not sizes:
        raise UsageError(f"{where} is one value, so it has no samples")
    if at < 0 or min(sizes) < 0 or at + math.prod(sizes) * dtype.itemsize > memory.numel():
        raise UsageError(f"{where} ends before its data do: the file is damaged or cut off")
    return Column(memory, [RowRun(at, sizes[0])], dtype, sizes[1:])


# -- safetensors ----


def safetensors(path: Path, memory: torch.Tensor) -> Tree:
    """The columns of a .safetensors file, by name."""
    try:
        with path.open("rb") as file:
            length = int.from_bytes(file.read(8), "little")
            if length > min(_HEAD_LIMIT, memory.numel()):
                raise ValueError(f"a head of {length} bytes")
            head = json.loads(file.read(length))
        listed = {name: about for name, about in head.items() if name != "__metadata__"}
        found = {
            name: (about["dtype"], [int(n) for n in about["shape"]], int(about["data_offsets"][0]))
            for name, about in listed.items()
        }
    except (ValueError, KeyError, TypeError, AttributeError, IndexError) as problem:
        raise UsageError(f"{path.name} is not a .safetensors file: {problem}") from None
    columns: dict[str, AnyColumn] = {}
    for name, (kind, shape, begin) in found.items():
        where = f"{path.name}[{name!r}]"
        if kind not in _SAFETENSORS:
            raise UsageError(f"{where} is of {kind}, which torch has no dtype for")
        columns[name] = _column(memory, 8 + length + begin, _SAFETENSORS[kind], shape, where)
    return columns


# -- Arrow ----


def arrow(path: Path, memory: torch.Tensor) -> Tree:
    """The columns of an Arrow IPC file or stream, by name: numbers, fixed-size lists, strings."""
    try:
        import pyarrow as pa  # an extra: loaded where a file asks for it
    except ImportError:
        raise UsageError(
            f"{path.name} is an Arrow file, and pyarrow is not installed: "
            "pip install 'wiiiiided[arrow]'"
        ) from None
    with pa.memory_map(str(path)) as source:
        base = source.read_buffer(1).address
        source.seek(0)
        try:
            batches = list(_record_batches(pa, source))
        except (pa.ArrowInvalid, OSError) as problem:
            raise UsageError(f"{path.name} is not an Arrow IPC file: {problem}") from None
        names = batches[0].schema.names if batches else []
        found: dict[str, AnyColumn] = {}
        for k, name in enumerate(names):
            where, parts = f"{path.name}[{name!r}]", [batch.column(k) for batch in batches]
            found[name] = _arrow_column(pa, parts, memory, base, where)
        return found


def _record_batches(pa: Any, source: Any) -> Iterable[Any]:
    framed = source.read(6) == b"ARROW1"
    source.seek(0)
    if not framed:
        yield from pa.ipc.open_stream(source)
        return
    reader = pa.ipc.open_file(source)
    for number in range(reader.num_record_batches):
        yield reader.get_batch(number)


def _arrow_column(
    pa: Any, parts: list[Any], memory: torch.Tensor, base: int, where: str
) -> AnyColumn:
    def offset(buffer: Any) -> int:
        if not buffer.size:
            return 0
        if not base <= buffer.address <= base + memory.numel() - buffer.size:
            raise UsageError(
                f"{where} is compressed and cannot be mapped: write the file with compression=None"
            )
        return int(buffer.address) - base

    if any(part.null_count for part in parts):
        raise UsageError(f"{where} has nulls, which tensors do not: fill them in first")
    kind = parts[0].type
    if pa.types.is_string(kind) or pa.types.is_large_string(kind):
        width = np.int32 if pa.types.is_string(kind) else np.int64
        return StringColumn([_arrow_strings(part, width, memory, offset) for part in parts])
    shape: list[int] = []
    while pa.types.is_fixed_size_list(kind):
        shape.append(kind.list_size)
        kind = kind.value_type
    if str(kind) not in _ARROW:
        hint = ": cast bools to uint8" if str(kind) == "bool" else ""
        raise UsageError(
            f"{where} is of {parts[0].type}; numbers, lists of a fixed size and strings can be "
            f"mapped{hint}"
        )
    dtype = _ARROW[str(kind)]
    runs = [RowRun(_arrow_values(part, dtype, offset, where), len(part)) for part in parts]
    return Column(memory, runs, dtype, shape)


def _arrow_values(part: Any, dtype: torch.dtype, offset: Callable[[Any], int], where: str) -> int:
    """Where the numbers of a part begin, inside as many fixed-size lists as there are."""
    skipped = 0
    while hasattr(part.type, "list_size"):
        skipped = (skipped + part.offset) * part.type.list_size
        part = part.values
        if part.null_count:
            raise UsageError(f"{where} has nulls, which tensors do not: fill them in first")
    begin: int = offset(part.buffers()[1]) + (skipped + part.offset) * dtype.itemsize
    return begin


def _arrow_strings(
    part: Any, width: type[np.integer[Any]], memory: torch.Tensor, offset: Callable[[Any], int]
) -> StringRun:
    _, ends, data = part.buffers()
    raw = memory.numpy()
    size = np.dtype(width).itemsize
    begin = offset(ends) + part.offset * size
    at = offset(data) if data is not None else 0
    # A copy: eight bytes a string at most, and the file aligns nothing.
    offsets = np.frombuffer(raw[begin : begin + (len(part) + 1) * size].tobytes(), width)
    return StringRun(offsets, raw[at : at + (data.size if data is not None else 0)])
