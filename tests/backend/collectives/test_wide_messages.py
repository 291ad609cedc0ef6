"""Sends and receives between hosts, beside collectives on the same links."""

from __future__ import annotations

import random

import numpy as np
import pytest
import torch

from tests.kit import data
from tests.kit.wide_calls import (
    BUILDERS,
    PLACEMENTS,
    begin_in,
    build_all_gather,
    build_all_reduce,
    build_broadcast,
    check,
    check_nothing_left,
    small_pieces,
    some_circles,
    world_of,
)
from tests.kit.wide_world import Called, Circle, World
from wiiiiided.backend.engine import chunks, mailbox
from wiiiiided.backend.net.virtual_network import LineQuality
from wiiiiided.backend.shm.kernels import carrier
from wiiiiided.backend.shm.slots import Array


@pytest.fixture(autouse=True)
def _small(monkeypatch: pytest.MonkeyPatch) -> None:
    small_pieces(monkeypatch)
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


@pytest.mark.parametrize("seed", range(8))
def test_a_message_that_gives_up_in_the_middle_spoils_nothing_else(seed: int) -> None:
    """Another message of the group, and pieces of a collective, come over the same link."""
    chance = random.Random(f"give up {seed}")
    codec = chance.choice(["none", "lz4"])
    with world_of("ab", seed, codec=codec, line=LineQuality(window_bytes=4000)) as world:
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
