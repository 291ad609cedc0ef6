"""The answers of a node about its own allocation: lines, stacks, processes, files.

    coordinator ── purpose `ask` ──► member    handle(connection, request)
    coordinator, of itself                     the same methods, called

An allocation is known by its files, and by its shim while it runs. So a node answers about attempts
that were over long ago, and has nothing to say about those it never heard of.
"""

from __future__ import annotations

import asyncio
import os
import threading
from collections.abc import AsyncGenerator, Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import aclosing
from typing import TypeVar
from weakref import WeakValueDictionary

from wiiiiided.cluster.allocation.job_dirs import JobDirs
from wiiiiided.cluster.allocation.spawn import ended
from wiiiiided.cluster.allocation.workers import Workers
from wiiiiided.cluster.handlers.log_tail import Tail, batches, ranks_written
from wiiiiided.cluster.peering import messages as p
from wiiiiided.cluster.rpc import messages as m
from wiiiiided.cluster.rpc.connection import RpcConnection
from wiiiiided.cluster.rpc.errors import Refuse
from wiiiiided.cluster.shim import protocol
from wiiiiided.domain.checkpoint_files import are_wide
from wiiiiided.domain.exit_codes import FAILED, NO_SUCH
from wiiiiided.domain.limits import MAX_WORKERS
from wiiiiided.errors import HostError

LOOK_EVERY_S = 0.1  # no notification of file changes works everywhere, so a follower polls
QUIET_S = 3.0  # without a line: an empty message says that the node is still there
PIECE_BYTES = 1 << 17
STACK_CHARS = 1 << 18
ERROR_CHARS = 1 << 16
MOST_DUMPS = 4096
READERS = 4  # threads for the files of jobs: whatever those are, nothing else waits for them
DUMPS_BYTES = 4 << 20  # of all ranks that have ended: JSON may make each byte six
Lines = tuple[m.LogLine, ...]
Result = TypeVar("Result")


