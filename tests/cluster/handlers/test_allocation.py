"""What a node answers about its own allocation."""

from __future__ import annotations

import asyncio
import io
import json
import os
import tarfile
import threading
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

from tests.cluster.connections import FakeNode, FakeShim, answers, pair, run, until
from tests.cluster.control.world import GIB, World, spec
from wiiiiided.cluster.allocation.launcher import encode_job
from wiiiiided.cluster.handlers import allocation, log_tail
from wiiiiided.cluster.handlers.allocation import STACK_CHARS
from wiiiiided.cluster.peering import messages as p
from wiiiiided.cluster.rpc import messages as m
from wiiiiided.cluster.rpc.errors import Refuse
from wiiiiided.cluster.shim import protocol
from wiiiiided.cluster.shim.control_lines import RankStacks, RankState
from wiiiiided.cluster.system.settings import Settings
from wiiiiided.domain.node import Node


@pytest.fixture
def node(tmp_path: Path) -> FakeNode:
    return FakeNode("b", tmp_path)


async def asked(node: FakeNode, request: p.NodeRequest) -> list[Any]:
    """Everything the node says to a question."""
    here, there = await pair()
    serving = asyncio.ensure_future(node.allocations.handle(there, request))
    serving.add_done_callback(lambda _: there.close())
    found = await answers(here)
    await serving
    here.close()
    return found


def test_lines_name_the_node_and_come_by_time(node: FakeNode) -> None:
    node.write(2, (1.0, "one"), (3.0, "three"))
    node.write(3, (2.0, "two"))
    lines, end = run(asked(node, p.NodeLogs(1, 1)))
    assert [(line.text, line.rank, line.node) for line in lines.lines] == [
        ("one", 2, "b"),
        ("two", 3, "b"),
        ("three", 2, "b"),
    ]
    assert end == m.EndOfAnswers()


