"""Every collective over several hosts: right to the bit, whatever comes first, and never a hang.

The hosts are pretended (tests.kit.wide_world); groups, plans, links and memory are real. Slots are
made tiny, so that a thousand elements are as many pieces as a gigabyte would be. What a test does
comes from its seed alone.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from types import ModuleType

import numpy as np
import pytest
import torch

from tests.kit import data
from tests.kit.wide_world import Begin, Called, Circle, World
from wiiiiided.codec import choose
from wiiiiided.collectives import pieces, plans
from wiiiiided.collectives.local import all_reduce as local_all_reduce
from wiiiiided.collectives.local import relay
from wiiiiided.collectives.wide import (
    all_gather,
    all_reduce,
    batch,
    broadcast,
    layout,
    meet,
    pairwise,
)
from wiiiiided.collectives.wide import reduce_scatter as reduce_scatter_module
from wiiiiided.engine import chunks, mailbox
from wiiiiided.engine import team as team_module
from wiiiiided.engine import wide as wide_module
from wiiiiided.engine.group import Group
from wiiiiided.engine.operation import Plan
from wiiiiided.errors import GroupFailed, HostError, Mismatch, PeerLate, PeerLost, UsageError
from wiiiiided.net.fake import Line
from wiiiiided.shm import slots, stats
from wiiiiided.shm.board import CALL_BYTES, Call
from wiiiiided.shm.kernels import carrier, dtype_name, reduction
from wiiiiided.shm.slots import Array

SMALL = 512  # bytes that go along with the announcement; 64 KiB outside of tests
PIECE = 1024  # bytes of a large slot; 256 KiB outside of tests

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
    team_module,
    wide_module,
    relay,
    local_all_reduce,
    all_reduce,
    all_gather,
    batch,
    broadcast,
    reduce_scatter_module,
]


@pytest.fixture(autouse=True)
def _small_pieces(monkeypatch: pytest.MonkeyPatch) -> None:
    """Few elements make many pieces."""
    for module in USES_SMALL:
        monkeypatch.setattr(module, "SMALL_BYTES", SMALL)
    monkeypatch.setattr(wide_module, "MAX_OPEN", CALL_BYTES + SMALL)
    monkeypatch.setattr(slots, "_ACROSS", (slots._ACROSS[0], PIECE))
    monkeypatch.setattr(slots, "_PAIR", (slots._PAIR[0], PIECE))
    monkeypatch.setattr(slots, "_MANY", (slots._MANY[0], PIECE))
    monkeypatch.setattr(pairwise, "PIECE_BYTES", PIECE)
    monkeypatch.setattr(choose, "LEAST_PIECE", 64)


@contextmanager
def world_of(
    letters: str, seed: int, align: int = 16, codec: str = "none", line: Line | None = None
) -> Iterator[World]:
    """A world whose pieces are cut into shares of this many elements; outside of tests it is 64."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(pieces, "ALIGN", align)
        layout.exchange.cache_clear()
        with World(letters, seed, codec, line) as world:
            yield world
    layout.exchange.cache_clear()


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


def described(name: str, dtype: torch.dtype, size: int, *more: object) -> Call:
    return Call.of(f"{name} of {size} elements of {dtype_name(dtype)} {more}")


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
        return plans.all_reduce(group, call, carrier(xs[group.rank]), kernel)

    name = f"all_reduce({op}) of {len(want)} {dtype}"
    return Exchange(name, [begin] * circle.size, lambda: same_everywhere(xs, want, name), xs)


