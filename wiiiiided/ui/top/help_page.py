"""The page behind `?`: every key, and what the columns mean."""

from __future__ import annotations

from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

from wiiiiided.ui.top.pane import line

KEYS = (
    ("q", "quit; Ctrl-C too"),
    ("?", "this page; any key closes it"),
    ("↑ ↓", "select a row, or scroll the log; also j k, PgUp PgDn, Home End"),
    ("Tab", "the next pane: nodes, jobs, log; Shift-Tab the one before"),
    ("Enter", "everything about the selected node or job; any key closes it"),
    ("s", "sort the pane by its next column"),
    ("r", "reverse its order"),
    ("/", "show only rows whose name contains a text; Esc shows all again"),
    ("l", "the log of the selected job, or no log"),
    ("x", "cancel the selected job; asks first. On a job that is being stopped: kill it"),
    ("d", "drain the selected node, in its pane; asks why. On a drained one: jobs again"),
    ("p", "pause the screen; again goes on"),
    ("+ -", "look more often, or less"),
)
COLUMNS = (
    ("*", "the coordinator"),
    ("◄ slow", "the others wait for a rank on it"),
    ("samples/s", "the node's throughput; where scripts do not say, step/s or op/s"),
    ("▁▃▇", "the same over the last samples, from 0 to the largest"),
    ("▆▆▄▂▂", "where the time goes: compute, exchange, waiting for a peer"),
    ("", "the straggler computes while the others wait"),
    ("up down", "bytes/s to and from other machines, as they travelled"),
    ("shm", "bytes/s given to collectives"),
    ("ratio", "how much smaller the codec made the data"),
    ("rate", "of a job: samples (smp) or steps (stp) per second"),
    ("age", "how old this is; lost: nothing was heard for long"),
    ("–", "not known"),
)
_INDENT = 11


def page(width: int, readonly: bool) -> RenderableType:
    """The whole page, as many lines as it needs."""
    kept = [each for each in KEYS if not (readonly and each[0] in ("x", "d"))]
    return Group(
        line("Keys", style="bold"), _entries(kept, width),
        Text(), line("Columns", style="bold"), _entries(list(COLUMNS), width),
    )  # fmt: skip


def _entries(entries: list[tuple[str, str]], width: int) -> Table:
    made = Table.grid(padding=(0, 1, 0, 0))
    made.add_column(width=_INDENT - 1, no_wrap=True, style="focus")
    made.add_column(width=max(1, width - _INDENT - 1))
    for key, about in entries:
        made.add_row(line(f" {key}"), Text(about))
    return made
