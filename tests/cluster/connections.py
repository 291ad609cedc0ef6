"""Two ends of a connection in one process, and nodes that are asked over them."""

from __future__ import annotations

import asyncio
import socket
import subprocess
from collections.abc import Awaitable, Callable, Coroutine
from pathlib import Path
from types import SimpleNamespace
from typing import Any

from wiiiiided.cluster.allocation.cancellations import Cancellations
from wiiiiided.cluster.allocation.job_dirs import JobDirs
from wiiiiided.cluster.allocation.shim_process import shim_command
from wiiiiided.cluster.allocation.spawn import JobAccount
from wiiiiided.cluster.allocation.workers import Workers
from wiiiiided.cluster.handlers.allocation import LocalAllocations
from wiiiiided.cluster.membership.dial import Unreachable
from wiiiiided.cluster.peering import messages as p
from wiiiiided.cluster.rpc import framing
from wiiiiided.cluster.rpc import messages as m
from wiiiiided.cluster.rpc.connection import RpcConnection
from wiiiiided.cluster.shim.control_lines import RankStacks, RankState
from wiiiiided.cluster.system.settings import Settings
from wiiiiided.domain.node import Node

WITHIN_S = 60.0
Serve = Callable[[RpcConnection], Awaitable[None]]
_made: list[RpcConnection] = []


def run(work: Coroutine[Any, Any, Any]) -> Any:
    """A test's coroutine, with a deadline; connections it made are closed behind it."""

    async def bounded() -> Any:
        try:
            async with asyncio.timeout(WITHIN_S):
                return await work
        finally:
            while _made:
                _made.pop().close()
            await asyncio.sleep(0)
            await asyncio.sleep(0)

    return asyncio.run(bounded())


async def pair(limit: int = framing.LIMITS[framing.MESSAGE]) -> tuple[RpcConnection, RpcConnection]:
    """Both ends of a connection."""
    ends = []
    for end in socket.socketpair():
        end.setblocking(False)
        ends.append(RpcConnection(*await asyncio.open_unix_connection(sock=end), limit))
    _made.extend(ends)
    return ends[0], ends[1]


async def until(condition: Callable[[], bool], what: str) -> None:
    """Let the others go on until it is so."""
    async with asyncio.timeout(WITHIN_S):
        while not condition():
            await asyncio.sleep(0.005)
    assert condition(), what


async def answers(connection: RpcConnection) -> list[Any]:
    """Everything that is said, to the end of the connection; blobs joined to one."""
    found: list[Any] = []
    while True:
        try:
            kind, payload = await connection.frame()
        except EOFError:
            return found
        if kind == framing.MESSAGE:
            found.append(m.decode_answer(payload))
        elif kind == framing.BLOB and found and isinstance(found[-1], bytes):
            found[-1] += payload
        elif kind == framing.BLOB:
            found.append(payload)


class FakeDialer:
    """Opens connections to the node that serves an address; `away` has those that do not answer."""

    def __init__(self, serves: dict[str, Serve]) -> None:
        self.serves = serves
        self.away: set[str] = set()
        self.opened: list[tuple[str, str, p.Person | None]] = []
        self.ends: list[RpcConnection] = []  # of the nodes that serve
        self._tasks: set[asyncio.Task[None]] = set()

    async def open(
        self, address: str, port: int, purpose: p.Purpose, person: p.Person | None = None
    ) -> RpcConnection:
        self.opened.append((address, purpose, person))
        if address in self.away:
            raise Unreachable(f"{address}:{port} does not answer: Connection refused")
        ours, theirs = await pair()
        self.ends.append(theirs)
        task = asyncio.ensure_future(self._serve(address, theirs))
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        return ours

    async def _serve(self, address: str, connection: RpcConnection) -> None:
        try:
            await self.serves[address](connection)
        except (EOFError, OSError):
            pass
        finally:
            connection.close()

    def cut(self) -> None:
        """End every connection there is, as a machine does that is switched off."""
        for end in self.ends:
            end.close()
        self.ends.clear()


class FakeWorkers:
    """What LocalAllocations asks of the shims, and the files of jobs packed as they really are."""

    def __init__(self, job_dirs: JobDirs) -> None:
        self.job_dirs = job_dirs
        self.tars: list[subprocess.Popen[bytes]] = []
        self.shims: dict[tuple[int, int], Any] = {}
        self.following: dict[tuple[int, int], Any] = {}
        self.settings = Settings
        self.cancellations = Cancellations(job_dirs)
        self.stopped: list[tuple[int, int, float, str]] = []

    kept, was_cancelled = Workers.kept, Workers.was_cancelled
    cancel, _end_cancelled = Workers.cancel, Workers._end_cancelled

    def clock(self) -> float:
        return 1000.0

    def is_here(self, key: tuple[int, int]) -> bool:
        return key in self.following

    def stop(self, job: Any, attempt: int, grace_s: float, reason: str) -> None:
        """An allocation that ends at once."""
        self.stopped.append((job.id, attempt, grace_s, reason))
        self.following.pop((job.id, attempt), None)

    def tar(
        self, number: int, globs: tuple[str, ...], names: bool = False
    ) -> subprocess.Popen[bytes]:
        command = shim_command(
            "--names" if names else "--tar", str(self.job_dirs.work(number)), *globs
        )
        quiet = subprocess.DEVNULL
        self.tars.append(subprocess.Popen(command, stdout=subprocess.PIPE, stderr=quiet))
        return self.tars[-1]


class FakeShim:
    def __init__(self, *said: RankState | RankStacks) -> None:
        self.ranks = tuple(one for one in said if isinstance(one, RankState))
        self._dumps = tuple(one for one in said if isinstance(one, RankStacks))

    async def stacks(self) -> tuple[RankStacks, ...]:
        return self._dumps


class FakeNode:
    """A machine with files of jobs, and its Share."""

    def __init__(self, name: str, directory: Path) -> None:
        self.node = Node(name, 4, 1 << 30, address=f"10.0.0.{ord(name) - 96}", port=9461)
        self.job_dirs = JobDirs(directory / name, JobAccount.this())
        self.workers = FakeWorkers(self.job_dirs)
        self.allocations = LocalAllocations(name, self.workers, self.job_dirs)  # type: ignore[arg-type]

    async def serve(self, connection: RpcConnection) -> None:
        await self.allocations.handle(connection, p.decode_ask(await connection.message()))

    def begin(self, job: int = 1, attempt: int = 1) -> None:
        self.job_dirs.make(job, attempt)
        self.workers.following[job, attempt] = SimpleNamespace(attempt=None)

    def end(self, job: int = 1, attempt: int = 1) -> None:
        self.workers.following.pop((job, attempt), None)

    def give(self, content: dict[str, str], job: int = 1) -> None:
        """Files of a job's working directory."""
        for name, text in content.items():
            path = self.job_dirs.work(job) / name
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(text)

    def write(self, rank: int, *lines: tuple[float, str], job: int = 1, attempt: int = 1) -> None:
        self.job_dirs.make(job, attempt)
        with (self.job_dirs.attempt(job, attempt) / f"rank-{rank}.log").open("a") as file:
            file.writelines(f"{at:.6f} out {text}\n" for at, text in lines)
