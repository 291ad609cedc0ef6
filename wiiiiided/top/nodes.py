"""The pane of nodes: a line each, their sum, and who is slow.

     NODE   STATE   samples/s        step/s comm%  tx/s  rx/s shm/s codec ratio  CPU  MEM age NOTE
    ▸a *    ok          412.0 ▅▆▇▇▇▇   3.22    18 61.2M 60.8M 1.90G   lz4  2.1x  71%  38%  0s
     c      slow ◄      231.9 ▃▃▂▃▃▂   3.22     4 58.8M 59.3M 1.90G   lz4  2.1x  99%  91%  0s swaps
     total              643.9                    120M  120M 3.80G
     straggler: …

What a node's daemon does not know, or what a node without ranks does not have, is `–`. Of a lost
node nothing is known but when it was last heard.
"""

from __future__ import annotations

from collections.abc import Sequence

from wiiiiided.domain.figures import JobNow, NodeNow, Rates
from wiiiiided.text import columns
from wiiiiided.top import numbers
from wiiiiided.top.grid import (
    LAST_LEAST,
    NAME_MOST,
    ROOMY,
    Cell,
    Column,
    Grid,
    grid,
    mark,
    nothing,
    words,
)
from wiiiiided.top.order import (
    NODE_ORDERS,
    main_rate,
    node_at,
    nodes_of,
    sorting,
    window,
)
from wiiiiided.top.spans import Row, Span, Style, fit
from wiiiiided.top.ui import Scene

SPARK, SPARK_MOST = 6, 20
NAME_LEAST = 5  # "total" stands below them
# From here on an age is worth an eye. A node without ranks speaks every five seconds.
STALE_S, IDLE_STALE_S = 3.0, 8.0
STRAGGLERS = 2  # lines at most
STYLES: dict[str, Style] = {
    "ok": "good",
    "slow": "warn",
    "idle": "",
    "drained": "dim",
    "lost": "dim",
}
FIRST, LAST = (
    Column("name", "NODE", NAME_LEAST, right=False),
    Column("note", "NOTE", 0, right=False),
)
MIXED = {"samples/s": "smp", "step/s": "stp", "op/s": "op"}
# What is kept when there is no room for all, the first the longest; those without a figure in this
# session go before any other.
ALWAYS = ("state", "rate", "age")
KEPT = ("comm", "tx", "rx", "note", "mem", "shm", "steps", "ratio", "codec", "cpu", "spark")
NAME_ROOM = 9  # columns that a name gets before another figure does
WIDTHS = {
    "state": ("STATE", 7),
    "rate": ("rate", 9),
    "spark": ("", SPARK),
    "steps": ("step/s", 6),
    "comm": ("comm%", 5),
    "tx": ("tx/s", 5),
    "rx": ("rx/s", 5),
    "shm": ("shm/s", 5),
    "codec": ("codec", 5),
    "ratio": ("ratio", 5),
    "cpu": ("CPU", 4),
    "mem": ("MEM", 4),
    "age": ("age", 3),
}


def title_and_rows(scene: Scene, width: int, room: int) -> list[Row]:
    """The heading and as many nodes as there is room for; a sum when they are several."""
    ui, nodes = scene.ui, nodes_of(scene.snapshot, scene.ui)
    table = _grid(nodes, scene, width)
    focus = ui.focus == "nodes" and not ui.once
    order = ui.nodes
    rows = [table.title(*sorting(order, NODE_ORDERS), focus or ui.once)]
    if not nodes and order.filter and room > 0:
        return [*rows, nothing(order.filter, ui.ascii, width)]
    summed = len(nodes) > 1 and room >= 2
    place = node_at(nodes, ui)
    shown = window(len(nodes), place, room - summed)
    for number in shown:
        cells = _cells(nodes[number], scene, table)
        sign = mark(number, shown, len(nodes), None if ui.once else place)
        rows.append(table.row(cells, sign, focus and number == place))
    if summed:
        rows.append(table.row(_sum(nodes)))
    return rows


def wanted(scene: Scene) -> int:
    """Lines below the heading, when there is room for all."""
    count = len(nodes_of(scene.snapshot, scene.ui))
    return count + (count > 1) or bool(scene.ui.nodes.filter)


def stragglers(scene: Scene, width: int) -> list[Row]:
    """Who the others wait for, or that ranks take turns: the selected job's first."""
    rows = scene.snapshot.jobs if scene.snapshot else ()
    told = [(row.job.id, _late(row.now)) for row in rows if row.now is not None]
    found = [(job, text) for job, text in told if text]
    found.sort(key=lambda each: each[0] != scene.ui.job)
    return [
        _straggler(words(text, scene.ui.ascii), job if len(told) > 1 else None, width)
        for job, text in found[:STRAGGLERS]
    ]


def _late(now: JobNow) -> str:
    if now.straggler is not None:
        return now.straggler.why
    return f"none, {now.turns}" if now.turns else ""


def _straggler(text: str, job: int | None, width: int) -> Row:
    """Who and how much, up to the colon, is the point: where room is scarce our own words go."""
    heads = [" straggler: ", " "] if job is None else [f" job {job} straggler: ", f" {job}: "]
    point = columns(text.partition(": ")[0]) + 1
    head = heads[0] if columns(heads[0]) + point <= width else heads[1]
    return fit((Span(head, "warn"), Span(text, "" if head.strip() else "warn")), width)


def _unit(nodes: Sequence[NodeNow]) -> str:
    """What all working nodes count; "rate" where they differ and each says its own. One of which
    nothing is known yet has no say."""
    working = [node for node in nodes if works(node)]
    told = [node for node in working if main_rate(node) is not None]
    units = {node.unit for node in told or working or nodes}
    return units.pop() if len(units) == 1 else "rate"


