"""A stage's messages as bytes and back.

A message is a dict of values and tensors. Pickled, each tensor goes the way of torch.save; as
*direct tensors* they are replaced, before the pickle, by what it takes to build them again:

    {"type": "torch_tensor", "data": its bytes, "shape": …, "dtype": "torch.float32",
     "requires_grad": False}

Pickle runs what a sender wants to have run: this is for processes of one benchmark alone.
"""

import pickle
from typing import Any, NamedTuple

import numpy as np
import torch

from lib.ladder.contenders import CODECS, LadderStage

Message = dict[str, Any]
_TENSOR = "torch_tensor"
# numpy has no bfloat16: its bits travel as those of an integer.
_NUMPY = {
    "torch.float64": np.float64,
    "torch.float32": np.float32,
    "torch.float16": np.float16,
    "torch.bfloat16": np.int16,
    "torch.int64": np.int64,
    "torch.int32": np.int32,
    "torch.uint8": np.uint8,
    "torch.bool": np.bool_,
}


class PackedMessage(NamedTuple):
    """`plain_bytes` is the size before the codec."""

    codec: int
    payload: bytes
    plain_bytes: int


def pack(stage: LadderStage, message: Message) -> PackedMessage:
    whole = _flattened(message) if stage.direct_tensors else message
    plain = pickle.dumps(whole, protocol=stage.pickle_protocol)
    codec = stage.codec_for("gradients" in message, len(plain))
    return PackedMessage(codec.number, codec.compress(plain), len(plain))


def unpack(codec: int, payload: bytes) -> tuple[Message, int]:
    """The message, and its size without the codec."""
    plain = CODECS[codec].decompress(payload)
    return _built(pickle.loads(plain)), len(plain)


def _flattened(value: Any) -> Any:
    if isinstance(value, torch.Tensor):
        return _serialized(value)
    if isinstance(value, dict):
        return {name: _flattened(each) for name, each in value.items()}
    return value


def _built(value: Any) -> Any:
    if not isinstance(value, dict):
        return value
    if value.get("type") == _TENSOR:
        return _deserialized(value)
    return {name: _built(each) for name, each in value.items()}


def _serialized(tensor: torch.Tensor) -> Message:
    plain = tensor.detach().contiguous().cpu()
    bits = plain.view(torch.int16) if plain.dtype is torch.bfloat16 else plain
    return {
        "type": _TENSOR,
        "data": bits.numpy().tobytes(),
        "shape": tensor.shape,
        "dtype": str(tensor.dtype),
        "requires_grad": tensor.requires_grad,
    }


def _deserialized(parts: Message) -> torch.Tensor:
    name = parts["dtype"]
    bits = np.frombuffer(parts["data"], dtype=_NUMPY[name]).copy()  # type: ignore[var-annotated]
    tensor = torch.from_numpy(bits.reshape(parts["shape"]))
    if name == "torch.bfloat16":
        tensor = tensor.view(torch.bfloat16)
    return tensor.requires_grad_(parts["requires_grad"])
