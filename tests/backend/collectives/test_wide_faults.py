"""Something goes wrong between hosts in the middle of a collective: it has a name on all ranks, and
none hangs.

The hosts are pretended (tests.kit.wide_world). If no rank could move and nothing were in flight,
the run would fail and show what every rank waits for. What is not failed must be right.
"""

from __future__ import annotations

import random
from collections.abc import Sequence

import pytest

from tests.kit.wide_calls import (
    BUILDERS,
    PLACEMENTS,
    Work,
    begin_in,
    build_barrier,
    build_monitored_barrier,
    check,
    check_nothing_left,
    small_pieces,
    world_of,
)
from tests.kit.wide_world import Circle, World
from wiiiiided.errors import GroupFailed, HostError, Mismatch, PeerLate, PeerLost


@pytest.fixture(autouse=True)
def _small(monkeypatch: pytest.MonkeyPatch) -> None:
    small_pieces(monkeypatch)


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
    """Barriers that no rank can end without all the others. The first one may have been on its way
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
def test_a_link_that_breaks_is_named_by_all_ranks_and_none_hangs(seed: int) -> None:
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


@pytest.mark.parametrize("seed", range(40))
def test_a_rank_that_leaves_because_of_a_death_is_not_blamed_for_it(seed: int) -> None:
    """What it says of the death may be slower than its good-bye: they take two connections."""
    chance = random.Random(f"leavers {seed}")
    letters = chance.choice(PLACEMENTS)
    with world_of(letters, seed) as world:
        circle = world.circle()
        world.run()
        work = under_way(world, circle, chance)
        victim = chance.randrange(len(letters))
        world.kill(victim)
        work += two_more(world, circle)
        staying = [rank for rank in range(len(letters)) if rank != victim]
        while not world.run(steps=3):
            for rank in list(staying):
                over = circle.groups[rank].problem() is not None
                if over and not circle.members[rank].calls_left and chance.random() < 0.5:
                    staying.remove(rank)
                    world.leave(circle, rank)
        others = [rank for rank in range(len(letters)) if rank != victim]
        for rank, error in failures(world, work, others).items():
            assert f"{named(victim, letters)} died" in str(error), f"rank {rank}: {error}"
