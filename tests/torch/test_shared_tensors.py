"""Tensors of shared_empty: the same results as ever, whatever is mixed, and freed when dropped."""

from __future__ import annotations

import gc

import pytest
import torch
import torch.distributed as dist

from tests.kit.conditions import wait_until
from tests.kit.data import assert_same, random_of, reduced
from tests.kit.ranks import Rank, run_ranks
from wiiiiided.torch import shared_empty, stats

COUNTS = [1, 5_000, 70_001]  # float32: two of them too small for working in place, one large


def _maps() -> int:
    """How many shared segments of ours this process maps."""
    with open("/proc/self/maps") as file:
        return sum("wiiiiide-" in line for line in file)


def _in_place(me: Rank) -> None:
    for dtype in (torch.float32, torch.bfloat16):
        for count in COUNTS:
            inputs = [random_of(r, count, dtype) for r in range(me.size)]
            what = f"{count} of {dtype}"
            shared = shared_empty(count, dtype)
            assert shared.shape == (count,)
            assert shared.dtype == dtype
            for later in (False, True):
                for op in ("SUM", "AVG", "MAX"):
                    shared.copy_(inputs[me.rank])
                    _wait(dist.all_reduce(shared, getattr(dist.ReduceOp, op), async_op=later))
                    assert_same(shared, reduced(op, inputs), f"{op} of {what}")
                shared.copy_(inputs[me.rank])
                _wait(dist.broadcast(shared, me.size - 1, async_op=later))
                assert_same(shared, inputs[-1], f"broadcast of {what}")
                shared.copy_(inputs[me.rank])
                flat = torch.empty(count * me.size, dtype=dtype)
                _wait(dist.all_gather_into_tensor(flat, shared, async_op=later))
                assert_same(flat, torch.cat(inputs), f"all_gather of {what}")
                _wait(dist.reduce(shared, 0, async_op=later))
                want = reduced("SUM", inputs) if me.rank == 0 else inputs[me.rank]
                assert_same(shared, want, f"reduce of {what}")


def _wait(work: dist.Work | None) -> None:
    if work is not None:
        work.wait()


@pytest.mark.parametrize("size", [1, 2, 3])
def test_collectives_on_shared_tensors_give_the_ordinary_results(size: int) -> None:
    run_ranks(_in_place, size)


def _gather_scatter(me: Rank) -> None:
    for count in COUNTS:
        whole = shared_empty(count * me.size)
        parts = list(whole.chunk(me.size))
        inputs = [random_of(r, count) for r in range(me.size)]
        for later in (False, True):
            whole.zero_()
            parts[me.rank].copy_(inputs[me.rank])
            _wait(dist.all_gather_into_tensor(whole, parts[me.rank], async_op=later))
            assert_same(whole, torch.cat(inputs), f"gathered in place: {count}")
            out = torch.empty(count)
            _wait(dist.reduce_scatter_tensor(out, whole, async_op=later))
            total = reduced("SUM", [inputs[me.rank]] * me.size)
            assert_same(out, total, f"scattered: {count}")
            assert_same(whole, torch.cat(inputs), "the input")
            target = shared_empty(count)
            _wait(dist.reduce_scatter_tensor(target, whole, async_op=later))
            assert_same(target, total, f"scattered into shared: {count}")
            _wait(dist.reduce_scatter_tensor(parts[me.rank], whole, async_op=later))
            assert_same(parts[me.rank], total, f"scattered in place: {count}")
            dist.barrier()


@pytest.mark.parametrize("size", [2, 3])
def test_gather_and_scatter_work_where_the_shared_tensor_lies(size: int) -> None:
    run_ranks(_gather_scatter, size)


def _only_some(me: Rank) -> None:
    for count in COUNTS:
        first, second = shared_empty(count), shared_empty(count)
        inputs = [random_of(r, count) for r in range(me.size)]
        for chosen in range(2**me.size):
            for pool in (first, second):
                mine = pool if chosen >> me.rank & 1 else torch.empty(count)
                mine.copy_(inputs[me.rank])
                dist.all_reduce(mine)
                assert_same(mine, reduced("SUM", inputs), f"all_reduce {chosen:b} of {count}")
                mine.copy_(inputs[me.rank])
                dist.broadcast(mine, 1)
                assert_same(mine, inputs[1], f"broadcast {chosen:b} of {count}")
                mine.copy_(inputs[me.rank])
                flat = torch.empty(count * me.size)
                dist.all_gather_into_tensor(flat, mine)
                assert_same(flat, torch.cat(inputs), f"all_gather {chosen:b} of {count}")
        # some from one call of shared_empty and some from the other
        mine = first if me.rank % 2 else second
        mine.copy_(inputs[me.rank])
        dist.all_reduce(mine)
        assert_same(mine, reduced("SUM", inputs), f"mixed, {count}")


def test_ranks_with_and_without_a_shared_tensor_meet() -> None:
    run_ranks(_only_some, 3)


def _slices(me: Rank) -> None:
    count = 40_000
    shared = shared_empty((me.size + 1, count))
    inputs = [random_of(r, count) for r in range(me.size)]
    for shift in (0, 1):
        shared.fill_(7)
        mine = shared[me.rank + shift]  # every rank at another offset
        mine.copy_(inputs[me.rank])
        dist.all_reduce(mine)
        assert_same(mine, reduced("SUM", inputs), "a row")
        rest = [row for row in range(me.size + 1) if row != me.rank + shift]
        assert bool((shared[rest] == 7).all()), "the rows beside it"
    flat = shared.view(-1)
    odd = flat[me.rank + 1 : me.rank + 1 + count]
    odd.copy_(inputs[me.rank])
    dist.all_reduce(odd, dist.ReduceOp.MIN)
    assert_same(odd, reduced("MIN", inputs), "at odd offsets")


