"""From a key to a change: (ui, key, snapshot) → (ui, action). Pure; the last table is the keyboard.

A question, a reason or a filter being typed takes all keys until it is answered. Nothing is ended
by one key: `x` asks, and only `y` says yes; `d` asks for a reason, and only Enter gives it. Both
are about the pane in focus: `d` needs the nodes in focus, `x` the jobs or their log.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

from wiiiiided.cluster.rpc.messages import Snapshot
from wiiiiided.domain.states import ENDED
from wiiiiided.ui.top.order import (
    JOB_ORDERS,
    NODE_ORDERS,
    job_at,
    jobs_of,
    node_at,
    nodes_of,
    selected_job,
    selected_node,
)
from wiiiiided.ui.top.ui import (
    FILTER_CHARS,
    INTERVALS,
    REASON_CHARS,
    Action,
    CancelJob,
    Draining,
    DrainNode,
    Pane,
    Question,
    Quit,
    ResumeNode,
    Resuming,
    RowOrder,
    Ui,
)

PAGE = 10  # rows
MANY = 1 << 30  # rows: beyond any end
Moved = tuple[Ui, Action]


def press(ui: Ui, key: str, snapshot: Snapshot | None) -> Moved:
    """The screen after the key, and the action it asks for."""
    ui = replace(ui, message="")
    match ui.question:
        case Question():
            return _answered(ui, ui.question, key)
        case Resuming():
            return _resumed(ui, ui.question, key)
        case Draining():
            return _reasoned(ui, ui.question, key)
    if ui.typing:
        return _typed(ui, key), None
    if ui.page and key not in MOVES:
        return replace(ui, page="", page_top=0), None
    if key in MOVES:
        return _moved(ui, MOVES[key], snapshot), None
    handler = KEYBOARD.get(key)
    return handler(ui, snapshot) if handler else (ui, None)


def _answered(ui: Ui, question: Question, key: str) -> Moved:
    ui = replace(ui, question=None)
    if key not in ("y", "Y"):
        goes_on = "is still being stopped" if question.now else "goes on"
        return replace(ui, message=f"job {question.job} {goes_on}"), None
    what = "is being killed" if question.now else "is being cancelled"
    ui = replace(ui, message=f"job {question.job} {what}")
    return ui, CancelJob(question.job, question.now)


def _resumed(ui: Ui, question: Resuming, key: str) -> Moved:
    ui = replace(ui, question=None)
    if key not in ("y", "Y"):
        return replace(ui, message=f"{question.node} stays drained"), None
    return replace(ui, message=f"{question.node} gets jobs again"), ResumeNode(question.node)


def _reasoned(ui: Ui, question: Draining, key: str) -> Moved:
    node = question.node
    if key == "enter":
        ui = replace(ui, question=None, message=f"{node} is being drained")
        return ui, DrainNode(node, question.reason.strip())
    if key == "esc":
        return replace(ui, question=None, message=f"{node} is not drained"), None
    reason = _edited(question.reason, key)[:REASON_CHARS]
    return replace(ui, question=replace(question, reason=reason)), None


def _typed(ui: Ui, key: str) -> Ui:
    order = _order(ui)
    if key == "enter":
        return replace(ui, typing=False)
    if key == "esc":
        return _ordered(replace(ui, typing=False), replace(order, filter=""))
    return _ordered(ui, replace(order, filter=_edited(order.filter, key)[:FILTER_CHARS]))


def _edited(text: str, key: str) -> str:
    """The text after a key; pasted text is text, and presses no key."""
    if key == "clear":
        return ""
    if key == "backspace":
        return text[:-1]
    more = key.removeprefix("paste ") if key.startswith("paste ") else key if len(key) == 1 else ""
    return text + more


def _moved(ui: Ui, by: int, snapshot: Snapshot | None) -> Ui:
    if ui.page:
        return replace(ui, page_top=max(0, min(MANY, ui.page_top + by)))
    if ui.focus == "log":
        return replace(ui, log_back=max(0, min(MANY, ui.log_back - by)))
    if ui.focus == "nodes":
        nodes = nodes_of(snapshot, ui)
        if not nodes:
            return ui
        place = max(0, min(len(nodes) - 1, node_at(nodes, ui) + by))
        return replace(ui, node=nodes[place].name)
    jobs = jobs_of(snapshot, ui)
    if not jobs:
        return ui
    place = max(0, min(len(jobs) - 1, job_at(jobs, ui) + by))
    return replace(ui, job=jobs[place].job.id, log_back=0)


def _order(ui: Ui) -> RowOrder:
    return ui.nodes if ui.focus == "nodes" else ui.jobs


def _ordered(ui: Ui, order: RowOrder) -> Ui:
    return replace(ui, nodes=order) if ui.focus == "nodes" else replace(ui, jobs=order)


def _quit(ui: Ui, snapshot: Snapshot | None) -> Moved:
    return ui, Quit()


def _help(ui: Ui, snapshot: Snapshot | None) -> Moved:
    return replace(ui, page="help"), None


def _details(ui: Ui, snapshot: Snapshot | None) -> Moved:
    nodes = ui.focus == "nodes"
    if (selected_node if nodes else selected_job)(snapshot, ui) is None:
        return replace(ui, message=f"there is no {'node' if nodes else 'job'} to tell of"), None
    return replace(ui, page="details"), None


def _tab(ui: Ui, snapshot: Snapshot | None, by: int = 1) -> Moved:
    panes: tuple[Pane, ...] = ("nodes", "jobs", "log") if ui.log else ("nodes", "jobs")
    place = panes.index(ui.focus) if ui.focus in panes else -1
    return replace(ui, focus=panes[(place + by) % len(panes)]), None


def _tab_back(ui: Ui, snapshot: Snapshot | None) -> Moved:
    return _tab(ui, snapshot, -1)


def _sort(ui: Ui, snapshot: Snapshot | None) -> Moved:
    order = _order(ui)
    columns = [name for name, _ in (NODE_ORDERS if ui.focus == "nodes" else JOB_ORDERS)]
    column = (order.column + 1) % len(columns)
    what = f"sorted by {columns[column]}" if column else "in their own order"
    ui = _ordered(ui, replace(order, column=column, reverse=False))
    return replace(ui, message=f"{_rows(ui)} {what}"), None


def _reverse(ui: Ui, snapshot: Snapshot | None) -> Moved:
    order = _order(ui)
    ui = _ordered(ui, replace(order, reverse=not order.reverse))
    return replace(ui, message=f"{_rows(ui)} in reverse" if not order.reverse else ""), None


def _rows(ui: Ui) -> str:
    return "nodes" if ui.focus == "nodes" else "jobs"


def _filter(ui: Ui, snapshot: Snapshot | None) -> Moved:
    focus: Pane = "nodes" if ui.focus == "nodes" else "jobs"
    return replace(ui, focus=focus, typing=True), None


def _unfilter(ui: Ui, snapshot: Snapshot | None) -> Moved:
    return _ordered(ui, replace(_order(ui), filter="")), None


def _logs(ui: Ui, snapshot: Snapshot | None) -> Moved:
    if ui.log:
        focus: Pane = "jobs" if ui.focus == "log" else ui.focus
        return replace(ui, log=False, log_back=0, focus=focus), None
    if selected_job(snapshot, ui) is None:
        return replace(ui, message="there is no job whose log could be shown"), None
    return replace(ui, log=True), None


def _cancel(ui: Ui, snapshot: Snapshot | None) -> Moved:
    row = selected_job(snapshot, ui)
    if ui.readonly:
        return replace(ui, message="read-only: nothing can be cancelled here"), None
    if row is None:
        return replace(ui, message="there is no job to cancel"), None
    if ui.focus == "nodes":
        return replace(ui, message="x cancels a job: Tab to the jobs first"), None
    job = row.job
    if job.state in ENDED:
        return replace(ui, message=f"job {job.id} is over already: {job.state}"), None
    # A job that is being stopped has had its first x: the second one kills it.
    return replace(ui, question=Question(job.id, job.name, now=job.state == "stopping")), None


def _drain(ui: Ui, snapshot: Snapshot | None) -> Moved:
    node = selected_node(snapshot, ui)
    if ui.readonly:
        return replace(ui, message="read-only: nothing can be drained here"), None
    if node is None:
        return replace(ui, message="there is no node to drain"), None
    if ui.focus != "nodes":
        return replace(ui, message="d drains a node: Tab to the nodes first"), None
    if node.state == "drained":
        return replace(ui, question=Resuming(node.name, node.note)), None
    return replace(ui, question=Draining(node.name)), None


def _pause(ui: Ui, snapshot: Snapshot | None) -> Moved:
    return replace(ui, paused=not ui.paused), None


def _faster(ui: Ui, snapshot: Snapshot | None) -> Moved:
    every_s = max((each for each in INTERVALS if each < ui.every_s), default=INTERVALS[0])
    return replace(ui, every_s=every_s), None


def _slower(ui: Ui, snapshot: Snapshot | None) -> Moved:
    every_s = min((each for each in INTERVALS if each > ui.every_s), default=INTERVALS[-1])
    return replace(ui, every_s=every_s), None


MOVES = {
    "up": -1,
    "down": 1,
    "k": -1,
    "j": 1,
    "pageup": -PAGE,
    "pagedown": PAGE,
    "home": -MANY,
    "end": MANY,
}
KEYBOARD: dict[str, Callable[[Ui, Snapshot | None], Moved]] = {
    "q": _quit,
    "?": _help,
    "enter": _details,
    "tab": _tab,
    "backtab": _tab_back,
    "s": _sort,
    "r": _reverse,
    "/": _filter,
    "esc": _unfilter,
    "l": _logs,
    "x": _cancel,
    "d": _drain,
    "p": _pause,
    "+": _faster,
    "=": _faster,  # the same key without Shift
    "-": _slower,
}
