"""The screen beside the metrics: the selected rows, the open page, the question asked.

A `Ui` is changed by keys (`keymap.press`) and snapshots (`column_memory.learned`), a `Scene` is all
that a screen is drawn from. Both are frozen: a new one is made for every change, so that drawing
has nothing to wait for or to lock.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Literal

from wiiiiided.cluster.rpc.messages import JobDetail, LogLine, NodeView, Snapshot

Pane = Literal["nodes", "jobs", "log"]
Page = Literal["", "help", "details"]

INTERVALS = (0.25, 0.5, 1.0, 2.0, 5.0, 10.0, 30.0, 60.0)  # seconds that + and - step through
LEAST_S, MOST_S = INTERVALS[0], INTERVALS[-1]  # that the daemon takes
FILTER_CHARS = 40
REASON_CHARS = 120


@dataclass(frozen=True)
class Question:
    """The question whether to end this job; `now` kills it without its grace period."""

    job: int
    name: str
    now: bool = False


@dataclass(frozen=True)
class Resuming:
    """The question whether this drained node is to get jobs again."""

    node: str
    reason: str  # why it was drained


@dataclass(frozen=True)
class Draining:
    """The question why this node is to get no new jobs: the reason is being typed."""

    node: str
    reason: str = ""


@dataclass(frozen=True)
class RowOrder:
    """How a pane's rows are sorted and which are shown. Column 0 is the order they came in."""

    column: int = 0
    reverse: bool = False
    filter: str = ""


@dataclass(frozen=True)
class SeenColumns:
    """The shape of snapshots so far: columns with a value in them, and the widest cells."""

    columns: frozenset[str] = frozenset()  # of the nodes' pane
    node: int = 0
    digits: int = 0
    job: int = 0
    step: int = 0


@dataclass(frozen=True)
class Ui:
    focus: Pane = "jobs"
    node: str | None = None  # the selected one by name; None: the first
    job: int | None = None
    nodes: RowOrder = RowOrder()
    jobs: RowOrder = RowOrder()
    typing: bool = False  # a filter for the pane in focus
    question: Question | Resuming | Draining | None = None
    page: Page = ""  # the page that covers the panes
    page_top: int = 0  # its first line that is shown
    log: bool = True
    log_back: int = 0  # lines up from the newest
    paused: bool = False
    every_s: float = 1.0
    message: str = ""  # the answer to the last key, until the next one
    readonly: bool = False
    ascii: bool = False
    once: bool = False  # printed once: no frames, no keys, no selection
    seen: SeenColumns = SeenColumns()


@dataclass(frozen=True)
class Gone:
    """Why the daemon is not there, and when it is tried again."""

    reason: str
    retry_s: float | None = None  # None: being tried now


@dataclass(frozen=True)
class LogView:
    """The log pane's content. `note` stands instead of lines, or after them."""

    job: int
    lines: tuple[LogLine, ...] = ()
    note: str = ""


@dataclass(frozen=True)
class Detail:
    """The daemon's answer about the job or node whose details are open; else why there is none."""

    job: JobDetail | None = None
    node: NodeView | None = None
    note: str = ""


@dataclass(frozen=True)
class Scene:
    """Everything a screen is drawn from."""

    snapshot: Snapshot | None  # None: nothing has come yet
    ui: Ui = Ui()
    gone: Gone | None = None
    log: LogView | None = None
    offset_s: int = 0  # of local time from UTC
    since_s: float = 0.0  # since the snapshot came
    losses: Mapping[int, tuple[float, ...]] = field(default_factory=dict)  # by job, oldest first
    detail: Detail | None = None


@dataclass(frozen=True)
class Quit:
    """The program ends."""


@dataclass(frozen=True)
class CancelJob:
    job: int
    now: bool


@dataclass(frozen=True)
class DrainNode:
    node: str
    reason: str


@dataclass(frozen=True)
class ResumeNode:
    node: str


Action = Quit | CancelJob | DrainNode | ResumeNode | None
