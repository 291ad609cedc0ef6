"""Collectives to be tried over several hosts: what each rank calls, and what must come out.

A `build_…` draws size, dtype, reduction and root of one collective, makes the ranks' data, and says
what is right: to the bit, worked out in plain torch. Slots are made tiny (`small_pieces`), so that
a thousand elements are as many pieces as a gigabyte would be.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from types import ModuleType

import pytest
import torch

from tests.kit import data
from tests.kit.wide_world import Begin, Called, Circle, World
from wiiiiided.backend.codec import chooser
from wiiiiided.backend.collectives import dispatch, pieces
from wiiiiided.backend.collectives.local import all_reduce as local_all_reduce
from wiiiiided.backend.collectives.local import relay
from wiiiiided.backend.collectives.wide import (
    all_gather,
    all_reduce,
    broadcast,
    exchange_plan,
    pairwise,
    reduce_scatter,
    small_all_reduce,
)
from wiiiiided.backend.engine import host_team, remote_members
from wiiiiided.backend.engine.group import Group
from wiiiiided.backend.engine.operation import Plan
from wiiiiided.backend.net.virtual_network import LineQuality
from wiiiiided.backend.shm import slots
from wiiiiided.backend.shm.board import CALL_BYTES, CallSignature
from wiiiiided.backend.shm.kernels import carrier, dtype_name, reduction
from wiiiiided.errors import UsageError

SMALL = 512  # bytes that go along with the announcement; 64 KiB outside of tests
PIECE = 1024  # bytes of a large slot; 1 MiB outside of tests

# Where the ranks are: even, uneven, and hosts whose ranks do not lie together.
PLACEMENTS = [
    "ab",
    "abc",
    "abcd",
    "aab",
    "abb",
    "aabb",
    "abab",
    "abcb",
    "aabbb",
    "abcacb",
    "aaabbc",
]

USES_SMALL: list[ModuleType] = [
    host_team,
    remote_members,
    relay,
    local_all_reduce,
    all_reduce,
    all_gather,
    small_all_reduce,
    broadcast,
    reduce_scatter,
]


def small_pieces(monkeypatch: pytest.MonkeyPatch) -> None:
    """Few elements make many pieces."""
    for module in USES_SMALL:
        monkeypatch.setattr(module, "SMALL_BYTES", SMALL)
    monkeypatch.setattr(remote_members, "MAX_OPEN", CALL_BYTES + remote_members.WIDEST * SMALL)
    monkeypatch.setattr(slots, "_ACROSS", (slots._ACROSS[0], PIECE))
    monkeypatch.setattr(slots, "_PAIR", (slots._PAIR[0], PIECE))
    monkeypatch.setattr(slots, "_MANY", (slots._MANY[0], PIECE))
    monkeypatch.setattr(pairwise, "PIECE_BYTES", PIECE)
    monkeypatch.setattr(chooser, "LEAST_PIECE", 64)


@contextmanager
def world_of(
    letters: str, seed: int, align: int = 16, codec: str = "none", line: LineQuality | None = None
) -> Iterator[World]:
    """A world whose pieces are cut into shares of this many elements; outside of tests it is 64."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(pieces, "ALIGN", align)
        exchange_plan.exchange.cache_clear()
        with World(letters, seed, codec, line) as world:
            yield world
    exchange_plan.exchange.cache_clear()


# -- what is called, and what must come out ----


@dataclass
class Exchange:
    """A collective of all ranks: what each calls, and what must be true afterwards."""

    name: str
    begins: list[Begin]
    check: Callable[[], None]
    results: list[torch.Tensor]  # what the ranks have at the end, in the order of ranks


Build = Callable[[Circle, random.Random], Exchange]


def some_dtype(chance: random.Random) -> torch.dtype:
    return chance.choice(data.DTYPES)


