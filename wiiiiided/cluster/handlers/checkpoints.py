"""Before an attempt that follows another starts, all its nodes get the checkpoints of one machine.

    the node that had rank 0 ── NodePull ──► <state>/checkpoints/<job>-<attempt>.tar ──► every node
      does not answer, or has none: the next one of the last attempt, and the story names both
      no node answers: the attempt fails, and says so; it never begins with half a set

That is so for files that the job file names. Those of `wide.parallel` are found by their names: the
node with the newest step gives that one, of all that the job was ever on, and if it is one of the
attempt's nodes none are sent: `run.resume` brings them from host to host. Whether a job has any is
not known before nodes are asked, so that where none answers an attempt begins without, and the
story says so; what others have stays there, and the newest step counts the next time. A job that
begins with the checkpoints of another (`submit --resume`) gets those, or fails.

A set is one machine's, and once its tar is whole it is the attempt's: a coordinator that restarts
meanwhile gives the same one to the nodes that have none yet. It goes when the attempt is ordered,
or is over. It is bounded as outputs are, and of what a job left plain files alone are used.
"""

from __future__ import annotations

import asyncio
import hashlib
import os
from collections.abc import Callable
from pathlib import Path

from wiiiiided.cluster.control.job import AttemptKey, Job, Saved, Starting
from wiiiiided.cluster.handlers.checkpoint_search import choice, holders
from wiiiiided.cluster.handlers.merge_tars import END, BadTar
from wiiiiided.cluster.handlers.node_rpc import NoAnswer, NodeRpc
from wiiiiided.cluster.handlers.output_store import PIECE_BYTES, IncomingTar, TooLarge
from wiiiiided.cluster.peering import messages as p
from wiiiiided.cluster.rpc import messages as m
from wiiiiided.cluster.rpc.connection import RpcConnection
from wiiiiided.cluster.rpc.errors import Refuse
from wiiiiided.cluster.state.controller import Controller
from wiiiiided.cluster.system.threads import in_thread
from wiiiiided.domain.checkpoint_files import checkpoint_globs
from wiiiiided.domain.exit_codes import FAILED
from wiiiiided.errors import HostError
from wiiiiided.text import count, format_size, plain

ALIVE_S = 5.0  # between two empty pieces, while a set is on its way here
NOTHING = b""  # in the place of a set: every node keeps what it has


