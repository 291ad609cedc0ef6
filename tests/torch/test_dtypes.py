"""Every dtype through every kind of operation, and a sentence for what has no meaning."""

from __future__ import annotations

import pytest
import torch
import torch.distributed as dist
from torch._C._distributed_c10d import _make_nccl_premul_sum

from tests.kit.data import (
    COMPLEX,
    DTYPES,
    FLOAT8S,
    FLOATS,
    INTEGERS,
    assert_same,
    bits,
    random_of,
    reduced,
)
from tests.kit.ranks import Rank, run_ranks

ORDERED = ["SUM", "PRODUCT", "MIN", "MAX"]
COUNTS = [1, 33, 70_001]  # 70,001: more than one block of a widened sum, and large slots


def _options(op: str) -> dist.AllreduceOptions:
    options = dist.AllreduceOptions()
    options.reduceOp = getattr(dist.ReduceOp, op)
    return options


def _operators(dtype: torch.dtype) -> list[str]:
    if dtype.is_complex:
        return ["SUM", "AVG", "PRODUCT"]
    if dtype.is_floating_point:
        return [*ORDERED, "AVG"]
    bitwise = ["BAND", "BOR", "BXOR"]
    return [*ORDERED, *bitwise] if dtype is torch.bool else [*ORDERED, *bitwise, "AVG"]


def _reduces(me: Rank) -> None:
    for salt, dtype in enumerate(DTYPES):
        for count in COUNTS:
            inputs = [random_of(r, count, dtype, salt) for r in range(me.size)]
            for op in _operators(dtype):
                x = inputs[me.rank].clone()
                dist.group.WORLD.allreduce([x], _options(op)).wait()
                if dtype is torch.bool:
                    want = _truth(op, inputs)
                else:
                    want = reduced(op, inputs)
                if dtype.is_complex and op == "PRODUCT":  # how it is contracted is not agreed
                    torch.testing.assert_close(x, want)
                else:
                    assert_same(x, want, f"{op} of {count} {dtype}")


def _truth(op: str, inputs: list[torch.Tensor]) -> torch.Tensor:
    same = {"SUM": "BOR", "MAX": "BOR", "PRODUCT": "BAND", "MIN": "BAND"}.get(op, op)
    return reduced(same, inputs)


@pytest.mark.parametrize("size", [2, 3])
def test_every_dtype_is_reduced_with_every_operator_that_has_a_meaning_for_it(size: int) -> None:
    run_ranks(_reduces, size)


def _moves(me: Rank) -> None:
    for salt, dtype in enumerate([*DTYPES, torch.complex32]):
        for count in COUNTS:
            made = torch.complex64 if dtype is torch.complex32 else dtype
            inputs = [random_of(r, count, made, salt).to(dtype) for r in range(me.size)]
            mine = inputs[me.rank]
            what = f"{count} {dtype}"
            x = mine.clone()
            dist.broadcast(x, me.size - 1)
            assert_same(x, inputs[-1], f"broadcast of {what}")
            outs = [torch.empty_like(mine) for _ in range(me.size)]
            dist.all_gather(outs, mine)
            for out, want in zip(outs, inputs, strict=True):
                assert_same(out, want, f"all_gather of {what}")
            parts = [torch.empty_like(mine) for _ in range(me.size)]
            dist.all_to_all(parts, [mine.clone() for _ in range(me.size)])
            for out, want in zip(parts, inputs, strict=True):
                assert_same(out, want, f"all_to_all of {what}")
            got = torch.empty_like(mine)
            dist.scatter(got, inputs if me.rank == 0 else None, 0)
            assert_same(got, mine, f"scatter of {what}")
            right, left = (me.rank + 1) % me.size, (me.rank - 1) % me.size
            sending = dist.group.WORLD.send([mine.clone()], right, salt)
            dist.group.WORLD.recv([got], left, salt).wait()
            sending.wait()
            assert_same(got, inputs[left], f"message of {what}")


def test_every_dtype_is_moved_bit_for_bit() -> None:
    run_ranks(_moves, 2)


def _narrow_scatter(me: Rank) -> None:
    for dtype in (torch.bfloat16, torch.float16, torch.float8_e5m2, torch.int8, torch.complex64):
        inputs = [random_of(r, me.size * 40_001, dtype) for r in range(me.size)]
        out = torch.empty(40_001, dtype=dtype)
        dist.reduce_scatter_tensor(out, inputs[me.rank])
        assert_same(out, reduced("SUM", inputs).chunk(me.size)[me.rank], f"{dtype}")


def test_reduce_scatter_of_narrow_dtypes_is_the_same_sum() -> None:
    run_ranks(_narrow_scatter, 3)


