"""The pane of nodes: a row each, their sum, and in the frame below them the straggler.

    ╭─ nodes 3 ───────────────────────────────────────────────────────────────────────────────────╮
    │  node  state   samples/s throughput compute exchange waiting   up/s down/s  CPU       MEM    │
    │▸ a *   ● ok        412.0 ▅▆▇▇▇▇    ▆▆▆▆▆▆▆▆▆▆▆▆▆▆▆▆▆▄▄▂▂▂▂    61.2M  60.8M  ━━━── 71% …      │
    │  c     ◄ slow      411.9 ▃▃▂▃▃▂    ▆▆▆▆▆▆▆▆▆▆▆▆▆▆▆▆▆▆▆▆▆▆▄    58.8M  59.3M  ━━━━━ 99% …      │
    │  total             823.9                                       120M   120M                  │
    ╰─ ◄ straggler: rank 4 on c costs +41 % step time: … ─────────────────────────────────────────╯

A value that a daemon does not know, or that a node without ranks does not have, is `–`. Of a lost
node nothing is known but when it was last heard: it is in no total.
"""

from __future__ import annotations

from collections.abc import Sequence

from rich.console import Group, RenderableType
from rich.text import Text

from wiiiiided.domain.metrics import JobNow, NodeNow
from wiiiiided.text import columns
from wiiiiided.ui.top import formats
from wiiiiided.ui.top.marks import BLANK, Mark, RowStrip, ShareMeter, Sparkline, TimeBar, cell
from wiiiiided.ui.top.order import NODE_ORDERS, main_rate, node_at, nodes_of, sorting, window
from wiiiiided.ui.top.pane import (
    EDGES,
    NAME_MOST,
    SORTED,
    fitted,
    framed,
    inside,
    line,
    mark,
    nothing,
    rows_of,
    short,
    title,
    words,
)
from wiiiiided.ui.top.ui import Scene

NAME_LEAST = 5  # "total" stands below them
# From here on an age is shown as a warning. A node without ranks reports every five seconds.
STALE_S, IDLE_STALE_S = 3.0, 8.0
SIGNS = {  # of each state: sign, word, style
    "ok": ("●", "ok", "good"),
    "slow": ("◄", "slow", "warn"),
    "idle": ("○", "idle", ""),
    "drained": ("⊘", "drained", "wait"),
    "lost": ("✗", "lost", "bad"),
}
MIXED = {"samples/s": "smp", "step/s": "stp", "op/s": "op"}
RIGHT = {"rate", "steps", "up", "down", "shm", "codec", "ratio", "age"}
TITLES = {
    "mark": "",
    "name": "node",
    "state": "state",
    "rate": "rate",
    "spark": "throughput",
    "steps": "step/s",
    "time": "",
    "up": "up/s",
    "down": "down/s",
    "shm": "shm/s",
    "codec": "codec",
    "ratio": "ratio",
    "cpu": "CPU",
    "mem": "MEM",
    "age": "age",
    "note": "note",
}
# As there is room, the most wanted first: a column, or a greater width of one that is there.
WIDER = (
    *(("time", 8), ("spark", 6), ("state", 6), ("up", 5), ("down", 6), ("cpu", 4), ("mem", 4)),
    *(("note", 8), ("state", 9), ("time", 12), ("spark", 8), ("age", 3), ("note", 14)),
    *(("cpu", 9), ("mem", 9), ("time", 16), ("spark", 14), ("time", 24), ("spark", 20)),
    *(("cpu", 12), ("mem", 12), ("note", 16), ("steps", 6), ("ratio", 5), ("shm", 5)),
    *(("codec", 5), ("note", 30), ("spark", 30), ("time", 36), ("cpu", 17), ("mem", 17)),
    *(("spark", 60), ("time", 60), ("cpu", 27), ("mem", 27)),
)
PAPER = (*(entry for entry in WIDER if entry[1] < 20), ("note", 200))
SEEN = {"steps", "time", "up", "down", "shm", "codec", "ratio", "cpu", "mem", "spark", "note"}


def pane(scene: Scene, width: int, height: int) -> RenderableType:
    """The pane in `height` lines, the frame included."""
    ui, nodes = scene.ui, nodes_of(scene.snapshot, scene.ui)
    focus = ui.focus == "nodes" and not ui.once
    room = rows_of(height) - 1
    count = len(scene.snapshot.nodes) if scene.snapshot else 0
    about = f"{count}" if len(nodes) == count else f"{len(nodes)} of {count}"
    heading = title("nodes", about, focus)
    below = straggler(scene, width)
    if not nodes and ui.nodes.filter:
        empty = nothing(ui.nodes.filter, ui.ascii)
        return framed(empty, heading, width, ui, height=height, focus=focus)
    made = Group(*_rows(nodes, scene, width, room))
    return framed(made, heading, width, ui, height=height, focus=focus, below=below)


def wanted(scene: Scene) -> int:
    """The lines of the pane with its frame and heading, when there is room for all."""
    count = len(nodes_of(scene.snapshot, scene.ui))
    return EDGES + 1 + max(1, count + (count > 1))


