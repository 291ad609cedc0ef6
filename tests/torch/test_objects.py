"""Values with tensors between ranks: what arrives, what is refused, and that all stay in step."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
import torch.distributed as dist

from tests.kit.data import random_of
from tests.kit.ranks import Rank, run_ranks
from wiiiiided.errors import HostError, UsageError
from wiiiiided.torch import broadcast_object, recv_object, send_object
from wiiiiided.torch.objects import RUN_BYTES, VERDICT_TAG

BACKENDS = ["wiiiiide", "gloo"]


def values() -> list[Any]:
    """The same on every rank."""
    sizes = [0, 1, 100, RUN_BYTES - 1, RUN_BYTES, RUN_BYTES + 1, 5, 6, 3_000_000, 7, RUN_BYTES // 2]
    layers = {f"layer.{i}": random_of(i, 50) for i in range(300)}
    return [
        None,
        {"step": 3, "text": "ü\ud800", "none": {}},
        [random_of(i, size, torch.uint8) for i, size in enumerate(sizes)],
        [layers, torch.ones(3, requires_grad=True), random_of(1, [30, 40]).t()],
        (b"x" * 1_000_000, np.arange(1000).reshape(10, 100), np.float32(2.5)),
    ]


def assert_alike(got: Any, want: Any) -> None:
    assert type(got) is type(want)
    if isinstance(want, torch.Tensor):
        assert (got.dtype, got.stride()) == (want.dtype, want.stride())
        assert got.requires_grad == want.requires_grad
        assert torch.equal(got, want)
    elif isinstance(want, dict):
        assert list(got) == list(want)
        assert_alike(list(got.values()), list(want.values()))
    elif isinstance(want, list | tuple):
        for one, other in zip(got, want, strict=True):
            assert_alike(one, other)
    else:
        assert np.array_equal(got, want) if isinstance(want, np.ndarray) else got == want


def _both_ways(me: Rank) -> None:
    other = 1 - me.rank
    for tag, value in enumerate(values()):
        if me.rank == 0:
            send_object(value, other, tag=tag)
            assert_alike(recv_object(other, tag=tag), value)
        else:
            assert_alike(recv_object(other, tag=tag), value)
            send_object(value, other, tag=tag)


@pytest.mark.parametrize("backend", BACKENDS)
def test_a_sent_value_arrives_as_it_was(backend: str) -> None:
    run_ranks(_both_ways, 2, backend=backend)


def _in_a_crowd(me: Rank) -> None:
    # Plain messages of the same tag are under way in the other direction: they stay apart.
    if me.rank == 0:
        send_object({"w": torch.ones(5000)}, 1)
        for number in range(3):
            got = torch.zeros(2)
            dist.recv(got, 1)
            assert got.tolist() == [number, number]
    else:
        works = [dist.isend(torch.full((2,), float(i)), 0) for i in range(3)]
        assert recv_object(0)["w"].sum() == 5000
        for work in works:
            work.wait()


@pytest.mark.parametrize("backend", BACKENDS)
def test_a_value_passes_messages_that_go_the_other_way(backend: str) -> None:
    run_ranks(_in_a_crowd, 2, backend=backend)


def _everywhere(me: Rank) -> None:
    for src in range(me.size):
        for value in values():
            mine = value if me.rank == src else "ignored"
            got = broadcast_object(mine, src)
            assert_alike(got, value)
            assert me.rank != src or got is value


@pytest.mark.parametrize("backend", BACKENDS)
def test_a_broadcast_value_arrives_everywhere(backend: str) -> None:
    run_ranks(_everywhere, 3, backend=backend)


def _in_a_subgroup(me: Rank) -> None:
    pair = dist.new_group([0, 2])
    if me.rank == 1:
        for call in (lambda: send_object(1, 0, pair), lambda: broadcast_object(1, 0, pair)):
            with pytest.raises(UsageError, match="rank 1 is not a member"):
                call()
        return
    assert broadcast_object({"from": me.rank}, 2, pair) == {"from": 2}
    if me.rank == 2:
        send_object(torch.ones(9), 0, pair)
    else:
        assert torch.equal(recv_object(2, pair), torch.ones(9))


def test_ranks_are_global_in_a_subgroup_too() -> None:
    run_ranks(_in_a_subgroup, 3)


def _in_step(me: Rank) -> None:
    """Nothing of a refused value is left in the way of the next one."""
    if me.rank == 0:
        send_object(torch.arange(100_000), 1)
    elif me.rank == 1:
        assert torch.equal(recv_object(0), torch.arange(100_000))


def _unknown(me: Rank) -> None:
    value = {"model": {"opt": [0, {"fn": print}]}, "w": torch.ones(100_000)}
    path = r'value\["model"\]\["opt"\]\[1\]\["fn"\] is a builtin_function_or_method'
    if me.rank == 0:
        with pytest.raises(UsageError, match=f"^{path}"):
            send_object(value, 1)
    elif me.rank == 1:
        with pytest.raises(UsageError, match=f"rank 0 could not send its object: {path}"):
            recv_object(0)
    _in_step(me)
    with pytest.raises(UsageError, match=path):
        broadcast_object(value, 0)
    assert broadcast_object(me.rank, 0) == 0


@pytest.mark.parametrize("backend", BACKENDS)
def test_what_cannot_travel_is_refused_on_every_side_with_its_path(backend: str) -> None:
    run_ranks(_unknown, 3, backend=backend)


class Custom:
    """Unpickling it would show in the rank's own memory."""

    unpickled = 0

    def __setstate__(self, state: Any) -> None:
        type(self).unpickled += 1

    def __getstate__(self) -> Any:
        return {"some": "state"}


