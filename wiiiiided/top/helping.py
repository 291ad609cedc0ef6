"""The page behind `?`: every key, and what the columns mean."""

from __future__ import annotations

import textwrap

from wiiiiided.top.spans import Row, Span, fit

KEYS = (
    ("q", "quit; Ctrl-C too"),
    ("?", "this page; any key closes it"),
    ("↑ ↓", "select a row, or scroll the log; also j k, PgUp PgDn, Home End"),
    ("Tab", "the next pane: nodes, jobs, log"),
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
    ("slow ◄", "the others wait for a rank on it"),
    ("samples/s", "what the node gets done; where scripts do not say, step/s or op/s"),
    ("▁▃▇", "the same over the last samples, from 0 to the largest"),
    ("comm%", "share of the time with an exchange under way"),
    ("tx rx", "bytes/s to and from other machines, as they travelled"),
    ("shm", "bytes/s given to collectives"),
    ("ratio", "how much smaller the codec made what travelled"),
    ("RATE", "of a job: samples (smp) or steps (stp) per second"),
    ("age", "how old this is; lost: nothing was heard for long"),
    ("–", "not known"),
)
_INDENT = 12


def page(width: int, readonly: bool) -> list[Row]:
    rows: list[Row] = [(Span(" Keys", "bold"),)]
    for key, about in KEYS:
        if not (readonly and key in ("x", "d")):
            rows += _entry(key, about, width)
    rows += [(), (Span(" Columns", "bold"),)]
    for key, about in COLUMNS:
        rows += _entry(key, about, width)
    return rows


def _entry(key: str, about: str, width: int) -> list[Row]:
    pieces = textwrap.wrap(about, max(10, width - _INDENT - 2)) or [""]
    rows = [fit((Span(f"  {key:<{_INDENT - 2}}", "bold"), Span(pieces[0])), width)]
    return rows + [fit((Span(" " * _INDENT + piece),), width) for piece in pieces[1:]]