@pytest.mark.parametrize(
    ("where", "slow", "request_"),
    [
        (log_tail, "ranks_written", p.NodeLogs(1, 1, tail=5)),
        (log_tail, "_last_lines", p.NodeLogs(1, 1, tail=5)),
        (log_tail, "_after_zeros", p.NodeLogs(1, 1, tail=5)),
        (allocation, "ranks_written", p.NodeStacks(1, 1)),
    ],
)
def test_a_disk_that_does_not_answer_holds_up_no_other_request(
    node: FakeNode,
    where: ModuleType,
    slow: str,
    request_: p.NodeRequest,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    node.write(2, (1.0, "one"))
    node.job_dirs.write(1, 1, "stacks-2", b"one")
    begun, answered = threading.Event(), threading.Event()
    real = getattr(where, slow)

    def wait(*args: Any) -> Any:
        begun.set()
        assert answered.wait(60), "the loop waits for the disk"
        return real(*args)

    monkeypatch.setattr(where, slow, wait)

    async def others() -> list[Any]:
        asking = asyncio.ensure_future(asked(node, request_))
        await until(begun.is_set, "the disk is asked")
        answered.set()  # the loop goes on, so this is reached
        return await asking

    said, *_ = run(others())
    found = said.lines if isinstance(said, m.LogLines) else said.dumps
    assert [one.text for one in found] == ["one"]


def test_a_job_whose_files_take_long_holds_up_no_lines_of_another(
    node: FakeNode, monkeypatch: pytest.MonkeyPatch
) -> None:
    for job in (1, 2):
        node.write(2, (1.0, "one"), job=job)
    answered, slow = threading.Event(), threading.Event()
    real = log_tail.ranks_written

    def wait(job_dirs: Any, job: int, *rest: Any) -> Any:
        if job == 1:
            slow.set()
            assert answered.wait(60)
        return real(job_dirs, job, *rest)

    monkeypatch.setattr(log_tail, "ranks_written", wait)

    async def others() -> None:
        asking = [asyncio.ensure_future(asked(node, p.NodeLogs(1, 1))) for _ in range(50)]
        await until(slow.is_set, "the first job's files are read")
        try:
            lines, _ = await asked(node, p.NodeLogs(2, 1))
            assert [line.text for line in lines.lines] == ["one"]
            assert await asyncio.to_thread(lambda: "a thread for other work") != ""
        finally:
            answered.set()
        await asyncio.gather(*asking)

    run(others())


def test_files_are_read_no_more_when_the_client_has_gone(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    begun = threading.Event()

    def never(*given: Any) -> bool:
        begun.set()
        return False

    monkeypatch.setattr(allocation, "READERS", 1)
    monkeypatch.setattr(log_tail, "_is_hole", never)  # so that a TiB is really read
    node = FakeNode("b", tmp_path)
    node.workers.settings = lambda: Settings(log_bytes=1 << 40)
    for job in (1, 2):
        node.write(2, (1.0, "one"), job=job)
    os.truncate(node.job_dirs.attempt(1, 1) / "rank-2.log", 1 << 40)

    async def scene() -> None:
        here, there = await pair()
        serving = asyncio.ensure_future(node.allocations.handle(there, p.NodeLogs(1, 1, tail=9)))
        await until(begun.is_set, "its files are read")
        here.close()
        await until(serving.done, "it has ended")
        lines, _ = await asked(node, p.NodeLogs(2, 1))
        assert [line.text for line in lines.lines] == ["one"]

    run(scene())


def test_no_more_files_are_read_than_the_job_has_ranks(node: FakeNode) -> None:
    keep(node, 2)
    for attempt in (1, 2):
        for rank in range(9):
            node.write(rank, (float(rank), str(rank)), attempt=attempt)
        lines, _ = run(asked(node, p.NodeLogs(1, attempt)))
        assert [line.text for line in lines.lines] == ["0", "1"]


def test_only_the_ranks_that_are_asked_for(node: FakeNode) -> None:
    node.write(2, (1.0, "one"))
    node.write(3, (2.0, "two"))
    lines, _ = run(asked(node, p.NodeLogs(1, 1, (3, 99))))
    assert [line.text for line in lines.lines] == ["two"]


def test_an_attempt_it_never_heard_of_has_no_lines(node: FakeNode) -> None:
    assert run(asked(node, p.NodeLogs(7, 3))) == [m.EndOfAnswers()]
    assert run(asked(node, p.NodeLogs(7, 3, follow=True))) == [m.EndOfAnswers()]


def test_following_ends_with_the_allocation_and_has_its_last_line(node: FakeNode) -> None:
    async def scene() -> list[str]:
        node.begin()
        node.write(0, (1.0, "first"))
        here, there = await pair()
        serving = asyncio.ensure_future(
            node.allocations.handle(there, p.NodeLogs(1, 1, follow=True))
        )
        texts = [line.text for line in m.decode_answer(await here.message()).lines]
        node.write(5, (2.0, "of a rank that began later"))
        texts += [line.text for line in m.decode_answer(await here.message()).lines]
        node.write(0, (3.0, "last"))
        node.end()
        texts += [line.text for line in m.decode_answer(await here.message()).lines]
        assert m.decode_answer(await here.message()) == m.EndOfAnswers()
        await serving
        return texts

    assert run(scene()) == ["first", "of a rank that began later", "last"]


def test_a_quiet_allocation_says_that_the_node_is_still_there(
    node: FakeNode, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("wiiiiided.cluster.handlers.allocation.QUIET_S", 0.1)

    async def scene() -> m.Answer:
        node.begin()
        here, there = await pair()
        serving = asyncio.ensure_future(
            node.allocations.handle(there, p.NodeLogs(1, 1, follow=True))
        )
        heard = m.decode_answer(await here.message())
        here.close()
        await serving
        there.close()
        return heard

    assert run(scene()) == m.LogLines(())


def test_following_ends_when_the_client_has_gone(node: FakeNode) -> None:
    async def scene() -> None:
        node.begin()
        here, there = await pair()
        serving = asyncio.ensure_future(
            node.allocations.handle(there, p.NodeLogs(1, 1, follow=True))
        )
        here.close()
        await until(serving.done, "it has ended")
        await serving
        there.close()

    run(scene())


def test_pids_of_those_that_run_and_codes_of_those_that_ended(node: FakeNode) -> None:
    node.begin()
    node.workers.shims[1, 1] = FakeShim(RankState(2, 11), RankState(3, 12, code=1))
    found = node.allocations.ranks(p.NodeRanks(1, 1))
    assert found.pids == {2: 11, 3: 12}
    assert found.codes == {3: 1}
    assert found.directory == str(node.job_dirs.job(1))


def test_the_end_of_an_allocation_has_its_codes_and_its_error(node: FakeNode) -> None:
    node.begin()
    end = protocol.AttemptEnd(1.0, {"2": 1, "3": 143}, 1, 2, error="ValueError: no")
    node.job_dirs.write(1, 1, protocol.EXIT, protocol.to_bytes(end))
    found = node.allocations.ranks(p.NodeRanks(1, 1))
    assert (found.codes, found.error) == ({2: 1, 3: 143}, "ValueError: no")


def test_a_record_that_the_job_spoiled_is_no_record(node: FakeNode) -> None:
    node.begin()
    node.job_dirs.write(1, 1, protocol.EXIT, json.dumps({"codes": "?"}).encode())
    assert node.allocations.ranks(p.NodeRanks(1, 1)).codes == {}


def test_of_a_job_without_files_nothing_is_said(node: FakeNode) -> None:
    assert node.allocations.ranks(p.NodeRanks(1, 1)) == p.AllocationView()


def test_stacks_come_from_the_shim_while_it_runs(node: FakeNode) -> None:
    node.begin()
    node.workers.shims[1, 1] = FakeShim(RankStacks(2, 11, "here"), RankStacks(-1, None, ""))
    (found,) = run(asked(node, p.NodeStacks(1, 1)))
    assert found.dumps == (m.StackDump(2, 11, "here"), m.StackDump(-1, None, ""))


def test_stacks_that_a_hang_left_behind_are_of_the_latest_attempt_that_has_any(
    node: FakeNode,
) -> None:
    for attempt in (1, 2, 3):
        node.job_dirs.make(1, attempt)
        node.job_dirs.write(1, attempt, "stacks-0", b"")
    for attempt in (1, 2):
        node.job_dirs.write(1, attempt, "stacks-0", f"of attempt {attempt}".encode())
    (found,) = run(asked(node, p.NodeStacks(1, 3)))
    assert found.dumps == (m.StackDump(0, None, "of attempt 2"),)
    assert run(asked(node, p.NodeStacks(9, 1))) == [m.StackDumps(())]


def keep(node: FakeNode, workers: int) -> None:
    """The node knows of job 1 how many ranks it has here, in attempt 1."""
    world = World(Node("b", 8, GIB))
    job = world.job(world.submit(spec(resources={"use": ("b",), "workers_per_node": workers})))
    node.job_dirs.make(1, 1)
    node.job_dirs.keep(1, encode_job(job))


def test_stacks_that_a_job_has_stretched_are_the_ends_of_its_own_ranks(node: FakeNode) -> None:
    keep(node, 3)
    for attempt in (1, 2):
        node.job_dirs.make(1, attempt)
        for rank in range(100):
            path = node.job_dirs.attempt(1, attempt) / f"stacks-{rank}"
            path.write_bytes(b"first")
            os.truncate(path, 1 << 40)
            with path.open("ab") as file:
                file.write(b"last")
    for attempt in (1, 2):  # of the second only the number of its ranks is known here
        (found,) = run(asked(node, p.NodeStacks(1, attempt)))
        assert [dump.rank for dump in found.dumps] == [0, 1, 2]
        assert {len(dump.text) for dump in found.dumps} == {STACK_CHARS}
        assert all(dump.text.endswith("\0last") for dump in found.dumps)


def test_stacks_of_many_ranks_that_ended_have_a_bound_together(
    node: FakeNode, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(allocation, "DUMPS_BYTES", 1000)
    node.job_dirs.make(1, 1)
    for rank in range(10):
        node.job_dirs.write(1, 1, f"stacks-{rank}", b"x" * 5000)
    (found,) = run(asked(node, p.NodeStacks(1, 1)))
    assert [len(dump.text) for dump in found.dumps] == [100] * 10


def test_files_come_as_a_tar(node: FakeNode) -> None:
    node.give({"runs/1.pt": "weights", "other": "x"})
    data, end = run(asked(node, p.NodePull(1, ("runs/**",))))
    with tarfile.open(fileobj=io.BytesIO(data)) as archive:
        assert archive.getnames() == ["runs/1.pt"]
    assert end == m.EndOfAnswers()


def test_files_that_are_not_there_are_refused_so_that_others_can_go_on(node: FakeNode) -> None:
    (no,) = run(asked(node, p.NodePull(1, ("**",))))
    assert isinstance(no, m.Refusal)
    assert no.code == 6
    assert "has no files on b" in no.message


def test_files_that_cannot_all_be_read_are_said_to_be_so_at_the_end(node: FakeNode) -> None:
    node.give({"x": "1"})
    *_, no = run(asked(node, p.NodePull(1, ("../*",))))
    assert isinstance(no, m.Refusal)
    assert no.code == 1
    assert "could not all be read" in no.message


def test_a_tar_whose_reader_has_gone_leaves_no_process(node: FakeNode) -> None:
    node.give({"large": "x" * (8 << 20)})

    async def scene() -> None:
        pieces = node.allocations.pull(p.NodePull(1, ("**",)))
        await anext(pieces)
        await pieces.aclose()

    run(scene())
    assert [process.returncode is not None for process in node.workers.tars] == [True]


def test_a_refusal_is_the_callers_when_it_is_asked_directly(node: FakeNode) -> None:
    async def scene() -> None:
        with pytest.raises(Refuse, match="no files"):
            await anext(node.allocations.pull(p.NodePull(1, ("**",))))

    run(scene())
