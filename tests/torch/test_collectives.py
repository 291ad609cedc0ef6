"""Every collective against what plain torch says, blocking and async, on ranks of
one host, and spread over two and three."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
import torch
import torch.distributed as dist
from torch._C._distributed_c10d import _make_nccl_premul_sum

from tests.kit.data import assert_same, bits, random_of, reduced
from tests.kit.ranks import Rank, run_ranks

SIZES: list[int | str] = [1, 2, 3, "ab", "abca"]
MORE_SIZES: list[int | str] = [5, "aba", "abcab"]
# In float32: nothing, one, small, larger than a small slot, several pieces.
COUNTS = [0, 1, 37, 20_011, 270_001]

all_sizes = pytest.mark.parametrize(
    "size", [*SIZES, *(pytest.param(size, marks=pytest.mark.soak) for size in MORE_SIZES)]
)


def _ways() -> Iterator[tuple[int, bool, int]]:
    """(count, async, salt): both ways, other data each time; the largest is slow and goes once."""
    for i, count in enumerate(COUNTS):
        for later in (False, True) if count < COUNTS[-1] else (True,):
            yield count, later, 2 * i + later


def _finish(work: Any, later: bool) -> None:
    assert (work is not None) == later
    if work is not None:
        work.wait()
    if isinstance(work, dist.Work):  # torch's coalesced functions give a future
        assert work.is_completed()
        assert work.is_success()


def _inputs(me: Rank, count: int, salt: int) -> list[torch.Tensor]:
    return [random_of(r, count, salt=salt) for r in range(me.size)]


def _all_reduce(me: Rank) -> None:
    for count, later, salt in _ways():
        inputs = _inputs(me, count, salt)
        for op in ("SUM", "AVG", "PRODUCT", "MIN", "MAX"):
            x = inputs[me.rank].clone()
            _finish(dist.all_reduce(x, getattr(dist.ReduceOp, op), async_op=later), later)
            assert_same(x, reduced(op, inputs), f"{op} of {count}")
        whole = [random_of(r, count, torch.int32, salt) for r in range(me.size)]
        for op in ("BAND", "BOR", "BXOR"):
            y = whole[me.rank].clone()
            _finish(dist.all_reduce(y, getattr(dist.ReduceOp, op), async_op=later), later)
            assert_same(y, reduced(op, whole), f"{op} of {count}")


@all_sizes
def test_all_reduce_reduces_with_every_operator(size: int | str) -> None:
    run_ranks(_all_reduce, size)


def _premul_sum(me: Rank) -> None:
    for count, later, salt in _ways():
        inputs = _inputs(me, count, salt)
        for factor in (0.3, torch.tensor(0.3)):
            want = reduced("SUM", [t * factor for t in inputs])
            op = _make_nccl_premul_sum(factor)
            x = inputs[me.rank].clone()
            _finish(dist.all_reduce(x, op, async_op=later), later)
            assert_same(x, want, f"all_reduce of {count} times {factor}")
            x = inputs[me.rank].clone()
            _finish(dist.reduce(x, 0, op, async_op=later), later)
            assert_same(x, want if me.rank == 0 else inputs[me.rank], f"reduce of {count}")
            whole = torch.cat(inputs)  # the same on all ranks
            out = torch.empty(count)
            _finish(dist.reduce_scatter_tensor(out, whole, op, async_op=later), later)
            mine = reduced("SUM", [inputs[me.rank] * factor] * me.size)
            assert_same(out, mine, f"reduce_scatter of {count}")
            assert_same(whole, torch.cat(inputs), "the input of reduce_scatter")


@all_sizes
def test_premul_sum_multiplies_by_a_number_or_a_tensor_first(size: int | str) -> None:
    run_ranks(_premul_sum, size)


def _coalesced(me: Rank) -> None:
    shapes = [(3,), (0,), (2, 5), (20_011,), ()]
    for later in (False, True):
        for dtypes in ([torch.float32] * 5, [torch.float32, torch.int64] * 3):
            kinds = list(zip(shapes, dtypes, strict=False))
            every = [
                [random_of(r, s, d, salt) for salt, (s, d) in enumerate(kinds)]
                for r in range(me.size)
            ]
            mine = [t.clone() for t in every[me.rank]]
            if dtypes[0] == dtypes[1]:
                _finish(dist.all_reduce_coalesced(mine, async_op=later), later)
            else:  # torch's function refuses a mixed list, its process groups need not
                dist.group.WORLD.allreduce_coalesced(mine).wait()
            for i, x in enumerate(mine):
                assert_same(x, reduced("SUM", [tensors[i] for tensors in every]), f"tensor {i}")
    # more than is packed together, and with a view that is not contiguous
    every = [[random_of(r, (600, 700), salt=i) for i in range(4)] for r in range(me.size)]
    mine = [t.clone().t() for t in every[me.rank]]
    dist.all_reduce_coalesced(mine, dist.ReduceOp.MAX)
    for i, x in enumerate(mine):
        assert_same(x, reduced("MAX", [tensors[i].t() for tensors in every]), f"large {i}")
    small = [random_of(r, (6, 7)) for r in range(me.size)]
    views = [small[me.rank].clone().t(), small[me.rank].clone()[:, ::2]]
    dist.all_reduce_coalesced(views, _make_nccl_premul_sum(2.0))
    assert_same(views[0], reduced("SUM", [2 * t.t() for t in small]), "transposed")
    assert_same(views[1], reduced("SUM", [2 * t[:, ::2] for t in small]), "every other column")


@all_sizes
def test_all_reduce_coalesced_reduces_every_tensor_of_the_list(size: int | str) -> None:
    run_ranks(_coalesced, size)


def _coalescing_manager(me: Rank) -> None:
    manager = dist.distributed_c10d._coalescing_manager
    every = [[random_of(r, 11 + i, salt=i) for i in range(3)] for r in range(me.size)]
    mine = [t.clone() for t in every[me.rank]]
    with manager():
        for x in mine:
            dist.all_reduce(x)
    gathered = [torch.empty(me.size * t.numel()) for t in every[0]]
    with manager(async_ops=True) as pending:
        for out, x in zip(gathered, every[me.rank], strict=True):
            dist.all_gather_into_tensor(out, x)
    pending.wait()
    parts = [torch.empty(11 + i) for i in range(3)]
    with manager(async_ops=True) as pending:
        for out, whole in zip(parts, gathered, strict=True):
            dist.reduce_scatter_tensor(out, whole)
    pending.wait()
    for i in range(3):
        tensors = [every[r][i] for r in range(me.size)]
        assert_same(mine[i], reduced("SUM", tensors), f"all_reduce {i}")
        assert_same(gathered[i], torch.cat(tensors), f"all_gather {i}")
        assert_same(parts[i], reduced("SUM", [tensors[me.rank]] * me.size), f"reduce_scatter {i}")


@all_sizes
def test_the_coalescing_manager_of_torch_works(size: int | str) -> None:
    run_ranks(_coalescing_manager, size)


def _sparse(me: Rank) -> None:
    def matrix(rank: int, entries: int) -> torch.Tensor:
        generator = torch.Generator().manual_seed(rank)
        where = torch.randint(0, 40, (2, entries), generator=generator)  # some of them twice
        return torch.sparse_coo_tensor(where, random_of(rank, (entries, 3)), (40, 40, 3))

    for entries in ([5, 0, 30, 1, 2], [0] * 5, [9_000] * 5):
        every = [matrix(r, entries[r]) for r in range(me.size)]
        total = reduced("SUM", [t.to_dense() for t in every])
        for later in (False, True):
            x = matrix(me.rank, entries[me.rank])
            _finish(dist.all_reduce(x, async_op=later), later)
            assert x.is_sparse
            torch.testing.assert_close(x.to_dense(), total)
            y = matrix(me.rank, entries[me.rank]).coalesce()
            _finish(dist.all_reduce(y, dist.ReduceOp.AVG, async_op=later), later)
            torch.testing.assert_close(y.to_dense(), total / me.size)


@all_sizes
def test_all_reduce_adds_sparse_tensors(size: int | str) -> None:
    run_ranks(_sparse, size)


def _broadcast(me: Rank) -> None:
    for count, later, salt in _ways():
        inputs = _inputs(me, count, salt)
        for root in range(me.size):
            x = inputs[me.rank].clone()
            _finish(dist.broadcast(x, root, async_op=later), later)
            assert_same(x, inputs[root], f"{count} from {root}")


@all_sizes
def test_broadcast_gives_all_ranks_what_the_root_has(size: int | str) -> None:
    run_ranks(_broadcast, size)


def _reduce(me: Rank) -> None:
    for count, later, salt in _ways():
        inputs = _inputs(me, count, salt)
        for root in range(me.size):
            for op in ("SUM", "AVG", "MAX"):
                x = inputs[me.rank].clone()
                _finish(dist.reduce(x, root, getattr(dist.ReduceOp, op), async_op=later), later)
                want = reduced(op, inputs) if root == me.rank else inputs[me.rank]
                assert_same(x, want, f"{op} of {count} to {root} on {me.rank}")
        view = inputs[me.rank].clone().repeat(2, 1).t()[:, 0]
        dist.reduce(view, me.size - 1)
        last = me.rank == me.size - 1
        assert_same(view, reduced("SUM", inputs) if last else inputs[me.rank], "a column")


@all_sizes
def test_reduce_changes_the_tensor_of_the_root_only(size: int | str) -> None:
    run_ranks(_reduce, size)


def _all_gather(me: Rank) -> None:
    for count, later, salt in _ways():
        inputs = _inputs(me, count, salt)
        mine = inputs[me.rank].clone()
        outs = [torch.empty(count) for _ in range(me.size)]
        _finish(dist.all_gather(outs, mine, async_op=later), later)
        for r, out in enumerate(outs):
            assert_same(out, inputs[r], f"list: {count} of {r}")
        for gather in (dist.all_gather_into_tensor, dist.all_gather_single):
            flat = torch.empty(me.size * count)
            _finish(gather(flat, mine, async_op=later), later)
            assert_same(flat, torch.cat(inputs), f"into one: {count}")
            stacked = torch.empty(me.size, count)
            _finish(gather(stacked, mine, async_op=later), later)
            assert_same(stacked, torch.stack(inputs), f"stacked: {count}")
        whole = torch.zeros(me.size * count)  # in place: the input is its own part of the output
        part = whole[me.rank * count : (me.rank + 1) * count]
        part.copy_(mine)
        _finish(dist.all_gather_into_tensor(whole, part, async_op=later), later)
        assert_same(whole, torch.cat(inputs), f"in place: {count}")
        assert_same(mine, inputs[me.rank], "the input")


@all_sizes
def test_all_gather_collects_the_tensors_of_all_ranks(size: int | str) -> None:
    run_ranks(_all_gather, size)


def _all_gather_coalesced(me: Rank) -> None:
    group = dist.group.WORLD
    for count, later, salt in _ways():
        first = _inputs(me, count, salt)
        second = [random_of(r, (2, 3), salt=salt + 1) for r in range(me.size)]
        mine = [first[me.rank].clone(), second[me.rank].clone()]
        lists = [[torch.empty(count), torch.empty(2, 3)] for _ in range(me.size)]
        _finish(dist.all_gather_coalesced(lists, mine, async_op=later), later)
        for r, (a, b) in enumerate(lists):
            assert_same(a, first[r], f"{count} of {r}")
            assert_same(b, second[r], f"second of {r}")
        for method in (group.all_gather_single_coalesced, group.allgather_into_tensor_coalesced):
            outs = [torch.empty(me.size * count), torch.empty(2 * me.size, 3)]
            method(outs, mine).wait()
            assert_same(outs[0], torch.cat(first), f"into one: {count}")
            assert_same(outs[1], torch.cat(second), "into one: second")


@all_sizes
def test_all_gather_coalesced_collects_every_tensor_of_the_list(size: int | str) -> None:
    run_ranks(_all_gather_coalesced, size)


def _reduce_scatter(me: Rank) -> None:
    for count, later, salt in _ways():
        # inputs[r][k] is what rank r has for rank k
        inputs = [
            [random_of(r * me.size + k, count, salt=salt) for k in range(me.size)]
            for r in range(me.size)
        ]
        mine = [t.clone() for t in inputs[me.rank]]
        for name in ("SUM", "AVG", "PRODUCT", "MIN", "MAX"):
            op = getattr(dist.ReduceOp, name)
            want = reduced(name, [inputs[r][me.rank] for r in range(me.size)])
            out = torch.empty(count)
            _finish(dist.reduce_scatter(out, mine, op, async_op=later), later)
            assert_same(out, want, f"list: {name} of {count}")
            for scatter in (dist.reduce_scatter_tensor, dist.reduce_scatter_single):
                out = torch.empty(count)
                _finish(scatter(out, torch.cat(mine), op, async_op=later), later)
                assert_same(out, want, f"one: {name} of {count}")
            whole = torch.cat(mine)  # in place: the output is a part of the input
            part = whole[me.rank * count : (me.rank + 1) * count]
            _finish(dist.reduce_scatter_tensor(part, whole, op, async_op=later), later)
            assert_same(part, want, f"in place: {name} of {count}")
        for x, before in zip(mine, inputs[me.rank], strict=True):
            assert_same(x, before, "the input")


@all_sizes
def test_reduce_scatter_gives_each_rank_its_part_of_the_reduction(size: int | str) -> None:
    run_ranks(_reduce_scatter, size)


def _reduce_scatter_coalesced(me: Rank) -> None:
    group = dist.group.WORLD
    for count in COUNTS:
        wholes = [[random_of(r, me.size * n, salt=n) for n in (count, 5)] for r in range(me.size)]
        for method in (
            group.reduce_scatter_single_coalesced,
            group.reduce_scatter_tensor_coalesced,
        ):
            outs = [torch.empty(count), torch.empty(5)]
            method(outs, wholes[me.rank]).wait()
            for i, out in enumerate(outs):
                part = [w[i].chunk(me.size)[me.rank] if w[i].numel() else w[i] for w in wholes]
                assert_same(out, reduced("SUM", part), f"tensor {i} of {count}")


@all_sizes
def test_reduce_scatter_coalesced_reduces_every_tensor_of_the_list(size: int | str) -> None:
    run_ranks(_reduce_scatter_coalesced, size)


def _all_to_all(me: Rank) -> None:
    for count, later, salt in _ways():
        for uneven in (False, True):
            # how many elements rank r has for rank k: some pairs have none
            table = [
                [count * ((r + 2 * k) % 3 if uneven else 1) for k in range(me.size)]
                for r in range(me.size)
            ]
            every = [random_of(r, sum(table[r]), salt=salt).split(table[r]) for r in range(me.size)]
            want = [every[r][me.rank] for r in range(me.size)]
            receive = [table[r][me.rank] for r in range(me.size)]
            outs = [torch.empty(n) for n in receive]
            _finish(dist.all_to_all(outs, list(every[me.rank]), async_op=later), later)
            for r, out in enumerate(outs):
                assert_same(out, want[r], f"list: {count} of {r}")
            flat = torch.empty(sum(receive))
            mine = torch.cat(every[me.rank])
            sent = table[me.rank]
            _finish(dist.all_to_all_single(flat, mine, receive, sent, async_op=later), later)
            assert_same(flat, torch.cat(want), f"single: {count}")
            if not uneven:
                flat = torch.empty_like(flat)
                _finish(dist.all_to_all_single(flat, mine, async_op=later), later)
                assert_same(flat, torch.cat(want), f"without splits: {count}")
    rows = [[(r + k) % 2 for k in range(me.size)] for r in range(me.size)]
    every = [random_of(r, (sum(rows[r]), 3, 2)).split(rows[r]) for r in range(me.size)]
    out = torch.empty(sum(rows[r][me.rank] for r in range(me.size)), 3, 2)
    dist.all_to_all_single(
        out, torch.cat(every[me.rank]), [row[me.rank] for row in rows], rows[me.rank]
    )
    assert_same(out, torch.cat([every[r][me.rank] for r in range(me.size)]), "rows")


@all_sizes
def test_all_to_all_exchanges_even_and_uneven_parts(size: int | str) -> None:
    run_ranks(_all_to_all, size)


def _gather_and_scatter(me: Rank) -> None:
    for count, later, salt in _ways():
        inputs = _inputs(me, count, salt)
        for root in range(me.size):
            is_root = me.rank == root
            outs = [torch.empty(count) for _ in range(me.size)] if is_root else None
            _finish(dist.gather(inputs[me.rank].clone(), outs, root, async_op=later), later)
            for r, out in enumerate(outs or []):
                assert_same(out, inputs[r], f"gather: {count} of {r} to {root}")
            mine = torch.empty(count)
            parts = [t.clone() for t in inputs] if is_root else None
            _finish(dist.scatter(mine, parts, root, async_op=later), later)
            assert_same(mine, inputs[me.rank], f"scatter: {count} from {root}")


@all_sizes
def test_gather_and_scatter_move_between_the_root_and_all(size: int | str) -> None:
    run_ranks(_gather_and_scatter, size)


def _barrier(me: Rank) -> None:
    counter = dist.FileStore(f"{me.folder}/counter", me.size)
    for i in range(20):
        counter.add(f"before {i}", 1)
        _finish(dist.barrier(async_op=bool(i % 2)), bool(i % 2))
        assert counter.add(f"before {i}", 0) == me.size


@all_sizes
def test_barrier_ends_when_all_have_entered(size: int | str) -> None:
    run_ranks(_barrier, size)


BOTH_NAMES = [
    ("all_gather_single", "_allgather_base"),
    ("all_gather_single_coalesced", "allgather_into_tensor_coalesced"),
    ("reduce_scatter_single", "_reduce_scatter_base"),
    ("reduce_scatter_single_coalesced", "reduce_scatter_tensor_coalesced"),
    ("all_to_all_single", "alltoall_base"),
]


def _both_names(me: Rank) -> None:
    group = dist.group.WORLD
    for pair in BOTH_NAMES:
        results = []
        for name in pair:
            method = getattr(group, name)
            whole = torch.arange(4.0 * me.size) + me.rank
            if "gather" in name:
                out, into = torch.empty(4 * me.size), whole[:4].clone()
            elif "scatter" in name:
                out, into = torch.empty(4), whole
            else:
                out, into = torch.empty(4 * me.size), whole
            if name.endswith("coalesced"):
                method([out], [into]).wait()
            elif "to" in name:
                method(out, into, [], []).wait()
            else:
                method(out, into).wait()
            results.append(bits(out))
        assert results[0] == results[1], pair
    # every method of torch's ProcessGroup that moves data is ours, not the base class's
    moves = ("gather", "reduce", "scatter", "all_to_all", "alltoall", "broadcast", "send", "recv")
    for name in dir(dist.ProcessGroup):
        if not name.startswith("__") and any(word in name for word in moves):
            assert name in type(group).__dict__, f"{name} is not implemented"


def test_both_names_of_every_method_work() -> None:
    run_ranks(_both_names, 2)


def _results_of_works(me: Rank) -> None:
    x = torch.full((5,), float(me.rank))
    work = dist.all_reduce(x, async_op=True)
    future = work.get_future()
    assert future.wait()[0] is not None
    assert_same(future.value()[0], torch.full((5,), float(sum(range(me.size)))), "the future")
    assert work.exception() is None
    assert_same(work.result()[0], x, "the result")


def test_a_work_gives_its_tensors_as_result_and_future() -> None:
    run_ranks(_results_of_works, 2)


def _csr() -> torch.Tensor:
    # By its parts: torch warns of to_sparse_csr().
    return torch.sparse_csr_tensor([0, 1, 2], [0, 1], [1.0, 1.0], size=(2, 2))


def _wrong_calls(me: Rank) -> None:
    calls = {
        "2 tensors": lambda: dist.all_gather([torch.empty(3)], torch.empty(3)),
        "one size": lambda: dist.all_gather([torch.empty(3), torch.empty(4)], torch.empty(3)),
        "6 elements": lambda: dist.all_gather_into_tensor(torch.empty(5), torch.empty(3)),
        "elements of float32": lambda: dist.reduce_scatter_tensor(torch.empty(5), torch.empty(3)),
        "add up to": lambda: dist.all_to_all_single(torch.empty(4), torch.empty(4), [1, 1], [2, 2]),
        "divides by 2": lambda: dist.all_to_all_single(torch.empty(3), torch.empty(3)),
        "no rank 7": lambda: dist.group.WORLD.recv([torch.empty(1)], 7, 0),
        "to_dense": lambda: dist.broadcast(torch.eye(3).to_sparse(), 0),
        "to_dense|layout": lambda: dist.all_reduce(_csr()),
        "SUM and AVG only": lambda: dist.all_reduce(torch.eye(3).to_sparse(), dist.ReduceOp.MAX),
    }
    for sentence, call in calls.items():
        with pytest.raises((RuntimeError, ValueError), match=sentence):
            call()
    x = torch.ones(3)  # none of this has hurt the group
    dist.all_reduce(x)
    assert x.tolist() == [2.0] * 3


def test_a_call_that_cannot_be_is_refused_in_words_and_leaves_the_group_usable() -> None:
    run_ranks(_wrong_calls, 2)
