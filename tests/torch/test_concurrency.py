"""Many operations at once: in flight, from threads, in several groups, across their ends."""

from __future__ import annotations

import random
import threading
from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.distributed as dist

from tests.kit.data import assert_same, random_of, reduced
from tests.kit.ranks import Rank, run_ranks

MANY = 2000


def _in_threads(*bodies: Callable[[], None]) -> None:
    """Run all at the same time; raise the first error any of them had."""
    errors: list[BaseException] = []

    def guarded(body: Callable[[], None]) -> None:
        try:
            body()
        except BaseException as error:
            errors.append(error)

    threads = [threading.Thread(target=guarded, args=[body]) for body in bodies]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    if errors:
        raise errors[0]


def _many_in_flight(me: Rank, order: str) -> None:
    tensors = [torch.full((1 + i % 50,), float(i + me.rank)) for i in range(MANY)]
    works = []
    for i, x in enumerate(tensors):
        if i % 3 == 0:
            works.append(dist.broadcast(x, i % me.size, async_op=True))
        else:
            works.append(dist.all_reduce(x, async_op=True))
    waited = list(range(MANY))
    if order == "reverse":
        waited.reverse()
    else:
        random.Random(me.rank).shuffle(waited)
    for i in waited:
        works[i].wait()
        if i % 3 == 0:
            want = float(i + i % me.size)
        else:
            want = float(i * me.size + sum(range(me.size)))
        assert bool((tensors[i] == want).all()), i


@pytest.mark.parametrize("order", ["reverse", "random"])
def test_two_thousand_operations_in_flight_can_be_waited_for_in_any_order(order: str) -> None:
    run_ranks(_many_in_flight, 3, order)


def _many_messages(me: Rank) -> None:
    other = 1 - me.rank
    gots = [torch.empty(1 + i % 30) for i in range(MANY)]
    receives = [dist.irecv(got, other, tag=i % 7) for i, got in enumerate(gots)]
    sends = [dist.isend(torch.full((1 + i % 30,), 1.0 * i), other, tag=i % 7) for i in range(MANY)]
    for work in reversed(sends):
        work.wait()
    for i in random.Random(me.rank).sample(range(MANY), MANY):
        receives[i].wait()
        assert bool((gots[i] == i).all()), i
    dist.barrier()


def test_two_thousand_messages_in_flight_can_be_waited_for_in_any_order() -> None:
    run_ranks(_many_messages, 2)


def _large_in_flight(me: Rank) -> None:
    inputs = [random_of(r, 150_001) for r in range(me.size)]
    xs = [inputs[me.rank].clone() for _ in range(30)]
    works = [dist.all_reduce(x, async_op=True) for x in xs]
    for work in reversed(works):
        work.wait()
    for i, x in enumerate(xs):
        assert_same(x, reduced("SUM", inputs), f"number {i}")


def test_many_large_operations_in_flight_do_not_mix() -> None:
    run_ranks(_large_in_flight, 3)


def _groups(me: Rank, number: int) -> list[Any]:
    return [dist.new_group(list(range(me.size))) for _ in range(number)]


def _threads(me: Rank) -> None:
    def use(group: Any, salt: int) -> Callable[[], None]:
        inputs = [random_of(r, 3_000 * (1 + 19 * salt), salt=salt) for r in range(me.size)]
        want = reduced("SUM", inputs)

        def body() -> None:
            for i in range(100):
                x = inputs[me.rank].clone()
                work = dist.all_reduce(x, group=group, async_op=bool(i % 2))
                if work is not None:
                    work.wait()
                assert_same(x, want, f"group {salt}, round {i}")

        return body

    _in_threads(*[use(group, salt) for salt, group in enumerate(_groups(me, 3))])


def test_threads_with_a_group_each_do_not_disturb_each_other() -> None:
    run_ranks(_threads, 2)


def _opposite(me: Rank) -> None:
    groups = _groups(me, 2)
    for i in range(100):
        order = groups if (me.rank + i) % 2 else groups[::-1]
        xs = {id(group): torch.ones(40_000 if i % 10 == 0 else 10) for group in groups}
        works = [dist.all_reduce(xs[id(g)], group=g, async_op=True) for g in order]
        for work in works:
            work.wait()
        assert all(bool((x == me.size).all()) for x in xs.values())