def _rounds_once(me: Rank) -> None:
    # 1 + many halves of its last bit: each step rounded would stay at 1, one rounding does not.
    for dtype in (torch.float16, torch.bfloat16):
        tiny = torch.finfo(dtype).eps / 2
        for count in (3, 40_000):
            x = torch.full((count,), 1.0 if me.rank == 0 else tiny, dtype=dtype)
            dist.all_reduce(x)
            exact = torch.full((count,), 1.0 + (me.size - 1) * tiny)
            assert_same(x, exact.to(dtype), f"{count} of {dtype}")
            assert float(x[0]) > 1.0


def test_half_precision_is_summed_in_float32_and_rounded_once() -> None:
    run_ranks(_rounds_once, 5)


def _specials(me: Rank) -> None:
    values = [float("nan"), float("inf"), float("-inf"), -0.0, 0.0, 1e38, 6e4, 448.0]
    for dtype in (*FLOATS, torch.float8_e4m3fn, torch.float8_e5m2):
        for op in ("SUM", "MIN", "MAX", "PRODUCT", "AVG"):
            inputs = [torch.tensor(values).roll(r).to(dtype) for r in range(me.size)]
            x = inputs[me.rank].clone()
            dist.all_reduce(x, getattr(dist.ReduceOp, op))
            want = reduced(op, inputs)
            got = x.to(torch.float64)
            assert torch.equal(got.isnan(), want.to(torch.float64).isnan()), (dtype, op)
            assert torch.equal(got.nan_to_num(), want.to(torch.float64).nan_to_num()), (dtype, op)


def test_infinities_and_nans_come_through_without_a_warning() -> None:
    run_ranks(_specials, 3, env={"PYTHONWARNINGS": "error"})


def _overflow(me: Rank) -> None:
    for dtype in INTEGERS:
        top = torch.iinfo(dtype).max
        x = torch.tensor([top, 1, top // 2], dtype=dtype)
        dist.all_reduce(x)
        width = 2 ** (8 * dtype.itemsize)
        for got, value in zip(x.tolist(), (top, 1, top // 2), strict=True):
            assert (got - value * me.size) % width == 0, dtype
    big = torch.tensor([2**63 + 11], dtype=torch.uint64)  # beyond int64
    dist.all_reduce(big, dist.ReduceOp.MAX)
    assert big.tolist() == [2**63 + 11]


def test_integers_wrap_around_and_uint64_is_compared_unsigned() -> None:
    run_ranks(_overflow, 2)


def _integer_average(me: Rank) -> None:
    x = torch.tensor([-7, 7, -1, 1, 0]) + torch.tensor([0, 0, 0, 0, me.rank])
    dist.all_reduce(x, dist.ReduceOp.AVG)
    assert x.tolist() == [-7, 7, -1, 1, 0]
    y = torch.tensor([-7 * (me.rank == 0), 7 * (me.rank == 0), 255 * (me.rank == 1)])
    dist.all_reduce(y, dist.ReduceOp.AVG)
    assert y.tolist() == [-3, 3, 127]


def test_an_average_of_integers_is_cut_towards_zero() -> None:
    run_ranks(_integer_average, 2)


def _impossible(me: Rank) -> None:
    group = dist.group.WORLD
    refused = [(d, op) for d in (*FLOATS, *FLOAT8S, *COMPLEX) for op in ("BAND", "BOR", "BXOR")]
    refused += [(d, op) for d in COMPLEX for op in ("MIN", "MAX")]
    refused += [(torch.bool, "AVG")]
    for dtype, op in refused:
        x = random_of(me.rank, 4, dtype)
        before = bits(x)
        with pytest.raises(RuntimeError, match=rf"{op}.*{str(dtype).removeprefix('torch.')}"):
            group.allreduce([x], _options(op)).wait()
        assert bits(x) == before
    with pytest.raises(RuntimeError, match="PREMUL_SUM cannot multiply bool"):
        dist.all_reduce(torch.ones(3, dtype=torch.bool), _make_nccl_premul_sum(2.0))
    unknown = torch.empty(3, dtype=torch.float4_e2m1fn_x2)
    for call in (group.allreduce, group.broadcast, lambda x: group.send(x, 1 - me.rank, 0)):
        with pytest.raises(RuntimeError, match="float4_e2m1fn_x2 cannot be"):
            call([unknown]).wait()
    _still_works(me)


def _still_works(me: Rank) -> None:
    x = torch.ones(3)
    dist.all_reduce(x)
    assert x.tolist() == [float(me.size)] * 3


def test_what_has_no_meaning_is_refused_in_words_and_leaves_the_group_usable() -> None:
    run_ranks(_impossible, 2)


def _bad_factor(me: Rank) -> None:
    # All ranks make the same call, which cannot be carried out.
    for dtype in (torch.int32, torch.uint16):
        x = random_of(me.rank, 4, dtype)
        with pytest.raises(RuntimeError, match="PREMUL_SUM"):
            dist.all_reduce(x, _make_nccl_premul_sum(0.5))
    _still_works(me)


def test_a_factor_that_does_not_fit_the_dtype_is_refused_and_leaves_the_group_usable() -> None:
    run_ranks(_bad_factor, 2)
