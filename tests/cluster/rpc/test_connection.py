"""One connection of a daemon: what comes is bounded, and a peer that goes away is noticed."""

from __future__ import annotations

import asyncio
import os

import pytest

from tests.cluster.connections import pair, run
from wiiiiided.cluster.rpc import framing
from wiiiiided.cluster.rpc import messages as m
from wiiiiided.cluster.rpc.connection import NOBODY, Caller, RpcConnection


def test_what_one_end_says_the_other_hears_in_order() -> None:
    async def scene() -> None:
        here, there = await pair()
        await here.say(m.Why(1))
        await here.send_blob(b"one")
        await here.send_blob(b"two")
        await here.end_blob()
        await here.say(m.Why(2))
        assert m.decode_request(await there.message()) == m.Why(1)
        assert [piece async for piece in there.blob(10)] == [b"one", b"two"]
        assert m.decode_request(await there.message()) == m.Why(2)
        here.close()
        with pytest.raises(EOFError):
            await there.frame()
        there.close()

    run(scene())


def test_a_message_beyond_the_limit_ends_the_connection() -> None:
    async def scene() -> None:
        here, there = await pair(limit=100)
        await here.send(framing.MESSAGE, b"x" * 101)
        with pytest.raises(framing.StreamError):
            await there.message()

    run(scene())


def test_a_piece_that_does_not_come_in_time_is_noticed() -> None:
    async def scene() -> None:
        here, there = await pair()
        await here.send_blob(b"one")
        with pytest.raises(TimeoutError):
            _ = [piece async for piece in there.blob(0.05)]

    run(scene())


@pytest.mark.parametrize(("least", "whole_s"), [(1000, None), (1, 0.2)])
def test_a_blob_that_comes_too_slowly_is_ended(least: int, whole_s: float | None) -> None:
    """A byte now and then does not keep a connection's place for ever."""

    async def scene() -> None:
        here, there = await pair()

        async def drip() -> None:
            while True:
                await here.send_blob(b"x")
                await asyncio.sleep(0.01)

        dripping = asyncio.ensure_future(drip())
        with pytest.raises(TimeoutError):
            _ = [piece async for piece in there.blob(0.2, least, whole_s)]
        dripping.cancel()
        await asyncio.gather(dripping, return_exceptions=True)

    run(scene())


def test_an_empty_piece_is_none() -> None:
    async def scene() -> None:
        here, there = await pair()
        await here.send_blob(b"")
        with pytest.raises(framing.StreamError):
            _ = [piece async for piece in there.blob(10)]

    run(scene())


def test_what_the_receiver_does_with_a_piece_is_not_the_senders_time() -> None:
    async def scene() -> None:
        here, there = await pair()
        for _ in range(3):
            await here.send_blob(b"x")
        await here.end_blob()
        taken = 0
        async for piece in there.blob(0.2, 1000, 0.2):
            taken += len(piece)
            await asyncio.sleep(0.15)  # a slow disk
        assert taken == 3

    run(scene())


def test_waiting_leaves_the_frame_for_its_reader() -> None:
    async def scene() -> None:
        here, there = await pair()
        await here.say(m.Why(1))
        await here.say(m.Why(2))
        await there.waiting()
        assert m.decode_request(await there.message()) == m.Why(1)
        assert m.decode_request(await there.message()) == m.Why(2)

    run(scene())


def test_work_for_a_client_that_went_away_is_stopped() -> None:
    async def scene() -> None:
        here, there = await pair()
        stopped = asyncio.Event()

        async def work() -> None:
            try:
                await asyncio.Event().wait()
            finally:
                stopped.set()

        doing = asyncio.ensure_future(there.while_there(work()))
        await asyncio.sleep(0)
        here.close()
        await doing
        assert stopped.is_set()
        there.close()

    run(scene())


def test_a_defect_of_the_work_is_not_swallowed() -> None:
    async def scene() -> None:
        _, there = await pair()

        async def work() -> None:
            raise ZeroDivisionError

        with pytest.raises(ZeroDivisionError):
            await there.while_there(work())

    run(scene())


def test_until_its_user_is_known_a_connection_has_no_rights() -> None:
    async def scene() -> RpcConnection:
        _, there = await pair()
        return there

    connection = run(scene())
    assert connection.caller == NOBODY
    assert not connection.caller.admin
    assert connection.peer is None


def test_the_kernel_names_the_user_at_the_other_end_of_a_unix_socket() -> None:
    import socket

    ours, theirs = socket.socketpair()
    with ours, theirs:
        caller = run(Caller.at(ours, "a"))
    assert (caller.uid, caller.node, caller.admin) == (os.getuid(), "a", True)


def test_the_kernel_asks_after_a_quiet_machine() -> None:
    """Else a wait for a machine that was switched off would never end."""
    import socket

    async def scene() -> list[int]:
        async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            writer.close()

        server = await asyncio.start_server(serve, "127.0.0.1", 0)
        async with server:
            port = server.sockets[0].getsockname()[1]
            reader, writer = await asyncio.open_connection("127.0.0.1", port)
            connection = RpcConnection(reader, writer)
            link = writer.get_extra_info("socket")
            found = [
                link.getsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE),
                link.getsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPIDLE),
            ]
            await connection.gone()
            connection.close()
            return found

    keeps, idle_s = run(scene())
    assert keeps
    assert 0 < idle_s <= 30
