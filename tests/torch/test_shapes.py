"""Tensors as users have them: every size around the slots' limits, every layout, every mode."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
import torch.distributed as dist

from tests.kit.data import assert_same, bits, random_of, reduced
from tests.kit.ranks import Rank, run_ranks
from wiiiiided.backend.shm.slots import SMALL_BYTES, staging_shape
from wiiiiided.torch import shared_empty

Make = Callable[[torch.Tensor], torch.Tensor]


def _limits(me: Rank) -> None:
    piece = staging_shape(me.size)[1]
    edges = [SMALL_BYTES, SMALL_BYTES // me.size, piece, piece // me.size, 2 * piece, 5 * piece]
    for dtype in (torch.float32, torch.bfloat16):
        for edge in edges:
            for extra in (-1, 0, 1):
                _all_kinds(me, edge // dtype.itemsize + extra, dtype)
        for count in (0, 1, 2, 3, 63, 64, 65, 4097):
            _all_kinds(me, count, dtype)


def _all_kinds(me: Rank, count: int, dtype: torch.dtype) -> None:
    what = f"{count} of {dtype}"
    inputs = [random_of(r, count, dtype) for r in range(me.size)]
    total = reduced("SUM", inputs)
    x = inputs[me.rank].clone()
    dist.all_reduce(x)
    assert_same(x, total, f"all_reduce of {what}")
    x = inputs[me.rank].clone()
    dist.broadcast(x, 1)
    assert_same(x, inputs[1], f"broadcast of {what}")
    flat = torch.empty(count * me.size, dtype=dtype)
    dist.all_gather_into_tensor(flat, inputs[me.rank])
    assert_same(flat, torch.cat(inputs), f"all_gather of {what}")
    out = torch.empty(count, dtype=dtype)
    dist.reduce_scatter_tensor(out, flat)
    assert_same(out, reduced("SUM", [inputs[me.rank]] * me.size), f"reduce_scatter of {what}")
    dist.scatter(out, inputs if me.rank == 0 else None, 0)
    assert_same(out, inputs[me.rank], f"scatter of {what}")
    back = torch.empty_like(flat)
    dist.all_to_all_single(back, flat)
    assert_same(back, torch.cat([inputs[me.rank]] * me.size), f"all_to_all of {what}")


@pytest.mark.parametrize("size", [2, 3])
def test_sizes_around_the_limits_of_the_slots_are_right(size: int) -> None:
    run_ranks(_limits, size)


def _megabytes(me: Rank) -> None:
    inputs = [random_of(r, 2_000_003) for r in range(me.size)]
    for later in (False, True):
        x = inputs[me.rank].clone()
        work = dist.all_reduce(x, async_op=later)
        if work is not None:
            work.wait()
        assert_same(x, reduced("SUM", inputs), "8 MB")


def test_megabytes_go_through_in_many_pieces() -> None:
    run_ranks(_megabytes, 3)


# How a dense matrix (or larger) becomes the tensor that is passed; the values stay what they are.
LAYOUTS: dict[str, Make] = {
    "transposed": lambda t: t.t().contiguous().t(),
    "every other column": lambda t: torch.stack([t, t], 2).flatten(1)[:, ::2],
    "offset": lambda t: torch.cat([torch.zeros_like(t[:1]), t])[1:],
    "offset and strided": lambda t: torch.cat([torch.zeros_like(t[:, :1]), t], 1)[:, 1:],
    "leaf": lambda t: t.clone().requires_grad_(),
    "not a leaf": lambda t: t.clone().requires_grad_().mul(1),
    "negative bit": lambda t: torch._neg_view(-t),
    "parameter": lambda t: torch.nn.Parameter(t.clone()),
    "buffer in half the storage": lambda t: torch.cat([t, t])[len(t) :],
}


def _layouts(me: Rank) -> None:
    for shape in ((5, 7), (160, 170), (1, 1), (0, 3)):
        for name, make in LAYOUTS.items():
            for later in (False, True):
                _check_layout(me, shape, name, make, later)


def _check_layout(me: Rank, shape: tuple[int, int], name: str, make: Make, later: bool) -> None:
    what = f"{name} {shape}"
    dense = [random_of(r, shape) for r in range(me.size)]
    x = make(dense[me.rank].clone())
    _wait(dist.all_reduce(x, async_op=later))
    assert_same(x, reduced("SUM", dense), f"all_reduce, {what}")
    x = make(dense[me.rank].clone())
    _wait(dist.broadcast(x, 0, async_op=later))
    assert_same(x, dense[0], f"broadcast, {what}")
    x = make(dense[me.rank].clone())
    outs = [make(torch.zeros(shape)) for _ in range(me.size)]
    _wait(dist.all_gather(outs, x, async_op=later))
    for out, want in zip(outs, dense, strict=True):
        assert_same(out, want, f"all_gather, {what}")
    assert_same(x, dense[me.rank], f"the input, {what}")
    out = make(torch.zeros(shape))
    _wait(dist.reduce_scatter(out, [make(t.clone()) for t in dense], async_op=later))
    assert_same(out, reduced("SUM", [dense[me.rank]] * me.size), f"reduce_scatter, {what}")
    other = 1 - me.rank
    got = make(torch.zeros(shape))
    works = [dist.isend(x, other), dist.irecv(got, other)]
    for work in works:
        _wait(work)
    assert_same(got, dense[other], f"message, {what}")


def _wait(work: dist.Work | None) -> None:
    if work is not None:
        work.wait()


def test_every_layout_gives_the_result_of_the_dense_tensor() -> None:
    run_ranks(_layouts, 2)


def _images(me: Rank) -> None:
    for shape in ((2, 3, 4, 5), (4, 8, 33, 35)):
        dense = [random_of(r, shape) for r in range(me.size)]
        # One rank in another memory format than the rest: values are matched by index.
        formats = [torch.channels_last, torch.contiguous_format]
        x = dense[me.rank].clone(memory_format=formats[me.rank % 2])
        dist.all_reduce(x)
        assert_same(x, reduced("SUM", dense), f"{shape}")
        assert x.is_contiguous(memory_format=formats[me.rank % 2])


def test_channels_last_keeps_its_format_and_meets_other_formats() -> None:
    run_ranks(_images, 3)


def _complex_views(me: Rank) -> None:
    group = dist.group.WORLD
    for count in (5, 30_001):
        dense = [random_of(r, count, torch.complex64) for r in range(me.size)]
        x = dense[me.rank].clone().conj()
        assert x.is_conj()
        group.allreduce([x]).wait()
        assert_same(x.resolve_conj(), reduced("SUM", dense).conj().resolve_conj(), "conjugate")
        base = dense[me.rank].clone()
        y = base.conj().imag
        assert y.is_neg()
        dist.all_reduce(y)
        want = reduced("SUM", [t.conj().imag.resolve_neg() for t in dense])
        assert_same(y.resolve_neg(), want, "imaginary part of a conjugate")
        assert_same(base.real, dense[me.rank].real, "the real part beside it")


def test_conjugate_and_negative_views_are_seen_as_their_values() -> None:
    run_ranks(_complex_views, 2)


def _scalars(me: Rank) -> None:
    for dtype in (torch.float32, torch.bfloat16, torch.int64, torch.bool):
        x = torch.tensor(1, dtype=dtype)
        dist.all_reduce(x)
        assert x.shape == ()
        assert x.item() == (True if dtype is torch.bool else me.size)
        outs = [torch.empty((), dtype=dtype) for _ in range(me.size)]
        dist.all_gather(outs, torch.tensor(me.rank, dtype=dtype))
        assert [int(t) for t in outs] == [int(bool(r)) for r in range(me.size)]
        flat = torch.empty(me.size, dtype=dtype)
        dist.all_gather_into_tensor(flat, torch.tensor(me.rank, dtype=dtype))
        assert [int(t) for t in flat] == [int(bool(r)) for r in range(me.size)]
        # one element, contiguous by torch's word, with a stride that is not one
        single = torch.ones(4, dtype=dtype)[::4]
        dist.broadcast(single, 0)
        works = [dist.isend(single, 1 - me.rank), dist.irecv(x.view(1), 1 - me.rank)]
        for work in works:
            work.wait()
        assert int(x) == 1


def test_tensors_without_dimensions_are_tensors() -> None:
    run_ranks(_scalars, 2)


def _expanded(me: Rank) -> None:
    for rows in (3, 900):
        x = torch.arange(50.0).add(me.rank).expand(rows, 50)
        outs = [torch.empty(rows, 50) for _ in range(me.size)]
        dist.all_gather(outs, x)
        for r, out in enumerate(outs):
            assert_same(out, torch.arange(50.0).add(r).expand(rows, 50), f"{rows} rows of {r}")
        with pytest.raises(RuntimeError, match="memory location"):
            dist.all_reduce(x)  # as a result it would be written to in one place many times
        y = torch.ones(2)
        dist.all_reduce(y)
        assert y.tolist() == [me.size] * 2


def test_an_expanded_tensor_is_read_but_refused_as_a_result() -> None:
    run_ranks(_expanded, 2)


def _autograd(me: Rank) -> None:
    leaf = torch.ones(4, requires_grad=True)
    loss = (leaf * 3).sum()
    dist.all_reduce(leaf)
    assert leaf.requires_grad
    assert leaf.is_leaf
    assert leaf.tolist() == [me.size] * 4
    loss.backward()
    assert leaf.grad is not None
    dist.all_reduce(leaf.grad)
    assert leaf.grad.tolist() == [3 * me.size] * 4
    with torch.no_grad():
        dist.broadcast(leaf, 0)


def test_a_leaf_that_requires_grad_is_changed_without_a_graph() -> None:
    run_ranks(_autograd, 2)


def _inference(me: Rank) -> None:
    for dtype in (torch.float32, torch.bfloat16):
        for shape in ((4, 6), (200, 300)):
            dense = [random_of(r, shape, dtype) for r in range(me.size)]
            want = reduced("SUM", dense)
            with torch.inference_mode():
                inside = [dense[me.rank].clone(), dense[me.rank].t().clone().t()]
                later = [dense[me.rank].clone(), dense[me.rank].t().clone().t()]
            normal = [dense[me.rank].clone(), dense[me.rank].t().clone().t()]
            for asynchronous in (False, True):
                with torch.inference_mode():
                    for x in (inside[asynchronous], normal[asynchronous]):
                        _wait(dist.all_reduce(x, async_op=asynchronous))
                        assert_same(x, want, f"in inference mode, {dtype} {shape}")
                _wait(dist.all_reduce(later[asynchronous], async_op=asynchronous))
                assert bits(later[asynchronous]) == bits(want), "outside of it"
                assert later[asynchronous].is_inference()
                assert not normal[asynchronous].is_inference()


def test_inference_tensors_work_inside_and_outside_of_inference_mode() -> None:
    run_ranks(_inference, 2)


def _resized(me: Rank) -> None:
    for count in (10, 40_000):
        x, got = torch.ones(count), torch.empty(me.size * count)
        dist.all_reduce(x)
        dist.all_gather_into_tensor(got, x)
        for tensor in (x, got):  # as FSDP does with its parameters between layers
            storage = tensor.untyped_storage()
            nbytes = storage.nbytes()
            storage.resize_(0)
            storage.resize_(nbytes)


def test_a_tensor_that_was_exchanged_can_be_resized_afterwards() -> None:
    run_ranks(_resized, 2)


def _input_in_anothers_place(me: Rank, count: int, shared: bool) -> None:
    for kind in ("all_gather", "gather"):
        for place in range(me.size):
            make = shared_empty if shared else torch.empty
            flat = make(count * me.size)
            x, parts = flat[place * count : (place + 1) * count], list(flat.chunk(me.size))
            x.copy_(random_of(me.rank, count))
            if kind == "all_gather":
                dist.all_gather(parts, x)
            else:
                dist.gather(x, parts if me.rank == 0 else None, 0)
            for r, part in enumerate(parts if kind == "all_gather" or me.rank == 0 else ()):
                assert_same(part, random_of(r, count), f"{kind}, the input in place {place}")


@pytest.mark.parametrize(
    ("world", "shared"), [(2, False), (2, True), ("ab", False), ("aab", False)]
)
def test_an_input_may_lie_where_another_ranks_part_will(world: int | str, shared: bool) -> None:
    run_ranks(_input_in_anothers_place, world, 300_000, shared)


def _expanded(me: Rank) -> None:
    x = torch.full((1, 3), me.rank + 1.0).expand(4, 3)
    dist.all_reduce(x)
    assert_same(x, torch.full((4, 3), 3.0), "an expanded tensor, reduced in place")


def test_an_expanded_tensor_is_reduced_in_place() -> None:
    run_ranks(_expanded, 2)