class Checkpoints:
    """Sets of checkpoints that a coordinator gathers for attempts that begin. `limit` is the most
    that a set has, in bytes."""

    def __init__(
        self, directory: Path, node_rpc: NodeRpc, controller: Controller, limit: Callable[[], int]
    ) -> None:
        self.directory = directory
        self.node_rpc = node_rpc
        self.controller = controller
        self.limit = limit
        self._tasks: dict[AttemptKey, asyncio.Task[Path]] = {}
        self._sets: set[AttemptKey] = set()  # that are here, or on their way

    def start(self) -> None:
        """Remove sets that no attempt waits for, and those that a killed daemon began."""
        if not self.directory.is_dir():
            return
        for path in self.directory.iterdir():
            number, _, attempt = path.stem.partition("-")
            if path.name.startswith(".") or not (number.isdecimal() and attempt.isdecimal()):
                path.unlink()
            else:
                self._sets.add((int(number), int(attempt)))
        self.changed()

    def changed(self) -> None:
        """The state has changed: prepared attempts may have been ordered, or be over."""
        for key in [key for key in self._sets if self._waiting(*key) is None]:
            self._sets.discard(key)
            if (task := self._tasks.get(key)) is not None:
                task.cancel()
            self._path(key).unlink(missing_ok=True)

    async def close(self) -> None:
        for task in self._tasks.values():
            task.cancel()
        await asyncio.gather(*self._tasks.values(), return_exceptions=True)

    # ---- to the nodes

    async def bring(self, job: int, attempt: int) -> int:
        """A descriptor of the attempt's set. HostError: why there is none."""
        path = await self._gathered((job, attempt))
        return os.open(path, os.O_RDONLY | os.O_CLOEXEC)

    async def send(self, connection: RpcConnection, request: p.FetchCheckpoints) -> None:
        """Send the attempt's set to a node of that attempt."""
        job = self._waiting(request.id, request.attempt)
        nodes = job.attempt.nodes if job is not None and job.attempt is not None else ()
        if connection.peer is None or connection.peer.name not in nodes:
            text = f"attempt {request.attempt} of job {request.id} is not being prepared there"
            await connection.say(m.Refusal(FAILED, text))
            return
        bringing = asyncio.ensure_future(self.bring(request.id, request.attempt))
        try:
            while not (await asyncio.wait({bringing}, timeout=ALIVE_S))[0]:
                await connection.send_blob(b"")
            await _send(connection, bringing.result())
        except HostError as problem:
            await connection.say(m.Refusal(FAILED, str(problem)))
        finally:
            bringing.cancel()

    # ---- from one of them

    def _waiting(self, number: int, attempt: int) -> Job | None:
        """The job, while that attempt of it is being prepared and needs checkpoints."""
        job = self.controller.state.jobs.get(number)
        found = job.attempt if job is not None else None
        if found is None or found.number != attempt or found.ordered or not found.checkpoints_from:
            return None
        return job if job is not None and isinstance(job.phase, Starting) else None

    async def _gathered(self, key: AttemptKey) -> Path:
        """Gather the set once for all nodes that ask; a node that goes away does not cancel it for
        the others."""
        if key not in self._tasks:
            self._sets.add(key)
            task = self._tasks[key] = asyncio.ensure_future(self._gather(key))
            task.add_done_callback(lambda done: self._over(key, done))
        try:
            return await asyncio.shield(self._tasks[key])
        except asyncio.CancelledError:
            if (here := asyncio.current_task()) is not None and here.cancelling():
                raise
            raise HostError("the attempt is not being prepared any more") from None

    def _over(self, key: AttemptKey, done: asyncio.Task[Path]) -> None:
        self._tasks.pop(key, None)
        if not done.cancelled():
            done.exception()  # marked as retrieved: the waiting nodes may all be gone

    async def _gather(self, key: AttemptKey) -> Path:
        path, job = self._path(key), self._waiting(*key)
        if path.exists():
            return path
        if job is None or job.attempt is None:
            raise HostError("the attempt is not being prepared any more")
        self.directory.mkdir(mode=0o700, exist_ok=True)
        attempt, globs = job.attempt, checkpoint_globs(job.spec.output)
        saved = attempt.saved or Saved(job.id, attempt.checkpoints_from)
        nodes = Saved(saved.job, attempt.checkpoints_from)
        found = await holders(self.node_rpc, self.controller.state.absent, nodes, globs)
        chosen = choice(job, attempt, saved, found)
        missing = dict(chosen.missing)
        for node in chosen.nodes:
            if node in chosen.keeps:
                if missing:
                    text = f"goes on from the checkpoints on {node}: {_listed(missing)}"
                    self.controller.tell(job, text)
                path.write_bytes(NOTHING)
                return path
            wanted = globs if job.spec.output.checkpoints else found.newest_of(node, globs)
            asked = p.NodePull(saved.job, wanted, checkpoints=True)
            if said := await self._try(job, node, asked, path, missing):
                since = f", since {_listed(missing)}" if missing else ""
                self.controller.tell(job, f"{said}{since}")
                return path
        self._tell_without(job, saved, missing)
        path.write_bytes(END if job.spec.output.checkpoints else NOTHING)
        return path

    async def _try(
        self,
        job: Job,
        node: str,
        asked: p.NodePull,
        path: Path,
        missing: dict[str, str],
    ) -> str:
        """Fetch a node's set. Returns a sentence; "": the node is in `missing` now. HostError: nor
        will another node's do."""
        try:
            return await self._receive(job, node, asked, path)
        except (Refuse, NoAnswer, BadTar) as no:
            missing[node] = plain(str(no))
        except TooLarge as no:
            text = f"those on {node} are too large: {no}, to be raised on all nodes"
            raise HostError(text) from no
        except OSError as problem:
            why = f"those of {node} cannot be kept on {self.node_rpc.own}: {problem.strerror}"
            raise HostError(why) from problem
        return ""

    def _tell_without(self, job: Job, saved: Saved, missing: dict[str, str]) -> None:
        """Note that the attempt begins without checkpoints; HostError if they are required."""
        if saved.job != job.id:
            raise HostError(_listed(missing) or f"job {saved.job} has none any more")
        if job.spec.output.checkpoints:
            if missing:
                raise HostError(_listed(missing))
            never = f"no checkpoints: {', '.join(saved.nodes)} never had its working directory"
            self.controller.tell(job, never)
        elif missing:
            text = "begins without checkpoints of wide.parallel, if there are any"
            self.controller.tell(job, f"{text}: {_listed(missing)}")

    async def _receive(self, job: Job, node: str, asked: p.NodePull, path: Path) -> str:
        """Receive one machine's whole set, kept under its name when it is here; a sentence about
        it."""
        state, limit = self.controller.state, self.limit()
        if node in state.absent:
            raise NoAnswer(f"{node} does not answer")
        with IncomingTar(path, limit, limit) as incoming:
            await self.node_rpc.pull_into(incoming.take, node, asked)
            part = await in_thread(incoming.finish)
        assert job.attempt is not None
        of = node if asked.id == job.id else f"job {asked.id} on {node}"
        others = ", ".join(name for name in job.attempt.nodes if name != node) or node
        files = count(part.files - incoming.links, "file")
        links = f"; {incoming.links} links among them are left out" if incoming.links else ""
        return f"checkpoints of {of} go to {others}: {files}, {format_size(part.bytes)}{links}"

    def _path(self, key: AttemptKey) -> Path:
        return self.directory / f"{key[0]}-{key[1]}.tar"


async def _send(connection: RpcConnection, fd: int) -> None:
    digest = hashlib.sha256()
    try:
        while piece := os.read(fd, PIECE_BYTES):
            digest.update(piece)
            await connection.send_blob(piece)
    finally:
        os.close(fd)
    await connection.end_blob()
    await connection.say(p.CheckpointsSent(digest.hexdigest()))


def _listed(missing: dict[str, str]) -> str:
    return "; ".join(missing.values())
