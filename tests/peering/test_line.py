"""One end of a link: order, pings, silence, and who is to blame for it."""

from __future__ import annotations

import asyncio
import socket
from collections.abc import Coroutine
from typing import Any

import pytest

from wiiiiided.daemon.cluster import line as module
from wiiiiided.daemon.cluster.line import Line
from wiiiiided.daemon.conversation.talk import Talk
from wiiiiided.peering import messages as p


async def talks() -> tuple[Talk, Talk]:
    one, other = socket.socketpair()
    return tuple([Talk(*await asyncio.open_connection(sock=end)) for end in (one, other)])  # type: ignore[return-value]


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
        here, there = await talks()
        one, other = Line(here), Line(there)
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


def test_two_quiet_ends_keep_each_other_alive(quick: None) -> None:
    async def work() -> None:
        here, there = await talks()
        one, other = Line(here), Line(there)
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
        here, there = await talks()
        assert "nothing was heard for" in await Line(here).run(lambda data: None)
        there.close()

    run(work())


def test_a_daemon_that_was_stopped_itself_does_not_blame_the_other(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Both miss their beats as long as the loop is held up: that is one beat, not many."""
    monkeypatch.setattr(module, "BEAT_S", 0.05)

    async def work() -> None:
        here, there = await talks()
        one, other = Line(here), Line(there)
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
        here, there = await talks()
        one = Line(here)
        for _ in range(20):
            one.say(p.Removed("x" * 100_000))
        assert "wait to be sent" in await one.run(lambda data: None)
        there.close()

    run(work())
