"""The arithmetic against torch's own, for every pair of operator and dtype."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from tests.kit.data import DTYPES, FLOAT8S, assert_same, random_of, reduced
from wiiiiided.backend.shm.kernels import BLOCK, carrier, combiner, dtype_code, dtype_name
from wiiiiided.errors import UsageError

OPERATORS = ["SUM", "AVG", "PRODUCT", "MIN", "MAX", "BAND", "BOR", "BXOR"]


def _has_meaning(op: str, dtype: torch.dtype) -> bool:
    if op in ("BAND", "BOR", "BXOR"):
        return not (dtype.is_floating_point or dtype.is_complex)
    if op in ("MIN", "MAX"):
        return not dtype.is_complex
    return op != "AVG" or dtype is not torch.bool


PAIRS = [(op, d) for op in OPERATORS for d in DTYPES if d is not torch.bool and _has_meaning(op, d)]
NONSENSE = [(op, d) for op in OPERATORS for d in DTYPES if not _has_meaning(op, d)]


@pytest.mark.parametrize(("op", "dtype"), PAIRS)
def test_a_combiner_does_what_torch_does(op: str, dtype: torch.dtype) -> None:
    for ranks in (1, 2, 3, 5):
        combine = combiner(op, dtype, ranks)
        for count in (0, 1, 65, BLOCK + 1):
            tensors = [random_of(r, count, dtype, ranks) for r in range(ranks)]
            kept = [t.clone() for t in tensors]
            out = torch.empty(count, dtype=dtype)
            combine([carrier(t) for t in tensors], carrier(out))
            want = reduced(op, tensors)
            if dtype.is_complex and op == "PRODUCT":
                torch.testing.assert_close(out, want)
            else:
                assert_same(out, want, f"{op} of {ranks} times {count} {dtype}")
            for t, before in zip(tensors, kept, strict=True):
                assert_same(t, before, "an input")


def test_bool_is_logic() -> None:
    a, b = torch.tensor([0, 0, 1, 1]).bool(), torch.tensor([0, 1, 0, 1]).bool()
    tables = {"SUM": a | b, "MAX": a | b, "BOR": a | b, "PRODUCT": a & b, "MIN": a & b}
    tables |= {"BAND": a & b, "BXOR": a ^ b}
    for op, want in tables.items():
        out = torch.empty(4, dtype=torch.bool)
        combiner(op, torch.bool, 2)([carrier(a), carrier(b)], carrier(out))
        assert_same(out, want, op)


@pytest.mark.parametrize(("op", "dtype"), NONSENSE)
def test_a_pair_without_a_meaning_is_refused_by_name(op: str, dtype: torch.dtype) -> None:
    with pytest.raises(UsageError, match=f"{op}.*{dtype_name(dtype)}"):
        combiner(op, dtype, 2)


def test_an_unknown_operator_is_refused_with_those_there_are() -> None:
    with pytest.raises(UsageError, match=r"MEDIAN is not supported.*SUM"):
        combiner("MEDIAN", torch.float32, 2)


def test_a_dtype_that_cannot_travel_is_refused_by_name() -> None:
    with pytest.raises(UsageError, match="float4_e2m1fn_x2 cannot be exchanged"):
        carrier(torch.empty(2, dtype=torch.float4_e2m1fn_x2))


@pytest.mark.filterwarnings("ignore:ComplexHalf")
@pytest.mark.parametrize("dtype", [*DTYPES, torch.complex32])
def test_a_carrier_is_the_memory_of_the_tensor(dtype: torch.dtype) -> None:
    x = torch.zeros(2, 3, dtype=torch.float32).to(dtype)
    array = carrier(x)
    assert array.shape == (6,)
    assert array.nbytes == 6 * dtype.itemsize
    assert array.ctypes.data == x.data_ptr()
    array.view(np.uint8)[:] = 1
    assert x.view(-1).view(torch.uint8).tolist() == [1] * array.nbytes


def test_a_carrier_does_not_care_about_autograd() -> None:
    leaf = torch.ones(3, requires_grad=True)
    carrier(leaf)[:] = 2
    assert leaf.tolist() == [2.0] * 3
    with torch.inference_mode():
        x = torch.ones(3, dtype=torch.bfloat16)
    assert carrier(x).size == 3


def test_every_dtype_has_a_code_of_its_own() -> None:
    codes = [dtype_code(dtype) for dtype in [*DTYPES, torch.complex32]]
    assert len(set(codes)) == len(codes)
    assert all(0 <= code < 256 for code in codes)


def test_sums_of_narrow_floats_are_rounded_once() -> None:
    for dtype in (torch.float16, torch.bfloat16, *FLOAT8S[:4]):
        eps = torch.finfo(dtype).eps
        parts = [torch.tensor([1.0])] + [torch.tensor([eps / 2])] * 4
        narrow = [t.to(dtype) for t in parts]
        out = torch.empty(1, dtype=dtype)
        combiner("SUM", dtype, 5)([carrier(t) for t in narrow], carrier(out))
        assert float(out) == 1 + 2 * eps, dtype
