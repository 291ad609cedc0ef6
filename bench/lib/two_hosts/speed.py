"""The parts of two_hosts.py that hold wiiiiide against gloo and against the link."""

from __future__ import annotations

from dataclasses import dataclass

from lib.grid import TIMES_EXACT, Asked, Grid, GridRow
from lib.hosts import FAST, GIGABIT, UNSHAPED, LinkSpeed
from lib.one_host.cells import ALL_GATHER, ALL_REDUCE, REDUCE_SCATTER
from lib.two_hosts.cells import Cells, least_bytes, wire_row
from lib.two_hosts.rig import BOTH, OURS, Entry, Rig, SideContest, each_side
from lib.two_hosts.task import ASYNC, BARRIER, BROADCAST, MANY_BYTES, MANY_CALLS, ONE_BY_ONE, Task
from lib.units import KB, size_text

GIGABIT_TO_GLOO, UNSHAPED_TO_GLOO = 1.35, 2.0
OF_THE_LINK, OVER_THE_LEAST = 0.92, 1.03
LATENCY_TO_GLOO = 0.5
SCATTER_BYTES_TO_GLOO = 0.5
ASYNC_GAIN = 3.0
OF_THE_SLOWEST_LINK = 0.9

_LATENCY_SIZES = (4, 64, 1 * KB, 4 * KB)


@dataclass(frozen=True)
class _Bounds:
    """The targets of an all_reduce on a link; None: nothing."""

    faster: float | None = None  # than gloo
    of_link: float | None = None
    over_least: float | None = None


_LINKS = {
    GIGABIT: _Bounds(GIGABIT_TO_GLOO, OF_THE_LINK, OVER_THE_LEAST),
    FAST: _Bounds(),
    UNSHAPED: _Bounds(faster=UNSHAPED_TO_GLOO),
}


def _asked(what: str, bound: float | None, at_least: bool = True) -> Asked | None:
    return None if bound is None else Asked(what, bound, at_least)


def all_reduce(rig: Rig) -> list[Grid]:
    """On every link."""
    size = size_text(rig.plan.nbytes)
    times = Grid(f"all_reduce of {size} of noise, {rig.layout}")
    wire = _wire_grid(f"all_reduce of {size}", rig)
    for link, bounds in _LINKS.items():
        rig.shape(link)
        what = f"all_reduce of {size}, {link.name}"
        rows = _against_link(rig, what, link, bounds)
        times.rows.append(rows[0])
        wire.rows += rows[1:]
    return [times, wire]


def three_hosts(rig: Rig) -> list[Grid]:
    """Hosts with different numbers of ranks, at 1 Gbit."""
    rig.shape(GIGABIT)
    size = size_text(rig.plan.nbytes)
    times = Grid(f"all_reduce of {size} of noise, {rig.layout} on three hosts")
    wire = _wire_grid(f"all_reduce of {size}", rig)
    what = f"all_reduce of {size}, {rig.layout} on three hosts, {GIGABIT.name}"
    bounds = _Bounds(of_link=OF_THE_SLOWEST_LINK)
    rows = _against_link(rig, what, GIGABIT, bounds)
    times.rows.append(rows[0])
    wire.rows += rows[1:]
    return [times, wire]


def _wire_grid(what: str, rig: Rig) -> Grid:
    return Grid(f"Bytes of {what}: a call, the busiest host and direction, {rig.layout}")


def _against_link(rig: Rig, what: str, link: LinkSpeed, bounds: _Bounds) -> list[GridRow]:
    """Times next to gloo's and to what iperf3's rate allows; then both sides' bytes."""
    task = Task(ALL_REDUCE, rig.plan.nbytes)
    contest = rig.contest(what, each_side(task), with_iperf=True)
    least = least_bytes(task.op, task.nbytes, len(rig.hosts.all))
    cells = Cells(contest)
    cells.times("gloo", "wiiiiide")
    faster = _asked(f"{what}: times as fast as gloo", bounds.faster)
    cells.ratio("wiiiiide\nto gloo", "gloo", "wiiiiide", faster)
    cells.rates()
    near = _asked(f"{what}: of what iperf3's rate allows", bounds.of_link)
    at_rate = least - link.free_bytes
    cells.allowed("wiiiiide,\nof what it allows", "wiiiiide", at_rate, near)
    cells.allowed("gloo,\nof what it allows", "gloo", at_rate)
    few = _asked(f"{what}: wire bytes to the least", bounds.over_least, at_least=False)
    return [
        cells.row(link.name),
        wire_row(f"{link.name}, gloo", contest, "gloo", least),
        wire_row(f"{link.name}, wiiiiide", contest, "wiiiiide", least, few),
    ]


