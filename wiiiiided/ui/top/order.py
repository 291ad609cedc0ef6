"""Which rows a pane has, in which order, and which one is selected: for drawing and for keys.

A selection is a name or a number, not a place: rows may move under it, and `x` must never hit a
job that has just slid under the cursor.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import TypeVar

from wiiiiided.cluster.rpc.messages import JobRow, Snapshot
from wiiiiided.domain.metrics import NodeNow
from wiiiiided.ui.top.ui import RowOrder, Ui

T = TypeVar("T")
Key = Callable[[T], float | str]


def main_rate(node: NodeNow) -> float | None:
    """The rate in the first column of numbers."""
    rates = node.rates
    operations = measured(node, rates.operations)
    return {"samples/s": rates.samples, "step/s": rates.steps}.get(node.unit, operations)


def measured(node: NodeNow, value: float) -> float | None:
    """A metric of its collectives; None where no group of this backend counts it."""
    return value if node.rates.measured else None


def _loss(row: JobRow) -> float:
    """The loss to sort by: one that is no number any more is worse than all others."""
    if row.now is None:
        return -math.inf
    return math.inf if row.now.diverged else _number(row.now.loss)


def _number(value: float | None) -> float:
    return -math.inf if value is None or math.isnan(value) else value


# Column of the table, and what it is sorted by; numbers come largest first, words do not.
WORDS = ("name", "state", "id")
NODE_ORDERS: tuple[tuple[str, Key[NodeNow] | None], ...] = (
    ("", None),
    ("name", lambda node: node.name),
    ("state", lambda node: node.state),
    ("rate", lambda node: _number(main_rate(node))),
    ("time", lambda node: _number(measured(node, node.rates.exchange))),
    ("tx", lambda node: _number(measured(node, node.rates.wire_out))),
    ("rx", lambda node: _number(measured(node, node.rates.wire_in))),
    ("shm", lambda node: _number(measured(node, node.rates.shm))),
    ("cpu", lambda node: _number(node.cpu)),
    ("mem", lambda node: _number(node.memory_used)),
    ("age", lambda node: _number(node.age_s)),
)
JOB_ORDERS: tuple[tuple[str, Key[JobRow] | None], ...] = (
    ("", None),
    ("id", lambda row: row.job.id),
    ("name", lambda row: row.job.name),
    ("state", lambda row: row.job.state),
    ("step", lambda row: _number(row.now.step if row.now else None)),
    ("loss", _loss),
    ("eta", lambda row: _number(row.now.eta_s if row.now else None)),
)


def nodes_of(snapshot: Snapshot | None, ui: Ui) -> list[NodeNow]:
    rows = snapshot.nodes if snapshot else ()
    return _arranged(rows, ui.nodes, NODE_ORDERS, lambda node: node.name)


def jobs_of(snapshot: Snapshot | None, ui: Ui) -> list[JobRow]:
    rows = snapshot.jobs if snapshot else ()
    return _arranged(rows, ui.jobs, JOB_ORDERS, lambda row: row.job.name)


def sorting(order: RowOrder, orders: Sequence[tuple[str, Key[T] | None]]) -> tuple[str, bool]:
    """The column that rows are sorted by, "" for none, and whether the largest come first."""
    column = orders[order.column % len(orders)][0]
    return column, (column not in WORDS) != order.reverse


def _arranged(
    rows: Sequence[T],
    order: RowOrder,
    orders: Sequence[tuple[str, Key[T] | None]],
    name: Callable[[T], str],
) -> list[T]:
    wanted = order.filter.casefold()
    kept = [row for row in rows if wanted in name(row).casefold()] if wanted else list(rows)
    key = orders[order.column % len(orders)][1]
    if key is not None:
        kept.sort(key=key, reverse=sorting(order, orders)[1])
    elif order.reverse:
        kept.reverse()
    return kept


def node_at(nodes: Sequence[NodeNow], ui: Ui) -> int:
    """The place of the selected node; the first where it is gone."""
    return next((place for place, node in enumerate(nodes) if node.name == ui.node), 0)


def job_at(jobs: Sequence[JobRow], ui: Ui) -> int:
    return next((place for place, row in enumerate(jobs) if row.job.id == ui.job), 0)


def selected_node(snapshot: Snapshot | None, ui: Ui) -> NodeNow | None:
    nodes = nodes_of(snapshot, ui)
    return nodes[node_at(nodes, ui)] if nodes else None


def selected_job(snapshot: Snapshot | None, ui: Ui) -> JobRow | None:
    jobs = jobs_of(snapshot, ui)
    return jobs[job_at(jobs, ui)] if jobs else None


def window(count: int, place: int, rows: int) -> range:
    """Which of `count` rows are shown in `rows` lines, so that `place` is among them."""
    first = max(0, min(place - rows // 2, count - rows))
    return range(first, min(count, first + max(0, rows)))
