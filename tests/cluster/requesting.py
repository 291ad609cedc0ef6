"""A coordinator in a test: real StateStore, Controller, Requests and Api; nodes that are files.

a is the coordinator, b and c are members. Nothing is started: a test reports what shims would.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from tests.cluster.connections import FakeDialer, FakeNode, answers, pair
from tests.cluster.control.world import spec
from wiiiiided.cluster.allocation.archive_cache import Archives
from wiiiiided.cluster.control import events as e
from wiiiiided.cluster.control.job import Job, Owner
from wiiiiided.cluster.handlers.cluster_role import ClusterRole
from wiiiiided.cluster.handlers.dispatch import Requests
from wiiiiided.cluster.handlers.node_rpc import NodeRpc
from wiiiiided.cluster.handlers.nodes import Cluster
from wiiiiided.cluster.handlers.status import DaemonFacts
from wiiiiided.cluster.rpc import messages as m
from wiiiiided.cluster.rpc.connection import Caller, RpcConnection
from wiiiiided.cluster.rpc.server import RpcServer
from wiiiiided.cluster.state.controller import Controller
from wiiiiided.cluster.state.store import StateStore
from wiiiiided.cluster.system.settings import Settings
from wiiiiided.domain.metrics import RunForecast

ROOT = Caller(0, "root", True, "a")
ADA = Caller(1000, "ada", False, "a")
ARCHIVE = "ab" * 32


class FakeMetrics:
    """Nothing was counted."""

    def run(self, number: int) -> None:
        return None

    def job_dirs(self, number: int) -> tuple[()]:
        return ()

    def with_use(self, found: m.JobList) -> m.JobList:
        return found

    def starts(self, looks: int) -> None:
        return None

    def forecast(self, name: str) -> RunForecast:
        return RunForecast(0, f"nothing is known of {name}")

    def speeds(self, name: str) -> dict[int, float]:
        return {}


class FakeMembers:
    """The members of the cluster, by their certificates."""

    def __init__(self, *names: str) -> None:
        self._names = list(names)
        self.tokens: list[tuple[float, int, str]] = []

    def names(self) -> list[str]:
        return self._names

    def until(self, name: str) -> float | None:
        return 5e9 if name in self._names else None

    def remove(self, name: str) -> None:
        self._names.remove(name)

    def create_token(self, ttl_s: float, uses: int, by: str) -> m.TokenCreated:
        self.tokens.append((ttl_s, uses, by))
        return m.TokenCreated("wiiiiide1.secret", "10.0.0.1:9461", 1.0, uses)


def facts(node: FakeNode, state: Path) -> DaemonFacts:
    return DaemonFacts(
        *("private", node.node, 1.0, str(state)), str(node.job_dirs.root), node.job_dirs.user.name
    )


class Coordinator:
    """Made with `coordinator()`, inside a running loop."""

    def __init__(self, directory: Path, *, alone: bool = False) -> None:
        self.a, self.b, self.c = (FakeNode(name, directory) for name in "abc")
        others = () if alone else (self.b, self.c)
        self.settings = Settings()
        self.store = StateStore(directory / "state")
        self.actions: list[Any] = []
        self.controller = Controller(
            self.store,
            [self.a.node],
            lambda action, job: self.actions.append(action),
            lambda: self.on_change(),
        )
        self.on_change: Callable[[], None] = lambda: None
        for other in others:
            self.controller.report(e.NodeSeen(self.controller.clock(), other.node))
        self.dialer = FakeDialer({other.node.address: other.serve for other in others})
        self.members = FakeMembers("a", *(other.node.name for other in others))
        self.removed: list[tuple[str, str]] = []
        self.told: list[tuple[str, str]] = []  # that it is removed, and still listened to
        self.archives = Archives(directory / "state" / "archives")
        place = ("alone", "", "") if alone else ("coordinator", "lab", "a")
        self.cluster_role = ClusterRole(*place, lambda: True, str)  # type: ignore[arg-type]
        about = facts(self.a, directory / "state")
        dialer = None if alone else self.dialer
        node_rpc = NodeRpc(self.a.allocations, lambda: self.controller.state.nodes, dialer)
        cluster = Cluster("lab", self.members, self._removed)  # type: ignore[arg-type]
        self.requests = Requests(
            *(self.controller, self.archives, lambda: self.settings, about),
            *(self.cluster_role, FakeMetrics(), node_rpc),  # type: ignore[arg-type]
            None if alone else cluster,
            self._forget,
        )
        self.api = RpcServer(directory / "socket", False, self.requests.handle, "a")

    async def _forget(self, number: int) -> None:
        self.store.forget([number], [number])

    def _removed(self, node: str, by: str, listen: bool = False) -> None:
        (self.told if listen else self.removed).append((node, by))

    # ---- asking

    async def ask(self, request: m.Request, caller: Caller = ROOT) -> list[Any]:
        """Everything that is said to a request, as over the one port."""
        here, there = await pair()
        await here.say(request)
        await self.api.serve(there, caller)
        return await answers(here)

    async def one(self, request: m.Request, caller: Caller = ROOT) -> Any:
        (answer,) = await self.ask(request, caller)
        return answer

    async def serve(self, connection: RpcConnection) -> None:
        """For a FakeDialer of a member: root of b."""
        await self.api.serve(connection, Caller(0, "root", True, "b"))

    # ---- what happens

    def submit(
        self, *, owner: Owner | None = None, nodes: int = 1, prepare: bool = True, **given: Any
    ) -> int:
        number = self.store.next_id()
        made = spec(resources={"nodes": (nodes, nodes), "workers_per_node": 2}, **given)
        owner = owner or Owner("a", 1000, "ada")
        now = self.controller.clock()
        self.controller.ask(e.JobSubmitted(now, number, made, owner, ARCHIVE))
        if prepare:
            self.prepare(number)
        return number

    def prepare(self, number: int) -> None:
        attempt = self.job(number).attempt
        if attempt is not None and not attempt.ordered:
            for node in attempt.nodes:
                self.report(e.WorkersPrepared, number, node, "3.11.7", "2.13.0", "0.1.0")

    def start(self, number: int) -> None:
        attempt = self.job(number).attempt
        assert attempt is not None
        for node in () if attempt.ordered else attempt.nodes:
            self.report(e.WorkersPrepared, number, node, "3.11.7", "2.13.0", "0.1.0")
        for node in attempt.nodes:
            getattr(self, node).begin(number, attempt.number)
            self.report(e.WorkersStarted, number, node)

    def end(self, number: int, code: int = 0) -> None:
        attempt = self.job(number).attempt
        assert attempt is not None
        for node in attempt.live:
            getattr(self, node).end(number, attempt.number)
            self.report(e.WorkersEnded, number, node, code, "all ranks ended")

    def report(self, kind: Any, number: int, node: str, *rest: Any) -> None:
        attempt = self.job(number).attempt
        assert attempt is not None
        self.controller.report(kind(self.controller.clock(), number, attempt.number, node, *rest))

    def job(self, number: int) -> Job:
        found = self.controller.job(number)
        assert found is not None
        return found


@contextlib.contextmanager
def coordinator(directory: Path, *, alone: bool = False) -> Iterator[Coordinator]:
    made = Coordinator(directory, alone=alone)
    try:
        yield made
    finally:
        made.controller.close()
        made.store.close()