def latency(rig: Rig) -> list[Grid]:
    """Of small messages, as fast as the kernel goes."""
    rig.shape(UNSHAPED)
    grid = Grid(f"Latency, unshaped, {rig.layout}")
    small = [Task(op, nbytes) for op in (ALL_REDUCE, BROADCAST) for nbytes in _LATENCY_SIZES]
    for task in [*small, Task(BARRIER)]:
        what = f"{task.op} of {size_text(task.nbytes)}" if task.nbytes else task.op
        cells = Cells(rig.contest(f"{what}, unshaped", each_side(task)))
        cells.times("gloo", "wiiiiide")
        bound = LATENCY_TO_GLOO if task.op == ALL_REDUCE else None
        asked = _asked(f"{what}, unshaped: time to gloo's", bound, at_least=False)
        cells.ratio("wiiiiide's\nto gloo's", "wiiiiide", "gloo", asked)
        grid.rows.append(cells.row(what))
    return [grid]


def scatter(rig: Rig) -> list[Grid]:
    """reduce_scatter and all_gather at 1 Gbit: half of an all_reduce each."""
    rig.shape(GIGABIT)
    size = size_text(rig.plan.nbytes)
    times = Grid(f"reduce_scatter and all_gather of {size} of noise, 1 Gbit, {rig.layout}")
    wire = _wire_grid("reduce_scatter and all_gather", rig)
    for op in (REDUCE_SCATTER, ALL_GATHER):
        task = Task(op, rig.plan.nbytes)
        what = f"{op} of {size}, 1 Gbit"
        contest = rig.contest(what, each_side(task))
        cells = Cells(contest)
        cells.times("gloo", "wiiiiide")
        cells.ratio("wiiiiide\nto gloo", "gloo", "wiiiiide")
        bound = SCATTER_BYTES_TO_GLOO if op == REDUCE_SCATTER else None
        asked = _asked(f"{what}: wire bytes to gloo's", bound, at_least=False)
        ratios = _bytes_ratio(contest, "wiiiiide", "gloo")
        cells.add("wiiiiide's bytes\nto gloo's", TIMES_EXACT, ratios, asked)
        times.rows.append(cells.row(op))
        least = least_bytes(op, task.nbytes, len(rig.hosts.all))
        wire.rows += [wire_row(f"{op}, {who}", contest, who, least) for who in ("gloo", "wiiiiide")]
    return [times, wire]


def _bytes_ratio(contest: SideContest, upper: str, lower: str) -> list[float]:
    found = [
        [max(host.most for host in turn.traffic) for turn in contest.turns.get(name, [])]
        for name in (upper, lower)
    ]
    return [mine / theirs for mine, theirs in zip(*found, strict=False)]


def many(rig: Rig) -> list[Grid]:
    """Small operations, each waited for at once, against all of them waited for at the end."""
    grid = Grid(f"{MANY_CALLS} all_reduces of 1 KB, {rig.layout}")
    for link in (UNSHAPED, GIGABIT):
        rig.shape(link)
        entries = {
            f"{side.label}, {op}": Entry(side, Task(op, MANY_CALLS * MANY_BYTES))
            for side in BOTH
            for op in (ONE_BY_ONE, ASYNC)
        }
        contest = rig.contest(f"{MANY_CALLS} all_reduces, {link.name}", entries)
        for side in BOTH:
            cells = Cells(contest)
            slow, fast = (f"{side.label}, {op}" for op in (ONE_BY_ONE, ASYNC))
            cells.times(slow, named="one by one")
            cells.times(fast, named="async, waited for\nat the end")
            what = f"{MANY_CALLS} async all_reduces of 1 KB, {link.name}: to one by one"
            asked = _asked(what, ASYNC_GAIN if side is OURS else None)
            cells.ratio("gain", slow, fast, asked)
            grid.rows.append(cells.row(f"{link.name}, {side.label}"))
    return [grid]
