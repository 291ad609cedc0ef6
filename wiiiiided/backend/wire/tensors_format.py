"""The head of a packed value: its bytes, its limits, and the arithmetic both sides share.

head     ┌────────┬─────────┬────────────┬─────────────────────────┐
         │ "wTEN" │ version │ byte order │ one node, the value     │
         │ 4 B    │ u8 = 1  │ u8: 1 or 2 │ (nodes nest)            │
         └────────┴─────────┴────────────┴─────────────────────────┘
node     kind (u8), then by kind:

NONE FALSE TRUE          nothing
FLOAT COMPLEX            8 or 16 bytes, IEEE little endian
INT                      blob: two's complement, little endian, as long as it needs
STR                      blob: UTF-8, lone surrogates as three bytes each
BYTES BYTEARRAY PICKLED  blob
LIST TUPLE               count, then so many nodes
DICT ORDERED_DICT        count, then so many pairs of key and value, in the dict's order
SIZE                     count, then so many nodes, all of them INT
TENSOR                   flags (u8), dtype, device if flagged, shape; bytes in the data
ARRAY                    flags (u8), dtype, shape; bytes in the data
SCALAR                   dtype, blob

count    unsigned LEB128, at most 9 bytes
blob     count of bytes; up to 4,096 bytes follow here, a longer blob is a buffer of the data
dtype    count of bytes, ASCII: torch's name ("bfloat16") or numpy's ("<f8")
device   count of bytes, ASCII: where the tensor was, if not on the CPU
shape    dimensions (u8), a count for each, then if flagged the order of the dimensions in
         memory, outermost first (u8 each); without it the last dimension is the innermost

data     the buffers in the order in which their nodes come, each at the next multiple of 64;
         empty ones are left out. No offset is ever sent, so none can be wrong.
"""

from __future__ import annotations

import enum
import json
import struct
from collections.abc import Sequence
from typing import Final, NoReturn

from wiiiiided.errors import HostError

PREAMBLE: Final = struct.Struct("<4sBB")
MAGIC: Final = b"wTEN"
VERSION: Final = 1
LITTLE: Final = 1  # numpy's dtypes say their byte order; torch's tensors are in the machine's
BIG: Final = 2
FLOAT: Final = struct.Struct("<d")
COMPLEX: Final = struct.Struct("<dd")

ALIGN: Final = 64  # a cache line, and the widest vector load there is
INLINE_BYTES: Final = 4096  # of a blob in the head; a dict's key must fit
MAX_DEPTH: Final = 100  # of containers; two Python frames each, of the thousand there are
MAX_NODES: Final = 1 << 20  # up to 300 MB of Python objects; longer lists should be tensors
MAX_BUFFERS: Final = 1 << 16  # tensors, arrays and long blobs
MAX_DIMS: Final = 64  # numpy's limit
MAX_BYTES: Final = 1 << 62  # of one tensor: strides and sizes stay within 64 bits
HEAD_BYTES: Final = 64 << 20
LIMIT_BYTES: Final = 16 << 30  # of the data a receiver takes unless it says otherwise
MAX_COLLISIONS: Final = 1000  # of hashes among a dict's keys: integers can be chosen to collide

GRAD: Final = 1  # flags of a tensor
PARAMETER: Final = 2
DEVICE: Final = 4
ORDER: Final = 8  # of a tensor or an array


class TypeTag(enum.IntEnum):
    """Kinds of nodes; the module's table has what follows each."""

    NONE = 0
    FALSE = 1
    TRUE = 2
    INT = 3
    FLOAT = 4
    COMPLEX = 5
    STR = 6
    BYTES = 7
    BYTEARRAY = 8
    LIST = 9
    TUPLE = 10
    DICT = 11
    ORDERED_DICT = 12
    SIZE = 13
    TENSOR = 14
    ARRAY = 15
    SCALAR = 16
    PICKLED = 17


Span = tuple[int, int]  # a buffer's offset in the data, and its bytes


def count_bytes(number: int) -> bytes:
    """A count as LEB128: seven bits a byte, the lowest first, the top bit means more follow."""
    out = bytearray()
    while number > 0x7F:
        out.append(number & 0x7F | 0x80)
        number >>= 7
    out.append(number)
    return bytes(out)


def aligned(offset: int) -> int:
    """The next place where a buffer may begin."""
    return -(-offset // ALIGN) * ALIGN


def extent(sizes: Sequence[int], itemsize: int) -> int | None:
    """The bytes of a tensor; None for one whose strides or size would leave 64 bits."""
    if len(sizes) > MAX_DIMS:
        return None
    room = itemsize
    for size in sizes:
        room *= size or 1  # strides overflow although an empty tensor has no bytes
        if room > MAX_BYTES:
            return None
    return 0 if 0 in sizes else room


def memory_order(sizes: Sequence[int], strides: Sequence[int]) -> tuple[int, ...]:
    """The dimensions from the outermost in memory to the innermost.

    Where strides say nothing (an empty tensor, a dimension expanded or turned round) it is the
    order of the dimensions. Of equal strides the dimension of size 1 is the inner one: so
    channels_last is told from contiguous where only sizes of 1 differ.
    """
    natural = tuple(range(len(sizes)))
    if 0 in sizes or any(step <= 0 for n, step in zip(sizes, strides, strict=True) if n > 1):
        return natural
    return tuple(sorted(natural, key=lambda dim: (-strides[dim], sizes[dim] == 1)))


Trail = list[object]  # how to come from the value to a part: an index, or (key,) of a dict


def path_of(trail: Trail) -> str:
    """The trail as a user would write it: value["model"][3]."""
    text = "value" + "".join(map(_step, trail))
    return text if len(text) <= 400 else f"{text[:150]} … {text[-200:]}"


def _step(part: object) -> str:
    if not isinstance(part, tuple):
        return f"[{part}]"
    (key,) = part
    try:  # a long integer has no repr, and a key of the caller's own class may fail
        text = json.dumps(key[:60], ensure_ascii=False) if isinstance(key, str) else repr(key)
    except Exception:
        text = f"<{type(key).__name__}>"
    text = text.encode("utf-8", "backslashreplace").decode()
    return f"[{text}]" if len(text) <= 70 else f"[{text[:67]}…]"


def damaged(problem: str) -> NoReturn:
    raise HostError(
        f"the received bytes are no packed value: {problem}. "
        "Does every rank run the same wiiiiided, and was it sent by send_object or pack?"
    )
