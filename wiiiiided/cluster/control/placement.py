"""Which nodes a job may use, and which ranks run on which: pure arithmetic over detected resources.

A job has its nodes for itself unless it says cores_per_worker; then it claims that many cores per
worker, and jobs share a node as long as its cores last. More workers than cores are allowed where
the job has the node for itself: that is the user's choice.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

from wiiiiided.domain.node import Node
from wiiiiided.domain.rank_layout import AllocationSpec, Layout
from wiiiiided.domain.spec import JobSpec
from wiiiiided.errors import WiiiiideError
from wiiiiided.text import count, format_size

REFUSALS = 5  # that are spelled out


class NeverRuns(WiiiiideError):
    """The nodes there are can never run this job, busy or not. The message says why."""


def workers_on(spec: JobSpec, node: Node) -> int:
    """How many ranks the job has on this node."""
    wanted = spec.resources.workers_per_node
    if wanted == "cores":
        per_worker = spec.resources.cores_per_worker or 1
        return max(1, node.cores // per_worker)
    return node.gpus if wanted == "gpus" else wanted


def cores_on(spec: JobSpec, node: Node) -> int:
    """How many cores the job claims on this node: all, unless it says how many a worker needs."""
    per_worker = spec.resources.cores_per_worker
    return node.cores if per_worker is None else per_worker * workers_on(spec, node)


def unfit(spec: JobSpec, node: Node) -> str | None:
    """Why this node can never take an allocation of the job; None when it can."""
    wanted = spec.resources
    if wanted.use and node.name not in wanted.use:
        return f"{node.name} is not in resources.use"
    if node.name in wanted.avoid:
        return f"{node.name} is in resources.avoid"
    if wanted.workers_per_node == "gpus" and not node.gpus:
        return f"{node.name} has no GPU"
    for have, need, what in (
        (node.gpus, wanted.min_gpus, "GPUs"),
        (node.cores, max(wanted.min_cores, cores_on(spec, node)), "cores"),
    ):
        if have < need:
            return f"{node.name} has {have} {what}, the job needs {need}"
    if node.memory < wanted.min_memory:
        memory, wants = format_size(node.memory), format_size(wanted.min_memory)
        return f"{node.name} has {memory} of memory, the job needs {wants}"
    return None


def fitting(spec: JobSpec, nodes: Iterable[Node]) -> list[Node]:
    """Nodes that could take an allocation when they are free."""
    return [node for node in nodes if unfit(spec, node) is None]


def wanted_nodes(spec: JobSpec, fit: Sequence[Node]) -> tuple[int, int]:
    """How many nodes the job wants, at least and at most; "all" is every node that fits."""
    least, most = spec.resources.nodes
    return (max(1, len(fit)), max(1, len(fit))) if most is None else (least, most)


def expected_nodes(spec: JobSpec, nodes: Iterable[Node]) -> int:
    """How many of these nodes the job would have if all were free."""
    fit = fitting(spec, nodes)
    least, most = wanted_nodes(spec, fit)
    return max(least, min(most, len(fit)))


def plan(spec: JobSpec, nodes: Sequence[Node]) -> Layout:
    """The layout if every node were free; NeverRuns says why it cannot be."""
    fit = fitting(spec, nodes)
    least, most = wanted_nodes(spec, fit)
    if len(fit) < least:
        raise NeverRuns(f"the job needs {count(least, 'node')}, {_shortage(spec, nodes)}")
    return _layout(spec, fit[:most])


def _shortage(spec: JobSpec, nodes: Sequence[Node]) -> str:
    """`2 of 3 fit (c has no GPU)`; `there are 3`."""
    fit = len(fitting(spec, nodes))
    refused = refusals(spec, nodes)
    if not refused:
        return f"there {'is' if len(nodes) == 1 else 'are'} {len(nodes)}"
    return f"{fit} of {len(nodes)} {'fits' if fit == 1 else 'fit'} ({refused})"


def refusals(spec: JobSpec, nodes: Iterable[Node]) -> str:
    """Why nodes will not do, names that no node has first; a few of them."""
    nodes = list(nodes)
    names = {node.name for node in nodes}
    found = [f"there is no node {name}" for name in spec.resources.use if name not in names]
    found += filter(None, (unfit(spec, node) for node in nodes))
    more = f"; {len(found) - REFUSALS} more" if len(found) > REFUSALS else ""
    return "; ".join(found[:REFUSALS]) + more


def place(spec: JobSpec, fit: Sequence[Node], free: Mapping[str, int]) -> Layout | None:
    """A layout on nodes whose free cores suffice now, or None: all allocations or none."""
    least, most = wanted_nodes(spec, fit)
    ready = [node for node in fit if free[node.name] >= cores_on(spec, node)]
    return _layout(spec, ready[:most]) if len(ready) >= least else None


def _layout(spec: JobSpec, nodes: Sequence[Node]) -> Layout:
    allocations: list[AllocationSpec] = []
    first = 0
    for index, node in enumerate(nodes):
        workers = workers_on(spec, node)
        allocations.append(AllocationSpec(node.name, index, first, workers, cores_on(spec, node)))
        first += workers
    return Layout(tuple(allocations))
