"""Requests about what a job's ranks do, wrote and left behind, on whichever nodes they are.

    show      facts of the control plane + each node's word about its allocation
    logs      all nodes' lines as one stream                                  (merge_logs)
    stacks    all nodes' at once
    pull      all nodes' files as one tar                                     (pull_files)

Of the latest attempt the layout says which nodes it is on. Of an earlier one that is not kept: then
every node is asked, and those that had no part in it have nothing.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Coroutine, Iterable
from contextlib import aclosing
from pathlib import Path
from typing import Any

from msgspec.structs import replace

from wiiiiided.cluster.control.job import Attempt, Job
from wiiiiided.cluster.handlers.allocation import ERROR_CHARS, Lines
from wiiiiided.cluster.handlers.jobs import JobRequests
from wiiiiided.cluster.handlers.merge_logs import Follower, LogSource, lines_of
from wiiiiided.cluster.handlers.metrics import MetricsRequests
from wiiiiided.cluster.handlers.node_rpc import NoAnswer, NodeRpc
from wiiiiided.cluster.handlers.output_store import Outputs
from wiiiiided.cluster.handlers.pull_files import Pulls
from wiiiiided.cluster.peering import messages as p
from wiiiiided.cluster.rpc import messages as m
from wiiiiided.cluster.rpc.connection import RpcConnection
from wiiiiided.cluster.rpc.errors import Refuse
from wiiiiided.cluster.state import views
from wiiiiided.domain.exit_codes import FAILED
from wiiiiided.domain.rank_layout import AllocationSpec
from wiiiiided.domain.states import ENDED

SHOW_S = 3.0  # for a node's word on its allocation: a client of `show` waits ten in all


class RankRequests:
    """The ranks' activity and files. `spool` is a directory for files that are held back."""

    def __init__(
        self, jobs: JobRequests, node_rpc: NodeRpc, metrics: MetricsRequests, spool: Path
    ) -> None:
        self.jobs = jobs
        self.node_rpc = node_rpc
        self.metrics = metrics
        self.outputs = Outputs(spool / "outputs")
        self.pull = Pulls(jobs, node_rpc, self.outputs, spool).pull

    # ---- show

    async def show(self, number: int) -> m.JobDetail:
        job = self.jobs.find(number)
        allocations = await self._allocations(job)
        waits = job.attempt is None and job.state not in ENDED
        (view,) = self.jobs.views([job])
        return m.JobDetail(
            job=view,
            spec=views.spec_for_people(job),
            ranks=views.ranks(job, allocations),
            story=self.jobs.story(job),
            directory=self._directory(job, allocations),
            error=_error(allocations),
            run=self.metrics.run(job.id),
            forecast=self.metrics.forecast(job.spec.name) if waits else None,
        )

    async def _allocations(self, job: Job) -> dict[str, p.AllocationView]:
        """The answers of the nodes; one that is not heard of is not waited for."""
        if job.attempt is None:
            return {}
        request = p.NodeRanks(job.id, job.attempt.number)
        absent = self.jobs.controller.state.absent
        nodes = [node for node in job.attempt.nodes if node not in absent]
        found = await asyncio.gather(*(self._allocation(node, request) for node in nodes))
        return {
            node: allocation
            for node, allocation in zip(nodes, found, strict=True)
            if allocation is not None
        }

    async def _allocation(self, node: str, request: p.NodeRanks) -> p.AllocationView | None:
        try:
            return await self.node_rpc.ranks(node, request, SHOW_S)
        except (NoAnswer, Refuse):
            return None

    def _directory(self, job: Job, allocations: dict[str, p.AllocationView]) -> str:
        """Say where the job's files are: a path of this machine, or paths with the names of the
        machines that have them."""
        found = {
            node: allocation.directory
            for node, allocation in allocations.items()
            if allocation.directory
        }
        if not found or list(found) == [self.node_rpc.own]:
            return str(self.node_rpc.allocations.job_dirs.job(job.id))
        return ", ".join(f"{node}:{directory[:4096]}" for node, directory in found.items())

    # ---- logs

    async def logs(self, connection: RpcConnection, request: m.Logs) -> None:
        job = self.jobs.find(request.id)
        if request.follow and request.attempt is None:
            await self._follow(connection, request)
        else:
            latest = job.attempt.number if job.attempt is not None else 0
            number = latest if request.attempt is None else request.attempt
            parts = self._parts(job, number, request)
            async with aclosing(lines_of(self.node_rpc, parts)) as found:
                async for lines in found:
                    await connection.say(m.LogLines(lines))
                    await asyncio.sleep(0)  # a fast reader never makes `say` wait
        await connection.say(m.EndOfAnswers())

    def _parts(self, job: Job, number: int, request: m.Logs) -> list[LogSource]:
        """Which nodes to ask for which ranks."""
        attempt = job.attempt
        if attempt is None:
            return []
        if number != attempt.number:
            asked = p.NodeLogs(job.id, number, request.ranks, tail=request.tail)
            nodes = [node for node in self._all_nodes() if _is_wanted(node, request)]
            return [LogSource(node, asked, 0, job.submitted_at) for node in nodes]
        parts = []
        for allocation in attempt.layout.allocations:
            if not _is_wanted(allocation.node, request):
                continue
            if ranks := _ranks_on(allocation, request.ranks):
                asked = p.NodeLogs(job.id, number, ranks, tail=request.tail)
                parts.append(
                    LogSource(allocation.node, asked, allocation.first_rank, attempt.placed_at)
                )
        return parts

    def _all_nodes(self) -> list[str]:
        return list(self.jobs.controller.state.nodes)

    async def _follow(self, connection: RpcConnection, request: m.Logs) -> None:
        """Send all lines, attempt after attempt, until the job is over."""

        async def say(lines: Lines) -> None:
            await connection.say(m.LogLines(lines))

        controller, tail = self.jobs.controller, request.tail
        watcher = controller.watch(request.id)
        done = 0  # the attempt that was read to its end
        try:
            while True:
                job = self.jobs.find(request.id)
                # Before its start is ordered no node has lines, and a watcher hears of the order.
                if job.attempt and job.attempt.ordered and job.attempt.number > done:
                    done = job.attempt.number
                    parts = self._parts(job, done, replace(request, tail=tail))
                    await _together([self._follower(part, say) for part in parts])
                    tail = None  # of later attempts everything is new
                elif job.state in ENDED:
                    return
                else:
                    await watcher.wait()
                    watcher.clear()
        finally:
            controller.unwatch(request.id, watcher)

    async def _follower(self, part: LogSource, say: Callable[[Lines], Awaitable[None]]) -> None:
        number, attempt = part.request.id, part.request.attempt

        def is_over() -> bool:
            job = self.jobs.controller.job(number)
            now = job.attempt if job is not None else None
            if job is None or now is None or job.state in ENDED:
                return True
            return now.number != attempt or part.node in now.results

        await Follower(self.node_rpc, part, say).run(is_over)

    # ---- stacks

    async def stacks(self, number: int) -> m.StackDumps:
        job = self.jobs.find(number)
        attempt = job.attempt
        if attempt is None:
            raise Refuse(FAILED, f"job {number} is {job.state}: it has no ranks yet")
        allocations = attempt.layout.allocations
        found = await asyncio.gather(
            *(self._stacks(job, attempt, allocation) for allocation in allocations)
        )
        dumps = tuple(dump for part in found for dump in part)
        if dumps:
            return m.StackDumps(dumps)
        if job.state in ENDED or not attempt.live:
            text = f"job {number} is {job.state}: it has no running ranks and no stacks"
            raise Refuse(FAILED, text)
        raise Refuse(FAILED, f"the shim of job {number} gave no stacks")

    async def _stacks(
        self, job: Job, attempt: Attempt, allocation: AllocationSpec
    ) -> tuple[m.StackDump, ...]:
        """Ask one node for the stacks of its ranks; one that does not answer gives a sentence for
        each of them."""
        try:
            request = p.NodeStacks(job.id, attempt.number)
            dumps = (await self.node_rpc.stacks(allocation.node, request)).dumps
        except (NoAnswer, Refuse) as no:
            dumps = tuple(m.StackDump(rank, None, str(no)) for rank in _ranks_on(allocation))
        # No node speaks in another's name; where there is one machine, its name says nothing.
        node = allocation.node if len(self._all_nodes()) > 1 else ""
        return tuple(replace(dump, node=node) for dump in dumps)


async def _together(work: Iterable[Coroutine[Any, Any, None]]) -> None:
    """Run all of it together; the first that fails ends the others."""
    tasks = [asyncio.ensure_future(one) for one in work]
    try:
        await asyncio.gather(*tasks)
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)


def _is_wanted(node: str, request: m.Logs) -> bool:
    """A node whose lines are not wanted is not asked: it may be silent, or have many."""
    return not request.nodes or node in request.nodes


def _ranks_on(allocation: AllocationSpec, wanted: tuple[int, ...] = ()) -> tuple[int, ...]:
    """The ranks of an allocation that are wanted; none given: all."""
    return tuple(sorted({rank for rank in wanted or allocation.ranks if rank in allocation.ranks}))


def _error(allocations: dict[str, p.AllocationView]) -> str:
    """The errors of failing ranks; where several nodes have something, each with its name."""
    found = {node: allocation.error for node, allocation in allocations.items() if allocation.error}
    if len(found) <= 1:
        return "".join(found.values())[:ERROR_CHARS]
    room = ERROR_CHARS // len(found)
    return "\n".join(f"on {node}:\n{text[:room].rstrip()}" for node, text in found.items())