def works(node: NodeNow) -> bool:
    return bool(node.jobs) and node.state != "lost"


def name_of(node: NodeNow, scene: Scene) -> str:
    return short(node.name, scene.ui) + (" *" if node.coordinator else "")


def sign_of(node: NodeNow) -> tuple[str, str, str]:
    return SIGNS[node.state]


# ---- the table


def _rows(nodes: Sequence[NodeNow], scene: Scene, width: int, room: int) -> list[RenderableType]:
    ui = scene.ui
    sizes, unit = widths(scene, width), _unit(scene.snapshot.nodes if scene.snapshot else ())
    rows: list[RenderableType] = [_headings(sizes, unit, scene)]
    summed = len(nodes) > 1 and room >= 2
    place = node_at(nodes, ui)
    shown = window(len(nodes), place, room - summed)
    for number in shown:
        sign = mark(number, shown, len(nodes), None if ui.once else place)
        picked = number == place and ui.focus == "nodes" and not ui.once
        cells = _cells(nodes[number], scene, sizes, unit)
        cells["mark"] = cell((sign, "focus" if picked else ""))
        if picked:
            cells["name"] = cell(name_of(nodes[number], scene), style="select")
        rows.append(_strip(cells, sizes))
    return [*rows, _strip(_sum(nodes, sizes), sizes)] if summed else rows


def _strip(cells: dict[str, Mark], sizes: dict[str, int]) -> RowStrip:
    return RowStrip([(cells.get(key, BLANK), size) for key, size in sizes.items()])


def _headings(sizes: dict[str, int], unit: str, scene: Scene) -> RowStrip:
    by, falling = sorting(scene.ui.nodes, NODE_ORDERS)
    arrows = {_key(by): SORTED[falling]}
    heads = {key: _heading(key, size, unit, arrows.get(key, "")) for key, size in sizes.items()}
    return _strip(heads, sizes)


def widths(scene: Scene, width: int) -> dict[str, int]:
    """The columns there is room for, in their order; those without a value in this session, and
    the note without one, are left out as long as others want the room."""
    ui = scene.ui
    seen = ui.seen.columns
    name = max(NAME_LEAST, ui.seen.node if ui.once else min(ui.seen.node, NAME_MOST + 2))
    room = inside(width)
    least = {"mark": 1, "name": min(name, max(NAME_LEAST, room - 26)), "state": 1, "rate": 9}
    wider = PAPER if ui.once else WIDER
    known = [each for each in wider if each[0] not in SEEN or each[0] in seen]
    later = [each for each in wider if each not in known and each[0] != "note"]
    made = fitted(least, [*known, *later], room)
    if ("up" in made) != ("down" in made):  # one without the other would look like a fault
        made.pop("up", None)
        made.pop("down", None)
    return {key: made[key] for key in TITLES if key in made}


def _key(order: str) -> str:
    return {"tx": "up", "rx": "down"}.get(order, order)


def _unit(nodes: Sequence[NodeNow]) -> str:
    """The unit of working nodes; "rate" where they differ and each has its own. A node without a
    known rate does not count."""
    working = [node for node in nodes if works(node)]
    told = [node for node in working if main_rate(node) is not None]
    units = {node.unit for node in told or working or nodes}
    return units.pop() if len(units) == 1 else "rate"


def _heading(key: str, size: int, unit: str, arrow: str) -> Mark:
    if key == "time":
        return _time_heading(size, arrow)
    text = unit if key == "rate" else TITLES[key]
    if key in ("state", "spark") and size < len(text):
        text = ""
    return cell(f"{arrow}{text}"[:size], style="head", right=key in RIGHT)


def _time_heading(size: int, arrow: str) -> Mark:
    parts = next(
        (
            parts
            for parts in (
                ("compute", "exchange", "waiting"),
                ("comp", "exch", "wait"),
            )
            if sum(map(len, parts)) + 2 + len(arrow) <= size
        ),
        ("time", "", ""),
    )
    styles = ("compute", "exchange", "waiting") if parts[1] else ("head", "", "")
    pieces = [
        (f"{' ' if place else ''}{part}", style)
        for place, (part, style) in enumerate(zip(parts, styles, strict=True))
        if part
    ]
    return cell(arrow, *pieces)


def _cells(node: NodeNow, scene: Scene, sizes: dict[str, int], unit: str) -> dict[str, Mark]:
    sign, word, style = sign_of(node)
    lost = node.state == "lost"
    age_s = node.age_s + scene.since_s
    every_s = scene.snapshot.every_s if scene.snapshot else 1.0
    stale = age_s >= max(STALE_S if works(node) else IDLE_STALE_S, 3 * every_s)
    made: dict[str, Mark] = {
        key: cell(("–", "dim"), right=key in RIGHT) for key in sizes if key not in ("spark", "time")
    }
    made["name"] = cell(name_of(node, scene), style="dim" if lost else "bold")
    made["state"] = cell((f"{sign} {word}" if sizes["state"] > 1 else sign, style))
    made["age"] = cell((formats.age(age_s), "warn" if stale else "dim"), right=True)
    made["note"] = cell((words(node.note, scene.ui.ascii), "wait" if node.note else ""))
    if lost and "age" not in sizes:
        made["rate"] = cell((formats.age(age_s), "dim"), right=True)
    if not lost:
        made["cpu"], made["mem"] = ShareMeter(node.cpu), ShareMeter(node.memory_used)
    if works(node):
        made |= _metrics(node, sizes, unit)
    return made