def test_two_groups_started_in_opposite_order_do_not_deadlock() -> None:
    run_ranks(_opposite, 2)


def _opposite_threads(me: Rank) -> None:
    groups = _groups(me, 2)
    for i in range(30):
        first = threading.Event()

        def one(group: Any, first: threading.Event = first) -> None:
            first.set()
            dist.barrier(group=group)

        def two(group: Any, first: threading.Event = first) -> None:
            first.wait()
            x = torch.ones(5)
            dist.all_reduce(x, group=group)
            assert x.tolist() == [me.size] * 5

        # On one rank the barrier's group is entered first, on the other the all_reduce's.
        barrier, total = groups if i % 2 else groups[::-1]
        if me.rank == 0:
            _in_threads(lambda g=barrier: one(g), lambda g=total: two(g))
        else:
            work = dist.all_reduce(x := torch.ones(5), group=total, async_op=True)
            dist.barrier(group=barrier)
            work.wait()
            assert x.tolist() == [me.size] * 5


def test_two_groups_entered_in_opposite_order_by_threads_do_not_deadlock() -> None:
    run_ranks(_opposite_threads, 2)


def _overlapping(me: Rank) -> None:
    members = [[0, 1], [1, 2], [0, 2], [0, 1, 2], [2]]
    groups = [dist.new_group(ranks) for ranks in members]
    for i in range(30):
        works = []
        for k, (ranks, group) in enumerate(zip(members, groups, strict=True)):
            if me.rank in ranks:
                x = torch.full((30 if i % 5 else 30_000,), float(10**k + me.rank))
                work = dist.all_reduce(x, group=group, async_op=True)
                works.append((work, x, 10**k * len(ranks) + sum(ranks)))
        random.Random(i + me.rank).shuffle(works)
        for work, x, want in works:
            work.wait()
            assert bool((x == want).all())
    if me.rank in (1, 2):  # ranks in a subgroup are its own: message to group rank, root by rank
        x = torch.full((4,), float(me.rank))
        dist.broadcast(x, 2, group=groups[1])
        assert x.tolist() == [2.0] * 4
        if me.rank == 1:
            dist.send(x, group=groups[1], group_dst=1)
        else:
            assert dist.recv(x, group=groups[1], group_src=0) is not None


def test_overlapping_subgroups_work_side_by_side() -> None:
    run_ranks(_overlapping, 3)


def _one_work_many_waiters(me: Rank) -> None:
    for _ in range(50):
        x = torch.ones(3)
        work = dist.all_reduce(x, async_op=True)
        _in_threads(*[lambda work=work: work.wait() for _ in range(4)])
        assert x.tolist() == [me.size] * 3


def test_several_threads_can_wait_for_one_work() -> None:
    run_ranks(_one_work_many_waiters, 2)


def _again(me: Rank) -> None:
    store = dist.FileStore(f"{me.folder}/again", me.size)
    for i in range(20):
        dist.init_process_group("wiiiiide", store=store, rank=me.rank, world_size=me.size)
        x = torch.full((1 + 40_000 * (i % 2),), float(i))
        dist.all_reduce(x)
        assert bool((x == i * me.size).all())
        dist.destroy_process_group()


def test_a_group_can_be_made_again_twenty_times_with_the_same_store() -> None:
    run_ranks(_again, 3, backend=None)


def _again_by_name(me: Rank) -> None:
    for i in range(20):
        group = dist.new_group(list(range(me.size)), group_desc="the same")
        x = torch.ones(4)
        dist.all_reduce(x, group=group)
        assert x.tolist() == [me.size] * 4
        dist.destroy_process_group(group)
        if i % 5 == 0:
            dist.barrier()


def test_subgroups_can_be_made_and_destroyed_twenty_times() -> None:
    run_ranks(_again_by_name, 3)


