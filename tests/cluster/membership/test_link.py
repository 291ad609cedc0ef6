"""One end of a link: order, pings, silence, and which end is to blame for it."""

from __future__ import annotations

import asyncio
import socket
from collections.abc import Coroutine
from typing import Any

import pytest

from wiiiiided.cluster.membership import link as module
from wiiiiided.cluster.membership.link import DaemonLink
from wiiiiided.cluster.peering import messages as p
from wiiiiided.cluster.rpc.connection import RpcConnection


async def connections() -> tuple[RpcConnection, RpcConnection]:
    one, other = socket.socketpair()
    return tuple([RpcConnection(*await asyncio.open_connection(sock=end)) for end in (one, other)])  # type: ignore[return-value]


def run(work: Coroutine[Any, Any, None]) -> None:
    async def bounded() -> None:
        async with asyncio.timeout(20):
            await work

    asyncio.run(bounded())


@pytest.fixture
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "BEAT_S", 0.02)


def test_what_is_said_arrives_in_order(quick: None) -> None:
    async def work() -> None:
        here, there = await connections()
        one, other = DaemonLink(here), DaemonLink(there)
        heard: list[int] = []

        def hear(data: bytes) -> None:
            said = p.decode_from_coordinator(data)
            if isinstance(said, p.Forget):
                heard.append(said.jobs[0])
                if len(heard) == 100:
                    other.end("enough")

        for number in range(100):
            one.say(p.Forget((number,)))
        assert await asyncio.gather(one.run(lambda data: None), other.run(hear)) == [
            "the other side closed it",
            "enough",
        ]
        assert heard == list(range(100))

    run(work())


def test_what_is_said_first_may_be_more_than_a_queue_holds(
    quick: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    """And takes as long as it takes: the other end says nothing before it has read all of it."""
    monkeypatch.setattr(module, "QUEUE_BYTES", 10_000)

    async def work() -> None:
        here, there = await connections()
        first = [p.Forget(tuple(range(number, number + 100_000))) for number in range(5)]
        one = DaemonLink(here, first)
        one.say(p.RenewDue())
        running = asyncio.ensure_future(one.run(lambda data: None))
        await asyncio.sleep(3 * module.LOST_BEATS * module.BEAT_S)  # it is not read yet
        for sent in first:
            assert p.decode_from_coordinator(await there.message()) == sent
        assert p.decode_from_coordinator(await there.message()) == p.RenewDue()
        assert "nothing was heard" in await running  # and from now on silence counts
        there.close()

    run(work())


def test_one_that_takes_nothing_of_what_is_said_first_is_given_up(
    quick: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "FIRST_WITHIN_S", 0.1)

    async def work() -> None:
        here, there = await connections()
        found = await DaemonLink(here, [p.Forget(tuple(range(2_000_000)))]).run(lambda data: None)
        assert found == "it took nothing for 0.1 s"
        there.close()

    run(work())


def test_two_quiet_ends_keep_each_other_alive(quick: None) -> None:
    async def work() -> None:
        here, there = await connections()
        one, other = DaemonLink(here), DaemonLink(there)
        beats = 0

        def hear(data: bytes) -> None:
            nonlocal beats
            beats += isinstance(p.decode_from_member(data), p.Ping)
            if beats == 3 * module.LOST_BEATS:
                one.end("long enough")

        found = await asyncio.gather(one.run(hear), other.run(lambda data: None))
        assert found[0] == "long enough"

    run(work())


def test_silence_ends_a_line_with_a_sentence(quick: None) -> None:
    async def work() -> None:
        here, there = await connections()
        assert "nothing was heard for" in await DaemonLink(here).run(lambda data: None)
        there.close()

    run(work())


def test_a_daemon_that_was_stopped_itself_does_not_blame_the_other(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Both miss their beats as long as the loop is held up: that is one beat, not many."""
    monkeypatch.setattr(module, "BEAT_S", 0.05)

    async def work() -> None:
        here, there = await connections()
        one, other = DaemonLink(here), DaemonLink(there)
        both = asyncio.gather(one.run(lambda d: None), other.run(lambda d: None))
        await asyncio.sleep(0)
        held = asyncio.get_running_loop().time() + 20 * module.BEAT_S * module.LOST_BEATS / 5
        while asyncio.get_running_loop().time() < held:
            pass
        await asyncio.wait({both}, timeout=3 * module.BEAT_S)
        assert not both.done()
        one.end("done")
        assert (await both)[0] == "done"

    run(work())


def test_a_line_with_too_much_to_say_is_closed(
    quick: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "QUEUE_BYTES", 1 << 20)

    async def work() -> None:
        here, there = await connections()
        one = DaemonLink(here)
        for _ in range(20):
            one.say(p.MemberRemoved("x" * 100_000))
        assert "wait to be sent" in await one.run(lambda data: None)
        there.close()

    run(work())
