"""Files that a job left, as one tar: from the nodes that have them, and from what was brought back.

                    its files are back (output_store)   they are not
    without globs   from there, whether it is on        from the node
    with globs      from the node; if it does not       from the node
                    answer, those that match of what
                    was brought back, and a note

Globs go to the nodes because only output.collect was brought back, and they may name more. The
files of several nodes are merged in the order of ranks (merge_tars). A node whose files cannot be
had is named in a file of its own, `missing-from-b.txt`, and the others' come all the same: it may
be off for good.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import AsyncGenerator, Iterable, Iterator, Sequence
from contextlib import aclosing, contextmanager
from pathlib import Path

from wiiiiided.cluster.handlers.jobs import JobRequests
from wiiiiided.cluster.handlers.merge_tars import END, BadTar, Merge, chosen
from wiiiiided.cluster.handlers.node_rpc import NoAnswer, NodeRpc
from wiiiiided.cluster.handlers.output_store import Collection, Outputs
from wiiiiided.cluster.peering import messages as p
from wiiiiided.cluster.rpc import messages as m
from wiiiiided.cluster.rpc.connection import Caller, RpcConnection
from wiiiiided.cluster.rpc.errors import Refuse
from wiiiiided.cluster.shim.collect_files import matcher
from wiiiiided.domain.exit_codes import BUSY, FAILED, NO_SUCH, USAGE

MERGES_PER_USER = 2  # at once: each may hold back a file of 256 MiB on this disk


class Pulls:
    """Answers `pull`. `spool` is a directory for files that are held back."""

    def __init__(self, jobs: JobRequests, node_rpc: NodeRpc, outputs: Outputs, spool: Path) -> None:
        self.jobs = jobs
        self.node_rpc = node_rpc
        self.outputs = outputs
        self.spool = spool
        self._merging: Counter[tuple[str, int]] = Counter()  # by user

    async def pull(self, connection: RpcConnection, request: m.Pull) -> None:
        job = self.jobs.find(request.id)
        globs = request.globs or job.spec.output.collect
        if not globs:
            text = f"job {job.id} names no output.collect"
            raise Refuse(USAGE, text, f"say which files: wiiiiide pull {job.id} 'runs/**'")
        asked = p.NodePull(job.id, tuple(globs))
        nodes = job.attempt.nodes if job.attempt is not None else ()
        if (home := self.outputs.of(job)) is not None:
            with self._merge_of(connection.caller):
                running = _RunningPull(self, connection, asked, home, bool(request.globs))
                await running.all(home.nodes)
        elif len(nodes) > 1:
            with self._merge_of(connection.caller):
                await _RunningPull(self, connection, asked).all(nodes)
        else:
            await self._one(connection, nodes[0] if nodes else self.node_rpc.own, asked)
        await connection.say(m.EndOfAnswers())

    @contextmanager
    def _merge_of(self, caller: Caller) -> Iterator[None]:
        """Count a user's pulls of several nodes: what they hold back lies on the state's disk until
        their clients have read it."""
        user = (caller.node, caller.uid)
        if self._merging[user] >= MERGES_PER_USER:
            text = f"{caller.user} is pulling files of several machines {MERGES_PER_USER} times"
            raise Refuse(BUSY, f"{text} already", "try again when one of them has ended")
        self._merging[user] += 1
        try:
            yield
        finally:
            self._merging[user] -= 1
            self._merging += Counter()  # forgets users without any

    async def _one(self, connection: RpcConnection, node: str, asked: p.NodePull) -> None:
        """Pass one node's tar on to the client as it comes."""
        try:
            async with aclosing(self.node_rpc.pull(node, asked)) as pieces:
                async for piece in pieces:
                    await connection.send_blob(piece)
        except Refuse as no:
            if no.code == NO_SUCH:
                raise _no_files(asked.id, {}) from no
            await connection.end_blob()
            raise
        except NoAnswer as no:
            raise Refuse(FAILED, f"the files of job {asked.id} cannot be fetched: {no}") from no
        await connection.end_blob()


class _RunningPull:
    """One request: what was merged so far, which nodes are missing, what went wrong."""

    def __init__(
        self,
        pulls: Pulls,
        connection: RpcConnection,
        asked: p.NodePull,
        home: Collection | None = None,
        ask_first: bool = True,
    ) -> None:
        self.node_rpc = pulls.node_rpc
        self.outputs = pulls.outputs
        self.connection = connection
        self.asked = asked
        self.home = home
        self.ask_first = ask_first  # also where the files are back
        self.merge = Merge(pulls.spool)
        self.answered = False
        self.missing: dict[str, str] = {}
        self.problems: list[str] = []

    async def all(self, nodes: Sequence[str]) -> None:
        """Ask one node after the other, in the order of ranks."""
        for node in nodes:
            await self._node(node)
        if not self.merge.files and not self.problems and (self.missing or not self.answered):
            raise _no_files(self.asked.id, self.missing)
        for node, sentence in self.missing.items():
            await self._send(self.merge.add(f"missing-from-{node}.txt", sentence))
        await self._send([END])
        await self.connection.end_blob()
        if self.problems:
            raise Refuse(FAILED, "; ".join(self.problems))

    async def _node(self, node: str) -> None:
        home = self.home if self.home is not None and self.outputs.has(self.home, node) else None
        if home is not None and not self.ask_first:
            await self._part(node, self.outputs.pieces(home, node))
            return
        try:
            await self._part(node, self.node_rpc.pull(self._known_as(node), self.asked))
        except NoAnswer as no:
            if not self.merge.is_between:
                raise Refuse(FAILED, f"{no}: try again") from no
            number = self.asked.id
            left = f"its files of job {number} are missing"
            if home is not None:
                left = f"of its files of job {number} only those are here that were brought back"
                kept = chosen(self.outputs.pieces(home, node), matcher(self.asked.globs))
                await self._part(node, kept)
            self.missing[node] = f"{no}: {left}\n"

    def _known_as(self, node: str) -> str:
        """Give a node its name of now: this one may have had another when it collected."""
        return self.node_rpc.own if self.home is not None and node == self.home.own else node

    async def _part(self, node: str, source: AsyncGenerator[bytes, None]) -> None:
        """The files of one node; a refusal is a problem, but for having nothing."""
        self.merge.begin(node)
        try:
            async with aclosing(source) as pieces:
                async for piece in pieces:
                    await self._send(self._merged(node, piece))
            self.merge.finish()
            self.answered = True
        except BadTar as problem:
            self._note(f"the files of {node} cannot be used: {problem}")
        except Refuse as no:
            if no.code != NO_SUCH:
                self._note(str(no))

    def _note(self, problem: str) -> None:
        """The others' files come all the same, unless half a file has passed."""
        if not self.merge.is_between:
            raise Refuse(FAILED, problem)
        self.problems.append(problem)

    def _merged(self, node: str, piece: bytes) -> Iterator[bytes]:
        try:
            yield from self.merge.feed(piece)
        except OSError as problem:
            raise Refuse(FAILED, f"the files of {node} cannot be used: {problem}") from problem

    async def _send(self, pieces: Iterable[bytes]) -> None:
        for piece in pieces:
            await self.connection.send_blob(piece)


def _no_files(number: int, missing: dict[str, str]) -> Refuse:
    if missing:
        return Refuse(FAILED, "; ".join(sentence.strip() for sentence in missing.values()))
    return Refuse(FAILED, f"job {number} has no files: it never ran, or they were pruned")
