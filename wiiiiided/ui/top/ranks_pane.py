"""From 34 lines on the ranks of the selected job, and beside them its loss; on a narrow screen it
lies below them, from 41 lines on.

╭─ ranks 17 digits ────────────────────────────────────────╮╭─ loss 4.1 → 0.35 ─────────────╮
│ rank  step  step time  where the time goes  waits for mem ││ 4.1  │█▅▃▂▂▁▁▁▁               │
│ 0 a   7951     310 ms  ▆▆▆▆▆▆▄▂▂▂▂▂▂▂       rank 4   1.0G ││ 0.35 │█████████▇▇▆▆▅▅▅▅▅▅▅▅  │
╰───────────────────────────────────────────────────────────╯╰────────────────────────────────╯
"""

from __future__ import annotations

from collections.abc import Iterable

from rich.console import Group, RenderableType
from rich.layout import Layout
from rich.text import Text

from wiiiiided.cluster.rpc.messages import JobRow
from wiiiiided.domain.metrics import RankNow
from wiiiiided.text import cut, format_size_compact
from wiiiiided.ui.top import formats
from wiiiiided.ui.top.marks import Chart, Mark, RowStrip, TimeBar, cell
from wiiiiided.ui.top.order import selected_job
from wiiiiided.ui.top.pane import EDGES, fitted, framed, inside, line, short, title, words
from wiiiiided.ui.top.ui import Scene

LEAST, MOST = 5, 9  # rows of ranks
ROOMY = 32  # lines for all panes from which on these are shown
BESIDE = 100  # columns from which on the loss stands beside the ranks
BELOW = 7  # lines of the loss below the ranks, with its frame
RANKS_LEAST = 63  # columns in which a rank's memory has room
NODE_MOST = 12
TITLES = {
    "rank": "rank",
    "step": "step",
    "took": "step time",
    "time": "where the time goes",
    "peer": "waits for",
    "share": "share",
    "cpu": "cores",
    "mem": "memory",
}
RIGHT = {"step", "took", "share", "cpu", "mem"}
WIDER = (
    *(("peer", 9), ("time", 19), ("mem", 6), ("cpu", 5), ("rank", 10), ("step", 8), ("time", 26)),
    *(("rank", 16), ("time", 40), ("time", 60)),
)

SHARE = "share", 6  # a rank's part of all samples, where it is told: a fast one may take more


def shown(scene: Scene) -> JobRow | None:
    """The selected job, if it runs and anything is known of its ranks."""
    row = selected_job(scene.snapshot, scene.ui)
    return row if row is not None and row.now is not None and row.now.ranks else None


def wanted(scene: Scene, width: int, room: int) -> int:
    """The lines of the panes with their frames on a screen that has `room` for all panes; 0: there
    is nothing to show."""
    row = shown(scene)
    if row is None or room < ROOMY:
        return 0
    below = width < BESIDE and room >= ROOMY + BELOW and len(_losses(row, scene)) > 1
    return _lines(row) + BELOW * below


def _lines(row: JobRow) -> int:
    """The lines of the ranks alone."""
    return EDGES + 1 + min(MOST, max(LEAST, len(row.now.ranks if row.now else ())))


def _losses(row: JobRow, scene: Scene) -> tuple[float, ...]:
    return scene.losses.get(row.job.id, ())