def _destroyed(me: Rank) -> None:
    group = dist.new_group(list(range(me.size)))
    other = 1 - me.rank
    if me.rank == 0:
        x, got = torch.ones(100), torch.empty(100)
        works = [
            dist.all_reduce(x, group=group, async_op=True),
            dist.all_reduce(x, group=group, async_op=True),
            dist.irecv(got, other, group=group),
            dist.isend(torch.ones(100_000), other, group=group),
        ]
        future = works[0].get_future()
        dist.destroy_process_group(group)
        for work in works:
            with pytest.raises(RuntimeError, match="destroyed"):
                work.wait()
            assert work.is_completed()
            assert not work.is_success()
        with pytest.raises(RuntimeError, match="destroyed"):
            future.wait()
        with pytest.raises(RuntimeError, match="destroyed"):
            group.allreduce([x]).wait()
    x = torch.ones(3)
    dist.all_reduce(x)  # the other groups go on
    assert x.tolist() == [2.0] * 3


def test_work_in_flight_when_its_group_is_destroyed_fails_instead_of_hanging() -> None:
    run_ranks(_destroyed, 2)


def _waiting_while_destroyed(me: Rank) -> None:
    group = dist.new_group(list(range(me.size)))
    if me.rank == 0:
        work = dist.all_reduce(torch.ones(3), group=group, async_op=True)
        entered = threading.Event()
        said: list[str] = []

        def waiter() -> None:
            entered.set()
            try:
                work.wait()
            except RuntimeError as error:
                said.append(str(error))

        thread = threading.Thread(target=waiter)
        thread.start()
        entered.wait()
        dist.destroy_process_group(group)
        thread.join(40)
        assert not thread.is_alive()
        assert "destroyed" in said[0]
    dist.barrier()


def test_a_thread_that_waits_is_woken_when_the_group_is_destroyed() -> None:
    run_ranks(_waiting_while_destroyed, 2)


def _callbacks(me: Rank) -> None:
    for i in range(50):
        x = torch.full((20,), 1.0)
        future = dist.all_reduce(x, async_op=True).get_future()
        doubled = future.then(lambda f: f.value()[0] * 2)
        later = doubled.then(lambda f: f.value() + 1)
        assert later.wait().tolist() == [2.0 * me.size + 1] * 20, i
        again = future.then(lambda f: f.value()[0].sum().item())  # on one that is done
        assert again.wait() == 20.0 * me.size
    works = [dist.all_reduce(torch.ones(2), async_op=True) for _ in range(50)]
    combined = torch.futures.collect_all([work.get_future() for work in works])
    assert all(f.value()[0].tolist() == [me.size] * 2 for f in combined.wait())
    failing = dist.all_reduce(torch.ones(2), async_op=True).get_future().then(lambda f: 1 / 0)
    with pytest.raises(RuntimeError, match="ZeroDivisionError"):
        failing.wait()
    dist.barrier()


def test_callbacks_of_futures_run_with_the_result() -> None:
    run_ranks(_callbacks, 2)


def _callback_that_calls(me: Rank) -> None:
    side = dist.new_group(list(range(me.size)))
    for later in (False, True):
        for _ in range(20):

            def call(future: Any, later: bool = later) -> torch.Tensor:
                total = future.value()[0].clone()
                work = dist.all_reduce(total, group=side, async_op=later)
                if work is not None:
                    work.wait()
                return total

            future = dist.all_reduce(torch.ones(3), async_op=True).get_future().then(call)
            assert future.wait().tolist() == [me.size**2] * 3

    # in the same group: the next operation is started by the end of the one before
    def next_one(future: Any) -> Any:
        return dist.all_reduce(future.value()[0], async_op=True).get_future()

    x = torch.ones(3)
    future = dist.all_reduce(x, async_op=True).get_future()
    future.then(next_one).wait().wait()
    assert x.tolist() == [me.size**2] * 3


def test_a_callback_can_itself_call_a_collective() -> None:
    run_ranks(_callback_that_calls, 3)


def _dropped(me: Rank) -> None:
    for _ in range(200):  # no reference to works or tensors is left
        dist.all_reduce(torch.ones(5_000), async_op=True)
        dist.isend(torch.ones(9), (me.rank + 1) % me.size)
    for _ in range(200):
        got = torch.empty(9)
        dist.recv(got, (me.rank - 1) % me.size)
        assert got.tolist() == [1.0] * 9
    dist.barrier()


def test_works_without_a_reference_are_finished_all_the_same() -> None:
    run_ranks(_dropped, 2)