def _one_sided(me: Rank) -> None:
    value = [torch.ones(1_000_000), Custom()]
    if me.rank == 0:
        with pytest.raises(UsageError, match=r"rank 1 refused the object: value\[1\] was pickled"):
            send_object(value, 1, pickle=True)
    elif me.rank == 1:
        with pytest.raises(HostError, match=r"value\[1\] was pickled .* pickle=True too"):
            recv_object(0)
    _in_step(me)
    # All but rank 1 allow it: rank 1 says why not, the others name rank 1.
    problem = r"^value\[1\] was pickled" if me.rank == 1 else r"^rank 1 refused the object: value"
    with pytest.raises((HostError, UsageError), match=problem):
        broadcast_object(value, 0, pickle=me.rank != 1)
    assert Custom.unpickled == 0
    assert broadcast_object(me.rank, 0) == 0


@pytest.mark.parametrize("backend", BACKENDS)
def test_pickle_allowed_on_one_side_is_refused_by_the_other_and_no_rank_waits(backend: str) -> None:
    run_ranks(_one_sided, 3, backend=backend)


def _both_sided(me: Rank) -> None:
    if me.rank == 0:
        send_object([Custom(), {1, 2}], 1, pickle=True)
    else:
        got = recv_object(0, pickle=True)
        assert isinstance(got[0], Custom)
        assert got[1] == {1, 2}
        assert Custom.unpickled == 1
    assert broadcast_object({3} if me.rank else None, 1, pickle=True) == {3}


def test_pickle_allowed_on_both_sides_carries_anything() -> None:
    run_ranks(_both_sided, 2)


def _too_large(me: Rank) -> None:
    limit = "more than 1,000 bytes of tensors"
    if me.rank == 0:
        with pytest.raises(UsageError, match=f"rank 1 refused the object: the value has {limit}"):
            send_object(torch.ones(1_000_000), 1)
    elif me.rank == 1:
        with pytest.raises(HostError, match=limit):
            recv_object(0, limit_bytes=1000)
    _in_step(me)
    with pytest.raises((HostError, UsageError), match=limit):
        broadcast_object(torch.ones(1_000_000), 0, limit_bytes=1000 if me.rank == 2 else 1 << 30)
    assert broadcast_object(me.rank, 0, limit_bytes=0) == 0


def test_more_than_a_receivers_limit_is_refused_on_every_side() -> None:
    run_ranks(_too_large, 3)


def _something_else(me: Rank) -> None:
    for opening in ([1, 2, 3], [0x7774656E_0B1EC701, 1, 1 << 40], [0x7774656E_0B1EC701, 3, 5]):
        if me.rank == 0:
            dist.send(torch.tensor(opening), 1)
        else:
            with pytest.raises(HostError, match="rank 0 sent something else than an object"):
                recv_object(0)


def test_a_message_that_is_no_object_is_told_from_one() -> None:
    run_ranks(_something_else, 2)


def _misused(me: Rank) -> None:
    with pytest.raises(UsageError, match="to itself"):
        send_object(1, me.rank)
    with pytest.raises(UsageError, match="to itself"):
        recv_object(me.rank)
    for tag in (-1, VERDICT_TAG):
        with pytest.raises(UsageError, match=f"tag {tag} is not within"):
            send_object(1, 1 - me.rank, tag=tag)


def test_calls_that_cannot_work_are_refused_before_anything_is_sent() -> None:
    run_ranks(_misused, 2)
