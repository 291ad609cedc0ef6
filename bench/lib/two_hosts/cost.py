"""The parts of two_hosts.py that ask what a setting costs or brings, and what memory is needed."""

from __future__ import annotations

from lib.fleet import FleetError
from lib.grid import COST, MEBIBYTES, TIMES_EXACT, Asked, Grid, GridRow
from lib.hosts import FAST, GIGABIT, UNSHAPED
from lib.one_host.cells import ALL_GATHER, ALL_REDUCE, REDUCE_SCATTER
from lib.two_hosts.cells import Cells, bytes_to, least_bytes
from lib.two_hosts.memory import Watch
from lib.two_hosts.rig import BOTH, OURS, Entry, Rig, Side, SideContest, with_setting
from lib.two_hosts.task import NOISE, SPARSE, Task
from lib.units import MB, size_text

SPARSE_GAIN, NOISE_COST = 3.0, 0.98
MEMORY_BYTES = 64 * MB

# Calls in which `auto` may find out what the data and the link are like.
_FIRST_CALLS = 4


def codec(rig: Rig) -> list[Grid]:
    """`auto` against none: it must gain where there is something to gain, and else not be felt."""
    grid = Grid(f"The codec: all_reduce of {size_text(rig.plan.nbytes)}, {rig.layout}")
    none = with_setting("codec none", "WIIIIIDE_CODEC", "none")
    auto = with_setting("codec auto", "WIIIIIDE_CODEC", "auto")
    for link, data, bound in (
        (FAST, SPARSE, SPARSE_GAIN),
        (FAST, NOISE, NOISE_COST),
        (GIGABIT, NOISE, NOISE_COST),
    ):
        rig.shape(link)
        task = Task(ALL_REDUCE, rig.plan.nbytes, data)
        entries = {side.label: Entry(side, task, _FIRST_CALLS) for side in (none, auto)}
        cells = Cells(rig.contest(f"codec on {data}, {link.name}", entries))
        cells.times(*entries)
        what = f"codec auto on {data}, {link.name}: times as fast as none"
        cells.ratio("auto\nto none", none.label, auto.label, Asked(what, bound), TIMES_EXACT)
        least = least_bytes(task.op, task.nbytes, len(rig.hosts.all))
        for name in entries:
            column = f"wire bytes of\n{name} to the least uncoded"
            cells.over_turns(column, name, TIMES_EXACT, bytes_to(least))
        grid.rows.append(cells.row(f"{data}, {link.name}"))
    return [grid]


def checks(rig: Rig) -> list[Grid]:
    """The payload's checksum and TLS; only reported."""
    size = size_text(rig.plan.nbytes)
    grid = Grid(f"Checksum and TLS: all_reduce of {size} of noise, {rig.layout}")
    plain = with_setting("no checksum", "WIIIIIDE_CHECKSUM", "off")
    guarded = with_setting("checksum", "WIIIIIDE_CHECKSUM", "on")
    secret = with_setting("TLS", "WIIIIIDE_TLS", "on")
    task = Task(ALL_REDUCE, rig.plan.nbytes)
    for link in (UNSHAPED, GIGABIT):
        rig.shape(link)
        entries = {side.label: Entry(side, task) for side in (plain, guarded, secret)}
        cells = Cells(rig.contest(f"checksum and TLS, {link.name}", entries))
        cells.times(*entries)
        for side in (guarded, secret):
            pairs = zip(cells.seconds(side.label), cells.seconds(plain.label), strict=False)
            cells.add(f"{side.label}\ncosts", COST, [late / early - 1 for late, early in pairs])
        grid.rows.append(cells.row(link.name))
    return [grid]


def memory(rig: Rig) -> list[Grid]:
    """Looked at while the link is the bottleneck, when buffers are full; no other side is there."""
    rig.shape(GIGABIT)
    rig.keep_only([])
    size = size_text(rig.plan.memory_nbytes)
    grid = Grid(f"Memory for exchange, a rank, operations of {size}, 1 Gbit, {rig.layout}")
    asked = Asked("memory for exchange, the rank with most", MEMORY_BYTES, at_least=False)
    for side in BOTH:
        try:
            grid.rows.append(_memory_of(rig, side, asked if side is OURS else None))
        except FleetError as problem:
            rig.failed = True
            rig.notes.append(f"{side.label} failed: memory: {problem}")
            unknown = Cells(SideContest())
            unknown.add("", MEBIBYTES, [], asked if side is OURS else None)
            grid.rows.append(unknown.row(side.label))
        rig.keep_only([])
    return [grid]


def _memory_of(rig: Rig, side: Side, asked: Asked | None) -> GridRow:
    """The memory a rank has more than before it joined the others; a round here is a rank."""
    ops = (ALL_REDUCE, REDUCE_SCATTER, ALL_GATHER)
    tasks = [Task(op, rig.plan.memory_nbytes).message() for op in ops]
    fleet = rig.start(side)
    fleet.ask({"do": "prepare", "tasks": tasks})
    before = [answer["bytes"] for answer in fleet.ask({"do": "memory"})]
    with Watch(fleet.pids, rig.hosts.all) as watch:
        fleet.ask({"do": "open", "backend": side.backend})
        for task in tasks:
            fleet.ask({"do": "measure", "task": task, "warmup": 1, "calls": 2})
    after = [answer["bytes"] for answer in fleet.ask({"do": "memory"})]
    for task in tasks:
        fleet.ask({"do": "check", "task": task})
    kept = [late - early for late, early in zip(after, before, strict=True)]
    most = [peak - early for peak, early in zip(watch.most_own, before, strict=True)]
    shares = zip(watch.most_sockets, rig.hosts.all, strict=True)
    sockets = [held / host.ranks for held, host in shares for _ in range(host.ranks)]
    both = [own + held for own, held in zip(most, sockets, strict=True)]
    cells = Cells(SideContest())
    cells.add("own and shared,\nafterwards", MEBIBYTES, kept)
    cells.add("own and shared,\nat most", MEBIBYTES, most)
    cells.add("socket buffers,\nat most", MEBIBYTES, sockets)
    # Asked of every rank, so the one with the most counts.
    cells.add("together,\nthe rank with most", MEBIBYTES, [max(both)], asked)
    return cells.row(side.label)
