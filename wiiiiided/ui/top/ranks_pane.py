"""Beside each other, from 34 lines on: the ranks of the selected job, and its loss.

╭─ ranks 17 digits ────────────────────────────────────────╮╭─ loss 4.1 → 0.35 ─────────────╮
│ rank  step  step time  where the time goes  waits for mem ││ 4.1  │█▅▃▂▂▁▁▁▁               │
│ 0 a   7951     310 ms  ▆▆▆▆▆▆▄▂▂▂▂▂▂▂       rank 4   1.0G ││ 0.35 │█████████▇▇▆▆▅▅▅▅▅▅▅▅  │
╰───────────────────────────────────────────────────────────╯╰────────────────────────────────╯
"""

from __future__ import annotations

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
BESIDE = 100  # columns from which on the loss stands beside the ranks
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


def wanted(scene: Scene) -> int:
    """The lines of the panes with their frame; 0: there is nothing to show."""
    row = shown(scene)
    if row is None or row.now is None:
        return 0
    return EDGES + 1 + min(MOST, max(LEAST, len(row.now.ranks)))


def panes(scene: Scene, width: int, height: int) -> RenderableType:
    row = shown(scene)
    if row is None or row.now is None:
        return Text(" ")
    losses = scene.losses.get(row.job.id, ())
    if width < BESIDE or len(losses) < 2:
        return _ranks(row, scene, width, height)
    part = width * 3 // 5
    both = Layout()
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
    for rank in ranks:
        cells = _cells(rank, scene)
        rows.append(RowStrip([(cells[key], size) for key, size in sizes.items()]))
    return Group(*rows)


def _heading(key: str, size: int) -> Mark:
    text = TITLES[key] if len(TITLES[key]) <= size else "time" if key == "time" else TITLES[key]
    return cell(text[:size], style="head", right=key in RIGHT)


def _cells(rank: RankNow, scene: Scene) -> dict[str, Mark]:
    rates = rank.rates
    node = cut(words(rank.node, scene.ui.ascii), NODE_MOST)
    step = formats.UNKNOWN if rank.step is None else formats.steps(rank.step, None)
    peer = formats.UNKNOWN if rank.waits_for is None else f"rank {rank.waits_for}"
    memory = formats.UNKNOWN if rank.memory is None else format_size_compact(rank.memory)
    cores = formats.known(rank.cpu)
    unknown = cell((formats.UNKNOWN, "dim"))
    share = formats.known(rank.training.share)
    return {
        "rank": cell((str(rank.rank), "bold"), f" {node}"),
        "step": cell(step, right=True),
        "took": cell(formats.step_time(rates.steps), right=True),
        "time": TimeBar(rates.exchange, rates.waiting) if rates.measured else unknown,
        "peer": cell((peer, "warn" if rank.waits_for is not None else "dim")),
        "share": cell(formats.UNKNOWN if share is None else f"{100 * share:.3g} %", right=True),
        "cpu": cell(formats.UNKNOWN if cores is None else f"{cores:.1f}", right=True),
        "mem": cell(memory, right=True),
    }
