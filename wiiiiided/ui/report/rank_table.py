"""The ranks of an attempt as a table; on a telephone each of them becomes a card.

The same rows serve the page and the terminal.
"""

from __future__ import annotations

from wiiiiided.domain.metrics import RankRecord, RunRecord
from wiiiiided.ui.report import formats
from wiiiiided.ui.report.ranks import RANKS, split_of, waits_most_for
from wiiiiided.ui.report.run_history import length_of

TITLES = (
    *("rank", "node", "steps", "samples", "loss", "compute", "exchange", "waiting", "share"),
    *("waits most for", "sent", "received", "codec", "coding", "memory", "cpu", "slowest for"),
)
NAME = 24  # characters of a name in a row; the charts show the whole of it on hovering
# Where long titles may be divided, should the screen be narrow.
DIVIDED = {
    title.replace("|", ""): title.replace("|", "\u00ad")
    for title in ("com|pute", "ex|change", "wait|ing", "re|ceived", "sam|ples", "mem|ory")
}
LEFT = frozenset({"node", "waits most for", "codec"})  # words; the others are numbers


def rank_rows(run: RunRecord) -> list[tuple[str, ...]]:
    length = length_of(run)
    return [_row(rank, length) for rank in run.ranks[:RANKS]]


def _row(rank: RankRecord, length: float) -> tuple[str, ...]:
    total = rank.totals
    shares = split_of(rank, length).shares if total.measured else (None, None, None)
    peer = waits_most_for(rank)
    cores = None if total.cpu_s is None or length <= 0 else total.cpu_s / length
    return (
        str(rank.rank),
        formats.short(rank.node, NAME),
        formats.number(total.step),
        formats.number(total.samples),
        "nan" if total.diverged else formats.number(total.loss),
        *map(formats.share, shares),
        formats.share(total.training.share),
        formats.UNKNOWN if peer is None else f"rank {peer[0]}, {formats.duration(peer[1])}",
        formats.size(total.wire_out) if total.wire_out else formats.UNKNOWN,
        formats.size(total.wire_in) if total.wire_in else formats.UNKNOWN,
        formats.short(total.codec, NAME) or formats.UNKNOWN,
        formats.duration(total.encode_s + total.decode_s) if total.codec else formats.UNKNOWN,
        formats.size(rank.memory_peak),
        formats.UNKNOWN if cores is None else f"{cores:.2f}",
        formats.duration(rank.straggled_s) if rank.straggled_s > 0 else formats.UNKNOWN,
    )


def shown_columns(rows: list[tuple[str, ...]]) -> list[int]:
    """The columns in which at least one rank has a value."""
    return [n for n in range(len(TITLES)) if any(row[n] != formats.UNKNOWN for row in rows)]