def _metrics(node: NodeNow, sizes: dict[str, int], unit: str) -> dict[str, Mark]:
    rates = node.rates
    made: dict[str, Mark] = {
        "rate": cell(_rate(node, sizes["rate"], unit), right=True),
        "steps": cell(formats.rate(rates.steps, 6), right=True),
    }
    if main_rate(node) is not None:
        made["spark"] = Sparkline(node.history, "slow" if node.state == "slow" else "spark")
    if rates.measured:
        made["time"] = TimeBar(rates.exchange, rates.waiting)
        texts = {
            "up": formats.short(rates.wire_out),
            "down": formats.short(rates.wire_in),
            "shm": formats.short(rates.shm),
            "codec": words(node.codec, True) or formats.UNKNOWN,
            "ratio": formats.times(rates.ratio),
        }
        made |= {key: cell(text, right=True) for key, text in texts.items()}
    return made


def _rate(node: NodeNow, size: int, unit: str) -> str:
    if unit != "rate":
        return formats.rate(main_rate(node), size)
    return f"{formats.rate(main_rate(node), 6)[: size - 4]} {MIXED[node.unit]:<3}"[:size]


def total_rate(nodes: Sequence[NodeNow]) -> float | None:
    """Samples per second of all working nodes; None where one does not report them. Steps are the
    same ones everywhere, and operations of several jobs cannot be added."""
    working = [node for node in nodes if works(node)]
    values = [main_rate(node) for node in working]
    if not working or {node.unit for node in working} != {"samples/s"} or None in values:
        return None
    return sum(value or 0.0 for value in values)


def total_up(nodes: Sequence[NodeNow]) -> float | None:
    """Bytes per second between machines; None where a part of it is not known."""
    working = [node.rates for node in nodes if works(node)]
    if not working or not all(rates.measured for rates in working):
        return None
    return sum(rates.wire_out for rates in working)


def _sum(nodes: Sequence[NodeNow], sizes: dict[str, int]) -> dict[str, Mark]:
    """The row of sums: rates of one unit, and bytes. A mean of shares would say nothing."""
    working = [node for node in nodes if works(node)]
    made = {"name": "total"}
    if (total := total_rate(nodes)) is not None:
        made["rate"] = formats.rate(total, sizes["rate"])
    if working and total_up(nodes) is None:
        made |= dict.fromkeys(("up", "down", "shm"), formats.UNKNOWN)  # a part is not the sum
    elif working:
        made["up"] = formats.short(sum(node.rates.wire_out for node in working))
        made["down"] = formats.short(sum(node.rates.wire_in for node in working))
        made["shm"] = formats.short(sum(node.rates.shm for node in working))
    return {key: cell(text, style="total", right=key in RIGHT) for key, text in made.items()}


# ---- the straggler


def straggler(scene: Scene, width: int) -> Text | None:
    """The rank that the others wait for, or that ranks take turns: the selected job's first."""
    rows = scene.snapshot.jobs if scene.snapshot else ()
    told = [(row.job.id, row.now) for row in rows if row.now is not None]
    found = [(job, now) for job, now in told if late(now)]
    if not found:
        return None
    found.sort(key=lambda each: each[0] != scene.ui.job)
    job, now = found[0]
    more = f" (and job {found[1][0]})" if len(found) == 2 else ""
    more = f" (and {len(found) - 1} jobs)" if len(found) > 2 else more
    return _sentence(now, job if len(told) > 1 else None, more, scene, width - 6)


def late(now: JobNow) -> str:
    if now.straggler is not None:
        return now.straggler.why
    return f"none, {now.turns}" if now.turns else ""


def _sentence(now: JobNow, job: int | None, more: str, scene: Scene, room: int) -> Text:
    """Which rank and how much, up to the colon, is the point: where room is scarce the rest goes,
    first our own words, then the explanation."""
    point, colon, rest = words(late(now), scene.ui.ascii).partition(": ")
    whose = "" if job is None else f"job {job} "
    heads = (f"◄ {whose}straggler: ", f"◄ {job}: " if job is not None else "◄ ", "")
    head = next((h for h in heads if columns(h) + columns(point) <= room), "")
    left = room - columns(head) - columns(point) - columns(more)
    if left < 0:
        more, left = "", left + columns(more)
    tail = f"{colon}{rest}"
    if columns(tail) > left:
        tail = tail[: max(0, left - 1)] + "…" if left > 12 else ""
    return line((head, "warn"), (point, "point"), (tail, "dim"), (more, "warn"))