def some_size(chance: random.Random, dtype: torch.dtype) -> int:
    """Nothing, one, odd, about the sizes at which something changes, and many pieces."""
    small, piece = SMALL // dtype.itemsize, PIECE // dtype.itemsize
    around = chance.choice([small, piece, 2 * piece, 8 * piece, 11 * piece])
    odd, some = chance.randrange(1, small, 2), chance.randint(small, 3 * piece)
    many = chance.randint(1, 20) * piece + chance.randint(0, 9)
    return chance.choice([0, 1, odd, around, around + chance.randint(-3, 3), some, many])


def inputs(
    circle: Circle, chance: random.Random, size: int, dtype: torch.dtype
) -> list[torch.Tensor]:
    salt = chance.getrandbits(20)
    return [data.random_of(rank, size, dtype, salt) for rank in range(circle.size)]


def described(name: str, dtype: torch.dtype, size: int, *more: object) -> CallSignature:
    return CallSignature.of(f"{name} of {size} elements of {dtype_name(dtype)} {more}")


def reduced(circle: Circle, op: str, tensors: Sequence[torch.Tensor]) -> torch.Tensor:
    """As two levels give it, in plain torch."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(data, "hosts", circle.letters)
        return data.reduced(op, tensors)


def some_reduction(chance: random.Random, dtype: torch.dtype, ranks: int) -> str:
    ops = ["SUM", "AVG", "PRODUCT", "MIN", "MAX", "BAND", "BOR", "BXOR"]
    if dtype.is_complex:
        ops.remove("PRODUCT")  # torch, with which we compare, rounds it in another way than numpy
    while True:
        op = chance.choice(ops)
        try:
            reduction(op, dtype, ranks)
        except UsageError:
            continue
        return op


def same_everywhere(got: Sequence[torch.Tensor], want: torch.Tensor, name: str) -> None:
    for rank, tensor in enumerate(got):
        data.assert_same(tensor, want, f"{name}, rank {rank}")


def build_all_reduce(circle: Circle, chance: random.Random) -> Exchange:
    dtype = some_dtype(chance)
    op = some_reduction(chance, dtype, circle.size)
    xs = inputs(circle, chance, some_size(chance, dtype), dtype)
    want = reduced(circle, op, xs)
    call, kernel = described("all_reduce", dtype, len(want), op), reduction(op, dtype, circle.size)

    def begin(group: Group) -> Plan:
        return dispatch.all_reduce(group, call, carrier(xs[group.rank]), kernel)

    name = f"all_reduce({op}) of {len(want)} {dtype}"
    return Exchange(name, [begin] * circle.size, lambda: same_everywhere(xs, want, name), xs)


def build_ready_all_reduce(circle: Circle, chance: random.Random) -> Exchange:
    """A small one, as the process group calls it: made ready, then called."""
    dtype = some_dtype(chance)
    op = some_reduction(chance, dtype, circle.size)
    xs = inputs(circle, chance, chance.randint(0, SMALL // dtype.itemsize), dtype)
    want = reduced(circle, op, xs)
    call, kernel = described("ready", dtype, len(want), op), reduction(op, dtype, circle.size)

    def begin(group: Group) -> tuple[Plan, object]:
        x = carrier(xs[group.rank])
        ready = dispatch.ready_all_reduce(group, call, x, kernel)
        return ready.plan(x), dispatch.batch_item(ready, x)

    name = f"ready all_reduce({op}) of {len(want)} {dtype}"
    return Exchange(name, [begin] * circle.size, lambda: same_everywhere(xs, want, name), xs)


def build_reduce(circle: Circle, chance: random.Random) -> Exchange:
    dtype, root = some_dtype(chance), chance.randrange(circle.size)
    op = some_reduction(chance, dtype, circle.size)
    xs = inputs(circle, chance, some_size(chance, dtype), dtype)
    before, want = [x.clone() for x in xs], reduced(circle, op, xs)
    call, kernel = described("reduce", dtype, len(want), op), reduction(op, dtype, circle.size)

    def begin(group: Group) -> Plan:
        return dispatch.all_reduce(group, call, carrier(xs[group.rank]), kernel, root=root)

    name = f"reduce({op}) to {root} of {len(want)} {dtype}"

    def check() -> None:
        for rank, x in enumerate(xs):
            data.assert_same(x, want if rank == root else before[rank], f"{name}, rank {rank}")

    return Exchange(name, [begin] * circle.size, check, xs)


def build_broadcast(circle: Circle, chance: random.Random) -> Exchange:
    dtype, root = some_dtype(chance), chance.randrange(circle.size)
    xs = inputs(circle, chance, some_size(chance, dtype), dtype)
    want = xs[root].clone()
    call = described("broadcast", dtype, len(want), root)

    def begin(group: Group) -> Plan:
        return dispatch.broadcast(group, call, carrier(xs[group.rank]), root)

    name = f"broadcast from {root} of {len(want)} {dtype}"
    return Exchange(name, [begin] * circle.size, lambda: same_everywhere(xs, want, name), xs)


def build_all_gather(circle: Circle, chance: random.Random) -> Exchange:
    dtype = some_dtype(chance)
    xs = inputs(circle, chance, some_size(chance, dtype), dtype)
    want, call = torch.cat(xs), described("all_gather", dtype, len(xs[0]))
    got = [torch.zeros_like(want) for _ in xs]
    if chance.random() < 0.3:  # as FSDP does: the input is its part of the output
        size = len(xs[0])
        for rank in range(circle.size):
            got[rank][rank * size : (rank + 1) * size] = xs[rank]
            xs[rank] = got[rank][rank * size : (rank + 1) * size]

    def begin(group: Group) -> Plan:
        rows = [carrier(row) for row in got[group.rank].chunk(circle.size)] if len(want) else []
        outputs = rows or [carrier(xs[0])] * circle.size
        return dispatch.all_gather(group, call, carrier(xs[group.rank]), outputs)

    name = f"all_gather of {len(xs[0])} {dtype}"
    return Exchange(name, [begin] * circle.size, lambda: same_everywhere(got, want, name), got)


def build_gather(circle: Circle, chance: random.Random) -> Exchange:
    dtype, root = some_dtype(chance), chance.randrange(circle.size)
    xs = inputs(circle, chance, some_size(chance, dtype), dtype)
    call, got = described("gather", dtype, len(xs[0]), root), [torch.zeros_like(x) for x in xs]

    def begin(group: Group) -> Plan:
        outputs = [carrier(x) for x in got] if group.rank == root else []
        return dispatch.gather(group, call, carrier(xs[group.rank]), outputs, root)

    name = f"gather to {root} of {len(xs[0])} {dtype}"

    def check() -> None:
        for rank, (x, there) in enumerate(zip(xs, got, strict=True)):
            data.assert_same(there, x, f"{name}, from rank {rank}")

    return Exchange(name, [begin] * circle.size, check, got)


def build_scatter(circle: Circle, chance: random.Random) -> Exchange:
    dtype, root = some_dtype(chance), chance.randrange(circle.size)
    xs = inputs(circle, chance, some_size(chance, dtype), dtype)
    call, got = described("scatter", dtype, len(xs[0]), root), [torch.zeros_like(x) for x in xs]

    def begin(group: Group) -> Plan:
        arrays = [carrier(x) for x in xs] if group.rank == root else []
        return dispatch.scatter(group, call, arrays, carrier(got[group.rank]), root)

    name = f"scatter from {root} of {len(xs[0])} {dtype}"

    def check() -> None:
        for rank, (x, there) in enumerate(zip(xs, got, strict=True)):
            data.assert_same(there, x, f"{name}, to rank {rank}")

    return Exchange(name, [begin] * circle.size, check, got)


def build_reduce_scatter(circle: Circle, chance: random.Random) -> Exchange:
    dtype = some_dtype(chance)
    op = some_reduction(chance, dtype, circle.size)
    size, ranks = some_size(chance, dtype) // 2, circle.size
    xs = inputs(circle, chance, size * ranks, dtype)
    want = reduced(circle, op, xs)
    got = [torch.zeros(size, dtype=dtype) for _ in xs]
    inside = chance.random() < 0.3  # the output is a part of the input
    if inside:
        got = [x[rank * size : (rank + 1) * size] for rank, x in enumerate(xs)]
    call, kernel = described("reduce_scatter", dtype, size, op), reduction(op, dtype, ranks)

    def begin(group: Group) -> Plan:
        whole = xs[group.rank]
        arrays = [carrier(whole[r * size : (r + 1) * size]) for r in range(ranks)]
        return dispatch.reduce_scatter(
            group, call, arrays, carrier(got[group.rank]), kernel, carrier(whole)
        )

    name = f"reduce_scatter({op}) of {size} {dtype}{' in place' if inside else ''}"

    def check() -> None:
        for rank, there in enumerate(got):
            part = want[rank * size : (rank + 1) * size]
            data.assert_same(there, part, f"{name}, rank {rank}")

    return Exchange(name, [begin] * ranks, check, got)


def build_all_to_all(circle: Circle, chance: random.Random) -> Exchange:
    dtype, ranks = some_dtype(chance), circle.size
    counts = [[some_size(chance, dtype) // 3 for _ in range(ranks)] for _ in range(ranks)]
    if chance.random() < 0.3:
        counts = [[counts[0][0]] * ranks] * ranks
    salt = chance.getrandbits(20)
    xs = [
        [data.random_of(r * ranks + q, counts[r][q], dtype, salt) for q in range(ranks)]
        for r in range(ranks)
    ]
    got = [[torch.zeros_like(xs[q][r]) for q in range(ranks)] for r in range(ranks)]
    call = CallSignature.of(f"all_to_all of {dtype_name(dtype)}")

    def begin(group: Group) -> Plan:
        me = group.rank
        return dispatch.all_to_all(
            group, call, list(map(carrier, xs[me])), list(map(carrier, got[me]))
        )

    name = f"all_to_all of {dtype}"

    def check() -> None:
        for r in range(ranks):
            for q in range(ranks):
                data.assert_same(got[r][q], xs[q][r], f"{name} of {counts}, from {q} to {r}")

    return Exchange(name, [begin] * ranks, check, [torch.cat(row) for row in got])


def build_barrier(circle: Circle, chance: random.Random) -> Exchange:
    call = CallSignature.of("barrier")
    return Exchange(
        "barrier", [lambda g: dispatch.barrier(g, call)] * circle.size, lambda: None, []
    )


def build_monitored_barrier(circle: Circle, chance: random.Random) -> Exchange:
    begins: list[Begin] = [dispatch.monitored_barrier] * circle.size
    return Exchange("monitored_barrier", begins, lambda: None, [])


BUILDERS: list[Build] = [
    build_all_reduce,
    build_ready_all_reduce,
    build_reduce,
    build_broadcast,
    build_all_gather,
    build_gather,
    build_scatter,
    build_reduce_scatter,
    build_all_to_all,
    build_barrier,
    build_monitored_barrier,
]


Work = list[tuple[Exchange, Called]]


def begin_in(world: World, circle: Circle, exchange: Exchange) -> tuple[Exchange, Called]:
    return exchange, world.call(circle, exchange.name, exchange.begins)


def check(world: World, work: Work) -> None:
    """Every result is right."""
    for exchange, called in work:
        wrong = [error for error in called.errors if error is not None]
        assert not wrong, f"seed {world.seed}: {exchange.name}: {wrong[0]!r}"
        exchange.check()


def check_nothing_left(world: World) -> None:
    """All that was sent had a receiver, and nothing on its way was held up by anything."""
    world.drain()
    for rank in world.ranks:
        assert rank.mesh.homeless == 0
        assert all(len(link.data) == 0 for link in rank.mesh.links.values())
        assert all(link.data.paused is None for link in rank.mesh.links.values())
        for group in rank.groups.values():
            if group.wide is not None:
                assert group.wide._opens == {}
                assert group.wide._places == {}


def some_circles(world: World, chance: random.Random) -> list[Circle]:
    """Groups of all and of some, their ranks in any order."""
    everyone = list(range(len(world.ranks)))
    circles = [world.circle()]
    for _ in range(chance.randint(1, 2)):
        members = chance.sample(everyone, chance.randint(2, len(everyone)))
        circles.append(world.circle(members))
    return circles
