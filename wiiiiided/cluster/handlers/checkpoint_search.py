"""Which of a job's nodes have checkpoints, and which of them is to give them.

    each node ── NodePull, names alone ──► a: step 120   b: step 180   c: none   d: no answer
                                           b, a are to be asked, in that order; d is missing

Of files of `wide.parallel` the newest step counts: every host writes its own, and one may have
fallen behind. Of others nothing is known but their names: the first node in the order of ranks.
"""

from __future__ import annotations

from collections.abc import Collection
from contextlib import aclosing
from dataclasses import dataclass

from wiiiiided.cluster.control.job import Saved
from wiiiiided.cluster.handlers.merge_tars import BadTar, TarMember, TarReader
from wiiiiided.cluster.handlers.node_rpc import NoAnswer, NodeRpc
from wiiiiided.cluster.peering import messages as p
from wiiiiided.cluster.rpc.errors import Refuse
from wiiiiided.domain.checkpoint_files import newest_step
from wiiiiided.domain.exit_codes import NO_SUCH
from wiiiiided.text import plain


@dataclass(frozen=True)
class Holders:
    """`nodes` have some, the one to ask first in front; `missing`: why others say nothing."""

    nodes: tuple[str, ...]
    missing: dict[str, str]


async def holders(
    node_rpc: NodeRpc, absent: Collection[str], saved: Saved, globs: tuple[str, ...]
) -> Holders:
    """Ask each node that may have some; those of `absent` are known not to answer."""
    steps: dict[str, int] = {}
    missing: dict[str, str] = {}
    for node in saved.nodes:
        try:
            if node in absent:
                raise NoAnswer(f"{node} does not answer")
            if names := await _names(node_rpc, node, p.NodePull(saved.job, globs, True, True)):
                steps[node] = newest_step(names)
        except Refuse as no:
            if no.code != NO_SUCH:
                missing[node] = plain(str(no))
        except (NoAnswer, BadTar) as no:
            missing[node] = plain(str(no))
    return Holders(tuple(sorted(steps, key=lambda node: -steps[node])), missing)


async def _names(node_rpc: NodeRpc, node: str, asked: p.NodePull) -> list[str]:
    reader, names = TarReader(), []
    async with aclosing(node_rpc.pull(node, asked)) as pieces:
        async for piece in pieces:
            found = [one for one in reader.feed(piece) if isinstance(one, TarMember)]
            names += [one.name for one in found if not one.link]
    return names