def works(node: NodeNow) -> bool:
    return bool(node.jobs) and node.state != "lost"


def _grid(nodes: Sequence[NodeNow], scene: Scene, width: int) -> Grid:
    ui, every = scene.ui, scene.snapshot.nodes if scene.snapshot else ()
    name = max(NAME_LEAST, ui.seen.node if ui.once else min(ui.seen.node, NAME_MOST))
    keys = _keys(ui.seen.columns, name, width)
    note = max((columns(words(node.note, scene.ui.ascii)) for node in nodes), default=0)
    fixed = []
    for key in keys:
        heading, size = WIDTHS[key]
        if key == "rate":
            heading = _unit(every)
        if key == "spark":
            gap = 2 if width >= ROOMY else 1
            others = sum(WIDTHS[each][1] + gap for each in keys)
            taken = 1 + name + others + (gap + max(4, note) if note else 0)
            size = max(SPARK, min(SPARK_MOST, SPARK + width - taken))
        fixed.append(Column(key, heading, size, right=key != "state"))
    return grid(width, (FIRST, name), fixed, (LAST, note))


def _keys(seen: frozenset[str], name: int, width: int) -> list[str]:
    """The columns there is room for, in their order."""
    gap = 2 if width >= ROOMY else 1
    left = width - 1 - min(name, NAME_ROOM) - sum(WIDTHS[key][1] + gap for key in ALWAYS)
    kept = set(ALWAYS)
    sizes = {key: gap + (LAST_LEAST if key == "note" else WIDTHS[key][1]) for key in KEPT}
    for key in (key for key in KEPT if key in seen):
        left -= sizes[key]
        if left < 0:
            break
        kept.add(key)
    empty = {key for key in KEPT if key not in seen and key != "note"}
    if sum(sizes[key] for key in empty) <= left:  # all or none: tx without rx looks like a fault
        kept |= empty
    return [key for key in WIDTHS if key in kept]


def name_of(node: NodeNow, in_ascii: bool) -> str:
    return words(node.name, in_ascii) + (" *" if node.coordinator else "")


def _cells(node: NodeNow, scene: Scene, table: Grid) -> dict[str, Cell]:
    state = "slow ◄" if node.state == "slow" else node.state
    age_s = node.age_s + scene.since_s
    every_s = scene.snapshot.every_s if scene.snapshot else 1.0
    stale = age_s >= max(STALE_S if works(node) else IDLE_STALE_S, 3 * every_s)
    made = {
        "name": Cell(name_of(node, scene.ui.ascii), "dim" if node.state == "lost" else ""),
        "state": Cell(state, STYLES.get(node.state, "")),
        "age": Cell(numbers.age(age_s), "bold" if stale and node.state != "lost" else "dim"),
        "note": Cell(words(node.note, scene.ui.ascii)),
    }
    if node.state != "lost":
        made["cpu"] = Cell(_percent(node.cpu), _high(node.cpu))
        made["mem"] = Cell(_percent(node.memory_used), _high(node.memory_used))
    figures = _figures(node, table) if works(node) else {}
    missing = Cell(numbers.UNKNOWN, "dim")
    blank = {column.key: missing for column in table.columns if column.key != "spark"}
    return {**blank, **made, **{key: Cell(text) for key, text in figures.items()}}


def _percent(share: float | None) -> str:
    return numbers.UNKNOWN if share is None else f"{numbers.percent(share)}%"


def _high(share: float | None) -> Style:
    """Memory that runs out and cores that are full are what makes nodes slow."""
    return "bold" if share is not None and share >= 0.9 else ""


def _figures(node: NodeNow, table: Grid) -> dict[str, str]:
    sizes = {column.key: column for column in table.columns}
    own = sizes["rate"].title == "rate"
    size = sizes["rate"].width - (4 if own else 0)
    rates, unit = node.rates, f" {MIXED[node.unit]:<3}" if own else ""
    made = {
        "rate": numbers.rate(main_rate(node), max(6, size))[:size] + unit,
        "steps": numbers.rate(rates.steps, WIDTHS["steps"][1]),
    }
    if rates.measured:
        made |= {
            "comm": numbers.percent(rates.exchange),
            **_bytes(rates),
            "codec": words(node.codec, True) or numbers.UNKNOWN,
            "ratio": numbers.times(rates.ratio),
        }
    if "spark" in sizes and main_rate(node) is not None:
        made["spark"] = numbers.sparkline(node.history, sizes["spark"].width)
    return made


def _bytes(rates: Rates) -> dict[str, str]:
    return {
        "tx": numbers.short(rates.wire_out),
        "rx": numbers.short(rates.wire_in),
        "shm": numbers.short(rates.shm),
    }


def _sum(nodes: Sequence[NodeNow]) -> dict[str, Cell]:
    """Of what can be added: rates of one unit, bytes. A mean of shares would say nothing."""
    working = [node for node in nodes if works(node)]
    made = {"name": "total"}
    if working and not all(node.rates.measured for node in working):
        made |= dict.fromkeys(("tx", "rx", "shm"), numbers.UNKNOWN)  # a part is not the sum
    elif working:
        total = Rates(
            wire_out=sum(node.rates.wire_out for node in working),
            wire_in=sum(node.rates.wire_in for node in working),
            shm=sum(node.rates.shm for node in working),
        )
        made |= _bytes(total)
    if working:
        # Steps are the same ones everywhere, and several jobs' operations are no common thing.
        values = [main_rate(node) for node in working]
        if {node.unit for node in working} == {"samples/s"} and None not in values:
            made["rate"] = numbers.rate(sum(value or 0.0 for value in values), 9)
    return {key: Cell(text, "bold") for key, text in made.items()}
