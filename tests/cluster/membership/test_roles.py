"""init, join, leave, renew: a machine changes what it is, and its jobs do not notice."""

from __future__ import annotations

import asyncio
import contextlib
import os
import socket
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from tests.cluster.membership.test_links import WAITS
from tests.kit.conditions import wait_until
from tests.kit.daemons import (
    PrivateDaemon,
    free_port,
    invitation,
    join_cluster,
    make_cluster,
    node_states,
    private_cluster,
    private_daemon,
)
from wiiiiided.cluster.client import ClientError
from wiiiiided.cluster.client.machines import settle
from wiiiiided.cluster.daemon.member import Member
from wiiiiided.cluster.membership.roles import Roles
from wiiiiided.cluster.rpc import messages as m
from wiiiiided.cluster.rpc.connection import Caller
from wiiiiided.cluster.rpc.errors import Refuse
from wiiiiided.domain.node import Node


@pytest.fixture
def pair() -> Iterator[list[PrivateDaemon]]:
    with private_cluster(2) as daemons:
        yield daemons


@contextlib.contextmanager
def machines(number: int) -> Iterator[list[PrivateDaemon]]:
    with contextlib.ExitStack() as stack:
        yield [stack.enter_context(private_daemon()) for _ in range(number)]


def waiting(daemon: PrivateDaemon, go: Path, **rest: Any) -> int:
    return daemon.submit(command=("python", "-c", WAITS, str(go)), **rest)


# ---- leaving by force


class Shares:
    """Of a member: two in a row, and neither ends unless it is told to, or ever if `stubborn`."""

    def __init__(self, stubborn: bool) -> None:
        self.stubborn = stubborn
        policy = SimpleNamespace(grace_s=0.0)
        self.following = {(1, 1): SimpleNamespace(spec=SimpleNamespace(policy=policy))}
        self.shims = {(1, 1): SimpleNamespace(was_stopped=False)}

    def reconcile(self, given: tuple[()], reason: str, grace: bool) -> None:
        for key, shim in list(self.shims.items()):
            shim.was_stopped = True
            if not self.stubborn:
                asyncio.get_running_loop().call_soon(self.end, key)

    def end(self, key: tuple[int, int]) -> None:
        """The order for the next was on its way already."""
        del self.shims[key]
        job = self.following.pop(key)
        if key == (1, 1):
            self.shims[2, 1] = SimpleNamespace(was_stopped=False)
            self.following[2, 1] = job


def end_all(shares: Shares) -> None:
    async def work() -> None:
        member: Any = SimpleNamespace(workers=shares, loop=asyncio.get_running_loop())
        async with asyncio.timeout(30):
            await Member._end_all(member, "it leaves", "resume it")

    asyncio.run(work())


def test_an_allocation_that_was_on_its_way_to_a_machine_that_leaves_ends_as_well() -> None:
    shares = Shares(stubborn=False)
    end_all(shares)
    assert shares.shims == {}


