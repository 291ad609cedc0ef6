"""Asking nodes about their allocations, and making one stream of what they say."""

from __future__ import annotations

import asyncio
import random
from collections.abc import AsyncGenerator
from pathlib import Path

import pytest

from tests.cluster.connections import FakeDialer, FakeNode, FakeShim, run, until
from wiiiiided.cluster.handlers.allocation import Lines
from wiiiiided.cluster.handlers.merge_logs import Bookmark, Follower, LogSource, lines_of, merged
from wiiiiided.cluster.handlers.node_rpc import NoAnswer, NodeRpc
from wiiiiided.cluster.peering import messages as p
from wiiiiided.cluster.rpc import framing
from wiiiiided.cluster.rpc import messages as m
from wiiiiided.cluster.rpc.connection import RpcConnection
from wiiiiided.cluster.rpc.errors import Refuse
from wiiiiided.cluster.shim.control_lines import RankStacks, RankState
from wiiiiided.cluster.trust.tls import VerifiedPeer


class Cluster:
    """a is here; b and c are other machines."""

    def __init__(self, directory: Path) -> None:
        self.a, self.b, self.c = (FakeNode(name, directory) for name in "abc")
        self.nodes = {one.node.name: one.node for one in (self.a, self.b, self.c)}
        serves = {one.node.address: one.serve for one in (self.b, self.c)}
        self.dialer = FakeDialer(serves)
        self.node_rpc = NodeRpc(self.a.allocations, lambda: self.nodes, self.dialer)

    def part(self, node: str, first_rank: int = 0, tail: int | None = None) -> LogSource:
        return LogSource(node, p.NodeLogs(1, 1, (), tail=tail), first_rank, 1000.0)


@pytest.fixture
def cluster(tmp_path: Path) -> Cluster:
    return Cluster(tmp_path)


async def all_of(source: AsyncGenerator[Lines, None]) -> list[m.LogLine]:
    return [line async for lines in source for line in lines]


# ---- one node


def test_this_node_is_asked_without_a_connection(cluster: Cluster) -> None:
    cluster.a.write(0, (1.0, "here"))
    found = run(all_of(cluster.node_rpc.logs("a", p.NodeLogs(1, 1))))
    assert [line.text for line in found] == ["here"]
    assert cluster.dialer.opened == []


def test_another_node_is_asked_over_a_connection_of_its_own(cluster: Cluster) -> None:
    cluster.b.write(4, (1.0, "there"))
    found = run(all_of(cluster.node_rpc.logs("b", p.NodeLogs(1, 1))))
    assert [(line.text, line.node) for line in found] == [("there", "b")]
    assert cluster.dialer.opened == [("10.0.0.2", "ask", None)]


def test_ranks_and_stacks_come_from_there(cluster: Cluster) -> None:
    cluster.b.begin()
    cluster.b.workers.shims[1, 1] = FakeShim(RankState(4, 44), RankStacks(4, 44, "stack"))

    async def scene() -> None:
        ranks = await cluster.node_rpc.ranks("b", p.NodeRanks(1, 1), 10.0)
        assert ranks.pids == {4: 44}
        assert ranks.directory == str(cluster.b.job_dirs.job(1))
        stacks = await cluster.node_rpc.stacks("b", p.NodeStacks(1, 1))
        assert stacks.dumps == (m.StackDump(4, 44, "stack"),)

    run(scene())


def test_files_come_from_there(cluster: Cluster) -> None:
    cluster.b.give({"x": "1"})

    async def scene() -> bytes:
        pieces = cluster.node_rpc.pull("b", p.NodePull(1, ("**",)))
        return b"".join([piece async for piece in pieces])

    assert b"x" in run(scene())[:512]


def test_what_a_node_refuses_is_refused_here(cluster: Cluster) -> None:
    async def scene() -> None:
        with pytest.raises(Refuse, match="no files on b") as no:
            await anext(cluster.node_rpc.pull("b", p.NodePull(1, ("**",))))
        assert no.value.code == 6

    run(scene())


@pytest.mark.parametrize("node", ["b", "x"])
def test_a_node_that_cannot_be_asked_is_named(cluster: Cluster, node: str) -> None:
    cluster.dialer.away.add("10.0.0.2")
    with pytest.raises(NoAnswer, match=f"^{node} "):
        run(all_of(cluster.node_rpc.logs(node, p.NodeLogs(1, 1))))


def test_a_machine_alone_asks_no_other(cluster: Cluster) -> None:
    node_rpc = NodeRpc(cluster.a.allocations, lambda: cluster.nodes)
    with pytest.raises(NoAnswer, match="b is not this machine"):
        run(all_of(node_rpc.logs("b", p.NodeLogs(1, 1))))


def test_an_answer_that_stops_in_the_middle_is_no_answer(cluster: Cluster) -> None:
    async def half(connection: RpcConnection) -> None:
        await connection.message()
        await connection.say(m.LogLines(()))

    cluster.dialer.serves["10.0.0.2"] = half
    with pytest.raises(NoAnswer, match="b does not answer"):
        run(all_of(cluster.node_rpc.logs("b", p.NodeLogs(1, 1))))