def test_parts_of_shared_tensors_at_different_offsets_work() -> None:
    run_ranks(_slices, 3)


def _views(me: Rank) -> None:
    rows, columns = 200, 300
    shared = shared_empty((rows, columns))
    dense = [random_of(r, (rows, columns)) for r in range(me.size)]

    def fresh() -> torch.Tensor:
        return shared.copy_(dense[me.rank])

    x = fresh().t()
    dist.all_reduce(x)
    assert_same(x, reduced("SUM", [t.t() for t in dense]), "all_reduce of a transposed one")
    x = fresh()[:, ::2]
    dist.all_reduce(x)
    assert_same(x, reduced("SUM", [t[:, ::2] for t in dense]), "all_reduce of columns")
    assert_same(shared[:, 1::2], dense[me.rank][:, 1::2], "the columns between")
    x = fresh().t()
    dist.broadcast(x, 1)
    assert_same(x, dense[1].t(), "broadcast of a transposed one")
    x = fresh().t()
    outs = [torch.empty(columns, rows) for _ in range(me.size)]
    dist.all_gather(outs, x)
    for r, out in enumerate(outs):
        assert_same(out, dense[r].t(), "all_gather of a transposed one")
    whole = shared_empty((me.size * rows, columns))
    whole.copy_(torch.cat(dense))
    out = torch.empty(columns * me.size * rows // me.size)
    dist.reduce_scatter_tensor(out, whole.t())
    want = torch.cat(dense).t().reshape(-1).chunk(me.size)[me.rank]
    assert_same(out, reduced("SUM", [want] * me.size), "reduce_scatter of a transposed one")
    # One rank's view is not contiguous, the others' tensors are.
    x = fresh() if me.rank else shared.view(columns, rows).t().copy_(dense[0])
    dist.all_reduce(x)
    assert_same(x, reduced("SUM", dense), "one transposed, the others not")


def test_views_of_shared_tensors_that_are_not_contiguous_are_right() -> None:
    run_ranks(_views, 2)


def _wait_for_maps(count: int, what: str) -> None:
    """The background driver holds the last operation until it parks."""

    def freed() -> bool:
        gc.collect()
        return _maps() == count

    wait_until(freed, 30, what)


def _dropped(me: Rank) -> None:
    dist.all_reduce(torch.ones(100_000))  # staging is there
    gc.collect()
    before = _maps()
    tensors = [shared_empty(100_000) for _ in range(5)]
    assert _maps() == before + 5
    part = tensors[0][10:20]
    for x in tensors:
        x.fill_(1)
        dist.all_reduce(x)
        assert bool((x == me.size).all())
    del tensors, x
    _wait_for_maps(before + 1, "a part keeps the whole")
    assert bool((part == me.size).all())
    work = dist.all_reduce(part, async_op=True)
    del part
    work.wait()
    del work
    dist.barrier()
    _wait_for_maps(before, "all are gone")


def test_the_memory_is_freed_when_the_last_tensor_is_dropped() -> None:
    run_ranks(_dropped, 2)


def _outlives(me: Rank) -> None:
    x = shared_empty(50_000)
    x.fill_(3)
    dist.all_reduce(x)
    dist.destroy_process_group()
    assert bool((x == 3 * me.size).all())
    x += 1


def test_a_shared_tensor_outlives_its_group() -> None:
    run_ranks(_outlives, 2)


def _other_group(me: Rank) -> None:
    x = shared_empty(50_000)
    side = dist.new_group(list(range(me.size)))
    pair = dist.new_group([0, 1])
    x.fill_(1)
    dist.all_reduce(x, group=side)
    assert bool((x == me.size).all())
    if me.rank < 2:
        y = shared_empty((3, 40_000), torch.float64, group=pair)
        y.fill_(me.rank)
        dist.all_reduce(y, group=pair)
        assert bool((y == 1).all())
        dist.all_reduce(x, group=pair)
    dist.barrier()


def test_a_shared_tensor_can_be_used_in_another_group() -> None:
    run_ranks(_other_group, 3)


def _shapes(me: Rank) -> None:
    assert shared_empty(()).shape == ()
    assert shared_empty((0, 3)).shape == (0, 3)
    assert shared_empty((2, 3), torch.int64).dtype is torch.int64
    assert shared_empty(4, torch.bool).numel() == 4
    for shape in ((), (0, 3)):
        x = shared_empty(shape).fill_(1)
        dist.all_reduce(x)
        assert bool((x == me.size).all())
    with pytest.raises(RuntimeError, match="shape"):
        shared_empty((-1, 2))
    leaf = shared_empty(40_000).fill_(1).requires_grad_()
    (leaf * 2).sum().backward()
    dist.all_reduce(leaf)
    assert bool((leaf == me.size).all())
    with torch.inference_mode():
        y = shared_empty(40_000)
        y.fill_(1)
        dist.all_reduce(y)
        assert bool((y == me.size).all())
    assert stats().world_size == me.size


def test_shared_tensors_come_in_every_shape_and_mode() -> None:
    run_ranks(_shapes, 2)


def _disagree(me: Rank) -> None:
    with pytest.raises(
        RuntimeError, match=r"shared_empty of \[4\].*shared_empty of \[5\]|\[5\].*\[4\]"
    ):
        shared_empty(4 + me.rank)


def test_ranks_that_ask_for_different_shapes_are_told() -> None:
    run_ranks(_disagree, 2)


def _foreign(me: Rank) -> None:
    with pytest.raises(RuntimeError, match="wiiiiide"):
        shared_empty(4)


def test_a_group_of_another_backend_is_refused_in_words() -> None:
    run_ranks(_foreign, 1, backend="gloo")
