"""Tensors every rank can make for every other, and reductions in plain torch to compare with."""

from __future__ import annotations

from collections.abc import Sequence

import torch

FLOATS = [torch.float32, torch.float64, torch.float16, torch.bfloat16]
FLOAT8S = [
    torch.float8_e4m3fn,
    torch.float8_e4m3fnuz,
    torch.float8_e5m2,
    torch.float8_e5m2fnuz,
    torch.float8_e8m0fnu,
]
SIGNED = [torch.int8, torch.int16, torch.int32, torch.int64]
UNSIGNED = [torch.uint8, torch.uint16, torch.uint32, torch.uint64]
COMPLEX = [torch.complex64, torch.complex128]
INTEGERS = [*SIGNED, *UNSIGNED]
DTYPES = [*FLOATS, *FLOAT8S, *INTEGERS, torch.bool, *COMPLEX]

_NARROW = {torch.float16, torch.bfloat16, *FLOAT8S}


def random_of(
    rank: int, shape: int | Sequence[int], dtype: torch.dtype = torch.float32, salt: int = 0
) -> torch.Tensor:
    """The tensor of one rank; the same wherever and whenever it is made."""
    generator = torch.Generator().manual_seed(1_000_003 * salt + rank)
    sizes = [shape] if isinstance(shape, int) else list(shape)
    if dtype is torch.float8_e8m0fnu:  # powers of two only
        exponents = torch.randint(-3, 4, sizes, generator=generator)
        return torch.pow(2.0, exponents.to(torch.float32)).to(dtype)
    if dtype.is_complex or dtype.is_floating_point:
        wide = torch.float64 if dtype in (torch.float64, torch.complex128) else torch.float32
        if dtype.is_complex:
            return torch.view_as_complex(torch.randn([*sizes, 2], generator=generator, dtype=wide))
        return torch.randn(sizes, generator=generator, dtype=wide).to(dtype)
    if dtype is torch.bool:
        return torch.randint(0, 2, sizes, generator=generator).to(torch.bool)
    low = -100 if dtype in SIGNED else 0
    return torch.randint(low, 120, sizes, generator=generator).to(dtype)


hosts = ""  # the placement of the ranks of this run, a letter for each; tests.kit.ranks sets it


def reduced(op: str, tensors: Sequence[torch.Tensor]) -> torch.Tensor:
    """The reduction of one tensor of each rank, in the order of ranks; narrow floats in float32.

    Of the whole world on several hosts: first inside each host, then over the hosts in the order of
    their first rank, narrow floats rounded once, at the end.
    """
    if len(set(hosts)) < 2 or len(tensors) != len(hosts):
        return _level(op, tensors)
    if tensors[0].dtype in _NARROW:
        return reduced(op, [t.to(torch.float32) for t in tensors]).to(tensors[0].dtype)
    partial = "SUM" if op == "AVG" else op
    sums = [
        _level(partial, [t for t, h in zip(tensors, hosts, strict=True) if h == host])
        for host in dict.fromkeys(hosts)
    ]
    return _level(op, sums, len(tensors))


def _level(op: str, tensors: Sequence[torch.Tensor], ranks: int = 0) -> torch.Tensor:
    dtype, ranks = tensors[0].dtype, ranks or len(tensors)
    if dtype in _NARROW:
        return _combined(op, [t.to(torch.float32) for t in tensors], ranks).to(dtype)
    if dtype in INTEGERS:  # in 64 bits, cut at the end: the same as wrapping at every step
        return _wrapped(op, [t.to(torch.int64) for t in tensors], dtype, ranks)
    return _combined(op, list(tensors), ranks)


def _combined(op: str, tensors: Sequence[torch.Tensor], ranks: int) -> torch.Tensor:
    pair = {
        "SUM": torch.add,
        "AVG": torch.add,
        "PRODUCT": torch.mul,
        "MIN": torch.minimum,
        "MAX": torch.maximum,
        "BAND": torch.bitwise_and,
        "BOR": torch.bitwise_or,
        "BXOR": torch.bitwise_xor,
    }[op]
    total = tensors[0].clone()
    for tensor in tensors[1:]:
        total = pair(total, tensor)
    if op == "AVG":
        total = total / ranks
    return total


def _wrapped(
    op: str, tensors: Sequence[torch.Tensor], dtype: torch.dtype, ranks: int
) -> torch.Tensor:
    if op != "AVG":
        return _combined(op, tensors, ranks).to(dtype)
    total = _combined("SUM", tensors, ranks).to(dtype).to(torch.int64)
    return torch.div(total, ranks, rounding_mode="trunc").to(dtype)


def bits(tensor: torch.Tensor) -> bytes:
    """The memory of a tensor in logical order: equal only if every bit is."""
    dense = torch.empty(tensor.numel(), dtype=tensor.dtype).view(tensor.shape)
    dense.copy_(tensor.detach())
    return dense.view(-1).view(torch.uint8).numpy().tobytes()


def assert_same(got: torch.Tensor, want: torch.Tensor, what: str) -> None:
    """Bit for bit."""
    assert got.dtype == want.dtype, f"{what}: {got.dtype} instead of {want.dtype}"
    assert got.shape == want.shape, f"{what}: {got.shape} instead of {want.shape}"
    if bits(got) != bits(want):
        wide = torch.complex128 if got.is_complex() else torch.float64
        off = (got.detach().to(wide) != want.detach().to(wide)).flatten().nonzero().flatten()
        at = int(off[0]) if len(off) else -1
        raise AssertionError(
            f"{what}: {len(off)} of {got.numel()} elements differ, the first at {at}: "
            f"{got.detach().flatten()[at].item()} instead of {want.detach().flatten()[at].item()}"
        )
