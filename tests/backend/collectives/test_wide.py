"""Every collective over several hosts: right to the bit, whatever comes first.

The hosts are pretended (tests.kit.wide_world); groups, plans, links and memory are real. What a
test does comes from its seed alone.
"""

from __future__ import annotations

import random
from collections.abc import Callable

import pytest
import torch

from tests.kit import data
from tests.kit.wide_calls import (
    BUILDERS,
    PIECE,
    PLACEMENTS,
    Build,
    begin_in,
    build_all_reduce,
    build_ready_all_reduce,
    build_reduce_scatter,
    check,
    check_nothing_left,
    small_pieces,
    some_circles,
    world_of,
)
from tests.kit.wide_world import Begin, World
from wiiiiided.backend.collectives import dispatch
from wiiiiided.backend.collectives.wide import barrier
from wiiiiided.backend.engine.group import Group
from wiiiiided.backend.engine.operation import Plan
from wiiiiided.backend.net.virtual_network import LineQuality
from wiiiiided.backend.shm import slots, stats
from wiiiiided.backend.shm.board import CALL_BYTES, CallSignature
from wiiiiided.backend.shm.kernels import carrier, reduction
from wiiiiided.backend.shm.slots import Array


@pytest.fixture(autouse=True)
def _small(monkeypatch: pytest.MonkeyPatch) -> None:
    small_pieces(monkeypatch)


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
    kernel, call = reduction("PRODUCT", dtype, ranks), CallSignature.of("product")
    for seed in range(4):
        xs = [data.random_of(rank, size, dtype, seed) for rank in range(ranks)]
        with world_of(letters, seed, line=LineQuality()) as world:

            def begin(group: Group, xs: list[torch.Tensor] = xs) -> Plan:
                return dispatch.all_reduce(group, call, carrier(xs[group.rank]), kernel)

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


# -- how much, and how many ----


def test_there_is_a_slot_for_every_piece_on_its_way() -> None:
    """What is put must not be overwritten before all have taken it; each module says why."""
    a, w, window = barrier.AHEAD, barrier.FLIGHT, barrier.WINDOW
    needed = {
        "all_reduce": 3 * a + 2 * w,
        "all_gather": window + 2 * a + w,
        "broadcast": 2 * a + w,
        "reduce_scatter": 2 * a,
    }
    assert slots.staging_shape(2, across=True)[0] >= max(needed.values())


def sent_by_host(world: World, what: Callable[[], object]) -> dict[str, int]:
    """Payload bytes that each host sends to others while something happens."""
    before = [rank.driver.page.words[stats.WIRE_OUT_RAW] for rank in world.ranks]
    what()
    sent: dict[str, int] = {}
    for rank, was in zip(world.ranks, before, strict=True):
        count = rank.driver.page.words[stats.WIRE_OUT_RAW] - was
        sent[rank.host] = sent.get(rank.host, 0) + count
    return sent


@pytest.mark.parametrize("letters", ["ab", "abc", "aabb", "abab", "aabbcc", "abcd"])
def test_hosts_send_each_other_no_more_than_the_least(letters: str) -> None:
    ranks, hosts = len(letters), len(set(letters))
    size = 240 * ranks * hosts  # divides without rest wherever it is cut
    xs = [data.random_of(rank, size, torch.float32) for rank in range(ranks)]
    outs = [torch.zeros(size // ranks) for _ in xs]
    kernel, call = reduction("SUM", torch.float32, ranks), CallSignature.of("one of these")

    def parts(x: torch.Tensor) -> list[Array]:
        return [carrier(part) for part in x.chunk(ranks)]

    begins: dict[str, tuple[Begin, float]] = {
        "all_reduce": (
            lambda g: dispatch.all_reduce(g, call, carrier(xs[g.rank]), kernel),
            2 * (hosts - 1) / hosts * size * 4,
        ),
        "reduce_scatter": (
            lambda g: dispatch.reduce_scatter(
                g, call, parts(xs[g.rank]), carrier(outs[g.rank]), kernel
            ),
            (hosts - 1) / hosts * size * 4,
        ),
        "all_gather": (
            lambda g: dispatch.all_gather(g, call, carrier(outs[g.rank]), parts(xs[g.rank])),
            (hosts - 1) / hosts * size * 4,
        ),
    }
    with world_of(letters, 5, align=1, line=LineQuality()) as world:
        circle = world.circle()
        world.run()
        for name, (begin, least) in begins.items():
            world.call(circle, name, [begin] * ranks)
            sent = sent_by_host(world, world.run)
            talk = CALL_BYTES * ranks * (hosts - 1)  # the announcements
            for host, count in sent.items():
                assert least <= count <= least * 1.01 + talk, f"{name}, host {host}"
