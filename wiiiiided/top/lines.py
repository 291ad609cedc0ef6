"""The log pane: the newest lines of the selected job's ranks.

    ── log 17 digits ───────────────────
     0 │ epoch 1 loss 0.412
     1 ! UserWarning: …

The marks are those of `wiiiiide logs`. What ranks write is untrusted: it is cleaned and cut here.
"""

from __future__ import annotations

from wiiiiided.text import columns
from wiiiiided.top.grid import words
from wiiiiided.top.spans import Row, Span, Style, fit
from wiiiiided.top.ui import Scene
from wiiiiided.wire.messages import LogLine

MARKS: dict[str, tuple[str, Style]] = {
    "out": ("│", "dim"),
    "err": ("!", "bad"),
    "note": ("·", "dim"),
}


def title_and_rows(scene: Scene, width: int, room: int) -> list[Row]:
    """The heading and the lines that end `log_back` above the newest."""
    rows = [_heading(scene, width)]
    log = scene.log
    if log is None or room <= 0:
        return rows
    end = len(log.lines) - min(scene.ui.log_back, furthest(scene, room))
    shown = log.lines[max(0, end - room + bool(log.note)) : end]
    digits = max((len(str(line.rank)) for line in shown), default=1)
    rows += [_line(line, digits, scene, width) for line in shown]
    if log.note:
        rows.append(fit((Span(f" {words(log.note, scene.ui.ascii)}", "dim"),), width))
    return rows


def furthest(scene: Scene, room: int) -> int:
    """How far up it can be scrolled, so that the oldest line is the first."""
    if scene.log is None:
        return 0
    return max(0, len(scene.log.lines) - max(1, room - bool(scene.log.note)))


def _heading(scene: Scene, width: int) -> Row:
    text = "log"
    if scene.log is not None:
        number = scene.log.job
        jobs = scene.snapshot.jobs if scene.snapshot else ()
        name = next((row.job.name for row in jobs if row.job.id == number), "")
        text = f"log {number} {words(name, scene.ui.ascii)}".rstrip()
    if scene.ui.log_back:
        text += f", {scene.ui.log_back} lines back"
    style: Style = "bold" if scene.ui.focus == "log" else "dim"
    head = f"── {text} "
    return fit((Span(head, style), Span("─" * max(0, width - columns(head)), "dim")), width)


def _line(line: LogLine, digits: int, scene: Scene, width: int) -> Row:
    # Of a line that was overwritten with carriage returns the last version counts.
    text = line.text.rstrip("\r").rpartition("\r")[2]
    sign, style = MARKS[line.stream]
    return fit(
        (Span(f" {line.rank:>{digits}} {sign} ", style), Span(words(text, scene.ui.ascii))), width
    )
