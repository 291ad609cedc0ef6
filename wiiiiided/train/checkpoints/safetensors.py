"""A model's tensors in the safetensors format: bytes of a JSON head (u64), it, and the tensors."""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final

import torch

from wiiiiided.backend.wire.tensors_memory import tensor_memory
from wiiiiided.errors import UsageError
from wiiiiided.train.checkpoints.writer import sync_folder

_NAMES: Final = {
    torch.float64: "F64",
    torch.float32: "F32",
    torch.float16: "F16",
    torch.bfloat16: "BF16",
    torch.int64: "I64",
    torch.int32: "I32",
    torch.int16: "I16",
    torch.int8: "I8",
    torch.uint8: "U8",
    torch.bool: "BOOL",
}


def export(state: Mapping[str, Any], path: Path) -> None:
    """Write tensors by name, atomically."""
    raw, path = head_of(state), path.absolute()
    temporary = path.with_name(f"{path.name}.tmp")
    try:
        with open(temporary, "wb") as file:
            file.write(len(raw).to_bytes(8, "little") + raw)
            for tensor in state.values():
                if tensor.numel():
                    file.write(tensor_memory(tensor.detach().contiguous())[0])
            file.flush()
            os.fsync(file.fileno())
        temporary.replace(path)
    except BaseException:
        temporary.unlink(missing_ok=True)
        raise
    sync_folder(str(path.parent))


def head_of(state: Mapping[str, Any]) -> bytes:
    """The JSON that says where each tensor lies; UsageError: a file cannot hold one of them."""
    head: dict[str, Any] = {"__metadata__": {"format": "pt"}}
    at = 0
    for name, tensor in state.items():
        if not isinstance(tensor, torch.Tensor) or tensor.dtype not in _NAMES:
            kind = getattr(tensor, "dtype", type(tensor).__name__)
            raise UsageError(f"{name} is {kind}: a safetensors file cannot hold it")
        end = at + tensor.numel() * tensor.element_size()
        kind, shape = _NAMES[tensor.dtype], list(tensor.shape)
        head[name] = {"dtype": kind, "shape": shape, "data_offsets": [at, end]}
        at = end
    raw = json.dumps(head).encode()
    return raw + b" " * (-len(raw) % 8)
