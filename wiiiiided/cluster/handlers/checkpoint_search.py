"""The checkpoints that each of a job's nodes has, and which of them is to give them.

    each node ── NodePull, names alone ──► a: step 120   b: step 180   c: none   d: no answer
                                           b, a are to be asked, in that order; d is missing

Of files of `wide.parallel` the newest step counts: every host writes its own, and one may have
fallen behind, or been away while others began anew. So the nodes of all attempts are asked. Of
other files nothing is known but their names: the first node in the order of ranks, of the last
attempt alone.
"""

from __future__ import annotations

import asyncio
from collections.abc import Collection
from contextlib import aclosing
from dataclasses import dataclass

from wiiiiided.cluster.control.job import Attempt, Job, Saved
from wiiiiided.cluster.handlers.merge_tars import BadTar, TarMember, TarReader
from wiiiiided.cluster.handlers.node_rpc import NoAnswer, NodeRpc
from wiiiiided.cluster.peering import messages as p
from wiiiiided.cluster.rpc.errors import Refuse
from wiiiiided.cluster.shim.checkpoints import newest_files, newest_steps
from wiiiiided.cluster.shim.collect_files import MAX_PATTERNS
from wiiiiided.domain.checkpoint_files import globs_of
from wiiiiided.domain.exit_codes import NO_SUCH
from wiiiiided.text import plain


@dataclass(frozen=True)
class Holders:
    """`files`: the names on each node that has the working directory, in the order asked;
    `missing`: why others say nothing."""

    files: dict[str, list[str]]
    missing: dict[str, str]

    @property
    def nodes(self) -> tuple[str, ...]:
        """The nodes that have some, the one to ask first in front."""
        return tuple(node for node in self.by_step() if self.files[node])

    @property
    def has_steps(self) -> bool:
        return any(map(newest_steps, self.files.values()))

    def by_step(self, first: Collection[str] = ()) -> list[str]:
        """The newest step in front; of equal ones those in `first`."""
        steps = {node: newest_steps(names) for node, names in self.files.items()}
        before = sorted(steps, key=lambda node: node not in first)
        return sorted(before, key=lambda node: steps[node], reverse=True)

    def newest_of(self, node: str, globs: tuple[str, ...]) -> tuple[str, ...]:
        """Globs of its files of `wide.parallel` that have the newest step of their folder and
        model: a run goes on from these. `globs`: of all, which it is where there are too many."""
        newest = globs_of(newest_files(self.files[node]))
        return newest if len(newest) <= MAX_PATTERNS else globs


@dataclass(frozen=True)
class Choice:
    """`nodes` are to give checkpoints, the first one that can; at one of `keeps` all is there.
    `missing`: nodes that might have had newer ones."""

    nodes: tuple[str, ...]
    keeps: frozenset[str]
    missing: dict[str, str]


def choice(job: Job, attempt: Attempt, saved: Saved, found: Holders) -> Choice:
    """Which of the nodes that were asked give theirs to those of the attempt."""
    here = frozenset(attempt.nodes) & found.files.keys()
    if saved.job != job.id:
        return Choice(found.nodes, frozenset(), found.missing)
    if not job.spec.output.checkpoints:
        nodes = (node for node in found.by_step(first=here) if found.files[node])
        return Choice(tuple(nodes), here, found.missing)
    keeps = here if len(attempt.nodes) == 1 else frozenset()  # else all get the same
    silent = {node: why for node, why in found.missing.items() if node in saved.nodes}
    if len(silent) == len(saved.nodes):
        return Choice((), keeps, silent)  # earlier ones would undo what these have trained
    if found.has_steps:
        return Choice(tuple(found.by_step(first=keeps)), keeps, found.missing)
    in_order = (node for node in saved.nodes if node in found.files or node in silent)
    return Choice(tuple(in_order), keeps, {})  # one that is silent is asked again, in its turn


async def holders(
    node_rpc: NodeRpc, absent: Collection[str], saved: Saved, globs: tuple[str, ...]
) -> Holders:
    """Ask each node that may have some; those of `absent` are known not to answer."""
    files: dict[str, list[str]] = {}
    missing: dict[str, str] = {}
    asked = p.NodePull(saved.job, globs, checkpoints=True, names=True)

    async def ask(node: str) -> list[str] | str | None:
        try:
            if node in absent:
                raise NoAnswer(f"{node} does not answer")
            return await _names(node_rpc, node, asked)
        except Refuse as no:
            return None if no.code == NO_SUCH else plain(str(no))
        except (NoAnswer, BadTar) as no:
            return plain(str(no))

    nodes = (*saved.nodes, *saved.earlier)
    for node, said in zip(nodes, await asyncio.gather(*map(ask, nodes)), strict=True):
        if isinstance(said, list):
            files[node] = said
        elif said is not None:
            missing[node] = said
    return Holders(files, missing)


async def _names(node_rpc: NodeRpc, node: str, asked: p.NodePull) -> list[str]:
    reader, names = TarReader(), []
    async with aclosing(node_rpc.pull(node, asked)) as pieces:
        async for piece in pieces:
            found = [one for one in reader.feed(piece) if isinstance(one, TarMember)]
            names += [one.name for one in found if not one.link]
    return names
