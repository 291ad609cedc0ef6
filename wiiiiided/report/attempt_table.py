"""All attempts of a job as a table: where, from when to when, how each ended and why.

The same rows serve the page and the terminal.
"""

from __future__ import annotations

from wiiiiided.domain.figures import RunRecord
from wiiiiided.report import words
from wiiiiided.report.history import is_running, length_of
from wiiiiided.report.markup import Markup, joined, plain, tag
from wiiiiided.report.summary import ending
from wiiiiided.wire.messages import JobRecords

TITLES = ("attempt", "nodes", "started", "ended", "lasted", "end", "why")
NODES, WHY = 60, 400  # characters


def attempt_rows(records: JobRecords) -> list[tuple[str, ...]]:
    """Oldest first."""
    return [_row(records, run) for run in records.runs]


def _row(records: JobRecords, run: RunRecord) -> tuple[str, ...]:
    running = is_running(records, run)
    why = run.reason
    if not why and run is records.runs[-1] and not running and records.job.state == "failed":
        why = records.job.why  # of a record that an older daemon wrote
    return (
        str(run.attempt),
        plain(words.listed(run.nodes), NODES),
        words.moment(run.started_at),
        words.moment(run.ended_at),
        words.span(length_of(run)),
        plain(ending(run, running), NODES),
        plain(why, WHY) or words.UNKNOWN,
    )


def attempt_table(records: JobRecords) -> Markup:
    rows = attempt_rows(records)
    head = tag("tr", *(tag("th", title, class_="left", scope="col") for title in TITLES))
    body = joined(
        tag(
            "tr",
            *(
                tag("td", text, class_="left", data_title=title)
                for title, text in zip(TITLES, row, strict=True)
            ),
        )
        for row in rows
    )
    return tag("table", tag("thead", head), tag("tbody", body))
