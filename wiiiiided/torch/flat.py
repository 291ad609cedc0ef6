"""From a tensor as the user has it to the flat array the collectives work on, and back.

A dense, contiguous CPU tensor is used where it lies. Everything else (other strides, CUDA, lazy
conjugates) goes through a contiguous copy on the host and is copied back when the result is there.
The CUDA way has never been run by us: the machines we build on have no GPU.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch

from wiiiiided.backend.shm.kernels import carrier, dtype_name
from wiiiiided.backend.shm.slots import Array
from wiiiiided.errors import UsageError

CopyBack = Callable[[], None]


def plain(tensor: torch.Tensor) -> bool:
    """Whether the tensor's own memory can be used."""
    return (
        tensor.is_cpu
        and tensor.layout is torch.strided
        and tensor.is_contiguous()
        and not tensor.is_neg()
        and not (tensor.is_complex() and tensor.is_conj())
    )


def flatten(tensor: torch.Tensor, copy_backs: list[CopyBack] | None = None) -> Array:
    """The tensor as an array to read, with `copy_backs` also to write (a copy back is added)."""
    if plain(tensor):
        return carrier(tensor)
    if tensor.layout is not torch.strided:
        raise UsageError(
            f"a tensor with layout {tensor.layout} cannot be exchanged; use tensor.to_dense()"
        )
    with torch.no_grad():
        host = tensor.detach().resolve_conj().resolve_neg().cpu().contiguous()
        if host.untyped_storage().data_ptr() == tensor.untyped_storage().data_ptr():
            host = host.clone(memory_format=torch.contiguous_format)
    if copy_backs is not None:
        copy_backs.append(lambda: copy_back(tensor, host))
    return carrier(host)


def copy_back(tensor: torch.Tensor, host: torch.Tensor) -> None:
    """Write a result into the user's tensor, whatever autograd thinks of in-place changes to it.

    An expanded tensor has its elements once in memory, and so they are written once.
    """
    for dim, (stride, size) in enumerate(zip(tensor.stride(), tensor.shape, strict=True)):
        if stride == 0 and size > 1:
            first = host.narrow(dim, 0, 1)
            if torch.equal(first.expand_as(host), host):
                tensor, host = tensor.narrow(dim, 0, 1), first
    with torch.inference_mode(tensor.is_inference()), torch.no_grad():
        tensor.detach().copy_(host)


def flatten_each(tensors: Sequence[torch.Tensor], copy_backs: list[CopyBack] | None) -> list[Array]:
    """`flatten` for a list."""
    return [flatten(tensor, copy_backs) for tensor in tensors]


def same_shape_dtype(name: str, tensors: Sequence[Any]) -> None:
    """Raise unless all tensors of a list have one shape and dtype."""
    first = tensors[0]
    for tensor in tensors:
        if tensor.dtype != first.dtype or tensor.numel() != first.numel():
            raise UsageError(
                f"{name} needs tensors of one size and dtype; "
                f"got {_shape(first)} and {_shape(tensor)}"
            )


def _shape(tensor: torch.Tensor) -> str:
    return f"{dtype_name(tensor.dtype)}{list(tensor.shape)}"
