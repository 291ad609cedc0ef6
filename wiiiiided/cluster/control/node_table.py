"""The nodes and the state of each, with a way back when a change cannot be stored.

    nodes     all members, in the order they joined: ranks are dealt out in it
    absent    of these: since when nothing was heard. Not stored: a new daemon has heard no node
    drained   of these: nodes that get no new jobs, and why
    lost      of these: an operator vouched that nothing runs there; until it is heard again

A node that is absent may be running all it was ever given. Only `lost` says it is not.
"""

from __future__ import annotations

from collections.abc import Iterable

import msgspec

from wiiiiided.domain.node import DrainRecord, Node


class NodeRow(msgspec.Struct, frozen=True):
    """A node as the store keeps it."""

    node: Node
    drain: DrainRecord | None = None
    lost: bool = False


class NodeTable:
    """The nodes and how each stands. Mutable; `State` alone changes it, and keeps its indexes in
    step."""

    def __init__(self, heard: Iterable[Node], rows: Iterable[NodeRow], since: float) -> None:
        self.nodes: dict[str, Node] = {node.name: node for node in heard}
        self.absent: dict[str, float] = {}
        self.drained: dict[str, DrainRecord] = {}
        self.lost: set[str] = set()
        for row in rows:
            self._adopt(row, since)
        self._before: (
            tuple[dict[str, Node], dict[str, float], dict[str, DrainRecord], set[str]] | None
        )
        self._before = None
        self._touched: dict[str, NodeRow | None] = {}  # as they are stored

    def _adopt(self, row: NodeRow, since: float) -> None:
        name = row.node.name
        if name not in self.nodes:
            self.nodes[name] = row.node
            self.absent[name] = since
            if row.lost:
                self.lost.add(name)
        if row.drain is not None:
            self.drained[name] = row.drain

    # ---- changing

    def hear(self, node: Node) -> None:
        """The node is there, with these resources; that it was declared lost is over."""
        before = self._remember(node.name)
        self.nodes[node.name] = node
        self.absent.pop(node.name, None)
        self.lost.discard(node.name)
        self._note(node.name, before)

    def miss(self, name: str, since: float) -> None:
        self._remember(name)
        self.absent[name] = since

    def declare_lost(self, name: str) -> None:
        before = self._remember(name)
        self.lost.add(name)
        self._note(name, before)

    def drain(self, name: str, drain: DrainRecord | None) -> None:
        """Keep new jobs from a node; None: it gets jobs again."""
        before = self._remember(name)
        self.drained.pop(name, None)
        if drain is not None:
            self.drained[name] = drain
        self._note(name, before)

    def remove(self, name: str) -> None:
        before = self._remember(name)
        del self.nodes[name]
        self.absent.pop(name, None)
        self.drained.pop(name, None)
        self.lost.discard(name)
        self._note(name, before)

    def shift(self, by: float) -> None:
        """The clock was set: no node has been silent for longer or shorter because of it."""
        self._remember("")
        for name in self.absent:
            self.absent[name] += by

    # ---- stored, or undone

    def touched(self) -> dict[str, NodeRow | None]:
        """Rows that the store must take; None: the node is gone."""
        return dict(self._touched)

    def changed(self) -> bool:
        return self._before is not None

    def committed(self) -> None:
        self._before = None
        self._touched.clear()

    def rollback(self) -> None:
        if self._before is not None:
            nodes, absent, drained, lost = self._before
            # In place: the state has the same dictionaries.
            for mine, old in ((self.nodes, nodes), (self.absent, absent), (self.drained, drained)):
                mine.clear()
                mine.update(old)  # type: ignore[arg-type]
            self.lost.clear()
            self.lost.update(lost)
        self.committed()

    def row(self, name: str) -> NodeRow | None:
        node = self.nodes.get(name)
        if node is None:
            return None
        return NodeRow(node, self.drained.get(name), name in self.lost)

    def _remember(self, name: str) -> NodeRow | None:
        if self._before is None:
            kept = (dict(self.nodes), dict(self.absent), dict(self.drained), set(self.lost))
            self._before = kept
        return self.row(name)

    def _note(self, name: str, before: NodeRow | None) -> None:
        if (now := self.row(name)) != before:
            self._touched[name] = now