class LocalAllocations:
    """The allocations of this node."""

    def __init__(self, node: str, workers: Workers, job_dirs: JobDirs) -> None:
        self.node = node
        self.workers = workers
        self.job_dirs = job_dirs
        self._readers = ThreadPoolExecutor(READERS, "files of jobs")
        # A job whose files take long holds up one thread, not those who read another's.
        self._turns: WeakValueDictionary[int, asyncio.Lock] = WeakValueDictionary()

    async def handle(self, connection: RpcConnection, request: p.NodeRequest) -> None:
        """Answer the coordinator while it listens."""
        await connection.while_there(self._answer(connection, request))

    async def _answer(self, connection: RpcConnection, request: p.NodeRequest) -> None:
        try:
            match request:
                case p.NodeLogs():
                    await self._say_lines(connection, request)
                case p.NodeStacks():
                    await connection.say(await self.stacks(request))
                case p.NodeRanks():
                    await connection.say(self.ranks(request))
                case p.NodePull():
                    await self._send_files(connection, request)
        except Refuse as no:
            await connection.say(m.Refusal(no.code, str(no), no.hint))

    # ---- lines

    async def _say_lines(self, connection: RpcConnection, request: p.NodeLogs) -> None:
        async with aclosing(self.logs(request)) as found:
            async for lines in found:
                await connection.say(m.LogLines(lines))
        await connection.say(m.EndOfAnswers())

    async def logs(self, request: p.NodeLogs) -> AsyncGenerator[Lines, None]:
        """Lines of the ranks here; with `follow` until the attempt is over here. An empty batch
        now and then says that there is just nothing new."""
        number, attempt = request.id, request.attempt
        # In a thread: files of a job are as large as it likes, and on a disk that may not answer.
        limit = self.workers.settings().log_bytes
        given_up = threading.Event()
        try:
            tail = await self._in_reader(number, self._tail, request, limit, given_up)
            quiet_s = 0.0
            while True:
                # Before we look: no line is written after the end of an allocation.
                live = request.follow and (number, attempt) in self.workers.following
                found = batches(tail.more())
                while batch := await self._in_reader(number, next, found, ()):
                    quiet_s = 0.0
                    yield batch
                if not live:
                    return
                if quiet_s >= QUIET_S:
                    quiet_s = 0.0
                    yield ()
                await asyncio.sleep(LOOK_EVERY_S)
                quiet_s += LOOK_EVERY_S
        finally:
            given_up.set()

    def _tail(self, request: p.NodeLogs, limit: int, given_up: threading.Event) -> Tail:
        number, attempt = request.id, request.attempt
        own, most = self._ranks_here(number, attempt)
        return Tail(
            *(self.job_dirs, number, attempt, request.ranks or tuple(own or ()), request.tail),
            *(self.node, limit, most, given_up),
        )

    async def _in_reader(self, number: int, work: Callable[..., Result], *given: object) -> Result:
        """Read files of a job in one of the few threads for that, one for each job at once."""
        turn = self._turns.setdefault(number, asyncio.Lock())
        async with turn:
            loop = asyncio.get_running_loop()
            return await loop.run_in_executor(self._readers, work, *given)

    # ---- processes

    def ranks(self, request: p.NodeRanks) -> p.AllocationView:
        """Which ranks run, which have ended and how, and what the failing rank said."""
        shim = self.workers.shims.get((request.id, request.attempt))
        told = shim.ranks if shim is not None else ()
        end = self._end(request.id, request.attempt)
        codes = {} if end is None else {int(r): c for r, c in end.codes.items() if r.isdecimal()}
        codes |= {rank.rank: rank.code for rank in told if rank.code is not None}
        there = self.job_dirs.job(request.id).exists()
        return p.AllocationView(
            pids={rank.rank: rank.pid for rank in told if rank.pid is not None},
            codes=codes,
            directory=str(self.job_dirs.job(request.id)) if there else "",
            error=end.error[:ERROR_CHARS] if end is not None else "",
        )

    def _end(self, number: int, attempt: int) -> protocol.AttemptEnd | None:
        """The shim's last words."""
        try:
            data = self.job_dirs.read(number, attempt, protocol.EXIT)
            return protocol.from_bytes(protocol.AttemptEnd, data) if data else None
        except (OSError, HostError, protocol.UnreadableFile):
            return None

    # ---- stacks

    async def stacks(self, request: p.NodeStacks) -> m.StackDumps:
        """Give the stacks of the ranks that run; else those that a hang left behind, none if none
        did."""
        shim = self.workers.shims.get((request.id, request.attempt))
        if shim is None:
            return await self._in_reader(request.id, self._written_stacks, request)
        dumps = await shim.stacks()
        told = (
            m.StackDump(one.rank, one.pid, one.text[:STACK_CHARS]) for one in dumps[:MOST_DUMPS]
        )
        return m.StackDumps(tuple(told))

    def _written_stacks(self, request: p.NodeStacks) -> m.StackDumps:
        """Read the stacks of the latest attempt that wrote any. In a thread: the files are the
        job's, and as many and as large as it likes."""
        for attempt in range(request.attempt, 0, -1):
            own, most = self._ranks_here(request.id, attempt)
            written = ranks_written(self.job_dirs, request.id, attempt, r"stacks-(\d+)")
            ranks = [rank for rank in written if not own or rank in own][:most]
            room = min(STACK_CHARS, DUMPS_BYTES // max(1, len(ranks)))
            found = (self._written(request.id, attempt, rank, room) for rank in ranks)
            if dumps := tuple(dump for dump in found if dump is not None):
                return m.StackDumps(dumps)
        return m.StackDumps(())

    def _written(self, number: int, attempt: int, rank: int, room: int) -> m.StackDump | None:
        """The end of a rank's file: the newest stacks are there."""
        try:
            fd = self.job_dirs.open(number, attempt, f"stacks-{rank}")
        except (OSError, HostError):
            return None
        try:
            data = os.pread(fd, room, max(0, os.fstat(fd).st_size - room))
        finally:
            os.close(fd)
        return m.StackDump(rank, None, data.decode(errors="replace")) if data else None

    def _ranks_here(self, number: int, attempt: int) -> tuple[range | None, int]:
        """Which ranks the attempt has here, and how many: of an earlier attempt than the latest
        here only the number is known, which is that of all attempts."""
        job = self.workers.kept(number)
        known = job.attempt if job is not None else None
        for one in known.layout.allocations if known is not None else ():
            if one.node == self.node:
                assert known is not None
                return one.ranks if known.number == attempt else None, one.workers
        return None, MAX_WORKERS

    # ---- files

    async def _send_files(self, connection: RpcConnection, request: p.NodePull) -> None:
        async with aclosing(self.pull(request)) as pieces:
            async for piece in pieces:
                await connection.send_blob(piece)
        await connection.end_blob()
        await connection.say(m.EndOfAnswers())

    async def pull(self, request: p.NodePull) -> AsyncGenerator[bytes, None]:
        """The job's files here as a tar. Refuse: there are none, or not all could be read; the
        latter after the last piece."""
        if not self.job_dirs.work(
            request.id
        ).exists():  # an allocation that was only prepared has a folder
            raise Refuse(NO_SUCH, f"job {request.id} has no files on {self.node}")
        if request.checkpoints:
            self._check_whole(request)
        process = self.workers.tar(request.id, request.globs, request.names)
        assert process.stdout is not None
        reader = asyncio.StreamReader()
        pipe, _ = await asyncio.get_running_loop().connect_read_pipe(
            lambda: asyncio.StreamReaderProtocol(reader), process.stdout
        )
        try:
            while piece := await reader.read(PIECE_BYTES):
                yield piece
        finally:
            pipe.close()  # a tar without a reader ends by SIGPIPE
            code = await asyncio.shield(ended(process))
        if code:
            text = f"the files of job {request.id} on {self.node} could not all be read"
            raise Refuse(FAILED, f"{text} (code {code})")

    def _check_whole(self, request: p.NodePull) -> None:
        """Half of one machine's checkpoints and half of another's are no set; but each file of
        `wide.parallel` is whole by itself."""
        number = request.id
        if not are_wide(request.globs) and self.job_dirs.is_placing(number):
            text = f"those on {self.node} were being exchanged when that was cut short"
            raise Refuse(FAILED, text)
        if any(job == number for job, _ in self.workers.shims):
            raise Refuse(FAILED, f"something of job {number} still runs on {self.node}")
