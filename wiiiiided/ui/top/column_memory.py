"""The columns and widths seen in this session: the screen keeps its shape while metrics change.

    snapshot ──► learned(ui, snapshot) ──► Ui.seen: only ever grows

A column that had a value once keeps its place when the value is gone for a moment, and a width
never shrinks: nothing moves under the eyes of a reader. Pure: the same snapshot again changes
nothing.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace

from wiiiiided.cluster.rpc.messages import Snapshot
from wiiiiided.domain.metrics import NodeNow
from wiiiiided.text import columns
from wiiiiided.ui.top import jobs_pane
from wiiiiided.ui.top.nodes_pane import works
from wiiiiided.ui.top.pane import words
from wiiiiided.ui.top.ui import SeenColumns, Ui


def learned(ui: Ui, snapshot: Snapshot | None) -> Ui:
    """The ui that has seen this snapshot too."""
    if snapshot is None:
        return ui
    old, rows = ui.seen, snapshot.jobs
    filled = frozenset(key for node in snapshot.nodes for key in _filled(node))
    names = (columns(words(each.name, ui.ascii)) + 2 * each.coordinator for each in snapshot.nodes)
    now = SeenColumns(
        columns=old.columns | filled,
        node=_most(old.node, names),
        digits=_most(old.digits, (len(str(row.job.id)) for row in rows)),
        job=_most(old.job, (columns(words(row.job.name, ui.ascii)) for row in rows)),
        step=_most(old.step, (jobs_pane.step_room(row) for row in rows)),
    )
    return ui if now == old else replace(ui, seen=now)


def _most(before: int, now: Iterable[int]) -> int:
    return max([before, *now])


def _filled(node: NodeNow) -> list[str]:
    """The columns in which this node has a value."""
    if node.state == "lost":
        return ["note"] if node.note else []
    found = {
        "note": bool(node.note),
        "cpu": node.cpu is not None,
        "mem": node.memory_used is not None,
    }
    rates = node.rates
    if works(node):
        found |= {"steps": rates.steps is not None, "spark": bool(node.history)}
    if works(node) and rates.measured:
        sizes = {"time": rates.exchange, "up": rates.wire_out, "down": rates.wire_in}
        found |= {key: size > 0 for key, size in {**sizes, "shm": rates.shm}.items()}
        found |= {"codec": bool(node.codec), "ratio": rates.ratio is not None}
    return [key for key, there in found.items() if there]
