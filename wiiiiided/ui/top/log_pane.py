"""The log pane: the newest lines of the selected job's ranks, in the order of time.

    ╭─ log 17 digits ──────────────────────────╮
    │ 14:27:51 b:2 │ epoch 1 loss 0.407        │   a job on several nodes says where as well
    │ 14:27:52 a:1 ! UserWarning: …            │
    ╰─ 12 lines back ──────────────────────────╯

The marks are those of `wiiiiide logs`. Lines of ranks are untrusted: they are cleaned and cut here.
"""

from __future__ import annotations

from rich.console import Group, RenderableType
from rich.text import Text

from wiiiiided.cluster.rpc.messages import LogLine
from wiiiiided.text import columns, cut, pad, without_overwritten
from wiiiiided.ui.top import formats
from wiiiiided.ui.top.pane import framed, line, rows_of, title, words
from wiiiiided.ui.top.ui import LogView, Scene

NODE_MOST = 12  # columns of a node's name
TIMED = 100  # columns from which on lines say when they were written
MARKS = {"out": ("│", "dim"), "err": ("!", "bad"), "note": ("·", "dim")}


def pane(scene: Scene, width: int, height: int) -> RenderableType:
    """The lines that end `log_back` above the newest, in `height` lines with the frame."""
    ui, log = scene.ui, scene.log
    focus = ui.focus == "log"
    about = "" if log is None else f"{log.job} {_name(log, scene)}".rstrip()
    below = line((f"{ui.log_back} lines back", "wait")) if ui.log_back else None
    rows = [] if log is None else _rows(log, scene, width, rows_of(height))
    heading = title("log", about, focus)
    return framed(Group(*rows), heading, width, ui, height=height, focus=focus, below=below)


def furthest(scene: Scene, height: int) -> int:
    """How many lines up the log can be scrolled, so that the oldest line is the first."""
    return 0 if scene.log is None else _furthest(scene.log, rows_of(height))


def _furthest(log: LogView, room: int) -> int:
    return max(0, len(log.lines) - max(1, room - bool(log.note)))


def _name(log: LogView, scene: Scene) -> str:
    rows = scene.snapshot.jobs if scene.snapshot else ()
    name = next((row.job.name for row in rows if row.job.id == log.job), "")
    return words(name, scene.ui.ascii)


def _rows(log: LogView, scene: Scene, width: int, room: int) -> list[RenderableType]:
    end = len(log.lines) - min(scene.ui.log_back, _furthest(log, room))
    shown = log.lines[max(0, end - room + bool(log.note)) : end]
    several = len({each.node for each in log.lines}) > 1
    origins = [_origin(each, several, scene) for each in shown]
    size = max(map(columns, origins), default=1)
    rows: list[RenderableType] = [
        _line(each, pad(origin, size, right=True), scene, width >= TIMED)
        for each, origin in zip(shown, origins, strict=True)
    ]
    if log.note:
        rows.append(line((words(log.note, scene.ui.ascii), "dim")))
    return rows


def _origin(each: LogLine, several: bool, scene: Scene) -> str:
    node = cut(words(each.node, scene.ui.ascii), NODE_MOST) if several else ""
    return f"{node}:{each.rank}" if node else str(each.rank)


def _line(each: LogLine, origin: str, scene: Scene, timed: bool) -> Text:
    text = without_overwritten(each.text)
    sign, style = MARKS[each.stream]
    moment = f"{formats.time_of_day(each.at, scene.offset_s)} " if timed and each.at else ""
    return line((moment, "dim"), (f"{origin} {sign} ", style), words(text, scene.ui.ascii))
