"""Requests about machines: which users may ask, what is refused, and the order of a removal."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import pytest

from tests.cluster.connections import pair, run, until
from tests.cluster.requesting import ADA, ROOT, Coordinator, coordinator
from wiiiiided.cluster.control import events as e
from wiiiiided.cluster.rpc import messages as m
from wiiiiided.cluster.state.store import StoreError
from wiiiiided.domain.spec import Restart

CHANGES = [
    m.CreateToken(),
    m.Drain("b"),
    m.Resume("b"),
    m.DeclareLost("b"),
    m.RemoveNode("b"),
]


@pytest.mark.parametrize("request_", CHANGES)
def test_only_root_or_the_daemons_user_changes_machines(tmp_path: Path, request_: Any) -> None:
    async def scene() -> None:
        with coordinator(tmp_path) as cluster:
            before = await cluster.one(m.ListNodes(), ADA)
            no = await cluster.one(request_, ADA)
            assert no.code == 5
            assert no.message.startswith("only root, or the daemon's own user, may ")
            assert no.message.endswith(": ada is neither")
            assert len((await cluster.one(m.ListNodes(), ADA)).nodes) == len(before.nodes) == 3
            assert cluster.members.names() == ["a", "b", "c"]

    run(scene())


@pytest.mark.parametrize("request_", CHANGES[1:])
def test_a_node_that_does_not_exist_is_exit_code_6(tmp_path: Path, request_: Any) -> None:
    async def scene() -> None:
        with coordinator(tmp_path) as cluster:
            no = await cluster.one(type(request_)("x\x1b[2J"))
            assert (no.code, "there is no node x?[2J" in no.message) == (6, True)

    run(scene())


def test_the_list_has_every_machine_and_how_it_stands(tmp_path: Path) -> None:
    async def scene() -> None:
        with coordinator(tmp_path) as cluster:
            job = cluster.submit(nodes=2)
            found = await cluster.one(m.ListNodes(), ADA)
            assert found.cluster == "lab"
            assert [(n.node.name, n.state, n.coordinator, n.jobs) for n in found.nodes] == [
                ("a", "ok", True, (job,)),
                ("b", "ok", False, (job,)),
                ("c", "idle", False, ()),
            ]
            assert all(n.certificate_until == 5e9 for n in found.nodes)

    run(scene())


def test_a_machine_alone_is_a_list_of_one_and_in_no_cluster(tmp_path: Path) -> None:
    async def scene() -> None:
        with coordinator(tmp_path, alone=True) as cluster:
            found = await cluster.one(m.ListNodes())
            assert (found.cluster, [n.node.name for n in found.nodes]) == ("", ["a"])
            assert not found.nodes[0].coordinator
            for request in (m.CreateToken(), m.RemoveNode("a"), m.DeclareLost("a")):
                no = await cluster.one(request)
                assert (no.code, no.message) == (1, "a is in no cluster")
                assert "wiiiiide init" in no.hint

    run(scene())


def test_an_allocation_on_a_node_of_a_former_cluster_can_be_ended_by_a_machine_alone(
    tmp_path: Path,
) -> None:
    async def scene() -> None:
        with coordinator(tmp_path) as before:
            job = before.submit(nodes=2)
            before.start(job)
            before.report(e.WorkersEnded, job, "a", 1, "it failed")
            before.store.forget_nodes()
        with coordinator(tmp_path, alone=True) as machine:
            assert machine.job(job).state == "stopping"
            no = await machine.one(m.DeclareLost("c"))  # on which nothing is
            assert no.message == "a is in no cluster"
            view = await machine.one(m.DeclareLost("b"))
            assert (view.node.name, view.state) == ("b", "lost")
            assert machine.job(job).state == "failed"

    run(scene())


def test_a_machine_alone_can_be_drained(tmp_path: Path) -> None:
    async def scene() -> None:
        with coordinator(tmp_path, alone=True) as cluster:
            assert (await cluster.one(m.Drain("a"))).state == "drained"

    run(scene())


def test_a_token_is_made_for_an_administrator(tmp_path: Path) -> None:
    async def scene() -> None:
        with coordinator(tmp_path) as cluster:
            made = await cluster.one(m.CreateToken(60.0, 3))
            assert made.token == "wiiiiide1.secret"
            assert cluster.members.tokens == [(60.0, 3, "root")]

    run(scene())


def test_a_token_is_in_no_log(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    async def scene() -> None:
        with coordinator(tmp_path) as cluster:
            await cluster.one(m.CreateToken(60.0, 3))

    with caplog.at_level("DEBUG"):
        run(scene())
    assert "secret" not in caplog.text


def test_drain_and_resume_say_how_the_node_stands_then(tmp_path: Path) -> None:
    async def scene() -> None:
        with coordinator(tmp_path) as cluster:
            view = await cluster.one(m.Drain("b", "fan\x07 broken" + "x" * 1000))
            assert view.state == "drained"
            assert view.why.startswith("drained by root: fan? broken")
            assert len(view.why) < 300
            assert (await cluster.one(m.Resume("b"))).state == "idle"
            no = await cluster.one(m.Resume("b"))
            assert (no.code, "not drained" in no.message) == (1, True)

    run(scene())


def test_a_node_that_is_heard_cannot_be_declared_lost(tmp_path: Path) -> None:
    async def scene() -> None:
        with coordinator(tmp_path) as cluster:
            no = await cluster.one(m.DeclareLost("b"))
            assert (no.code, "b is heard" in no.message) == (1, True)
            cluster.controller.report(e.NodeLeft(cluster.controller.clock(), "b"))
            view = await cluster.one(m.DeclareLost("b"))
            assert (view.state, "declared lost" in view.why) == ("lost", True)

    run(scene())


def test_a_removed_node_is_refused_forgotten_and_told(tmp_path: Path) -> None:
    async def scene() -> None:
        with coordinator(tmp_path) as cluster:
            view = await cluster.one(m.RemoveNode("b"))
            assert (view.node.name, view.why) == ("b", "removed by root")
            assert cluster.members.names() == ["a", "c"]
            assert list(cluster.controller.state.nodes) == ["a", "c"]
            assert cluster.removed == [("b", "root")]

    run(scene())


def test_a_node_with_jobs_is_removed_by_force_only(tmp_path: Path) -> None:
    async def scene() -> None:
        with coordinator(tmp_path) as cluster:
            job = cluster.submit(nodes=2)
            cluster.start(job)
            no = await cluster.one(m.RemoveNode("b"))
            assert (no.code, "--force" in no.message) == (1, True)
            assert cluster.members.names() == ["a", "b", "c"]
            removing = asyncio.ensure_future(cluster.one(m.RemoveNode("b", force=True)))
            await until(lambda: cluster.told == [("b", "root")], "b is told")
            cluster.report(e.WorkersEnded, job, "b", 143, "stopped", True)
            assert (await removing).why == "removed by root"
            assert "b" in cluster.job(job).attempt.results  # type: ignore[union-attr]

    run(scene())


def test_a_node_that_is_heard_keeps_its_place_until_its_allocations_end(
    tmp_path: Path,
) -> None:
    """Else the same would run twice: there, and where it is started again."""

    async def scene() -> None:
        with coordinator(tmp_path) as cluster:
            restart = Restart(max=1, on=("node-lost",), backoff_s=60.0)
            job = cluster.submit(nodes=2, policy={"restart": restart})
            cluster.start(job)
            removing = asyncio.ensure_future(cluster.one(m.RemoveNode("b", force=True)))
            await until(lambda: cluster.told == [("b", "root")], "b is told")
            assert cluster.members.names() == ["a", "c"]  # refused from now on
            view = next(n for n in (await cluster.one(m.ListNodes())).nodes if n.node.name == "b")
            assert (view.state, view.jobs) == ("drained", (job,))
            assert "drained by root: is being removed" in view.why
            assert cluster.job(job).state == "running"
            assert (removing.done(), cluster.removed) == (False, [])
            cluster.report(e.WorkersEnded, job, "b", 143, "stopped: it was removed", True)
            assert (await removing).why == "removed by root"
            assert (cluster.removed, "b" in cluster.controller.state.nodes) == (
                [("b", "root")],
                False,
            )
            cluster.end(job, 143)
            assert cluster.job(job).state == "backoff"  # by the policy for a lost node

    run(scene())


def test_a_removal_is_finished_whether_its_client_listens_or_not(tmp_path: Path) -> None:
    async def scene() -> None:
        with coordinator(tmp_path) as cluster:
            job = cluster.submit(nodes=2)
            cluster.start(job)
            here, there = await pair()
            await here.say(m.RemoveNode("b", force=True))
            serving = asyncio.ensure_future(cluster.api.serve(there, ROOT))
            await until(lambda: cluster.told == [("b", "root")], "b is told")
            here.close()
            await serving
            assert "b" in cluster.controller.state.nodes
            second = asyncio.ensure_future(cluster.one(m.RemoveNode("b", force=True)))
            cluster.report(e.WorkersEnded, job, "b", 143, "stopped", True)
            assert (await second).why == "removed by root"
            assert list(cluster.controller.state.nodes) == ["a", "c"]
            assert (cluster.told, cluster.removed) == ([("b", "root")], [("b", "root")])

    run(scene())


def test_allocations_that_a_removed_node_does_not_end_are_not_waited_for_for_ever(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("wiiiiided.cluster.handlers.nodes.ENDS_S", 0.1)

    async def scene() -> None:
        with coordinator(tmp_path) as cluster:
            job = cluster.submit(nodes=2)
            cluster.start(job)
            await cluster.one(m.RemoveNode("b", force=True))
            result = cluster.job(job).attempt.results["b"]  # type: ignore[union-attr]
            assert (result.lost, result.reason) == (True, "b was removed by root")

    run(scene())


def test_the_client_is_told_when_an_allocation_takes_long_to_end(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("wiiiiided.cluster.handlers.nodes.ANSWER_S", 0.05)

    async def scene() -> None:
        with coordinator(tmp_path) as cluster:
            job = cluster.submit(nodes=2)
            cluster.start(job)
            said = await cluster.one(m.RemoveNode("b", force=True))
            assert said.message.startswith(f"b is refused from now on, but its part of job {job} ")
            assert "b" in cluster.controller.state.nodes
            cluster.report(e.WorkersEnded, job, "b", 143, "stopped", True)
            await until(lambda: "b" not in cluster.controller.state.nodes, "it is removed")

    run(scene())


def test_an_allocation_that_was_not_told_to_start_is_not_waited_for(tmp_path: Path) -> None:
    async def scene() -> None:
        with coordinator(tmp_path) as cluster:
            job = cluster.submit(nodes=2, prepare=False)
            await cluster.one(m.RemoveNode("b", force=True))
            attempt = cluster.job(job).attempt
            assert attempt is not None
            assert "b" in attempt.results
            assert list(cluster.controller.state.nodes) == ["a", "c"]

    run(scene())


def test_for_a_node_that_is_not_heard_the_person_vouches(tmp_path: Path) -> None:
    async def scene() -> None:
        with coordinator(tmp_path) as cluster:
            job = cluster.submit(nodes=2)
            cluster.start(job)
            cluster.controller.report(e.NodeLeft(cluster.controller.clock(), "b"))
            await cluster.one(m.RemoveNode("b", force=True))
            assert (cluster.told, cluster.removed) == ([], [("b", "root")])
            assert "b" in cluster.job(job).attempt.results  # type: ignore[union-attr]

    run(scene())


def test_the_coordinator_cannot_be_removed(tmp_path: Path) -> None:
    async def scene() -> None:
        with coordinator(tmp_path) as cluster:
            no = await cluster.one(m.RemoveNode("a", force=True))
            assert "is the coordinator" in no.message

    run(scene())


def test_a_removal_that_stopped_halfway_is_finished_when_it_is_asked_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def scene() -> None:
        with coordinator(tmp_path) as cluster:
            with monkeypatch.context() as patch:
                patch.setattr(cluster.store, "commit", _full)
                no = await cluster.one(m.RemoveNode("b"))
                assert "disk is full" in no.message
            assert cluster.members.names() == ["a", "c"]  # the certificate counts no more
            assert await _remove(cluster) == ["a", "c"]
            assert cluster.removed == [("b", "root")]

    run(scene())


async def _remove(cluster: Coordinator) -> list[str]:
    view = await cluster.one(m.RemoveNode("b"), ROOT)
    assert view.why == "removed by root"
    return list(cluster.controller.state.nodes)


def _full(*given: object) -> None:
    raise StoreError("the disk is full")
