"""Sends and receives: order, tags, any source, both directions at once, all sizes."""

from __future__ import annotations

import random

import pytest
import torch
import torch.distributed as dist

from tests.kit.data import assert_same, random_of
from tests.kit.ranks import Rank, run_ranks
from wiiiiided.backend.engine.lane import CHUNK_BYTES, CHUNKS
from wiiiiided.backend.engine.mailbox import EAGER_BYTES, EAGER_WINDOW
from wiiiiided.errors import UsageError

COUNTS = [0, 1, 37, EAGER_BYTES // 4 - 1, EAGER_BYTES // 4, EAGER_BYTES // 4 + 1]
COUNTS += [CHUNK_BYTES // 4 - 1, CHUNK_BYTES // 4, CHUNK_BYTES // 4 + 1]
COUNTS += [CHUNKS * CHUNK_BYTES // 4 + 1, 1_000_003]


def _ring(me: Rank) -> None:
    right, left = (me.rank + 1) % me.size, (me.rank - 1) % me.size
    for salt, count in enumerate(COUNTS):
        mine, want = random_of(me.rank, count, salt=salt), random_of(left, count, salt=salt)
        got = torch.empty(count)
        if me.rank % 2:
            assert dist.recv(got, left) == left
            dist.send(mine, right)
        else:
            work = dist.isend(mine, right)
            assert dist.recv(got, left) == left
            work.wait()
        assert_same(got, want, f"blocking: {count}")
        got = torch.empty(count)
        works = [dist.irecv(got, left, tag=3), dist.isend(mine, right, tag=3)]
        for work in works:
            work.wait()
        assert_same(got, want, f"async: {count}")
        got = torch.empty(count)
        batch = [dist.P2POp(dist.isend, mine, right), dist.P2POp(dist.irecv, got, left)]
        for work in dist.batch_isend_irecv(batch):
            work.wait()
        assert_same(got, want, f"batch: {count}")


@pytest.mark.parametrize("size", [2, 3, 5])
def test_messages_of_every_size_arrive_whole(size: int) -> None:
    run_ranks(_ring, size)


def _any_source(me: Rank) -> None:
    if me.rank:
        for count in (5, 50_000):
            dist.send(random_of(me.rank, count), 0)
            dist.barrier()  # so that the next message of one does not come before another's first
        return
    for count in (5, 50_000):
        seen = set()
        for _ in range(me.size - 1):
            got = torch.empty(count)
            source = dist.recv(got)
            assert_same(got, random_of(source, count), f"from {source}")
            seen.add(source)
        assert seen == set(range(1, me.size))
        dist.barrier()


def test_a_receive_from_any_rank_says_which_sent() -> None:
    run_ranks(_any_source, 4)


def _posted_first(me: Rank) -> None:
    other = 1 - me.rank
    counts = [3, 50_000, 0, 700, 200_001]
    gots = [torch.empty(n) for n in counts]
    works = [dist.irecv(got, other) for got in gots]
    dist.barrier()  # every receive is posted before the first send
    sends = [dist.isend(random_of(me.rank, n, salt=i), other) for i, n in enumerate(counts)]
    for i, (work, got) in enumerate(zip(works, gots, strict=True)):
        work.wait()
        assert_same(got, random_of(other, counts[i], salt=i), f"message {i}")
    for work in sends:
        work.wait()


def test_receives_posted_before_the_sends_are_matched_in_order() -> None:
    run_ranks(_posted_first, 2)


def _tags(me: Rank) -> None:
    shuffled = random.Random(7)
    for count in (11, 30_000):
        tags = list(range(20))
        if me.rank == 0:
            works = [dist.isend(random_of(0, count, salt=tag), 1, tag=tag) for tag in tags]
            for work in works:
                work.wait()
            continue
        shuffled.shuffle(tags)
        for tag in tags:
            got = torch.empty(count)
            dist.recv(got, 0, tag=tag)
            assert_same(got, random_of(0, count, salt=tag), f"tag {tag}")


def _large_tags(me: Rank) -> None:
    x, other = torch.zeros(3), 1 - me.rank
    for tag in (2**31, -(2**31) - 1):
        for call in (dist.send, dist.recv):
            with pytest.raises(UsageError, match="it has 32 bits"):
                call(x, other, tag=tag)
    for tag in (2**31 - 1, -(2**31)):
        dist.send(x, 1, tag=tag) if me.rank == 0 else dist.recv(x, 0, tag=tag)


def test_a_tag_that_does_not_fit_is_refused_and_leaves_nothing_behind() -> None:
    run_ranks(_large_tags, 2)


def test_messages_with_other_tags_can_be_received_in_another_order() -> None:
    run_ranks(_tags, 2)


def _mixed_in_turn(me: Rank) -> None:
    if me.rank == 1:
        dist.barrier()
        dist.send(torch.full((4,), 10.0), 0)
        dist.send(torch.full((4,), 11.0), 0)
        dist.barrier()
    elif me.rank == 2:
        dist.barrier()
        dist.barrier()
        dist.send(torch.full((4,), 20.0), 0)
    else:
        first, anyone, second = torch.empty(4), torch.empty(4), torch.empty(4)
        works = [dist.irecv(first, 1), dist.irecv(anyone), dist.irecv(second, 2)]
        dist.barrier()
        works[0].wait()
        works[1].wait()
        dist.barrier()
        works[2].wait()
        assert [t[0].item() for t in (first, anyone, second)] == [10.0, 11.0, 20.0]
        assert works[1]._source_rank() == 1


def test_a_message_goes_to_the_earliest_receive_that_fits() -> None:
    run_ranks(_mixed_in_turn, 3)


def _both_ways(me: Rank) -> None:
    other = 1 - me.rank
    count = 5_000_000
    got = torch.empty(count)
    sending = dist.isend(torch.full((count,), float(me.rank)), other)
    dist.recv(got, other)
    sending.wait()
    assert bool((got == other).all())


def test_large_messages_in_both_directions_at_once_do_not_block_each_other() -> None:
    run_ranks(_both_ways, 2)


def _unread(me: Rank) -> None:
    # More small messages than the window: the rest is offered, in order, and nothing is lost.
    number, count = 3 * EAGER_WINDOW // 4096, 1024
    if me.rank == 0:
        works = [dist.isend(torch.full((count,), float(i)), 1) for i in range(number)]
        dist.barrier()
        for work in works:
            work.wait()
        return
    dist.barrier()
    got = torch.empty(count)
    for i in range(number):
        dist.recv(got, 0)
        assert got[0] == i
        assert got[-1] == i


def test_a_receiver_that_is_behind_gets_everything_in_order() -> None:
    run_ranks(_unread, 2)


def _to_self(me: Rank) -> None:
    for count in (0, 9, 100_000):
        got = torch.empty(count)
        receiving = dist.irecv(got, me.rank)
        dist.isend(random_of(me.rank, count), me.rank).wait()
        receiving.wait()
        assert_same(got, random_of(me.rank, count), f"receive first: {count}")
        sending = dist.isend(random_of(me.rank, count, salt=1), me.rank)
        dist.irecv(got, me.rank).wait()
        sending.wait()
        assert_same(got, random_of(me.rank, count, salt=1), f"send first: {count}")


@pytest.mark.parametrize("size", [1, 2])
def test_a_rank_can_send_to_itself(size: int) -> None:
    run_ranks(_to_self, size)


def _sender_may_change(me: Rank) -> None:
    for count in (100, 200_000):
        if me.rank == 0:
            x = torch.ones(count)
            dist.send(x, 1)
            x.zero_()
        else:
            got = torch.empty(count)
            dist.recv(got, 0)
            assert bool((got == 1).all())


def test_a_sent_tensor_may_be_changed_when_its_send_is_done() -> None:
    run_ranks(_sender_may_change, 2)


def _between_collectives(me: Rank) -> None:
    other = 1 - me.rank
    for i in range(50):
        got, x = torch.empty(2000 * i), torch.ones(7)
        receiving = dist.irecv(got, other)
        dist.all_reduce(x)
        sending = dist.isend(torch.full((2000 * i,), float(i)), other)
        dist.all_reduce(x)
        receiving.wait()
        sending.wait()
        assert x[0] == 4
        assert bool((got == i).all())


def test_messages_and_collectives_pass_each_other() -> None:
    run_ranks(_between_collectives, 2)


def _sender_leaves(me: Rank) -> None:
    # More than a socket holds at once, and less than the window; the sender leaves when its
    # sends are done, while the receiver is still at the first of them.
    number = EAGER_WINDOW // 2048
    store = dist.FileStore(f"{me.folder}/said", me.size)
    if me.rank == 0:
        works = [dist.isend(torch.full((256,), float(i)), 1) for i in range(number)]
        store.set("begun", "yes")
        for work in works:
            work.wait()
        dist.destroy_process_group()
        store.set("left", "yes")
        return
    store.wait(["begun"])  # nothing is read from the link meanwhile
    for i in range(number):
        got = torch.empty(256)
        dist.recv(got, 0)
        assert got[0] == i
    store.wait(["left"])


def test_messages_whose_sends_are_done_arrive_although_the_sender_has_left() -> None:
    run_ranks(_sender_leaves, 2)