def panes(scene: Scene, width: int, height: int) -> RenderableType:
    row = shown(scene)
    if row is None:
        return Text(" ")
    losses, lines, both = _losses(row, scene), _lines(row), Layout()
    if len(losses) < 2 or (width < BESIDE and height < lines + BELOW):
        return _ranks(row, scene, width, height)
    if width < BESIDE:
        both.split_column(
            Layout(_ranks(row, scene, width, lines), size=lines),
            Layout(_loss(losses, scene, width)),
        )
        return both
    part = max(RANKS_LEAST, width * 3 // 5)
    both.split_row(
        Layout(_ranks(row, scene, part, height), size=part),
        Layout(_loss(losses, scene, width - part)),
    )
    return both


def _ranks(row: JobRow, scene: Scene, width: int, height: int) -> RenderableType:
    ranks = row.now.ranks if row.now else ()
    about = f"{row.job.id} {short(row.job.name, scene.ui)}"
    room = height - EDGES - 1
    left = len(ranks) - room
    below = line((f"{left} more; Enter lists all", "dim")) if left > 0 else None
    content = ranks_rows(ranks[:room], scene, inside(width))
    return framed(content, title("ranks", about, False), width, scene.ui, below=below)


def _loss(losses: tuple[float, ...], scene: Scene, width: int) -> RenderableType:
    about = f"{formats.loss(losses[0])} → {formats.loss(losses[-1])}"
    return framed(Chart(losses), title("loss", about, False), width, scene.ui)


def ranks_rows(ranks: tuple[RankNow, ...], scene: Scene, room: int) -> RenderableType:
    """A heading, and a row for each rank."""
    shares = any(rank.training.share is not None for rank in ranks)
    wider = (*WIDER[:1], SHARE, *WIDER[1:]) if shares else WIDER
    sizes = fitted({"rank": 5, "step": 6, "took": 9, "time": 8}, wider, room)
    sizes = {key: sizes[key] for key in TITLES if key in sizes}
    rows = [RowStrip([(_heading(key, size), size) for key, size in sizes.items()])]
    found = waited_for(ranks)
    for rank in ranks:
        cells = _cells(rank, found.get(rank.rank), scene)
        rows.append(RowStrip([(cells[key], size) for key, size in sizes.items()]))
    return Group(*rows)


def _heading(key: str, size: int) -> Mark:
    text = TITLES[key] if len(TITLES[key]) <= size else "time" if key == "time" else TITLES[key]
    return cell(text[:size], style="head", right=key in RIGHT)


def waited_for(ranks: Iterable[RankNow]) -> dict[int, int]:
    """The rank for whose sake each rank waits. In a ring a rank waits for its neighbour, which may
    only wait itself: of all that are waited for in turn, it is the one that waits least."""
    known = {rank.rank: rank for rank in ranks}
    found = {}
    for rank in known.values():
        chain, peer = [rank], rank.waits_for
        while peer in known and known[peer] not in chain:
            chain.append(known[peer])
            peer = known[peer].waits_for
        least = min(chain, key=lambda each: each.rates.waiting)
        if peer is not None and peer not in known:  # a rank of another node, on a node's page
            found[rank.rank] = peer
        elif least is not rank:
            found[rank.rank] = least.rank
    return found


def _cells(rank: RankNow, waited: int | None, scene: Scene) -> dict[str, Mark]:
    rates = rank.rates
    node = cut(words(rank.node, scene.ui.ascii), NODE_MOST)
    step = formats.UNKNOWN if rank.step is None else formats.steps(rank.step, None)
    peer = formats.UNKNOWN if waited is None else f"rank {waited}"
    memory = formats.UNKNOWN if rank.memory is None else format_size_compact(rank.memory)
    cores = formats.known(rank.cpu)
    unknown = cell((formats.UNKNOWN, "dim"))
    share = formats.known(rank.training.share)
    return {
        "rank": cell((str(rank.rank), "bold"), f" {node}"),
        "step": cell(step, right=True),
        "took": cell(formats.step_time(rates.steps), right=True),
        "time": TimeBar(rates.exchange, rates.waiting) if rates.measured else unknown,
        "peer": cell((peer, "warn" if waited is not None else "dim")),
        "share": cell(formats.UNKNOWN if share is None else f"{100 * share:.3g} %", right=True),
        "cpu": cell(formats.UNKNOWN if cores is None else f"{cores:.1f}", right=True),
        "mem": cell(memory, right=True),
    }