def test_a_node_that_falls_silent_is_not_waited_for(
    cluster: Cluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("wiiiiided.cluster.handlers.node_rpc.SILENT_S", 0.05)

    async def silent(connection: RpcConnection) -> None:
        await connection.gone()

    cluster.dialer.serves["10.0.0.2"] = silent

    async def scene() -> None:
        with pytest.raises(NoAnswer, match="b does not answer"):
            await all_of(cluster.node_rpc.logs("b", p.NodeLogs(1, 1)))
        with pytest.raises(NoAnswer, match=r"b has not answered within 0\.05 s"):
            await cluster.node_rpc.ranks("b", p.NodeRanks(1, 1), 0.05)

    run(scene())


@pytest.mark.parametrize("said", [b"[]", b'{"type":"Jobs","jobs":[]}', b'{"type":"StackDumps"}'])
def test_an_answer_to_something_else_is_no_answer(cluster: Cluster, said: bytes) -> None:
    async def odd(connection: RpcConnection) -> None:
        await connection.message()
        await connection.send(framing.MESSAGE, said)

    cluster.dialer.serves["10.0.0.2"] = odd
    with pytest.raises(NoAnswer, match="b answers something else"):
        run(all_of(cluster.node_rpc.logs("b", p.NodeLogs(1, 1))))


def test_another_member_at_its_address_is_not_taken_for_it(cluster: Cluster) -> None:
    open_ = cluster.dialer.open

    async def open_as_c(address: str, port: int, purpose: p.Purpose) -> RpcConnection:
        connection = await open_(address, port, purpose)
        connection.peer = VerifiedPeer("c", "00", "member")
        return connection

    cluster.dialer.open = open_as_c  # type: ignore[method-assign,assignment]
    with pytest.raises(NoAnswer, match="is c, not b"):
        run(all_of(cluster.node_rpc.logs("b", p.NodeLogs(1, 1))))


# ---- several, not following


def test_lines_of_all_nodes_come_by_time(cluster: Cluster) -> None:
    cluster.a.write(0, (1.0, "a1"), (4.0, "a4"))
    cluster.b.write(1, (2.0, "b2"), (5.0, "b5"))
    cluster.c.write(2, (3.0, "c3"), (6.0, "c6"))
    parts = [cluster.part(node) for node in "abc"]
    found = run(all_of(lines_of(cluster.node_rpc, parts)))
    assert [line.text for line in found] == ["a1", "b2", "c3", "a4", "b5", "c6"]


def test_a_node_that_does_not_answer_costs_one_line(cluster: Cluster) -> None:
    cluster.a.write(0, (2000.0, "here"))
    cluster.dialer.away.add("10.0.0.2")
    parts = [cluster.part("a"), cluster.part("b", first_rank=4)]
    note, line = run(all_of(lines_of(cluster.node_rpc, parts)))
    assert (note.stream, note.node, note.rank, note.at) == ("note", "b", 4, 1000.0)
    assert note.text.startswith("b does not answer")
    assert note.text.endswith("its lines are missing")
    assert line.text == "here"


def test_a_merge_holds_one_batch_of_each_and_keeps_the_order() -> None:
    chance = random.Random(2)
    ahead = 0
    most = 0

    async def source(rank: int) -> AsyncGenerator[Lines, None]:
        nonlocal ahead, most
        at = 0.0
        for _ in range(50):
            lines = []
            for _ in range(chance.randrange(0, 20)):
                at += chance.random()
                lines.append(m.LogLine(at, rank, "out", f"{rank}"))
            ahead += bool(lines)
            most = max(most, ahead)
            yield tuple(lines)
            ahead -= bool(lines)

    found = run(all_of(merged([source(rank) for rank in range(5)])))
    assert [line.at for line in found] == sorted(line.at for line in found)
    assert {line.rank for line in found} == set(range(5))
    assert most <= 5


def test_large_logs_are_passed_on_in_bounded_batches(cluster: Cluster) -> None:
    for node, rank in ((cluster.a, 0), (cluster.b, 1)):
        node.write(rank, *((n + rank / 2, "x" * 1000) for n in range(3000)))

    async def scene() -> list[int]:
        parts = [cluster.part("a"), cluster.part("b")]
        return [len(lines) async for lines in lines_of(cluster.node_rpc, parts)]

    sizes = run(scene())
    assert sum(sizes) == 6000
    assert max(sizes) < 400


# ---- following


def test_after_an_interruption_no_line_comes_twice_and_none_is_left_out() -> None:
    mark = Bookmark()
    lines = tuple(
        m.LogLine(at, rank, "out", f"{rank} {number}")
        for number, at in enumerate((1.0, 1.0, 2.0, 2.0, 2.0, 3.0))
        for rank in (0, 1)
    )
    for cut in range(len(lines) + 1):
        mark = Bookmark()
        got = mark.new(lines[:cut])
        mark.again()
        assert got + mark.new(lines) == lines[:cut] + lines[cut:]


def test_a_follower_goes_on_where_it_was_when_a_node_comes_back(cluster: Cluster) -> None:
    heard: list[m.LogLine] = []
    over = False

    async def say(lines: Lines) -> None:
        heard.extend(lines)

    async def scene() -> None:
        nonlocal over
        cluster.b.begin()
        cluster.b.write(4, (1.0, "one"), (1.0, "uno"))
        follower = Follower(cluster.node_rpc, cluster.part("b", 4), say)
        doing = asyncio.ensure_future(follower.run(lambda: over))
        await until(lambda: len(heard) == 2, "the first lines")
        cluster.dialer.away.add("10.0.0.2")
        cluster.dialer.cut()
        cluster.b.write(4, (1.0, "ein"), (2.0, "two"))
        await until(lambda: len(cluster.dialer.opened) >= 2, "it was tried again")
        cluster.dialer.away.clear()
        await until(lambda: len(heard) == 4, "the lines of meanwhile")
        cluster.b.write(4, (3.0, "three"))
        cluster.b.end()
        over = True
        await doing

    run(scene())
    assert [line.text for line in heard] == ["one", "uno", "ein", "two", "three"]


def test_a_follower_says_once_that_a_node_is_missing(
    cluster: Cluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("wiiiiided.cluster.handlers.merge_logs.MISSING_S", 0.05)
    monkeypatch.setattr("wiiiiided.cluster.handlers.merge_logs.AGAIN_S", (0.01, 0.02))
    heard: list[m.LogLine] = []
    over = False

    async def say(lines: Lines) -> None:
        heard.extend(lines)

    async def scene() -> None:
        nonlocal over
        cluster.b.begin()
        cluster.dialer.away.add("10.0.0.2")
        follower = Follower(cluster.node_rpc, cluster.part("b", 4), say)
        doing = asyncio.ensure_future(follower.run(lambda: over))
        await until(lambda: bool(heard), "the note")
        seen = len(cluster.dialer.opened)
        await until(lambda: len(cluster.dialer.opened) > seen + 5, "it is tried on")
        cluster.b.write(4, (1.0, "back"))
        cluster.dialer.away.clear()
        await until(lambda: len(heard) == 2, "the line")
        cluster.b.end()
        over = True
        await doing

    run(scene())
    note, line = heard
    assert (note.stream, note.rank) == ("note", 4)
    assert note.text.endswith("its lines come when it does again")
    assert line.text == "back"


def test_a_follower_gives_up_a_node_that_is_gone_when_its_allocation_is_over(
    cluster: Cluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("wiiiiided.cluster.handlers.merge_logs.LAST_S", 0.05)
    monkeypatch.setattr("wiiiiided.cluster.handlers.merge_logs.AGAIN_S", (0.01, 0.02))
    cluster.dialer.away.add("10.0.0.2")
    heard: list[m.LogLine] = []

    async def say(lines: Lines) -> None:
        heard.extend(lines)

    run(Follower(cluster.node_rpc, cluster.part("b"), say).run(lambda: True))
    (note,) = heard
    assert note.text.endswith("its lines are missing")


def test_a_follower_waits_for_an_allocation_that_has_not_begun(cluster: Cluster) -> None:
    heard: list[m.LogLine] = []

    async def say(lines: Lines) -> None:
        heard.extend(lines)

    async def scene() -> None:
        follower = Follower(cluster.node_rpc, cluster.part("b"), say)
        doing = asyncio.ensure_future(follower.run(lambda: False))
        await until(lambda: len(cluster.dialer.opened) >= 2, "it is asked again")
        cluster.b.begin()
        cluster.b.write(4, (1.0, "begun"))
        await until(lambda: bool(heard), "the line")
        cluster.b.end()
        await doing  # the node knows of the end before we do

    run(scene())
    assert [line.text for line in heard] == ["begun"]


def test_a_tail_is_asked_for_once(cluster: Cluster) -> None:
    heard: list[m.LogLine] = []
    over = False

    async def say(lines: Lines) -> None:
        heard.extend(lines)

    async def scene() -> None:
        nonlocal over
        cluster.b.begin()
        cluster.b.write(4, *((float(n), f"{n}") for n in range(10)))
        follower = Follower(cluster.node_rpc, cluster.part("b", 4, tail=2), say)
        doing = asyncio.ensure_future(follower.run(lambda: over))
        await until(lambda: len(heard) == 2, "the last lines")
        cluster.dialer.cut()
        cluster.b.write(4, *((float(n), f"{n}") for n in range(10, 15)))
        await until(lambda: len(heard) == 7, "those of meanwhile")
        cluster.b.end()
        over = True
        await doing

    run(scene())
    assert [line.text for line in heard] == [str(n) for n in range(8, 15)]