def build_ready_all_reduce(circle: Circle, chance: random.Random) -> Exchange:
    """A small one, as the face of the backend calls it: made ready, then called."""
    dtype = some_dtype(chance)
    op = some_reduction(chance, dtype, circle.size)
    xs = inputs(circle, chance, chance.randint(0, SMALL // dtype.itemsize), dtype)
    want = reduced(circle, op, xs)
    call, kernel = described("ready", dtype, len(want), op), reduction(op, dtype, circle.size)

    def begin(group: Group) -> tuple[Plan, object]:
        x = carrier(xs[group.rank])
        ready = plans.ready_all_reduce(group, call, x, kernel)
        return ready.plan(x), plans.errand(ready, x)

    name = f"ready all_reduce({op}) of {len(want)} {dtype}"
    return Exchange(name, [begin] * circle.size, lambda: same_everywhere(xs, want, name), xs)


def build_reduce(circle: Circle, chance: random.Random) -> Exchange:
    dtype, root = some_dtype(chance), chance.randrange(circle.size)
    op = some_reduction(chance, dtype, circle.size)
    xs = inputs(circle, chance, some_size(chance, dtype), dtype)
    before, want = [x.clone() for x in xs], reduced(circle, op, xs)
    call, kernel = described("reduce", dtype, len(want), op), reduction(op, dtype, circle.size)

    def begin(group: Group) -> Plan:
        return plans.all_reduce(group, call, carrier(xs[group.rank]), kernel, root=root)

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
        return plans.broadcast(group, call, carrier(xs[group.rank]), root)

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
        return plans.all_gather(group, call, carrier(xs[group.rank]), outputs)

    name = f"all_gather of {len(xs[0])} {dtype}"
    return Exchange(name, [begin] * circle.size, lambda: same_everywhere(got, want, name), got)


def build_gather(circle: Circle, chance: random.Random) -> Exchange:
    dtype, root = some_dtype(chance), chance.randrange(circle.size)
    xs = inputs(circle, chance, some_size(chance, dtype), dtype)
    call, got = described("gather", dtype, len(xs[0]), root), [torch.zeros_like(x) for x in xs]

    def begin(group: Group) -> Plan:
        outputs = [carrier(x) for x in got] if group.rank == root else []
        return plans.gather(group, call, carrier(xs[group.rank]), outputs, root)

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
        return plans.scatter(group, call, arrays, carrier(got[group.rank]), root)

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
        return plans.reduce_scatter(
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
    call = Call.of(f"all_to_all of {dtype_name(dtype)}")

    def begin(group: Group) -> Plan:
        me = group.rank
        return plans.all_to_all(
            group, call, list(map(carrier, xs[me])), list(map(carrier, got[me]))
        )

    name = f"all_to_all of {dtype}"

    def check() -> None:
        for r in range(ranks):
            for q in range(ranks):
                data.assert_same(got[r][q], xs[q][r], f"{name} of {counts}, from {q} to {r}")

    return Exchange(name, [begin] * ranks, check, [torch.cat(row) for row in got])


def build_barrier(circle: Circle, chance: random.Random) -> Exchange:
    call = Call.of("barrier")
    return Exchange("barrier", [lambda g: plans.barrier(g, call)] * circle.size, lambda: None, [])


def build_monitored_barrier(circle: Circle, chance: random.Random) -> Exchange:
    begins: list[Begin] = [plans.monitored_barrier] * circle.size
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
    """All that was sent was for somebody, and nothing on its way was held up by anything."""
    world.drain()
    for rank in world.ranks:
        assert rank.mesh.homeless == 0
        assert all(len(link.data) == 0 for link in rank.mesh.links.values())
        assert all(link.data.paused is None for link in rank.mesh.links.values())
        for group in rank.groups.values():
            if group.wide is not None:
                assert group.wide._opens == {}
                assert group.wide._places == {}


# -- right results ----


@pytest.mark.parametrize("letters", PLACEMENTS)
@pytest.mark.parametrize("build", BUILDERS, ids=lambda build: build.__name__.removeprefix("build_"))
def test_a_collective_is_right_wherever_the_ranks_are(build: Build, letters: str) -> None:
    for seed in range(2):
        chance = random.Random(f"{build.__name__} {letters} {seed}")
        codec, align = chance.choice(["none", "lz4"]), chance.choice([16, 64])
        with world_of(letters, seed, align, codec) as world:
            circle = world.circle()
            work = [begin_in(world, circle, build(circle, chance))]
            world.run()
            check(world, work)
            check_nothing_left(world)


def some_circles(world: World, chance: random.Random) -> list[Circle]:
    """Groups of all and of some, their ranks in any order."""
    everyone = list(range(len(world.ranks)))
    circles = [world.circle()]
    for _ in range(chance.randint(1, 2)):
        members = chance.sample(everyone, chance.randint(2, len(everyone)))
        circles.append(world.circle(members))
    return circles


@pytest.mark.parametrize("seed", range(24))
def test_groups_over_the_same_links_do_not_hold_each_other_up(seed: int) -> None:
    """Each rank calls them in another order: what one group has no place for yet is in the way of
    the others."""
    chance = random.Random(f"groups {seed}")
    letters, codec = chance.choice(PLACEMENTS), chance.choice(["none", "lz4"])
    with world_of(letters, seed, chance.choice([16, 64]), codec) as world:
        circles = some_circles(world, chance)
        work = [
            begin_in(world, circle, chance.choice(BUILDERS)(circle, chance))
            for circle in circles
            for _ in range(chance.randint(1, 4))
        ]
        world.run()
        check(world, work)
        check_nothing_left(world)


@pytest.mark.parametrize("seed", range(8))
def test_small_all_reduces_that_queue_up_are_right_however_many_travel_as_one(seed: int) -> None:
    chance = random.Random(f"queue {seed}")
    with world_of(chance.choice(PLACEMENTS), seed) as world:
        circles = [world.circle(), world.circle()]
        work = []
        for _ in range(20):
            circle = chance.choice(circles)
            build = build_ready_all_reduce if chance.random() < 0.9 else chance.choice(BUILDERS)
            work.append(begin_in(world, circle, build(circle, chance)))
        world.run()
        check(world, work)
        check_nothing_left(world)


@pytest.mark.parametrize(
    "build", [build_all_reduce, build_reduce_scatter], ids=lambda b: b.__name__
)
def test_sums_have_the_same_bits_whatever_comes_first(build: Build) -> None:
    results = []
    for seed in range(6):  # the same call with the same data, in six worlds
        chance = random.Random("the same")
        with world_of("aabbb", seed) as world:
            circle = world.circle()
            exchange = build(circle, chance)
            work = [begin_in(world, circle, exchange)]
            world.run()
            check(world, work)
            results.append([data.bits(x) for x in exchange.results])
    assert len(results[0][0]) > 0
    assert all(result == results[0] for result in results)


@pytest.mark.parametrize("letters", ["ab", "abb", "aab", "aabb", "abc", "aabbb"])
@pytest.mark.parametrize("dtype", data.COMPLEX, ids=str)
def test_a_complex_product_has_the_same_bits_on_all_ranks(letters: str, dtype: torch.dtype) -> None:
    """numpy rounds it in another way where it multiplies one element in place: the last piece."""
    size, ranks = 8 * PIECE // dtype.itemsize + 1, len(letters)
    kernel, call = reduction("PRODUCT", dtype, ranks), Call.of("product")
    for seed in range(4):
        xs = [data.random_of(rank, size, dtype, seed) for rank in range(ranks)]
        with world_of(letters, seed, line=Line()) as world:

            def begin(group: Group, xs: list[torch.Tensor] = xs) -> Plan:
                return plans.all_reduce(group, call, carrier(xs[group.rank]), kernel)

            called = world.call(world.circle(), "all_reduce", [begin] * ranks)
            world.run()
            assert called.succeeded
        assert len({data.bits(x) for x in xs}) == 1


def test_the_same_seed_tells_the_same_story() -> None:
    stories = []
    for _ in range(2):
        chance = random.Random("story")
        with world_of("aab", 3, codec="lz4") as world:
            circle = world.circle()
            for _ in range(3):
                begin_in(world, circle, chance.choice(BUILDERS)(circle, chance))
            world.run()
            stories.append((world.story, world.network.now))
    assert stories[0] == stories[1]


# -- messages beside them ----


@pytest.fixture
def _small_messages(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(mailbox, "EAGER_BYTES", 256)
    monkeypatch.setattr(mailbox, "EAGER_WINDOW", 2048)
    monkeypatch.setattr(chunks, "CHUNK_BYTES", 700)


def exchange_message(
    world: World, circle: Circle, source: int, to: int, tag: int, x: Array, into: Array
) -> list[Called]:
    """One rank sends, the other receives, each when it comes to it."""
    return [
        world.message(circle, source, "send", lambda g, op: g.mailbox.send(op, to, tag, 0, x)),
        world.message(
            circle, to, "recv", lambda g, op: g.mailbox.receive(op, source, tag, 0, into)
        ),
    ]


@pytest.mark.usefixtures("_small_messages")
@pytest.mark.parametrize("seed", range(8))
def test_messages_and_collectives_share_their_links(seed: int) -> None:
    chance = random.Random(f"messages {seed}")
    letters, codec = chance.choice(PLACEMENTS), chance.choice(["none", "lz4"])
    with world_of(letters, seed, codec=codec) as world:
        circles = some_circles(world, chance)
        world.run()
        work, mail = [], []
        for _ in range(12):
            circle = chance.choice(circles)
            source, to = chance.sample(range(circle.size), 2)
            size = chance.choice([0, 1, 256, 257, 699, 700, 701, chance.randrange(5000)])
            x = carrier(data.random_of(source, size, torch.uint8, chance.getrandbits(20)))
            into = np.zeros(size, np.uint8)
            calls = exchange_message(world, circle, source, to, chance.randrange(2), x, into)
            mail.append((x, into, calls))
            if chance.random() < 0.3:
                circle = chance.choice(circles)
                work.append(begin_in(world, circle, chance.choice(BUILDERS)(circle, chance)))
        world.run()
        check(world, work)
        check_nothing_left(world)
        for x, into, calls in mail:
            assert all(call.succeeded for call in calls)
            assert np.array_equal(x, into)


@pytest.mark.usefixtures("_small_messages")
@pytest.mark.parametrize("seed", range(8))
def test_a_message_that_gives_up_in_the_middle_spoils_nothing_else(seed: int) -> None:
    """Another message of the group, and pieces of a collective, come over the same link."""
    chance = random.Random(f"give up {seed}")
    codec = chance.choice(["none", "lz4"])
    with world_of("ab", seed, codec=codec, line=Line(window_bytes=4000)) as world:
        circle = world.circle()
        world.run()
        given_up = np.frombuffer(bytearray(chance.randbytes(15_000)), np.uint8)
        want, lost = given_up.copy(), np.zeros(given_up.size, np.uint8)
        out_s, in_s = chance.sample([chance.uniform(0.001, 0.02), 1.0], 2)
        send = world.message(
            circle,
            0,
            "send",
            lambda g, op: g.mailbox.send(op, 1, 0, 0, given_up),
            timeout_s=out_s,
        )
        receive = world.message(
            circle,
            1,
            "recv",
            lambda g, op: g.mailbox.receive(op, 0, 0, 0, lost),
            timeout_s=in_s,
        )
        x = carrier(data.random_of(0, chance.randrange(5000), torch.uint8))
        into = np.zeros(x.size, np.uint8)
        other = exchange_message(world, circle, 0, 1, 1, x, into)
        build = chance.choice([build_all_reduce, build_all_gather, build_broadcast])
        work = [begin_in(world, circle, build(circle, chance)) for _ in range(2)]
        world.run(until=lambda: send.over or receive.over)
        if send.over:
            given_up[:] = 0  # its memory is the program's again
        world.run(until=lambda: receive.over)
        before = lost.copy()
        world.run()
        check(world, work)
        assert all(call.succeeded for call in other)
        assert np.array_equal(into, x)
        assert np.array_equal(lost, want if receive.succeeded else before)


# -- how much, and how many ----


def test_there_is_a_slot_for_every_piece_on_its_way() -> None:
    """What is put must not be overwritten before all have taken it; each module says why."""
    a, w, window = meet.AHEAD, meet.FLIGHT, meet.WINDOW
    needed = {
        "all_reduce": 3 * a + 2 * w,
        "all_gather": window + 2 * a + w,
        "broadcast": 2 * a + w,
        "reduce_scatter": 2 * a,
    }
    assert slots.staging_shape(2, across=True)[0] >= max(needed.values())


def sent_by_host(world: World, what: Callable[[], object]) -> dict[str, int]:
    """Payload bytes that each host sends to others while something happens."""
    before = [rank.wheel.page.words[stats.WIRE_OUT_RAW] for rank in world.ranks]
    what()
    sent: dict[str, int] = {}
    for rank, was in zip(world.ranks, before, strict=True):
        count = rank.wheel.page.words[stats.WIRE_OUT_RAW] - was
        sent[rank.host] = sent.get(rank.host, 0) + count
    return sent


@pytest.mark.parametrize("letters", ["ab", "abc", "aabb", "abab", "aabbcc", "abcd"])
def test_hosts_send_each_other_no_more_than_the_least(letters: str) -> None:
    ranks, hosts = len(letters), len(set(letters))
    size = 240 * ranks * hosts  # divides without rest wherever it is cut
    xs = [data.random_of(rank, size, torch.float32) for rank in range(ranks)]
    outs = [torch.zeros(size // ranks) for _ in xs]
    kernel, call = reduction("SUM", torch.float32, ranks), Call.of("one of these")

    def parts(x: torch.Tensor) -> list[Array]:
        return [carrier(part) for part in x.chunk(ranks)]

    begins: dict[str, tuple[Begin, float]] = {
        "all_reduce": (
            lambda g: plans.all_reduce(g, call, carrier(xs[g.rank]), kernel),
            2 * (hosts - 1) / hosts * size * 4,
        ),
        "reduce_scatter": (
            lambda g: plans.reduce_scatter(
                g, call, parts(xs[g.rank]), carrier(outs[g.rank]), kernel
            ),
            (hosts - 1) / hosts * size * 4,
        ),
        "all_gather": (
            lambda g: plans.all_gather(g, call, carrier(outs[g.rank]), parts(xs[g.rank])),
            (hosts - 1) / hosts * size * 4,
        ),
    }
    with world_of(letters, 5, align=1, line=Line()) as world:
        circle = world.circle()
        world.run()
        for name, (begin, least) in begins.items():
            world.call(circle, name, [begin] * ranks)
            sent = sent_by_host(world, world.run)
            talk = CALL_BYTES * ranks * (hosts - 1)  # the announcements
            for host, count in sent.items():
                assert least <= count <= least * 1.01 + talk, f"{name}, host {host}"


# -- when something goes wrong ----

# Every link of these is needed by every collective.
ALONE = ["ab", "abc", "abcd"]


def under_way(world: World, circle: Circle, chance: random.Random) -> Work:
    """Some collectives, and a moment in the middle of them (or just after)."""
    work = [
        begin_in(world, circle, build(circle, chance)) for build in chance.choices(BUILDERS, k=3)
    ]
    world.run(steps=int(10 ** chance.uniform(0.5, 3)))
    return work


def two_more(world: World, circle: Circle) -> Work:
    """Meetings that nobody can end without all the others. The first one may have been on its way
    already when something went wrong."""
    return [begin_in(world, circle, build_barrier(circle, world.chance)) for _ in range(2)]


def failures(world: World, work: Work, ranks: Sequence[int]) -> dict[int, BaseException]:
    """How each of these ranks failed in the end. What did not fail must be right."""
    found: dict[int, BaseException] = {}
    for exchange, called in work:
        if called.succeeded:
            exchange.check()
        for rank in ranks:
            error = called.errors[rank]
            if error is not None:
                found.setdefault(rank, error)
    assert sorted(found) == list(ranks), f"seed {world.seed}: {found}"
    return found


def named(rank: int, letters: str) -> str:
    return f"rank {rank} (pid {1000 + rank} on host-{letters[rank]})"


@pytest.mark.parametrize("seed", range(12))
def test_a_link_that_breaks_is_named_by_all_ranks_and_nobody_hangs(seed: int) -> None:
    chance = random.Random(f"reset {seed}")
    letters = chance.choice(ALONE)
    with world_of(letters, seed) as world:
        circle = world.circle()
        work = under_way(world, circle, chance)
        a, b = chance.sample(range(len(letters)), 2)
        world.reset(a, b)
        work += two_more(world, circle)
        world.run()
        for rank, error in failures(world, work, range(len(letters))).items():
            assert isinstance(error, PeerLost), f"rank {rank}: {error!r}"
            ends = [named(a, letters), named(b, letters)]
            assert any(f"{end} died" in str(error) for end in ends), f"rank {rank}: {error}"


@pytest.mark.parametrize("seed", range(24))
def test_a_killed_rank_is_named_by_all_others_wherever_they_are(seed: int) -> None:
    chance = random.Random(f"kill {seed}")
    letters = chance.choice(PLACEMENTS)
    with world_of(letters, seed) as world:
        circle = world.circle()
        work = under_way(world, circle, chance)
        victim = chance.randrange(len(letters))
        world.kill(victim)
        work += two_more(world, circle)
        world.run()
        others = [rank for rank in range(len(letters)) if rank != victim]
        for rank, error in failures(world, work, others).items():
            assert isinstance(error, PeerLost), f"rank {rank}: {error!r}"
            assert f"{named(victim, letters)} died" in str(error), f"rank {rank}: {error}"


@pytest.mark.parametrize("seed", range(12))
def test_a_silent_host_is_named_by_all_others_in_time(seed: int) -> None:
    chance = random.Random(f"silent {seed}")
    letters = chance.choice(PLACEMENTS)
    with world_of(letters, seed) as world:
        circle = world.circle()
        work = under_way(world, circle, chance)
        host = chance.choice(letters)
        since = world.network.now
        world.silence(host)
        work += two_more(world, circle)
        world.run()
        lost = [named(rank, letters) for rank in range(len(letters)) if letters[rank] == host]
        others = [rank for rank in range(len(letters)) if letters[rank] != host]
        for rank, error in failures(world, work, others).items():
            assert isinstance(error, PeerLost), f"rank {rank}: {error!r}"
            assert any(f"{one} is lost: its machine" in str(error) for one in lost), str(error)
        assert world.network.now - since < 10.0


@pytest.mark.parametrize("seed", range(6))
def test_a_cable_that_is_out_for_five_seconds_costs_five_seconds(seed: int) -> None:
    chance = random.Random(f"cable {seed}")
    with world_of(chance.choice(PLACEMENTS), seed) as world:
        circle = world.circle()
        work = under_way(world, circle, chance)
        host = world.ranks[0].host
        for rank in world.ranks:
            if rank.host == host:
                world.network.silence(rank.name)
        back_at = world.network.now + 5.0
        world.pass_time(back_at)
        for rank in world.ranks:
            world.network.wake(rank.name)
        world.run()
        check(world, work)
        check_nothing_left(world)


@pytest.mark.parametrize("seed", range(6))
def test_a_stopped_process_loses_nothing_when_it_comes_back(seed: int) -> None:
    chance = random.Random(f"stop {seed}")
    with world_of(chance.choice(PLACEMENTS), seed) as world:
        circle = world.circle()
        work = under_way(world, circle, chance)
        stopped = chance.choice(world.ranks)
        stopped.stopped = True
        world.pass_time(world.network.now + 60.0)
        stopped.stopped = False
        world.run()
        check(world, work)
        check_nothing_left(world)


@pytest.mark.parametrize("seed", range(8))
def test_a_rank_that_stays_away_is_named_at_the_timeout(seed: int) -> None:
    chance = random.Random(f"late {seed}")
    letters = chance.choice(PLACEMENTS)
    with world_of(letters, seed) as world:
        circle = world.circle(timeout_s=30.0)
        work = under_way(world, circle, chance)
        late = chance.randrange(len(letters))
        world.ranks[late].stopped = True
        work += two_more(world, circle)
        world.pass_time(world.network.now + 40.0)
        others = [rank for rank in range(len(letters)) if rank != late]
        for rank, error in failures(world, work, others).items():
            assert isinstance(error, PeerLate), f"rank {rank}: {error!r}"
            assert "did not arrive before the timeout of 30 s" in str(error)


@pytest.mark.parametrize("seed", range(15))
def test_a_changed_byte_is_an_error_with_a_name_and_never_a_result(seed: int) -> None:
    chance = random.Random(f"damage {seed}")
    letters = chance.choice(ALONE)
    with world_of(letters, seed, codec=chance.choice(["none", "lz4"])) as world:
        circle = world.circle()
        world.run()
        work = under_way(world, circle, chance)
        a, b = chance.sample(range(len(letters)), 2)
        data_stream = world.streams[a, b][0]
        data_stream.corrupt(data_stream.out.arrived_bytes + chance.randrange(300))
        while not any(error for _, called in work for error in called.errors):
            work += two_more(world, circle)  # until that byte is sent
            world.run()
        work += two_more(world, circle)
        world.run()
        for rank, error in failures(world, work, range(len(letters))).items():
            link = f"the link to pid {1000 + a} on host-{letters[a]}: "
            assert isinstance(error, HostError | GroupFailed), f"rank {rank}: {error!r}"
            assert link in str(error) or "died" in str(error), f"rank {rank}: {error}"
            assert rank != b or link in str(error), f"rank {rank}, {a} to {b}: {error}"


@pytest.mark.parametrize("seed", range(12))
def test_ranks_that_call_different_things_are_told_what_each_called(seed: int) -> None:
    chance = random.Random(f"mismatch {seed}")
    letters = chance.choice(PLACEMENTS)
    with world_of(letters, seed) as world:
        circle = world.circle()
        first, second = chance.sample([b for b in BUILDERS if b is not build_monitored_barrier], 2)
        one, other = first(circle, chance), second(circle, chance)
        odd = chance.randrange(len(letters))
        begins = [*one.begins]
        begins[odd] = other.begins[odd]
        called = world.call(circle, "something", begins)
        world.run()
        for rank, error in enumerate(called.errors):
            assert isinstance(error, Mismatch), f"rank {rank}: {error!r}"
            assert "called different operations" in str(error)
            assert f"rank {odd} " in str(error)


@pytest.mark.parametrize("seed", range(16))
def test_a_group_that_is_left_in_the_middle_does_not_harm_another(seed: int) -> None:
    """What is on its way of the one goes nowhere, and holds up nothing of the other."""
    chance = random.Random(f"leave {seed}")
    letters = chance.choice(PLACEMENTS)
    with world_of(letters, seed, codec=chance.choice(["none", "lz4"])) as world:
        left, stays = world.circle(), world.circle()
        world.run()
        work = [begin_in(world, stays, b(stays, chance)) for b in chance.choices(BUILDERS, k=3)]
        doomed = under_way(world, left, chance)
        leaver = chance.randrange(len(letters))
        world.leave(left, leaver)
        doomed += two_more(world, left)
        world.run()
        check(world, work)
        others = [rank for rank in range(len(letters)) if rank != leaver]
        for rank, error in failures(world, doomed, others).items():
            assert isinstance(error, PeerLost), f"rank {rank}: {error!r}"
            assert f"{named(leaver, letters)} left the group" in str(error)