def test_a_machine_whose_allocation_does_not_end_stays_and_says_that_it_is_drained(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("wiiiiided.cluster.daemon.member.END_S", 0.1)
    with pytest.raises(Refuse, match="does not end") as caught:
        end_all(Shares(stubborn=True))
    assert caught.value.hint == "resume it"


# ---- there and back


def test_init_leaves_running_jobs_alone(tmp_path: Path) -> None:
    with private_daemon() as a:
        job = waiting(a, tmp_path / "go")
        a.wait_for(job, "running")
        pids = a.pids(job)
        view = a.client.init("lab", "127.0.0.2", free_port("127.0.0.2"))
        assert (view.role, view.cluster) == ("coordinator", "lab")
        status = settle(a.client.status, "coordinator")
        assert (status.role, status.cluster, status.problem) == ("coordinator", "lab", "")
        assert status.node.endpoint == view.address
        wait_until(lambda: a.pids(job) == pids, 30, "the same ranks are known again")
        (tmp_path / "go").touch()
        assert a.end_of(job).state == "done"
        assert a.client.leave().role == "alone"
        assert settle(a.client.status, "alone").cluster == ""
        assert a.state(job) == "done"


def test_a_member_sees_the_clusters_jobs_and_its_own_again_when_it_has_left() -> None:
    with machines(2) as (a, b):
        before = b.submit("print('before')")
        b.end_of(before)
        make_cluster([a, b])
        assert b.client.jobs(ended=10).jobs == ()
        inside = b.submit("print('inside')", use=("b",))
        assert inside == before == 1
        assert a.end_of(inside).state == "done"
        assert b.output(inside) == ["inside"]
        assert b.client.leave().role == "alone"
        settle(b.client.status, "alone")
        assert b.output(before) == ["before"]
        assert "b" not in node_states(a)
        assert (b.paths.jobs / "left-lab" / "1").is_dir()
        join_cluster(a, b, "b", "127.0.0.3")
        assert node_states(a)["b"] == "idle"
        assert b.submit("pass") == 2
        assert a.end_of(2).state == "done"


def test_a_role_survives_a_restart(pair: list[PrivateDaemon]) -> None:
    for daemon in pair:
        daemon.stop()
    for daemon in pair:
        daemon.start()
    a, b = pair
    assert settle(a.client.status, "coordinator").cluster == "lab"
    assert settle(b.client.status, "member").coordinator == a.client.status().node.name


def test_nothing_secret_is_logged_or_readable(pair: list[PrivateDaemon]) -> None:
    a, b = pair
    token = a.client.create_token().token
    assert token.partition(".")[2] not in a.said() + b.said()
    for daemon in pair:
        directory = daemon.paths.state / "cluster"
        assert directory.stat().st_mode & 0o777 == 0o700
        assert {path.stat().st_mode & 0o077 for path in directory.iterdir()} == {0}


def test_a_certificate_is_renewed_over_the_link(pair: list[PrivateDaemon]) -> None:
    a, b = pair
    for daemon in pair:
        old = (daemon.paths.state / "cluster" / "node.key").read_bytes()
        view = daemon.client.renew()
        assert view.certificate_until is not None
        assert (daemon.paths.state / "cluster" / "node.key").read_bytes() != old
    b.stop()
    b.start()
    settle(b.client.status, "member")
    a.stop()
    a.start()
    settle(a.client.status, "coordinator")
    settle(b.client.status, "member")
    assert b.end_of(b.submit("pass", use=("b",))).state == "done"


def test_the_service_manager_hears_ready_once_and_then_what_this_machine_is(
    tmp_path: Path,
) -> None:
    path = f"\0wiiiiide-test-{tmp_path.name}-{os.getpid()}"
    heard: list[str] = []
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as manager:
        manager.bind(path)
        manager.settimeout(60)
        with private_daemon(start=False) as a:
            a.start(NOTIFY_SOCKET="@" + path[1:])
            a.client.init("lab", "127.0.0.2", free_port("127.0.0.2"))
            while "coordinator of lab" not in "".join(heard):
                heard.append(manager.recv(4096).decode())
            settle(a.client.status, "coordinator")
    assert "".join(heard).count("READY=1") == 1


# ---- refusals


def test_a_machine_with_jobs_that_are_not_over_does_not_join(tmp_path: Path) -> None:
    with machines(2) as (a, b):
        a.client.init("lab", "127.0.0.2", free_port("127.0.0.2"))
        settle(a.client.status, "coordinator")
        job = b.submit("pass", hold=True)
        with pytest.raises(ClientError, match="1 job of this machine's own queue"):
            join_cluster(a, b, "b", "127.0.0.3")
        b.client.cancel(job)
        join_cluster(a, b, "b", "127.0.0.3")


def test_a_machine_of_a_cluster_begins_no_other(pair: list[PrivateDaemon]) -> None:
    a, b = pair
    for daemon, role in ((a, "the coordinator"), (b, "a member")):
        with pytest.raises(ClientError, match=f"is {role} of lab already"):
            daemon.client.init("other", "127.0.0.2", free_port("127.0.0.2"))
    with private_daemon() as c:
        for request in (c.client.leave, c.client.renew):
            with pytest.raises(ClientError, match="in no cluster"):
                request()


def test_a_coordinator_with_members_stays_unless_forced(pair: list[PrivateDaemon]) -> None:
    a, b = pair
    with pytest.raises(ClientError, match="b is still in the cluster"):
        a.client.leave()
    assert a.client.leave(force=True).role == "alone"
    settle(a.client.status, "alone")
    assert list(node_states(a)) == [a.client.status().node.name]
    with pytest.raises(ClientError):
        b.client.leave()
    b.client.leave(force=True)
    settle(b.client.status, "alone")


def test_a_member_with_an_allocation_leaves_by_force_only(
    pair: list[PrivateDaemon], tmp_path: Path
) -> None:
    a, b = pair
    job = waiting(a, tmp_path / "go", nodes=2)
    a.wait_for(job, "running")
    with pytest.raises(ClientError, match="job"):
        b.client.leave()
    assert b.client.status().role == "member"
    assert a.state(job) == "running"
    b.client.leave(force=True)
    settle(b.client.status, "alone")
    assert not b.processes()
    assert a.end_of(job).state == "failed"


def test_a_role_that_cannot_be_taken_up_leaves_the_machine_alone() -> None:
    with machines(2) as (a, b):
        a.client.init("lab", "127.0.0.2", free_port("127.0.0.2"))
        settle(a.client.status, "coordinator")
        b.end_of(b.submit("pass"))
        (b.paths.jobs / "before-lab").touch()  # where its own jobs are to go
        assert b.client.join(invitation(a, "b", "127.0.0.3")).role == "member"

        def says_so() -> bool:
            with contextlib.suppress(ClientError):  # while it is being built anew
                return "stays alone" in b.client.status().problem
            return False

        wait_until(says_so, 60, "it says so")
        assert b.client.status().role == "alone"
        assert not (b.paths.state / "cluster").exists()
        assert b.end_of(b.submit("pass")).state == "done"


# ---- in one process


class Nowhere:
    """A place in no cluster that would let everything happen."""

    def unfinished(self) -> str:
        return ""

    async def part(self, by: str, force: bool) -> None:
        raise AssertionError("nobody may")

    async def renew(self) -> Any:
        raise AssertionError("nobody may")

    def rebuild(self) -> None:
        pass


class Words:
    """A talk that keeps what is said."""

    def __init__(self, caller: Caller, peer: object = None) -> None:
        self.caller, self.peer = caller, peer
        self.said: list[Any] = []

    async def say(self, message: Any) -> None:
        self.said.append(message)


def roles(tmp_path: Path) -> Roles:
    return Roles(tmp_path, Node("a", 2, 1 << 30), None, Nowhere())


ROOT = Caller(0, "root", admin=True, node="a")
REQUESTS = [m.Init(), m.Join("h", 1, "t"), m.Leave(), m.Renew()]


@pytest.mark.parametrize("request_", REQUESTS)
def test_only_an_administrator_changes_a_role(tmp_path: Path, request_: Any) -> None:
    connection: Any = Words(Caller(1000, "ada", admin=False, node="a"))
    with pytest.raises(Refuse, match="ada is neither") as no:
        asyncio.run(roles(tmp_path).handle(connection, request_))
    assert no.value.code == 5


@pytest.mark.parametrize("request_", REQUESTS)
def test_no_user_changes_another_machines_role(tmp_path: Path, request_: Any) -> None:
    connection: Any = Words(ROOT, peer=object())
    with pytest.raises(Refuse, match="asked of the machine that it is about"):
        asyncio.run(roles(tmp_path).handle(connection, request_))


def test_a_change_goes_on_when_its_client_goes(tmp_path: Path) -> None:
    """A client that hangs up in the middle of a join must not leave half a member behind."""
    done = asyncio.Event()

    begun, go = asyncio.Event(), asyncio.Event()

    class Slow(Roles):
        async def _change(self, caller: Caller, request: Any) -> m.ClusterView:
            begun.set()
            await go.wait()
            return m.ClusterView("lab", "member", "a")

    async def work() -> None:
        here = Nowhere()
        here.rebuild = done.set  # type: ignore[method-assign]
        made = Slow(tmp_path, Node("a", 2, 1 << 30), None, here)
        connection: Any = Words(ROOT)
        asking = asyncio.ensure_future(made.handle(connection, m.Join("h", 1, "t")))
        async with asyncio.timeout(30):
            await begun.wait()
            asking.cancel()
            await asyncio.wait({asking})
            go.set()
            await done.wait()

    asyncio.run(work())


def test_no_job_is_taken_in_while_a_role_changes(tmp_path: Path) -> None:
    begun, go = asyncio.Event(), asyncio.Event()

    class Slow(Roles):
        async def _change(self, caller: Caller, request: Any) -> m.ClusterView:
            begun.set()
            await go.wait()
            raise Refuse(1, "not today")

    async def work() -> None:
        made = Slow(tmp_path, Node("a", 2, 1 << 30), None, Nowhere())
        taken = []

        async def handle(connection: Any, request: m.Request) -> None:
            taken.append(request)

        sorted_out = made.before(handle)
        connection: Any = Words(ROOT)
        changing = asyncio.ensure_future(sorted_out(connection, m.Join("h", 1, "t")))
        await begun.wait()
        with pytest.raises(Refuse, match="join is under way"):
            await sorted_out(connection, m.Requeue(1))
        await sorted_out(connection, m.ListJobs())
        go.set()
        with pytest.raises(Refuse, match="not today"):
            await changing
        await sorted_out(connection, m.Requeue(1))
        assert taken == [m.ListJobs(), m.Requeue(1)]

    asyncio.run(work())
