"""When a job is over, its outputs are brought to the coordinator: `pull` then needs no other node.

    a job ends ──► every other node it was on is asked for its output.collect ──► Outputs
                     does not answer ──► asked again when it is heard, until the job is forgotten
                     too much        ──► nothing is kept; the nodes still have it

Two jobs at once at most, one node after the other: no user waits for this, and running jobs use the
same network. Its outcome is a line in the job's story, and a new line when that changes.
Nothing but the directory is needed after a restart: a job that is over and whose collection is not
there, or not complete, is taken up again.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable

from msgspec.structs import replace

from wiiiiided.cluster.control.job import Job
from wiiiiided.cluster.handlers.merge_tars import BadTar
from wiiiiided.cluster.handlers.node_rpc import NoAnswer, NodeRpc
from wiiiiided.cluster.handlers.output_store import CollectedPart, Collection, Outputs, TooLarge
from wiiiiided.cluster.peering import messages as p
from wiiiiided.cluster.rpc.errors import Refuse
from wiiiiided.cluster.state.controller import Controller
from wiiiiided.cluster.system.threads import in_thread
from wiiiiided.domain.exit_codes import NO_SUCH
from wiiiiided.domain.states import ENDED
from wiiiiided.log import about, logger
from wiiiiided.text import format_size, plain

AT_ONCE = 2
AGAIN_S = 300.0  # before a node that is heard, and did not answer, is asked again
LOOKED_AT = 1000  # of the latest ends, at the start


class Collector:
    """Brings outputs back. `limit` is the most that is kept of one job, in bytes."""

    def __init__(
        self, outputs: Outputs, node_rpc: NodeRpc, controller: Controller, limit: Callable[[], int]
    ) -> None:
        self.outputs = outputs
        self.node_rpc = node_rpc
        self.controller = controller
        self.limit = limit
        self._live: set[int] = set()  # jobs to be collected when they are over
        self._open: dict[int, tuple[str, ...]] = {}  # jobs that are over, and the nodes to ask
        self._waiting: dict[int, None] = {}  # of those the ones that have their turn, in order
        self._tasks: dict[int, asyncio.Task[None]] = {}
        self._heard: set[str] = set()
        self._soon: asyncio.Handle | None = None
        self._again: asyncio.TimerHandle | None = None
        self._closed = False

    def start(self) -> None:
        """Take up what is not complete; drop what no job stands for any more."""
        try:
            for number in set(self.outputs.numbers()) - self.controller.store.numbers():
                self.outputs.remove(number)
        except OSError as problem:
            logger.warning("old outputs cannot be removed: %s", problem)
        if self.node_rpc.dialer is None:
            return  # alone: what is here is kept, and there is no other node
        self._live |= {
            job.id for job in self.controller.state.jobs.values() if job.attempt is not None
        }
        for job in reversed(self.controller.store.ended(LOOKED_AT)):
            self._over(job, at_start=True)
        self.changed()
        self._ask_again()

    def changed(self) -> None:
        """The state has changed: jobs may be over, nodes may be heard again."""
        if self.node_rpc.dialer is None or self._closed:
            return
        for claims in self.controller.state.claims.values():
            self._live.update(claims)  # now: with the next event they may be over
        if self._soon is None:
            self._soon = asyncio.get_running_loop().call_soon(self._look)

    async def forget(self, number: int) -> None:
        """The job was pruned."""
        for jobs in (self._open, self._waiting):
            jobs.pop(number, None)
        if (task := self._tasks.get(number)) is not None:
            await _ended(task)
        await in_thread(self.outputs.remove, number)

    async def close(self) -> None:
        self._closed = True
        for timer in (self._soon, self._again):
            if timer is not None:
                timer.cancel()
        self._waiting.clear()
        for task in list(self._tasks.values()):
            await _ended(task)

    # ---- which job has its turn

    def _look(self) -> None:
        self._soon = None
        state = self.controller.state
        for number in [number for number in self._live if number not in state.jobs]:
            self._live.discard(number)
            if (job := self.controller.job(number)) is not None:
                self._over(job)
        heard = {node for node in state.nodes if node not in state.absent}
        self._give_turns(heard - self._heard)
        self._heard = heard

    def _over(self, job: Job, at_start: bool = False) -> None:
        """Give a job that is over its turn if there is something to collect; at the start, when the
        first of its nodes is heard."""
        if job.state not in ENDED or job.attempt is None or not job.attempt.ordered:
            return  # nothing ran since: what is here of an earlier attempt stays
        found = self.outputs.read(job.id)
        if found is not None and found.is_of(job):
            missing = found.missing
        else:
            missing = job.attempt.nodes if found is not None or self._elsewhere(job) else ()
        if missing:
            self._open[job.id] = missing
        if missing and not at_start:
            self._waiting[job.id] = None
            self._start_waiting()

    def _elsewhere(self, job: Job) -> bool:
        """Whether it names outputs, and another node may have some."""
        nodes = job.attempt.nodes if job.attempt is not None else ()
        return bool(job.spec.output.collect) and any(node != self.node_rpc.own for node in nodes)

    def _give_turns(self, nodes: set[str]) -> None:
        """Give a turn to each job that waits for one of these nodes."""
        for number, missing in self._open.items():
            if not nodes.isdisjoint(missing):
                self._waiting[number] = None  # behind itself, if it is being collected just now
        self._start_waiting()

    def _start_waiting(self) -> None:
        for number in list(self._waiting):
            if len(self._tasks) >= AT_ONCE:
                return
            if number not in self._tasks:
                del self._waiting[number]
                self._tasks[number] = asyncio.ensure_future(self._take(number))

    def _ask_again(self) -> None:
        self._again = asyncio.get_running_loop().call_later(AGAIN_S, self._ask_again)
        self._give_turns(self._heard)

    async def _take(self, number: int) -> None:
        try:
            await self._collect(number)
        except Exception:
            logger.exception("a defect while collecting job %d", number, extra=about(number))
        finally:
            del self._tasks[number]
            asyncio.get_running_loop().call_soon(self._start_waiting)

    # ---- one job

    async def _collect(self, number: int) -> None:
        """Collect all that can be had of the job now; it stays open while there is more."""
        try:
            missing = await self._bring(number)
        except OSError as problem:
            text = "the outputs of job %d cannot be brought back yet: %s"
            logger.warning(text, number, problem, extra=about(number))
            return
        if missing:
            self._open[number] = missing
        else:
            self._open.pop(number, None)

    async def _bring(self, number: int) -> tuple[str, ...]:
        """Ask the nodes that were not asked yet; returns those that are still missing."""
        collection = await self._begun(number)
        if collection is None:
            return ()
        missing: dict[str, str] = {}
        for node in collection.missing:
            if (job := self._job_of(collection)) is None:
                return ()
            collection = await self._brought(job, collection, node, missing)
        return (await self._told(collection, missing)).missing

    async def _begun(self, number: int) -> Collection | None:
        """The collection that is here already, or a new one; None: there is nothing to collect."""
        job = self.controller.job(number)
        found = self.outputs.read(number)
        if job is not None and found is not None and found.is_of(job):
            return found
        if job is None or job.state not in ENDED or job.attempt is None:
            return None
        if not self._elsewhere(job):
            await in_thread(self.outputs.remove, number)
            return None
        new = Collection(number, job.attempt.number, job.attempt.nodes, self.node_rpc.own)
        return await in_thread(self.outputs.begin, new)

    def _job_of(self, collection: Collection) -> Job | None:
        """Find the job of a collection; None: it was forgotten, or runs again, and its files are
        others now."""
        job = self.controller.job(collection.job)
        return job if job is not None and collection.is_of(job) else None

    async def _brought(
        self, job: Job, collection: Collection, node: str, missing: dict[str, str]
    ) -> Collection:
        """Add one node's files to the collection, if they can be had; else a sentence to
        `missing`."""
        if collection.refused:
            return collection
        if why := self._unheard(node):
            missing[node] = why
            return collection
        try:
            part = await self._received(job, collection, node)
            if self._job_of(collection) is None:
                return collection
            parts = {**collection.parts, node: part}
            return await in_thread(self.outputs.write, replace(collection, parts=parts))
        except NoAnswer as no:
            missing[node] = plain(str(no))
        except TooLarge as no:
            return await self._refused(collection, str(no))
        except (BadTar, Refuse) as no:
            missing[node] = plain(f"the answer of {node} cannot be used: {no}")
        except OSError as problem:
            missing[node] = f"those of {node} cannot be kept: {problem.strerror}"
        return collection

    def _unheard(self, node: str) -> str:
        """Why it is not worth asking."""
        state = self.controller.state
        if node not in state.nodes:
            return f"{node} is no member any more"
        return f"{node} does not answer" if node in state.absent else ""

    async def _refused(self, collection: Collection, why: str) -> Collection:
        try:
            return await in_thread(self.outputs.refuse, collection, why)
        except OSError:
            return replace(collection, refused=why)  # until the next start

    async def _received(self, job: Job, collection: Collection, node: str) -> CollectedPart:
        asked = p.NodePull(job.id, job.spec.output.collect)
        with self.outputs.receive(collection, node, self.limit()) as incoming:
            problem = ""
            try:
                await self.node_rpc.pull_into(incoming.take, node, asked)
            except Refuse as no:
                if no.code == NO_SUCH:
                    return CollectedPart(0, 0)
                if not incoming.is_whole:
                    raise
                problem = plain(str(no))
            return await in_thread(incoming.finish, problem)

    # ---- what is said about it

    async def _told(self, collection: Collection, missing: dict[str, str]) -> Collection:
        job = self._job_of(collection)
        text = sentence(collection, missing)
        if job is None or text == collection.said:
            return collection
        self.controller.tell(job, text)
        try:
            return await in_thread(self.outputs.write, replace(collection, said=text))
        except OSError:
            return collection  # it may be said twice


def sentence(collection: Collection, missing: dict[str, str]) -> str:
    """Its outcome."""
    if collection.refused:
        others = ", ".join(node for node in collection.nodes if node != collection.own)
        have = "has" if "," not in others else "have"
        return f"outputs are not brought back: {collection.refused}; {others} still {have} them"
    parts = collection.parts
    here = ", ".join(node for node in parts if parts[node].files)
    text = f"outputs of {here} brought back, {format_size(collection.bytes)}" if here else ""
    if parts and not here:
        text = f"no outputs on {', '.join(parts)}"
    problems = (part.problem for part in parts.values() if part.problem)
    return "; ".join([text or "outputs are not brought back yet", *problems, *missing.values()])


async def _ended(task: asyncio.Task[None]) -> None:
    task.cancel()
    await asyncio.gather(task, return_exceptions=True)
