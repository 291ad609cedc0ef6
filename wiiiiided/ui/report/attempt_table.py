"""All attempts of a job as a table: where, from when to when, how each ended and why.

The same rows serve the page and the terminal.
"""

from __future__ import annotations

from wiiiiided.cluster.rpc.messages import JobRecords
from wiiiiided.domain.metrics import RunRecord
from wiiiiided.text import listed
from wiiiiided.ui.report import formats
from wiiiiided.ui.report.run_history import is_running, length_of
from wiiiiided.ui.report.summary import ending

TITLES = ("attempt", "nodes", "started", "ended", "lasted", "end", "why")
NODES, WHY = 60, 400  # characters


def attempt_rows(records: JobRecords) -> list[tuple[str, ...]]:
    """A row for each attempt, oldest first."""
    return [_row(records, run) for run in records.runs]


def _row(records: JobRecords, run: RunRecord) -> tuple[str, ...]:
    running = is_running(records, run)
    why = run.reason
    if not why and run is records.runs[-1] and not running and records.job.state == "failed":
        why = records.job.why  # of a record that an older daemon wrote
    return (
        str(run.attempt),
        formats.short(listed(run.nodes), NODES),
        formats.moment(run.started_at),
        formats.moment(run.ended_at),
        formats.duration(length_of(run)),
        formats.short(ending(run, running), NODES),
        formats.short(why, WHY) or formats.UNKNOWN,
    )
