"""The log pane: the newest lines of the selected job's ranks.

    ── log 17 digits ───────────────────
     0 │ epoch 1 loss 0.412
     1 ! UserWarning: …
     b:2 │ epoch 1 loss 0.407          a job on several nodes says where as well

The marks are those of `wiiiiide logs`. What ranks write is untrusted: it is cleaned and cut here.
"""

from __future__ import annotations

from wiiiiided.text import columns, cut, pad
from wiiiiided.top.grid import words
from wiiiiided.top.spans import Row, Span, Style, fit
from wiiiiided.top.ui import Scene
from wiiiiided.wire.messages import LogLine

NODE_MOST = 12  # columns of a node's name
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
    several = len({line.node for line in log.lines}) > 1
    who = [_who(line, several, scene) for line in shown]
    size = max(map(columns, who), default=1)
    rows += [
        _line(line, pad(name, size, right=True), scene, width)
        for line, name in zip(shown, who, strict=True)
    ]
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


def _who(line: LogLine, several: bool, scene: Scene) -> str:
    node = cut(words(line.node, scene.ui.ascii), NODE_MOST) if several else ""
    return f"{node}:{line.rank}" if node else str(line.rank)


def _line(line: LogLine, who: str, scene: Scene, width: int) -> Row:
    # Of a line that was overwritten with carriage returns the last version counts.
    text = line.text.rstrip("\r").rpartition("\r")[2]
    sign, style = MARKS[line.stream]
    return fit((Span(f" {who} {sign} ", style), Span(words(text, scene.ui.ascii))), width)
