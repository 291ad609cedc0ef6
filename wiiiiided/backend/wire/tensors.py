"""Values with tensors in them, as bytes: straight from and into the tensors' own memory.

Pickle copies every tensor into its stream, and its stream can run any code on the receiver. Here
a value becomes a head, its structure, and the memory of its tensors where it lies:

    {"step": 7, "w": tensor}  ──pack──►  head: dict, "step", 7, "w", tensor float32 [1000, 10]
                                         buffers: the 40,000 bytes of w, no copy

    head ──plan──► Blueprint ──allocate, receive into it──► build(memory) ──► the value
    head, data ──────────────────────unpack─────────────────────────────────► the value

    data   │ buffer 0 … │ pad │ buffer 1 … │ pad │ buffer 2 … │     each at a multiple of 64
           0                  n·64               m·64

These travel: None, bool, int, float, complex, str, bytes, bytearray, list, tuple, dict, OrderedDict
(keys: str, int, float, bool, None, bytes and tuples of these), torch.Size, torch tensors and
parameters, numpy arrays and scalars. Everything else is refused with its path, unless both sides
pass pickle=True. tensors_format has every byte and every limit, docs/objects.md the whole story.

Kept of a tensor: values to the bit, dtype, shape, requires_grad, the order of its
dimensions in memory (channels_last stays so) and whether it is a Parameter. Not kept: gaps between
its elements, its storage and which tensors share it, its graph, .grad and hooks. It comes back on
the CPU;
`Blueprint.devices` says where it was.
"""

from __future__ import annotations

import sys
from typing import Any

from wiiiiided.backend.wire.tensors_build import Blueprint, usable_memory
from wiiiiided.backend.wire.tensors_format import HEAD_BYTES, LIMIT_BYTES
from wiiiiided.backend.wire.tensors_read import TensorReader
from wiiiiided.backend.wire.tensors_write import PackedTensors, Writer

__all__ = ["HEAD_BYTES", "LIMIT_BYTES", "Blueprint", "PackedTensors", "pack", "plan", "unpack"]


def pack(value: Any, *, pickle: bool = False) -> PackedTensors:
    """The head and the memory of a value. UsageError with the path of what cannot travel.

    Dense tensors and arrays are not copied, those with gaps are, once. pickle: what does not
    travel as it is becomes a pickled leaf, which a receiver takes only with pickle=True.
    """
    writer = Writer(pickle)
    writer.write(value)
    return writer.packed()


def plan(head: Any, *, pickle: bool = False, limit_bytes: int = LIMIT_BYTES) -> Blueprint:
    """Check a received head, and say how much memory its value needs: at most limit_bytes.

    Raises HostError, and nothing else, whatever the head is. Nothing is unpickled yet.
    """
    return TensorReader(head, pickle, limit_bytes).blueprint()


def unpack(head: Any, data: Any, *, pickle: bool = False) -> Any:
    """The value of a head and its data.

    Tensors and arrays lie in `data` itself, and keep it alive, if it is writable and begins at a
    multiple of 64; else it is copied once. HostError if head and data are not what pack made.
    """
    blueprint = plan(head, pickle=pickle, limit_bytes=sys.maxsize)  # the data is there already
    return blueprint.build(usable_memory(data, blueprint))
